/* Operations under way and the wavelets between cores (pending.py, core.py, trains.py; Wafer.room and Wafer.send). */

#include "machine.h"

void push(List *list, int64_t item)
{
    if (list->count == list->room) {
        list->room = list->room ? 2 * list->room : 4;
        list->items = realloc(list->items, (size_t)list->room * sizeof *list->items);
    }
    list->items[list->count++] = item;
}

static int before(const Event *a, const Event *b)
{
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

/* Put into the heap; machine->order says which of equal times comes first. */
void at(Machine *machine, double time, Core *core, int kind, Pending *pending, int64_t activate, int64_t unblock)
{
    if (machine->events_waiting == machine->heap_room) {
        machine->heap_room = machine->heap_room ? 2 * machine->heap_room : 1024;
        machine->heap = realloc(machine->heap, (size_t)machine->heap_room * sizeof *machine->heap);
    }
    Event event = {.time = time, .order = ++machine->order, .core = (int32_t)(core - machine->cores), .kind = kind};
    if (kind == EFFECT)
        event.activate = (int32_t)activate, event.unblock = (int32_t)unblock;
    else
        event.pending = pending;
    Event *heap = machine->heap;
    int64_t place = machine->events_waiting++;
    while (place && before(&event, &heap[(place - 1) / 2])) {
        heap[place] = heap[(place - 1) / 2];
        place = (place - 1) / 2;
    }
    heap[place] = event;
}

void wake(Machine *machine, Core *core, double time)
{
    if (core->running || core->scheduled)
        return;
    core->scheduled = 1;
    at(machine, time > core->t ? time : core->t, core, RUN, NULL, 0, 0);
}

/* Ready from that time on, if it is not yet. */
static void make_ready(Core *core, int64_t number, double time)
{
    if (core->is_ready[number])
        return;
    core->is_ready[number] = 1;
    core->ready[number] = time;
    push(&core->numbers_ready, number);
}

void activate(Machine *machine, Core *core, int64_t number, double time)
{
    make_ready(core, number, time);
    wake(machine, core, core->t);
}

void effect(Machine *machine, Core *core, double time, int64_t activate, int64_t unblock)
{
    if (activate >= 0)
        make_ready(core, activate, time);
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

static void tell(Machine *machine, Core *core, int64_t color, double time)
{
    List *waiters = &core->waiters[color];
    for (int64_t place = 0; place < waiters->count; place++)
        at(machine, time, &machine->cores[waiters->items[place]], POLL, NULL, 0, 0);
    waiters->count = 0;
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
    tell(machine, core, color, *last > core->t ? *last : core->t);
    return 1;
}

/* By when they come, but behind one of which a part is taken. */
void put_train(Core *core, int64_t color, Train train)
{
    Queue *queue = &core->arrived[color];
    if (queue->first + queue->count == queue->room) {
        if (queue->first) {
            memmove(queue->trains, queue->trains + queue->first, (size_t)queue->count * sizeof train);
            queue->first = 0;
        } else {
            queue->room = queue->room ? 2 * queue->room : 4;
            queue->trains = realloc(queue->trains, (size_t)queue->room * sizeof train);
        }
    }
    if (!queue->room)
        return;
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
    push(&core->colors_come, color);
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

/* How many wavelets the way and the queues at its ends take now; if none, who has to be told. */
static int64_t room(Machine *machine, Core *core, int64_t color, int64_t asked)
{
    const Path *path = color < 0 ? NULL : &core->paths[color];
    if (!path || !path->known) {
        machine->gives_up = 1;
        return 0;
    }
    for (int64_t number = 0; number < path->ends; number++) {
        const int64_t *to = path->end + 4 * number;
        Core *end = &machine->cores[to[0]];
        int64_t waited_for = 0;
        for (int64_t place = 0; place < end->pendings; place++)
            if (reads(end->pending[place], to[2]))
                waited_for += end->pending[place]->total - end->pending[place]->done;
        const int64_t free = (to[3] ? 0 : (int64_t)machine->costs.queue + 2 * to[1]) + waited_for
                             - available(&end->arrived[to[2]]);
        if (free <= 0)
            push(&end->waiters[to[2]], core - machine->cores);
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
    core->sent[color] = head + gap * (double)count;
    machine->hops += count * (path->routers > 1 ? path->routers - 1 : 0);
    if (path->hops > machine->most_hops)
        machine->most_hops = path->hops;
    for (int64_t number = 0; number < path->ends; number++) {
        const int64_t *to = path->end + 4 * number;
        Core *end = &machine->cores[to[0]];
        Train train = {.gap = gap, .count = count, .data = malloc((size_t)count * 4)};
        train.head = head + machine->costs.ramp + (double)to[1] * machine->costs.hop;
        memcpy(train.data, data, (size_t)count * 4);
        put_train(end, to[2], train);
        at(machine, train.head, end, POLL, NULL, 0, 0);
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
            come[number] = malloc((size_t)count * 4);
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
    uint32_t *out = sends ? malloc((size_t)count * 4) : NULL;
    compute(machine, core, of, &pending->target, pending->sources, come, done, count, out);
    if (sends && !machine->gives_up)
        send(machine, core, pending->target.vector.out_color, out, count, begin, (end - begin) / (double)count);
    free(out), free(come[0]), free(come[1]), free(come[2]);
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
    Pending *pending = malloc(sizeof now);
    *pending = now;
    if (core->pendings == core->pending_room) {
        core->pending_room = core->pending_room ? 2 * core->pending_room : 8;
        core->pending = realloc(core->pending, (size_t)core->pending_room * sizeof pending);
    }
    core->pending[core->pendings++] = pending;
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
