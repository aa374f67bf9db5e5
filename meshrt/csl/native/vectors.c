/* Vectors in memory: where their elements lie (addresses.py), and what is computed of them (pending.py, operations.py). */

#include "machine.h"

int64_t extent_of(const Vector *vector)
{
    int64_t count = 1;
    for (int64_t axis = 0; axis < vector->axes; axis++)
        count *= vector->extent[axis];
    return count;
}

/* Room for so many numbers, in each of the arrays that a vector's computing takes. */
static void make_room(Machine *machine, int64_t count)
{
    if (count <= machine->room_for)
        return;
    for (int at = 0; at < 6; at++)
        machine->room[at] = more(machine, machine->room[at], count * 8);
    machine->room_for = count;
}

/* Indices of elements in memory of numbers of that size. 0 where they lead out of it. */
int positions(Machine *machine, const Vector *vector, int64_t size, int64_t begin, int64_t count, int64_t *found)
{
    const int64_t first = vector->base / size, limit = machine->nbytes / size;
    int64_t step = vector->nbytes / size, low = first, high = first;
    if (vector->base < 0 || vector->base % size)
        return machine->gives_up = 1, 0;
    if (!step)
        step = 1;
    if (vector->axes <= 1) {
        const int64_t stride = vector->axes ? vector->stride[0] * step : 0;
        for (int64_t at = 0; at < count; at++)
            found[at] = first + (begin + at) * stride;
        low = found[0], high = found[count - 1];
        if (low > high)
            low = found[count - 1], high = found[0];
    } else {
        int64_t at[AXES] = {0}, rest = begin;
        for (int64_t axis = vector->axes - 1; axis >= 0; axis--) {
            at[axis] = rest % vector->extent[axis];
            rest /= vector->extent[axis];
        }
        for (int64_t number = 0; number < count; number++) {
            int64_t place = 0;
            for (int64_t axis = 0; axis < vector->axes; axis++)
                place += at[axis] * vector->stride[axis];
            found[number] = first + place * step;
            if (!number || found[number] < low)
                low = found[number];
            if (!number || found[number] > high)
                high = found[number];
            for (int64_t axis = vector->axes - 1; axis >= 0 && ++at[axis] == vector->extent[axis]; axis--)
                at[axis] = 0;
        }
    }
    if (low < 0 || high >= limit)
        return machine->gives_up = 1, 0;
    return 1;
}

/* Bits of a number on its own, as an operation takes it. */
static uint32_t bits_of(Machine *machine, const Operation *of, Value value)
{
    const int is_raw = !is_float(of->takes), wraps = of->what == MOV || (of->what <= XOR && value.kind != WORD);
    if (is_float(value.kind) == is_raw || (!wraps && value.kind != of->takes) || value.kind >= NOTHING)
        machine->gives_up = 1; /* NumPy counts in another type then */
    if (of->takes == F16) {
        if (value.kind != F16)
            machine->gives_up = 1;
        return float_to_half((float)value.f);
    }
    if (of->takes == F32) {
        const float single = (float)value.f;
        uint32_t bits;
        memcpy(&bits, &single, 4);
        if (value.kind != F32)
            machine->gives_up = 1;
        return bits;
    }
    return (uint32_t)value.i;
}

static inline float single_of(int64_t kind, uint32_t bits)
{
    if (kind == F16)
        return half_to_float((uint16_t)bits);
    float single;
    memcpy(&single, &bits, 4);
    return single;
}

static inline uint32_t bits_of_single(int64_t kind, float single)
{
    if (kind == F16)
        return float_to_half(single);
    uint32_t bits;
    memcpy(&bits, &single, 4);
    return bits;
}

/* One element. As NumPy's: the larger of two halves that are equal is the first, of two floats the second. */
static uint32_t one(const Operation *of, uint32_t a, uint32_t b, uint32_t c)
{
    const int64_t kind = of->kind;
    if (of->what == MOV)
        return a;
    if (of->what == WIDEN)
        return bits_of_single(F32, half_to_float((uint16_t)a));
    if (of->what == NARROW)
        return float_to_half(single_of(F32, a));
    if (is_float(kind)) {
        const uint32_t sign = kind == F16 ? 0x8000 : 0x80000000;
        if (of->what == NEG)
            return a ^ sign;
        if (of->what == ABS)
            return a & ~sign;
        const float x = single_of(kind, a), y = single_of(kind, b);
        switch (of->what) {
        case ADD: return bits_of_single(kind, x + y);
        case SUB: return bits_of_single(kind, x - y);
        case MUL: return bits_of_single(kind, x * y);
        case MAX: return x != x ? a : y != y ? b : kind == F16 ? (x >= y ? a : b) : (x > y ? a : b);
        case MIN: return x != x ? a : y != y ? b : kind == F16 ? (x <= y ? a : b) : (x < y ? a : b);
        }
        const float z = single_of(kind, c);
        if (kind == F16)
            return float_to_half(x + y * z);
        return bits_of_single(F32, (float)((double)x + (double)y * (double)z));
    }
    const uint32_t mask = size_of(kind) == 2 ? 0xffff : 0xffffffff, bits = size_of(kind) * 8;
    switch (of->what) {
    case ADD: return (a + b) & mask;
    case SUB: return (a - b) & mask;
    case AND: return a & b;
    case OR: return a | b;
    case XOR: return a ^ b;
    case SLL: return b >= bits ? 0 : (a << b) & mask;
    case SLR: return b >= bits ? 0 : a >> b;
    }
    const int16_t amount = (int16_t)b; /* SAR of 16 bits */
    return (uint16_t)((int16_t)a >> (amount < 0 || amount > 15 ? 15 : amount));
}

static inline uint32_t get(const Core *core, int64_t size, int64_t at)
{
    uint32_t bits = 0;
    if (size == 2)
        memcpy(&bits, core->memory + at * 2, 2);
    else
        memcpy(&bits, core->memory + at * size, (size_t)size);
    return bits;
}

static inline void set(Machine *machine, Core *core, int64_t size, int64_t at, uint32_t bits)
{
    if (size == 2)
        memcpy(core->memory + at * 2, &bits, 2);
    else
        memcpy(core->memory + at * size, &bits, (size_t)size);
    if ((at + 1) * size > machine->touched)
        machine->touched = (at + 1) * size;
}

static int strides_of(const Vector *vector)
{
    for (int64_t axis = 0; axis < vector->axes; axis++)
        if (vector->stride[axis])
            return 1;
    return 0;
}

static int64_t forward(const Vector *vector, int64_t size, int64_t number)
{
    const int64_t step = vector->nbytes / size;
    return vector->base / size + number * vector->stride[0] * (step ? step : 1);
}

/* How many elements on end, from each multiple of it on, lie at places of their own (vectors.py, apart). */
static int64_t apart(const Vector *vector)
{
    for (int64_t first = 0; first < vector->axes; first++) {
        int64_t count = 1, reach = 0, before = -1;
        int fits = 1;
        for (int64_t axis = first; axis < vector->axes; axis++)
            count *= vector->extent[axis];
        for (int64_t turn = first; turn < vector->axes && fits; turn++) { /* from the shortest step on */
            int64_t at = -1;
            for (int64_t axis = first; axis < vector->axes; axis++) {
                const int64_t step = llabs(vector->stride[axis]);
                const int follows = before < 0 || step > llabs(vector->stride[before]) ||
                                    (step == llabs(vector->stride[before]) && axis > before);
                if (follows && (at < 0 || step < llabs(vector->stride[at])))
                    at = axis;
            }
            const int64_t step = llabs(vector->stride[at]);
            fits = vector->extent[at] <= 1 || step > reach;
            reach += step * (vector->extent[at] - 1);
            before = at;
        }
        if (fits)
            return count > 0 ? count : 1;
    }
    return 1;
}

/* Elements `begin` and on of an operation. `come`: wavelets of a source of the fabric, else NULL. The results go to
   `out`, or to memory where that is NULL. */
void compute(Machine *machine, Core *core, const Operation *of, const Value *target, const Value *sources,
             uint32_t *const *come, int64_t begin, int64_t count, uint32_t *out)
{
    uint32_t *rest[3] = {NULL, NULL, NULL};
    if (count <= 0)
        return;
    if (!out && target->vector.axes > 1 && strides_of(&target->vector)) {
        const int64_t piece = apart(&target->vector);
        for (int64_t some; (some = (begin / piece + 1) * piece - begin) < count; begin += some, count -= some) {
            /* it comes to its places again: what is stored there is read by then */
            compute(machine, core, of, target, sources, come, begin, some, NULL);
            if (machine->gives_up)
                return;
            for (int64_t number = 0; come && number < of->inputs; number++)
                rest[number] = come[number] ? come[number] + some : NULL;
            come = rest;
        }
    }
    make_room(machine, count);
    const int64_t size = size_of(of->takes), to_size = size_of(of->kind);
    uint32_t *given[3] = {NULL, NULL, NULL};
    int64_t *where = machine->room[0];
    for (int64_t number = 0; number < of->inputs; number++) {
        const Value *source = &sources[number];
        given[number] = machine->room[2 + number];
        if (come && come[number])
            for (int64_t at = 0; at < count; at++)
                given[number][at] = size == 2 ? come[number][at] & 0xffff : come[number][at];
        else if (source->kind == VECTOR) {
            if (!positions(machine, &source->vector, size, begin, count, where))
                return;
            for (int64_t at = 0; at < count; at++)
                given[number][at] = get(core, size, where[at]);
        } else {
            const uint32_t bits = bits_of(machine, of, *source);
            for (int64_t at = 0; at < count; at++)
                given[number][at] = size == 2 ? bits & 0xffff : bits;
        }
    }
    for (int64_t number = of->inputs; number < 3; number++)
        given[number] = given[0];
    if (out) {
        for (int64_t at = 0; at < count; at++)
            out[at] = one(of, given[0][at], given[1][at], given[2][at]);
        return;
    }
    const Vector *to = &target->vector;
    if (!positions(machine, to, to_size, begin, count, where))
        return;
    const int64_t place = to->base / to_size;
    if (!to->axes && of->inputs > 1 && sources[0].kind != VECTOR) { /* a running result */
        if (of->kind != of->takes)
            machine->gives_up = 1;
        uint32_t running = begin ? get(core, to_size, place) : given[0][0];
        for (int64_t at = 0; at < count; at++)
            running = one(of, running, given[1][at], given[2][at]);
        set(machine, core, to_size, place, running);
        return;
    }
    if (count > 1 && !strides_of(to)) { /* all to one place, and maybe from it */
        int same[3] = {0, 0, 0}, live[3] = {0, 0, 0}, any = 0;
        for (int64_t number = 0; number < of->inputs; number++) {
            const Value *source = &sources[number];
            same[number] = source->kind == VECTOR && !source->vector.fabric && source->vector.base == to->base &&
                           !strides_of(&source->vector);
            any = any || same[number];
            /* a vector that goes forward is read as it is by then: it may hold that place */
            live[number] = source->kind == VECTOR && !source->vector.fabric && source->vector.axes == 1 &&
                           source->vector.stride[0] > 0;
        }
        if (any && of->kind != of->takes)
            machine->gives_up = 1;
        for (int64_t at = any ? 0 : count - 1; at < count; at++) {
            uint32_t from[3];
            for (int number = 0; number < 3; number++)
                from[number] = same[number]   ? get(core, to_size, place)
                               : live[number] ? get(core, size, forward(&sources[number].vector, size, begin + at))
                                              : given[number][at];
            set(machine, core, to_size, place, one(of, from[0], from[1], from[2]));
        }
        return;
    }
    uint32_t *found = machine->room[5];
    if (of->what == MAC && of->kind == F16) /* most of what programs do */
        for (int64_t at = 0; at < count; at++)
            found[at] = float_to_half(half_to_float((uint16_t)given[0][at]) +
                                      half_to_float((uint16_t)given[1][at]) * half_to_float((uint16_t)given[2][at]));
    else
        for (int64_t at = 0; at < count; at++)
            found[at] = one(of, given[0][at], given[1][at], given[2][at]);
    for (int64_t at = 0; at < count; at++)
        set(machine, core, to_size, where[at], found[at]);
}
