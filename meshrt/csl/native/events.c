/* What happens, in the order of time; memory for all that grows. */

#include "machine.h"

/* A larger piece of memory, with what is in the old one; where there is none, the run ends (module.c), and what is in no
   list yet is lost. */
void *more(Machine *machine, void *old, int64_t bytes)
{
    void *found = realloc(old, (size_t)bytes);
    if (!found)
        longjmp(machine->no_memory, 1);
    return found;
}

/* An array of `count` things of `size` bytes with room for one more. */
void *one_more(Machine *machine, void *items, int64_t count, int64_t *room, int64_t size)
{
    if (count < *room)
        return items;
    const int64_t wider = *room ? 2 * *room : 4;
    items = more(machine, items, wider * size);
    *room = wider;
    return items;
}

void push(Machine *machine, List *list, int64_t item)
{
    list->items = one_more(machine, list->items, list->count, &list->room, sizeof item);
    list->items[list->count++] = item;
}

/* Of equal times the order is that of cores, then of who caused it, then of how many that one had caused. */
static int before(const Event *a, const Event *b)
{
    if (a->time != b->time)
        return a->time < b->time;
    if (a->core != b->core)
        return a->core < b->core;
    return a->by != b->by ? a->by < b->by : a->order < b->order;
}

/* Nothing happens before what happens now. */
void put_event(Machine *machine, Event event)
{
    if (machine->now > event.time)
        event.time = machine->now;
    machine->heap = one_more(machine, machine->heap, machine->events_waiting, &machine->heap_room, sizeof event);
    Event *heap = machine->heap;
    int64_t place = machine->events_waiting++;
    while (place && before(&event, &heap[(place - 1) / 2])) {
        heap[place] = heap[(place - 1) / 2];
        place = (place - 1) / 2;
    }
    heap[place] = event;
}

/* Something that a core does at a time, by itself. */
void at(Machine *machine, double time, Core *core, int kind, Pending *pending)
{
    put_event(machine, (Event){.time = time, .order = ++core->sequence, .core = (int32_t)(core - machine->cores),
                               .by = (int32_t)core->number, .kind = (int16_t)kind, .pending = pending});
}

void effect_at(Machine *machine, double time, Core *core, const Options *options, Chain chain)
{
    put_event(machine, (Event){.time = time, .order = ++core->sequence, .core = (int32_t)(core - machine->cores),
                               .by = (int32_t)core->number, .kind = EFFECT, .activate = (int32_t)options->activate,
                               .unblock = (int32_t)options->unblock, .chain = chain});
}

/* Room was made at another core. */
void poll_at(Machine *machine, double time, int64_t core, int64_t by)
{
    put_event(machine, (Event){.time = time, .core = (int32_t)core, .by = (int32_t)by, .kind = POLL});
}

void wake(Machine *machine, Core *core, double time)
{
    if (core->running || core->scheduled)
        return;
    core->scheduled = 1;
    at(machine, time > core->t ? time : core->t, core, RUN, NULL);
}

/* Ready from that time on, if it is not yet. */
static void make_ready(Machine *machine, Core *core, int64_t number, double time)
{
    if (core->is_ready[number])
        return;
    core->is_ready[number] = 1;
    core->ready[number] = time;
    push(machine, &core->numbers_ready, number);
}

void activate(Machine *machine, Core *core, int64_t number, double time)
{
    make_ready(machine, core, number, time);
    wake(machine, core, core->t);
}

void effect(Machine *machine, Core *core, double time, int64_t activate, int64_t unblock, Chain chain)
{
    if (activate >= 0 && !core->is_ready[activate]) {
        make_ready(machine, core, activate, time);
        core->caused[activate] = time, core->causes[activate] = chain;
    }
    if (unblock >= 0 && core->blocked[unblock]) {
        core->blocked[unblock] = 0;
        core->caused[unblock] = time, core->causes[unblock] = chain;
    }
    if (activate >= 0 || unblock >= 0)
        wake(machine, core, time);
}

/* The first of all. */
Event next_event(Machine *machine)
{
    Event *heap = machine->heap, first = heap[0], last = heap[--machine->events_waiting];
    int64_t place = 0;
    for (;;) {
        int64_t next = 2 * place + 1;
        if (next >= machine->events_waiting)
            break;
        if (next + 1 < machine->events_waiting && before(&heap[next + 1], &heap[next]))
            next++;
        if (!before(&heap[next], &last))
            break;
        heap[place] = heap[next];
        place = next;
    }
    heap[place] = last;
    return first;
}
