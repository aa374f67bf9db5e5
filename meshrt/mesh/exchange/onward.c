/* Rounds of an exchange one after the other, where no other is under way at the same time, with their messages.

   What is done is what exchange.py, march.py and marching.py do for one round after the other, in the same order, with
   the same messages. Python goes on (onward.py) where cores have to hold more, where a message is not there yet, and now
   and then, to hear of signals. MPI is that of mpi4py: functions come as addresses, and handles as numbers. */

#include "../../ranks/bells.h"
#include "march.h"

enum { ENTER, PLAN, LEAVE, RECEIVE, SENT };     /* what is next */
enum { DONE, MORE, FULL, AWAITED, FAILED };     /* why Python is to look; as in onward.py */
enum { NOTHING_POSTED, POSTED, LEFT_TO_PYTHON }; /* of a request */
enum { STATUS = 64, MANY = 1 << 20 };           /* bytes, more than a status has; hops, a few milliseconds */

/* A message of a port, in one direction. As in onward.py: addresses and whole numbers of eight bytes each. */
typedef struct {
    int64_t rank;  /* of the neighbour, -1: there is none */
    int32_t *bell; /* of that rank, if it is on this node */
    double *data;  /* [TIME, HOPS, STAGES][packet] */
    void *request; /* room for a handle */
    int64_t count, state;
    int64_t messages, packets; /* that were sent so far */
} Message;

/* A transfer: its marches, which go in step, and their messages. */
typedef struct {
    Marches all;
    int64_t reserved; /* bytes of memory at every core for what it holds */
    Message leaving[PORTS], coming[PORTS];
} Flight;

typedef struct {
    Flight *flights;
    int64_t many;
    Marches all; /* of all flights */
    int64_t next, port, flight, round, most; /* so many rounds at once, 1: one after the other */
    Bands bands;
    Crossing crossed; /* since Python looked */
    int (*isend)(intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, void *);
    int (*irecv)(intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, void *);
    int (*test)(void *, int *, void *);
    intptr_t comm, byte, tag;
    int64_t *taken;    /* messages that bells announced and that were waited for; NULL: none rings */
    int64_t questions; /* so often MPI is asked for a message before Python waits for it */
    int64_t error;     /* of MPI, 0: none */
} Onward;

static inline void move_header(double *head, int64_t far, double *data, int64_t count, int coming)
{
    for (int n = TIME; n <= STAGES; n++)
        if (coming)
            head[n * far] = data[n * count];
        else
            data[n * count] = head[n * far];
}

/* The headers of packets that go over the block's edge by a port go to the message, or come from there; `count` is how
   many these are. Without the message's memory they are counted. */
static int64_t move_headers(const March *m, int port, int coming, double *data, int64_t count)
{
    const Seats seats = m->seats[m->now & 1];
    const int32_t *over = (coming ? m->coming : m->leaving) + port * m->cores;
    const int64_t crossing = coming ? m->into[port] : m->over[port], step = step_of(m, port);
    int64_t place = 0;
    for (int64_t n = 0; n < crossing; n++) {
        const int64_t seat = over[n], from = seats.core[seat], to = from + step;
        if (!m->heads) {
            if (data)
                move_header(seats.head + seat, PORTS * m->cores, data + place, count, coming);
            place++;
            continue;
        }
        const int64_t here = coming ? to : from, there = coming ? from : to;
        double *head = m->heads + m->packets[seats.leg[seat]] * m->slot_step;
        for (int64_t line = m->from_line[here]; line < m->to_line[here]; line++) {
            if (line >= m->from_line[there] && line < m->to_line[there])
                continue; /* both cores of this line are in the block */
            if (data)
                move_header(head + line * m->head_line, m->head_row, data + place, count, coming);
            place++;
        }
    }
    return place;
}

/* The same of all marches of a flight, one after the other. */
static int64_t move_all_headers(const Onward *o, const Flight *flight, int port, int coming, double *data, int64_t count)
{
    int64_t place = 0;
    for (int64_t n = 0; n < flight->all.many; n++) {
        const March *m = flight->all.marches[n];
        double *to = data ? data + place : NULL;
        place += o->most > 1 ? move_headers_of(m, &o->bands, o->round, port, coming, to, count)
                             : move_headers(m, port, coming, to, count);
    }
    return place;
}

static int is_done(Onward *o, void *request)
{
    int done = 0;
    int64_t status[STATUS / 8];
    const int error = o->test(request, &done, status);
    if (error)
        o->error = error;
    return done || error;
}

static int is_over(Onward *o, Message *message)
{
    for (int64_t n = 0; message->state == POSTED && n < o->questions; n++)
        if (is_done(o, message->request))
            message->state = NOTHING_POSTED;
    return message->state == NOTHING_POSTED;
}

/* Convoy._send: what leaves the block is given to the neighbour. 0: MPI failed. */
static int send_by(Onward *o, Flight *flight, int port)
{
    Message *message = &flight->leaving[port];
    if (message->rank < 0 || !(message->count = move_all_headers(o, flight, port, 0, NULL, 0)))
        return 1;
    move_all_headers(o, flight, port, 0, message->data, message->count);
    const intptr_t nbytes = (intptr_t)(message->count * 3 * (int64_t)sizeof(double));
    o->error = o->isend((intptr_t)message->data, nbytes, o->byte, (intptr_t)message->rank, o->tag, o->comm,
                        message->request);
    if (o->error)
        return 0;
    message->state = POSTED;
    if (message->bell)
        ring_bell(message->bell);
    message->messages++;
    message->packets += message->count;
    return 1;
}

/* Convoy._take: what comes in from the neighbour. 0: Python is to wait for it, or MPI failed. */
static int take_by(Onward *o, Flight *flight, int port)
{
    Message *message = &flight->coming[port];
    if (message->rank < 0)
        return 1;
    if (message->state == NOTHING_POSTED) {
        if (!(message->count = move_all_headers(o, flight, port, 1, NULL, 0)))
            return 1;
        const intptr_t nbytes = (intptr_t)(message->count * 3 * (int64_t)sizeof(double));
        o->error = o->irecv((intptr_t)message->data, nbytes, o->byte, (intptr_t)message->rank, o->tag, o->comm,
                            message->request);
        if (o->error)
            return 0;
        message->state = POSTED;
    }
    if (message->state == POSTED) {
        if (!is_over(o, message)) {
            message->state = LEFT_TO_PYTHON;
            return 0;
        }
        if (o->error)
            return 0;
        if (o->taken && message->bell)
            ++*o->taken;
    }
    message->state = NOTHING_POSTED;
    move_all_headers(o, flight, port, 1, message->data, message->count);
    return 1;
}

/* Has what was sent by a port left? */
static int has_left(Onward *o, Flight *flight, int port)
{
    Message *message = &flight->leaving[port];
    if (message->state == POSTED && !is_over(o, message)) {
        message->state = LEFT_TO_PYTHON;
        return 0;
    }
    message->state = NOTHING_POSTED;
    return !o->error;
}

/* A round begins. Returns how many hops there are in it. */
static int64_t begin_all(Onward *o)
{
    int64_t hops = 0;
    for (int64_t n = 0; n < o->all.many; n++) {
        March *m = o->all.marches[n];
        hops += begin_round(m) * (m->lines ? m->lines : 1);
    }
    return hops;
}

/* Do cores hold more tiles of others and requests than there is memory for? */
static int is_full(const Onward *o)
{
    for (const Flight *flight = o->flights; flight < o->flights + o->many; flight++) {
        int64_t nbytes = 0;
        for (int what = TILE; what <= REQUEST; what++) {
            int64_t most = 0;
            for (int64_t n = 0; n < flight->all.many; n++)
                most = flight->all.marches[n]->most[what] > most ? flight->all.marches[n]->most[what] : most;
            nbytes += most * flight->all.marches[0]->nbytes[what];
        }
        if (nbytes > flight->reserved)
            return 1;
    }
    return 0;
}

/* What moves in this round is noted, and the next one can begin. */
static void plan_all(Onward *o)
{
    for (int64_t n = 0; n < o->all.many; n++) {
        March *m = o->all.marches[n];
        note_moves(m, &o->bands, o->bands.rounds, &o->crossed);
        end_round(m);
    }
    o->bands.rounds++;
}

/* Marches of one flight meet nowhere: one after the other. */
static void move_all_in_bands(Onward *o)
{
    if (o->many > 1)
        move_in_bands(&o->all, &o->bands);
    else
        for (int64_t n = 0; n < o->all.many; n++)
            move_in_bands(&(Marches){&o->all.marches[n], 1}, &o->bands);
}

static void leave_all(Onward *o)
{
    if (o->most > 1)
        leave_at_edges(&o->all, &o->bands, o->round);
    else
        for (int64_t n = 0; n < o->all.many; n++)
            leave_cores(o->all.marches[n], &o->crossed);
}

static void come_in_all(Onward *o)
{
    if (o->most > 1)
        come_in_at_edges(&o->all, &o->bands, o->round);
    else
        for (int64_t n = 0; n < o->all.many; n++)
            come_in_at_cores(o->all.marches[n]);
    for (int64_t n = 0; o->most == 1 && n < o->all.many; n++)
        end_round(o->all.marches[n]);
}

/* For all flights and ports, from where it was left. Returns 0 where Python is to look. */
static int for_all(Onward *o, int (*work)(Onward *, Flight *, int))
{
    for (; o->flight < o->many; o->flight++, o->port = 0)
        for (; o->port < PORTS; o->port++)
            if (!work(o, &o->flights[o->flight], (int)o->port))
                return 0;
    o->flight = o->port = 0;
    return 1;
}

static int go(Onward *o)
{
    for (int64_t n = 0; n < o->all.many; n++)
        if (!fits_bands(o->all.marches[n]))
            o->most = 1;
    for (int64_t hops = 0;;) {
        while (o->next == ENTER || o->next == PLAN) {
            if (o->next == ENTER) {
                const int64_t moving = begin_all(o);
                hops += moving;
                if (!moving && (o->most == 1 || !o->bands.rounds))
                    return DONE;
                if (!moving) {
                    o->next = LEAVE;
                    break;
                }
                o->next = PLAN;
                if (is_full(o))
                    return FULL;
            }
            o->next = LEAVE;
            if (o->most > 1) {
                plan_all(o);
                if (o->bands.rounds < o->most)
                    o->next = ENTER;
            }
        }
        if (o->next == LEAVE) {
            if (o->most > 1 && !o->round)
                move_all_in_bands(o);
            leave_all(o);
            if (!for_all(o, send_by))
                return FAILED;
            o->next = RECEIVE;
        }
        if (o->next == RECEIVE) {
            if (!for_all(o, take_by))
                return o->error ? FAILED : AWAITED;
            come_in_all(o);
            o->next = SENT;
        }
        if (!for_all(o, has_left))
            return o->error ? FAILED : AWAITED;
        o->next = LEAVE;
        if (++o->round < o->bands.rounds)
            continue;
        o->next = ENTER, o->round = o->bands.rounds = 0;
        if (hops >= MANY)
            return MORE;
    }
}

/* ---------------------------------------------------------------------------------------------- as Python calls it */

static Onward *onward_of(PyObject *const *given, Py_ssize_t count, Py_ssize_t wanted)
{
    if (count != wanted)
        return PyErr_SetString(PyExc_TypeError, "an address of an onward's table; and of a request"), NULL;
    return (Onward *)(intptr_t)PyLong_AsLongLong(given[0]);
}

/* The rounds that are left, until Python is to look. Returns why. */
PyObject *onward_go(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    Onward *o = onward_of(given, count, 1);
    return o ? Py_BuildValue("i", go(o)) : NULL;
}

/* Is a message there, or has it left? */
PyObject *onward_is_done(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    Onward *o = onward_of(given, count, 2);
    return o ? Py_BuildValue("i", is_done(o, (void *)(intptr_t)PyLong_AsLongLong(given[1]))) : NULL;
}
