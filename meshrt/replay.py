"""Replaying a schedule: headers of packets meet links and ramps, tick by tick, and ride to other ranks.

A lane is a schedule on the lines of a view for one kind of tile, with every view of clocks and headers that a replay
needs, made once. What is done for each packet is a handful of passes over arrays of times; hops and stages stay with
the source, until a core that waited for the packet takes them over.
"""

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.clock import HOPS, TIME
from meshrt.schedule import BATCH, Batch, Message, Part, Schedule, Step
from meshrt.views import Index, Places, View

if TYPE_CHECKING:
    from meshrt.block import Block

HEADER = 24  # bytes: time, hops, stages


@dataclass(frozen=True)
class Buffer:
    """One message as bytes, how its header and tiles lie in them, and the places of its packets among the slots."""

    spec: list[Any]  # what mpi4py takes
    rank: int
    header: np.ndarray  # [3, lines, count]; hops and stages are those of the sources
    slots: Index
    tiles: np.ndarray  # [lines, count, *tile]
    parts: tuple[Part, ...]
    note: bytes  # what a rank that waits for it says


@dataclass(frozen=True)
class RunStep:
    """One tick of a batch on a strip of lines; `time` below is that of the headers, [lines, slots]."""

    branches: tuple[tuple[Index, Index], ...]
    moves: list[tuple[np.ndarray, np.ndarray]]  # (times of the packets, when their links are free): views
    scattered: list[tuple[Index, np.ndarray, Index]]  # (slots, when the links out of a port are free, cores)
    under_way: list[np.ndarray]  # times of what moves: views
    sends: list[Buffer]
    recvs: list[Buffer]
    deliveries: list[tuple[Index, Places, Index]]  # (slots, when the ramps are free, numbers among what is delivered)


@dataclass(frozen=True)
class Run:
    """A batch of packets on a strip of a lane's lines."""

    lines: slice
    time: np.ndarray  # [lines, slots]
    own: list[tuple[Index, Places, Places]]  # (slots, times of the sources, when their ramps are free)
    steps: list[RunStep]


@dataclass(frozen=True, eq=False)
class Lane:
    plan: Schedule
    view: View
    runs: list[Run]
    state: np.ndarray  # of the cores, [3, lines, length]
    time: Places  # of the cores that get packets
    path: Places  # their hops and stages
    lasting: bool  # what the packets' paths are copied from is still there after the replay
    packets: int  # that this rank puts on MPI
    bytes: int
    spare: list[np.ndarray] = field(default_factory=list)  # times of deliveries, to be used again


class Arrival:
    """What a lane delivers in a transfer: times [lines, cores], and on demand the paths [2, lines, cores]."""

    __slots__ = ("lane", "over", "path", "received", "time")

    def __init__(self, lane: Lane, time: np.ndarray, received: list[Buffer]) -> None:
        self.lane, self.time, self.received = lane, time, received
        self.path: np.ndarray | None = None
        self.over = False  # all cores have waited for it

    def end(self, block: "Block") -> None:
        """Nobody waits for it any more."""
        self.over = True
        block.clock.under_way.pop(id(self), None)
        self.lane.spare.append(self.time)

    def take_path(self) -> None:
        """Copy the paths of the packets from where they were when those left, and add their hops."""
        if self.path is not None:
            return
        lane = self.lane
        self.path = path = lane.view.new((2,), lane.plan.count, (), np.float64)
        for part in lane.plan.parts:
            source = lane.state if part.message < 0 else self.received[part.message].header
            path[..., part.delivered] = source[HOPS:, :, part.source]
            path[0][:, part.delivered] += part.hops


def lane_of(block: "Block", plan: Schedule, view: View, tile: tuple[int, ...], dtype: np.dtype[Any]) -> Lane:
    """Made once for a schedule, view and kind of tile."""
    key = view, tile, dtype
    found: Any = plan.cache.get(key)
    if found is None:
        found = plan.cache[key] = _lane(block, plan, view, tile, dtype)
    return found  # type: ignore[no-any-return]


def _lane(block: "Block", plan: Schedule, view: View, tile: tuple[int, ...], dtype: np.dtype[Any]) -> Lane:
    runs = []
    for batch in plan.batches:
        strip = view.count if batch.messages or view.axis != "x" else max(1, BATCH // max(1, batch.under_way))
        for lines, part in view.strips(strip):
            runs.append(_run(block, plan, batch, lines, part, tile, dtype))
    sends = [one for run in runs for step in run.steps for one in step.sends]
    block.host.sent_to.update(one.rank for one in sends)
    state = view.of(block.clock.state, 1)
    return Lane(
        plan,
        view,
        runs,
        state,
        Places(state[TIME], plan.delivered),
        Places(state[HOPS:], plan.delivered),
        not any(step.recvs for run in runs for step in run.steps),
        sum(one.header[0].size for one in sends),
        sum(one.spec[0].nbytes for one in sends),
    )


def _run(
    block: "Block", plan: Schedule, batch: Batch, lines: slice, view: View, tile: tuple[int, ...], dtype: np.dtype[Any]
) -> Run:
    clock = block.clock
    time = view.new((), batch.slots, (), np.float64, clock.buffer(8 * view.count * batch.slots))
    cores, free = view.of(clock.state[TIME]), view.of(clock.link_free, 1)
    ramp_in, ramp_out = view.of(clock.ramp_in), view.of(clock.ramp_out)

    def step_of(step: Step) -> RunStep:
        even = all(isinstance(slots, slice) and isinstance(at, slice) for _, slots, at in step.moves)
        slots_of = [slots for _, slots, _ in step.moves if isinstance(slots, slice)]
        return RunStep(
            step.branches,
            [(time[:, slots], free[way][:, at]) for way, slots, at in step.moves] if even else [],
            [] if even else [(slots, free[way], at) for way, slots, at in step.moves],
            [time] if step.all_move else [time[:, slots] for slots in slots_of] if even else [],
            [_buffer(block, plan, view, one, step.tick, tile, dtype) for one in step.sends],
            [_buffer(block, plan, view, one, step.tick, tile, dtype) for one in step.recvs],
            [(slots, Places(ramp_in, at), number) for slots, at, number in step.deliveries],
        )

    own = [(slots, Places(cores, at), Places(ramp_out, at)) for slots, at in batch.sources]
    return Run(lines, time, own, [step_of(step) for step in batch.steps])


def _buffer(
    block: "Block", plan: Schedule, view: View, message: Message, tick: int, tile: tuple[int, ...], dtype: np.dtype[Any]
) -> Buffer:
    from mpi4py import MPI

    packets = message.count * view.count
    size = prod(tile) * dtype.itemsize if block.payload else 0
    data = np.empty(packets * (HEADER + size), np.uint8)
    heads = view.new((3,), message.count, (), np.float64, data[: packets * HEADER])
    tiles = view.new((), message.count, tile, dtype, data[packets * HEADER :]) if block.payload else data
    note = f"{plan.note}, tick {tick}".encode()
    return Buffer([data, MPI.BYTE], message.rank, heads, message.slots, tiles, message.parts, note)


# --------------------------------------------------------------------------------------------------------- replay


def replay(
    block: "Block", lane: Lane, own: np.ndarray | None, busy: float, taking: float, stream: bool
) -> tuple[Arrival | None, list[Buffer], list[Any]]:
    """Move the packets of a lane: (what is delivered and when, messages received, requests of messages sent).

    `own` are the tiles [lines, length, *tile] that messages take along, None without payloads. A packet keeps links
    busy for `busy` cycles and the ramp that delivers it for `taking`; with `stream` it arrives with its head.
    """
    plan = lane.plan
    received: list[Buffer] = []
    pending: list[Any] = []
    if not plan.count:
        arrivals = None
    elif lane.spare:
        arrivals = lane.spare.pop()
    else:
        arrivals = lane.view.new((), plan.count, (), np.float64)
    for run in lane.runs:
        _leave(run, busy)
        for step in run.steps:
            _move(run, step, busy, block.device.alpha)
            for message in step.sends:
                _load(lane, run, message, own, received)
                pending.append(block.comm.Isend(message.spec, message.rank, plan.tag))
            for message in step.recvs:
                block.watch.waiting(message.rank, message.note)
                block.wait(block.comm.Irecv(message.spec, message.rank, plan.tag))
                block.watch.moving()
                run.time[:, message.slots] = message.header[TIME]
                received.append(message)
            if step.deliveries:
                assert arrivals is not None
                _arrive(run, step, arrivals[run.lines], busy, taking, stream)
    if arrivals is None:
        return None, received, pending
    arrival = Arrival(lane, arrivals, received)
    if lane.lasting:
        block.clock.under_way[id(arrival)] = arrival.take_path
    else:
        arrival.take_path()
    return arrival, received, pending


def _leave(run: Run, busy: float) -> None:
    """Packets leave their cores by the ramp."""
    time = run.time
    for slots, cores, ramps in run.own:
        if not busy:
            time[:, slots] = cores.get()
            continue
        free = ramps.get()
        start = time[:, slots] = np.maximum(cores.get(), free)
        np.add(start, busy, out=free)
        ramps.put(free)


def _move(run: Run, step: RunStep, busy: float, alpha: float) -> None:
    """Packets move by a hop: each leaves a router when the link is free, and keeps it busy."""
    time = run.time
    for parents, copies in step.branches:
        time[:, copies] = time[:, parents]
    if busy:
        for times, free in step.moves:
            np.maximum(times, free, out=times)
            np.add(times, busy, out=free)
    for slots, links, cores in step.scattered:
        start = time[:, slots]
        if busy:
            start = np.maximum(start, links[:, cores])
            links[:, cores] = start + busy
        time[:, slots] = start if step.under_way else start + alpha
    for times in step.under_way:
        np.add(times, alpha, out=times)


def _load(lane: Lane, run: Run, message: Buffer, own: np.ndarray | None, received: list[Buffer]) -> None:
    """Fill a message: headers with the paths of the sources, and tiles."""
    header = message.header
    header[TIME] = run.time[:, message.slots]
    for part in message.parts:
        there = None if part.message < 0 else received[part.message]
        header[HOPS:, :, part.to] = (lane.state if there is None else there.header)[HOPS:, :, part.source]
        if own is not None:
            message.tiles[:, part.to] = (own if there is None else there.tiles)[:, part.source]


def _arrive(run: Run, step: RunStep, arrivals: np.ndarray, busy: float, taking: float, stream: bool) -> None:
    """Packets are delivered by the ramps."""
    for slots, ramps, number in step.deliveries:
        time = run.time[:, slots]
        if taking:
            free = ramps.get()
            start = np.maximum(time, free)
            np.add(start, taking, out=free)
            ramps.put(free)
            time = start if stream else free if taking == busy else start + busy
        arrivals[:, number] = time
