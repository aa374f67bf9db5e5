/* Bells: how a rank sleeps until another rank of its node has sent it something (bells.py).

   A bell is two int32 in memory that the ranks of a node share: how often it was rung, and whether its owner sleeps. */

#define _DEFAULT_SOURCE /* syscall */
#include "../mesh/stable.h"
#include "bells.h"

#if defined(__linux__)
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SLEEP = 0, WAKE = 1 }; /* futex(2): FUTEX_WAIT and FUTEX_WAKE, by processes that share the memory */

static long futex(int32_t *word, int operation, int32_t value, const struct timespec *longest)
{
    return syscall(SYS_futex, word, operation, value, longest, NULL, 0);
}

/* A message is there: the owner of the bell is woken, if it sleeps. */
void ring_bell(int32_t *bell)
{
    __atomic_fetch_add(&bell[0], 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&bell[1], __ATOMIC_SEQ_CST))
        futex(&bell[0], WAKE, 1, NULL);
}

/* Its owner sleeps until it is rung, unless that was done since it was rung `heard` times; so long at most. */
void sleep_by(int32_t *bell, int32_t heard, double seconds)
{
    const struct timespec longest = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    __atomic_store_n(&bell[1], 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&bell[0], __ATOMIC_SEQ_CST) == heard)
        futex(&bell[0], SLEEP, heard, &longest);
    __atomic_store_n(&bell[1], 0, __ATOMIC_SEQ_CST);
}
#else /* bells.py hangs up none */
void ring_bell(int32_t *bell) { (void)bell; }
void sleep_by(int32_t *bell, int32_t heard, double seconds) { (void)bell, (void)heard, (void)seconds; }
#endif

int32_t times_rung(const int32_t *bell) { return __atomic_load_n(bell, __ATOMIC_SEQ_CST); }

static int32_t *bell_of(PyObject *address) { return (int32_t *)(intptr_t)PyLong_AsLongLong(address); }

PyObject *bell_ring(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    if (count != 1)
        return PyErr_SetString(PyExc_TypeError, "ring(bell)"), NULL;
    int32_t *bell = bell_of(given[0]);
    if (PyErr_Occurred())
        return NULL;
    ring_bell(bell);
    return Py_BuildValue("");
}

PyObject *bell_heard(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    if (count != 1)
        return PyErr_SetString(PyExc_TypeError, "heard(bell)"), NULL;
    const int32_t *bell = bell_of(given[0]);
    return PyErr_Occurred() ? NULL : Py_BuildValue("i", (int)times_rung(bell));
}

PyObject *bell_listen(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    if (count != 3)
        return PyErr_SetString(PyExc_TypeError, "listen(bell, heard, seconds)"), NULL;
    int32_t *bell = bell_of(given[0]);
    const int32_t heard = (int32_t)PyLong_AsLongLong(given[1]);
    const double seconds = PyFloat_AsDouble(given[2]);
    if (PyErr_Occurred())
        return NULL;
    PyThreadState *state = PyEval_SaveThread(); /* the thread that hears signals goes on */
    sleep_by(bell, heard, seconds);
    PyEval_RestoreThread(state);
    return Py_BuildValue("");
}
