/* Numbers of the program's types, as NumPy counts with them (arithmetic.py). */

#include "machine.h"

#include <math.h>

int64_t size_of(int64_t kind)
{
    return kind == I32 || kind == U32 || kind == F32 ? 4 : kind == I64 || kind == U64 ? 8 : 2;
}

int is_float(int64_t kind)
{
    return kind == F16 || kind == F32;
}

static Value whole(int64_t kind, int64_t number)
{
    Value value = {.kind = kind};
    switch (kind) {
    case I8: value.i = (int8_t)number; break;
    case U8: value.i = (uint8_t)number; break;
    case I16: value.i = (int16_t)number; break;
    case U16: value.i = (uint16_t)number; break;
    case I32: value.i = (int32_t)number; break;
    case U32: value.i = (uint32_t)number; break;
    default: value.i = number;
    }
    return value;
}

static Value real(int64_t kind, float number)
{
    Value value = {.kind = kind};
    value.f = kind == F16 ? half_to_float(float_to_half(number)) : number;
    return value;
}

Value load(const Core *core, int64_t kind, int64_t at)
{
    const char *from = core->memory + at * size_of(kind);
    Value value = {.kind = kind};
    uint16_t half;
    uint32_t word;
    float single;
    switch (kind) {
    case F16: memcpy(&half, from, 2), value.f = half_to_float(half); return value;
    case F32: memcpy(&single, from, 4), value.f = single; return value;
    case I32:
    case U32: memcpy(&word, from, 4); return whole(kind, word);
    case I64:
    case U64: memcpy(&value.i, from, 8); return value;
    default: memcpy(&half, from, 2); return whole(kind, half);
    }
}

void store(Machine *machine, Core *core, int64_t kind, int64_t at, Value value)
{
    const int64_t size = size_of(kind);
    char *to = core->memory + at * size;
    if (at < 0 || (at + 1) * size > machine->nbytes || value.kind >= NOTHING || is_float(kind) != is_float(value.kind)) {
        machine->gives_up = 1;
        return;
    }
    if (value.kind == WORD && size == 2 && (value.i < -32768 || value.i > 65535))
        machine->gives_up = 1;
    if ((at + 1) * size > machine->touched)
        machine->touched = (at + 1) * size;
    if (kind == F16) {
        const uint16_t half = float_to_half((float)value.f);
        memcpy(to, &half, 2);
    } else if (kind == F32) {
        const float single = (float)value.f;
        memcpy(to, &single, 4);
    } else
        memcpy(to, &value.i, (size_t)size);
}

Value convert(Machine *machine, Value value, int64_t kind)
{
    if (value.kind >= NOTHING) {
        machine->gives_up = 1;
        return value;
    }
    if (is_float(kind))
        return real(kind, is_float(value.kind) ? (float)value.f : (float)value.i);
    if (is_float(value.kind)) {
        if (isfinite(value.f) && fabs(value.f) > 9e18)
            machine->gives_up = 1;
        return whole(kind, isfinite(value.f) ? (int64_t)value.f : 0);
    }
    return whole(kind, value.i);
}

Value bitcast(Value value, int64_t kind)
{
    uint32_t bits = (uint32_t)value.i;
    if (value.kind == F16)
        bits = float_to_half((float)value.f);
    else if (value.kind == F32) {
        const float single = (float)value.f;
        memcpy(&bits, &single, 4);
    }
    Value found = {.kind = kind};
    if (kind == F16)
        found.f = half_to_float((uint16_t)bits);
    else if (kind == F32) {
        float single;
        memcpy(&single, &bits, 4);
        found.f = single;
    } else
        found = whole(kind, size_of(kind) == 8 ? value.i : (int64_t)bits);
    return found;
}

int truth(Value value)
{
    return is_float(value.kind) ? value.f != 0 : value.i != 0;
}

/* Operators, as lowering.py numbers them. */
enum { PLUS, MINUS, TIMES, OVER, BIT_AND, BIT_OR, BIT_XOR, LEFT, RIGHT, EQUAL, UNEQUAL, LESS, MORE, AT_MOST, AT_LEAST,
       DIVIDE, REMAINDER };

static Value whole_binary(Machine *machine, int64_t op, int64_t kind, int64_t a, int64_t b)
{
    const int is_u64 = kind == U64;
    const int64_t bits = kind == WORD ? 63 : kind == I8 || kind == U8 ? 8 : 8 * size_of(kind);
    switch (op) {
    case PLUS: return whole(kind, (int64_t)((uint64_t)a + (uint64_t)b));
    case MINUS: return whole(kind, (int64_t)((uint64_t)a - (uint64_t)b));
    case TIMES: return whole(kind, (int64_t)((uint64_t)a * (uint64_t)b));
    case BIT_AND: return whole(kind, a & b);
    case BIT_OR: return whole(kind, a | b);
    case BIT_XOR: return whole(kind, a ^ b);
    case LEFT: return whole(kind, b < 0 || b >= bits ? 0 : (int64_t)((uint64_t)a << b));
    case RIGHT:
        if (b < 0 || b >= bits)
            return whole(kind, a < 0 && !is_u64 ? -1 : 0);
        return whole(kind, is_u64 ? (int64_t)((uint64_t)a >> b) : a >> b);
    case EQUAL: return whole(WORD, a == b);
    case UNEQUAL: return whole(WORD, a != b);
    }
    if (is_u64 || (kind == I64 && (a == INT64_MIN || b == INT64_MIN)))
        machine->gives_up = 1; /* nobody was seen to do that */
    switch (op) {
    case LESS: return whole(WORD, a < b);
    case MORE: return whole(WORD, a > b);
    case AT_MOST: return whole(WORD, a <= b);
    case AT_LEAST: return whole(WORD, a >= b);
    case DIVIDE:
        if (!b && kind == WORD)
            break;
        return whole(kind, b ? a / b : -1);
    case REMAINDER:
        if (!b && kind == WORD)
            break;
        return whole(kind, b ? a % b : a);
    }
    machine->gives_up = 1;
    return whole(kind, 0);
}

Value binary(Machine *machine, int64_t op, Value a, Value b)
{
    int64_t kind = a.kind;
    if (a.kind != b.kind) { /* a number of Python takes the other's type */
        kind = a.kind == WORD ? b.kind : a.kind;
        if ((a.kind != WORD && b.kind != WORD) || is_float(kind) || op == LEFT || op == RIGHT)
            machine->gives_up = 1;
        if (whole(kind, a.i).i != a.i || whole(kind, b.i).i != b.i)
            machine->gives_up = 1;
    }
    if (kind >= NOTHING || machine->gives_up) {
        machine->gives_up = 1;
        return a;
    }
    if (!is_float(kind))
        return whole_binary(machine, op, kind, a.i, b.i);
    const float x = (float)a.f, y = (float)b.f;
    switch (op) {
    case PLUS: return real(kind, x + y);
    case MINUS: return real(kind, x - y);
    case TIMES: return real(kind, x * y);
    case OVER: return real(kind, x / y);
    case EQUAL: return whole(WORD, x == y);
    case UNEQUAL: return whole(WORD, x != y);
    case LESS: return whole(WORD, x < y);
    case MORE: return whole(WORD, x > y);
    case AT_MOST: return whole(WORD, x <= y);
    case AT_LEAST: return whole(WORD, x >= y);
    }
    machine->gives_up = 1;
    return a;
}

Value unary(Machine *machine, int64_t op, Value a)
{
    if (a.kind >= NOTHING) {
        machine->gives_up = 1;
        return a;
    }
    if (op == BIT_XOR) /* ~ */
        return whole(a.kind, ~a.i);
    if (is_float(a.kind)) {
        a.f = -a.f;
        return a;
    }
    return whole(a.kind, -a.i);
}
