/* Products of small tiles, one at every core, without a call of BLAS for each (products.py).

   A number of the product is what BLAS makes of it: the sum of a[i, l] b[l, j] in the order of l from zero, in float32,
   each step with one rounding (fused) or with two. Which of them BLAS does here, products.py finds out. */

#include "stable.h"
#include <stdint.h>
#if defined(__x86_64__)
#include <cpuid.h>
#define WITH_FMA __attribute__((target("fma")))
#else
#define WITH_FMA
#endif

enum { MOST = 8 }; /* dimensions of an array */

/* Sizes of a product and steps, in numbers, of its three arrays along rows and columns. */
typedef struct {
    int64_t m, k, n, a_row, a_column, b_row, b_column, c_row, c_column;
} Shape;

#define FUSED(x, y, sum) __builtin_fmaf(x, y, sum)
#define PLAIN(x, y, sum) ((sum) + (x) * (y))
#define TILE(name, attributes, step)                                                                                   \
    attributes static inline void name(const float *a, const float *b, float *c, const Shape s, int adds)              \
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
#define ROW(name, attributes, tile)                                                                                    \
    attributes static void name(char *const *at, const Py_ssize_t *steps, Py_ssize_t count, const Shape *s, int adds)  \
    {                                                                                                                  \
        const Shape shape = *s;                                                                                        \
        for (Py_ssize_t n = 0; n < count; n++)                                                                         \
            tile((const float *)(at[0] + n * steps[0]), (const float *)(at[1] + n * steps[1]),                         \
                 (float *)(at[2] + n * steps[2]), shape, adds);                                                        \
    }
ROW(fused_row, WITH_FMA, fused_tile)
ROW(plain_row, , plain_tile)

static int fits(const Py_buffer *views)
{
    const int last = views[0].ndim - 1;
    if (last < 2 || last >= MOST)
        return 0;
    for (int n = 0; n < 3; n++) {
        if (views[n].itemsize != 4 || views[n].ndim != last + 1)
            return 0;
        for (int d = 0; d < last - 1; d++)
            if (views[n].shape[d] != views[0].shape[d])
                return 0;
    }
    return views[0].shape[last] == views[1].shape[last - 1] && views[0].shape[last - 1] == views[2].shape[last - 1] &&
           views[1].shape[last] == views[2].shape[last];
}

/* multiply(a, b, c, fused, adds): c = a b, or c += a b, in all leading dimensions. False: there is no such instruction. */
PyObject *multiply(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    if (count != 5)
        return PyErr_SetString(PyExc_TypeError, "multiply(a, b, c, fused, adds)"), NULL;
    const int fused = PyObject_IsTrue(given[3]), adds = PyObject_IsTrue(given[4]);
    if (fused && !has_fma())
        return Py_BuildValue("i", 0);
    Py_buffer views[3];
    int held = 0;
    for (; held < 3; held++)
        if (PyObject_GetBuffer(given[held], &views[held], held == 2 ? PyBUF_STRIDES | PyBUF_WRITABLE : PyBUF_STRIDES))
            break;
    if (held == 3 && !fits(views))
        PyErr_SetString(PyExc_ValueError, "multiply: three arrays of float32, [.., m, k], [.., k, n] and [.., m, n]");
    else if (held == 3) {
        const int last = views[0].ndim - 1;
        const Shape shape = {
            views[2].shape[last - 1],       views[0].shape[last],           views[2].shape[last],
            views[0].strides[last - 1] / 4, views[0].strides[last] / 4,     views[1].strides[last - 1] / 4,
            views[1].strides[last] / 4,     views[2].strides[last - 1] / 4, views[2].strides[last] / 4,
        };
        Py_ssize_t at[MOST] = {0}, rows = 1, steps[3];
        for (int d = 0; d < last - 2; d++)
            rows *= views[0].shape[d];
        for (Py_ssize_t row = 0; row < rows; row++) {
            char *begin[3];
            for (int n = 0; n < 3; n++) {
                begin[n] = views[n].buf, steps[n] = views[n].strides[last - 2];
                for (int d = 0; d < last - 2; d++)
                    begin[n] += at[d] * views[n].strides[d];
            }
            (fused ? fused_row : plain_row)(begin, steps, views[0].shape[last - 2], &shape, adds);
            for (int d = last - 3; d >= 0 && ++at[d] == views[0].shape[d]; d--)
                at[d] = 0;
        }
    }
    while (held--)
        PyBuffer_Release(&views[held]);
    return PyErr_Occurred() ? NULL : Py_BuildValue("i", 1);
}
