/* The functions of a program, which lowering.py has made of their Python: a stack of values, a frame for each call. */

#include "machine.h"

enum {
    CONSTANT, LOCAL, SET_LOCAL, LOAD, STORE, OBJECT, SET_OBJECT, BINARY, UNARY, NOT, JUMP, JUMP_IF_NOT, SPEND, CALL,
    RETURN, POP, CONVERT, BITCAST, INTEGER, SET_BASE, SET_LENGTH, SET_STRIDE, INCREMENT, POINTER, LOAD_REGISTER, START,
    ACTIVATE, BLOCK, UNBLOCK, UNBLOCK_COMMANDS, STAMP, RESET_STAMPS, COORDINATE, MAP, MAP_NEXT, NATIVE, IN_RANGE, COPY,
    HOLDS, PLACE, MISSING,
};

enum { DEEPEST = 10000 }; /* calls within calls, far above Python's limit */

static void grow(Machine *machine, Core *core, int64_t wanted)
{
    if (core->top + wanted < core->stack_room)
        return;
    const int64_t wider = 2 * (core->top + wanted);
    core->stack = more(machine, core->stack, wider * (int64_t)sizeof *core->stack);
    core->stack_room = wider;
}

void push_value(Machine *machine, Core *core, Value value)
{
    grow(machine, core, 1);
    core->stack[core->top++] = value;
}

/* Its arguments are on the stack. */
void begin_function(Machine *machine, Core *core, int64_t function)
{
    const Function *of = &machine->functions[function];
    if (core->depth >= DEEPEST)
        machine->gives_up = 1; /* functions that call themselves without an end: Python, which has a limit, says so */
    if (core->depth == core->frame_room) {
        const int64_t wider = core->frame_room ? 2 * core->frame_room : 8;
        core->frames = more(machine, core->frames, wider * (int64_t)sizeof *core->frames);
        core->frame_room = wider;
    }
    Frame *frame = &core->frames[core->depth++];
    frame->at = of->begin, frame->base = core->top - of->arguments, frame->mapping = NULL;
    grow(machine, core, of->locals + 32);
    for (int64_t number = of->arguments; number < of->locals; number++)
        core->stack[core->top++].kind = NOTHING;
}

static Value word(int64_t number)
{
    Value value = {.kind = WORD, .i = number};
    return value;
}

static void begin_map(Machine *machine, Core *core, Frame *frame, const Map *of)
{
    Mapping *mapping = more(machine, NULL, sizeof *mapping);
    memset(mapping, 0, sizeof *mapping);
    mapping->of = of;
    mapping->count = -1;
    for (int64_t number = of->operands + of->writes; number-- > 0;) {
        Value value = core->stack[--core->top];
        if (value.kind == VECTOR) {
            const int64_t extent = extent_of(&value.vector);
            if (value.vector.fabric)
                machine->gives_up = 1;
            if (value.vector.axes && (mapping->count < 0 || extent < mapping->count))
                mapping->count = extent;
        } else if (number == of->operands || value.kind == REGISTER)
            machine->gives_up = 1;
        *(number == of->operands ? &mapping->target : &mapping->operands[number]) = value;
    }
    if (mapping->count < 0)
        mapping->count = 1;
    frame->mapping = mapping;
    core->t += machine->costs.map_start;
}

/* The next element's arguments are put on the stack, or the map is over. */
static int next_of_map(Machine *machine, Core *core, Frame *frame)
{
    Mapping *mapping = frame->mapping;
    const Map *of = mapping->of;
    int64_t where;
    if (mapping->at) { /* the result of the one before */
        const Value found = core->stack[--core->top];
        const Value *target = &mapping->target;
        if (of->writes) {
            const int64_t kind = of->kinds[of->operands];
            if (positions(machine, &target->vector, size_of(kind), mapping->at - 1, 1, &where))
                store(machine, core, kind, where, found);
        }
    }
    if (mapping->at == mapping->count) {
        core->mapping = 0;
        free(mapping);
        frame->mapping = NULL;
        return 0;
    }
    core->t += machine->costs.map_step;
    core->mapping = 1;
    for (int64_t number = 0; number < of->operands; number++) {
        Value value = mapping->operands[number];
        if (value.kind == VECTOR) {
            if (!positions(machine, &value.vector, size_of(of->kinds[number]), mapping->at, 1, &where))
                return 0;
            value = load(core, of->kinds[number], where);
        }
        push_value(machine, core, value);
    }
    mapping->at++;
    begin_function(machine, core, of->function);
    return 1;
}

static void stamp(Machine *machine, Core *core, int64_t to)
{
    const int64_t now = (int64_t)(core->t - core->counted_from);
    for (int part = 0; part < 3; part++)
        store(machine, core, U16, to / 2 + part, (Value){.kind = U16, .i = now >> 16 * part & 0xffff});
}

/* Go on with a core's task. ENDED, WAITS for core->awaited, ASKS for a function of Python's. */
int run_code(Machine *machine, Core *core)
{
    for (;;) {
        Frame *frame = &core->frames[core->depth - 1];
        const int32_t *code = machine->code + 4 * frame->at++;
        const int32_t a = code[1], b = code[2], c = code[3];
        Value *top = core->stack + core->top;
        Value value;
        if (machine->gives_up)
            return ENDED;
        switch (code[0]) {
        case CONSTANT: push_value(machine, core, machine->constants[a]); break;
        case LOCAL: push_value(machine, core, core->stack[frame->base + a]); break;
        case SET_LOCAL: core->stack[frame->base + a] = top[-1], core->top--; break;
        case LOAD:
            if (top[-1].i < 0 || (top[-1].i + 1) * size_of(a) > machine->nbytes)
                machine->gives_up = 1;
            else
                top[-1] = load(core, a, top[-1].i);
            break;
        case STORE: core->top -= 2, store(machine, core, a, top[-1].i, top[-2]); break;
        case OBJECT: push_value(machine, core, core->objects[a]); break;
        case SET_OBJECT: core->objects[a] = top[-1], core->top--; break;
        case BINARY: top[-2] = binary(machine, a, top[-2], top[-1]), core->top--; break;
        case UNARY: top[-1] = unary(machine, a, top[-1]); break;
        case NOT: top[-1] = word(!truth(top[-1])); break;
        case JUMP: /* a loop that has no end is one event */
            if (a <= frame->at && !(++machine->turns & 0xfffff) && interrupted())
                machine->gives_up = 1;
            frame->at = a;
            break;
        case JUMP_IF_NOT:
            core->top--;
            if (!truth(top[-1]))
                frame->at = a;
            break;
        case SPEND: core->t += machine->constants[a].f; break;
        case CALL: begin_function(machine, core, a); break;
        case RETURN:
            value = top[-1];
            core->top = frame->base;
            core->depth--;
            if (!core->depth)
                return ENDED;
            push_value(machine, core, value);
            break;
        case POP: core->top--; break;
        case CONVERT: top[-1] = convert(machine, top[-1], a); break;
        case BITCAST: top[-1] = bitcast(top[-1], a); break;
        case PLACE: /* of numbers of 2 to the a bytes; Python says what is wrong with an address between two */
            if (top[-1].kind != WORD || top[-1].i & ((1 << a) - 1))
                machine->gives_up = 1;
            else
                top[-1].i >>= a;
            break;
        case INTEGER: top[-1] = is_float(top[-1].kind) ? word((int64_t)top[-1].f) : word(top[-1].i); break;
        case SET_BASE:
        case SET_LENGTH:
        case SET_STRIDE:
        case INCREMENT:
            core->top--;
            if (top[-2].kind != VECTOR || (top[-2].vector.fabric && code[0] != SET_LENGTH) ||
                (!top[-2].vector.axes && code[0] != SET_BASE && code[0] != INCREMENT) || top[-1].kind >= NOTHING ||
                (code[0] == SET_LENGTH && top[-1].i < 0)) {
                machine->gives_up = 1;
                break;
            }
            if (code[0] == SET_BASE)
                top[-2].vector.base = (int32_t)top[-1].i;
            else if (code[0] == SET_LENGTH)
                top[-2].vector.extent[0] = (int32_t)top[-1].i;
            else if (code[0] == SET_STRIDE)
                top[-2].vector.stride[0] = (int32_t)top[-1].i;
            else
                top[-2].vector.base += (int32_t)(top[-1].i * a);
            break;
        case POINTER:
            value = (Value){.kind = VECTOR};
            value.vector.nbytes = a, value.vector.base = (int32_t)top[-1].i, value.vector.simd = b;
            top[-1] = value;
            break;
        case LOAD_REGISTER:
            core->top--;
            core->registers[a] = top[-1];
            core->held[a] = machine->options[b];
            break;
        case START: {
            core->top -= b;
            Pending *pending = start(machine, core, &machine->operations[a], core->stack + core->top, b,
                                     &machine->options[c]);
            if (pending) {
                core->awaited = pending;
                return WAITS;
            }
            break;
        }
        case ACTIVATE:
        case BLOCK:
        case UNBLOCK:
            core->top--;
            if (top[-1].i < 0 || top[-1].i >= TASKS)
                machine->gives_up = 1;
            else if (code[0] == ACTIVATE)
                activate(machine, core, top[-1].i, core->t);
            else
                core->blocked[top[-1].i] = code[0] == BLOCK;
            if (code[0] == UNBLOCK)
                wake(machine, core, core->t);
            break;
        case UNBLOCK_COMMANDS:
            core->open = 1;
            wake(machine, core, core->t);
            break;
        case STAMP: core->top--, stamp(machine, core, top[-1].i); break;
        case RESET_STAMPS: core->counted_from = core->t; break;
        case COORDINATE: push_value(machine, core, word(a ? core->y : core->x)); break;
        case MAP: begin_map(machine, core, frame, &machine->maps[a]); break;
        case MAP_NEXT:
            if (!next_of_map(machine, core, frame))
                frame->at = a;
            break;
        case NATIVE:
            machine->native = a, machine->native_arguments = b;
            return ASKS;
        case IN_RANGE: /* of a number that goes from `begin` to `end` by `step` */
            value = core->stack[frame->base + a];
            if (!core->stack[frame->base + a + 2].i)
                machine->gives_up = 1;
            if (core->stack[frame->base + a + 2].i >= 0 ? value.i >= core->stack[frame->base + a + 1].i
                                                        : value.i <= core->stack[frame->base + a + 1].i)
                frame->at = b;
            break;
        case COPY: { /* an array: b numbers of a kind; the places are on the stack, the target's first */
            const int64_t size = size_of(a), to = top[-2].i * size, from = top[-1].i * size, bytes = b * size;
            core->top -= 2;
            if (to < 0 || from < 0 || to + bytes > machine->nbytes || from + bytes > machine->nbytes) {
                machine->gives_up = 1;
                break;
            }
            memmove(core->memory + to, core->memory + from, (size_t)bytes);
            if (to + bytes > machine->touched)
                machine->touched = to + bytes;
            break;
        }
        case HOLDS:
            core->top--;
            if (!truth(top[-1]))
                machine->gives_up = 1;
            break;
        default: machine->gives_up = 1;
        }
    }
}
