/* A run from the state that arrays hold until nothing happens any more (compiled.py lays them out). */

#include <math.h>

#include "../../mesh/stable.h"
#include "machine.h"

enum { /* the arrays, in the order in which compiled.py gives them */
    CODE, CONSTANTS, OPERATIONS, OPTIONS, FUNCTIONS, MAPS, IMAGES, COSTS, CORES, TIMES, BLOCKED, READY, SENT, OBJECTS,
    REGISTERS, HELD, PATHS, ENDS, EVENTS, FAR, HERE, ROOMS, READERS, MEMORY, COUNTS, EXCHANGE, ARRAYS,
};

enum {
    NUMBER, X, Y, IMAGE, OPEN, PERFORMED, TAKEN, TASKS_RUN, CONFLICTS, SCHEDULED, HOPS, STAGES, COMMAND, ARGUMENTS,
    FIELDS = ARGUMENTS + 1 + 8
};

int interrupted(void)
{
    return PyErr_CheckSignals() != 0;
}

/* All events before `until`. */
static void window(Machine *machine)
{
    while (machine->events_waiting && machine->heap[0].time < machine->until && !machine->gives_up) {
        const Event event = next_event(machine);
        Core *core = &machine->cores[event.core];
        machine->now = event.time;
        machine->events++;
        if (!(machine->events & 0xfffff) && interrupted())
            machine->gives_up = 1;
        if (event.kind == RUN)
            run(machine, core, event.time);
        else if (event.kind == POLL)
            look_again(machine, core, event.time);
        else if (event.kind == EFFECT)
            effect(machine, core, event.time, event.activate, event.unblock, event.chain);
        else if (event.kind == COME)
            come(machine, core, event.color, event.train, event.time);
        else
            resume(machine, core, event.pending);
    }
}

static void settle(Machine *machine)
{
    if (!machine->ranks) {
        window(machine);
        return;
    }
    while (meet(machine)) {
        window(machine);
        if (PyErr_Occurred())
            return; /* of this rank, which ends the others: nothing more is said */
    }
}

static void read_core(Machine *machine, int64_t number, void **arrays, int64_t objects)
{
    Core *core = &machine->cores[number];
    const int64_t *fields = (int64_t *)arrays[CORES] + FIELDS * number, registers = machine->register_count;
    core->number = fields[NUMBER], core->x = fields[X], core->y = fields[Y], core->image = fields[IMAGE], core->open = fields[OPEN];
    core->operations = fields[PERFORMED], core->taken = fields[TAKEN], core->tasks_run = fields[TASKS_RUN];
    core->conflicts = fields[CONFLICTS], core->scheduled = fields[SCHEDULED], core->command = fields[COMMAND];
    core->argument_count = fields[ARGUMENTS];
    for (int64_t argument = 0; argument < core->argument_count; argument++)
        memcpy(&core->arguments[argument], fields + ARGUMENTS + 1 + 2 * argument, 16);
    const double *times = (double *)arrays[TIMES] + 3 * number;
    core->t = times[0], core->counted_from = times[1], core->waited = times[2];
    core->chain = (Chain){(int32_t)fields[HOPS], (int32_t)fields[STAGES]};
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
    fields[TASKS_RUN] = core->tasks_run, fields[CONFLICTS] = core->conflicts, fields[SCHEDULED] = core->scheduled;
    fields[HOPS] = core->chain.hops, fields[STAGES] = core->chain.stages;
    double *times = (double *)arrays[TIMES] + 3 * number;
    times[0] = core->t, times[1] = core->counted_from, times[2] = core->waited;
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
           (int)events[3 * number + 2], NULL);
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
static int run_guarded(Machine *machine, void **arrays, const int64_t *sizes)
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
    settle(machine);
    int rests = !machine->gives_up;
    for (int64_t number = 0; number < machine->core_count; number++)
        rests = write_core(machine, number, arrays) && rests;
    return rests;
}

static int run_all(void **arrays, const int64_t *sizes, void *calls, void *meets)
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
        .exchange = arrays[EXCHANGE], .calls = calls, .meets = meets, .now = -INFINITY, .until = INFINITY, .soonest = INFINITY,
    };
    memcpy(&machine->costs, arrays[COSTS], sizeof machine->costs);
    const int done = run_guarded(machine, arrays, sizes);
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
