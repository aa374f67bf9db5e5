/* A hop: a packet leaves a core by a link, and comes in by a ramp. Of one packet, of those of many lines whose numbers lie
   side by side, and of a stretch of them along a line. */

#include "march.h"

/* Do lines lie side by side, and not the cores of each? */
static inline int side_by_side(const March *m)
{
    return m->line_step == 1 && m->head_line == 1 && m->line_step < m->core_step;
}

/* Convoy._leave, Porter.leave: a packet leaves a core by a link; those that are sent on, once software has them. */
static inline __attribute__((always_inline)) void leave_core(const March *m, double *cell, double *link, const double *head, int64_t far, double *to,
                              int64_t row, double busy, double touched)
{
    double *time = cell + TIME * m->row, *hops = cell + HOPS * m->row, *stages = cell + STAGES * m->row;
    const int later = head[TIME] > *time;
    const double passed = later ? head[HOPS * far] : *hops, staged = (later ? head[STAGES * far] : *stages) + touched;
    double now = (later ? head[TIME] : *time) + m->beta * touched;
    *time = now, *hops = passed, *stages = staged;
    if (m->timed) {
        double *ramp = cell + RAMP_OUT * m->row;
        now = now > *ramp ? now : *ramp;
        now = now > *link ? now : *link;
        *ramp = *link = now + busy;
    }
    to[TIME] = now + m->alpha;
    to[HOPS * row] = passed + 1.0;
    to[STAGES * row] = staged;
}

/* Several lines at once: compilers make nothing of it that gives other bits, but not by themselves from a loop. */
#pragma GCC diagnostic ignored "-Wpsabi" /* all of this is inlined, and so passes no vectors */
enum { LANES = 4 };
typedef double Lanes __attribute__((vector_size(8 * LANES), aligned(8)));
typedef int64_t Mask __attribute__((vector_size(8 * LANES), aligned(8)));

static inline __attribute__((always_inline)) Lanes either(Mask mask, Lanes one, Lanes other)
{
    return (Lanes)((mask & (Mask)one) | (~mask & (Mask)other));
}

static inline __attribute__((always_inline)) Lanes later_of(Lanes one, Lanes other)
{
    return either((Mask)(one > other), one, other);
}

/* Numbers that lie in the order of the lanes, or of which each lies before the last. */
static inline __attribute__((always_inline)) Lanes load(const double *first, int rising)
{
    const Lanes both = *(const Lanes *)(rising ? first : first - (LANES - 1));
    return rising ? both : (Lanes){both[3], both[2], both[1], both[0]};
}

static inline __attribute__((always_inline)) void store(double *first, Lanes both, int rising)
{
    *(Lanes *)(rising ? first : first - (LANES - 1)) = rising ? both : (Lanes){both[3], both[2], both[1], both[0]};
}

/* leave_core for so many packets, of as many lines or cores, whose numbers lie side by side; their headers so, too, or
   the other way round. */
static inline __attribute__((always_inline)) void leave_row(const March *m, int64_t count, double *cell, double *link,
                                                            double *head, int rising, double busy, double touched)
{
    const int64_t row = m->row, head_row = m->head_row, step = rising ? 1 : -1;
    const double software = m->beta * touched;
    int64_t n = 0;
    for (; n + LANES <= count; n += LANES, cell += LANES, link += LANES, head += LANES * step) {
        Lanes *time = (Lanes *)(cell + TIME * row), *hops = (Lanes *)(cell + HOPS * row);
        Lanes *stages = (Lanes *)(cell + STAGES * row), *ramp = (Lanes *)(cell + RAMP_OUT * row);
        const Lanes its = load(head, rising);
        const Mask later = (Mask)(its > *time);
        const Lanes passed = either(later, load(head + HOPS * head_row, rising), *hops);
        const Lanes staged = either(later, load(head + STAGES * head_row, rising), *stages) + touched;
        Lanes now = either(later, its, *time) + software;
        *time = now, *hops = passed, *stages = staged;
        store(head + HOPS * head_row, passed + 1.0, rising);
        store(head + STAGES * head_row, staged, rising);
        if (m->timed) {
            now = later_of(later_of(now, *ramp), *(Lanes *)link);
            *ramp = *(Lanes *)link = now + busy;
        }
        store(head, now + m->alpha, rising);
    }
    for (; n < count; n++, cell++, link++, head += step)
        leave_core(m, cell, link, head, head_row, head, head_row, busy, touched);
}

/* Packets lie in the order of their readers, cores at any distance. Of many lines the processor itself fetches what comes
   next. */
enum { MANY_LINES = 64, CACHE_LINE = 64 }; /* lines, bytes */

static inline __attribute__((always_inline)) void fetch(const double *first, int64_t count)
{
    const char *end = (const char *)(first + count);
    for (const char *line = (const char *)((intptr_t)first & -CACHE_LINE); line < end; line += CACHE_LINE)
        __builtin_prefetch(line, 1);
}

/* They come in from the other side, by the ramps of the cores that they get to. */
static inline __attribute__((always_inline)) void come_in_core(double *head, double *ramp, double busy)
{
    *ramp = *head = (*head > *ramp ? *head : *ramp) + busy;
}

/* The same for so many, as leave_row. */
static inline __attribute__((always_inline)) void come_in_row(int64_t count, double *head, int rising, double *ramp,
                                                              double busy)
{
    const int64_t step = rising ? 1 : -1;
    int64_t n = 0;
    for (; n + LANES <= count; n += LANES, head += LANES * step, ramp += LANES) {
        const Lanes came = later_of(load(head, rising), *(Lanes *)ramp) + busy;
        *(Lanes *)ramp = came;
        store(head, came, rising);
    }
    for (; n < count; n++, head += step)
        come_in_core(head, ramp++, busy);
}

/* Do the cores of a line lie side by side, and so its packets? */
static inline int in_a_row(const March *m)
{
    return m->stretches && m->core_step == 1 && m->slot_step == 1;
}

static inline __attribute__((always_inline)) void leave_stretch(const March *m, const Stretch *one, int64_t line)
{
    double *cell = m->cells + line * m->line_step + m->local[one->core];
    double *link = cell + (LINK_FREE + one->port) * m->row, *head = m->heads + line * m->head_line + one->slot;
    const double busy = m->busy[one->kind & ASKS], touched = one->kind >> 1;
    if (one->step > 0)
        leave_row(m, one->count, cell, link, head, 1, busy, touched);
    else
        leave_row(m, one->count, cell, link, head, 0, busy, touched);
}

static inline __attribute__((always_inline)) void come_in_stretch(const March *m, const Stretch *one, int64_t line)
{
    double *head = m->heads + line * m->head_line + one->slot;
    double *ramp = m->cells + RAMP_IN * m->row + line * m->line_step + m->local[one->core + step_of(m, one->port)];
    if (one->step > 0)
        come_in_row(one->count, head, 1, ramp, m->busy[one->kind & ASKS]);
    else
        come_in_row(one->count, head, 0, ramp, m->busy[one->kind & ASKS]);
}
