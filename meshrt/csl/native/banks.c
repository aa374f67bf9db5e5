/* In which steps two vectors in memory are in each other's way (banks.py). */

#include "machine.h"

enum { PERIOD = 8, APART = 4, ALIGNED = 4, WORD_BYTES = 2, TURNS = PERIOD / 2 }; /* bytes */

/* `bytes`: of each operand in a step. */
static int is_met(int64_t a, int64_t b, int64_t bytes)
{
    if (bytes == WORD_BYTES)
        return (a - b) % PERIOD == 0;
    return a % ALIGNED != 0 || ((a - b) % PERIOD + PERIOD) % PERIOD != APART;
}

/* The address of one of a vector's numbers; -1 where it has no such. */
static int64_t place_of(const Vector *vector, int64_t size, int64_t number)
{
    const int64_t first = vector->base / size * size, width = vector->nbytes > size ? vector->nbytes : size;
    if (vector->axes == 1)
        return first + number * vector->stride[0] * width;
    if (number >= extent_of(vector))
        return -1;
    int64_t place = 0;
    for (int64_t axis = vector->axes - 1; axis >= 0; axis--) {
        place += number % vector->extent[axis] * vector->stride[axis];
        number /= vector->extent[axis];
    }
    return first + place * width;
}

/* Steps, of `lanes` numbers each, in which the first two vectors in memory meet in a bank. */
int64_t conflicts(const Operation *of, const Value *sources, int64_t begin, int64_t count, int64_t lanes)
{
    const Vector *vectors[2];
    const int64_t size = size_of(of->takes), steps = (count + lanes - 1) / lanes;
    int64_t known = 0, found = 0, turns = steps;
    for (int64_t number = 0; number < of->inputs && known < 2; number++)
        if (sources[number].kind == VECTOR && !sources[number].vector.fabric && sources[number].vector.axes)
            vectors[known++] = &sources[number].vector;
    if (known < 2 || count <= 0)
        return 0;
    if (vectors[0]->axes == 1 && vectors[1]->axes == 1 && turns > TURNS)
        turns = TURNS; /* all go on by an even number of bytes: then it begins again */
    for (int64_t at = 0; at < turns; at++) {
        const int64_t number = begin + at * lanes;
        const int64_t a = place_of(vectors[0], size, number), b = place_of(vectors[1], size, number);
        if (a >= 0 && b >= 0 && is_met(a, b, size * lanes))
            found += (steps - at + turns - 1) / turns;
    }
    return found;
}
