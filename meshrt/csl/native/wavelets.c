/* Wavelets: from a core's ramp, on their way, and where they wait (trains.py; Wafer.send). */

#include "machine.h"

/* Those that have come, or are on their way. */
int64_t available(const Queue *queue)
{
    int64_t total = 0;
    for (int64_t place = queue->first; place < queue->first + queue->count; place++)
        total += queue->trains[place].count - queue->trains[place].at;
    return total;
}

/* The next wavelets; there are as many. */
Taken take(Core *core, int64_t color, int64_t count, uint32_t *found)
{
    Queue *queue = &core->arrived[color];
    Taken taken = {.last = 0.0};
    int begun = 0;
    core->taken += count;
    while (count) {
        Train *train = &queue->trains[queue->first];
        const int64_t rest = train->count - train->at, some = count < rest ? count : rest;
        if (!begun)
            taken.first = train->head + train->gap * (double)train->at, taken.begins = train->chain, begun = 1;
        taken.last = train->head + train->gap * (double)(train->at + some - 1);
        taken.ends = train->chain;
        memcpy(found, train->data + train->at, (size_t)some * 4);
        found += some, train->at += some, count -= some;
        if (train->at == train->count) {
            free(train->data);
            queue->first++, queue->count--;
        }
    }
    if (!queue->count)
        queue->first = 0;
    return taken;
}

/* By when they come, but behind one of which a part is taken. */
static void put_train(Machine *machine, Core *core, int64_t color, Train train)
{
    Queue *queue = &core->arrived[color];
    if (queue->first + queue->count == queue->room && queue->first) {
        memmove(queue->trains, queue->trains + queue->first, (size_t)queue->count * sizeof train);
        queue->first = 0;
    }
    queue->trains = one_more(machine, queue->trains, queue->first + queue->count, &queue->room, sizeof train);
    int64_t place = queue->first + queue->count++;
    Train *trains = queue->trains;
    while (place > queue->first && trains[place - 1].head > train.head && !trains[place - 1].at) {
        trains[place] = trains[place - 1];
        place--;
    }
    trains[place] = train;
    for (int64_t known = 0; known < core->colors_come.count; known++)
        if (core->colors_come.items[known] == color)
            return;
    push(machine, &core->colors_come, color);
}

/* Wavelets are on their way to a core. */
void arrive(Machine *machine, Core *core, int64_t color, Train train, int64_t by, int64_t order)
{
    Train *kept = more(machine, NULL, sizeof train);
    *kept = train;
    put_event(machine, (Event){.time = train.head, .order = order, .core = (int32_t)(core - machine->cores),
                               .by = (int32_t)by, .kind = COME, .color = (int16_t)color, .train = kept});
}

void come(Machine *machine, Core *core, int64_t color, Train *train, double time)
{
    put_train(machine, core, color, *train);
    free(train);
    note(machine, core, color);
    look_again(machine, core, time);
}

/* Wavelets go to where the routers say; `chain` is what they come from. */
void send_on(Machine *machine, Core *core, int64_t color, const uint32_t *data, int64_t count, double head, double gap,
             Chain chain)
{
    const Path *path = &core->paths[color];
    machine->wavelets += count;
    if (core->sent[color] > head)
        head = core->sent[color];
    if (machine->now > head)
        head = machine->now;
    core->sent[color] = head + gap * (double)count;
    machine->hops += count * (path->routers > 1 ? path->routers - 1 : 0);
    if (path->hops > machine->most_hops)
        machine->most_hops = path->hops;
    for (int64_t number = 0; number < path->ends; number++) {
        const int64_t *to = path->end + 5 * number;
        Train train = {.gap = gap, .count = count, .chain = {chain.hops + (int32_t)to[1], chain.stages + 1}};
        train.head = head + machine->costs.ramp + (double)to[1] * machine->costs.hop;
        Flying *flying = &path->flying[number];
        if (flying->begin > 32 && flying->begin > flying->count) {
            memmove(flying->flights, flying->flights + flying->begin, (size_t)flying->count * sizeof *flying->flights);
            flying->begin = 0;
        }
        flying->flights = one_more(machine, flying->flights, flying->begin + flying->count, &flying->room,
                                   sizeof *flying->flights);
        flying->flights[flying->begin + flying->count++] = (Flight){train.head, count};
        const int64_t order = ++core->sequence;
        if (to[0] >= 0) {
            train.data = more(machine, NULL, count * 4);
            memcpy(train.data, data, (size_t)count * 4);
            arrive(machine, &machine->cores[to[0]], to[2], train, core->number, order);
            continue;
        }
        const int64_t *far = machine->far_rows + 3 * to[4];
        int64_t *words = say(machine, far[2], 9 + (count + 1) / 2);
        words[0] = TRAIN, words[1] = far[0], words[2] = to[2], words[3] = core->number, words[4] = order;
        words[5] = count;
        memcpy(words + 6, &train.head, 8);
        memcpy(words + 7, &train.gap, 8);
        memcpy(words + 8, &train.chain, 8);
        words[9 + (count + 1) / 2 - 1] = 0;
        memcpy(words + 9, data, (size_t)count * 4);
        if (train.head < machine->soonest)
            machine->soonest = train.head;
    }
}
