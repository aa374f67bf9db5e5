/* Tiles that arrive are put where they belong (fabric._deliver), those of some lines of cores at a time.

   NumPy calls memcpy for each tile; of 3 x 3 numbers that takes three times as long as what is done here. Where tiles
   come into the arrays that others leave, all of a line leave before any comes. */

#include "../stable.h"
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { MOST = 10 };       /* dimensions of an array */
enum { FAR = 12 << 20 };  /* bytes that go in one transfer: no cache keeps so many until they are looked at */
enum { AHEAD = 4 << 10 }; /* of those, asked for before they are copied; as many lie side by side at least */

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

/* Many bytes to main memory: past the caches, which would read first what is then written over. `next`: where those are
   that are copied then; no processor foresees where tiles go on that do not lie side by side. */
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

/* Steps, in bytes, of an array without gaps whose dimensions lie in the order of those of another. All of its bytes. */
static Py_ssize_t pack(const Py_buffer *view, const Py_ssize_t *sizes, Py_ssize_t *steps)
{
    int order[MOST];
    for (int d = 0; d < view->ndim; d++) {
        int at = d;
        for (; at && view->strides[order[at - 1]] > view->strides[d]; at--)
            order[at] = order[at - 1];
        order[at] = d;
    }
    Py_ssize_t bytes = view->itemsize;
    for (int n = 0; n < view->ndim; bytes *= sizes[order[n++]])
        steps[order[n]] = bytes;
    return bytes;
}

/* So many lines of a pair of arrays, from one on: into the other, or into or out of the room for those that leave. */
enum { STRAIGHT, LEAVE, COME };

static Py_ssize_t put(const Py_buffer *pair, int how, Py_ssize_t low, Py_ssize_t lines, char *room, int far)
{
    const Py_buffer *to = &pair[0], *from = &pair[1];
    Py_ssize_t sizes[MOST] = {lines}, packed[MOST];
    for (int d = 1; d < to->ndim; d++)
        sizes[d] = to->shape[d];
    const Py_ssize_t bytes = pack(from, sizes, packed);
    const Walk walk = walk_of(to->ndim, to->itemsize, sizes, how == LEAVE ? packed : to->strides,
                              how == COME ? packed : from->strides);
    go(&walk, walk.loops, how == LEAVE ? room : (char *)to->buf + low * to->strides[0],
       how == COME ? room : (char *)from->buf + low * from->strides[0],
       far && walk.side_by_side >= AHEAD ? from->buf : NULL);
    return bytes;
}

static int alike(const Py_buffer *pair, Py_ssize_t lines)
{
    int same = pair[0].ndim == pair[1].ndim && pair[0].ndim > 0 && pair[0].ndim <= MOST &&
               pair[0].itemsize == pair[1].itemsize && pair[0].shape[0] == lines;
    for (int d = 1; same && d < pair[0].ndim; d++)
        same = pair[0].shape[d] == pair[1].shape[d];
    return same && pair[1].shape[0] == lines;
}

/* deliver(room, at_a_time, to, from, to, from, ...): arrays of [lines, ..]. Where room is 0, they share no memory. Else
   that is the address of room for so many lines of all pairs: what goes has left before any of it comes. */
PyObject *deliver(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    if (count < 4 || count > 2 + 2 * MOST || count % 2)
        return PyErr_SetString(PyExc_TypeError, "deliver(room, at_a_time, to, from, ...)"), NULL;
    char *const room = (char *)(intptr_t)PyLong_AsLongLong(given[0]);
    const Py_ssize_t at_a_time = (Py_ssize_t)PyLong_AsLongLong(given[1]);
    if (PyErr_Occurred())
        return NULL;
    Py_buffer views[2 * MOST];
    const int wanted = (int)count - 2;
    int held = 0, fit = at_a_time > 0;
    for (; held < wanted; held++)
        if (PyObject_GetBuffer(given[2 + held], &views[held], PyBUF_STRIDES | (held % 2 ? 0 : PyBUF_WRITABLE)))
            break;
    Py_ssize_t moved = 0;
    for (int n = 0; held == wanted && n < wanted; moved += views[n].len, n += 2)
        fit = fit && alike(&views[n], views[0].ndim ? views[0].shape[0] : 0);
    if (held == wanted && !fit)
        PyErr_SetString(PyExc_ValueError, "deliver: arrays of as many lines, each as large as what goes to it");
    else if (held == wanted)
        for (Py_ssize_t low = 0, lines; low < views[0].shape[0]; low += lines) {
            lines = views[0].shape[0] - low < at_a_time ? views[0].shape[0] - low : at_a_time;
            char *at = room;
            for (int n = 0; n < wanted; n += 2)
                at += put(&views[n], room ? LEAVE : STRAIGHT, low, lines, at, !room && moved >= FAR);
            at = room;
            for (int n = 0; room && n < wanted; n += 2)
                at += put(&views[n], COME, low, lines, at, 0);
        }
#if defined(__SSE2__)
    _mm_sfence(); /* what went past the caches is there for all */
#endif
    while (held--)
        PyBuffer_Release(&views[held]);
    return PyErr_Occurred() ? NULL : Py_BuildValue("");
}
