"""Is a link given to the head that asks first? Where transfers follow each other in a program, that is not certain.

A transfer is replayed when the program starts it. If a later one has a head that asked for a link before one of the
earlier transfer did, it goes before that where the link was idle for long enough; else it waits, where on the machine
the other would have. Such heads are counted: `out_of_order`, and the longest of their waits. A run that counts none is
exact to the cycle.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.mesh.cores import Cores
from meshrt.mesh.wires.lines import Positions
from meshrt.mesh.wires.tables import Channel, is_left

if TYPE_CHECKING:
    from meshrt.mesh.wires.lines import View
    from meshrt.mesh.wires.schedule import Schedule


# A channel's transfers of which nobody kept when heads asked for links, by schedule and views: how long they took, and
# when the links were free before, if there was one alone.
Unseen = dict[tuple[int, int], tuple[Any, Any, float | np.ndarray, list[np.ndarray] | None]]
Users = dict[Channel, Unseen]


class Fixed(dict[Channel, Unseen]):
    """Users that are not changed any more: who would, takes a copy (`thawed`)."""


def thawed(users: Users) -> Users:
    return {channel: dict(unseen) for channel, unseen in users.items()}


def fixed(users: Users, states: dict[Any, Fixed]) -> Fixed:
    """The same, not to be changed any more: one for all that are alike. `states` has those that were made before.

    What differs between such is in rooms: how long transfers took, and when links were free before.
    """
    if isinstance(users, Fixed):
        return users
    kept: Users = {}
    for channel, unseen in users.items():
        kept[channel] = {}
        for use, (schedule, views, busy, before) in unseen.items():
            busy_room, before_room = rooms(channel, use, before)
            busy_room[...] = busy
            for room, kept_before in zip(before_room or (), before or (), strict=True):
                room[...] = kept_before
            kept[channel][use] = schedule, views, busy_room, before_room
    key = tuple(
        (channel, *((*use, id(busy), id(before)) for use, (_, _, busy, before) in unseen.items()))
        for channel, unseen in kept.items()
    )
    return states.setdefault(key, Fixed(kept))


def rooms(
    channel: Channel, use: tuple[int, int], before: list[np.ndarray] | None
) -> tuple[np.ndarray, list[np.ndarray] | None]:
    """Where to keep, each time, how long that transfer took, and what is like `before`."""
    busy: np.ndarray = channel.cache.setdefault(("busy", use), np.empty(1))
    return busy, None if before is None else channel.cache.setdefault(("before", use), before)


def before_use(block: Cores, schedule: "Schedule", views: "tuple[View, ...]") -> list[np.ndarray]:
    """When the links are free that a transfer's packets cross."""
    return [free.get().copy() for _, free, _ in _links(block, schedule, views)]


def begin_use(
    block: Cores, channel: Channel, schedule: "Schedule", views: "tuple[View, ...]", apart: bool, whole: bool,
    busy: float,
) -> bool:  # fmt: skip
    """A transfer begins: must its heads be checked at links, and be kept? All ranks find the same.

    Not where its channel was there, from all sources on all lines (`whole`), nobody else has been on its links since,
    and no two of its routes share a link (`apart`): what comes from the same cores the same way stays in order.
    """
    if channel.axis is None or schedule.whole_block or not apart:
        end_of_use(block)
        return True
    users: Users = block.clock.users
    if type(users) is not dict:
        users = block.clock.users = thawed(users)
    unseen = users.get(channel)
    if unseen is not None:
        before = None if unseen else before_use(block, schedule, views)
        unseen[id(schedule), id(views)] = schedule, views, busy, before
        return False
    for other in give_way(users, channel):
        _end(block, users.pop(other))
    if whole:
        users[channel] = {}
    return True


def give_way(users: Users, channel: Channel) -> list[Channel]:
    """Who is on links of that channel, or is no more."""
    shared: dict[int, bool] = channel.cache.setdefault("shares links", {})
    gone = []
    for other in users:
        shares = shared.get(other.number)
        if shares is None:
            shares = shared[other.number] = _share_links(channel, other)
        if shares or is_left(other):
            gone.append(other)
    return gone


def _share_links(channel: Channel, other: Channel) -> bool:
    """Does any link belong to routes of both?"""
    return other.axis == channel.axis and bool((other.links[:4] & channel.links[:4]).any())


def end_of_use(block: Cores) -> None:
    """Others come, who may go over any link."""
    users, block.clock.users = block.clock.users, {}
    for unseen in users.values():
        _end(block, unseen)


def _end(block: Cores, unseen: Unseen) -> None:
    """Where it was not kept when heads asked for links, it is taken to be when they got them.

    Before that the links were idle since the transfer before; where that is not known, none of the time is given away.
    """
    for schedule, views, busy, before in unseen.values() if unseen else ():
        for at, (asked_at, free, idle) in enumerate(_links(block, schedule, views)):
            ask_times, idle_from = asked_at.get(), idle.get()
            taken_at = free.get() - busy
            since = taken_at if before is None or len(unseen) > 1 else before[at]
            np.copyto(idle_from, since, where=taken_at > ask_times)
            np.maximum(ask_times, taken_at, out=ask_times)
            idle.put(idle_from)
            asked_at.put(ask_times)


def _links(
    block: Cores, schedule: "Schedule", views: "tuple[View, ...]"
) -> list[tuple[Positions, Positions, Positions]]:
    """Of the links that a transfer's packets cross: when they were asked for, are free, and were idle from."""
    clock = block.clock
    links: list[tuple[Positions, Positions, Positions]] | None = schedule.cache.get(views)
    if links is None:
        links = schedule.cache[views] = [
            tuple(Positions(view.of(array[way]), cores) for array in (clock.asked_at, clock.link_free, clock.idle))
            for view in views
            for way, cores, _ in schedule.crossings
        ]
    return links


def give(
    block: Cores, times: np.ndarray, busy: float | np.ndarray, free: np.ndarray, asked_at: np.ndarray, idle: np.ndarray
) -> None:
    """Heads ask for links at these times, each of them for another: the times become those at which they get them.

    `free`: when the links are free; `asked_at`: when the heads asked that they were last given to; `idle`: from when on
    they were idle before that, until then. All are brought up to date. A head that asked in that time, and is over
    before its end, goes then.
    """
    if block.core is not None and not isinstance(busy, np.ndarray):
        count(block, *block.core.give(times, busy, free, asked_at, idle))
        return
    if not some(free > times):  # nor did a later one ask: it is free no sooner than it was asked for
        idle[...] = free
        asked_at[...] = times
        np.add(times, busy, out=free)
        return
    late = asked_at > times
    if some(late):
        _give_late(block, times, busy, free, asked_at, idle, np.nonzero(late))
        return
    idle[...] = free
    asked_at[...] = times
    np.maximum(times, free, out=times)
    np.add(times, busy, out=free)


def some(marks: np.ndarray) -> bool:
    """Is any of them marked (bool)? Many times as fast as any() where they are few."""
    return 1 in marks.tobytes("A")


def _give_late(
    block: Cores, times: np.ndarray, busy: float | np.ndarray, free: np.ndarray, asked_at: np.ndarray, idle: np.ndarray,
    late: tuple[np.ndarray, ...],
) -> None:  # fmt: skip
    """As `give`, where some links were given before to heads that ask later than now."""
    ask, until, low, high = times[late], free[late], idle[late], asked_at[late]
    each = busy[late] if isinstance(busy, np.ndarray) else busy
    begin = np.maximum(ask, low)
    inside = begin + each <= high
    begin = np.where(inside, begin, until)
    held_up = ~(inside & (ask >= low))
    count(block, int(np.count_nonzero(held_up)), float((begin - ask)[held_up].max(initial=0.0)))
    idle[...] = free
    asked_at[...] = times
    np.maximum(times, free, out=times)
    times[late] = begin
    np.add(times, busy, out=free)
    idle[late], asked_at[late] = np.where(inside, begin + each, until), high
    free[late] = np.where(inside, until, until + each)


def count(block: Cores, packets: int, longest_wait: float) -> None:
    """So many heads waited at links for one that asked later, at most so many cycles."""
    if packets:
        block.counters.out_of_order += packets
        block.counters.longest_wait = max(block.counters.longest_wait, longest_wait)
