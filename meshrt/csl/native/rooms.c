/* What a sender knows of the room at a core (room.py). */

#include "machine.h"

/* What is free from now on. Where that is more, as the core finds at a time, those who wait look again. */
void note_at(Machine *machine, Room *room, double now, int64_t free, double time)
{
    const int grows = room->count && free > room->known[room->begin + room->count - 1].free;
    while (room->count > 1 && room->known[room->begin + 1].since + machine->reach <= now)
        room->begin++, room->count--; /* nobody asks any more what was known before */
    if (room->begin > 32 && room->begin > room->count) {
        memmove(room->known, room->known + room->begin, (size_t)room->count * sizeof *room->known);
        room->begin = 0;
    }
    room->known = one_more(machine, room->known, room->begin + room->count, &room->room, sizeof *room->known);
    room->known[room->begin + room->count++] = (Known){now, free};
    if (!grows)
        return;
    if (room->told_count && room->told[room->told_begin + room->told_count - 1] > time)
        time = room->told[room->told_begin + room->told_count - 1];
    while (room->told_count && room->told[room->told_begin] + machine->reach <= now)
        room->told_begin++, room->told_count--;
    if (room->told_begin > 32 && room->told_begin > room->told_count) {
        memmove(room->told, room->told + room->told_begin, (size_t)room->told_count * 8);
        room->told_begin = 0;
    }
    room->told = one_more(machine, room->told, room->told_begin + room->told_count, &room->told_room, 8);
    room->told[room->told_begin + room->told_count++] = time;
    int64_t kept = 0;
    for (int64_t place = 0; place < room->waiting; place++) {
        const Waiter one = room->waiters[place];
        if (time + one.later > one.since)
            poll_at(machine, time + one.later, one.core, room->number);
        else
            room->waiters[kept++] = one;
    }
    room->waiting = kept;
}

/* Write down what room there is now. */
void note(Machine *machine, Core *core, int64_t color)
{
    Room *room = &core->rooms[color];
    int64_t free = -available(&core->arrived[color]);
    for (int64_t place = 0; place < core->pendings; place++)
        if (reads(core->pending[place], color))
            free += core->pending[place]->total - core->pending[place]->done;
    if (free == room->known[room->begin + room->count - 1].free)
        return;
    const double now = machine->now, time = core->t > now ? core->t : now;
    const int grows = free > room->known[room->begin + room->count - 1].free;
    note_at(machine, room, now, free, time);
    for (int64_t number = 0; number < room->readers; number++) {
        int64_t *words = say(machine, room->reader[2 * number], 5);
        words[0] = NOTE, words[1] = room->reader[2 * number + 1], words[2] = free;
        memcpy(words + 3, &now, 8);
        memcpy(words + 4, &time, 8);
        if (grows && time < machine->soonest)
            machine->soonest = time; /* somebody may look again, a hop later or more */
    }
}

/* What is known of it at a core that is so many cycles away. */
static int64_t known(const Room *room, double now, double later)
{
    for (int64_t place = room->begin + room->count - 1; place > room->begin; place--)
        if (room->known[place].since + later <= now)
            return room->known[place].free;
    return room->known[room->begin].free;
}

static int64_t in_flight(Flying *flying, double now, double later)
{
    int64_t total = 0;
    while (flying->count && flying->flights[flying->begin].head + later <= now)
        flying->begin++, flying->count--;
    if (!flying->count)
        flying->begin = 0;
    for (int64_t place = flying->begin; place < flying->begin + flying->count; place++)
        total += flying->flights[place].count;
    return total;
}

/* There was none: look again as soon as something is known that was not, or be told. */
static void wait_for(Machine *machine, Room *room, int64_t core, double now, double later)
{
    int64_t place = room->told_begin + room->told_count;
    while (place > room->told_begin && room->told[place - 1] + later > now)
        place--;
    if (place < room->told_begin + room->told_count) {
        poll_at(machine, room->told[place] + later, core, room->number);
        return;
    }
    room->waiters =
        one_more(machine, room->waiters, room->waiting, &room->waiters_room, sizeof *room->waiters);
    room->waiters[room->waiting++] = (Waiter){core, now, later};
}

/* How many wavelets the way and the queues at its ends take, by what is known here. */
int64_t room_ahead(Machine *machine, Core *core, int64_t color, int64_t asked)
{
    Path *path = color < 0 ? NULL : &core->paths[color];
    if (!path || !path->known) {
        machine->gives_up = 1;
        return 0;
    }
    if (!path->flying) {
        path->flying = more(machine, NULL, path->ends * (int64_t)sizeof *path->flying + 1);
        memset(path->flying, 0, (size_t)path->ends * sizeof *path->flying);
    }
    for (int64_t number = 0; number < path->ends; number++) {
        const int64_t *to = path->end + 5 * number;
        Room *there = to[0] < 0 ? &machine->far[to[4]] : &machine->cores[to[0]].rooms[to[2]];
        const double later = (double)to[1] * machine->costs.hop;
        const int64_t free = (to[3] ? 0 : (int64_t)machine->costs.queue + 2 * to[1]) + known(there, machine->now, later)
                             - in_flight(&path->flying[number], machine->now, later);
        if (free <= 0)
            wait_for(machine, there, core - machine->cores, machine->now, later);
        if (free < asked)
            asked = free;
    }
    return asked > 0 ? asked : 0;
}
