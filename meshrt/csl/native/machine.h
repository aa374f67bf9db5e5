/* What core.py, pending.py and wafer.py do, for programs without switches, FIFOs and streams: the Python is the
   definition, and this gives the same bits. An event has the same time and the same place in the order; every sum of
   times is made of the same numbers one after the other, and the compiler may fuse none of them.

   What happens at one core is in the order of time, then of who caused it, then of how many events that one had caused
   before: nothing of this depends on other cores' turns. What a core does is known at another as much later as a
   wavelet's hops take (room.py), so cores may be shared out to ranks that meet now and then (blocks.py).

   Where something comes up that is not here, or is wrong, a run gives up (`gives_up`), and Python runs again from where
   it began: errors have one author. */

#ifndef MESHRT_CSL_MACHINE_H
#define MESHRT_CSL_MACHINE_H

#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "half.h"

enum { COLORS = 32, TASKS = 128, AXES = 4 };

/* Kinds of values: as lowered.py numbers them. WORD: a whole number of Python. */
enum { WORD, I16, U16, I32, U32, I64, U64, F16, F32, I8, U8, NOTHING, VECTOR, REGISTER };

/* A vector in memory or of the fabric (vectors.py), as lowered.py packs them. */
typedef struct {
    int32_t fabric, nbytes, base, axes, extent[AXES], stride[AXES], simd, in_color, out_color;
} Vector;

typedef struct {
    int64_t kind;
    union {
        int64_t i;
        double f;
        Vector vector;
    };
} Value;

typedef struct {
    int64_t async, activate, unblock, save; /* numbers of tasks, -1: none */
} Options;

enum { MOV, NEG, ABS, ADD, SUB, MUL, MAX, MIN, MAC, AND, OR, XOR, SLL, SLR, SAR, WIDEN, NARROW };

typedef struct {
    int64_t what, kind, takes, inputs, lanes, narrow; /* elements a cycle; the same of a WSE-2 */
} Operation;

/* What a time comes from (trains.py). */
typedef struct {
    int32_t hops, stages;
} Chain;

typedef struct {
    double head, gap;
    uint32_t *data;
    int64_t count, at;
    Chain chain;
} Train;

/* When the first and the last of some wavelets are there. */
typedef struct {
    double first, last;
    Chain begins, ends;
} Taken;

/* What is known of the room at a core, and since when (room.py). */
typedef struct {
    double since;
    int64_t free;
} Known;

typedef struct {
    int64_t core;
    double since, later;
} Waiter;

typedef struct {
    Known *known;
    double *told;
    Waiter *waiters;
    int64_t number; /* of its core, among all ranks' */
    int64_t begin, count, room, told_begin, told_count, told_room, waiting, waiters_room;
    int64_t readers; /* ranks with cores that send to it: how many, and where their rows begin */
    const int64_t *reader;
} Room;

/* Wavelets that were sent to one end, and of which the sender cannot know that they are there. */
typedef struct {
    double head;
    int64_t count;
} Flight;

typedef struct {
    Flight *flights;
    int64_t begin, count, room;
} Flying;

typedef struct {
    Train *trains;
    int64_t first, count, room;
} Queue;

typedef struct {
    int64_t *items;
    int64_t count, room;
} List;

typedef struct {
    const Operation *of;
    Options options;
    Value target, sources[3];
    int64_t total, done;
    double time, moves;
    Chain chain;
    char waits, over, stalled, held;
} Pending;

typedef struct {
    int64_t begin, arguments, locals;
} Function;

typedef struct {
    int64_t function, operands, writes, kinds[5]; /* of parameters, then of the result; -1: none */
} Map;

/* @map under way in a frame. */
typedef struct {
    const Map *of;
    int64_t at, count;
    Value operands[4], target;
} Mapping;

typedef struct {
    int64_t at, base; /* in the code; of its locals */
    Mapping *mapping;
} Frame;

typedef struct {
    int64_t tasks[TASKS]; /* number -> function, -1: none */
    int64_t lanes, banked; /* numbers at once; where vectors lie decides what they take */
    int64_t data[COLORS];  /* colour -> the task that its data start, -1: none */
    int64_t kinds[TASKS][3]; /* of that task's parameters, -1: none */
} Image;

/* Where wavelets of one core and colour go. */
typedef struct {
    int64_t known, routers, hops, ends;
    int64_t *end; /* of each: core, hops, colour, exact; where the core is another rank's, -1 and the room's number */
    Flying *flying;
} Path;

typedef struct {
    int64_t number, sequence, x, y, image, open, operations, taken, tasks_run, conflicts, command, running, scheduled;
    int64_t mapping;
    double t, counted_from, waited;
    Chain chain, causes[TASKS];
    char *memory;
    char blocked[TASKS], is_ready[TASKS];
    double ready[TASKS], caused[TASKS]; /* what last let a task run, and when: 0, nothing */
    List numbers_ready, colors_come;
    Queue arrived[COLORS];
    Room rooms[COLORS];
    double sent[COLORS];
    Path paths[COLORS];
    Pending **pending;
    int64_t pendings, pending_room;
    Pending *awaited;
    Value *objects;
    int64_t object_count;
    Value *registers;
    Options *held; /* what was said when a register was loaded */
    Value arguments[4]; /* of the command */
    int64_t argument_count;
    Value *stack;
    int64_t top, stack_room;
    Frame *frames;
    int64_t depth, frame_room;
} Core;

enum { RUN, POLL, RESUME, EFFECT, COME };

typedef struct {
    double time;
    int64_t order;
    int32_t core, by;
    int16_t kind, color;
    union {
        Pending *pending;
        Train *train;
        struct {
            int32_t activate, unblock;
            Chain chain;
        };
    };
} Event;

typedef struct {
    double ramp, hop, start, start_fabric, start_async, map_start, map_step, bank, task, queue;
} Costs;

typedef struct {
    Core *cores;
    Image *images;
    int64_t core_count, nbytes, touched, register_count;
    const int32_t *code;
    const Value *constants;
    const Operation *operations;
    const Options *options;
    const Function *functions;
    const Map *maps;
    Costs costs;
    Event *heap;
    int64_t events_waiting, heap_room, events, turns; /* turns of loops, all together */
    double now;
    int64_t wavelets, hops, most_hops;
    int gives_up;
    jmp_buf no_memory;
    double reach, until; /* the longest path, in cycles; up to when events may be run */
    Room *far;           /* at cores of other ranks */
    const int64_t *far_rows, *here; /* of each of those: core, colour, rank; of all cores: their number here, or -1 */
    int64_t far_count, ranks;
    List *out; /* for each rank: words that are to go there */
    double soonest; /* of what is in them */
    int64_t native, native_arguments; /* a function of Python's that a core asks for */
    void *calls, *meets; /* Python's: State.native, Block.exchange */
    void *room[6];     /* for vectors, while one is computed */
    int64_t *exchange; /* with that function */
    int64_t room_for;
} Machine;

/* values.c */
int64_t size_of(int64_t kind);
int is_float(int64_t kind);
Value load(const Core *core, int64_t kind, int64_t at);
void store(Machine *machine, Core *core, int64_t kind, int64_t at, Value value);
Value convert(Machine *machine, Value value, int64_t kind);
Value bitcast(Value value, int64_t kind);
Value binary(Machine *machine, int64_t op, Value a, Value b);
Value unary(Machine *machine, int64_t op, Value a);
int truth(Value value);

/* vectors.c */
int64_t extent_of(const Vector *vector);
int positions(Machine *machine, const Vector *vector, int64_t size, int64_t begin, int64_t count, int64_t *found);
void compute(Machine *machine, Core *core, const Operation *of, const Value *target, const Value *sources,
             uint32_t *const *come, int64_t begin, int64_t count, uint32_t *out);

/* banks.c */
int64_t conflicts(const Operation *of, const Value *sources, int64_t begin, int64_t count, int64_t lanes);

/* events.c */
void *more(Machine *machine, void *old, int64_t bytes);
void *one_more(Machine *machine, void *items, int64_t count, int64_t *room, int64_t size);
void push(Machine *machine, List *list, int64_t item);
void put_event(Machine *machine, Event event);
Event next_event(Machine *machine);
void at(Machine *machine, double time, Core *core, int kind, Pending *pending);
void effect_at(Machine *machine, double time, Core *core, const Options *options, Chain chain);
void poll_at(Machine *machine, double time, int64_t core, int64_t by);
void wake(Machine *machine, Core *core, double time);
void activate(Machine *machine, Core *core, int64_t number, double time);
void effect(Machine *machine, Core *core, double time, int64_t activate, int64_t unblock, Chain chain);

/* rooms.c */
void note(Machine *machine, Core *core, int64_t color);
void note_at(Machine *machine, Room *room, double now, int64_t free, double time);
int64_t room_ahead(Machine *machine, Core *core, int64_t color, int64_t asked);

/* wavelets.c */
int64_t available(const Queue *queue);
void arrive(Machine *machine, Core *core, int64_t color, Train train, int64_t by, int64_t order);
void come(Machine *machine, Core *core, int64_t color, Train *train, double time);
Taken take(Core *core, int64_t color, int64_t count, uint32_t *found);
void send_on(Machine *machine, Core *core, int64_t color, const uint32_t *data, int64_t count, double head, double gap,
             Chain chain);

/* pending.c */
int reads(const Pending *pending, int64_t color);
void release(Pending *pending);
void take_over(Core *core, const Pending *pending);
void look_again(Machine *machine, Core *core, double time);
Pending *start(Machine *machine, Core *core, const Operation *of, const Value *operands, int64_t count,
               const Options *options);

/* tasks.c */
void run(Machine *machine, Core *core, double time);
void resume(Machine *machine, Core *core, Pending *pending);

/* ranks.c */
enum { TRAIN, NOTE }; /* what ranks say to each other */
int64_t *say(Machine *machine, int64_t rank, int64_t count);
int meet(Machine *machine);

/* module.c */
int interrupted(void); /* has a signal raised an exception of Python's? */

/* code.c */
enum { ENDED, WAITS, ASKS };
int run_code(Machine *machine, Core *core);
void begin_function(Machine *machine, Core *core, int64_t function);
void push_value(Machine *machine, Core *core, Value value);

#endif
