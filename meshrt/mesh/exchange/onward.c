/* Rounds of an exchange one after the other, where no other is under way at the same time, with their messages.

   What is done is what exchange.py, march.py and marching.py do for one round after the other, in the same order, with
   the same messages. Python goes on (onward.py) where cores have to hold more, where a message is not there yet, and now
   and then, to hear of signals. MPI is that of mpi4py: functions come as addresses, and handles as numbers. */

#include "../../ranks/bells.h"
#include "march.h"

enum { ENTER, LEAVE, RECEIVE, SENT };           /* what is next */
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

typedef struct {
    March **marches; /* that go in step, so many */
    int64_t many;
    int64_t reserved; /* bytes of memory at every core for what it holds */
    int64_t next, port;
    Crossing crossed; /* since Python looked */
    int (*isend)(intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, void *);
    int (*irecv)(intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, void *);
    int (*test)(void *, int *, void *);
    intptr_t comm, byte, tag;
    int64_t *taken;    /* messages that bells announced and that were waited for; NULL: none rings */
    int64_t questions; /* so often MPI is asked for a message before Python waits for it */
    int64_t error;     /* of MPI, 0: none */
    Message leaving[PORTS], coming[PORTS];
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

/* The same of all marches, one after the other. */
static int64_t move_all_headers(const Onward *o, int port, int coming, double *data, int64_t count)
{
    int64_t place = 0;
    for (int64_t n = 0; n < o->many; n++)
        place += move_headers(o->marches[n], port, coming, data ? data + place : NULL, count);
    return place;
}

/* Convoy._send: what leaves the block is given to the neighbour. 0: MPI failed. */
static int send_by(Onward *o, int port)
{
    Message *message = &o->leaving[port];
    if (message->rank < 0 || !(message->count = move_all_headers(o, port, 0, NULL, 0)))
        return 1;
    move_all_headers(o, port, 0, message->data, message->count);
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
static int take_by(Onward *o, int port)
{
    Message *message = &o->coming[port];
    if (message->rank < 0)
        return 1;
    if (message->state == NOTHING_POSTED) {
        if (!(message->count = move_all_headers(o, port, 1, NULL, 0)))
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
    move_all_headers(o, port, 1, message->data, message->count);
    return 1;
}

/* Has what was sent by a port left? */
static int has_left(Onward *o, int port)
{
    Message *message = &o->leaving[port];
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
    for (int64_t n = 0; n < o->many; n++) {
        March *m = o->marches[n];
        hops += begin_round(m) * (m->lines ? m->lines : 1);
    }
    return hops;
}

/* Bytes for the most tiles of others, and the most requests, that a core has held. */
static int64_t held(const Onward *o)
{
    int64_t nbytes = 0;
    for (int what = TILE; what <= REQUEST; what++) {
        int64_t most = 0;
        for (int64_t n = 0; n < o->many; n++)
            most = o->marches[n]->most[what] > most ? o->marches[n]->most[what] : most;
        nbytes += most * o->marches[0]->nbytes[what];
    }
    return nbytes;
}

static int go(Onward *o)
{
    for (int64_t hops = 0, moving; hops < MANY; hops += moving) {
        moving = 0;
        if (o->next == ENTER) {
            moving = begin_all(o);
            if (!moving)
                return DONE;
            o->next = LEAVE;
            if (held(o) > o->reserved)
                return FULL;
        }
        if (o->next == LEAVE) {
            for (int64_t n = 0; n < o->many; n++)
                leave_cores(o->marches[n], &o->crossed);
            for (int port = 0; port < PORTS; port++)
                if (!send_by(o, port))
                    return FAILED;
            o->next = RECEIVE, o->port = 0;
        }
        if (o->next == RECEIVE) {
            for (; o->port < PORTS; o->port++)
                if (!take_by(o, (int)o->port))
                    return o->error ? FAILED : AWAITED;
            for (int64_t n = 0; n < o->many; n++) {
                come_in_at_cores(o->marches[n]);
                end_round(o->marches[n]);
            }
            o->next = SENT, o->port = 0;
        }
        for (; o->port < PORTS; o->port++)
            if (!has_left(o, (int)o->port))
                return o->error ? FAILED : AWAITED;
        o->next = ENTER;
    }
    return MORE;
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
