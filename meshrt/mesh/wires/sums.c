/* All transfers of a sum along lines (sums.py), or one by itself (sends.py), at a rank of one core, with its messages.

   What is done is what fabric.py, replay.py, order.py, receiving.py and host.py's `waiter` do for one transfer after the
   other, with the same bits: a table (rows.py) has a row for each of their steps. Python goes on where a message is not there
   yet, and where tiles are combined by a function of its own. MPI is the library that mpi4py has loaded: its functions come as
   addresses, and handles as numbers, which both MPICH's integers and Open MPI's pointers are, passed as such. */

#include "../stable.h"
#include "../../ranks/bells.h"
#include "core.h"
#include <string.h>

enum { STEPS, COPY_TILE, SEND, RECEIVE, SENT, ADD, COMBINE, KEEP, END }; /* as in rows.py */
enum { OWN_TO = 1, OWN_FROM = 2 }; /* addresses in the tile that arrives, in that which leaves */
enum { AT_ONCE = 4000, QUESTIONS = 16, SLEEPS = 16, STATUS = 64 }; /* as in host.py; more bytes than a status has */

#define LONGEST_PAUSE 20e-3 /* seconds; as there */

/* A row of a table. What it does not need is 0. */
typedef struct {
    int64_t kind;
    char *to, *from;
    int64_t count, rank, tag;
    void *request; /* room for a handle */
    int32_t *bell; /* of the other rank, if that is on this node */
    double busy, alpha, taking, tail;
} Row;

/* What the rows of all tables of a block share, and what is told of the last. */
typedef struct {
    int (*isend)(intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, void *);
    int (*irecv)(intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, void *);
    int (*test)(void *, int *, void *);
    intptr_t comm, byte;
    int32_t *bell;  /* this rank's, NULL: none */
    int64_t *taken; /* messages that were announced by it and waited for */
    int64_t sleeps; /* does it sleep at once, rather than yield? */
    int64_t error;  /* of MPI, 0: none */
    OutOfOrder counted;
} Line;

static int is_done(Line *line, void *request)
{
    int done = 0;
    int64_t status[STATUS / 8];
    const int error = line->test(request, &done, status);
    if (error)
        line->error = error;
    return done || error;
}

/* As the waiter: asks, and again for each message that was announced; sleeps until its bell rings, a third of a second
   in all, after which the waiter does so, and says on the board that it waits. */
static int has_come(Line *line, const Row *row)
{
    const int rings = row->bell && line->bell;
    if (is_done(line, row->request))
        return *line->taken += rings, 1;
    int32_t heard = rings ? times_rung(line->bell) : 0;
    int64_t more = rings ? heard - (int32_t)(*line->taken + 1) : 0;
    for (int slept = 0; slept <= SLEEPS; slept++) {
        for (int64_t n = 0; n <= (more > QUESTIONS ? QUESTIONS : more < 0 ? 0 : more); n++)
            if (is_done(line, row->request))
                return *line->taken += rings, 1;
        if (!rings || !line->sleeps || row->count > AT_ONCE)
            return 0;
        PyThreadState *state = PyEval_SaveThread(); /* the thread that hears signals goes on */
        sleep_by(line->bell, heard, LONGEST_PAUSE);
        PyEval_RestoreThread(state);
        more = times_rung(line->bell) - heard;
        heard += (int32_t)more;
    }
    return 0;
}

/* delivery.deliver with np.add, in place. */
static void add_tile(const Row *row, char *to)
{
    if (row->tag == 4)
        for (int64_t i = 0; i < row->count; i++)
            ((float *)to)[i] = ((float *)to)[i] + ((const float *)row->from)[i];
    else
        for (int64_t i = 0; i < row->count; i++)
            ((double *)to)[i] = ((double *)to)[i] + ((const double *)row->from)[i];
}

/* order._end: nobody kept when heads asked for a link. From: free; to: asked_at; request: idle; bell: free before;
   count: how long it took. */
static void end_use(const Row *row)
{
    double *asked_at = (double *)row->to, *idle = row->request;
    const double taken_at = *(const double *)row->from - *(const double *)(intptr_t)row->count;
    if (taken_at > *asked_at) {
        *idle = row->bell ? *(const double *)row->bell : taken_at;
        *asked_at = taken_at;
    }
}

/* What differs from one use of a table to the next. */
typedef struct {
    char *to, *own; /* the tile that arrives, or is added to, and that which leaves */
    char *landing;  /* where headers are put down, if the rows do not say it */
} Use;

/* Does a row's work; 0 where Python is to go on. */
static int do_row(Line *line, const Row *row, const Use *use)
{
    char *to = row->to;
    const char *from = row->from;
    if (row->kind == COPY_TILE) {
        if (row->tag & OWN_TO)
            to = use->to + (intptr_t)row->to;
        if (row->tag & OWN_FROM)
            from = use->own + (intptr_t)row->from;
    }
    switch (row->kind) {
    case STEPS: {
        const Passage passage = {row->busy, row->alpha, row->taking, row->tail, (int)row->tag};
        run_steps(from, row->count, to ? to : use->landing, &passage, &line->counted);
        return 1;
    }
    case COPY_TILE:
        memcpy(to, from, (size_t)row->count);
        return 1;
    case SEND:
        line->error = line->isend((intptr_t)from, (intptr_t)row->count, line->byte, (intptr_t)row->rank,
                                  (intptr_t)row->tag, line->comm, row->request);
        if (row->bell)
            ring_bell(row->bell);
        return !line->error;
    case RECEIVE:
        line->error = line->irecv((intptr_t)to, (intptr_t)row->count, line->byte, (intptr_t)row->rank,
                                  (intptr_t)row->tag, line->comm, row->request);
        return !line->error && has_come(line, row) && !line->error;
    case SENT:
        return is_done(line, row->request) && !line->error;
    case ADD:
        add_tile(row, use->to);
        return 1;
    case KEEP:
        memcpy(to, from, sizeof(double));
        return 1;
    case END:
        end_use(row);
        return 1;
    }
    return 0;
}

/* transfers(line, rows, count, at, to, own, landing): the rows of a table from that number on. Returns the number of
   the row at which Python is to go on, `count` where there is none. */
PyObject *sums_transfers(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    if (count != 7)
        return PyErr_SetString(PyExc_TypeError, "transfers(line, rows, count, at, to, own, landing)"), NULL;
    int64_t numbers[7];
    for (int n = 0; n < 7; n++)
        numbers[n] = PyLong_AsLongLong(given[n]);
    if (PyErr_Occurred())
        return NULL;
    Line *line = (Line *)(intptr_t)numbers[0];
    const Row *rows = (const Row *)(intptr_t)numbers[1];
    const Use use = {(char *)(intptr_t)numbers[4], (char *)(intptr_t)numbers[5], (char *)(intptr_t)numbers[6]};
    int64_t at = numbers[3];
    while (at < numbers[2] && do_row(line, &rows[at], &use))
        at++;
    return Py_BuildValue("L", (long long)at);
}

/* is_there(line, request): is that message there, or sent? */
PyObject *sums_is_there(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    if (count != 2)
        return PyErr_SetString(PyExc_TypeError, "is_there(line, request)"), NULL;
    Line *line = (Line *)(intptr_t)PyLong_AsLongLong(given[0]);
    void *request = (void *)(intptr_t)PyLong_AsLongLong(given[1]);
    return PyErr_Occurred() ? NULL : Py_BuildValue("i", is_done(line, request));
}
