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

/* Numbers that lie in the order of the lanes, or of which each lies before the last. */
static inline Lanes load(const double *first, int rising)
{
    const Lanes both = *(const Lanes *)(rising ? first : first - (LANES - 1));
    return rising ? both : (Lanes){both[1], both[0]};
}

static inline void store(double *first, Lanes both, int rising)
{
    *(Lanes *)(rising ? first : first - (LANES - 1)) = rising ? both : (Lanes){both[1], both[0]};
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

/* Packets lie in the order of their readers, cores at any distance. Of many lines the processor itself fetches what comes
   next. */
enum { MANY_LINES = 64, CACHE_LINE = 64 }; /* lines, bytes */

static inline __attribute__((always_inline)) void fetch(const double *first, int64_t count)
{
    const char *end = (const char *)(first + count);
    for (const char *line = (const char *)((intptr_t)first & -CACHE_LINE); line < end; line += CACHE_LINE)
        __builtin_prefetch(line, 1);
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

/* They come in from the other side, by the ramps of the cores that they get to. */
static inline void come_in_core(double *head, double *ramp, double busy)
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

static int in_a_row(const March *m)
{
    return m->stretches && m->core_step == 1 && m->slot_step == 1;
}

/* Does this seat's packet follow that of the one before, as all of a stretch do? */
static int follows(const March *m, Seats seats, int64_t seat, const Stretch *stretch)
{
    return seats.core[seat] == seats.core[seat - 1] + 1 && seats.kind[seat] == stretch->kind &&
           m->packets[seats.leg[seat]] == m->packets[seats.leg[seat - 1]] + stretch->step;
}

/* Those that leave by a port, from this place of the list on. Returns how many there are then. */
static int64_t stretches_of(const March *m, int port, int64_t count)
{
    const Seats seats = m->seats[m->now & 1];
    const int64_t low = port * m->cores, high = low + m->fill[port];
    for (int64_t seat = low; seat < high;) {
        Stretch *stretch = &m->stretches[count++];
        *stretch = (Stretch){seats.core[seat], m->packets[seats.leg[seat]], 1, 1, port, seats.kind[seat]};
        if (++seat < high)
            stretch->step = m->packets[seats.leg[seat]] < stretch->slot ? -1 : 1;
        for (; seat < high && follows(m, seats, seat, stretch); seat++)
            stretch->count++;
    }
    return count;
}

static inline void leave_stretch(const March *m, const Stretch *one, int64_t line)
{
    double *cell = m->cells + line * m->line_step + m->local[one->core];
    double *link = cell + (LINK_FREE + one->port) * m->row, *head = m->heads + line * m->head_line + one->slot;
    const double busy = m->busy[one->kind & ASKS], touched = one->kind >> 1;
    if (one->step > 0)
        leave_row(m, one->count, cell, link, head, 1, busy, touched);
    else
        leave_row(m, one->count, cell, link, head, 0, busy, touched);
}

static inline void come_in_stretch(const March *m, const Stretch *one, int64_t line)
{
    double *head = m->heads + line * m->head_line + one->slot;
    double *ramp = m->cells + RAMP_IN * m->row + line * m->line_step + m->local[one->core + step_of(m, one->port)];
    if (one->step > 0)
        come_in_row(one->count, head, 1, ramp, m->busy[one->kind & ASKS]);
    else
        come_in_row(one->count, head, 0, ramp, m->busy[one->kind & ASKS]);
}

/* All lines' packets leave, and get to the next core, too: this is the first of what is carried out together, so it has
   its turn with the ramp of each core before all others. */
static void move_in_rows(const March *const march)
{
    const March m = *march;
    int64_t count = 0;
    for (int port = 0; port < PORTS; port++)
        count = stretches_of(march, port, count);
    for (int64_t line = 0; line < m.lines; line++) {
        for (int64_t n = 0; n < count; n++)
            leave_stretch(&m, &m.stretches[n], line);
        for (int64_t n = 0; m.timed && n < count; n++)
            come_in_stretch(&m, &m.stretches[n], line);
    }
}

/* What crosses the links and the ramps of all lines that have the core in this block is entered. */
static void cross_lines(March *march, int port, Crossing *sum)
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
