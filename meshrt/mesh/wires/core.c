/* What order.py, replay.py, ramps.py and fabric.py do with arrays of times, each in one pass over memory.

   The NumPy code there is the definition, and what runs where this is not built (core.py). Both give the same bits:
   every number is one sum or one maximum of doubles, in the same order, and the compiler may fuse none of them.
   Steps (steps.py) have addresses and strides of arrays that the lane keeps; nothing is allocated here. */

#define Py_LIMITED_API 0x030B0000 /* one build for all Pythons since 3.11, the first whose stable ABI has buffers */
#if __has_include(<Python.h>) && !defined(WITHOUT_PYTHON_H)
#include <Python.h>
#else
#include "stable.h"
#endif
#include <stdint.h>
#include <stdlib.h>

/* Heads that were given a link after one that asked later (order.py). */
typedef struct {
    int64_t packets;
    double longest_wait; /* cycles */
} OutOfOrder;

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

/* Numbers of an array as [outer, inner]: evenly spaced, or at positions. Steps are bytes. */
typedef struct {
    int64_t base, outer_step, inner_step, outer_at, inner_at; /* addresses of int64 positions; 0: evenly spaced */
} Cells;

enum { LEAVE, COPY, MOVE, LAND, ADD, COUNT_LATE, TAKE_OVER }; /* as in steps.py */

typedef struct {
    int64_t kind, outer, inner;
    Cells cells[6];
} Step;

static inline char *row_of(const Cells *cells, int64_t outer)
{
    const int64_t *at = (const int64_t *)(intptr_t)cells->outer_at;
    return (char *)(intptr_t)cells->base + (at ? at[outer] : outer) * cells->outer_step;
}

static inline double *number_of(const Cells *cells, char *row, int64_t inner)
{
    const int64_t *at = (const int64_t *)(intptr_t)cells->inner_at;
    return (double *)(row + (at ? at[inner] : inner) * cells->inner_step);
}

/* replay._leave: packets leave their cores by the ramp. */
static void leave(const Step *step, double busy)
{
    const Cells time = step->cells[0], core = step->cells[1], ramp = step->cells[2];
    for (int64_t o = 0; o < step->outer; o++) {
        char *times = row_of(&time, o), *cores = row_of(&core, o), *ramps = row_of(&ramp, o);
        for (int64_t i = 0; i < step->inner; i++) {
            double start = *number_of(&core, cores, i);
            if (busy) {
                double *free = number_of(&ramp, ramps, i);
                start = start > *free ? start : *free;
                *free = start + busy;
            }
            *number_of(&time, times, i) = start;
        }
    }
}

/* replay._move: packets leave a router when the link is free, keep it busy, and are at the next a hop later. */
static inline double passed(double ask, double busy, int watch, double *free, double *asked_at, double *idle,
                            OutOfOrder *counted)
{
    double time = ask;
    if (busy && watch)
        give(&time, busy, free, asked_at, idle, counted);
    else if (busy) {
        time = ask > *free ? ask : *free;
        *free = time + busy;
    }
    return time;
}

static void move(const Step *step, double busy, double alpha, int watch, OutOfOrder *counted)
{
    const Cells time = step->cells[0], free = step->cells[1], asked_at = step->cells[2], idle = step->cells[3],
                late = step->cells[4]; /* cycles that the hop takes longer past defects, if any */
    const int even = !(time.inner_at || free.inner_at);
    OutOfOrder found = {0, 0.0};
    for (int64_t o = 0; o < step->outer; o++) {
        char *times = row_of(&time, o), *frees = row_of(&free, o), *askeds = row_of(&asked_at, o),
             *idles = row_of(&idle, o);
        if (even && !late.base) {
            for (int64_t i = 0; i < step->inner; i++) {
                double *head = (double *)(times + i * time.inner_step);
                *head = alpha + passed(*head, busy, watch, (double *)(frees + i * free.inner_step),
                                       (double *)(askeds + i * asked_at.inner_step),
                                       (double *)(idles + i * idle.inner_step), &found);
            }
            continue;
        }
        for (int64_t i = 0; i < step->inner; i++) {
            double *head = number_of(&time, times, i);
            *head = alpha + passed(*head, busy, watch, number_of(&free, frees, i), number_of(&asked_at, askeds, i),
                                   number_of(&idle, idles, i), &found);
            if (late.base)
                *head += *number_of(&late, row_of(&late, o), i);
        }
    }
    counted->packets += found.packets;
    if (found.longest_wait > counted->longest_wait)
        counted->longest_wait = found.longest_wait;
}

/* to = from (replay: branches, headers of messages, what lands), or to = from + more (Arrival.take_path). */
static void copy(const Step *step, int64_t landing)
{
    Cells to = step->cells[0];
    const Cells from = step->cells[1], more = step->cells[2];
    to.base += landing;
    for (int64_t o = 0; o < step->outer; o++) {
        char *tos = row_of(&to, o), *froms = row_of(&from, o), *mores = row_of(&more, o);
        for (int64_t i = 0; i < step->inner; i++) {
            double number = *number_of(&from, froms, i);
            if (step->kind == ADD)
                number += *number_of(&more, mores, i);
            *number_of(&to, tos, i) = number;
        }
    }
}

/* fabric._wait: how many cores have to wait for what landed; or they take over its time and path. */
static int64_t wait(const Step *step, int64_t landing)
{
    int64_t count = 0;
    for (int64_t o = 0; o < step->outer; o++) {
        char *rows[6];
        for (int n = 0; n < 6; n++)
            rows[n] = row_of(&step->cells[n], o) + (n < 3 ? 0 : landing); /* time, hops, stages: the core's, landed */
        for (int64_t i = 0; i < step->inner; i++) {
            if (!(*number_of(&step->cells[3], rows[3], i) > *number_of(&step->cells[0], rows[0], i)))
                continue;
            count++;
            for (int n = 0; n < 3 && step->kind == TAKE_OVER; n++)
                *number_of(&step->cells[n], rows[n], i) = *number_of(&step->cells[n + 3], rows[n + 3], i);
        }
    }
    return count;
}

static PyObject *replay(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    if (count != 5)
        return PyErr_SetString(PyExc_TypeError, "replay(steps, landing, busy, alpha, watch)"), NULL;
    const double busy = PyFloat_AsDouble(given[2]), alpha = PyFloat_AsDouble(given[3]);
    const int watch = PyObject_IsTrue(given[4]);
    if (PyErr_Occurred())
        return NULL;
    Py_buffer steps, landing;
    if (PyObject_GetBuffer(given[0], &steps, PyBUF_SIMPLE))
        return NULL;
    if (PyObject_GetBuffer(given[1], &landing, PyBUF_WRITABLE)) {
        PyBuffer_Release(&steps);
        return NULL;
    }
    const int64_t landed = (int64_t)(intptr_t)landing.buf;
    OutOfOrder counted = {0, 0.0};
    int64_t late = 0;
    const Step *step = steps.buf, *end = step + steps.len / (Py_ssize_t)sizeof(Step);
    for (; step < end; step++)
        switch (step->kind) {
        case LEAVE:
            leave(step, busy);
            break;
        case MOVE:
            move(step, busy, alpha, watch, &counted);
            break;
        case COUNT_LATE:
        case TAKE_OVER:
            late += wait(step, landed);
            break;
        default:
            copy(step, step->kind == COPY ? 0 : landed);
        }
    PyBuffer_Release(&landing);
    PyBuffer_Release(&steps);
    return Py_BuildValue("LdL", (long long)counted.packets, counted.longest_wait, (long long)late);
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
        Step step = {MOVE, last ? times->shape[outer] : 1, times->shape[inner], {{0, 0, 0, 0, 0}}};
        for (int n = 0; n < 4; n++) {
            const Cells cells = {(int64_t)(intptr_t)views[n].buf, last ? views[n].strides[outer] : 0,
                                 views[n].strides[inner], 0, 0};
            step.cells[n] = cells;
        }
        for (int64_t o = 0; o < step.outer; o++) {
            char *rows[4];
            for (int n = 0; n < 4; n++)
                rows[n] = row_of(&step.cells[n], o);
            for (int64_t i = 0; i < step.inner; i++)
                give(number_of(&step.cells[0], rows[0], i), busy, number_of(&step.cells[1], rows[1], i),
                     number_of(&step.cells[2], rows[2], i), number_of(&step.cells[3], rows[3], i), &counted);
        }
    } else if (held == 4)
        PyErr_SetString(PyExc_ValueError, "give: four arrays of float64 of one shape, of one or two dimensions");
    while (held--)
        PyBuffer_Release(&views[held]);
    return PyErr_Occurred() ? NULL : Py_BuildValue("Ld", (long long)counted.packets, counted.longest_wait);
}

/* Packets of a transfer that ask for the ramps of cores: where each core of the block has its packet. */
typedef struct {
    int64_t rows, columns;         /* addresses of int64: the packets' places by y (0: all in one) and by x, -1: none */
    int64_t row_step, column_step; /* bytes, in the landing, from place to place */
    int64_t advance;               /* from the columns of one row of cores to those of the next */
} Places;

typedef struct {
    Py_buffer places, landing;
    double taking, tail; /* cycles: of the ramp, and until the core has what it waits for */
    char *row;           /* of this row of cores, NULL: they get none */
    const int64_t *column;
} Arriving;

/* A core's packets in the order of their asking; of those that ask together, as their transfers were started. */
static int in_turn(Arriving **turns, double **times, Arriving *arriving, Py_ssize_t count, Py_ssize_t x)
{
    int waiting = 0;
    for (Arriving *next = arriving; next < arriving + count; next++) {
        if (!next->row || next->column[x] < 0)
            continue;
        double *time = (double *)(next->row + next->column[x] * ((const Places *)next->places.buf)->column_step);
        int at = waiting++;
        for (; at && *times[at - 1] > *time; at--)
            turns[at] = turns[at - 1], times[at] = times[at - 1];
        turns[at] = next, times[at] = time;
    }
    return waiting;
}

/* ramps.serve_all for all that is under way: every core's ramp goes to its packets in turn. */
static OutOfOrder serve_block(const Py_buffer *ramps, Arriving *arriving, Py_ssize_t count, Arriving **turns,
                              double **times)
{
    OutOfOrder counted = {0, 0.0};
    for (Py_ssize_t y = 0; y < ramps[0].shape[0]; y++) {
        for (Arriving *one = arriving; one < arriving + count; one++) {
            const Places *places = one->places.buf;
            const int64_t *rows = (const int64_t *)(intptr_t)places->rows;
            const int64_t place = rows ? rows[y] : 0;
            one->row = place < 0 ? NULL : (char *)one->landing.buf + place * places->row_step;
            one->column = (const int64_t *)(intptr_t)places->columns + y * places->advance;
        }
        char *cells[3];
        for (int n = 0; n < 3; n++)
            cells[n] = (char *)ramps[n].buf + y * ramps[n].strides[0];
        for (Py_ssize_t x = 0; x < ramps[0].shape[1]; x++) {
            const int waiting = in_turn(turns, times, arriving, count, x);
            for (int n = 0; n < waiting; n++) {
                give(times[n], turns[n]->taking, (double *)(cells[0] + x * ramps[0].strides[1]),
                     (double *)(cells[1] + x * ramps[1].strides[1]), (double *)(cells[2] + x * ramps[2].strides[1]),
                     &counted);
                *times[n] += turns[n]->tail;
            }
        }
    }
    return counted;
}

static PyObject *serve(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    if (count < 7 || (count - 3) % 4)
        return PyErr_SetString(PyExc_TypeError, "serve(free, asked_at, idle, places, landing, taking, tail, ...)"), NULL;
    const Py_ssize_t transfers = (count - 3) / 4;
    Py_buffer ramps[3];
    Arriving *arriving = calloc((size_t)transfers, sizeof *arriving);
    Arriving **turns = calloc((size_t)transfers, sizeof *turns);
    double **times = calloc((size_t)transfers, sizeof *times);
    OutOfOrder counted = {0, 0.0};
    int held = 0, fits = arriving && turns && times;
    Py_ssize_t known = 0;
    for (; fits && held < 3; held++) {
        if (PyObject_GetBuffer(given[held], &ramps[held], PyBUF_STRIDES | PyBUF_WRITABLE))
            break;
        fits = ramps[held].ndim == 2 && ramps[held].itemsize == 8;
    }
    for (; fits && held == 3 && known < transfers; known++) {
        PyObject *const *of = given + 3 + 4 * known;
        Arriving *one = &arriving[known];
        one->taking = PyFloat_AsDouble(of[2]);
        one->tail = PyFloat_AsDouble(of[3]);
        if (PyErr_Occurred() || PyObject_GetBuffer(of[0], &one->places, PyBUF_SIMPLE))
            break;
        if (PyObject_GetBuffer(of[1], &one->landing, PyBUF_WRITABLE)) {
            PyBuffer_Release(&one->places);
            break;
        }
    }
    if (fits && held == 3 && known == transfers)
        counted = serve_block(ramps, arriving, transfers, turns, times);
    else if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "serve: ramps are float64 [bh, bw]");
    while (known--) {
        PyBuffer_Release(&arriving[known].landing);
        PyBuffer_Release(&arriving[known].places);
    }
    while (held--)
        PyBuffer_Release(&ramps[held]);
    free(arriving), free(turns), free(times);
    return PyErr_Occurred() ? NULL : Py_BuildValue("Ld", (long long)counted.packets, counted.longest_wait);
}

static PyMethodDef methods[] = {
    {"give", (PyCFunction)(void (*)(void))give_all, METH_FASTCALL, NULL},
    {"replay", (PyCFunction)(void (*)(void))replay, METH_FASTCALL, NULL},
    {"serve", (PyCFunction)(void (*)(void))serve, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_core", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModule_Create(&definition);
}
