/* A run from the state that arrays hold until nothing happens any more (compiled.py lays them out). */

#include "../../mesh/stable.h"
#include "machine.h"

enum { /* the arrays, in the order in which compiled.py gives them */
    CODE, CONSTANTS, OPERATIONS, OPTIONS, FUNCTIONS, MAPS, IMAGES, COSTS, CORES, TIMES, BLOCKED, READY, SENT, OBJECTS,
    REGISTERS, HELD, PATHS, ENDS, EVENTS, WAITERS, MEMORY, COUNTS, EXCHANGE, ARRAYS,
};

enum { X, Y, IMAGE, OPEN, PERFORMED, TAKEN, TASKS_RUN, SCHEDULED, COMMAND, ARGUMENTS, FIELDS = ARGUMENTS + 1 + 8 };

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
            for (int64_t source = 0; source < core->pending[one]->of->inputs; source++) {
                const Value *from = &core->pending[one]->sources[source];
                read = read || (from->kind == VECTOR && from->vector.fabric && from->vector.in_color == of);
            }
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
static void go(Machine *machine, Core *core, PyObject *native)
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
        PyObject *done = PyObject_CallFunction(native, "LLL", (long long)machine->native,
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
        push_value(core, answer);
    }
    core->running = 0;
    core->depth = core->top = 0;
    wake(machine, core, core->t);
}

/* A wavelet's data as a task's parameters (tasks.py). */
static void give(Machine *machine, Core *core, int64_t number, int64_t color)
{
    const Image *image = &machine->images[core->image];
    uint32_t raw;
    double first, last;
    take(machine, core, color, 1, &raw, &first, &last);
    for (int64_t place = 0, shift = 0; place < 3 && image->kinds[number][place] >= 0; place++, shift += 16) {
        const int64_t kind = image->kinds[number][place];
        const uint32_t bits = size_of(kind) == 4 ? raw : shift < 32 ? raw >> shift & 0xffff : 0;
        push_value(core, bitcast((Value){.kind = U32, .i = bits}, kind));
    }
}

static void run(Machine *machine, Core *core, double time, PyObject *native)
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
            core->t = now;
            for (int64_t argument = 0; argument < core->argument_count; argument++)
                push_value(core, core->arguments[argument]);
            begin_function(machine, core, core->command);
            core->command = -1;
            core->running = 1;
            go(machine, core, native);
        } else if (soonest >= 0) {
            core->scheduled = 1;
            at(machine, soonest, core, RUN, NULL, 0, 0);
        }
        return;
    }
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
    } else
        give(machine, core, number, color);
    begin_function(machine, core, function);
    core->running = 1;
    go(machine, core, native);
}

static int later(const Event *a, const Event *b)
{
    return a->time > b->time || (a->time == b->time && a->order > b->order);
}

static Event pop(Machine *machine)
{
    Event *heap = machine->heap, first = heap[0], last = heap[--machine->events_waiting];
    int64_t place = 0;
    for (;;) {
        int64_t next = 2 * place + 1;
        if (next >= machine->events_waiting)
            break;
        if (next + 1 < machine->events_waiting && later(&heap[next], &heap[next + 1]))
            next++;
        if (!later(&last, &heap[next]))
            break;
        heap[place] = heap[next];
        place = next;
    }
    heap[place] = last;
    return first;
}

static void settle(Machine *machine, PyObject *native)
{
    while (machine->events_waiting && !machine->gives_up) {
        const Event event = pop(machine);
        Core *core = &machine->cores[event.core];
        machine->now = event.time;
        machine->events++;
        if (!(machine->events & 0xfffff) && PyErr_CheckSignals())
            machine->gives_up = 1;
        if (event.kind == RUN)
            run(machine, core, event.time, native);
        else if (event.kind == POLL)
            look_again(machine, core, event.time);
        else if (event.kind == EFFECT)
            effect(machine, core, event.time, event.activate, event.unblock);
        else {
            Pending *pending = event.pending;
            if (core->running && core->awaited == pending) {
                if (pending->time > core->t)
                    core->t = pending->time;
                core->awaited = NULL;
                pending->held = 0;
                release(pending);
                go(machine, core, native);
            }
        }
    }
}

static void read_core(Machine *machine, int64_t number, void **arrays, int64_t objects)
{
    Core *core = &machine->cores[number];
    const int64_t *fields = (int64_t *)arrays[CORES] + FIELDS * number, registers = machine->register_count;
    core->x = fields[X], core->y = fields[Y], core->image = fields[IMAGE], core->open = fields[OPEN];
    core->operations = fields[PERFORMED], core->taken = fields[TAKEN], core->tasks_run = fields[TASKS_RUN];
    core->scheduled = fields[SCHEDULED], core->command = fields[COMMAND];
    core->argument_count = fields[ARGUMENTS];
    for (int64_t argument = 0; argument < core->argument_count; argument++)
        memcpy(&core->arguments[argument], fields + ARGUMENTS + 1 + 2 * argument, 16);
    core->t = ((double *)arrays[TIMES])[2 * number], core->counted_from = ((double *)arrays[TIMES])[2 * number + 1];
    memcpy(core->blocked, (char *)arrays[BLOCKED] + TASKS * number, TASKS);
    memcpy(core->sent, (double *)arrays[SENT] + COLORS * number, sizeof core->sent);
    for (int64_t task = 0; task < TASKS; task++) {
        const double time = ((double *)arrays[READY])[TASKS * number + task];
        if (time >= 0) {
            core->is_ready[task] = 1, core->ready[task] = time;
            push(&core->numbers_ready, task);
        }
    }
    core->objects = (Value *)arrays[OBJECTS] + objects * number;
    core->registers = (Value *)arrays[REGISTERS] + registers * number;
    core->held = (Options *)arrays[HELD] + registers * number;
    core->memory = (char *)arrays[MEMORY] + machine->nbytes * number;
}

/* 0 where the state cannot be written down: something waits. */
static int write_core(Machine *machine, int64_t number, void **arrays)
{
    Core *core = &machine->cores[number];
    int64_t *fields = (int64_t *)arrays[CORES] + FIELDS * number;
    fields[OPEN] = core->open, fields[PERFORMED] = core->operations, fields[TAKEN] = core->taken;
    fields[TASKS_RUN] = core->tasks_run, fields[SCHEDULED] = core->scheduled;
    ((double *)arrays[TIMES])[2 * number] = core->t, ((double *)arrays[TIMES])[2 * number + 1] = core->counted_from;
    memcpy((char *)arrays[BLOCKED] + TASKS * number, core->blocked, TASKS);
    memcpy((double *)arrays[SENT] + COLORS * number, core->sent, sizeof core->sent);
    for (int64_t task = 0; task < TASKS; task++)
        ((double *)arrays[READY])[TASKS * number + task] = core->is_ready[task] ? core->ready[task] : -1.0;
    int waits = core->running || core->pendings || core->command >= 0;
    for (int64_t color = 0; color < COLORS; color++)
        waits = waits || core->arrived[color].count;
    return !waits;
}

static void free_core(Core *core)
{
    for (int64_t color = 0; color < COLORS; color++) {
        Queue *queue = &core->arrived[color];
        for (int64_t place = queue->first; place < queue->first + queue->count; place++)
            free(queue->trains[place].data);
        free(queue->trains), free(core->waiters[color].items);
    }
    for (int64_t place = 0; place < core->pendings; place++)
        free(core->pending[place]);
    for (int64_t place = 0; place < core->depth; place++)
        free(core->frames[place].mapping);
    free(core->pending), free(core->stack), free(core->frames);
    free(core->numbers_ready.items), free(core->colors_come.items);
}

static int run_all(void **arrays, const int64_t *sizes, PyObject *native)
{
    int64_t *counts = arrays[COUNTS]; /* cores, bytes, objects, registers; then what is counted */
    Machine machine = {
        .core_count = counts[0], .nbytes = counts[1], .register_count = counts[3], .code = arrays[CODE],
        .constants = arrays[CONSTANTS], .operations = arrays[OPERATIONS], .options = arrays[OPTIONS],
        .functions = arrays[FUNCTIONS], .maps = arrays[MAPS], .images = arrays[IMAGES], .touched = counts[4],
    };
    memcpy(&machine.costs, arrays[COSTS], sizeof machine.costs);
    machine.cores = calloc((size_t)machine.core_count, sizeof *machine.cores);
    if (!machine.cores)
        return 0;
    for (int64_t number = 0; number < machine.core_count; number++)
        read_core(&machine, number, arrays, counts[2]);
    const int64_t *paths = arrays[PATHS]; /* core, colour, routers, hops, ends, where these begin */
    for (int64_t number = 0; number < sizes[PATHS] / 48; number++) {
        const int64_t *one = paths + 6 * number;
        machine.cores[one[0]].paths[one[1]] =
            (Path){.known = 1, .routers = one[2], .hops = one[3], .ends = one[4], .end = (int64_t *)arrays[ENDS] + one[5]};
    }
    int64_t *waiters = arrays[WAITERS]; /* core, colour, who waits; how many of them counts[10] says */
    for (int64_t number = 0; number < counts[10]; number++)
        push(&machine.cores[waiters[3 * number]].waiters[waiters[3 * number + 1]], waiters[3 * number + 2]);
    const double *events = arrays[EVENTS]; /* time, core, kind */
    for (int64_t number = 0; number < sizes[EVENTS] / 24; number++)
        at(&machine, events[3 * number], &machine.cores[(int64_t)events[3 * number + 1]],
           (int)events[3 * number + 2], NULL, 0, 0);
    machine.exchange = arrays[EXCHANGE];
    settle(&machine, native);
    int done = !machine.gives_up;
    for (int64_t number = 0; number < machine.core_count; number++)
        done = write_core(&machine, number, arrays) && done;
    counts[10] = 0;
    for (int64_t number = 0; number < machine.core_count; number++)
        for (int64_t color = 0; color < COLORS; color++)
            for (int64_t place = 0; place < machine.cores[number].waiters[color].count; place++) {
                if (counts[10] >= sizes[WAITERS] / 24) {
                    done = 0;
                    break;
                }
                int64_t *one = waiters + 3 * counts[10]++;
                one[0] = number, one[1] = color, one[2] = machine.cores[number].waiters[color].items[place];
            }
    counts[4] = machine.touched, counts[5] = machine.events, counts[6] = machine.wavelets, counts[7] = machine.hops;
    counts[8] = machine.most_hops;
    memcpy(counts + 9, &machine.now, 8);
    for (int64_t place = 0; place < machine.events_waiting; place++)
        if (machine.heap[place].kind == RESUME)
            free(machine.heap[place].pending);
    for (int64_t number = 0; number < machine.core_count; number++)
        free_core(&machine.cores[number]);
    for (int number = 0; number < 6; number++)
        free(machine.room[number]);
    free(machine.heap), free(machine.cores);
    return done;
}

/* settle(native, array, ...): 1, or 0 where Python has to run it. */
static PyObject *settle_all(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    if (count != ARRAYS + 1)
        return PyErr_SetString(PyExc_TypeError, "settle(native, arrays...)"), NULL;
    Py_buffer buffers[ARRAYS];
    void *arrays[ARRAYS];
    int64_t sizes[ARRAYS];
    int known = 0;
    for (; known < ARRAYS; known++) {
        const int flags = known < CORES ? PyBUF_SIMPLE : PyBUF_WRITABLE;
        if (PyObject_GetBuffer(given[1 + known], &buffers[known], flags))
            break;
        arrays[known] = buffers[known].buf, sizes[known] = buffers[known].len;
    }
    const int done = known == ARRAYS ? run_all(arrays, sizes, given[0]) : 0;
    while (known--)
        PyBuffer_Release(&buffers[known]);
    return PyErr_Occurred() ? NULL : Py_BuildValue("i", done);
}

static PyMethodDef methods[] = {
    {"settle", (PyCFunction)(void (*)(void))settle_all, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_machine", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__machine(void)
{
    return PyModule_Create(&definition);
}
