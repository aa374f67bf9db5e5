/* Ranks meet: each says what it has sent and what room there is (blocks.py). */

#include <math.h>

#include "../../mesh/stable.h"
#include "machine.h"

/* The words of something for another rank. */
int64_t *say(Machine *machine, int64_t rank, int64_t count)
{
    List *out = &machine->out[rank];
    if (out->count + count > out->room) {
        const int64_t wider = 2 * (out->count + count);
        out->items = more(machine, out->items, wider * 8);
        out->room = wider;
    }
    out->count += count;
    return out->items + out->count - count;
}

/* What another rank has said. */
static void hear(Machine *machine, const char *bytes, int64_t count)
{
    for (int64_t at = 0; at < count;) {
        int64_t words[9];
        double time, gap, now;
        memcpy(words, bytes + at, 40);
        if (words[0] == NOTE) {
            memcpy(&now, words + 3, 8);
            memcpy(&time, words + 4, 8);
            note_at(machine, &machine->far[words[1]], now, words[2], time);
            at += 40;
            continue;
        }
        memcpy(words, bytes + at, sizeof words);
        memcpy(&time, words + 6, 8);
        memcpy(&gap, words + 7, 8);
        Train train = {.head = time, .gap = gap, .count = words[5], .data = more(machine, NULL, words[5] * 4)};
        memcpy(&train.chain, words + 8, 8);
        memcpy(train.data, bytes + at + sizeof words, (size_t)words[5] * 4);
        arrive(machine, &machine->cores[machine->here[words[1]]], words[2], train, words[3], words[4]);
        at += (int64_t)sizeof words + 8 * ((words[5] + 1) / 2);
    }
}

/* All ranks tell each other what they have sent, and up to when they may go on. 0: nothing happens any more. */
int meet(Machine *machine)
{
    double next = machine->soonest;
    if (machine->events_waiting && machine->heap[0].time < next)
        next = machine->heap[0].time;
    PyObject *said = PyTuple_New((Py_ssize_t)machine->ranks);
    for (int64_t rank = 0; said && rank < machine->ranks; rank++) {
        List *out = &machine->out[rank];
        PyObject *bytes = PyBytes_FromStringAndSize((const char *)out->items, (Py_ssize_t)(8 * out->count));
        out->count = 0;
        if (!bytes || PyTuple_SetItem(said, (Py_ssize_t)rank, bytes)) {
            Py_DecRef(said);
            return machine->gives_up = 1, 0;
        }
    }
    machine->soonest = INFINITY;
    PyObject *heard = said ? PyObject_CallFunction(machine->meets, "diO", next, machine->gives_up, said) : NULL;
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
