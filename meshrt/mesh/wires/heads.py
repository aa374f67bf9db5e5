"""Heads of packets that may meet at a link: moved in the order of virtual time, whichever transfer they are of.

Where the packets of a transfer share links, a replay tick by tick would give a link to the packet with fewer hops
behind it, even if that comes later. So such transfers are put here when they are started, and with them all that are
started after them. When a core next waits for anything, the heads of all of them are moved one by one: what happens
next in virtual time happens next. Of heads that are at a router together the one of the transfer that was started first
goes first, then the one with fewer hops, then the one from the lowest port. Tiles have been moved already; what is
found here is when.

Ranks agree on a horizon, before which nothing can come to them any more: the earliest head of all, and a hop. All
heads before it are moved, those that cross an edge are handed over, and so on. That is control traffic.
"""

from functools import cached_property
from heapq import heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.mesh.cores import Cores
from meshrt.mesh.mesh import OPPOSITE, RAMP
from meshrt.mesh.wires import order
from meshrt.mesh.wires.lines import Index
from meshrt.mesh.wires.schedule import Schedule
from meshrt.records import dataclass

if TYPE_CHECKING:
    from meshrt.mesh.wires.lane import Landing, Lane

Head = tuple[float, int, int, int, int, int, int]  # time, transfer, hops, port in, number of its lane, line, slot


@dataclass(frozen=True)
class Passage:
    """How the packets of one transfer pass: cycles for which each keeps a link busy (0: no link has a width) and the
    ramp that it is delivered by; whether a core goes on with its head or, as usual, its tail; whether its heads are
    checked at links (order.py); and, where they have still to be moved, the lanes that wait for that.
    """

    busy: float
    taking: float
    stream: bool = False
    watch: bool = False
    waiting: "list[Waiting] | None" = None

    @cached_property
    def tail(self) -> float:
        """Cycles from when a packet is given its ramp until the core has what it waits for."""
        return 0.0 if self.stream else self.busy

    @property
    def pace(self) -> tuple[float, float]:
        """Cycles of the ramp, and until the core has what it waits for."""
        return self.taking, self.tail


@dataclass(frozen=True, eq=False)
class Waiting:
    """A lane of a transfer whose heads have still to be moved. Transfers are numbered as they are started."""

    number: int
    part: int  # which of the transfer's lanes
    lane: "Lane"
    starts: list[tuple[range, np.ndarray]]  # (lines, times [lines, slots] at which packets leave their cores)
    busy: float
    landing: "Landing"


@dataclass(frozen=True, eq=False)
class Course:
    """Where the packets of a schedule go, by slot and hops: which ports they leave by, and where they are delivered."""

    leaves: dict[tuple[int, int], list[tuple[int, int, int, int | None]]]  # port, core, slot, position in a message
    ends: dict[tuple[int, int], int]  # number among what is delivered
    enters: dict[tuple[int, int, int], int]  # (hops, port in, position in the message) -> slot


def resolve(block: Cores) -> None:
    """Move the heads of all that waits: landings then know when packets ask for ramps. All ranks call it together."""
    clock = block.clock
    flights, clock.heads = clock.heads, []
    if not flights:
        return
    order.end_of_use(block)
    waiting_lanes = [waiting for flight in flights for waiting in flight]
    index_of = {(waiting.number, waiting.part): index for index, waiting in enumerate(waiting_lanes)}
    courses = [_course(waiting.lane.schedule) for waiting in waiting_lanes]
    heads: list[Head] = []
    for index, waiting in enumerate(waiting_lanes):
        for lines, starts in waiting.starts:
            sources = chain.from_iterable(
                np.arange(batch.slots)[slots].tolist()
                for batch in waiting.lane.schedule.batches
                for slots, _ in batch.sources
            )
            for slot in sources:
                for line, time in zip(lines, starts[:, slot].tolist(), strict=True):
                    heappush(heads, (time, waiting.number, 0, RAMP, index, line, slot))
    alone = block.control.size == 1
    neighbours = block.mesh.neighbours(range(4))
    while True:
        horizon = _horizon(block, heads[0] if heads else None)
        if horizon is None:
            return
        outbox: dict[int, list[Any]] = {}
        while heads and heads[0] < horizon:
            _move(block, heads, heappop(heads), waiting_lanes, courses, outbox)
        if alone:
            continue
        arrived = block.scouts.swap(neighbours, [outbox.get(port) for _, port, _ in neighbours])
        for (_, port, _), packets in zip(neighbours, arrived, strict=True):
            for time, number, hops, part, line, position in packets or ():
                index = index_of[number, part]
                heappush(heads, (time, number, hops, port, index, line, courses[index].enters[hops, port, position]))


def _horizon(block: Cores, first: Head | None) -> tuple[Any, ...] | None:
    """What the heads that may be moved now are before, on all ranks; None where there are none anywhere.

    One rank may move all it has. Where a hop takes no time only the very first may move: (time, transfer, hops).
    """
    if block.control.size == 1:
        return None if first is None else (np.inf,)
    if block.device.alpha:
        least = block.scouts.least(np.inf if first is None else first[0])
        return None if least == np.inf else (least + block.device.alpha,)
    nobody = (np.inf, 0, 0)
    earliest: tuple[Any, ...] = block.scouts.allreduce(nobody if first is None else first[:3], min)
    return None if earliest == nobody else (*earliest, np.inf)


def _move(
    block: Cores,
    heads: list[Head],
    head: Head,
    waiting_lanes: list[Waiting],
    courses: list[Course],
    outbox: dict[int, Any],
) -> None:
    """A head is at a router: it leaves by all ports that its packet's route leaves by."""
    time, number, hops, _, index, line, slot = head
    waiting, course, clock = waiting_lanes[index], courses[index], block.clock
    end = course.ends.get((slot, hops))
    if end is not None:
        waiting.landing.time[line, end] = time
    view = waiting.lane.view
    for port, core, next_slot, crossing in course.leaves.get((slot, hops), ()):
        link = line, slice(core, core + 1)
        free, asked_at, idle = (view.of(array[port])[link] for array in (clock.link_free, clock.asked_at, clock.idle))
        start = np.array([time])
        order.give(block, start, waiting.busy, free, asked_at, idle)
        if clock.links is not None:
            clock.links.head(waiting, port, line, core, slot, hops, time, float(start[0]))
        after = float(start[0]) + block.device.alpha
        if clock.late is not None:
            after += float(view.of(clock.late[port])[line, core])
        if crossing is None:
            heappush(heads, (after, number, hops + 1, OPPOSITE[port], index, line, next_slot))
        else:
            outbox.setdefault(port, []).append((after, number, hops + 1, waiting.part, line, crossing))


def _course(schedule: Schedule) -> Course:
    """Made once for a schedule."""
    course: Course | None = schedule.cache.get(Course)
    if course is None:
        course = schedule.cache[Course] = Course({}, {}, {})
        for batch in schedule.batches:
            _enter(course, batch)
    return course


def _enter(course: Course, batch: Any) -> None:
    def all_of(index: Index) -> list[int]:
        slots: list[int] = np.arange(batch.slots)[index].tolist()
        return slots

    for tick in batch.ticks:
        parent = dict[int, int]()
        for parents, copies in tick.branches:
            parent.update(zip(all_of(copies), all_of(parents), strict=True))
        crossing = {slot: position for message in tick.sends for position, slot in enumerate(all_of(message.slots))}
        for message in tick.recvs:
            for position, slot in enumerate(all_of(message.slots)):
                course.enters[tick.number, message.port, position] = slot
        for port, slots, cores in tick.moves:
            at = np.arange(cores.stop)[cores] if isinstance(cores, slice) else cores
            for slot, core in zip(all_of(slots), at.tolist(), strict=True):
                begins = parent.get(slot, slot), tick.number - 1
                course.leaves.setdefault(begins, []).append((port, core, slot, crossing.get(slot)))
        for slots, _, numbers in tick.deliveries:
            of = np.arange(numbers.stop)[numbers] if isinstance(numbers, slice) else numbers
            for slot, number in zip(all_of(slots), of.tolist(), strict=True):
                course.ends[slot, tick.number] = number
