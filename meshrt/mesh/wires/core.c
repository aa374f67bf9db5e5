/* What order.py, replay.py, ramps.py and receiving.py do with arrays of times, each in one pass over memory.

   The NumPy code there is the definition, and what runs where this is not built (core.py). Both give the same bits:
   every number is one sum or one maximum of doubles, in the same order, and the compiler may fuse none of them.
   Steps (steps.py) have addresses and strides of arrays that the lane keeps; nothing is allocated here. Tables come as
   bytes, and memory as its address: to ask NumPy for an array's buffer takes longer than a step over few cells. */

#include "../stable.h"
#include "core.h"
#include <stdlib.h>

/* A head asks for a link: its time becomes that at which it gets it (order.give). */
static inline void give(double *time, double busy, double *free, double *asked_at, double *idle, OutOfOrder *counted)
{
    const double ask = *time, until = *free, high = *asked_at;
    if (high <= ask) {
        *idle = until;
        *asked_at = ask;
        *time = ask > until ? ask : until;
        *free = *time + busy;
        return;
    }
    /* the link was given before to a head that asks later than now (order._give_late) */
    const double low = *idle;
    double begin = ask > low ? ask : low;
    const int inside = begin + busy <= high;
    if (!inside)
        begin = until;
    if (!(inside && ask >= low)) {
        counted->packets++;
        if (begin - ask > counted->longest_wait)
            counted->longest_wait = begin - ask;
    }
    *time = begin;
    *idle = inside ? begin + busy : until;
    *free = inside ? until : until + busy;
}

/* Numbers of an array as [outer, inner]: evenly spaced, or at positions. Steps are in bytes. */
typedef struct {
    int64_t base, outer_step, inner_step, outer_at, inner_at; /* addresses of int64 positions; 0: evenly spaced */
} Cells;

enum { LEAVE, COPY, MOVE, LAND, PATH, ANY_LATE, TAKE_OVER, SPEND, SERVE, END }; /* as in steps.py */

typedef struct {
    int64_t kind, outer, inner;
    Cells cells[6];
} Step;

/* One row of them. */
typedef struct {
    double *begin;
    int64_t step; /* in numbers */
    const int64_t *at;
} Row;

#define AT(row, i) (row).begin[((row).at ? (row).at[i] : (i)) * (row).step]

static inline Row row_of(const Cells *cells, int64_t outer)
{
    const int64_t *at = (const int64_t *)(intptr_t)cells->outer_at;
    char *begin = (char *)(intptr_t)cells->base + (at ? at[outer] : outer) * cells->outer_step;
    const Row row = {(double *)begin, cells->inner_step / 8, (const int64_t *)(intptr_t)cells->inner_at};
    return row;
}

/* replay._leave: packets leave their cores by the ramp. */
static inline void leave_row(int64_t count, Row time, Row core, Row free, double busy)
{
    for (int64_t i = 0; i < count; i++) {
        const double start = AT(core, i) > AT(free, i) ? AT(core, i) : AT(free, i);
        AT(time, i) = start;
        AT(free, i) = start + busy;
    }
}

static inline void copy_row(int64_t count, Row to, Row from)
{
    for (int64_t i = 0; i < count; i++)
        AT(to, i) = AT(from, i);
}

static inline void add_row(int64_t count, Row to, Row from, Row more)
{
    for (int64_t i = 0; i < count; i++)
        AT(to, i) = AT(from, i) + AT(more, i);
}

/* replay.Arrival.take_path: hops that led to the packet and its own, and stages. */
static inline void path_row(int64_t count, Row hops, Row its_hops, Row own, Row stages, Row its_stages)
{
    for (int64_t i = 0; i < count; i++) {
        AT(hops, i) = AT(its_hops, i) + AT(own, i);
        AT(stages, i) = AT(its_stages, i);
    }
}

/* replay._move: packets leave a router when the link is free, keep it busy, and are at the next a hop later. */
static inline void move_row(int64_t count, Row time, Row free, double busy, double alpha)
{
    for (int64_t i = 0; i < count; i++) {
        const double start = AT(time, i) > AT(free, i) ? AT(time, i) : AT(free, i);
        AT(free, i) = start + busy;
        AT(time, i) = start + alpha;
    }
}

/* The same where it is looked after who asked first. */
static inline void give_row(int64_t count, Row time, Row free, Row asked_at, Row idle, double busy, double alpha,
                            OutOfOrder *counted)
{
    for (int64_t i = 0; i < count; i++) {
        give(&AT(time, i), busy, &AT(free, i), &AT(asked_at, i), &AT(idle, i), counted);
        AT(time, i) += alpha;
    }
}

/* receiving._wait: cores that have to wait for what landed take over its time, hops and stages. */
static inline void take_row(int64_t count, Row time, Row hops, Row stages, Row landed, Row its_hops, Row its_stages)
{
    for (int64_t i = 0; i < count; i++) {
        const int late = AT(landed, i) > AT(time, i);
        AT(hops, i) = late ? AT(its_hops, i) : AT(hops, i);
        AT(stages, i) = late ? AT(its_stages, i) : AT(stages, i);
        AT(time, i) = late ? AT(landed, i) : AT(time, i);
    }
}

/* software.stage and software.tail: cores spend so many cycles, in so many stages of software. */
static inline void spend_row(int64_t count, Row time, Row stages, double cycles, double touched)
{
    for (int64_t i = 0; i < count; i++) {
        AT(time, i) += cycles;
        AT(stages, i) += touched;
    }
}

static inline int any_late(int64_t count, Row time, Row landed)
{
    for (int64_t i = 0; i < count; i++)
        if (AT(landed, i) > AT(time, i))
            return 1;
    return 0;
}

/* ramps.serve where nothing else comes: packets are given their cores' ramps, and have come when the tail is in. */
static inline void serve_row(int64_t count, Row time, Row free, Row asked_at, Row idle, double taking, double tail,
                             OutOfOrder *counted)
{
    for (int64_t i = 0; i < count; i++) {
        give(&AT(time, i), taking, &AT(free, i), &AT(asked_at, i), &AT(idle, i), counted);
        AT(time, i) += tail;
    }
}

/* order._end: nobody kept when heads asked for these links, which each was busy with for `length`; `before`, if it is
   there: since when the links were idle. */
static inline void end_row(int64_t count, Row asked_at, Row free, Row idle, Row length, Row before)
{
    for (int64_t i = 0; i < count; i++) {
        const double taken_at = AT(free, i) - AT(length, i);
        if (taken_at > AT(asked_at, i)) {
            AT(idle, i) = before.begin ? AT(before, i) : taken_at;
            AT(asked_at, i) = taken_at;
        }
    }
}

/* How the arrays of a step lie in memory: the compiler makes a loop for each. */
enum { SIDE_BY_SIDE, EVEN, ODD };

static inline __attribute__((always_inline)) void do_row(const Step *step, const Row *rows, int spacing,
                                                         const Passage *passage, OutOfOrder *counted, int *late)
{
    const double busy = passage->busy, alpha = passage->alpha;
    const int64_t count = step->inner;
    Row r[6];
    for (int n = 0; n < 6; n++) {
        r[n].begin = rows[n].begin;
        r[n].step = spacing == SIDE_BY_SIDE ? 1 : rows[n].step;
        r[n].at = spacing == ODD ? rows[n].at : NULL;
    }
    switch (step->kind) {
    case LEAVE:
        if (busy)
            leave_row(count, r[0], r[1], r[2], busy);
        else
            copy_row(count, r[0], r[1]);
        break;
    case MOVE:
        if (busy && passage->watch)
            give_row(count, r[0], r[1], r[2], r[3], busy, alpha, counted);
        else if (busy)
            move_row(count, r[0], r[1], busy, alpha);
        else
            for (int64_t i = 0; i < count; i++)
                AT(r[0], i) += alpha;
        if (step->cells[4].base) /* a hop past defects takes longer */
            add_row(count, r[0], r[0], r[4]);
        break;
    case COPY:
    case LAND:
        copy_row(count, r[0], r[1]);
        break;
    case PATH:
        path_row(count, r[0], r[1], r[2], r[3], r[4]);
        break;
    case ANY_LATE:
        *late = *late || any_late(count, r[0], r[3]);
        break;
    case TAKE_OVER:
        take_row(count, r[0], r[1], r[2], r[3], r[4], r[5]);
        break;
    case SPEND:
        spend_row(count, r[0], r[1], busy, alpha);
        break;
    case SERVE:
        if (passage->taking)
            serve_row(count, r[0], r[1], r[2], r[3], passage->taking, passage->tail, counted);
        break;
    case END:
        end_row(count, r[0], r[1], r[2], r[3], r[4]);
    }
}

static void do_step(const Step *given, char *landing, const Passage *passage, OutOfOrder *counted, int *late)
{
    Step step = *given;
    for (int n = 0; n < 6; n++) /* what lies in the landing */
        if ((step.kind == LAND || step.kind == SERVE)
                ? n == 0
                : step.kind == PATH ? n == 0 || n == 3 : (step.kind == ANY_LATE || step.kind == TAKE_OVER) && n >= 3)
            step.cells[n].base += (int64_t)(intptr_t)landing;
    int spacing = SIDE_BY_SIDE;
    for (int n = 0; n < 6; n++)
        if (step.cells[n].base && step.cells[n].inner_at)
            spacing = ODD;
        else if (step.cells[n].base && step.cells[n].inner_step != 8 && spacing == SIDE_BY_SIDE)
            spacing = EVEN;
    for (int64_t outer = 0; outer < step.outer; outer++) {
        Row rows[6];
        for (int n = 0; n < 6; n++)
            rows[n] = row_of(&step.cells[n], outer);
        if (spacing == SIDE_BY_SIDE)
            do_row(&step, rows, SIDE_BY_SIDE, passage, counted, late);
        else if (spacing == EVEN)
            do_row(&step, rows, EVEN, passage, counted, late);
        else
            do_row(&step, rows, ODD, passage, counted, late);
    }
}

int run_steps(const void *steps, int64_t nbytes, char *landing, const Passage *passage, OutOfOrder *counted)
{
    int late = 0;
    const Step *step = steps, *end = step + nbytes / (int64_t)sizeof(Step);
    for (; step < end; step++) {
        do_step(step, landing, passage, counted, &late);
        if (step->kind == ANY_LATE && !late)
            break;
    }
    return late;
}

/* The same for Python. Of what a passage has, taking and tail may be left out. */
static PyObject *replay(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    if (count != 5 && count != 7)
        return PyErr_SetString(PyExc_TypeError, "replay(steps, landing, busy, alpha, watch, taking, tail)"), NULL;
    char *landing = (char *)(intptr_t)PyLong_AsLongLong(given[1]);
    const Passage passage = {PyFloat_AsDouble(given[2]), PyFloat_AsDouble(given[3]),
                             count > 5 ? PyFloat_AsDouble(given[5]) : 0.0,
                             count > 5 ? PyFloat_AsDouble(given[6]) : 0.0, PyObject_IsTrue(given[4])};
    Py_buffer steps;
    if (PyErr_Occurred() || PyObject_GetBuffer(given[0], &steps, PyBUF_SIMPLE))
        return NULL;
    OutOfOrder counted = {0, 0.0};
    const int late = run_steps(steps.buf, steps.len, landing, &passage, &counted);
    PyBuffer_Release(&steps);
    return counted.packets || late ? Py_BuildValue("Ld", (long long)counted.packets, counted.longest_wait)
                                   : Py_BuildValue("");
}

/* Where an array begins in memory: NumPy's own ways to say it take ten times as long. */
static PyObject *address(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    Py_buffer view;
    if (count != 1)
        return PyErr_SetString(PyExc_TypeError, "address(array)"), NULL;
    if (PyObject_GetBuffer(given[0], &view, PyBUF_STRIDES))
        return NULL;
    const long long begin = (long long)(intptr_t)view.buf;
    PyBuffer_Release(&view);
    return Py_BuildValue("L", begin);
}

/* order.give for arrays of one or two dimensions, of one shape. */
static PyObject *give_all(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    if (count != 5)
        return PyErr_SetString(PyExc_TypeError, "give(times, busy, free, asked_at, idle)"), NULL;
    const double busy = PyFloat_AsDouble(given[1]);
    if (PyErr_Occurred())
        return NULL;
    PyObject *const arrays[4] = {given[0], given[2], given[3], given[4]};
    Py_buffer views[4];
    int held = 0, fits = 1;
    for (; held < 4; held++) {
        Py_buffer *view = &views[held];
        if (PyObject_GetBuffer(arrays[held], view, PyBUF_STRIDES | PyBUF_WRITABLE))
            break;
        fits = fits && view->itemsize == 8 && view->ndim >= 1 && view->ndim <= 2 && view->ndim == views[0].ndim;
        for (int n = 0; fits && n < view->ndim; n++)
            fits = view->shape[n] == views[0].shape[n];
    }
    OutOfOrder counted = {0, 0.0};
    if (held == 4 && fits) {
        const Py_buffer *times = &views[0];
        const int last = times->ndim - 1;
        /* along the dimension that lies closer in memory */
        const int inner = last && llabs(times->strides[0]) < llabs(times->strides[1]) ? 0 : last, outer = last - inner;
        Row rows[4];
        for (Py_ssize_t o = 0; o < (last ? times->shape[outer] : 1); o++) {
            for (int n = 0; n < 4; n++) {
                const Cells cells = {(int64_t)(intptr_t)views[n].buf, last ? views[n].strides[outer] : 0,
                                     views[n].strides[inner], 0, 0};
                rows[n] = row_of(&cells, o);
            }
            give_row(times->shape[inner], rows[0], rows[1], rows[2], rows[3], busy, 0.0, &counted);
        }
    } else if (held == 4)
        PyErr_SetString(PyExc_ValueError, "give: four arrays of float64 of one shape, of one or two dimensions");
    while (held--)
        PyBuffer_Release(&views[held]);
    return PyErr_Occurred() ? NULL : Py_BuildValue("Ld", (long long)counted.packets, counted.longest_wait);
}

/* The ramps of the block: when they are free, were asked for and were idle from. */
typedef struct {
    struct {
        int64_t base, row_step, column_step; /* bytes */
    } cells[3];
    int64_t height, width;
} Ramps;

/* Packets of a transfer that ask for the ramps of cores: where each core of the block has its packet. */
typedef struct {
    int64_t rows, columns;         /* addresses of int64: the packets' places by y (0: all in one) and by x, -1: none */
    int64_t row_step, column_step; /* bytes, in the landing, from place to place */
    int64_t advance;               /* from the columns of one row of cores to those of the next */
} Places;

typedef struct {
    Py_buffer places;
    char *landing;
    double taking, tail; /* cycles: of the ramp, and until the core has what it waits for */
    char *row;           /* of this row of cores, NULL: they get none */
    const int64_t *column;
    int64_t step;
} Arriving;

/* When a transfer's packet asks for the ramp of a core of this row; NULL: it gets none. */
static inline double *ask_of(const Arriving *one, Py_ssize_t x)
{
    const int64_t place = one->row ? one->column[x] : -1;
    return place < 0 ? NULL : (double *)(one->row + place * one->step);
}

/* A core's packets in the order of their asking; of those that ask together, as their transfers were started. */
static int in_turn(const Arriving **turns, double **times, const Arriving *arriving, Py_ssize_t count, Py_ssize_t x)
{
    int waiting = 0;
    for (const Arriving *next = arriving; next < arriving + count; next++) {
        double *time = ask_of(next, x);
        if (!time)
            continue;
        int at = waiting++;
        for (; at && *times[at - 1] > *time; at--)
            turns[at] = turns[at - 1], times[at] = times[at - 1];
        turns[at] = next, times[at] = time;
    }
    return waiting;
}

/* The ramp of a core. */
typedef struct {
    double free, asked_at, idle;
} Ramp;

static inline void serve_packet(double *time, const Arriving *of, Ramp *ramp, OutOfOrder *counted)
{
    double asks = *time;
    give(&asks, of->taking, &ramp->free, &ramp->asked_at, &ramp->idle, counted);
    *time = asks + of->tail;
}

/* ramps.serve_all for all that is under way: every core's ramp goes to its packets in turn. */
static OutOfOrder serve_block(const Ramps *ramps, Arriving *arriving, Py_ssize_t count, const Arriving **turns,
                              double **times)
{
    OutOfOrder counted = {0, 0.0};
    for (Py_ssize_t y = 0; y < ramps->height; y++) {
        for (Arriving *one = arriving; one < arriving + count; one++) {
            const Places *places = one->places.buf;
            const int64_t *rows = (const int64_t *)(intptr_t)places->rows;
            const int64_t place = rows ? rows[y] : 0;
            one->row = place < 0 ? NULL : one->landing + place * places->row_step;
            one->column = (const int64_t *)(intptr_t)places->columns + y * places->advance;
            one->step = places->column_step;
        }
        char *cells[3];
        for (int n = 0; n < 3; n++)
            cells[n] = (char *)(intptr_t)ramps->cells[n].base + y * ramps->cells[n].row_step;
        for (Py_ssize_t x = 0; x < ramps->width; x++) {
            double *at[3];
            for (int n = 0; n < 3; n++)
                at[n] = (double *)(cells[n] + x * ramps->cells[n].column_step);
            Ramp ramp = {*at[0], *at[1], *at[2]};
            if (count == 2) { /* as for most: no list of turns */
                double *first = ask_of(arriving, x), *second = ask_of(arriving + 1, x);
                const int second_first = first && second && *second < *first;
                if (second_first)
                    serve_packet(second, arriving + 1, &ramp, &counted);
                if (first)
                    serve_packet(first, arriving, &ramp, &counted);
                if (second && !second_first)
                    serve_packet(second, arriving + 1, &ramp, &counted);
            } else {
                const int waiting = in_turn(turns, times, arriving, count, x);
                for (int n = 0; n < waiting; n++)
                    serve_packet(times[n], turns[n], &ramp, &counted);
            }
            *at[0] = ramp.free, *at[1] = ramp.asked_at, *at[2] = ramp.idle;
        }
    }
    return counted;
}

static PyObject *serve(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    if (count < 5 || (count - 1) % 4)
        return PyErr_SetString(PyExc_TypeError, "serve(ramps, places, landing, taking, tail, ...)"), NULL;
    const Py_ssize_t transfers = (count - 1) / 4;
    Py_buffer ramps;
    if (PyObject_GetBuffer(given[0], &ramps, PyBUF_SIMPLE))
        return NULL;
    Arriving *arriving = calloc((size_t)transfers, sizeof *arriving);
    const Arriving **turns = calloc((size_t)transfers, sizeof *turns);
    double **times = calloc((size_t)transfers, sizeof *times);
    OutOfOrder counted = {0, 0.0};
    Py_ssize_t known = 0;
    for (; arriving && turns && times && known < transfers; known++) {
        PyObject *const *of = given + 1 + 4 * known;
        Arriving *one = &arriving[known];
        one->landing = (char *)(intptr_t)PyLong_AsLongLong(of[1]);
        one->taking = PyFloat_AsDouble(of[2]);
        one->tail = PyFloat_AsDouble(of[3]);
        if (PyErr_Occurred() || PyObject_GetBuffer(of[0], &one->places, PyBUF_SIMPLE))
            break;
    }
    if (known == transfers)
        counted = serve_block(ramps.buf, arriving, transfers, turns, times);
    else if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "serve: the host has no memory left");
    while (known--)
        PyBuffer_Release(&arriving[known].places);
    PyBuffer_Release(&ramps);
    free(arriving), free((void *)turns), free(times);
    if (PyErr_Occurred())
        return NULL;
    return counted.packets ? Py_BuildValue("Ld", (long long)counted.packets, counted.longest_wait) : Py_BuildValue("");
}

/* tiles.c; sums.c; ../products.c; ../../ranks/bells.c; ../exchange/march.c, hops.c, onward.c */
PyObject *deliver(PyObject *module, PyObject *const *given, Py_ssize_t count);
PyObject *rotate(PyObject *module, PyObject *const *given, Py_ssize_t count);
PyObject *sums_transfers(PyObject *module, PyObject *const *given, Py_ssize_t count);
PyObject *sums_is_there(PyObject *module, PyObject *const *given, Py_ssize_t count);
PyObject *multiply(PyObject *module, PyObject *const *given, Py_ssize_t count);
PyObject *widen(PyObject *module, PyObject *const *given, Py_ssize_t count);
PyObject *bell_ring(PyObject *module, PyObject *const *given, Py_ssize_t count);
PyObject *bell_heard(PyObject *module, PyObject *const *given, Py_ssize_t count);
PyObject *bell_listen(PyObject *module, PyObject *const *given, Py_ssize_t count);
PyObject *rebuild(PyObject *module, PyObject *const *given, Py_ssize_t count);
PyObject *add_rounded(PyObject *module, PyObject *const *given, Py_ssize_t count);
PyObject *march_line_up(PyObject *module, PyObject *const *given, Py_ssize_t count);
PyObject *march_enter(PyObject *module, PyObject *const *given, Py_ssize_t count);
PyObject *march_leave(PyObject *module, PyObject *const *given, Py_ssize_t count);
PyObject *march_come_in(PyObject *module, PyObject *const *given, Py_ssize_t count);
PyObject *onward_go(PyObject *module, PyObject *const *given, Py_ssize_t count);
PyObject *onward_is_done(PyObject *module, PyObject *const *given, Py_ssize_t count);

static PyMethodDef methods[] = {
    {"address", (PyCFunction)(void (*)(void))address, METH_FASTCALL, NULL},
    {"give", (PyCFunction)(void (*)(void))give_all, METH_FASTCALL, NULL},
    {"replay", (PyCFunction)(void (*)(void))replay, METH_FASTCALL, NULL},
    {"deliver", (PyCFunction)(void (*)(void))deliver, METH_FASTCALL, NULL},
    {"rotate", (PyCFunction)(void (*)(void))rotate, METH_FASTCALL, NULL},
    {"transfers", (PyCFunction)(void (*)(void))sums_transfers, METH_FASTCALL, NULL},
    {"is_there", (PyCFunction)(void (*)(void))sums_is_there, METH_FASTCALL, NULL},
    {"multiply", (PyCFunction)(void (*)(void))multiply, METH_FASTCALL, NULL},
    {"widen", (PyCFunction)(void (*)(void))widen, METH_FASTCALL, NULL},
    {"rebuild", (PyCFunction)(void (*)(void))rebuild, METH_FASTCALL, NULL},
    {"add_rounded", (PyCFunction)(void (*)(void))add_rounded, METH_FASTCALL, NULL},
    {"line_up", (PyCFunction)(void (*)(void))march_line_up, METH_FASTCALL, NULL},
    {"enter", (PyCFunction)(void (*)(void))march_enter, METH_FASTCALL, NULL},
    {"leave", (PyCFunction)(void (*)(void))march_leave, METH_FASTCALL, NULL},
    {"come_in", (PyCFunction)(void (*)(void))march_come_in, METH_FASTCALL, NULL},
    {"onward", (PyCFunction)(void (*)(void))onward_go, METH_FASTCALL, NULL},
    {"has_come", (PyCFunction)(void (*)(void))onward_is_done, METH_FASTCALL, NULL},
    {"ring", (PyCFunction)(void (*)(void))bell_ring, METH_FASTCALL, NULL},
    {"heard", (PyCFunction)(void (*)(void))bell_heard, METH_FASTCALL, NULL},
    {"listen", (PyCFunction)(void (*)(void))bell_listen, METH_FASTCALL, NULL},
    {"serve", (PyCFunction)(void (*)(void))serve, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

#ifndef MESHRT_SOURCES /* checksum() of meshrt/sources.py, as ci/backend gives it */
#define MESHRT_SOURCES 0
#endif

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_core", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__core(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "SOURCES", MESHRT_SOURCES) < 0) {
        Py_DecRef(module);
        return NULL;
    }
    return module;
}
