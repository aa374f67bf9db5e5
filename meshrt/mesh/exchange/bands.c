/* Several rounds of an exchange at once, row after row of the mesh, so that clocks stay in the processor's cache from one
   round to the next.

   Who moves does not depend on what time it takes, so it is found for some rounds ahead. In a round a row needs of its
   neighbours only what left them in that round: behind a row that has its round come those before it with the next one,
   each a row further back. Each core and packet goes through its rounds in their order, with the same sums and maxima.

   Where a block ends at another rank's, rows near its edge wait for messages: in each round one more of them. These are
   gone through round by round, after all others. */

#include "hop.h"
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum { NEXT = 4 }; /* moves: what that one needs of memory is asked for now */

int fits_bands(const March *m)
{
    return m->leaves && (in_a_row(m) || side_by_side(m));
}

/* Rows of which moves are noted: of the block, and one before and one behind it, from which packets come. */
static int64_t rows_of(const Bands *bands)
{
    return bands->bottom - bands->top + 2;
}

/* Where the moves of a row begin, those of a round together; the next row's begin where they end. */
static inline int32_t *begin_of(const Bands *bands, int32_t *begins, int64_t round, int64_t row)
{
    return &begins[round * (rows_of(bands) + 1) + row - bands->top + 1];
}

/* The row that packets which leave by a port get to. */
static inline int64_t row_after(int64_t row, int port)
{
    return port == NORTH ? row - 1 : port == SOUTH ? row + 1 : row;
}

/* The first seat from `low` on whose core is in this row or behind it. */
static int64_t first_seat(const March *m, int64_t low, int64_t high, int64_t row)
{
    const int32_t *core = m->seats[m->now & 1].core;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (core[middle] < row * m->width)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Counts become places: begins[row + 1] is where the row's begin, and will be where they end. */
static void add_up(int32_t *begins, int64_t rows, int32_t begin)
{
    for (int64_t row = 0; row <= rows; row++) {
        const int32_t count = begins[row];
        begins[row] = begin;
        begin += count;
    }
}

/* The moves of this round in and to rows of the block are noted by row, in the order of ports there. */
static void note_by_row(March *m, const Bands *bands, int64_t round, Crossing *sum)
{
    const Seats seats = m->seats[m->now & 1];
    const int64_t rows = rows_of(bands), reciprocal = ((int64_t)1 << 44) / m->width + 1;
    int32_t *leaves_at = begin_of(bands, m->leaves_at, round, bands->top - 1);
    int32_t *comes_at = begin_of(bands, m->comes_at, round, bands->top - 1);
    int64_t low[PORTS], high[PORTS];
    memset(leaves_at, 0, (size_t)(rows + 1) * sizeof *leaves_at);
    memset(comes_at, 0, (size_t)(rows + 1) * sizeof *comes_at);
    for (int port = 0; port < PORTS; port++) {
        const int64_t first = port * m->cores, end = first + m->fill[port];
        low[port] = first_seat(m, first, end, bands->top - 1);
        high[port] = first_seat(m, low[port], end, bands->bottom + 1);
        for (int64_t seat = low[port]; seat < high[port]; seat++) {
            const int64_t row = (seats.core[seat] * reciprocal >> 44) - (bands->top - 1), to = row_after(row, port);
            leaves_at[row]++;
            if (to >= 0 && to < rows)
                comes_at[to]++;
        }
    }
    add_up(leaves_at, rows, round ? leaves_at[-1] : 0);
    add_up(comes_at, rows, round ? comes_at[-1] : 0);
    for (int port = 0; port < PORTS; port++) {
        const int64_t step = step_of(m, port);
        for (int64_t seat = low[port]; seat < high[port]; seat++) {
            const int64_t core = seats.core[seat], row = (core * reciprocal >> 44) - (bands->top - 1);
            const int64_t to = row_after(row, port);
            if (seat + AHEAD < high[port]) {
                __builtin_prefetch(&m->packets[seats.leg[seat + AHEAD]]);
                __builtin_prefetch(&m->crossed[port * m->links + seats.core[seat + AHEAD]], 1);
                __builtin_prefetch(&m->entered[seats.core[seat + AHEAD] + step], 1);
            }
            const uint8_t kind = seats.kind[seat];
            const Move move = {m->local[core], m->local[core + step], m->packets[seats.leg[seat]], kind, (int16_t)port};
            m->leaves[leaves_at[row]++] = move;
            if (to >= 0 && to < rows)
                m->comes[comes_at[to]++] = move;
            if (row > 0 && row < rows - 1) { /* what crosses links and ramps of the block is entered */
                m->crossed[port * m->links + core] += m->nbytes[kind & ASKS];
                sum->left += m->lines;
                sum->fresh += kind & TOUCHED ? 0 : m->lines;
            }
            if (to > 0 && to < rows - 1) {
                m->entered[core + step] += m->nbytes[kind & ASKS];
                sum->here += m->lines;
            }
        }
    }
    memmove(leaves_at + 1, leaves_at, (size_t)rows * sizeof *leaves_at); /* ends are the next ones' beginnings */
    memmove(comes_at + 1, comes_at, (size_t)rows * sizeof *comes_at);
    leaves_at[0] = round ? leaves_at[-1] : 0;
    comes_at[0] = round ? comes_at[-1] : 0;
}

/* The moves of this round are noted; along a line, as stretches that are those of all rows. */
void note_moves(March *m, const Bands *bands, int64_t round, Crossing *sum)
{
    if (!in_a_row(m)) {
        note_by_row(m, bands, round, sum);
        return;
    }
    for (int port = 0; port < PORTS; port++)
        cross_lines(m, port, sum);
    int64_t count = round ? m->leaves_at[round] : 0;
    m->leaves_at[round] = (int32_t)count;
    for (int port = 0; port < PORTS; port++)
        count += stretches_of(m, port, (Stretch *)m->leaves + count);
    m->leaves_at[round + 1] = (int32_t)count;
}

/* ------------------------------------------------------------------------------------------------------------ a row */

static inline __attribute__((always_inline)) void fetch_to_move(const March *m, const Move *move)
{
    if (m->lines > MANY_LINES)
        return;
    const double *head = m->heads + move->packet * m->slot_step, *cell = m->cells + move->from * m->core_step;
    for (int row = TIME; row <= STAGES; row++) {
        fetch(head + row * m->head_row, m->lines);
        fetch(cell + row * m->row, m->lines);
    }
    fetch(cell + RAMP_OUT * m->row, m->lines);
    fetch(cell + (LINK_FREE + move->port) * m->row, m->lines);
    fetch(m->cells + RAMP_IN * m->row + move->to * m->core_step, m->lines);
}

static inline __attribute__((always_inline)) void leave_row_of(const March *m, const Bands *bands, int64_t round, int64_t row)
{
    const int32_t *begin = begin_of(bands, m->leaves_at, round, row);
    for (const Move *move = m->leaves + begin[0], *end = m->leaves + begin[1]; move < end; move++) {
        fetch_to_move(m, move + NEXT);
        double *cell = m->cells + move->from * m->core_step;
        leave_row(m, m->lines, cell, cell + (LINK_FREE + move->port) * m->row,
                  m->heads + move->packet * m->slot_step, 1, m->busy[move->kind & ASKS], move->kind >> 1);
    }
}

static inline __attribute__((always_inline)) void come_to_row_of(const March *m, const Bands *bands, int64_t round, int64_t row)
{
    const int32_t *begin = begin_of(bands, m->comes_at, round, row);
    for (const Move *move = m->comes + begin[0], *end = m->comes + begin[1]; move < end; move++)
        come_in_row(m->lines, m->heads + move->packet * m->slot_step, 1,
                    m->cells + RAMP_IN * m->row + move->to * m->core_step, m->busy[move->kind & ASKS]);
}

/* Packets of all marches leave the cores of a row. Along a line they come in as well, as in move_in_rows. */
static inline __attribute__((always_inline)) void leave_row_in(const Marches *all, const Bands *bands, int64_t round, int64_t row)
{
    for (int64_t n = 0; n < all->many; n++) {
        const March *m = all->marches[n];
        if (!in_a_row(m)) {
            leave_row_of(m, bands, round, row);
            continue;
        }
        const Stretch *one = (Stretch *)m->leaves + m->leaves_at[round];
        const Stretch *end = (Stretch *)m->leaves + m->leaves_at[round + 1];
        for (const Stretch *stretch = one; stretch < end; stretch++)
            leave_stretch(m, stretch, row - bands->top);
        for (const Stretch *stretch = one; m->timed && stretch < end; stretch++)
            come_in_stretch(m, stretch, row - bands->top);
    }
}

static inline __attribute__((always_inline)) void come_to_row_in(const Marches *all, const Bands *bands, int64_t round, int64_t row)
{
    for (int64_t n = 0; n < all->many; n++)
        if (all->marches[n]->timed && !in_a_row(all->marches[n]))
            come_to_row_of(all->marches[n], bands, round, row);
}

/* ----------------------------------------------------------------------------------------------------- many rounds

   Rows that leave in a round without waiting for messages, and those that packets can then come to. */

static int64_t leaves_from(const Bands *bands, int64_t round)
{
    return bands->top + (bands->cut_north ? round : 0);
}

static int64_t leaves_until(const Bands *bands, int64_t round)
{
    return bands->bottom - (bands->cut_south ? round : 0);
}

static int64_t comes_from(const Bands *bands, int64_t round)
{
    return bands->top + (bands->cut_north ? round + 1 : 0);
}

static int64_t comes_until(const Bands *bands, int64_t round)
{
    return bands->bottom - (bands->cut_south ? round + 1 : 0);
}

static inline __attribute__((always_inline)) void move_rows(const Marches *all, const Bands *bands)
{
    for (int64_t front = bands->top; front < bands->bottom + bands->rounds; front++)
        for (int64_t round = 0; round < bands->rounds && front - round >= bands->top; round++) {
            const int64_t row = front - round;
            if (row >= leaves_from(bands, round) && row < leaves_until(bands, round))
                leave_row_in(all, bands, round, row);
            if (row - 1 >= comes_from(bands, round) && row - 1 < comes_until(bands, round))
                come_to_row_in(all, bands, round, row - 1);
        }
}

static void move_plainly(const Marches *all, const Bands *bands)
{
    move_rows(all, bands);
}

/* The same loops where the processor has vectors of four numbers: the same sums and maxima. */
#if defined(__x86_64__)
__attribute__((target("avx2"))) static void move_by_four(const Marches *all, const Bands *bands)
{
    move_rows(all, bands);
}

static int has_four(void)
{
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (b & bit_AVX2) && (low & 6) == 6; /* the system keeps such vectors */
}
#else
#define move_by_four move_plainly
static int has_four(void)
{
    return 0;
}
#endif

/* All rounds of rows that need no message. */
void move_in_bands(const Marches *all, const Bands *bands)
{
    (has_four() ? move_by_four : move_plainly)(all, bands);
}

/* What is left of a round: rows that are so near to an edge that they needed what came in with the rounds before. */
void leave_at_edges(const Marches *all, const Bands *bands, int64_t round)
{
    for (int64_t row = bands->top; row < leaves_from(bands, round); row++)
        leave_row_in(all, bands, round, row);
    for (int64_t row = leaves_until(bands, round); row < bands->bottom; row++)
        leave_row_in(all, bands, round, row);
}

void come_in_at_edges(const Marches *all, const Bands *bands, int64_t round)
{
    for (int64_t row = bands->top; row < comes_from(bands, round); row++)
        come_to_row_in(all, bands, round, row);
    for (int64_t row = comes_until(bands, round); row < bands->bottom; row++)
        come_to_row_in(all, bands, round, row);
}

/* Headers of packets that go over an edge of the block go to a message, or come from there; how many these are. */
int64_t move_headers_of(const March *m, const Bands *bands, int64_t round, int port, int coming, double *data,
                        int64_t count)
{
    if (in_a_row(m) || (port != NORTH && port != SOUTH))
        return 0;
    const int64_t row = port == NORTH ? (coming ? bands->bottom : bands->top)
                                      : (coming ? bands->top - 1 : bands->bottom - 1);
    const int32_t *begin = begin_of(bands, m->leaves_at, round, row);
    int64_t place = 0;
    for (const Move *move = m->leaves + begin[0], *end = m->leaves + begin[1]; move < end; move++) {
        if (move->port != port)
            continue;
        double *head = m->heads + move->packet * m->slot_step;
        for (int of = TIME; data && of <= STAGES; of++)
            for (int64_t line = 0; line < m->lines; line++)
                if (coming)
                    head[of * m->head_row + line] = data[of * count + place + line];
                else
                    data[of * count + place + line] = head[of * m->head_row + line];
        place += m->lines;
    }
    return place;
}
