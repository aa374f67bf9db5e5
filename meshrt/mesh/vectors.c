/* A vector times a tile, at every core, in the order in which OpenBLAS's sgemv adds: for Haswell and Zen, or for SkylakeX
   and what else has AVX-512 (`wide`).

   BLAS is called with the tile's transpose. Of a tile by row (its sgemv_n_4.c) the columns are summed side by side, eight
   steps at a time, then four, each time from zero and then added to what there is; in the first columns, a number of them
   that is no multiple of 16, even and odd steps apart. The last columns, up to three, are sums of all steps in order. Of a
   tile by column (sgemv_t_4.c) each is a sum in eight parts, of every eighth step, up to a multiple of four. Each step has
   one rounding; but the last steps and the last columns, up to three, and what goes with the latter, have two.

   `wide`: of a tile by row with up to 48 steps, but for four, each column is a sum of all steps in order; so are the last
   columns of the others. What is C in BLAS, and not assembler, has one rounding a step wherever a product is added to
   something: all that had two, but for the last columns of tiles by column. Such tiles of up to eight steps have kernels
   of their own there, which are not here.

   Whether it is what BLAS does here, products.py finds out. */

#include "products.h"
#include "numbers.h"
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define WITH_VECTORS __attribute__((target("avx2,fma,f16c")))
#define PART WITH_VECTORS static inline __attribute__((always_inline)) /* of a loop that is made for each kind */

enum { STEPS = 8, LONGEST = 4096 }; /* at a time; up to where BLAS goes through rows and columns once */
enum { IN_ORDER = 48, BY_THEMSELVES = 8 }; /* wide: up to so many steps by row and by column BLAS has other kernels */
enum { SHORT = 64 }; /* columns; longer rows come from memory in half the time if they are read one after the other */

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

/* So many rows, each added to what there is of its columns before the next. */
PART void rows_in_turn(const float *x, const void *b, int64_t at, float *sum, int64_t n, int64_t columns, int steps, int kind)
{
    int64_t j = 0;
    for (; j + 8 <= columns; j += 8) {
        __m256 part = _mm256_loadu_ps(sum + j);
        for (int l = 0; l < steps; l++)
            part = _mm256_fmadd_ps(_mm256_set1_ps(x[l]), eight(b, at + l * n + j, kind), part);
        _mm256_storeu_ps(sum + j, part);
    }
    if (j < columns) {
        __m128 part = _mm_loadu_ps(sum + j);
        for (int l = 0; l < steps; l++)
            part = _mm_fmadd_ps(_mm_set1_ps(x[l]), four(b, at + l * n + j, kind), part);
        _mm_storeu_ps(sum + j, part);
    }
}

/* The last rows, up to three. */
PART void rows_left(const float *x, const void *b, int64_t at, float *sum, int64_t n, int64_t columns, int steps, int kind,
                    int wide)
{
    int l = 0;
    if (wide && steps > 1) {
        const __m128 first = _mm_set1_ps(x[0]), second = _mm_set1_ps(x[1]);
        for (int64_t j = 0; j < columns; j += 4) {
            const __m128 pair = _mm_fmadd_ps(second, four(b, at + n + j, kind), _mm_mul_ps(first, four(b, at + j, kind)));
            _mm_storeu_ps(sum + j, _mm_add_ps(pair, _mm_loadu_ps(sum + j)));
        }
        l = 2;
    }
    for (; l < steps; l++) {
        const __m128 each = _mm_set1_ps(x[l]);
        for (int64_t j = 0; j < columns; j += 4) {
            const __m128 added = _mm_mul_ps(each, four(b, at + l * n + j, kind));
            _mm_storeu_ps(sum + j, _mm_add_ps(added, _mm_loadu_ps(sum + j)));
        }
    }
}

PART void by_row(const float *x, const void *b, float *c, const Shape s, int adds, int kind, int wide)
{
    float sums[LONGEST];
    float *sum = adds ? sums : c;
    const int64_t columns = s.n & -4;
    int64_t l = 0;
    memset(sum, 0, (size_t)columns * sizeof *sum);
    if (wide && s.k <= IN_ORDER && s.k != 4) {
        for (; s.n <= SHORT && l + STEPS <= s.k; l += STEPS)
            rows_in_turn(x + l, b, l * s.n, sum, s.n, columns, STEPS, kind);
        for (; s.n <= SHORT && l + 2 <= s.k; l += 2)
            rows_in_turn(x + l, b, l * s.n, sum, s.n, columns, 2, kind);
        for (; l < s.k; l++)
            rows_in_turn(x + l, b, l * s.n, sum, s.n, columns, 1, kind);
    } else {
        for (; l + STEPS <= s.k; l += STEPS)
            rows_of(x + l, b, l * s.n, sum, s.n, columns, STEPS, kind);
        if (s.k & 4) {
            rows_of(x + l, b, l * s.n, sum, s.n, columns, 4, kind);
            l += 4;
        }
        rows_left(x + l, b, l * s.n, sum, s.n, columns, (int)(s.k - l), kind, wide);
    }
    if (columns < s.n) { /* of the last four columns, those that are left */
        __m128 last = _mm_setzero_ps();
        for (l = 0; l < s.k; l++) {
            const __m128 each = _mm_set1_ps(x[l]), step = four(b, l * s.n + s.n - 4, kind);
            last = wide ? _mm_fmadd_ps(each, step, last) : _mm_add_ps(_mm_mul_ps(each, step), last);
        }
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

/* What is added to the sums of four columns: their last steps, up to three. */
PART __m128 with_ends(__m128 total, const float *x, const void *b, int64_t at, int64_t k, int64_t left, int kind, int wide)
{
    __m128 step[4], sum = _mm_setzero_ps();
    for (int j = 0; j < 4; j++)
        step[j] = four(b, at + j * k + k - 4, kind);
    _MM_TRANSPOSE4_PS(step[0], step[1], step[2], step[3]);
    const __m128 last = _mm_set1_ps(x[k - 1]);
    if (wide && left == 1)
        return _mm_fmadd_ps(last, step[3], total);
    if (wide) { /* the second of them is what the first is added to */
        const __m128 first = _mm_set1_ps(x[k - left]), second = _mm_set1_ps(x[k - left + 1]);
        sum = _mm_fmadd_ps(first, step[4 - left], _mm_mul_ps(second, step[5 - left]));
        return _mm_add_ps(total, left == 3 ? _mm_fmadd_ps(last, step[3], sum) : sum);
    }
    for (int64_t l = 4 - left; l < 4; l++)
        sum = _mm_add_ps(sum, _mm_mul_ps(_mm_set1_ps(x[k - 4 + l]), step[l]));
    return _mm_add_ps(total, sum);
}

/* The same of a column by itself. */
PART float with_end(float total, const float *x, const void *b, int64_t at, int64_t left, int kind, int wide)
{
    float more = 0;
    if (wide && left == 1)
        return __builtin_fmaf(x[0], single(b, at, kind), total);
    if (wide) {
        more = __builtin_fmaf(x[0], single(b, at, kind), x[1] * single(b, at + 1, kind));
        return total + (left == 3 ? __builtin_fmaf(x[2], single(b, at + 2, kind), more) : more);
    }
    for (int64_t l = 0; l < left; l++)
        more += x[l] * single(b, at + l, kind);
    return total + more;
}

PART void by_column(const float *x, const void *b, float *c, const Shape s, int adds, int kind, int wide)
{
    const int64_t length = s.k & -4, left = s.k & 3, columns = length ? s.n & -4 : 0;
    for (int64_t j = 0; j < columns; j += 4) {
        __m128 sum = _mm_add_ps(columns_of(x, b, j * s.k, s.k, length, kind), _mm_setzero_ps());
        if (left)
            sum = with_ends(sum, x, b, j * s.k, s.k, left, kind, wide);
        _mm_storeu_ps(c + j, adds ? _mm_add_ps(_mm_loadu_ps(c + j), sum) : sum);
    }
    for (int64_t j = columns; j < s.n; j++) {
        const int apart = s.n & 1 && j == s.n - 1;
        float sum = length ? 0 + column_of(x, b, j * s.k, length, apart, kind) : 0;
        if (left)
            sum = with_end(sum, x + length, b, j * s.k + length, left, kind, wide);
        c[j] = adds ? c[j] + sum : sum;
    }
}

/* ------------------------------------------------------------------------------------------------------- for a call */

#define VECTORS(name, tile, kind, wide)                                                                                \
    WITH_VECTORS static void name(char *const *at, const Py_ssize_t *steps, Py_ssize_t count, const Shape *s, int adds) \
    {                                                                                                                  \
        const Shape shape = *s;                                                                                        \
        for (Py_ssize_t n = 0; n < count; n++)                                                                         \
            tile((const float *)(at[0] + n * steps[0]), at[1] + n * steps[1], (float *)(at[2] + n * steps[2]), shape,  \
                 adds, kind, wide);                                                                                    \
    }
#define ALL_KINDS(name, tile, wide)                                                                                    \
    VECTORS(name##_float32, tile, FLOAT32, wide)                                                                       \
    VECTORS(name##_float16, tile, FLOAT16, wide)                                                                       \
    VECTORS(name##_bfloat16, tile, BFLOAT16, wide)
ALL_KINDS(row, by_row, 0)
ALL_KINDS(column, by_column, 0)
ALL_KINDS(wide_row, by_row, 1)
ALL_KINDS(wide_column, by_column, 1)

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

Row *vectors_way(const Shape *s, long long kind, int wide)
{
    static Row *const ways[2][2][KINDS] = {
        {{row_float32, row_float16, row_bfloat16}, {column_float32, column_float16, column_bfloat16}},
        {{wide_row_float32, wide_row_float16, wide_row_bfloat16},
         {wide_column_float32, wide_column_float16, wide_column_bfloat16}}};
    const int by_column = s->b_row == 1 && s->b_column == s->k, by_row = s->b_column == 1 && s->b_row == s->n;
    if (s->m != 1 || s->k < 2 || s->n < 4 || s->k >= LONGEST || s->n >= LONGEST || s->a_column != 1 || s->c_column != 1)
        return NULL;
    if (wide && !by_row && s->k <= BY_THEMSELVES)
        return NULL;
    return (by_row || by_column) && has_vectors() ? ways[wide][!by_row][kind] : NULL;
}
#else
Row *vectors_way(const Shape *s, long long kind, int wide)
{
    (void)s, (void)kind, (void)wide;
    return NULL;
}
#endif
