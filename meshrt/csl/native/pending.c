/* Operations under way: as far as wavelets and room allow (pending.py). */

#include "machine.h"

/* Does an operation take wavelets of a colour? */
int reads(const Pending *pending, int64_t color)
{
    for (int64_t number = 0; number < pending->of->inputs; number++) {
        const Value *source = &pending->sources[number];
        if (source->kind == VECTOR && source->vector.fabric && source->vector.in_color == color)
            return 1;
    }
    return 0;
}

static void note_sources(Machine *machine, Core *core, const Pending *pending)
{
    for (int64_t number = 0; number < pending->of->inputs; number++) {
        const Value *source = &pending->sources[number];
        if (source->kind == VECTOR && source->vector.fabric && source->vector.in_color >= 0)
            note(machine, core, source->vector.in_color);
    }
}

static int of_fabric(const Value *value)
{
    return value->kind == VECTOR && value->vector.fabric;
}

/* Steps that take a cycle more, as operands' banks meet; 0 where no rule says so. */
static int64_t clashes(const Machine *machine, Core *core, const Operation *of, const Value *sources, int64_t begin,
                       int64_t count, int64_t lanes)
{
    if (!machine->images[core->image].banked)
        return 0;
    const int64_t found = conflicts(of, sources, begin, count, lanes);
    core->conflicts += found;
    return found;
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
        at(machine, pending->time, core, RESUME, pending);
    }
    effect_at(machine, pending->time, core, &pending->options, pending->chain);
}

/* The core has waited for an operation. */
void take_over(Core *core, const Pending *pending)
{
    if (pending->time <= core->t)
        return;
    const double waited = pending->time - core->t - pending->moves;
    if (waited > 0)
        core->waited += waited;
    core->t = pending->time, core->chain = pending->chain;
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
    Chain last_chain = pending->chain;
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
        const int64_t some = room_ahead(machine, core, pending->target.vector.out_color, count);
        if (some < count)
            count = some;
    }
    pending->stalled = count < ready;
    if (count <= 0 || machine->gives_up)
        return 0;
    uint32_t *come[3] = {NULL, NULL, NULL};
    for (int64_t number = 0; number < of->inputs; number++)
        if (of_fabric(&pending->sources[number])) {
            come[number] = more(machine, NULL, count * 4);
            const Taken taken = take(core, pending->sources[number].vector.in_color, count, come[number]);
            if (taken.first > begin)
                begin = taken.first, pending->chain = taken.begins;
            if (taken.last > last)
                last = taken.last, last_chain = taken.ends;
        }
    for (int64_t number = -1; number < of->inputs; number++) {
        const Value *one = number < 0 ? &pending->target : &pending->sources[number];
        if (of_fabric(one) && one->vector.simd > lanes)
            lanes = one->vector.simd;
    }
    const int64_t most = machine->images[core->image].banked ? of->narrow : of->lanes;
    if (!lanes)
        lanes = most;
    lanes = most > 1 ? (lanes < most ? lanes : most) : 1;
    const double moves = (double)count / (double)lanes +
                         (double)clashes(machine, core, of, pending->sources, pending->done, count, lanes);
    double end = begin + moves;
    if (last > end)
        end = last, pending->chain = last_chain;
    pending->moves += moves;
    const int64_t done = pending->done;
    pending->time = end;
    pending->done += count;
    uint32_t *out = sends ? more(machine, NULL, count * 4) : NULL;
    compute(machine, core, of, &pending->target, pending->sources, come, done, count, out);
    if (sends && !machine->gives_up)
        send_on(machine, core, pending->target.vector.out_color, out, count, begin, (end - begin) / (double)count,
                pending->chain);
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
        for (int64_t place = 0; place < count; place++)
            waiting[place] = core->pending[place];
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
        const Image *image = &machine->images[core->image];
        const int64_t lanes = image->banked ? of->narrow : of->lanes < 4 ? of->lanes : image->lanes;
        double cycles = costs->bank * (double)now.total / (double)lanes;
        if (image->banked)
            cycles = (double)((now.total + lanes - 1) / lanes +
                              clashes(machine, core, of, now.sources, 0, now.total, lanes));
        if (now.options.async) {
            core->t += costs->start_async;
            effect_at(machine, core->t + cycles, core, &now.options, core->chain);
        } else
            core->t += core->mapping ? cycles : costs->start + cycles;
        return NULL;
    }
    core->t += now.options.async ? costs->start_async : costs->start_fabric;
    now.time = core->t, now.chain = core->chain;
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
        if (pending->waits)
            take_over(core, pending);
        release(pending);
        return NULL;
    }
    return pending->waits ? pending : NULL;
}
