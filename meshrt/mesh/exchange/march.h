/* An exchange under way, as march.py lays it out: for march.c (who moves), hops.c (what time it takes) and onward.c (one
   round after the other). */

#include "../stable.h"
#include <stdint.h>

enum { PORTS = 4, LEGS = 4, NORTH = 0, SOUTH = 2 };                /* as in itinerary.py, mesh.py */
enum { TIME, HOPS, STAGES, LINK_FREE, RAMP_IN = 7, RAMP_OUT = 8 }; /* rows of cells, as in clock.py */
enum { TILE, REQUEST, NOTHING };                                   /* what a core holds for others */
enum { ASKS = 1, TOUCHED = 2 }; /* bits of a packet's kind: it bears no tile, software had it before */

/* Packets under way, [port][place]; their headers are [TIME, HOPS, STAGES][port][place]. */
typedef struct {
    int32_t *core;       /* where it is, -1: at the end of its leg */
    int32_t *leg, *stop; /* and the first round after it */
    uint8_t *kind;
    double *head;
} Seats;

typedef struct {
    int32_t core, leg;
} Ended;

/* Packets of a line that leave cores side by side by the same port, and lie side by side: each `step` from the last. */
typedef struct {
    int32_t core, slot, step, count, port, kind;
} Stretch;

/* A packet that moves in a round, on each of the lines: the places of its core and of the next, and its port. */
typedef struct {
    int32_t from, to, packet;
    int16_t kind, port;
} Move;

/* As in march.py: pointers, whole numbers and doubles of eight bytes each. */
typedef struct {
    int64_t width, cores, legs;
    const int32_t *doors, *lengths, *packets; /* by leg: see Legs */
    const uint8_t *first, *tiles;
    int32_t *start, *came, *next; /* by leg: see Itinerary */
    int32_t *fore, *last;         /* by door: the legs that wait there, -1: none */
    uint64_t *open, *some;        /* doors at which somebody waits, a bit each; and words of them that are not 0 */
    int32_t *held[2];             /* tiles of others at each core, and requests */
    Seats seats[2];               /* of this round and of that before, in turn */
    int32_t *from;                /* by seat: that of the round before, -1: it waited */
    Ended *ended;                 /* [port][place] */
    int32_t *leaving, *coming;    /* seats of packets that go over the block's edge, [port][place] */
    const int32_t *local;         /* of each core: its place in the block; of a convoy, -1: it is another rank's */
    const int32_t *from_line, *to_line; /* of each core, but for a convoy: the lines that have it in this block */
    double *cells;                /* clocks, [row][place] */
    int64_t row;                  /* how many there are in a row */
    double *waiting;              /* headers of packets that wait, [TIME, HOPS, STAGES][packet]; or NULL, and */
    double *heads;                /* of all packets of all lines, and how far apart they and their cells are: */
    int64_t lines, line_step, core_step, head_row, head_line, slot_step;
    Stretch *stretches;         /* of a round: room for them, or NULL; see hops.c */
    Move *leaves, *comes;       /* of some rounds, by row: room for them, or NULL; along a line stretches; see bands.c */
    int32_t *leaves_at, *comes_at; /* where those of each round and row begin */
    int64_t *crossed, *entered; /* bytes over the links, [port][links], and into each place; of lines, each core */
    int64_t links, nbytes[2];   /* of a packet with a tile and of a request, as busy */
    int64_t timed;              /* does a link take any time? */
    double busy[2], alpha, beta; /* cycles: of a link, of a hop, of software */
    int64_t now, most[2];        /* round; the most tiles, and requests, that a core has held */
    int64_t fill[PORTS], over[PORTS], into[PORTS]; /* how many packets are on seats, leave the block, come to it */
} March;

typedef struct {
    int64_t left, fresh, here; /* packets that leave cores of this block, of these untouched ones, that get to them */
} Crossing;

enum { AHEAD = 16 }; /* seats: what that one needs of memory is asked for now; without this, each waits for it */

/* From a core to the next one by a port. */
static inline int64_t step_of(const March *m, int port)
{
    const int64_t steps[PORTS] = {-m->width, 1, m->width, -1};
    return steps[port];
}

March *march_of(PyObject *const *given, Py_ssize_t count); /* NULL: Python knows what is wrong */

/* A round: it begins, with so many packets that move; they leave, and come in; it ends. */
int64_t begin_round(March *march);
void leave_cores(March *march, Crossing *sum);
void come_in_at_cores(March *march);
void end_round(March *march);
void cross_lines(March *march, int port, Crossing *sum); /* of all lines, links' and ramps' bytes are entered */
int64_t stretches_of(const March *m, int port, Stretch *stretches); /* who leaves by a port, and how many these are */

/* Some that go in step, one after the other at each core. */
typedef struct {
    March **marches;
    int64_t many;
} Marches;

/* Rounds that are planned, and rows of the mesh that are in the block; are others' before them, and behind? */
enum { ROUNDS = 16 }; /* at most; as in onward.py */
typedef struct {
    int64_t rounds, top, bottom, cut_north, cut_south;
} Bands;

int fits_bands(const March *m);
void note_moves(March *m, const Bands *bands, int64_t round, Crossing *sum);
void move_in_bands(const Marches *all, const Bands *bands);
void leave_at_edges(const Marches *all, const Bands *bands, int64_t round);
void come_in_at_edges(const Marches *all, const Bands *bands, int64_t round);
int64_t move_headers_of(const March *m, const Bands *bands, int64_t round, int port, int coming, double *data,
                        int64_t count);
