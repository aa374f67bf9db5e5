"""Heads of packets that may meet at a link: moved in the order of virtual time, whichever transfer they are of.

Where the packets of a transfer share links, a replay tick by tick would give a link to the packet with fewer hops
behind it, even if that comes later. So such transfers are put here when they are started, and when a core next waits
for anything, the heads of all of them are moved one by one: what happens next in virtual time happens next. Of heads
that are at a router together the one of the transfer that was started first goes first, then the one with fewer hops,
then the one from the lowest port. Tiles have been moved already; what is found here is when.

Ranks agree on a horizon, before which nothing can come to them any more: the earliest head of all, and a hop. All
heads before it are moved, those that cross an edge are handed over, and so on. That is control traffic.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.mesh.cores import Cores
from meshrt.mesh.mesh import OPPOSITE, RAMP
from meshrt.mesh.wires import order
from meshrt.mesh.wires.lines import Index
from meshrt.mesh.wires.schedule import Schedule

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

    @property
    def tail(self) -> float:
        """Cycles from when a packet is given its ramp until the core has what it waits for."""
        return 0.0 if self.stream else self.busy


@dataclass(frozen=True)
class Waiting:
    """A lane of a transfer whose heads have still to be moved. Transfers are numbered as they are started."""

    number: int
    part: int  # which of the transfer's lanes
    lane: "Lane"
    starts: list[tuple[range, np.ndarray]]  # (lines, times [lines, slots] at which packets leave their cores)
    busy: float
    landing: "Landing"


@dataclass(frozen=True)
class Course:
    """Where the packets of a schedule go, by slot and hops: which ports they leave by, and where they are delivered."""

    leaves: dict[tuple[int, int], list[tuple[int, int, int, int | None]]]  # port, core, slot, place in a message
    ends: dict[tuple[int, int], int]  # number among what is delivered
    enters: dict[tuple[int, int, int], int]  # (hops, port in, place in the message) -> slot


def resolve(block: Cores) -> None:
    """Move the heads of all that waits: landings then know when packets ask for ramps. All ranks call it together."""
    clock = block.clock
    flights, clock.heads = clock.heads, []
    if not flights:
        return
    order.end_of_use(block)
    lanes = [lane for flight in flights for lane in flight]
    index_of = {(one.number, one.part): index for index, one in enumerate(lanes)}
    courses = [_course(one.lane.plan) for one in lanes]
    heads: list[Head] = []
    for index, one in enumerate(lanes):
        for lines, starts in one.starts:
            sources = chain.from_iterable(
                np.arange(batch.slots)[slots].tolist() for batch in one.lane.plan.batches for slots, _ in batch.sources
            )
            for slot in sources:
                for line, time in zip(lines, starts[:, slot].tolist(), strict=True):
                    heappush(heads, (time, one.number, 0, RAMP, index, line, slot))
    alone = block.control.size == 1
    neighbours = [(port, rank) for port in range(4) if (rank := block.mesh.neighbour(port)) is not None]
    while True:
        horizon = _horizon(block, heads[0] if heads else None)
        if horizon is None:
            return
        outbox: dict[int, list[Any]] = {}
        while heads and heads[0] < horizon:
            _move(block, heads, heappop(heads), lanes, courses, outbox)
        if alone:
            continue
        requests = [block.scouts.isend(outbox.get(port), rank, port) for port, rank in neighbours]
        for port, rank in neighbours:
            for time, number, hops, part, line, place in block.scouts.recv(rank, OPPOSITE[port]) or ():
                index = index_of[number, part]
                heappush(heads, (time, number, hops, port, index, line, courses[index].enters[hops, port, place]))
        for request in requests:
            request.wait()


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
    found: tuple[Any, ...] = block.scouts.allreduce(nobody if first is None else first[:3], min)
    return None if found == nobody else (*found, np.inf)


def _move(
    block: Cores, heads: list[Head], head: Head, lanes: list[Waiting], courses: list[Course], outbox: dict[int, Any]
) -> None:
    """A head is at a router: it leaves by all ports that its packet's route leaves by."""
    time, number, hops, _, index, line, slot = head
    one, course, clock = lanes[index], courses[index], block.clock
    end = course.ends.get((slot, hops))
    if end is not None:
        one.landing.time[line, end] = time
    view = one.lane.view
    for port, core, moved, crossing in course.leaves.get((slot, hops), ()):
        link = line, slice(core, core + 1)
        free, asked, idle = (view.of(of[port])[link] for of in (clock.link_free, clock.asked, clock.idle))
        start = np.array([time])
        order.give(block, start, one.busy, free, asked, idle)
        after = float(start[0]) + block.device.alpha
        if clock.late is not None:
            after += float(view.of(clock.late[port])[line, core])
        if crossing is None:
            heappush(heads, (after, number, hops + 1, OPPOSITE[port], index, line, moved))
        else:
            outbox.setdefault(port, []).append((after, number, hops + 1, one.part, line, crossing))


def _course(plan: Schedule) -> Course:
    """Made once for a schedule."""
    found: Any = plan.cache.get(Course)
    if found is None:
        found = plan.cache[Course] = Course({}, {}, {})
        for batch in plan.batches:
            _enter(found, batch)
    return found  # type: ignore[no-any-return]


def _enter(course: Course, batch: Any) -> None:
    def all_of(index: Index) -> list[int]:
        return np.arange(batch.slots)[index].tolist()  # type: ignore[no-any-return]

    for step in batch.steps:
        parent = dict[int, int]()
        for parents, copies in step.branches:
            parent.update(zip(all_of(copies), all_of(parents), strict=True))
        crossing = {slot: place for message in step.sends for place, slot in enumerate(all_of(message.slots))}
        for message in step.recvs:
            for place, slot in enumerate(all_of(message.slots)):
                course.enters[step.tick, message.port, place] = slot
        for port, slots, cores in step.moves:
            at = np.arange(cores.stop)[cores] if isinstance(cores, slice) else cores
            for slot, core in zip(all_of(slots), at.tolist(), strict=True):
                begins = parent.get(slot, slot), step.tick - 1
                course.leaves.setdefault(begins, []).append((port, core, slot, crossing.get(slot)))
        for slots, _, numbers in step.deliveries:
            of = np.arange(numbers.stop)[numbers] if isinstance(numbers, slice) else numbers
            for slot, number in zip(all_of(slots), of.tolist(), strict=True):
                course.ends[slot, step.tick] = number
