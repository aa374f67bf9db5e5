/* Which task of a core runs next, and until when (tasks.py, Core.run). */

#include "../../mesh/stable.h"
#include "machine.h"

static int is_ready_first(double time, int64_t number, double other, int64_t other_number)
{
    return time < other || (time == other && number < other_number);
}

/* Which task runs next: the longest ready, of these the lowest number (Core.run). -1: none is due. */
static int64_t pick(Machine *machine, Core *core, double now, double *soonest, int64_t *color)
{
    const Image *image = &machine->images[core->image];
    int64_t best = -1;
    double since = 0;
    int any = 0;
    List *ready = &core->numbers_ready;
    for (int64_t place = 0; place < ready->count; place++) {
        const int64_t number = ready->items[place];
        if (core->blocked[number])
            continue;
        const double time = core->ready[number];
        if (!any || time < *soonest)
            *soonest = time, any = 1;
        if (time <= now && (best < 0 || is_ready_first(time, number, since, best)))
            best = number, since = time, *color = -1;
    }
    for (int64_t place = 0; place < core->colors_come.count; place++) {
        const int64_t of = core->colors_come.items[place], number = image->data[of];
        const Queue *queue = &core->arrived[of];
        if (!queue->count || number < 0 || core->blocked[number])
            continue;
        int read = 0;
        for (int64_t one = 0; one < core->pendings; one++)
            read = read || reads(core->pending[one], of);
        if (read)
            continue;
        const Train *first = &queue->trains[queue->first];
        const double time = first->head + first->gap * (double)first->at;
        if (!any || time < *soonest)
            *soonest = time, any = 1;
        if (time <= now && (best < 0 || is_ready_first(time, number, since, best)))
            best = number, since = time, *color = of;
    }
    if (!any)
        *soonest = -1;
    return best;
}

/* Run a task until it waits or ends. */
static void go(Machine *machine, Core *core)
{
    for (;;) {
        const int how = run_code(machine, core);
        if (machine->gives_up || how == WAITS)
            return;
        if (how == ENDED)
            break;
        int64_t *exchange = machine->exchange;
        core->top -= machine->native_arguments;
        for (int64_t number = 0; number < machine->native_arguments; number++)
            memcpy(exchange + 2 * number, &core->stack[core->top + number], 16);
        PyObject *done = PyObject_CallFunction(machine->calls, "LLL", (long long)machine->native,
                                               (long long)(core - machine->cores),
                                               (long long)machine->native_arguments);
        if (!done || PyObject_IsTrue(done) != 1) {
            if (done)
                Py_DecRef(done);
            machine->gives_up = 1;
            return;
        }
        Py_DecRef(done);
        Value answer = {.kind = exchange[0]};
        memcpy(&answer.i, exchange + 1, 8);
        push_value(machine, core, answer);
    }
    core->running = 0;
    core->depth = core->top = 0;
    wake(machine, core, core->t);
}

/* What its task has waited for is over. */
void resume(Machine *machine, Core *core, Pending *pending)
{
    if (!core->running || core->awaited != pending)
        return;
    take_over(core, pending);
    core->awaited = NULL;
    pending->held = 0;
    release(pending);
    go(machine, core);
}

/* A wavelet's data as a task's parameters (tasks.py). */
static Taken give(Machine *machine, Core *core, int64_t number, int64_t color)
{
    const Image *image = &machine->images[core->image];
    uint32_t raw;
    const Taken taken = take(core, color, 1, &raw);
    note(machine, core, color);
    for (int64_t place = 0, shift = 0; place < 3 && image->kinds[number][place] >= 0; place++, shift += 16) {
        const int64_t kind = image->kinds[number][place];
        const uint32_t bits = size_of(kind) == 4 ? raw : shift < 32 ? raw >> shift & 0xffff : 0;
        push_value(machine, core, bitcast((Value){.kind = U32, .i = bits}, kind));
    }
    return taken;
}

void run(Machine *machine, Core *core, double time)
{
    core->scheduled = 0;
    if (core->running)
        return;
    double now = time > core->t ? time : core->t, soonest = -1;
    int64_t color = -1;
    const int64_t number = pick(machine, core, now, &soonest, &color);
    if (number < 0) {
        if (core->open && core->command >= 0) {
            core->open = 0;
            core->waited += now - core->t;
            core->t = now;
            for (int64_t argument = 0; argument < core->argument_count; argument++)
                push_value(machine, core, core->arguments[argument]);
            begin_function(machine, core, core->command);
            core->command = -1;
            core->running = 1;
            go(machine, core);
        } else if (soonest >= 0) {
            core->scheduled = 1;
            at(machine, soonest, core, RUN, NULL);
        }
        return;
    }
    const double before = core->t;
    double cause = core->caused[number];
    Chain chain = core->causes[number];
    core->caused[number] = 0.0;
    core->waited += now - before;
    core->t = now + machine->costs.task;
    core->tasks_run++;
    const int64_t function = machine->images[core->image].tasks[number];
    if (function < 0) {
        machine->gives_up = 1;
        return;
    }
    if (color < 0) {
        List *ready = &core->numbers_ready;
        core->is_ready[number] = 0;
        for (int64_t place = 0; place < ready->count; place++)
            if (ready->items[place] == number)
                ready->items[place] = ready->items[--ready->count];
    } else {
        const Taken taken = give(machine, core, number, color);
        if (taken.first > cause)
            cause = taken.first, chain = taken.begins;
    }
    if (cause > before)
        core->chain = chain;
    begin_function(machine, core, function);
    core->running = 1;
    go(machine, core);
}
