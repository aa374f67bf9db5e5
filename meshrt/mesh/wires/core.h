/* What core.c does with tables of steps, for what else goes through such tables (sums.c). */

#include <stdint.h>

/* Heads that were given a link after one that asked later (order.py). */
typedef struct {
    int64_t packets;
    double longest_wait; /* cycles */
} OutOfOrder;

/* How the packets of a transfer pass (heads.Passage), and what a hop takes. */
typedef struct {
    double busy, alpha, taking, tail; /* cycles */
    int watch;
} Passage;

/* Steps (steps.py) one after the other, but none of those after ANY_LATE where no core has to wait: 1 where one has. */
int run_steps(const void *steps, int64_t nbytes, char *landing, const Passage *passage, OutOfOrder *counted);
