/* Tiles that arrive are put where they belong (delivery.deliver), those of some lines of cores at a time.

   NumPy calls memcpy for each tile; of 3 x 3 numbers that takes three times as long as what is done here. Where tiles
   change their places in one array, each is copied once, in an order that is given (inplace.py).

   Tiles that are many bytes go by the caches or past them, whichever takes less time on this machine. */

#define _DEFAULT_SOURCE /* clock_gettime */
#include "../stable.h"
#include <stdint.h>
#include <string.h>
#include <time.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { MOST = 10 };       /* dimensions of an array */
enum { FAR = 12 << 20 };  /* bytes of one transfer: few caches keep so many until they are looked at */
enum { AHEAD = 4 << 10 }; /* of those, asked for before they are copied; as many lie side by side at least */
enum { FIRST = 8, AGAIN = 128, PAIR = 2 }; /* transfers: to compare both ways, until the slower is tried again, both */
static const double FORGET = 1.02;         /* what a way takes is the least that it took, so much more each time */

/* What is copied: bytes that lie side by side, and around them loops, the innermost first, with steps in bytes. */
typedef struct {
    size_t side_by_side;
    int loops;
    Py_ssize_t sizes[MOST], to[MOST], from[MOST];
} Walk;

static Walk walk_of(int dimensions, Py_ssize_t item, const Py_ssize_t *sizes, const Py_ssize_t *to,
                    const Py_ssize_t *from)
{
    Walk walk = {(size_t)item, 0, {0}, {0}, {0}};
    for (int d = 0; d < dimensions; d++) { /* by how far apart places are, where what is copied goes to */
        int at = walk.loops++;
        for (; at && walk.to[at - 1] > to[d]; at--)
            walk.sizes[at] = walk.sizes[at - 1], walk.to[at] = walk.to[at - 1], walk.from[at] = walk.from[at - 1];
        walk.sizes[at] = sizes[d], walk.to[at] = to[d], walk.from[at] = from[d];
    }
    int kept = 0;
    for (int d = 0; d < walk.loops; d++) {
        const Py_ssize_t bytes = (Py_ssize_t)walk.side_by_side, size = walk.sizes[d];
        if (!kept && (size == 1 || (walk.to[d] == bytes && walk.from[d] == bytes)))
            walk.side_by_side *= (size_t)size;
        else if (size != 1)
            walk.sizes[kept] = size, walk.to[kept] = walk.to[d], walk.from[kept++] = walk.from[d];
    }
    walk.loops = kept;
    return walk;
}

/* Few bytes as two pieces that may overlap. */
static inline void copy(char *to, const char *from, size_t count)
{
#define TWO_PIECES(size)                                                                                               \
    if (count >= (size) && count <= 2 * (size)) {                                                                      \
        char pieces[2][size];                                                                                          \
        memcpy(pieces[0], from, size), memcpy(pieces[1], from + count - (size), size);                                 \
        memcpy(to, pieces[0], size), memcpy(to + count - (size), pieces[1], size);                                     \
        return;                                                                                                        \
    }
    TWO_PIECES(32)
    TWO_PIECES(16)
    TWO_PIECES(8)
    TWO_PIECES(4)
    memcpy(to, from, count);
}

/* Of transfers of many bytes: seconds a byte by the caches and past them, and how many there were. Caches read first
   what is then written over; past them each byte waits for main memory, which other processes use as well. Of two
   processors that were measured one takes 0.7 of the time past them, the other 3.5 times as long. */
typedef struct {
    double takes[2];
    unsigned times;
} Ways;

static Ways of_delivering, of_rotating; /* by a process: nothing depends on them but its time */

/* Is the next one to go past the caches? Two after the other go one way, as programs shift along x and then along y. */
static int goes_past(Ways *ways)
{
    const unsigned turn = ways->times++;
    if (turn < FIRST)
        return turn / PAIR % 2;
    const int better = ways->takes[1] < ways->takes[0];
    return turn % AGAIN < PAIR ? !better : better;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void took(Ways *ways, int past, double seconds, Py_ssize_t bytes)
{
    const double each = seconds / (double)bytes, least = FORGET * ways->takes[past];
    ways->takes[past] = least == 0 || each < least ? each : least;
}

/* Past the caches. `next`: where those bytes are that are copied then; no processor foresees where tiles go on that do
   not lie side by side. */
static void copy_far(char *to, const char *from, size_t count, const char *next)
{
#if defined(__SSE2__)
    enum { LINE = 64, PIECE = 16 };
    const size_t odd = (size_t)(-(intptr_t)to & (PIECE - 1));
    memcpy(to, from, odd);
    to += odd, from += odd, count -= odd;
    for (; count >= LINE; count -= LINE, to += LINE, from += LINE) {
        _mm_prefetch(count > AHEAD ? from + AHEAD : next + AHEAD - count, _MM_HINT_T0);
        __m128i pieces[LINE / PIECE];
        memcpy(pieces, from, LINE);
        for (int n = 0; n < LINE / PIECE; n++)
            _mm_stream_si128((__m128i *)to + n, pieces[n]);
    }
#else
    (void)next;
#endif
    memcpy(to, from, count);
}

static void go(const Walk *walk, int loops, char *to, const char *from, const char *far)
{
    if (!loops) {
        if (far)
            copy_far(to, from, walk->side_by_side, far);
        else
            memcpy(to, from, walk->side_by_side);
        return;
    }
    const Py_ssize_t size = walk->sizes[loops - 1], to_step = walk->to[loops - 1], from_step = walk->from[loops - 1];
    for (Py_ssize_t n = 0; n < size; n++)
        if (loops == 1 && !far)
            copy(to + n * to_step, from + n * from_step, walk->side_by_side);
        else
            go(walk, loops - 1, to + n * to_step, from + n * from_step, far ? from + (n + 1) % size * from_step : NULL);
}

/* Steps, in bytes, of an array without gaps whose dimensions lie in the order of those of another. */
static void pack(int dimensions, Py_ssize_t item, const Py_ssize_t *sizes, const Py_ssize_t *lie, Py_ssize_t *steps)
{
    int order[MOST];
    for (int d = 0; d < dimensions; d++) {
        int at = d;
        for (; at && lie[order[at - 1]] > lie[d]; at--)
            order[at] = order[at - 1];
        order[at] = d;
    }
    for (int n = 0; n < dimensions; item *= sizes[order[n++]])
        steps[order[n]] = item;
}

static int alike(const Py_buffer *pair, Py_ssize_t lines)
{
    int same = pair[0].ndim == pair[1].ndim && pair[0].ndim > 0 && pair[0].ndim <= MOST &&
               pair[0].itemsize == pair[1].itemsize && pair[0].shape[0] == lines;
    for (int d = 1; same && d < pair[0].ndim; d++)
        same = pair[0].shape[d] == pair[1].shape[d];
    return same && pair[1].shape[0] == lines;
}

/* deliver(to, from, to, from, ...): arrays of [lines, ..] that share no memory. */
PyObject *deliver(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    if (count > 2 * MOST || count % 2)
        return PyErr_SetString(PyExc_TypeError, "deliver(to, from, ...)"), NULL;
    Py_buffer views[2 * MOST];
    Py_ssize_t moved = 0;
    int held = 0, fit = 1;
    for (; held < count; held++)
        if (PyObject_GetBuffer(given[held], &views[held], PyBUF_STRIDES | (held % 2 ? 0 : PyBUF_WRITABLE)))
            break;
    for (int n = 0; held == count && n < count; moved += views[n].len, n += 2)
        fit = fit && alike(&views[n], views[0].ndim ? views[0].shape[0] : 0);
    if (held == count && !fit)
        PyErr_SetString(PyExc_ValueError, "deliver: arrays of as many lines, each as large as what goes to it");
    const int many = held == count && fit && moved >= FAR, past = many && goes_past(&of_delivering);
    const double began = many ? now() : 0;
    for (int n = 0; held == count && fit && n < count; n += 2) {
        const Py_buffer *to = &views[n], *from = &views[n + 1];
        const Walk walk = walk_of(to->ndim, to->itemsize, to->shape, to->strides, from->strides);
        go(&walk, walk.loops, to->buf, from->buf, past && walk.side_by_side >= AHEAD ? from->buf : NULL);
    }
#if defined(__SSE2__)
    _mm_sfence(); /* what went past the caches is there for all */
#endif
    if (many)
        took(&of_delivering, past, now() - began, moved);
    while (held--)
        PyBuffer_Release(&views[held]);
    return PyErr_Occurred() ? NULL : Py_BuildValue("");
}

/* Some lines of an array [lines, places, ..]: what is at a place of each goes to another, one move after the other, or
   to the room and from there, where it lies without gaps. */
typedef struct {
    int64_t to, from; /* -1: the room */
} Move;

static void rotate_lines(const Py_buffer *of, Py_ssize_t low, Py_ssize_t lines, const Move *moves, Py_ssize_t count,
                         char *room, int past)
{
    Py_ssize_t sizes[MOST] = {lines}, steps[MOST] = {of->strides[0]}, packed[MOST];
    for (int d = 2; d < of->ndim; d++)
        sizes[d - 1] = of->shape[d], steps[d - 1] = of->strides[d];
    pack(of->ndim - 1, of->itemsize, sizes, steps, packed);
    const Walk within = walk_of(of->ndim - 1, of->itemsize, sizes, steps, steps);
    const Walk leaving = walk_of(of->ndim - 1, of->itemsize, sizes, packed, steps);
    const Walk coming = walk_of(of->ndim - 1, of->itemsize, sizes, steps, packed);
    char *const begin = (char *)of->buf + low * of->strides[0];
    const Py_ssize_t step = of->strides[1];
    const int far = past && within.side_by_side >= AHEAD;
    for (Py_ssize_t n = 0; n < count; n++) {
        char *const to = moves[n].to < 0 ? room : begin + moves[n].to * step;
        const char *const from = moves[n].from < 0 ? room : begin + moves[n].from * step;
        const Walk *walk = moves[n].to < 0 ? &leaving : moves[n].from < 0 ? &coming : &within;
        if (!walk->loops && walk->side_by_side < AHEAD)
            copy(to, from, walk->side_by_side);
        else
            go(walk, walk->loops, to, from, far && n + 1 < count ? begin + moves[n + 1].from * step : NULL);
    }
}

/* rotate(room, at_a_time, moves, array): the address of room for what is at a place of so many lines; moves: bytes. */
PyObject *rotate(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    if (count != 4)
        return PyErr_SetString(PyExc_TypeError, "rotate(room, at_a_time, moves, array)"), NULL;
    char *const room = (char *)(intptr_t)PyLong_AsLongLong(given[0]);
    const Py_ssize_t at_a_time = (Py_ssize_t)PyLong_AsLongLong(given[1]);
    Py_buffer bytes, array;
    if (PyErr_Occurred() || PyObject_GetBuffer(given[2], &bytes, PyBUF_SIMPLE))
        return NULL;
    if (PyObject_GetBuffer(given[3], &array, PyBUF_STRIDES | PyBUF_WRITABLE))
        return PyBuffer_Release(&bytes), NULL;
    const Move *moves = bytes.buf;
    const Py_ssize_t moved = bytes.len / (Py_ssize_t)sizeof(Move);
    int fit = at_a_time > 0 && array.ndim > 1 && array.ndim <= MOST;
    for (Py_ssize_t n = 0; fit && n < moved; n++) {
        const int64_t places = array.shape[1];
        fit = moves[n].to >= -1 && moves[n].to < places && moves[n].from >= -1 && moves[n].from < places;
    }
    if (!fit)
        PyErr_SetString(PyExc_ValueError, "rotate: an array [lines, places, ..], and moves between its places");
    const int many = fit && array.len >= FAR, past = many && goes_past(&of_rotating);
    const double began = many ? now() : 0;
    for (Py_ssize_t low = 0; fit && low < array.shape[0]; low += at_a_time) {
        const Py_ssize_t rest = array.shape[0] - low;
        rotate_lines(&array, low, rest < at_a_time ? rest : at_a_time, moves, moved, room, past);
    }
#if defined(__SSE2__)
    _mm_sfence();
#endif
    if (many)
        took(&of_rotating, past, now() - began, array.len);
    PyBuffer_Release(&array), PyBuffer_Release(&bytes);
    return fit ? Py_BuildValue("") : NULL;
}
