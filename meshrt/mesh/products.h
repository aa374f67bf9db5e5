/* What products of tiles are told of them (products.c, vectors.c). */

#ifndef MESHRT_PRODUCTS_H
#define MESHRT_PRODUCTS_H

#include "stable.h"
#include <stdint.h>

enum { FLOAT32, FLOAT16, BFLOAT16, KINDS }; /* of the second factor */

/* Sizes of a product and steps, in numbers, of its three arrays along rows and columns. */
typedef struct {
    int64_t m, k, n, a_row, a_column, b_row, b_column, c_row, c_column;
    const char *apart; /* of each row: are steps of even and of odd l summed apart? NULL: not of tiles that may be */
} Shape;

/* Products of so many tiles, side by side at these steps (bytes). */
typedef void Row(char *const *at, const Py_ssize_t *steps, Py_ssize_t count, const Shape *s, int adds);

/* The way to multiply such tiles as BLAS multiplies a vector, `wide`: where it has AVX-512; NULL: not such tiles, or not
   on this processor. */
Row *vectors_way(const Shape *s, long long kind, int wide);

#if defined(__x86_64__)
int has_vectors(void); /* Are AVX2, FMA and F16C here? */
#endif

#endif
