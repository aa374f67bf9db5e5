/* A vector times a tile, at every core, in the order in which OpenBLAS's sgemv for Haswell and Zen adds.

   BLAS is called with the tile's transpose. Of a tile by row (its sgemv_n_4.c) the columns are summed side by side, eight
   steps at a time, then four, each time from zero and then added to what there is; in the first columns, a number of them
   that is no multiple of 16, even and odd steps apart. The last columns, up to three, are sums of all steps in order. Of a
   tile by column (sgemv_t_4.c) each is a sum in eight parts, of every eighth step, up to a multiple of four. Each step has
   one rounding; but the last steps and the last columns, up to three, and what goes with the latter, have two.

   Whether it is what BLAS does here, products.py finds out. */

#include "products.h"
#include "numbers.h"
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define WITH_VECTORS __attribute__((target("avx2,fma,f16c")))
#define PART WITH_VECTORS static inline __attribute__((always_inline)) /* of a loop that is made for each kind */

enum { STEPS = 8, LONGEST = 4096 }; /* at a time; up to where BLAS goes through rows and columns once */

/* ------------------------------------------------------------------------------------------------------ numbers of b */

/* This quiets a NaN, as each product does. */
PART __m256 eight(const void *b, int64_t at, int kind)
{
    if (kind == FLOAT32)
        return _mm256_loadu_ps((const float *)b + at);
    const __m128i bits = _mm_loadu_si128((const __m128i *)((const uint16_t *)b + at));
    if (kind == FLOAT16)
        return _mm256_cvtph_ps(bits);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

PART __m128 four(const void *b, int64_t at, int kind)
{
    if (kind == FLOAT32)
        return _mm_loadu_ps((const float *)b + at);
    const __m128i bits = _mm_loadl_epi64((const __m128i *)((const uint16_t *)b + at));
    if (kind == FLOAT16)
        return _mm_cvtph_ps(bits);
    return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(bits), 16));
}

PART float single(const void *b, int64_t at, int kind)
{
    if (kind == FLOAT32)
        return ((const float *)b)[at];
    const uint16_t bits = ((const uint16_t *)b)[at];
    return kind == FLOAT16 ? _cvtsh_ss(bits) : of_bfloat16(bits);
}

/* ------------------------------------------------------------------------------------------------------ tiles by row */

/* `steps` rows of b, eight or four, in columns that are a multiple of four. */
PART void rows_of(const float *x, const void *b, int64_t at, float *sum, int64_t n, int64_t columns, int steps, int kind)
{
    int64_t j = 0;
    if (columns & 4) {
        __m128 even = _mm_setzero_ps(), odd = even;
        for (int l = 0; l < steps; l += 2) {
            even = _mm_fmadd_ps(_mm_set1_ps(x[l]), four(b, at + l * n, kind), even);
            odd = _mm_fmadd_ps(_mm_set1_ps(x[l + 1]), four(b, at + (l + 1) * n, kind), odd);
        }
        _mm_storeu_ps(sum, _mm_add_ps(_mm_add_ps(even, odd), _mm_loadu_ps(sum)));
        j = 4;
    }
    if (columns & 8) {
        __m256 even = _mm256_setzero_ps(), odd = even;
        for (int l = 0; l < steps; l += 2) {
            even = _mm256_fmadd_ps(_mm256_set1_ps(x[l]), eight(b, at + l * n + j, kind), even);
            odd = _mm256_fmadd_ps(_mm256_set1_ps(x[l + 1]), eight(b, at + (l + 1) * n + j, kind), odd);
        }
        _mm256_storeu_ps(sum + j, _mm256_add_ps(_mm256_add_ps(even, odd), _mm256_loadu_ps(sum + j)));
        j += 8;
    }
    __m256 each[STEPS];
    for (int l = 0; l < steps; l++)
        each[l] = _mm256_set1_ps(x[l]);
    for (; j < columns; j += 16) {
        __m256 low = _mm256_setzero_ps(), high = low;
        for (int l = 0; l < steps; l++) {
            low = _mm256_fmadd_ps(each[l], eight(b, at + l * n + j, kind), low);
            high = _mm256_fmadd_ps(each[l], eight(b, at + l * n + j + 8, kind), high);
        }
        _mm256_storeu_ps(sum + j, _mm256_add_ps(low, _mm256_loadu_ps(sum + j)));
        _mm256_storeu_ps(sum + j + 8, _mm256_add_ps(high, _mm256_loadu_ps(sum + j + 8)));
    }
}

/* The last rows, up to three. */
PART void rows_left(const float *x, const void *b, int64_t at, float *sum, int64_t n, int64_t columns, int steps, int kind)
{
    for (int l = 0; l < steps; l++) {
        const __m128 each = _mm_set1_ps(x[l]);
        for (int64_t j = 0; j < columns; j += 4) {
            const __m128 added = _mm_mul_ps(each, four(b, at + l * n + j, kind));
            _mm_storeu_ps(sum + j, _mm_add_ps(added, _mm_loadu_ps(sum + j)));
        }
    }
}

PART void by_row(const float *x, const void *b, float *c, const Shape s, int adds, int kind)
{
    float sums[LONGEST];
    float *sum = adds ? sums : c;
    const int64_t columns = s.n & -4;
    int64_t l = 0;
    memset(sum, 0, (size_t)columns * sizeof *sum);
    for (; l + STEPS <= s.k; l += STEPS)
        rows_of(x + l, b, l * s.n, sum, s.n, columns, STEPS, kind);
    if (s.k & 4) {
        rows_of(x + l, b, l * s.n, sum, s.n, columns, 4, kind);
        l += 4;
    }
    rows_left(x + l, b, l * s.n, sum, s.n, columns, (int)(s.k - l), kind);
    if (columns < s.n) { /* of the last four columns, those that are left */
        __m128 last = _mm_setzero_ps();
        for (l = 0; l < s.k; l++)
            last = _mm_add_ps(_mm_mul_ps(_mm_set1_ps(x[l]), four(b, l * s.n + s.n - 4, kind)), last);
        float end[4];
        _mm_storeu_ps(end, _mm_add_ps(last, _mm_setzero_ps()));
        for (int64_t j = columns; j < s.n; j++)
            sum[j] = end[4 - (s.n - j)];
    }
    if (adds)
        for (int64_t j = 0; j < s.n; j++)
            c[j] += sum[j];
}

/* --------------------------------------------------------------------------------------------------- tiles by column */

/* The sums of all four parts of each vector. */
PART __m128 total_of(__m128 a, __m128 b, __m128 c, __m128 d)
{
    return _mm_hadd_ps(_mm_hadd_ps(a, b), _mm_hadd_ps(c, d));
}

PART __m128 half_of(__m256 sum)
{
    return _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
}

/* The sums of four columns, `length` numbers of each. */
PART __m128 columns_of(const float *x, const void *b, int64_t at, int64_t k, int64_t length, int kind)
{
    __m256 sum[4];
    int64_t l = 0;
    for (int j = 0; j < 4; j++)
        sum[j] = _mm256_setzero_ps();
    if (length & 4) {
        for (int j = 0; j < 4; j++)
            sum[j] = _mm256_insertf128_ps(
                sum[j], _mm_fmadd_ps(_mm_loadu_ps(x), four(b, at + j * k, kind), _mm_setzero_ps()), 0);
        l = 4;
    }
    for (; l < length; l += 8)
        for (int j = 0; j < 4; j++)
            sum[j] = _mm256_fmadd_ps(_mm256_loadu_ps(x + l), eight(b, at + j * k + l, kind), sum[j]);
    return total_of(half_of(sum[0]), half_of(sum[1]), half_of(sum[2]), half_of(sum[3]));
}

/* The sum of one of the last columns; `apart`: of the last, whose fours are summed in turn to two sums. */
PART float column_of(const float *x, const void *b, int64_t at, int64_t length, int apart, int kind)
{
    __m128 sum[2] = {_mm_setzero_ps(), _mm_setzero_ps()};
    int64_t turn = length & 4; /* it begins with the first, after a four that is left over as well */
    for (int64_t l = 0; l < length; l += 4) {
        const int to = apart && l > 0 && (l - turn) & 4;
        sum[to] = _mm_add_ps(sum[to], _mm_mul_ps(_mm_loadu_ps(x + l), four(b, at + l, kind)));
    }
    const __m128 both = _mm_add_ps(sum[1], sum[0]);
    return _mm_cvtss_f32(total_of(both, both, both, both));
}

/* The sums of the last steps, up to three, of four columns. */
PART __m128 ends_of(const float *x, const void *b, int64_t at, int64_t k, int64_t left, int kind)
{
    __m128 step[4], sum = _mm_setzero_ps();
    for (int j = 0; j < 4; j++)
        step[j] = four(b, at + j * k + k - 4, kind);
    _MM_TRANSPOSE4_PS(step[0], step[1], step[2], step[3]);
    for (int64_t l = 4 - left; l < 4; l++)
        sum = _mm_add_ps(sum, _mm_mul_ps(_mm_set1_ps(x[k - 4 + l]), step[l]));
    return sum;
}

PART void by_column(const float *x, const void *b, float *c, const Shape s, int adds, int kind)
{
    const int64_t length = s.k & -4, left = s.k & 3, columns = length ? s.n & -4 : 0;
    for (int64_t j = 0; j < columns; j += 4) {
        __m128 sum = _mm_add_ps(columns_of(x, b, j * s.k, s.k, length, kind), _mm_setzero_ps());
        if (left)
            sum = _mm_add_ps(sum, ends_of(x, b, j * s.k, s.k, left, kind));
        _mm_storeu_ps(c + j, adds ? _mm_add_ps(_mm_loadu_ps(c + j), sum) : sum);
    }
    for (int64_t j = columns; j < s.n; j++) {
        const int apart = s.n & 1 && j == s.n - 1;
        float sum = length ? 0 + column_of(x, b, j * s.k, length, apart, kind) : 0, more = 0;
        for (int64_t l = length; l < s.k; l++)
            more += x[l] * single(b, j * s.k + l, kind);
        if (left)
            sum += more;
        c[j] = adds ? c[j] + sum : sum;
    }
}

/* ------------------------------------------------------------------------------------------------------- for a call */

#define VECTORS(name, tile, kind)                                                                                      \
    WITH_VECTORS static void name(char *const *at, const Py_ssize_t *steps, Py_ssize_t count, const Shape *s, int adds) \
    {                                                                                                                  \
        const Shape shape = *s;                                                                                        \
        for (Py_ssize_t n = 0; n < count; n++)                                                                         \
            tile((const float *)(at[0] + n * steps[0]), at[1] + n * steps[1], (float *)(at[2] + n * steps[2]), shape,  \
                 adds, kind);                                                                                          \
    }
VECTORS(row_float32, by_row, FLOAT32)
VECTORS(row_float16, by_row, FLOAT16)
VECTORS(row_bfloat16, by_row, BFLOAT16)
VECTORS(column_float32, by_column, FLOAT32)
VECTORS(column_float16, by_column, FLOAT16)
VECTORS(column_bfloat16, by_column, BFLOAT16)

static int looks_for_vectors(void)
{
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_FMA) || !(c & bit_F16C) || !(c & bit_OSXSAVE))
        return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2))
        return 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & 6) == 6; /* the system keeps the vectors */
}

int has_vectors(void)
{
    static int has = -1; /* where there is a hypervisor, each question takes a microsecond */
    if (has < 0)
        has = looks_for_vectors();
    return has;
}

Row *vectors_way(const Shape *s, long long kind)
{
    static Row *const ways[2][KINDS] = {{row_float32, row_float16, row_bfloat16},
                                        {column_float32, column_float16, column_bfloat16}};
    const int by_column = s->b_row == 1 && s->b_column == s->k, by_row = s->b_column == 1 && s->b_row == s->n;
    if (s->m != 1 || s->k < 2 || s->n < 4 || s->k >= LONGEST || s->n >= LONGEST || s->a_column != 1 || s->c_column != 1)
        return NULL;
    return (by_row || by_column) && has_vectors() ? ways[!by_row][kind] : NULL;
}
#else
Row *vectors_way(const Shape *s, long long kind)
{
    (void)s, (void)kind;
    return NULL;
}
#endif
