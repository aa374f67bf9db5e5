/* What convoy.py and porter.py do in each round of an exchange: links, ramps and the clocks of cores.

   The NumPy code there is the definition, and what runs where this is not built. Both give the same bits: every number
   is one sum or one maximum of doubles, in the same order, and the compiler may fuse none of them. */

#include "hop.h"

/* The packets of a convoy, whose headers go from seat to seat. What crosses the links and the ramps is entered, and who
   goes over the edge of the block is noted. */
static void leave_by(March *march, int port, Crossing *sum)
{
    const March m = *march; /* whatever is written below changes nothing of it */
    const Seats before = m.seats[(m.now - 1) & 1], seats = m.seats[m.now & 1];
    const int64_t low = port * m.cores, high = low + m.fill[port], room = PORTS * m.cores, step = step_of(march, port);
    int64_t over = 0, into = 0, left = 0, fresh = 0, here = 0;
    for (int64_t seat = low; seat < high; seat++) {
        const int32_t core = seats.core[seat], at = m.local[core], to = m.local[core + step], from = m.from[seat];
        const int asks = seats.kind[seat] & ASKS;
        const int64_t nbytes = m.nbytes[asks];
        if (at >= 0) {
            const double *head = from < 0 ? m.waiting + m.packets[seats.leg[seat]] : before.head + from;
            leave_core(&m, m.cells + at, m.cells + (LINK_FREE + port) * m.row + at, head, from < 0 ? m.cores : room,
                       seats.head + seat, room, m.busy[asks], seats.kind[seat] >> 1);
            m.crossed[port * m.links + at] += nbytes;
            left++;
            fresh += !(seats.kind[seat] & TOUCHED);
        }
        if (to >= 0) {
            m.entered[to] += nbytes;
            here++;
        }
        if (at >= 0 && to < 0)
            m.leaving[low + over++] = (int32_t)seat;
        if (at < 0 && to >= 0)
            m.coming[low + into++] = (int32_t)seat;
    }
    march->over[port] = over, march->into[port] = into;
    sum->left += left, sum->fresh += fresh, sum->here += here;
}

/* Packets of all lines, which do the same; their headers stay where they are. */
static inline void leave_line(const March *m, Seats seats, int port, int64_t seat, int64_t line)
{
    const int32_t core = seats.core[seat];
    if (line < m->from_line[core] || line >= m->to_line[core])
        return;
    const int64_t cell = line * m->line_step + m->local[core] * m->core_step;
    double *head = m->heads + line * m->head_line + m->packets[seats.leg[seat]] * m->slot_step;
    leave_core(m, m->cells + cell, m->cells + (LINK_FREE + port) * m->row + cell, head, m->head_row, head, m->head_row,
               m->busy[seats.kind[seat] & ASKS], seats.kind[seat] >> 1);
}

static inline __attribute__((always_inline)) void fetch_to_leave(const March *m, Seats seats, int port, int64_t seat)
{
    const int32_t core = seats.core[seat];
    const int64_t line = m->from_line[core], lines = m->to_line[core] - line;
    if (lines <= 0 || lines > MANY_LINES)
        return;
    const double *head = m->heads + m->packets[seats.leg[seat]] * m->slot_step + line;
    const double *cell = m->cells + m->local[core] * m->core_step + line;
    for (int row = TIME; row <= STAGES; row++) {
        fetch(head + row * m->head_row, lines);
        fetch(cell + row * m->row, lines);
    }
    fetch(cell + RAMP_OUT * m->row, lines);
    fetch(cell + (LINK_FREE + port) * m->row, lines);
}

static inline __attribute__((always_inline)) void fetch_to_come_in(const March *m, Seats seats, int64_t step,
                                                                   int64_t seat)
{
    const int64_t core = seats.core[seat] + step, line = m->from_line[core], lines = m->to_line[core] - line;
    if (lines <= 0 || lines > MANY_LINES)
        return;
    fetch(m->heads + m->packets[seats.leg[seat]] * m->slot_step + line, lines);
    fetch(m->cells + RAMP_IN * m->row + m->local[core] * m->core_step + line, lines);
}

static void leave_lines_by(const March *const march, int port)
{
    const March m = *march;
    const Seats seats = m.seats[m.now & 1];
    const int64_t low = port * m.cores, high = low + m.fill[port];
    if (!side_by_side(march)) { /* what lies side by side is gone through first */
        for (int64_t line = 0; line < m.lines; line++)
            for (int64_t seat = low; seat < high; seat++)
                leave_line(&m, seats, port, seat, line);
        return;
    }
    for (int64_t seat = low; seat < high; seat++) {
        const int32_t core = seats.core[seat];
        const int64_t line = m.from_line[core], cell = line + m.local[core] * m.core_step;
        if (seat + AHEAD < high)
            fetch_to_leave(&m, seats, port, seat + AHEAD);
        leave_row(&m, m.to_line[core] - line, m.cells + cell, m.cells + (LINK_FREE + port) * m.row + cell,
                  m.heads + line + m.packets[seats.leg[seat]] * m.slot_step, 1, m.busy[seats.kind[seat] & ASKS],
                  seats.kind[seat] >> 1);
    }
}

static void come_in_by(const March *const march, int port)
{
    const March m = *march;
    const Seats seats = m.seats[m.now & 1];
    const int64_t low = port * m.cores, high = low + m.fill[port], step = step_of(march, port);
    for (int64_t seat = low; seat < high; seat++) {
        const int32_t to = m.local[seats.core[seat] + step];
        if (to >= 0)
            come_in_core(seats.head + seat, m.cells + RAMP_IN * m.row + to, m.busy[seats.kind[seat] & ASKS]);
    }
}

static inline void come_in_line(const March *m, Seats seats, int64_t step, int64_t seat, int64_t line)
{
    const int64_t to = seats.core[seat] + step;
    if (line >= m->from_line[to] && line < m->to_line[to])
        come_in_core(m->heads + line * m->head_line + m->packets[seats.leg[seat]] * m->slot_step,
                     m->cells + RAMP_IN * m->row + line * m->line_step + m->local[to] * m->core_step,
                     m->busy[seats.kind[seat] & ASKS]);
}

static void come_in_lines_by(const March *const march, int port)
{
    const March m = *march;
    const Seats seats = m.seats[m.now & 1];
    const int64_t low = port * m.cores, high = low + m.fill[port], step = step_of(march, port);
    if (!side_by_side(march)) {
        for (int64_t line = 0; line < m.lines; line++)
            for (int64_t seat = low; seat < high; seat++)
                come_in_line(&m, seats, step, seat, line);
        return;
    }
    for (int64_t seat = low; seat < high; seat++) {
        const int64_t to = seats.core[seat] + step, line = m.from_line[to], lines = m.to_line[to] - line;
        const double busy = m.busy[seats.kind[seat] & ASKS];
        if (seat + AHEAD < high)
            fetch_to_come_in(&m, seats, step, seat + AHEAD);
        come_in_row(lines, m.heads + line + m.packets[seats.leg[seat]] * m.slot_step, 1,
                    m.cells + RAMP_IN * m.row + line + m.local[to] * m.core_step, busy);
    }
}

/* ------------------------------------------------------------------------------------------------- cores in a row

   Where the cores of a line lie side by side, and so its packets, neighbours that pass packets on the same way are gone
   through as one: all that is done for a line in a round is a few stretches of memory. */

/* Does this seat's packet follow that of the one before, as all of a stretch do? */
static int follows(const March *m, Seats seats, int64_t seat, const Stretch *stretch)
{
    return seats.core[seat] == seats.core[seat - 1] + 1 && seats.kind[seat] == stretch->kind &&
           m->packets[seats.leg[seat]] == m->packets[seats.leg[seat - 1]] + stretch->step;
}

int64_t stretches_of(const March *m, int port, Stretch *stretches)
{
    const Seats seats = m->seats[m->now & 1];
    const int64_t low = port * m->cores, high = low + m->fill[port];
    int64_t count = 0;
    for (int64_t seat = low; seat < high;) {
        Stretch *stretch = &stretches[count++];
        *stretch = (Stretch){seats.core[seat], m->packets[seats.leg[seat]], 1, 1, port, seats.kind[seat]};
        if (++seat < high)
            stretch->step = m->packets[seats.leg[seat]] < stretch->slot ? -1 : 1;
        for (; seat < high && follows(m, seats, seat, stretch); seat++)
            stretch->count++;
    }
    return count;
}

/* All lines' packets leave, and get to the next core, too: this is the first of what is carried out together, so it has
   its turn with the ramp of each core before all others. */
static void move_in_rows(const March *const march)
{
    const March m = *march;
    int64_t count = 0;
    for (int port = 0; port < PORTS; port++)
        count += stretches_of(march, port, m.stretches + count);
    for (int64_t line = 0; line < m.lines; line++) {
        for (int64_t n = 0; n < count; n++)
            leave_stretch(&m, &m.stretches[n], line);
        for (int64_t n = 0; m.timed && n < count; n++)
            come_in_stretch(&m, &m.stretches[n], line);
    }
}

void cross_lines(March *march, int port, Crossing *sum)
{
    const March m = *march;
    const Seats seats = m.seats[m.now & 1];
    const int64_t low = port * m.cores, high = low + m.fill[port], step = step_of(march, port);
    int64_t over = 0, into = 0;
    for (int64_t seat = low; seat < high; seat++) {
        const int64_t core = seats.core[seat], to = core + step, nbytes = m.nbytes[seats.kind[seat] & ASKS];
        const int32_t from_line = m.from_line[core], to_line = m.to_line[core];
        if (seat + AHEAD < high) {
            __builtin_prefetch(&m.crossed[port * m.links + seats.core[seat + AHEAD]], 1);
            __builtin_prefetch(&m.entered[seats.core[seat + AHEAD] + step], 1);
        }
        m.crossed[port * m.links + core] += nbytes;
        m.entered[to] += nbytes;
        sum->left += to_line - from_line;
        sum->fresh += seats.kind[seat] & TOUCHED ? 0 : to_line - from_line;
        sum->here += m.to_line[to] - m.from_line[to];
        if (from_line == m.from_line[to] && to_line == m.to_line[to])
            continue;
        m.leaving[low + over++] = (int32_t)seat; /* for some line, one or the other; which, march.py finds */
        m.coming[low + into++] = (int32_t)seat;
    }
    march->over[port] = over, march->into[port] = into;
}

void leave_cores(March *m, Crossing *sum)
{
    if (in_a_row(m))
        move_in_rows(m);
    for (int port = 0; port < PORTS; port++) {
        if (m->heads && !in_a_row(m))
            leave_lines_by(m, port);
        (m->heads ? cross_lines : leave_by)(m, port, sum);
    }
}

void come_in_at_cores(March *m)
{
    for (int port = 0; m->timed && !in_a_row(m) && port < PORTS; port++)
        (m->heads ? come_in_lines_by : come_in_by)(m, port);
}

/* ---------------------------------------------------------------------------------------------- as Python calls it */

/* Packets leave. Returns (how many leave cores of this block, how many of them fresh, how many get to its cores). */
PyObject *march_leave(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    March *m = march_of(given, count);
    if (!m)
        return NULL;
    Crossing sum = {0, 0, 0};
    leave_cores(m, &sum);
    return Py_BuildValue("LLL", (long long)sum.left, (long long)sum.fresh, (long long)sum.here);
}

/* And get to the next core, with which the round ends. */
PyObject *march_come_in(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    March *m = march_of(given, count);
    if (!m)
        return NULL;
    come_in_at_cores(m);
    end_round(m);
    return Py_BuildValue("");
}
