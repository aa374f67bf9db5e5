/* MeshGEMM's loop as a C programmer would write it: what meshrt's messages are held against.

   On WIDTH x WIDTH cores that hold a tile each of A, B and C, SIDE x SIDE floats, A moves on one place on the
   interleaved ring of its row at every step and B on that of its column, while every core adds the product of the two
   that it has (waferllm, section 5). Done for each message is what meshrt does: the packet's header (time, hops, stages),
   the ramp out of its core, one link or two with their bytes, the ramp into the core, which gives its two packets their
   turns in the order of their asking, the core's clock, and the tile itself. Left out: ranks, phases, routers' tables,
   aligning, and heads that ask for a link later than one that came after them.

   Usage: meshgemm WIDTH SIDE STEPS. Prints messages, cycles, a number of C, nanoseconds of the processor a message. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EAST, WEST, SOUTH, NORTH, WAYS };

static const double ALPHA = 1.0, TAIL = 1.0, LINK = 4.0; /* cycles: a hop, a ramp, bytes of a link in one of them */

static int width, side, numbers; /* cores of a line; floats of a tile's side, and of a tile */
static int *next_of;             /* on the ring */

/* By core: clocks with the path that led to them, ramps, and for each way out of it links and their bytes. */
static double *now, *hops_of, *stages_of, *ramp_out, *ramp_in, *link_free[WAYS];
static int64_t *crossed[WAYS];

typedef struct {
    double *time, *hops, *stages; /* by the core that they come to */
} Landing;

static inline double later(double a, double b)
{
    return a > b ? a : b;
}

static void *zeros(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (!memory)
        fprintf(stderr, "meshgemm: no memory left\n"), exit(3);
    return memory;
}

/* A packet leaves a core and goes over one link or two, each `stride` cores apart, forward or back. */
static inline void send(int64_t core, int links, int64_t stride, int way, double busy, int64_t nbytes, Landing to)
{
    double time = later(now[core], ramp_out[core]);
    ramp_out[core] = time + busy;
    int64_t at = core;
    for (int n = 0; n < links; n++, at += stride) {
        const double start = later(time, link_free[way][at]);
        link_free[way][at] = start + busy;
        crossed[way][at] += nbytes;
        time = start + ALPHA;
    }
    to.time[at] = time, to.hops[at] = hops_of[core] + links, to.stages[at] = stages_of[core];
}

/* Every core's packet of one axis, and its tile. Lines lie side by side, so that memory is gone through in its order. */
static void shift(int along_x, const float *tiles, float *coming, double busy, Landing to)
{
    const int64_t stride = along_x ? 1 : width, nbytes = numbers * (int64_t)sizeof(float);
    for (int64_t y = 0; y < width; y++)
        for (int64_t x = 0; x < width; x++) {
            const int64_t core = y * width + x;
            const int place = (int)(along_x ? x : y), far = next_of[place] - place, ahead = far > 0;
            const int way = along_x ? (ahead ? EAST : WEST) : (ahead ? SOUTH : NORTH);
            const int64_t other = core + far * stride;
            send(core, abs(far), ahead ? stride : -stride, way, busy, nbytes, to);
            memcpy(coming + other * numbers, tiles + core * numbers, (size_t)nbytes);
        }
}

static inline __attribute__((always_inline)) void product(int n, const float *a, const float *b, float *c)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++)
            for (int j = 0; j < n; j++)
                c[i * n + j] += a[i * n + k] * b[k * n + j];
}

static void products(const float *a, const float *b, float *c, double cycles)
{
    const int64_t cores = (int64_t)width * width;
    for (int64_t core = 0; core < cores; core++, a += numbers, b += numbers, c += numbers) {
        switch (side) { /* the compiler makes a loop for each */
        case 2: product(2, a, b, c); break;
        case 3: product(3, a, b, c); break;
        case 4: product(4, a, b, c); break;
        case 6: product(6, a, b, c); break;
        case 8: product(8, a, b, c); break;
        case 16: product(16, a, b, c); break;
        default: product(side, a, b, c);
        }
        now[core] += cycles;
    }
}

/* A core waits for what it is sent: its ramp is given to one after the other. */
static void wait_for(Landing a, Landing b, double busy)
{
    const int64_t cores = (int64_t)width * width;
    for (int64_t core = 0; core < cores; core++) {
        const int a_first = a.time[core] <= b.time[core];
        const Landing turns[2] = {a_first ? a : b, a_first ? b : a};
        for (int n = 0; n < 2; n++) {
            const double start = later(turns[n].time[core], ramp_in[core]);
            ramp_in[core] = start + busy;
            const double there = start + busy + TAIL;
            if (there > now[core])
                now[core] = there, hops_of[core] = turns[n].hops[core], stages_of[core] = turns[n].stages[core];
        }
    }
}

int main(int argc, char **argv)
{
    width = argc > 1 ? atoi(argv[1]) : 0, side = argc > 2 ? atoi(argv[2]) : 0;
    const int steps = argc > 3 ? atoi(argv[3]) : 0;
    if (width < 2 || width > 4000 || side < 1 || side > 256 || steps < 1)
        return fprintf(stderr, "usage: meshgemm WIDTH SIDE STEPS, a width of 2 to 4000, a side of 1 to 256\n"), 2;
    numbers = side * side;
    const size_t cores = (size_t)width * (size_t)width;
    double **of_cores[] = {&now, &hops_of, &stages_of, &ramp_out, &ramp_in};
    for (size_t n = 0; n < sizeof of_cores / sizeof *of_cores; n++)
        *of_cores[n] = zeros(cores, sizeof(double));
    for (int way = 0; way < WAYS; way++)
        link_free[way] = zeros(cores, sizeof(double)), crossed[way] = zeros(cores, sizeof(int64_t));
    next_of = zeros((size_t)width, sizeof *next_of);
    for (int x = 0; x < width; x++) /* 0, 2, 4, ..., 5, 3, 1 */
        next_of[x] = x % 2 ? (x == 1 ? 0 : x - 2) : x + 2 < width ? x + 2 : x + 1 < width ? x + 1 : x - 1;
    float *tiles[5];
    for (int n = 0; n < 5; n++)
        tiles[n] = zeros(cores * (size_t)numbers, sizeof(float));
    float *a = tiles[0], *b = tiles[1], *a_next = tiles[2], *b_next = tiles[3], *c = tiles[4];
    for (size_t n = 0; n < cores * (size_t)numbers; n++)
        a[n] = (float)(n % 7), b[n] = (float)(n % 5);
    Landing from_x, from_y, *landings[] = {&from_x, &from_y};
    for (int n = 0; n < 2; n++)
        landings[n]->time = zeros(cores, sizeof(double)), landings[n]->hops = zeros(cores, sizeof(double)),
        landings[n]->stages = zeros(cores, sizeof(double));
    const double busy = numbers * (double)sizeof(float) / LINK, computing = (double)side * side * side;
    const clock_t begin = clock();
    for (int step = 0; step < steps; step++) {
        shift(1, a, a_next, busy, from_x);
        shift(0, b, b_next, busy, from_y);
        products(a, b, c, computing);
        wait_for(from_x, from_y, busy);
        float *arrived = a_next;
        a_next = a, a = arrived, arrived = b_next, b_next = b, b = arrived;
    }
    const double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC, messages = 2.0 * (double)cores * steps;
    double last = 0;
    for (size_t n = 0; n < cores; n++)
        last = later(last, now[n]);
    printf("%d x %d cores, tiles of %d x %d: %.0f messages, %.0f cycles, C ends with %g, %.2f ns a message\n", width, width,
           side, side, messages, last, c[cores * (size_t)numbers - 1], seconds / messages * 1e9);
    return 0;
}
