/* Operations under way and the wavelets between cores (pending.py, core.py, trains.py; Wafer.room and Wafer.send). */

#include "machine.h"

/* A larger piece of memory, with what is in the old one; where there is none, the run ends (module.c). */
void *more(Machine *machine, void *old, int64_t bytes)
{
    void *found = realloc(old, (size_t)bytes);
    if (!found)
        longjmp(machine->no_memory, 1);
    return found;
}

/* An array of `count` things of `size` bytes with room for one more. */
static void *one_more(Machine *machine, void *items, int64_t count, int64_t *room, int64_t size)
{
    if (count < *room)
        return items;
    const int64_t wider = *room ? 2 * *room : 4;
    items = more(machine, items, wider * size);
    *room = wider;
    return items;
}

void push(Machine *machine, List *list, int64_t item)
{
    list->items = one_more(machine, list->items, list->count, &list->room, sizeof item);
    list->items[list->count++] = item;
}

static int before(const Event *a, const Event *b)
{
    if (a->time != b->time)
        return a->time < b->time;
    if (a->core != b->core)
        return a->core < b->core;
    return a->by != b->by ? a->by < b->by : a->order < b->order;
}

/* Nothing happens before what happens now. */
static void put_event(Machine *machine, Event event)
{
    if (machine->now > event.time)
        event.time = machine->now;
    machine->heap = one_more(machine, machine->heap, machine->events_waiting, &machine->heap_room, sizeof event);
    Event *heap = machine->heap;
    int64_t place = machine->events_waiting++;
    while (place && before(&event, &heap[(place - 1) / 2])) {
        heap[place] = heap[(place - 1) / 2];
        place = (place - 1) / 2;
    }
    heap[place] = event;
}

/* Something that a core does at a time, by itself. */
void at(Machine *machine, double time, Core *core, int kind, Pending *pending, int64_t activate, int64_t unblock)
{
    Event event = {.time = time, .order = ++core->sequence, .core = (int32_t)(core - machine->cores),
                   .by = (int32_t)core->number, .kind = (int16_t)kind};
    if (kind == EFFECT)
        event.activate = (int32_t)activate, event.unblock = (int32_t)unblock;
    else
        event.pending = pending;
    put_event(machine, event);
}

/* Room was made at another core. */
static void poll_at(Machine *machine, double time, int64_t core, int64_t by)
{
    put_event(machine, (Event){.time = time, .core = (int32_t)core, .by = (int32_t)by, .kind = POLL});
}

void wake(Machine *machine, Core *core, double time)
{
    if (core->running || core->scheduled)
        return;
    core->scheduled = 1;
    at(machine, time > core->t ? time : core->t, core, RUN, NULL, 0, 0);
}

/* Ready from that time on, if it is not yet. */
static void make_ready(Machine *machine, Core *core, int64_t number, double time)
{
    if (core->is_ready[number])
        return;
    core->is_ready[number] = 1;
    core->ready[number] = time;
    push(machine, &core->numbers_ready, number);
}

void activate(Machine *machine, Core *core, int64_t number, double time)
{
    make_ready(machine, core, number, time);
    wake(machine, core, core->t);
}

void effect(Machine *machine, Core *core, double time, int64_t activate, int64_t unblock)
{
    if (activate >= 0)
        make_ready(machine, core, activate, time);
    if (unblock >= 0)
        core->blocked[unblock] = 0;
    if (activate >= 0 || unblock >= 0)
        wake(machine, core, time);
}

/* Wavelets */

static int64_t available(const Queue *queue)
{
    int64_t total = 0;
    for (int64_t place = queue->first; place < queue->first + queue->count; place++)
        total += queue->trains[place].count - queue->trains[place].at;
    return total;
}

/* The words of something for another rank. */
static int64_t *say(Machine *machine, int64_t rank, int64_t count)
{
    List *out = &machine->out[rank];
    if (out->count + count > out->room) {
        const int64_t wider = 2 * (out->count + count);
        out->items = more(machine, out->items, wider * 8);
        out->room = wider;
    }
    out->count += count;
    return out->items + out->count - count;
}

/* What is free from now on. Where that is more, as the core finds at a time, those who wait look again. */
void note_at(Machine *machine, Room *room, double now, int64_t free, double time)
{
    const int grows = room->count && free > room->known[room->begin + room->count - 1].free;
    while (room->count > 1 && room->known[room->begin + 1].since + machine->reach <= now)
        room->begin++, room->count--; /* nobody asks any more what was known before */
    if (room->begin > 32 && room->begin > room->count) {
        memmove(room->known, room->known + room->begin, (size_t)room->count * sizeof *room->known);
        room->begin = 0;
    }
    room->known = one_more(machine, room->known, room->begin + room->count, &room->room, sizeof *room->known);
    room->known[room->begin + room->count++] = (Known){now, free};
    if (!grows)
        return;
    if (room->told_count && room->told[room->told_begin + room->told_count - 1] > time)
        time = room->told[room->told_begin + room->told_count - 1];
    while (room->told_count && room->told[room->told_begin] + machine->reach <= now)
        room->told_begin++, room->told_count--;
    if (room->told_begin > 32 && room->told_begin > room->told_count) {
        memmove(room->told, room->told + room->told_begin, (size_t)room->told_count * 8);
        room->told_begin = 0;
    }
    room->told = one_more(machine, room->told, room->told_begin + room->told_count, &room->told_room, 8);
    room->told[room->told_begin + room->told_count++] = time;
    int64_t kept = 0;
    for (int64_t place = 0; place < room->waiting; place++) {
        const Waiter one = room->waiters[place];
        if (time + one.later > one.since)
            poll_at(machine, time + one.later, one.core, room->number);
        else
            room->waiters[kept++] = one;
    }
    room->waiting = kept;
}

/* The next wavelets; their number is `count`. */
int64_t take(Machine *machine, Core *core, int64_t color, int64_t count, uint32_t *found, double *first, double *last)
{
    Queue *queue = &core->arrived[color];
    int begun = 0;
    core->taken += count;
    *last = 0.0;
    while (count) {
        Train *train = &queue->trains[queue->first];
        const int64_t rest = train->count - train->at, some = count < rest ? count : rest;
        if (!begun)
            *first = train->head + train->gap * (double)train->at, begun = 1;
        *last = train->head + train->gap * (double)(train->at + some - 1);
        memcpy(found, train->data + train->at, (size_t)some * 4);
        found += some, train->at += some, count -= some;
        if (train->at == train->count) {
            free(train->data);
            queue->first++, queue->count--;
        }
    }
    if (!queue->count)
        queue->first = 0;
    return 1;
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

static int reads(const Pending *pending, int64_t color)
{
    for (int64_t number = 0; number < pending->of->inputs; number++) {
        const Value *source = &pending->sources[number];
        if (source->kind == VECTOR && source->vector.fabric && source->vector.in_color == color)
            return 1;
    }
    return 0;
}

/* Write down what room there is now. */
void note(Machine *machine, Core *core, int64_t color)
{
    Room *room = &core->rooms[color];
    int64_t free = -available(&core->arrived[color]);
    for (int64_t place = 0; place < core->pendings; place++)
        if (reads(core->pending[place], color))
            free += core->pending[place]->total - core->pending[place]->done;
    if (free == room->known[room->begin + room->count - 1].free)
        return;
    const double now = machine->now, time = core->t > now ? core->t : now;
    const int grows = free > room->known[room->begin + room->count - 1].free;
    note_at(machine, room, now, free, time);
    for (int64_t number = 0; number < room->readers; number++) {
        int64_t *words = say(machine, room->reader[2 * number], 5);
        words[0] = NOTE, words[1] = room->reader[2 * number + 1], words[2] = free;
        memcpy(words + 3, &now, 8);
        memcpy(words + 4, &time, 8);
        if (grows && time < machine->soonest)
            machine->soonest = time; /* somebody may look again, a hop later or more */
    }
}

static void note_sources(Machine *machine, Core *core, const Pending *pending)
{
    for (int64_t number = 0; number < pending->of->inputs; number++) {
        const Value *source = &pending->sources[number];
        if (source->kind == VECTOR && source->vector.fabric && source->vector.in_color >= 0)
            note(machine, core, source->vector.in_color);
    }
}

/* What is known of it at a core that is so many cycles away. */
static int64_t known(const Room *room, double now, double later)
{
    for (int64_t place = room->begin + room->count - 1; place > room->begin; place--)
        if (room->known[place].since + later <= now)
            return room->known[place].free;
    return room->known[room->begin].free;
}

static int64_t in_flight(Flying *flying, double now, double later)
{
    int64_t total = 0;
    while (flying->count && flying->flights[flying->begin].head + later <= now)
        flying->begin++, flying->count--;
    if (!flying->count)
        flying->begin = 0;
    for (int64_t place = flying->begin; place < flying->begin + flying->count; place++)
        total += flying->flights[place].count;
    return total;
}

/* There was none: look again as soon as something is known that was not, or be told. */
static void wait_for(Machine *machine, Room *room, int64_t core, double now, double later)
{
    int64_t place = room->told_begin + room->told_count;
    while (place > room->told_begin && room->told[place - 1] + later > now)
        place--;
    if (place < room->told_begin + room->told_count) {
        poll_at(machine, room->told[place] + later, core, room->number);
        return;
    }
    room->waiters =
        one_more(machine, room->waiters, room->waiting, &room->waiters_room, sizeof *room->waiters);
    room->waiters[room->waiting++] = (Waiter){core, now, later};
}

/* How many wavelets the way and the queues at its ends take, by what is known here. */
static int64_t room(Machine *machine, Core *core, int64_t color, int64_t asked)
{
    Path *path = color < 0 ? NULL : &core->paths[color];
    if (!path || !path->known) {
        machine->gives_up = 1;
        return 0;
    }
    if (!path->flying) {
        path->flying = more(machine, NULL, path->ends * (int64_t)sizeof *path->flying + 1);
        memset(path->flying, 0, (size_t)path->ends * sizeof *path->flying);
    }
    for (int64_t number = 0; number < path->ends; number++) {
        const int64_t *to = path->end + 5 * number;
        Room *there = to[0] < 0 ? &machine->far[to[4]] : &machine->cores[to[0]].rooms[to[2]];
        const double later = (double)to[1] * machine->costs.hop;
        const int64_t free = (to[3] ? 0 : (int64_t)machine->costs.queue + 2 * to[1]) + known(there, machine->now, later)
                             - in_flight(&path->flying[number], machine->now, later);
        if (free <= 0)
            wait_for(machine, there, core - machine->cores, machine->now, later);
        if (free < asked)
            asked = free;
    }
    return asked > 0 ? asked : 0;
}

static void send(Machine *machine, Core *core, int64_t color, const uint32_t *data, int64_t count, double head,
                 double gap)
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
        Train train = {.gap = gap, .count = count};
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
        int64_t *words = say(machine, far[2], 8 + (count + 1) / 2);
        words[0] = TRAIN, words[1] = far[0], words[2] = to[2], words[3] = core->number, words[4] = order;
        words[5] = count;
        memcpy(words + 6, &train.head, 8);
        memcpy(words + 7, &train.gap, 8);
        words[8 + (count + 1) / 2 - 1] = 0;
        memcpy(words + 8, data, (size_t)count * 4);
        if (train.head < machine->soonest)
            machine->soonest = train.head;
    }
}

/* Operations */

static int of_fabric(const Value *value)
{
    return value->kind == VECTOR && value->vector.fabric;
}

void release(Pending *pending)
{
    if (pending->over && !pending->held)
        free(pending);
}

static void finish(Machine *machine, Core *core, Pending *pending)
{
    pending->over = 1;
    int64_t place = 0;
    while (core->pending[place] != pending)
        place++;
    memmove(core->pending + place, core->pending + place + 1, (size_t)(--core->pendings - place) * sizeof pending);
    if (pending->waits && core->running && core->awaited == pending) {
        pending->held = 1; /* until it resumes its task */
        at(machine, pending->time, core, RESUME, pending, 0, 0);
    }
    at(machine, pending->time, core, EFFECT, NULL, pending->options.activate, pending->options.unblock);
}

/* Go on as far as wavelets and room allow. Did anything move? */
static int advance_once(Machine *machine, Core *core, Pending *pending)
{
    const Operation *of = pending->of;
    int64_t count = pending->total - pending->done, lanes = 0;
    if (pending->stalled) {
        if (machine->now > pending->time)
            pending->time = machine->now;
        pending->stalled = 0;
    }
    double begin = pending->time, last = 0.0;
    for (int64_t number = 0; number < of->inputs; number++)
        if (of_fabric(&pending->sources[number])) {
            const int64_t color = pending->sources[number].vector.in_color;
            const int64_t there = color < 0 ? (machine->gives_up = 1, 0) : available(&core->arrived[color]);
            if (there < count)
                count = there;
        }
    const int64_t ready = count;
    const int sends = of_fabric(&pending->target);
    if (count > 0 && sends) {
        const int64_t some = room(machine, core, pending->target.vector.out_color, count);
        if (some < count)
            count = some;
    }
    pending->stalled = count < ready;
    if (count <= 0 || machine->gives_up)
        return 0;
    uint32_t *come[3] = {NULL, NULL, NULL};
    for (int64_t number = 0; number < of->inputs; number++)
        if (of_fabric(&pending->sources[number])) {
            double first, final;
            come[number] = more(machine, NULL, count * 4);
            take(machine, core, pending->sources[number].vector.in_color, count, come[number], &first, &final);
            if (first > begin)
                begin = first;
            if (final > last)
                last = final;
        }
    for (int64_t number = -1; number < of->inputs; number++) {
        const Value *one = number < 0 ? &pending->target : &pending->sources[number];
        if (of_fabric(one) && one->vector.simd > lanes)
            lanes = one->vector.simd;
    }
    if (!lanes)
        lanes = of->lanes;
    lanes = of->lanes > 1 ? (lanes < of->lanes ? lanes : of->lanes) : 1;
    double end = begin + (double)count / (double)lanes;
    if (last > end)
        end = last;
    const int64_t done = pending->done;
    pending->time = end;
    pending->done += count;
    uint32_t *out = sends ? more(machine, NULL, count * 4) : NULL;
    compute(machine, core, of, &pending->target, pending->sources, come, done, count, out);
    if (sends && !machine->gives_up)
        send(machine, core, pending->target.vector.out_color, out, count, begin, (end - begin) / (double)count);
    free(out), free(come[0]), free(come[1]), free(come[2]);
    note_sources(machine, core, pending);
    if (pending->done >= pending->total)
        finish(machine, core, pending);
    return 1;
}

static void advance(Machine *machine, Core *core, Pending *pending)
{
    while (!pending->over && !machine->gives_up && advance_once(machine, core, pending))
        ;
}

void look_again(Machine *machine, Core *core, double time)
{
    for (int moved = 1; moved && !machine->gives_up;) {
        Pending *waiting[64];
        const int64_t count = core->pendings;
        moved = 0;
        if (count > 64) {
            machine->gives_up = 1;
            return;
        }
        memcpy(waiting, core->pending, (size_t)count * sizeof *waiting);
        for (int64_t place = 0; place < count; place++) {
            const int64_t done = waiting[place]->done;
            advance(machine, core, waiting[place]);
            moved = moved || waiting[place]->done != done;
            release(waiting[place]);
        }
    }
    wake(machine, core, time);
}

/* Begin an operation; what is returned is what the task has to wait for. */
Pending *start(Machine *machine, Core *core, const Operation *of, const Value *operands, int64_t count,
               const Options *options)
{
    Pending now = {.of = of, .options = *options, .total = -1};
    int64_t saved[4], saves = 0;
    int plain = 1;
    for (int64_t number = 0; number < count; number++) {
        Value one = operands[number];
        if (one.kind == REGISTER) {
            const int64_t key = one.i;
            const Options *how = &core->held[key];
            one = core->registers[key];
            if (one.kind != VECTOR)
                machine->gives_up = 1;
            if (how->save)
                saved[saves++] = key;
            if (how->async) {
                now.options.async = 1;
                if (now.options.activate < 0)
                    now.options.activate = how->activate;
                if (now.options.unblock < 0)
                    now.options.unblock = how->unblock;
            }
        }
        plain = plain && !of_fabric(&one);
        *(number ? &now.sources[number - 1] : &now.target) = one;
    }
    if (now.target.kind != VECTOR)
        machine->gives_up = 1;
    for (int fabric = 0; fabric < 2 && now.total < 0; fabric++) /* memory says how long it is, then the fabric */
        for (int64_t number = 0; number < count && now.total < 0; number++) {
            const Value *one = number ? &now.sources[number - 1] : &now.target;
            if (one->kind == VECTOR && one->vector.fabric == fabric && (fabric || one->vector.axes))
                now.total = extent_of(&one->vector);
        }
    if (now.total < 0)
        now.total = 1;
    for (int64_t number = 0; number < saves && !machine->gives_up; number++) {
        Vector *vector = &core->registers[saved[number]].vector;
        if (vector->fabric)
            continue;
        if (!vector->axes)
            machine->gives_up = 1;
        for (int64_t other = 0; other < number; other++)
            if (saved[other] == saved[number])
                machine->gives_up = 1;
        vector->base += (int32_t)(now.total * vector->stride[0] * vector->nbytes);
    }
    if (machine->gives_up)
        return NULL;
    core->operations++;
    const Costs *costs = &machine->costs;
    if (plain) {
        compute(machine, core, of, &now.target, now.sources, NULL, 0, now.total, NULL);
        const int64_t lanes = of->lanes < 4 ? of->lanes : machine->images[core->image].lanes;
        const double cycles = costs->bank * (double)now.total / (double)lanes;
        if (now.options.async) {
            core->t += costs->start_async;
            at(machine, core->t + cycles, core, EFFECT, NULL, now.options.activate, now.options.unblock);
        } else
            core->t += core->mapping ? cycles : costs->start + cycles;
        return NULL;
    }
    core->t += now.options.async ? costs->start_async : costs->start_fabric;
    now.time = core->t;
    now.waits = !now.options.async;
    core->pending =
        one_more(machine, core->pending, core->pendings, &core->pending_room, (int64_t)sizeof *core->pending);
    Pending *pending = more(machine, NULL, sizeof now);
    *pending = now;
    core->pending[core->pendings++] = pending;
    note_sources(machine, core, pending);
    if (!pending->total)
        finish(machine, core, pending);
    advance(machine, core, pending);
    if (pending->over) {
        if (pending->waits && pending->time > core->t)
            core->t = pending->time;
        release(pending);
        return NULL;
    }
    return pending->waits ? pending : NULL;
}
