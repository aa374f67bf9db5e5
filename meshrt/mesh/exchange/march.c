/* What itinerary.py and convoy.py do in each round of an exchange between any cores: who moves, and what time it takes.

   The NumPy code there is the definition, and what runs where this is not built. Both give the same bits: every number
   is one sum or one maximum of doubles, in the same order, and the compiler may fuse none of them.

   Packets that leave by a port lie in the order of their cores. As each of them moves by the same step they stay in that
   order: a round goes through them, and through the doors at which somebody waits, once from front to back, and so
   through the clocks of the cores. */

#include "../stable.h"
#include <stdint.h>

enum { PORTS = 4, LEGS = 4 };                             /* as in itinerary.py */
enum { TIME, HOPS, STAGES, LINK_FREE, RAMP_IN = 7, RAMP_OUT = 8 };    /* rows of cells, as in clock.py */
enum { TILE, REQUEST, NOTHING };                                      /* what a core holds for others */
enum { ASKS = 1, TOUCHED = 2 };                                       /* of a packet: bears no tile; software had it */

/* Packets under way, [port][place]; their headers [TIME, HOPS, STAGES][port][place]. */
typedef struct {
    int32_t *core; /* where it is, -1: at the end of its leg */
    int32_t *leg, *stop; /* the first round after it */
    uint8_t *kind;
    double *head;
} Seats;

typedef struct {
    int32_t core, leg;
} Ended;

/* As in march.py; pointers, whole numbers and doubles of eight bytes each. */
typedef struct {
    int64_t width, cores, legs;
    const int32_t *doors, *lengths, *packets; /* of each leg: Legs */
    const uint8_t *first, *tiles;
    int32_t *start, *came, *next;
    int32_t *fore, *last; /* at each door: the legs that wait, -1 for none */
    uint64_t *open, *some; /* doors at which somebody waits, a bit each; words of them that are not zero */
    int32_t *held[2];      /* tiles of others at each core, and requests */
    Seats seats[2];        /* of this round, and of that before, in turn */
    int32_t *from;         /* where each packet's header is: a seat of the round before, -1: it waited */
    Ended *ended;
    int32_t *leaving, *coming; /* seats of packets that cross the block's edge, [port][place] */
    const int32_t *local;      /* of each core: its place in the block, -1 if it is another rank's */
    double *cells; /* clocks [row][place] */
    int64_t row;   /* doubles of a row of them */
    double *waiting, *heads; /* headers [TIME, HOPS, STAGES][packet] of those that wait, or NULL and of all, on all lines */
    int64_t lines, line_step, core_step, head_row, head_line, slot_step; /* and how far apart they are, and their cells */
    int64_t *crossed, *entered;  /* bytes over the links [port][links], and into each core */
    int64_t links, nbytes[2], timed;
    double busy[2], alpha, beta; /* cycles: a link with a tile and with a request; a hop; software */
    int64_t now, most[2], fill[PORTS], over[PORTS], into[PORTS]; /* packets on seats, and of those at the edge, by port */
} March;

typedef struct {
    int64_t left, fresh, here; /* packets that leave cores of this block, of them those that nobody touched; that come */
} Crossing;

/* From a core to the next one by a port. */
static inline int64_t step_of(const March *m, int port)
{
    const int64_t steps[PORTS] = {-m->width, 1, m->width, -1};
    return steps[port];
}

/* What a packet that waits for a leg is to its core (legs.ways). */
static int waits(const March *m, int32_t leg)
{
    if (m->doors[leg] < 0 || m->first[leg])
        return NOTHING;
    return m->tiles[leg] && m->tiles[leg - 1] ? TILE : REQUEST; /* a tile that is at its owner's counts as a request */
}

/* ------------------------------------------------------------------------------------------------------------ queues */

static void append(March *m, int32_t leg)
{
    const int32_t door = m->doors[leg];
    m->next[leg] = -1;
    if (m->last[door] < 0) {
        m->fore[door] = leg;
        m->open[door >> 6] |= (uint64_t)1 << (door & 63);
        m->some[door >> 12] |= (uint64_t)1 << (door >> 6 & 63);
    } else
        m->next[m->last[door]] = leg;
    m->last[door] = leg;
}

/* The first that waits at a door begins its leg. */
static int32_t begin(March *m, int64_t door)
{
    const int32_t leg = m->fore[door];
    m->fore[door] = m->next[leg];
    if (m->fore[door] < 0) {
        m->last[door] = -1;
        m->open[door >> 6] &= ~((uint64_t)1 << (door & 63));
        if (!m->open[door >> 6])
            m->some[door >> 12] &= ~((uint64_t)1 << (door >> 6 & 63));
    }
    m->start[leg] = (int32_t)m->now;
    return leg;
}

/* The first door from this one on at which somebody waits; `end` if there is none before it. */
static int64_t next_open(const March *m, int64_t door, int64_t end)
{
    while (door < end) {
        const uint64_t bits = m->open[door >> 6] >> (door & 63);
        if (bits) {
            door += __builtin_ctzll(bits);
            return door < end ? door : end;
        }
        door = (door >> 6) + 1; /* of words */
        uint64_t words = door & 63 ? m->some[door >> 6] >> (door & 63) : 0;
        if (!words) {
            door = (door + 63) >> 6; /* of words of words */
            while (door << 12 < end && !m->some[door])
                door++;
            if (door << 12 >= end)
                return end;
            words = m->some[door];
            door <<= 6;
        }
        door = (door + __builtin_ctzll(words)) << 6;
    }
    return end;
}

/* Itinerary._since: of two that got to a core together, does this one queue before the other? */
static int in_front(const March *m, int32_t leg, int32_t other)
{
    int32_t a = leg - 1, b = other - 1;
    for (int n = 0; n < LEGS; n++) {
        while (m->came[a] == m->start[a] - 1)
            a--;
        while (m->came[b] == m->start[b] - 1)
            b--;
        if (m->start[a] != m->start[b])
            return m->start[a] > m->start[b];
        if (m->came[a] != m->came[b])
            return m->came[a] < m->came[b];
        a -= !m->first[a], b -= !m->first[b];
    }
    return m->packets[leg] < m->packets[other];
}

/* Itinerary._leave: packets at the ends of their legs queue for the next, those at each core in turn. */
static void queue_up(March *m, const int64_t *ended)
{
    int64_t at[PORTS] = {0};
    for (;;) {
        int32_t core = INT32_MAX, legs[PORTS];
        int count = 0;
        for (int port = 0; port < PORTS; port++)
            if (at[port] < ended[port] && m->ended[port * m->cores + at[port]].core < core)
                core = m->ended[port * m->cores + at[port]].core;
        if (core == INT32_MAX)
            return;
        for (int port = 0; port < PORTS; port++) {
            const Ended *one = &m->ended[port * m->cores + at[port]];
            if (at[port] == ended[port] || one->core != core)
                continue;
            at[port]++;
            int place = count++;
            for (; place && in_front(m, one->leg, legs[place - 1]); place--)
                legs[place] = legs[place - 1];
            legs[place] = one->leg;
        }
        for (int n = 0; n < count; n++) {
            m->came[legs[n]] = (int32_t)m->now;
            append(m, legs[n]);
        }
    }
}

/* -------------------------------------------------------------------------------------------------------- the rounds */

/* Itinerary._enter by a port: those that go straight on, and between them those that begin where nobody comes through. */
static int64_t enter_by(March *march, int port)
{
    const March m = *march;
    const Seats before = m.seats[(m.now - 1) & 1], seats = m.seats[m.now & 1];
    const int64_t low = port * m.cores, high = low + m.fill[port], end = low + m.cores;
    int64_t place = low, next = low;
    for (int64_t door = next_open(march, low, end);; door = next_open(march, door + 1, end)) {
        const int64_t core = door - low; /* m.cores: behind all */
        for (; next < high && before.core[next] < core; next++) {
            if (before.core[next] < 0)
                continue;
            const uint8_t kind = before.kind[next];
            seats.core[place] = before.core[next];
            seats.leg[place] = before.leg[next];
            seats.stop[place] = before.stop[next];
            seats.kind[place] = kind | TOUCHED;
            m.from[place++] = (int32_t)next;
            m.held[kind & ASKS][before.core[next]]--;
        }
        if (door == end)
            break;
        if (next < high && before.core[next] == core)
            continue;
        const int32_t leg = begin(march, door);
        seats.core[place] = (int32_t)core;
        seats.leg[place] = leg;
        seats.stop[place] = m.lengths[leg] + (int32_t)m.now;
        seats.kind[place] = (uint8_t)((m.tiles[leg] ? 0 : ASKS) | (m.first[leg] ? 0 : TOUCHED));
        m.from[place++] = -1;
        const int what = waits(march, leg);
        if (what != NOTHING)
            m.held[what][core]--;
    }
    return march->fill[port] = place - low;
}

/* Itinerary._hold: what moves is held where it gets to. */
static void hold(March *march, int port)
{
    const March m = *march;
    const Seats seats = m.seats[m.now & 1];
    const int64_t low = port * m.cores, high = low + m.fill[port], step = step_of(march, port);
    int64_t most[2] = {m.most[TILE], m.most[REQUEST]};
    for (int64_t seat = low; seat < high; seat++) {
        const int ends = seats.stop[seat] == m.now + 1;
        const int what = ends ? waits(march, seats.leg[seat] + 1) : seats.kind[seat] & ASKS;
        if (what == NOTHING)
            continue;
        const int64_t held = ++m.held[what][seats.core[seat] + step];
        most[what] = held > most[what] ? held : most[what];
    }
    march->most[TILE] = most[TILE], march->most[REQUEST] = most[REQUEST];
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

/* Packets of all lines, which do the same; their headers stay where they are. */
static inline void leave_line(const March *m, Seats seats, int port, int64_t seat, int64_t line)
{
    const int32_t at = m->local[seats.core[seat]];
    if (at < 0)
        return;
    const int64_t cell = line * m->line_step + at * m->core_step;
    double *head = m->heads + line * m->head_line + m->packets[seats.leg[seat]] * m->slot_step;
    leave_core(m, m->cells + cell, m->cells + (LINK_FREE + port) * m->row + cell, head, m->head_row, head, m->head_row,
               m->busy[seats.kind[seat] & ASKS], seats.kind[seat] >> 1);
}

static void leave_lines_by(const March *const march, int port)
{
    const March m = *march;
    const Seats seats = m.seats[m.now & 1];
    const int64_t low = port * m.cores, high = low + m.fill[port];
    if (m.line_step > m.core_step) /* what lies side by side is gone through first */
        for (int64_t line = 0; line < m.lines; line++)
            for (int64_t seat = low; seat < high; seat++)
                leave_line(&m, seats, port, seat, line);
    else
        for (int64_t seat = low; seat < high; seat++)
            for (int64_t line = 0; line < m.lines; line++)
                leave_line(&m, seats, port, seat, line);
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
    const int32_t to = m->local[seats.core[seat] + step];
    if (to >= 0)
        come_in_core(m->heads + line * m->head_line + m->packets[seats.leg[seat]] * m->slot_step,
                     m->cells + RAMP_IN * m->row + line * m->line_step + to * m->core_step,
                     m->busy[seats.kind[seat] & ASKS]);
}

static void come_in_lines_by(const March *const march, int port)
{
    const March m = *march;
    const Seats seats = m.seats[m.now & 1];
    const int64_t low = port * m.cores, high = low + m.fill[port], step = step_of(march, port);
    if (m.line_step > m.core_step)
        for (int64_t line = 0; line < m.lines; line++)
            for (int64_t seat = low; seat < high; seat++)
                come_in_line(&m, seats, step, seat, line);
    else
        for (int64_t seat = low; seat < high; seat++)
            for (int64_t line = 0; line < m.lines; line++)
                come_in_line(&m, seats, step, seat, line);
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

/* The hop is done. Those at the ends of their legs give up their seats; of a convoy, the headers wait by packet. */
static int64_t move_on(const March *const march, int port)
{
    const March m = *march;
    const Seats seats = m.seats[m.now & 1];
    const int64_t low = port * m.cores, high = low + m.fill[port], step = step_of(march, port);
    int64_t ended = low;
    for (int64_t seat = low; seat < high; seat++) {
        const int32_t core = seats.core[seat] + (int32_t)step, leg = seats.leg[seat];
        if (seats.stop[seat] != m.now + 1) {
            seats.core[seat] = core;
            continue;
        }
        seats.core[seat] = -1;
        for (int n = TIME; m.waiting && n <= STAGES; n++)
            m.waiting[n * m.cores + m.packets[leg]] = seats.head[seat + n * PORTS * m.cores];
        if (m.doors[leg + 1] >= 0)
            m.ended[ended++] = (Ended){core, leg + 1};
    }
    return ended - low;
}

/* -------------------------------------------------------------------------------------------------- as Python calls it */

static March *march_of(PyObject *const *given, Py_ssize_t count)
{
    if (count != 1)
        return PyErr_SetString(PyExc_TypeError, "one address of a march's table"), NULL;
    return (March *)(intptr_t)PyLong_AsLongLong(given[0]);
}

/* Whoever begins queues, in the order of the legs. */
PyObject *line_up(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    March *m = march_of(given, count);
    if (!m)
        return NULL;
    for (int32_t leg = 0; leg < m->legs; leg++)
        if (m->first[leg])
            append(m, leg);
    return Py_BuildValue("");
}

/* A round begins. Returns (packets that move, most tiles of others at a core since `most` was set, most requests). */
PyObject *enter(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    March *m = march_of(given, count);
    if (!m)
        return NULL;
    int64_t moving = 0;
    for (int port = 0; port < PORTS; port++)
        moving += enter_by(m, port);
    for (int port = 0; port < PORTS; port++)
        hold(m, port);
    return Py_BuildValue("LLL", (long long)moving, (long long)m->most[TILE], (long long)m->most[REQUEST]);
}

/* Packets leave. Returns (how many leave cores of this block, how many of them fresh, how many get to its cores). */
PyObject *leave(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    March *m = march_of(given, count);
    if (!m)
        return NULL;
    Crossing sum = {0, 0, 0};
    for (int port = 0; port < PORTS; port++) {
        (m->heads ? leave_lines_by : leave_by)(m, port);
        cross(m, port, &sum);
    }
    return Py_BuildValue("LLL", (long long)sum.left, (long long)sum.fresh, (long long)sum.here);
}

/* And get to the next core, with which the round ends. */
PyObject *come_in(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    March *m = march_of(given, count);
    if (!m)
        return NULL;
    int64_t ended[PORTS];
    for (int port = 0; port < PORTS; port++) {
        if (m->timed)
            (m->heads ? come_in_lines_by : come_in_by)(m, port);
        ended[port] = move_on(m, port);
    }
    queue_up(m, ended);
    m->now++;
    return Py_BuildValue("");
}
