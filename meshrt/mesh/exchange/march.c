/* What itinerary.py does in each round of an exchange: who waits, who moves, and what cores hold for others.

   The NumPy code there is the definition, and what runs where this is not built. Packets that leave by a port lie in
   the order of their cores. As each of them moves by the same step they stay in that order: a round goes through them,
   and through the doors at which somebody waits, once from front to back, and so through the clocks of the cores. */

#include "march.h"

/* What a packet that waits for a leg is to its core (legs.ways). */
static int waits(const March *m, int32_t leg)
{
    if (m->doors[leg] < 0 || m->first[leg])
        return NOTHING;
    return m->tiles[leg] && m->tiles[leg - 1] ? TILE : REQUEST; /* a tile that is at its owner's counts as a request */
}

/* --------------------------------------------------------------------------------------------------------- queues */

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

/* ----------------------------------------------------------------------------------------------------- the rounds */

/* Itinerary._enter, by a port: those that go straight on, and those that begin where nobody comes through. */
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
            if (next + AHEAD < high && before.core[next + AHEAD] >= 0)
                __builtin_prefetch(&m.held[before.kind[next + AHEAD] & ASKS][before.core[next + AHEAD]], 1);
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
        if (seat + AHEAD < high)
            __builtin_prefetch(&m.held[seats.kind[seat + AHEAD] & ASKS][seats.core[seat + AHEAD] + step], 1);
        const int what = ends ? waits(march, seats.leg[seat] + 1) : seats.kind[seat] & ASKS;
        if (what == NOTHING)
            continue;
        const int64_t held = ++m.held[what][seats.core[seat] + step];
        most[what] = held > most[what] ? held : most[what];
    }
    march->most[TILE] = most[TILE], march->most[REQUEST] = most[REQUEST];
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

int64_t begin_round(March *m)
{
    int64_t moving = 0;
    for (int port = 0; port < PORTS; port++)
        moving += enter_by(m, port);
    for (int port = 0; port < PORTS; port++)
        hold(m, port);
    return moving;
}

/* A round ends: who is at the end of a leg queues for the next. */
void end_round(March *m)
{
    int64_t ended[PORTS];
    for (int port = 0; port < PORTS; port++)
        ended[port] = move_on(m, port);
    queue_up(m, ended);
    m->now++;
}

/* ---------------------------------------------------------------------------------------------- as Python calls it */

March *march_of(PyObject *const *given, Py_ssize_t count)
{
    if (count != 1)
        return PyErr_SetString(PyExc_TypeError, "one address of a march's table"), NULL;
    return (March *)(intptr_t)PyLong_AsLongLong(given[0]);
}

/* Whoever begins queues, in the order of the legs. */
PyObject *march_line_up(PyObject *module, PyObject *const *given, Py_ssize_t count)
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
PyObject *march_enter(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    March *m = march_of(given, count);
    if (!m)
        return NULL;
    const int64_t moving = begin_round(m);
    return Py_BuildValue("LLL", (long long)moving, (long long)m->most[TILE], (long long)m->most[REQUEST]);
}
