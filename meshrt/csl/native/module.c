/* A run from the state that arrays hold until nothing happens any more (compiled.py lays them out). */

#include <math.h>

#include "../../mesh/stable.h"
#include "machine.h"

enum { /* the arrays, in the order in which compiled.py gives them */
    CODE, CONSTANTS, OPERATIONS, OPTIONS, FUNCTIONS, MAPS, IMAGES, COSTS, CORES, TIMES, BLOCKED, READY, SENT, OBJECTS,
    REGISTERS, HELD, PATHS, ENDS, EVENTS, FAR, HERE, ROOMS, READERS, MEMORY, COUNTS, EXCHANGE, ARRAYS,
};

enum {
    NUMBER, X, Y, IMAGE, OPEN, PERFORMED, TAKEN, TASKS_RUN, SCHEDULED, COMMAND, ARGUMENTS, FIELDS = ARGUMENTS + 1 + 8
};

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
        push_value(machine, core, answer);
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
    note(machine, core, color);
    for (int64_t place = 0, shift = 0; place < 3 && image->kinds[number][place] >= 0; place++, shift += 16) {
        const int64_t kind = image->kinds[number][place];
        const uint32_t bits = size_of(kind) == 4 ? raw : shift < 32 ? raw >> shift & 0xffff : 0;
        push_value(machine, core, bitcast((Value){.kind = U32, .i = bits}, kind));
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
                push_value(machine, core, core->arguments[argument]);
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
    if (a->time != b->time)
        return a->time > b->time;
    if (a->core != b->core)
        return a->core > b->core;
    return a->by != b->by ? a->by > b->by : a->order > b->order;
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

/* All events before `until`. */
static void window(Machine *machine, PyObject *native)
{
    while (machine->events_waiting && machine->heap[0].time < machine->until && !machine->gives_up) {
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
        else if (event.kind == COME)
            come(machine, core, event.color, event.train, event.time);
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

/* What another rank has said. */
static void hear(Machine *machine, const char *bytes, int64_t count)
{
    for (int64_t at = 0; at < count;) {
        int64_t words[8];
        double time, gap, now;
        memcpy(words, bytes + at, 40);
        if (words[0] == NOTE) {
            memcpy(&now, words + 3, 8);
            memcpy(&time, words + 4, 8);
            note_at(machine, &machine->far[words[1]], now, words[2], time);
            at += 40;
            continue;
        }
        memcpy(words, bytes + at, 64);
        memcpy(&time, words + 6, 8);
        memcpy(&gap, words + 7, 8);
        Train train = {.head = time, .gap = gap, .count = words[5], .data = more(machine, NULL, words[5] * 4)};
        memcpy(train.data, bytes + at + 64, (size_t)words[5] * 4);
        arrive(machine, &machine->cores[machine->here[words[1]]], words[2], train, words[3], words[4]);
        at += 64 + 8 * ((words[5] + 1) / 2);
    }
}

/* All ranks tell each other what they have sent, and up to when they may go on. 0: nothing happens any more. */
static int meet(Machine *machine, PyObject *ranks)
{
    double next = machine->soonest;
    if (machine->events_waiting && machine->heap[0].time < next)
        next = machine->heap[0].time;
    PyObject *said = PyTuple_New((Py_ssize_t)machine->ranks);
    for (int64_t rank = 0; said && rank < machine->ranks; rank++) {
        List *out = &machine->out[rank];
        PyObject *bytes = PyBytes_FromStringAndSize((const char *)out->items, (Py_ssize_t)(8 * out->count));
        out->count = 0;
        if (!bytes || PyTuple_SetItem(said, (Py_ssize_t)rank, bytes))
            return machine->gives_up = 1, 0;
    }
    machine->soonest = INFINITY;
    PyObject *heard = said ? PyObject_CallFunction(ranks, "diO", next, machine->gives_up, said) : NULL;
    if (said)
        Py_DecRef(said);
    PyObject *of = heard ? PySequence_GetItem(heard, 0) : NULL;
    machine->until = of ? PyFloat_AsDouble(of) : -1;
    if (of)
        Py_DecRef(of);
    if (machine->until < 0)
        machine->gives_up = 1; /* as another rank does */
    for (int64_t rank = 0; rank < machine->ranks && !machine->gives_up; rank++) {
        char *bytes;
        Py_ssize_t count;
        PyObject *one = PySequence_GetItem(heard, (Py_ssize_t)rank + 1);
        if (one && !PyBytes_AsStringAndSize(one, &bytes, &count))
            hear(machine, bytes, (int64_t)count);
        else
            machine->gives_up = 1;
        if (one)
            Py_DecRef(one);
    }
    if (heard)
        Py_DecRef(heard);
    return !machine->gives_up && machine->until < INFINITY;
}

static void settle(Machine *machine, PyObject *native, PyObject *ranks)
{
    if (!machine->ranks) {
        window(machine, native);
        return;
    }
    while (meet(machine, ranks))
        window(machine, native);
}

static void read_core(Machine *machine, int64_t number, void **arrays, int64_t objects)
{
    Core *core = &machine->cores[number];
    const int64_t *fields = (int64_t *)arrays[CORES] + FIELDS * number, registers = machine->register_count;
    core->number = fields[NUMBER], core->x = fields[X], core->y = fields[Y], core->image = fields[IMAGE], core->open = fields[OPEN];
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
            push(machine, &core->numbers_ready, task);
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

static void free_room(Room *room)
{
    free(room->known), free(room->told), free(room->waiters);
}

static void free_core(Core *core)
{
    for (int64_t color = 0; color < COLORS; color++) {
        Path *path = &core->paths[color];
        for (int64_t end = 0; path->flying && end < path->ends; end++)
            free(path->flying[end].flights);
        free(path->flying);
        free_room(&core->rooms[color]);
        Queue *queue = &core->arrived[color];
        for (int64_t place = queue->first; place < queue->first + queue->count; place++)
            free(queue->trains[place].data);
        free(queue->trains);
    }
    for (int64_t place = 0; place < core->pendings; place++)
        free(core->pending[place]);
    for (int64_t place = 0; place < core->depth; place++)
        free(core->frames[place].mapping);
    free(core->pending), free(core->stack), free(core->frames);
    free(core->numbers_ready.items), free(core->colors_come.items);
}

static void read_all(Machine *machine, void **arrays, const int64_t *sizes)
{
    const int64_t *counts = arrays[COUNTS];
    for (int64_t number = 0; number < machine->core_count; number++)
        read_core(machine, number, arrays, counts[2]);
    const int64_t *paths = arrays[PATHS]; /* core, colour, routers, hops, ends, where these begin */
    for (int64_t number = 0; number < sizes[PATHS] / 48; number++) {
        const int64_t *one = paths + 6 * number;
        machine->cores[one[0]].paths[one[1]] =
            (Path){.known = 1, .routers = one[2], .hops = one[3], .ends = one[4], .end = (int64_t *)arrays[ENDS] + one[5]};
        if ((double)one[3] * machine->costs.hop > machine->reach)
            machine->reach = (double)one[3] * machine->costs.hop;
    }
    for (int64_t number = 0; number < machine->far_count; number++) {
        machine->far[number].number = machine->far_rows[3 * number];
        note_at(machine, &machine->far[number], -INFINITY, 0, 0);
    }
    for (int64_t number = 0; number < machine->core_count; number++)
        for (int64_t color = 0; color < COLORS; color++) {
            machine->cores[number].rooms[color].number = machine->cores[number].number;
            note_at(machine, &machine->cores[number].rooms[color], -INFINITY, 0, 0);
        }
    const int64_t *rooms = arrays[ROOMS]; /* core, colour, ranks that read it, where these begin */
    for (int64_t number = 0; number < sizes[ROOMS] / 32; number++) {
        Room *room = &machine->cores[rooms[4 * number]].rooms[rooms[4 * number + 1]];
        room->readers = rooms[4 * number + 2], room->reader = (int64_t *)arrays[READERS] + 2 * rooms[4 * number + 3];
    }
    const double *events = arrays[EVENTS]; /* time, core, kind */
    for (int64_t number = 0; number < sizes[EVENTS] / 24; number++)
        at(machine, events[3 * number], &machine->cores[(int64_t)events[3 * number + 1]],
           (int)events[3 * number + 2], NULL, 0, 0);
}

static void free_all(Machine *machine)
{
    for (int64_t place = 0; place < machine->events_waiting; place++) {
        if (machine->heap[place].kind == RESUME)
            free(machine->heap[place].pending);
        if (machine->heap[place].kind == COME)
            free(machine->heap[place].train->data), free(machine->heap[place].train);
    }
    for (int64_t number = 0; machine->cores && number < machine->core_count; number++)
        free_core(&machine->cores[number]);
    for (int64_t number = 0; machine->far && number < machine->far_count; number++)
        free_room(&machine->far[number]);
    for (int64_t rank = 0; machine->out && rank < machine->ranks; rank++)
        free(machine->out[rank].items);
    for (int number = 0; number < 6; number++)
        free(machine->room[number]);
    free(machine->heap), free(machine->cores), free(machine->far), free(machine->out);
}

/* 1: done; 0: Python has to; -1: there is not the memory. */
static int run_guarded(Machine *machine, void **arrays, const int64_t *sizes, PyObject *native, PyObject *ranks)
{
    if (setjmp(machine->no_memory))
        return -1;
    /* a thing more than there are: room for nothing may be no room */
    machine->cores = calloc((size_t)machine->core_count + 1, sizeof *machine->cores);
    machine->far = calloc((size_t)machine->far_count + 1, sizeof *machine->far);
    machine->out = calloc((size_t)machine->ranks + 1, sizeof *machine->out);
    if (!machine->cores || !machine->far || !machine->out)
        return -1;
    read_all(machine, arrays, sizes);
    settle(machine, native, ranks);
    int rests = !machine->gives_up;
    for (int64_t number = 0; number < machine->core_count; number++)
        rests = write_core(machine, number, arrays) && rests;
    return rests;
}

static int run_all(void **arrays, const int64_t *sizes, PyObject *native, PyObject *ranks)
{
    int64_t *counts = arrays[COUNTS]; /* cores, bytes, objects, registers; then what is counted; ranks */
    Machine *machine = malloc(sizeof *machine);
    if (!machine)
        return -1;
    *machine = (Machine){
        .core_count = counts[0], .nbytes = counts[1], .register_count = counts[3], .code = arrays[CODE],
        .constants = arrays[CONSTANTS], .operations = arrays[OPERATIONS], .options = arrays[OPTIONS],
        .functions = arrays[FUNCTIONS], .maps = arrays[MAPS], .images = arrays[IMAGES], .touched = counts[4],
        .ranks = counts[10], .far_rows = arrays[FAR], .far_count = sizes[FAR] / 24, .here = arrays[HERE],
        .exchange = arrays[EXCHANGE], .now = -INFINITY, .until = INFINITY, .soonest = INFINITY,
    };
    memcpy(&machine->costs, arrays[COSTS], sizeof machine->costs);
    const int done = run_guarded(machine, arrays, sizes, native, ranks);
    counts[4] = machine->touched, counts[5] = machine->events, counts[6] = machine->wavelets;
    counts[7] = machine->hops, counts[8] = machine->most_hops;
    memcpy(counts + 9, &machine->now, 8);
    free_all(machine);
    free(machine);
    return done;
}

/* settle(native, ranks, array, ...): 1, or 0 where Python has to run it. MemoryError. */
static PyObject *settle_all(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    if (count != ARRAYS + 2)
        return PyErr_SetString(PyExc_TypeError, "settle(native, ranks, arrays...)"), NULL;
    Py_buffer buffers[ARRAYS];
    void *arrays[ARRAYS];
    int64_t sizes[ARRAYS];
    int known = 0;
    for (; known < ARRAYS; known++) {
        const int flags = known < CORES ? PyBUF_SIMPLE : PyBUF_WRITABLE;
        if (PyObject_GetBuffer(given[2 + known], &buffers[known], flags))
            break;
        arrays[known] = buffers[known].buf, sizes[known] = buffers[known].len;
    }
    const int done = known == ARRAYS ? run_all(arrays, sizes, given[0], given[1]) : 0;
    while (known--)
        PyBuffer_Release(&buffers[known]);
    if (done < 0 && !PyErr_Occurred())
        return PyErr_NoMemory();
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
