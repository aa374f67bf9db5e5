/* Several rounds of an exchange at once, row after row of the mesh, so that clocks stay in the processor's cache from one
   round to the next.

   Who moves does not depend on what time it takes, so it is found for some rounds ahead. In a round a row needs of its
   neighbours only what left them in that round: behind a row that has its round come those before it with the next one,
   each a row further back. Each core and packet goes through its rounds in their order, with the same sums and maxima.

   Where a block ends at another rank's, rows near its edge wait for messages: in each round one more of them. These are
   gone through round by round, after all others. */

#include "hop.h"

enum { LEAVES_NEAR, LEAVES, COMES_NEAR, COMES }; /* places in lists of moves: of rows near the north edge, of others */
enum { NEXT = 2, NEXT_MOVES = 6 };               /* moves: what that one needs of memory, and it, is asked for now */

int fits_bands(const March *m)
{
    return m->moves && (in_a_row(m) || side_by_side(m));
}

static int32_t *place_of(const March *m, int what, int64_t round, int port)
{
    return &m->at[(what * ROUNDS + round) * PORTS + port];
}

static int64_t moves_of(const March *m, const Bands *bands, int port, Move *moves)
{
    const Seats seats = m->seats[m->now & 1];
    const int64_t low = port * m->cores, high = low + m->fill[port], step = step_of(m, port);
    int64_t count = 0, row = bands->top - 1;
    for (int64_t seat = low; seat < high; seat++) {
        const int64_t core = seats.core[seat];
        if (core < row * m->width)
            continue;
        while (core >= (row + 1) * m->width)
            row++;
        if (row > bands->bottom)
            break;
        if (seat + AHEAD < high)
            __builtin_prefetch(&m->packets[seats.leg[seat + AHEAD]]);
        moves[count++] = (Move){(int32_t)row, m->local[core], m->local[core + step], m->packets[seats.leg[seat]],
                                seats.kind[seat]};
    }
    return count;
}

/* Those of this round that move in or to the rows of the block are noted; along a line, as stretches of all rows. */
void note_moves(March *m, const Bands *bands, int64_t round)
{
    if (!round)
        m->begins[0] = 0;
    for (int port = 0; port < PORTS; port++) {
        int32_t *begin = &m->begins[round * PORTS + port];
        int64_t count = *begin;
        count += in_a_row(m) ? stretches_of(m, port, (Stretch *)m->moves + count)
                             : moves_of(m, bands, port, (Move *)m->moves + count);
        for (int what = LEAVES_NEAR; what <= COMES; what++)
            *place_of(m, what, round, port) = *begin;
        begin[1] = (int32_t)count;
    }
}

/* ------------------------------------------------------------------------------------------------------------ a row */

static inline __attribute__((always_inline)) void fetch_to_move(const March *m, const Move *move, int port)
{
    if (m->lines > MANY_LINES)
        return;
    const double *head = m->heads + move->packet * m->slot_step, *cell = m->cells + move->from * m->core_step;
    for (int row = TIME; row <= STAGES; row++) {
        fetch(head + row * m->head_row, m->lines);
        fetch(cell + row * m->row, m->lines);
    }
    fetch(cell + RAMP_OUT * m->row, m->lines);
    fetch(cell + (LINK_FREE + port) * m->row, m->lines);
    fetch(m->cells + RAMP_IN * m->row + move->to * m->core_step, m->lines);
}

static inline void leave_row_by(const March *m, int64_t round, int port, int64_t row, int what)
{
    int32_t *place = place_of(m, what, round, port);
    const Move *move = (Move *)m->moves + *place, *end = (Move *)m->moves + m->begins[round * PORTS + port + 1];
    __builtin_prefetch(move + NEXT_MOVES);
    for (; move < end && move->row < row; move++)
        ;
    for (; move < end && move->row == row; move++) {
        if (move + NEXT < end)
            fetch_to_move(m, move + NEXT, port);
        double *cell = m->cells + move->from * m->core_step;
        leave_row(m, m->lines, cell, cell + (LINK_FREE + port) * m->row, m->heads + move->packet * m->slot_step, 1,
                  m->busy[move->kind & ASKS], move->kind >> 1);
    }
    *place = (int32_t)(move - (Move *)m->moves);
}

static inline void come_to_row_by(const March *m, int64_t round, int port, int64_t row, int what)
{
    int32_t *place = place_of(m, what, round, port);
    const Move *move = (Move *)m->moves + *place, *end = (Move *)m->moves + m->begins[round * PORTS + port + 1];
    row = port == NORTH ? row + 1 : port == SOUTH ? row - 1 : row; /* that they come from */
    for (; move < end && move->row < row; move++)
        ;
    for (; move < end && move->row == row; move++)
        come_in_row(m->lines, m->heads + move->packet * m->slot_step, 1,
                    m->cells + RAMP_IN * m->row + move->to * m->core_step, m->busy[move->kind & ASKS]);
    *place = (int32_t)(move - (Move *)m->moves);
}

/* Packets of all marches leave the cores of a row. Along a line they come in as well, as in move_in_rows. */
static void leave_row_in(const Marches *all, const Bands *bands, int64_t round, int64_t row, int what)
{
    for (int64_t n = 0; n < all->many; n++) {
        const March *m = all->marches[n];
        if (!in_a_row(m)) {
            for (int port = 0; port < PORTS; port++)
                leave_row_by(m, round, port, row, what);
            continue;
        }
        const Stretch *one = (Stretch *)m->moves + m->begins[round * PORTS];
        const Stretch *end = (Stretch *)m->moves + m->begins[(round + 1) * PORTS];
        for (const Stretch *stretch = one; stretch < end; stretch++)
            leave_stretch(m, stretch, row - bands->top);
        for (const Stretch *stretch = one; m->timed && stretch < end; stretch++)
            come_in_stretch(m, stretch, row - bands->top);
    }
}

static void come_to_row_in(const Marches *all, int64_t round, int64_t row, int what)
{
    for (int64_t n = 0; n < all->many; n++)
        for (int port = 0; all->marches[n]->timed && !in_a_row(all->marches[n]) && port < PORTS; port++)
            come_to_row_by(all->marches[n], round, port, row, what);
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

/* All rounds of rows that need no message. */
void move_in_bands(const Marches *all, const Bands *bands)
{
    for (int64_t front = bands->top; front < bands->bottom + bands->rounds; front++)
        for (int64_t round = 0; round < bands->rounds && front - round >= bands->top; round++) {
            const int64_t row = front - round;
            if (row >= leaves_from(bands, round) && row < leaves_until(bands, round))
                leave_row_in(all, bands, round, row, LEAVES);
            if (row - 1 >= comes_from(bands, round) && row - 1 < comes_until(bands, round))
                come_to_row_in(all, round, row - 1, COMES);
        }
}

/* What is left of a round: rows that are so near to an edge that they needed what came in with the rounds before. */
void leave_at_edges(const Marches *all, const Bands *bands, int64_t round)
{
    for (int64_t row = bands->top; row < leaves_from(bands, round); row++)
        leave_row_in(all, bands, round, row, LEAVES_NEAR);
    for (int64_t row = leaves_until(bands, round); row < bands->bottom; row++)
        leave_row_in(all, bands, round, row, LEAVES);
}

void come_in_at_edges(const Marches *all, const Bands *bands, int64_t round)
{
    for (int64_t row = bands->top; row < comes_from(bands, round); row++)
        come_to_row_in(all, round, row, COMES_NEAR);
    for (int64_t row = comes_until(bands, round); row < bands->bottom; row++)
        come_to_row_in(all, round, row, COMES);
}

/* Headers of packets that go over an edge of the block go to a message, or come from there; how many these are. */
int64_t move_headers_of(const March *m, const Bands *bands, int64_t round, int port, int coming, double *data,
                        int64_t count)
{
    if (in_a_row(m) || (port != NORTH && port != SOUTH))
        return 0;
    const int64_t row = port == NORTH ? (coming ? bands->bottom : bands->top)
                                      : (coming ? bands->top - 1 : bands->bottom - 1);
    const Move *begin = (Move *)m->moves + m->begins[round * PORTS + port];
    const Move *end = (Move *)m->moves + m->begins[round * PORTS + port + 1], *move = begin;
    int64_t place = 0;
    if (row > bands->top)
        for (move = end; move > begin && move[-1].row >= row; move--)
            ;
    for (; move < end && move->row <= row; move++) {
        if (move->row < row)
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
