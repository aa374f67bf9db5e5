/* What convoy.py and porter.py do in each round of an exchange: links, ramps and the clocks of cores.

   The NumPy code there is the definition, and what runs where this is not built. Both give the same bits: every number
   is one sum or one maximum of doubles, in the same order, and the compiler may fuse none of them. */

#include "march.h"

/* Do lines lie side by side, and not the cores of each? */
static int side_by_side(const March *m)
{
    return m->line_step == 1 && m->head_line == 1 && m->line_step < m->core_step;
}

/* Convoy._leave, Porter.leave: a packet leaves a core by a link; those that are sent on, once software has them. */
static inline void leave_core(const March *m, double *cell, double *link, const double *head, int64_t far, double *to,
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

/* The packets of a convoy; their headers go from seat to seat. */
static void leave_by(const March *const march, int port)
{
    const March m = *march; /* whatever is written below changes nothing of it */
    const Seats before = m.seats[(m.now - 1) & 1], seats = m.seats[m.now & 1];
    const int64_t low = port * m.cores, high = low + m.fill[port], room = PORTS * m.cores;
    for (int64_t seat = low; seat < high; seat++) {
        const int32_t at = m.local[seats.core[seat]], from = m.from[seat];
        if (at < 0)
            continue;
        const double *head = from < 0 ? m.waiting + m.packets[seats.leg[seat]] : before.head + from;
        leave_core(&m, m.cells + at, m.cells + (LINK_FREE + port) * m.row + at, head, from < 0 ? m.cores : room,
                   seats.head + seat, room, m.busy[seats.kind[seat] & ASKS], seats.kind[seat] >> 1);
    }
}

/* Several lines at once: compilers make nothing of it that gives other bits, but not by themselves from a loop. */
enum { LANES = 2 };
typedef double Lanes __attribute__((vector_size(8 * LANES), aligned(8)));
typedef int64_t Mask __attribute__((vector_size(8 * LANES), aligned(8)));

static inline Lanes either(Mask mask, Lanes one, Lanes other)
{
    return (Lanes)((mask & (Mask)one) | (~mask & (Mask)other));
}

static inline Lanes later_of(Lanes one, Lanes other)
{
    return either((Mask)(one > other), one, other);
}

/* leave_core for a packet of many lines, whose numbers lie side by side. */
static void leave_side_by_side(const March *m, int64_t lines, double *cell, double *link, double *head, double busy,
                               double touched)
{
    const int64_t row = m->row, head_row = m->head_row;
    const double software = m->beta * touched;
    int64_t line = 0;
    for (; line + LANES <= lines; line += LANES, cell += LANES, link += LANES, head += LANES) {
        Lanes *time = (Lanes *)(cell + TIME * row), *hops = (Lanes *)(cell + HOPS * row);
        Lanes *stages = (Lanes *)(cell + STAGES * row), *ramp = (Lanes *)(cell + RAMP_OUT * row);
        Lanes *its = (Lanes *)head, *its_hops = (Lanes *)(head + HOPS * head_row);
        Lanes *its_stages = (Lanes *)(head + STAGES * head_row);
        const Mask later = (Mask)(*its > *time);
        const Lanes passed = either(later, *its_hops, *hops), staged = either(later, *its_stages, *stages) + touched;
        Lanes now = either(later, *its, *time) + software;
        *time = now, *hops = passed, *stages = staged;
        *its_hops = passed + 1.0, *its_stages = staged;
        if (m->timed) {
            now = later_of(later_of(now, *ramp), *(Lanes *)link);
            *ramp = *(Lanes *)link = now + busy;
        }
        *its = now + m->alpha;
    }
    for (; line < lines; line++, cell++, link++, head++)
        leave_core(m, cell, link, head, head_row, head, head_row, busy, touched);
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

enum { AHEAD = 16 }; /* seats: what is needed for that one is asked of the memory now */

/* Packets lie in the order of their readers, cores at any distance: without this each waits for the memory. */
static inline __attribute__((always_inline)) void fetch_ahead(const March *m, Seats seats, int port, int64_t seat,
                                                              int64_t end)
{
    if (seat >= end || m->from_line[seats.core[seat]] >= m->to_line[seats.core[seat]])
        return; /* it is another rank's */
    const double *head = m->heads + m->packets[seats.leg[seat]] * m->slot_step;
    const double *cell = m->cells + m->local[seats.core[seat]] * m->core_step;
    for (int row = TIME; row <= STAGES; row++) {
        __builtin_prefetch(head + row * m->head_row, 1);
        __builtin_prefetch(cell + row * m->row, 1);
    }
    __builtin_prefetch(cell + RAMP_OUT * m->row, 1);
    __builtin_prefetch(cell + (LINK_FREE + port) * m->row, 1);
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
        fetch_ahead(&m, seats, port, seat + AHEAD, high);
        leave_side_by_side(&m, m.to_line[core] - line, m.cells + cell, m.cells + (LINK_FREE + port) * m.row + cell,
                           m.heads + line + m.packets[seats.leg[seat]] * m.slot_step,
                           m.busy[seats.kind[seat] & ASKS], seats.kind[seat] >> 1);
    }
}

/* They come in from the other side, by the ramps of the cores that they get to. */
static inline void come_in_core(double *head, double *ramp, double busy)
{
    *ramp = *head = (*head > *ramp ? *head : *ramp) + busy;
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
        const int64_t then = seat + AHEAD, next = then < high ? seats.core[then] + step : to;
        if (then < high && m.from_line[next] < m.to_line[next]) {
            __builtin_prefetch(m.heads + m.packets[seats.leg[then]] * m.slot_step, 1);
            __builtin_prefetch(m.cells + RAMP_IN * m.row + m.local[next] * m.core_step, 1);
        }
        double *head = m.heads + line + m.packets[seats.leg[seat]] * m.slot_step;
        double *ramp = m.cells + RAMP_IN * m.row + line + m.local[to] * m.core_step;
        int64_t n = 0;
        for (; n + LANES <= lines; n += LANES, head += LANES, ramp += LANES)
            *(Lanes *)ramp = *(Lanes *)head = later_of(*(Lanes *)head, *(Lanes *)ramp) + busy;
        for (; n < lines; n++)
            come_in_core(head++, ramp++, busy);
    }
}

/* What crosses the links and the ramps is entered, and who goes over the edge of the block is noted. */
static void cross(March *march, int port, Crossing *sum)
{
    const March m = *march;
    const Seats seats = m.seats[m.now & 1];
    const int64_t low = port * m.cores, high = low + m.fill[port], step = step_of(march, port);
    int64_t over = 0, into = 0, left = 0, fresh = 0, here = 0;
    for (int64_t seat = low; seat < high; seat++) {
        const int32_t core = seats.core[seat], at = m.local[core], to = m.local[core + step];
        const int64_t nbytes = m.nbytes[seats.kind[seat] & ASKS];
        if (at >= 0) {
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

/* The same for all lines that have the core in this block. */
static void cross_lines(March *march, int port, Crossing *sum)
{
    const March m = *march;
    const Seats seats = m.seats[m.now & 1];
    const int64_t low = port * m.cores, high = low + m.fill[port], step = step_of(march, port);
    int64_t over = 0, into = 0;
    for (int64_t seat = low; seat < high; seat++) {
        const int64_t core = seats.core[seat], to = core + step, nbytes = m.nbytes[seats.kind[seat] & ASKS];
        const int32_t from_line = m.from_line[core], to_line = m.to_line[core];
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
    for (int port = 0; port < PORTS; port++) {
        (m->heads ? leave_lines_by : leave_by)(m, port);
        (m->heads ? cross_lines : cross)(m, port, sum);
    }
}

void come_in_at_cores(March *m)
{
    for (int port = 0; m->timed && port < PORTS; port++)
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
