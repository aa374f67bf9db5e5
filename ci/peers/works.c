/* The works of `meshrt bench workloads` as a C programmer would write them with MPI, a rank a core: for simulators that
   run such programs, SimGrid's SMPI among them, and for MPI itself.

   Usage: works WORK STEPS, WORK one of W1 (Cannon's shift along both axes, tiles of 16 KiB), W1p (with the product of
   the two tiles), W2 (the interleaved ring of two hops), W3 (a ring all-reduce of 65,536 floats in rows of 64, STEPS
   times) and W5 (MeshGEMM's loop, tiles of 1 KiB, with the product), on a square number of ranks, for W3 on rows of 64.
   Rank 0 prints how many messages were sent; every rank checks what it holds in the end. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 64, NUMBERS = 65536 };

typedef struct {
    int next, before; /* ranks */
} Ring;

/* Two messages at once, one to each ring's next. */
static void shift(const Ring rings[2], float *tiles[2], float *coming[2], int count, long *sent)
{
    MPI_Request requests[4];
    for (int axis = 0; axis < 2; axis++) {
        MPI_Irecv(coming[axis], count, MPI_FLOAT, rings[axis].before, axis, MPI_COMM_WORLD, &requests[axis]);
        MPI_Isend(tiles[axis], count, MPI_FLOAT, rings[axis].next, axis, MPI_COMM_WORLD, &requests[2 + axis]);
    }
    *sent += 2;
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    for (int axis = 0; axis < 2; axis++) {
        float *arrived = coming[axis];
        coming[axis] = tiles[axis];
        tiles[axis] = arrived;
    }
}

static void add_product(int side, const float *a, const float *b, float *c)
{
    for (int i = 0; i < side; i++)
        for (int k = 0; k < side; k++)
            for (int j = 0; j < side; j++)
                c[i * side + j] += a[i * side + k] * b[k * side + j];
}

/* The k-th core of an interleaved ring: 0, 2, 4, ..., 5, 3, 1. */
static int interleaved(int k, int side)
{
    const int evens = (side + 1) / 2;
    return k < evens ? 2 * k : 2 * (side - k) - 1;
}

static int place_of(int core, int side)
{
    return core % 2 ? side - (core + 1) / 2 : core / 2;
}

static float *tile(int count, float value)
{
    float *numbers = malloc((size_t)count * sizeof *numbers);
    if (!numbers)
        MPI_Abort(MPI_COMM_WORLD, 3);
    for (int i = 0; i < count; i++)
        numbers[i] = value;
    return numbers;
}

/* Returns how many of this rank's tiles are not those that should be there. */
static int shifts(int rank, int side, int steps, int edge, int is_interleaved, int multiplies,
                  long *sent)
{
    const int x = rank % side, y = rank / side, count = edge * edge;
    Ring rings[2];
    int from[2]; /* whose tile is here in the end, along x and y */
    for (int axis = 0; axis < 2; axis++) {
        const int core = axis ? y : x, place = is_interleaved ? place_of(core, side) : core;
        const int places[3] = {(place + 1) % side, (place + side - 1) % side, ((place - steps) % side + side) % side};
        int ranks[3];
        for (int n = 0; n < 3; n++) {
            const int other = is_interleaved ? interleaved(places[n], side) : places[n];
            ranks[n] = axis ? other * side + x : y * side + other;
        }
        rings[axis] = (Ring){ranks[0], ranks[1]};
        from[axis] = ranks[2];
    }
    float *tiles[2] = {tile(count, (float)rank), tile(count, (float)rank)};
    float *coming[2] = {tile(count, -1), tile(count, -1)}, *sum = tile(count, 0);
    for (int step = 0; step < steps; step++) {
        if (multiplies)
            add_product(edge, tiles[0], tiles[1], sum);
        shift(rings, tiles, coming, count, sent);
    }
    return (tiles[0][count - 1] != (float)from[0]) + (tiles[1][count - 1] != (float)from[1]);
}

static int allreduces(int rank, int times, long *sent)
{
    const int x = rank % LINE, row = rank - x, chunk = NUMBERS / LINE;
    const int next = row + (x + 1) % LINE, before = row + (x + LINE - 1) % LINE;
    float *numbers = tile(NUMBERS, 0), *coming = tile(chunk, 0);
    int wrong = 0;
    for (int time = 0; time < times; time++) {
        for (int i = 0; i < NUMBERS; i++)
            numbers[i] = (float)(x + 1);
        for (int step = 0; step < 2 * (LINE - 1); step++) {
            const int out = ((x - step) % LINE + LINE) % LINE, in = (out + LINE - 1) % LINE;
            float *whole = numbers + in * chunk;
            MPI_Request requests[2];
            MPI_Irecv(step < LINE - 1 ? coming : whole, chunk, MPI_FLOAT, before, 0, MPI_COMM_WORLD, &requests[0]);
            MPI_Isend(numbers + out * chunk, chunk, MPI_FLOAT, next, 0, MPI_COMM_WORLD, &requests[1]);
            ++*sent;
            MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
            for (int i = 0; step < LINE - 1 && i < chunk; i++)
                whole[i] += coming[i];
        }
        for (int i = 0; i < NUMBERS; i++)
            wrong += numbers[i] != LINE * (LINE + 1) / 2;
    }
    return wrong;
}

int main(int argc, char **argv)
{
    int rank, ranks, side = 0, wrong = 0, all_wrong = 0;
    long sent = 0, messages = 0; /* no variable of the program's own is shared by simulated ranks */
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *work = argc > 1 ? argv[1] : "";
    const int steps = argc > 2 ? atoi(argv[2]) : 0;
    while (side * side < ranks)
        side++;
    if (steps < 1 || (strcmp(work, "W3") ? side * side != ranks : ranks % LINE))
        MPI_Abort(MPI_COMM_WORLD, 2);
    if (!strcmp(work, "W3"))
        wrong = allreduces(rank, steps, &sent);
    else if (!strcmp(work, "W5"))
        wrong = shifts(rank, side, steps, 16, 1, 1, &sent);
    else
        wrong = shifts(rank, side, steps, 64, !strcmp(work, "W2"), !strcmp(work, "W1p"), &sent);
    MPI_Reduce(&sent, &messages, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank)
        printf("%ld messages, %d numbers wrong\n", messages, all_wrong);
    MPI_Finalize();
    return 0;
}
