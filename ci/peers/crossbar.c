/* An exchange over the crossbar as a C programmer would write it: what meshrt's hops are held against.

   Every core of a WIDTH x WIDTH mesh gets the tile of another, drawn at random, hop by hop along x and then along y,
   with the rules of meshrt/mesh/exchange: a core sends one packet by each port and round, the one that comes straight
   through or else the one that has waited longest. Done for each hop is what meshrt does: the packet's header (time,
   hops, stages) and the core's clock, software at every core on the way, ramps, the link and its bytes. Left out:
   ranks, the memory of cores, requests, and who is first of packets that come to a core in one round.

   Usage: crossbar WIDTH [SEED]. Prints hops, rounds, the last tile's cycles, nanoseconds of the processor a hop. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { NORTH, EAST, SOUTH, WEST, PORTS };

static const double ALPHA = 1.0, BETA = 8.0, BUSY = 81.0; /* cycles: a hop, software, a link with 324 bytes */
static const int64_t NBYTES = 324;

typedef struct {
    double time, hops, stages;
    int32_t to; /* core, -1: there is no packet */
    int16_t x, y;
} Packet;

typedef struct {
    Packet packet;
    int32_t next, since; /* who waits behind it, and from which round on */
} Waiting;

typedef struct {
    int32_t first, last; /* -1: nobody waits */
} Queue;

/* Clocks of all cores, and what came over their links and ramps; queues by port. */
static double *now, *hops_of, *stages_of, *ramp_in, *ramp_out, *link_free[PORTS];
static int64_t *crossed[PORTS], *entered;
static Queue *queues[PORTS];
static Waiting *waiting;

static inline double later(double a, double b)
{
    return a > b ? a : b;
}

static inline int port_to(int x, int y, const Packet *packet)
{
    if (x != packet->x)
        return packet->x > x ? EAST : WEST;
    return packet->y > y ? SOUTH : NORTH;
}

static void wait_for(Queue *queue, Packet packet, int32_t number, int32_t round)
{
    waiting[number] = (Waiting){packet, -1, round};
    if (queue->first < 0)
        queue->first = number;
    else
        waiting[queue->last].next = number;
    queue->last = number;
}

static inline void leave(int32_t core, Packet *packet, int port)
{
    if (packet->time > now[core])
        now[core] = packet->time, hops_of[core] = packet->hops, stages_of[core] = packet->stages;
    if (packet->hops) {
        now[core] += BETA;
        stages_of[core] += 1;
    }
    const double start = later(later(now[core], ramp_out[core]), link_free[port][core]);
    ramp_out[core] = link_free[port][core] = start + BUSY;
    crossed[port][core] += NBYTES;
    packet->time = start + ALPHA;
    packet->hops = hops_of[core] + 1;
    packet->stages = stages_of[core];
}

static inline void come_in(int32_t core, Packet *packet)
{
    ramp_in[core] = packet->time = later(packet->time, ramp_in[core]) + BUSY;
    entered[core] += NBYTES;
}

static void *zeros(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (!memory)
        fprintf(stderr, "crossbar: no memory left\n"), exit(3);
    return memory;
}

int main(int argc, char **argv)
{
    const int width = argc > 1 ? atoi(argv[1]) : 0;
    if (width < 2 || width > 2000)
        return fprintf(stderr, "usage: crossbar WIDTH [SEED], a width of 2 to 2000\n"), 2;
    const int32_t cores = width * width, step[PORTS] = {-width, 1, width, -1};
    const size_t all = (size_t)cores;
    double **clocks[] = {&now, &hops_of, &stages_of, &ramp_in, &ramp_out};
    for (size_t n = 0; n < sizeof clocks / sizeof *clocks; n++)
        *clocks[n] = zeros(all, sizeof(double));
    Packet *through[PORTS], *after[PORTS]; /* who comes straight through each core, in this round and in the next */
    for (int port = 0; port < PORTS; port++) {
        link_free[port] = zeros(all, sizeof(double));
        crossed[port] = zeros(all, sizeof(int64_t));
        queues[port] = zeros(all, sizeof(Queue));
        through[port] = zeros(all, sizeof(Packet));
        after[port] = zeros(all, sizeof(Packet));
        for (int32_t n = 0; n < cores; n++)
            queues[port][n].first = through[port][n].to = after[port][n].to = -1;
    }
    entered = zeros(all, sizeof(int64_t));
    waiting = zeros(all, sizeof(Waiting));
    int32_t *to = zeros(all, sizeof *to); /* of each core's packet */
    srand(argc > 2 ? (unsigned)atoi(argv[2]) : 1);
    for (int32_t n = 0; n < cores; n++)
        to[n] = n;
    for (int32_t n = cores - 1; n > 0; n--) {
        const int32_t other = (int32_t)(((int64_t)rand() << 31 | rand()) % (n + 1)), swap = to[n];
        to[n] = to[other], to[other] = swap;
    }
    int64_t under_way = 0, hops = 0;
    for (int32_t n = 0; n < cores; n++) {
        const Packet packet = {0, 0, 0, to[n], (int16_t)(to[n] % width), (int16_t)(to[n] / width)};
        if (to[n] != n) {
            wait_for(&queues[port_to(n % width, n / width, &packet)][n], packet, to[n], -1);
            under_way++;
        }
    }
    double last = 0;
    int32_t round = 0;
    const clock_t begin = clock();
    for (; under_way; round++)
        for (int port = 0; port < PORTS; port++) {
            Packet *coming = through[port], *going = after[port];
            for (int y = 0; y < width; y++)
                for (int x = 0; x < width; x++) {
                    const int32_t core = y * width + x, next = core + step[port];
                    Queue *queue = &queues[port][core];
                    Packet packet;
                    int32_t number = queue->first;
                    if (coming[core].to >= 0) {
                        packet = coming[core];
                        coming[core].to = -1;
                    } else if (number >= 0 && waiting[number].since < round) {
                        packet = waiting[number].packet;
                        queue->first = waiting[number].next;
                    } else
                        continue;
                    leave(core, &packet, port);
                    come_in(next, &packet);
                    hops++;
                    if (packet.to == next) {
                        last = later(last, packet.time);
                        under_way--;
                        continue;
                    }
                    const int next_x = x + (port == EAST) - (port == WEST);
                    const int next_y = y + (port == SOUTH) - (port == NORTH);
                    const int goes_by = port_to(next_x, next_y, &packet);
                    if (goes_by == port)
                        going[next] = packet;
                    else
                        wait_for(&queues[goes_by][next], packet, packet.to, round);
                }
            through[port] = going, after[port] = coming;
        }
    const double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    printf("%d x %d cores: %lld hops in %d rounds, %.0f cycles, %.1f ns a hop\n", width, width, (long long)hops, round,
           last, seconds / (double)hops * 1e9);
    return 0;
}
