/* Bells for other C code: see bells.c. */

#include <stdint.h>

void ring_bell(int32_t *bell);                              /* a message is there for its owner */
int32_t times_rung(const int32_t *bell);                    /* how often it was rung */
void sleep_by(int32_t *bell, int32_t heard, double seconds); /* until it is rung again, so long at most */
