/* Products of small tiles, one at every core, without a call of BLAS for each (products.py).

   A number of the product is what BLAS makes of it: the sum of a[i, l] b[l, j] in the order of l from zero, in float32,
   each step with one rounding (fused) or with two; or, in some rows, the sum of those of even l and that of those of
   odd l; or, of a vector, what vectors.c does. Which of them BLAS does here, products.py finds out. The second factor may
   be of 16 bits: its numbers are made float32, which is exact, as they are multiplied, or, for BLAS, before that. */

#include "products.h"
#include "numbers.h"
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#define WITH_FMA __attribute__((target("fma")))
#else
#define WITH_FMA
#endif

enum { MOST = 8 }; /* dimensions of an array */

#define FUSED(x, y, sum) __builtin_fmaf(x, y, sum)
#define PLAIN(x, y, sum) ((sum) + (x) * (y))
#define TILE(name, attributes, step)                                                                                   \
    attributes static inline __attribute__((always_inline)) void name(const float *restrict a,                         \
                                                                      const float *restrict b, float *restrict c,      \
                                                                      const Shape s, int adds)                         \
    {                                                                                                                  \
        for (int64_t i = 0; i < s.m; i++)                                                                              \
            for (int64_t j = 0; j < s.n; j++) {                                                                        \
                float sum = 0;                                                                                         \
                for (int64_t l = 0; l < s.k; l++)                                                                      \
                    sum = step(a[i * s.a_row + l * s.a_column], b[l * s.b_row + j * s.b_column], sum);                 \
                float *to = c + i * s.c_row + j * s.c_column;                                                          \
                *to = adds ? *to + sum : sum;                                                                          \
            }                                                                                                          \
    }
TILE(fused_tile, WITH_FMA, FUSED)
TILE(plain_tile, , PLAIN)

/* Columns are walked inside rows: sums of neighbours are made at once, each in the order of l all the same. */
enum { COLUMNS = 64 }; /* at once */
#define WIDE(name, attributes, step, widened)                                                                          \
    attributes static inline void name(const float *a, const uint16_t *b, float *c, const Shape s, int adds)           \
    {                                                                                                                  \
        for (int64_t i = 0; i < s.m; i++)                                                                              \
            for (int64_t low = 0; low < s.n; low += COLUMNS) {                                                         \
                const int64_t count = s.n - low < COLUMNS ? s.n - low : COLUMNS;                                       \
                float sum[COLUMNS] = {0};                                                                              \
                for (int64_t l = 0; l < s.k; l++) {                                                                    \
                    const float x = a[i * s.a_row + l * s.a_column];                                                   \
                    const uint16_t *row = b + l * s.b_row + low * s.b_column;                                          \
                    if (s.b_column == 1)                                                                               \
                        for (int64_t j = 0; j < count; j++)                                                            \
                            sum[j] = step(x, widened(row[j]), sum[j]);                                                 \
                    else                                                                                               \
                        for (int64_t j = 0; j < count; j++)                                                            \
                            sum[j] = step(x, widened(row[j * s.b_column]), sum[j]);                                    \
                }                                                                                                      \
                for (int64_t j = 0; j < count; j++) {                                                                  \
                    float *to = c + i * s.c_row + (low + j) * s.c_column;                                              \
                    *to = adds ? *to + sum[j] : sum[j];                                                                \
                }                                                                                                      \
            }                                                                                                          \
    }
WIDE(fused_float16, WITH_FMA, FUSED, of_float16)
WIDE(plain_float16, , PLAIN, of_float16)
WIDE(fused_bfloat16, WITH_FMA, FUSED, of_bfloat16)
WIDE(plain_bfloat16, , PLAIN, of_bfloat16)

/* Tiles of whole vectors of columns, by row: some rows at a time, as each sum waits for its last step. One rounding a
   step. */
enum { ROWS = 6 }; /* at once, with sums of even and odd l and two of b in 16 registers */
#define BROAD(name, attributes, Vector, LANES, LOAD, STORE, ALL, FMA, ADD, ZERO)                                       \
    attributes static inline __attribute__((always_inline)) void name##_rows(                                          \
        const float *a, const float *b, float *c, const Shape *s, int rows, int apart, int adds)                       \
    {                                                                                                                  \
        for (int64_t j = 0; j < s->n; j += LANES) {                                                                    \
            Vector even[ROWS], odd[ROWS];                                                                              \
            for (int r = 0; r < rows; r++)                                                                             \
                even[r] = odd[r] = ZERO;                                                                               \
            for (int64_t l = 0; l < s->k; l += 2) {                                                                    \
                const Vector first = LOAD(b + l * s->b_row + j);                                                       \
                for (int r = 0; r < rows; r++)                                                                         \
                    even[r] = FMA(ALL(a[r * s->a_row + l]), first, even[r]);                                           \
                if (l + 1 == s->k)                                                                                     \
                    break;                                                                                             \
                const Vector second = LOAD(b + (l + 1) * s->b_row + j);                                                \
                for (int r = 0; r < rows; r++)                                                                         \
                    if (apart)                                                                                         \
                        odd[r] = FMA(ALL(a[r * s->a_row + l + 1]), second, odd[r]);                                    \
                    else                                                                                               \
                        even[r] = FMA(ALL(a[r * s->a_row + l + 1]), second, even[r]);                                  \
            }                                                                                                          \
            for (int r = 0; r < rows; r++) {                                                                           \
                float *to = c + r * s->c_row + j;                                                                      \
                const Vector sum = apart ? ADD(even[r], odd[r]) : even[r];                                             \
                STORE(to, adds ? ADD(LOAD(to), sum) : sum);                                                            \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    attributes static void name(char *const *at, const Py_ssize_t *steps, Py_ssize_t count, const Shape *of, int adds) \
    {                                                                                                                  \
        const Shape s = *of;                                                                                           \
        for (Py_ssize_t n = 0; n < count; n++)                                                                         \
            for (int64_t i = 0, rows; i < s.m; i += rows) {                                                            \
                const float *a = (const float *)(at[0] + n * steps[0]) + i * s.a_row;                                  \
                const float *b = (const float *)(at[1] + n * steps[1]);                                                \
                float *c = (float *)(at[2] + n * steps[2]) + i * s.c_row;                                              \
                for (rows = 1; rows < ROWS && i + rows < s.m && s.apart[i + rows] == s.apart[i];)                      \
                    rows++;                                                                                            \
                switch (rows + (s.apart[i] ? ROWS : 0)) {                                                              \
                case 4: name##_rows(a, b, c, &s, 4, 0, adds); break;                                                   \
                case 6: name##_rows(a, b, c, &s, 6, 0, adds); break;                                                   \
                case ROWS + 4: name##_rows(a, b, c, &s, 4, 1, adds); break;                                            \
                case ROWS + 6: name##_rows(a, b, c, &s, 6, 1, adds); break;                                            \
                default: /* one by one */                                                                              \
                    rows = 1;                                                                                          \
                    if (s.apart[i])                                                                                    \
                        name##_rows(a, b, c, &s, 1, 1, adds);                                                          \
                    else                                                                                               \
                        name##_rows(a, b, c, &s, 1, 0, adds);                                                          \
                }                                                                                                      \
            }                                                                                                          \
    }
#define SAME(x) (x)
#define THERE(at) (*(at))
#define PUT(at, x) (*(at) = (x))
#define SUM(x, y) ((x) + (y))
BROAD(broad_plain, WITH_FMA, float, 1, THERE, PUT, SAME, FUSED, SUM, 0)
#if defined(__x86_64__)
BROAD(broad_256, WITH_FMA, __m256, 8, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_add_ps,
      _mm256_setzero_ps())
BROAD(broad_512, __attribute__((target("avx512f"))), __m512, 16, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps,
      _mm512_fmadd_ps, _mm512_add_ps, _mm512_setzero_ps())
#endif

/* Is a sum and product with one rounding an instruction here? */
static int has_fma(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_FMA) && (c & bit_OSXSAVE);
#else
    return 1;
#endif
}

/* The tiles of the last dimensions but two, side by side at these steps (bytes). */
#define EACH(tile, type, shape, adds)                                                                                  \
    for (Py_ssize_t n = 0; n < count; n++)                                                                             \
        tile((const float *)(at[0] + n * steps[0]), (const type *)(at[1] + n * steps[1]),                              \
             (float *)(at[2] + n * steps[2]), shape, adds)
#define ROW(name, attributes, tile, type)                                                                              \
    attributes static void name(char *const *at, const Py_ssize_t *steps, Py_ssize_t count, const Shape *s, int adds)  \
    {                                                                                                                  \
        const Shape shape = *s;                                                                                        \
        EACH(tile, type, shape, adds);                                                                                 \
    }
ROW(fused_row_float16, WITH_FMA, fused_float16, uint16_t)
ROW(plain_row_float16, , plain_float16, uint16_t)
ROW(fused_row_bfloat16, WITH_FMA, fused_bfloat16, uint16_t)
ROW(plain_row_bfloat16, , plain_bfloat16, uint16_t)

/* Square tiles that lie by row, as those of most products of matrices do: the compiler makes a loop for each size. */
#define SQUARE(side) ((Shape){side, side, side, side, 1, side, 1, side, 1, NULL})

static int64_t side_of(const Shape *s)
{
    const Shape square = SQUARE(s->m);
    return memcmp(s, &square, sizeof square) ? 0 : s->m;
}

#define SQUARES(name, attributes, tile)                                                                                \
    attributes static void name(char *const *at, const Py_ssize_t *steps, Py_ssize_t count, const Shape *s, int adds)  \
    {                                                                                                                  \
        const Shape shape = *s;                                                                                        \
        switch (adds ? side_of(s) : 0) {                                                                               \
        case 2: EACH(tile, float, SQUARE(2), 1); break;                                                                \
        case 3: EACH(tile, float, SQUARE(3), 1); break;                                                                \
        case 4: EACH(tile, float, SQUARE(4), 1); break;                                                                \
        case 5: EACH(tile, float, SQUARE(5), 1); break;                                                                \
        default: EACH(tile, float, shape, adds);                                                                       \
        }                                                                                                              \
    }
SQUARES(fused_row, WITH_FMA, fused_tile)
SQUARES(plain_row, , plain_tile)

/* In which numbers are summed; as in products.py */
enum { TWO_ROUNDINGS, ONE_ROUNDING, AS_VECTORS, AS_WIDE_VECTORS, ORDERS };
static Row *const ROWS_OF[KINDS][2] = {
    {plain_row, fused_row}, {plain_row_float16, fused_row_float16}, {plain_row_bfloat16, fused_row_bfloat16}};

static int fits(const Py_buffer *views, long long kind)
{
    const int last = views[0].ndim - 1;
    if (last < 2 || last >= MOST)
        return 0;
    for (int n = 0; n < 3; n++) {
        if (views[n].itemsize != (n == 1 && kind ? 2 : 4) || views[n].ndim != last + 1)
            return 0;
        for (int d = 0; d < last - 1; d++)
            if (views[n].shape[d] != views[0].shape[d])
                return 0;
    }
    return views[0].shape[last] == views[1].shape[last - 1] && views[0].shape[last - 1] == views[2].shape[last - 1] &&
           views[1].shape[last] == views[2].shape[last];
}

/* The dimensions but the last two, the innermost first: sizes, and steps in bytes of all three arrays. Those of one
   place are left out, and two that lie in memory as one are one. */
typedef struct {
    int count;
    Py_ssize_t sizes[MOST], steps[MOST][3];
} Leading;

static Leading leading_of(const Py_buffer *views)
{
    Leading found = {0};
    for (int d = views[0].ndim - 3; d >= 0; d--) {
        const Py_ssize_t size = views[0].shape[d];
        const int within = found.count - 1;
        int goes_on = within >= 0;
        for (int n = 0; goes_on && n < 3; n++)
            goes_on = views[n].strides[d] == found.sizes[within] * found.steps[within][n];
        if (goes_on)
            found.sizes[within] *= size;
        else if (size != 1 || (d == 0 && within < 0)) {
            found.sizes[found.count++] = size;
            for (int n = 0; n < 3; n++)
                found.steps[found.count - 1][n] = views[n].strides[d];
        }
    }
    return found;
}

/* The products in a dimension and in those within it. */
static void go_through(const Leading *leading, int d, char *const *begin, Row *row, const Shape *shape, int adds)
{
    if (d == 0) {
        row(begin, leading->steps[0], leading->sizes[0], shape, adds);
        return;
    }
    char *at[3] = {begin[0], begin[1], begin[2]};
    for (Py_ssize_t n = 0; n < leading->sizes[d]; n++) {
        go_through(leading, d - 1, at, row, shape, adds);
        for (int of = 0; of < 3; of++)
            at[of] += leading->steps[d][of];
    }
}

/* The way to make broad tiles on this processor; NULL: they are none. */
static Row *broad_way(const Shape *s)
{
    if (s->a_column != 1 || s->b_column != 1 || s->c_column != 1)
        return NULL;
#if defined(__x86_64__)
    unsigned a, b, c, d, low, high;
    if (s->n % 16 == 0 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX512F)) {
        __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        if ((low & 0xe6) == 0xe6) /* the system keeps the vectors of all sizes */
            return broad_512;
    }
    if (s->n % 8 == 0)
        return broad_256;
#endif
    return broad_plain;
}

/* multiply(a, b, c, order, adds, kind, apart): c = a b, or c += a b, in all leading dimensions. `order` 0: two roundings
   a step, 1: one, 2, 3: as vectors.c does. `kind` 0: b is float32, 1: float16, 2: the 16 bits of bfloat16. `apart`: bytes, 1
   for each row of a tile whose even and odd steps are summed apart, of sums of float32 by row with one rounding; it may be
   left out. False: there is no such instruction, or other tiles. */
PyObject *multiply(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    if (count != 6 && count != 7)
        return PyErr_SetString(PyExc_TypeError, "multiply(a, b, c, order, adds, kind, apart)"), NULL;
    const long long order = PyLong_AsLongLong(given[3]), kind = PyLong_AsLongLong(given[5]);
    const int adds = PyObject_IsTrue(given[4]);
    if (kind < 0 || kind >= KINDS)
        return PyErr_Occurred() ? NULL : (PyErr_SetString(PyExc_ValueError, "multiply: kind is 0, 1 or 2"), NULL);
    if (order < 0 || order >= ORDERS)
        return PyErr_Occurred() ? NULL : (PyErr_SetString(PyExc_ValueError, "multiply: order is 0 to 3"), NULL);
    if (order != TWO_ROUNDINGS && !has_fma())
        return Py_BuildValue("i", 0);
    Py_buffer views[4];
    const int wanted = count > 6 ? 4 : 3;
    int held = 0, made = 1;
    for (; held < wanted; held++)
        if (PyObject_GetBuffer(given[held < 3 ? held : 6], &views[held], held == 2 ? PyBUF_STRIDES | PyBUF_WRITABLE : PyBUF_STRIDES))
            break;
    if (held == wanted && !fits(views, kind))
        PyErr_SetString(PyExc_ValueError, "multiply: arrays of float32, b of its kind, [.., m, k], [.., k, n] and [.., m, n]");
    else if (held == wanted) {
        const int last = views[0].ndim - 1;
        const Py_ssize_t b_size = views[1].itemsize;
        const Shape shape = {
            views[2].shape[last - 1],       views[0].shape[last],            views[2].shape[last],
            views[0].strides[last - 1] / 4, views[0].strides[last] / 4,      views[1].strides[last - 1] / b_size,
            views[1].strides[last] / b_size, views[2].strides[last - 1] / 4, views[2].strides[last] / 4,
            wanted > 3 ? views[3].buf : NULL,
        };
        const int broad = shape.apart && views[3].len == shape.m && order == ONE_ROUNDING && kind == FLOAT32;
        Row *const way = broad                 ? broad_way(&shape)
                         : shape.apart         ? NULL
                         : order >= AS_VECTORS ? vectors_way(&shape, kind, order == AS_WIDE_VECTORS)
                                               : ROWS_OF[kind][order];
        const Leading leading = leading_of(views);
        char *const begin[3] = {views[0].buf, views[1].buf, views[2].buf};
        made = way != NULL;
        if (made)
            go_through(&leading, leading.count - 1, begin, way, &shape, adds);
    }
    while (held--)
        PyBuffer_Release(&views[held]);
    return PyErr_Occurred() ? NULL : Py_BuildValue("i", made);
}

/* ------------------------------------------------------------------------------------------- numbers before a product */

typedef void Widening(const char *from, Py_ssize_t step, float *to, Py_ssize_t to_step, Py_ssize_t count);

/* `step` in bytes, `to_step` in numbers. */
#define WIDENING(name, attributes, widened)                                                                            \
    attributes static void name(const char *from, Py_ssize_t step, float *to, Py_ssize_t to_step, Py_ssize_t count)    \
    {                                                                                                                  \
        if (step == 2 && to_step == 1)                                                                                 \
            for (Py_ssize_t n = 0; n < count; n++)                                                                     \
                to[n] = widened(((const uint16_t *)from)[n]);                                                          \
        else                                                                                                           \
            for (Py_ssize_t n = 0; n < count; n++)                                                                     \
                to[n * to_step] = widened(*(const uint16_t *)(from + n * step));                                       \
    }
WIDENING(widen_float16, , of_float16)
WIDENING(widen_bfloat16, , of_bfloat16)
#if defined(__x86_64__)
WIDENING(widen_float16_avx2, __attribute__((target("avx2"))), of_float16)
WIDENING(widen_bfloat16_avx2, __attribute__((target("avx2"))), of_bfloat16)
#endif

static Widening *widening_of(int is_float16)
{
#if defined(__x86_64__)
    if (has_vectors())
        return is_float16 ? widen_float16_avx2 : widen_bfloat16_avx2;
#endif
    return is_float16 ? widen_float16 : widen_bfloat16;
}

/* Dimensions of two arrays, the innermost first: sizes, and steps in bytes of both. */
typedef struct {
    int count;
    Py_ssize_t sizes[MOST], steps[MOST][2];
} Layout;

/* In the order in which the second array lies. Two dimensions that lie in memory as one are one. */
static Layout layout_of(const Py_buffer *views)
{
    Layout all = {0};
    for (int d = 0; d < views[0].ndim; d++) { /* sorted in */
        int at = all.count++;
        for (; at > 0 && all.steps[at - 1][1] > views[1].strides[d]; at--) {
            all.sizes[at] = all.sizes[at - 1];
            memcpy(all.steps[at], all.steps[at - 1], sizeof all.steps[at]);
        }
        all.sizes[at] = views[0].shape[d];
        all.steps[at][0] = views[0].strides[d], all.steps[at][1] = views[1].strides[d];
    }
    Layout joined = {0};
    for (int d = 0; d < all.count; d++) {
        const int within = joined.count - 1;
        if (all.sizes[d] == 1)
            continue;
        int goes_on = within >= 0;
        for (int n = 0; goes_on && n < 2; n++)
            goes_on = all.steps[d][n] == joined.sizes[within] * joined.steps[within][n];
        if (goes_on)
            joined.sizes[within] *= all.sizes[d];
        else {
            joined.sizes[joined.count] = all.sizes[d];
            memcpy(joined.steps[joined.count++], all.steps[d], sizeof all.steps[d]);
        }
    }
    return joined.count ? joined : (Layout){1, {1}, {{2, 4}}}; /* a number alone */
}

static void widen_within(const Layout *of, int d, const char *from, char *to, Widening *way)
{
    if (d == 0) {
        way(from, of->steps[0][0], (float *)to, of->steps[0][1] / 4, of->sizes[0]);
        return;
    }
    for (Py_ssize_t n = 0; n < of->sizes[d]; n++)
        widen_within(of, d - 1, from + n * of->steps[d][0], to + n * of->steps[d][1], way);
}

/* widen(from, to, kind): numbers of 16 bits as float32, `kind` as for multiply, in an array of the same shape. */
PyObject *widen(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    if (count != 3)
        return PyErr_SetString(PyExc_TypeError, "widen(from, to, kind)"), NULL;
    const long long kind = PyLong_AsLongLong(given[2]);
    if (kind != FLOAT16 && kind != BFLOAT16)
        return PyErr_Occurred() ? NULL : (PyErr_SetString(PyExc_ValueError, "widen: kind is 1 or 2"), NULL);
    Py_buffer views[2];
    int held = 0;
    for (; held < 2; held++)
        if (PyObject_GetBuffer(given[held], &views[held], held ? PyBUF_STRIDES | PyBUF_WRITABLE : PyBUF_STRIDES))
            break;
    if (held == 2) {
        int alike = views[0].itemsize == 2 && views[1].itemsize == 4 && views[0].ndim == views[1].ndim &&
                    0 < views[0].ndim && views[0].ndim <= MOST;
        for (int d = 0; alike && d < views[0].ndim; d++)
            alike = views[0].shape[d] == views[1].shape[d];
        if (alike) {
            const Layout layout = layout_of(views);
            widen_within(&layout, layout.count - 1, views[0].buf, views[1].buf, widening_of(kind == FLOAT16));
        } else
            PyErr_SetString(PyExc_ValueError, "widen: arrays of 16 and of 32 bits and of one shape");
    }
    while (held--)
        PyBuffer_Release(&views[held]);
    return PyErr_Occurred() ? NULL : Py_BuildValue("");
}
