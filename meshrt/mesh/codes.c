/* Codes of 2 to 8 bits to numbers, tile by tile, as programs/mesh/codes/unpacked.py has them: that is the definition.

   A tile is a run of bytes: which it is along the inputs and the outputs, two bytes each; arrays of float16; codes, which
   lie as models/quantize/packing.py says. Numbers are float32, each made in the same steps as there, and rounded where
   that is asked for to what 16 bits can hold. */

#include "numbers.h"
#include "stable.h"
#include <stdlib.h>

enum { MOST = 8, UNIT = 32, CHUNK = 64 * UNIT }; /* dimensions; codes that are whole bytes; codes at a time */
enum { CENTRE, ZERO, OFFSET, EACH, PLAIN };      /* what is done to a code: KINDS in unpacked.py */
enum { NO_ROUNDING, FLOAT16, BFLOAT16 };         /* ROUNDINGS there */

/* What is wanted of each tile, in the order in which unpacked.py gives it. Places are in bytes from a tile's begin. */
typedef struct {
    int64_t kind, rounding, bits, codes, scale, shift; /* places of the codes and of these float16 */
    int64_t skipped;                                   /* codes before the first that is wanted */
    int64_t axis, elements, first, step;               /* the group of row r, column c of tile p along that axis is
                                                          groups[p * elements + first + r * step (+ c, EACH)] */
} Wanted;

/* ------------------------------------------------------------------------------------------------------- unpacking */

static inline uint64_t little(const uint8_t *from, int count)
{
    uint64_t word = 0;
    for (int n = 0; n < count; n++)
        word |= (uint64_t)from[n] << 8 * n;
    return word;
}

/* Two halves of a word have four codes each in their lower bits; each code gets a byte. */
static inline void spread(uint64_t word, int bits, uint8_t *to)
{
    const uint64_t twos = ((1ull << 2 * bits) - 1) * 0x0000000100000001, ones = ((1ull << bits) - 1) * 0x0001000100010001;
    word = (word & twos) | (word & twos << 2 * bits) << (16 - 2 * bits);
    word = (word & ones) | (word & ones << bits) << (8 - bits);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    memcpy(to, &word, sizeof word);
}

/* Eight codes in so many bytes, the first in the lowest bits. */
static inline __attribute__((always_inline)) void eights(const uint8_t *from, int bits, int64_t count, uint8_t *to)
{
    const uint64_t four = (1ull << 4 * bits) - 1;
    for (int64_t n = 0; n < count; n += 8, from += bits, to += 8) {
        const uint64_t word = little(from, bits);
        spread((word & four) | (word & four << 4 * bits) << (32 - 4 * bits), bits, to);
    }
}

/* 32 codes in three words: eight in the lower 12 bits of each one's halves, eight in what is left over. */
static inline void threes(const uint8_t *from, int64_t count, uint8_t *to)
{
    for (int64_t n = 0; n < count; n += UNIT, from += 12) {
        uint64_t left = 0;
        for (int i = 0; i < 3; i++, to += 8) {
            const uint64_t word = little(from + 4 * i, 4);
            spread((word & 0xfff) | (word & 0xfff0000) << 16, 3, to);
            left |= (word >> 12 & 0xf) << 4 * i | (word >> 28) << (32 + 4 * i);
        }
        spread(left, 3, to);
        to += 8;
    }
}

/* `count` is a multiple of 32. */
static void unpack(const uint8_t *from, int64_t bits, int64_t count, uint8_t *to)
{
    switch (bits) {
    case 2: eights(from, 2, count, to); break;
    case 3: threes(from, count, to); break;
    case 4: eights(from, 4, count, to); break;
    case 5: eights(from, 5, count, to); break;
    case 6: eights(from, 6, count, to); break;
    case 7: eights(from, 7, count, to); break;
    default: memcpy(to, from, (size_t)count);
    }
}

/* --------------------------------------------------------------------------------------------------------- numbers */

static void widen(const uint8_t *from, int64_t count, float *to)
{
    for (int64_t n = 0; n < count; n++)
        to[n] = of_float16((uint16_t)(from[2 * n] | from[2 * n + 1] << 8));
}

static void round_to(int64_t rounding, float *numbers, int64_t count)
{
    if (rounding == FLOAT16)
        for (int64_t n = 0; n < count; n++)
            numbers[n] = to_float16(numbers[n]);
    if (rounding == BFLOAT16)
        for (int64_t n = 0; n < count; n++)
            numbers[n] = to_bfloat16(numbers[n]);
}

/* Numbers of 16 bits get more of them, which are rounded before. */
static void add(int64_t rounding, float *restrict to, const float *restrict more, int64_t count)
{
    if (rounding == FLOAT16)
        for (int64_t n = 0; n < count; n++)
            to[n] = to_float16(to[n] + to_float16(more[n]));
    if (rounding == BFLOAT16)
        for (int64_t n = 0; n < count; n++)
            to[n] = to_bfloat16(to[n] + to_bfloat16(more[n]));
}

/* Some codes of a row. Scales and shifts are those of the row's columns; EACH: scales are those of groups. */
static void make(const Wanted *wanted, const uint8_t *restrict codes, int64_t count, const float *restrict scale,
                 const float *restrict shift, const int64_t *restrict group, float *restrict to)
{
    const float centre = (float)(1 << (wanted->bits - 1));
    switch (wanted->kind) {
    case CENTRE:
        for (int64_t n = 0; n < count; n++)
            to[n] = ((float)codes[n] - centre) * scale[n];
        break;
    case ZERO:
        for (int64_t n = 0; n < count; n++)
            to[n] = ((float)codes[n] - shift[n]) * scale[n];
        break;
    case OFFSET:
        for (int64_t n = 0; n < count; n++)
            to[n] = (float)codes[n] * scale[n] + shift[n];
        break;
    case EACH:
        for (int64_t n = 0; n < count; n++)
            to[n] = ((float)codes[n] - centre) * scale[group[n]];
        break;
    default:
        for (int64_t n = 0; n < count; n++)
            to[n] = (float)codes[n];
    }
}

/* Its number along an axis. */
static int64_t number_of(const uint8_t *tile, int64_t axis)
{
    return (int64_t)little(tile + 2 * axis, 2);
}

/* A tile's [rows, columns], rows so many numbers apart. `scale` and `shift` have room for those of a row. */
static void make_tile(const Wanted *wanted, const uint8_t *tile, const int64_t *groups, int64_t rows, int64_t columns,
                      float *to, int64_t apart, float *scale, float *shift)
{
    const int64_t *own = groups + number_of(tile, wanted->axis) * wanted->elements + wanted->first;
    const int by_row = wanted->kind < EACH, shifted = wanted->kind == ZERO || wanted->kind == OFFSET;
    uint8_t codes[CHUNK];
    int64_t known = -1, begin = -CHUNK, at = wanted->skipped;
    for (int64_t row = 0; row < rows; row++, to += apart) {
        const int64_t *group = own + row * wanted->step;
        if (by_row && *group != known) {
            known = *group;
            widen(tile + wanted->scale + 2 * known * columns, columns, scale);
            if (shifted)
                widen(tile + wanted->shift + 2 * known * columns, columns, shift);
        }
        for (int64_t column = 0, count; column < columns; column += count, at += count) {
            if (at >= begin + CHUNK) {
                const int64_t end = wanted->skipped + rows * columns;
                begin = at / UNIT * UNIT;
                const int64_t left = (end - begin + UNIT - 1) / UNIT * UNIT;
                unpack(tile + wanted->codes + begin * wanted->bits / 8, wanted->bits, left < CHUNK ? left : CHUNK, codes);
            }
            const int64_t here = begin + CHUNK - at;
            count = columns - column < here ? columns - column : here;
            make(wanted, codes + (at - begin), count, by_row ? scale + column : scale, shift + column,
                 by_row ? group : group + column, to + column);
        }
        round_to(wanted->rounding, to, columns);
    }
}

/* ---------------------------------------------------------------------------------------------------------- Python */

static int fits(const Py_buffer *tiles, const Py_buffer *groups, const Py_buffer *out)
{
    const int leading = tiles->ndim - 1;
    if (leading < 1 || leading + 2 > MOST || out->ndim != leading + 2 || groups->ndim != 2)
        return 0;
    if (tiles->itemsize != 1 || groups->itemsize != 8 || out->itemsize != 4 || tiles->strides[leading] != 1 ||
        out->strides[leading + 1] != 4 || groups->strides[1] != 8 || groups->strides[0] != 8 * groups->shape[1])
        return 0;
    for (int d = 0; d < leading; d++)
        if (tiles->shape[d] != out->shape[d])
            return 0;
    return 1;
}

/* All tiles in turn; the scratch has the scales of a row, or of all groups, and its shifts. False: one has a number
   that there is not. */
static int make_tiles(const Wanted *wanted, const Py_buffer *tiles, const Py_buffer *groups, const Py_buffer *out,
                       float *scratch, int64_t scales)
{
    const int leading = tiles->ndim - 1;
    const int64_t rows = out->shape[leading], columns = out->shape[leading + 1];
    Py_ssize_t at[MOST] = {0};
    const uint8_t *tile = tiles->buf;
    char *to = out->buf;
    for (int d = 0; d >= 0;) {
        if (number_of(tile, wanted->axis) >= groups->shape[0])
            return 0;
        if (wanted->kind == EACH)
            widen(tile + wanted->scale, scales, scratch);
        make_tile(wanted, tile, groups->buf, rows, columns, (float *)to, out->strides[leading] / 4, scratch,
                  scratch + scales);
        for (d = leading - 1; d >= 0; d--) {
            tile += tiles->strides[d], to += out->strides[d];
            if (++at[d] < tiles->shape[d])
                break;
            tile -= tiles->shape[d] * tiles->strides[d], to -= out->shape[d] * out->strides[d], at[d] = 0;
        }
    }
    return 1;
}

/* The places of numbers of the last dimension are visited in turn, innermost dimension last. */
static void add_rows(const Py_buffer *out, const Py_buffer *more, int64_t rounding)
{
    const int leading = out->ndim - 1;
    Py_ssize_t at[MOST] = {0};
    char *to = out->buf;
    const char *from = more->buf;
    for (int d = 0; d >= 0;) {
        add(rounding, (float *)to, (const float *)from, out->shape[leading]);
        for (d = leading - 1; d >= 0; d--) {
            to += out->strides[d], from += more->strides[d];
            if (++at[d] < out->shape[d])
                break;
            to -= out->shape[d] * out->strides[d], from -= out->shape[d] * more->strides[d], at[d] = 0;
        }
    }
}

/* rebuild(tiles, groups, out, wanted): out [.., rows, columns] of tiles [.., bytes]; groups int64 [tiles along an axis,
   elements]; wanted: the bytes of Wanted, int64 each, and behind them how many groups have scales (EACH). */
PyObject *rebuild(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    if (count != 4)
        return PyErr_SetString(PyExc_TypeError, "rebuild(tiles, groups, out, wanted)"), NULL;
    char *bytes;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(given[3], &bytes, &length) < 0)
        return NULL;
    Wanted wanted;
    int64_t scales;
    if (length != sizeof wanted + sizeof scales)
        return PyErr_SetString(PyExc_ValueError, "rebuild: wanted has another length"), NULL;
    memcpy(&wanted, bytes, sizeof wanted);
    memcpy(&scales, bytes + sizeof wanted, sizeof scales);
    Py_buffer views[3];
    int held = 0;
    for (; held < 3; held++)
        if (PyObject_GetBuffer(given[held], &views[held], held == 2 ? PyBUF_STRIDES | PyBUF_WRITABLE : PyBUF_STRIDES))
            break;
    if (held == 3 && !fits(&views[0], &views[1], &views[2]))
        PyErr_SetString(PyExc_ValueError, "rebuild: bytes [.., bytes], int64 [tiles, elements] and float32 [.., rows, columns]");
    else if (held == 3 && views[2].len) {
        const int64_t columns = views[2].shape[views[2].ndim - 1];
        const int64_t most = wanted.kind == EACH ? scales : columns;
        float *scratch = malloc((size_t)(most + columns) * sizeof *scratch);
        if (scratch == NULL)
            PyErr_NoMemory();
        else if (!make_tiles(&wanted, &views[0], &views[1], &views[2], scratch, most))
            PyErr_SetString(PyExc_ValueError, "rebuild: a tile has a number that is beyond those of its matrix");
        free(scratch);
    }
    while (held--)
        PyBuffer_Release(&views[held]);
    return PyErr_Occurred() ? NULL : Py_BuildValue("i", 1);
}

/* add_rounded(out, more, rounding): out += more, both float32 [.., n], `out` of numbers of 16 bits. */
PyObject *add_rounded(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    if (count != 3)
        return PyErr_SetString(PyExc_TypeError, "add_rounded(out, more, rounding)"), NULL;
    const long long rounding = PyLong_AsLongLong(given[2]);
    Py_buffer views[2];
    int held = 0;
    for (; held < 2 && !PyErr_Occurred(); held++)
        if (PyObject_GetBuffer(given[held], &views[held], held ? PyBUF_STRIDES : PyBUF_STRIDES | PyBUF_WRITABLE))
            break;
    if (held == 2) {
        const int last = views[0].ndim - 1;
        int like = last >= 0 && last < MOST && views[1].ndim == views[0].ndim;
        for (int n = 0; like && n < 2; n++)
            like = views[n].itemsize == 4 && views[n].strides[last] == 4;
        for (int d = 0; like && d <= last; d++)
            like = views[0].shape[d] == views[1].shape[d];
        if (!like || (rounding != FLOAT16 && rounding != BFLOAT16))
            PyErr_SetString(PyExc_ValueError, "add_rounded: two of float32 [.., n], of one shape; 1: float16, 2: bfloat16");
        else if (views[0].len)
            add_rows(&views[0], &views[1], rounding);
    }
    while (held--)
        PyBuffer_Release(&views[held]);
    return PyErr_Occurred() ? NULL : Py_BuildValue("i", 1);
}
