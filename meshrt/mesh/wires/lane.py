"""A lane: a schedule on the lines of a view for one kind of tile, with every view of clocks and headers made once.

What is then done for each packet is a handful of passes over arrays of times (replay.py); hops and stages stay
with the source, until a core that waited for the packet takes them over.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from meshrt.mesh.clock import HOPS, TIME
from meshrt.mesh.cores import Cores
from meshrt.mesh.mesh import RAMP
from meshrt.mesh.wires.glide import Glide, glide_of
from meshrt.mesh.wires.lines import Index, Places, View
from meshrt.mesh.wires.schedule import BATCH, Batch, Message, Part, Schedule, Step

SELDOM = 8  # uses of a lane, in which it does not pay to put all of its hops together
HEADER = 24  # bytes: time, hops, stages


@dataclass(frozen=True)
class Buffer:
    """One message as bytes, how its header and tiles lie in them, and the places of its packets among the slots."""

    spec: list[Any]  # what mpi4py takes
    rank: int
    header: np.ndarray  # [3, lines, count]; hops and stages are those of the sources
    time: np.ndarray  # of the header
    slots: Places  # times of the packets
    tiles: np.ndarray  # [lines, count, *tile]
    parts: tuple[Part, ...]  # where the payloads of a message to be sent are from
    paths: list[tuple[Places, Places]]  # (hops and stages in the header, where they are from)
    note: bytes  # what a rank that waits for it says


@dataclass(frozen=True)
class RunStep:
    """One tick of a batch on a strip of lines. Places that are evenly spaced are views, made once; else see `odd_`."""

    branches: tuple[tuple[Index, Index], ...]
    moves: list[tuple[np.ndarray, ...]]  # (times of the packets, of their links: free, asked, idle: see order.py)
    odd_moves: list[tuple[Any, ...]]  # (slots, of all links out of a port: free, asked, idle; cores)
    under_way: list[np.ndarray]  # times of what moves, but for odd moves
    detours: list[tuple[Index, np.ndarray]]  # (slots, cycles that their hops take longer), where the wafer has defects
    sends: list[Buffer]
    recvs: list[Buffer]
    ends: list[np.ndarray]  # times of what is delivered
    odd_ends: list[tuple[Index, Index]]  # (slots, numbers among what is delivered)


@dataclass(frozen=True)
class Run:
    """A batch of packets on a strip of a lane's lines."""

    lines: slice
    time: np.ndarray  # [lines, slots]: of the headers
    cores: np.ndarray  # [lines, length]: time of the cores
    ramp_out: np.ndarray
    own: list[tuple[np.ndarray, np.ndarray, np.ndarray]]  # (times of packets, of their sources, when ramps are free)
    odd_own: list[tuple[Index, Index]]  # (slots, cores)
    steps: list[RunStep]


@dataclass(frozen=True)
class Landing:
    """Where a transfer's packets are put down until cores have waited for them. Used again and again."""

    memory: np.ndarray
    header: np.ndarray  # [3, lines, cores that get packets]
    time: np.ndarray  # of the header
    ends: list[np.ndarray]  # the parts of `time` for RunStep.ends, in their order
    paths: list[Places]  # hops and stages in the header, for each of the schedule's parts


@dataclass(frozen=True, eq=False)
class Lane:
    """A schedule on the lines of a view, ready to be replayed."""

    plan: Schedule
    view: View
    runs: list[Run]
    ends: list[tuple[slice, Index]]  # (lines, numbers among what is delivered) for RunStep.ends, in their order
    state: Places  # of the cores that get packets
    time: Places
    ramps: tuple[Places, ...]  # free, asked, idle of those that packets are delivered by: see order.py
    paths: list[tuple[Places, np.ndarray]]  # (where hops and stages are from, those on the way), as in Landing
    received: list[Buffer]
    packets: int  # that this rank puts on MPI
    bytes: int
    wafer_hops: int  # router-to-router moves past the defects of the wafer
    spare: list[Landing] = field(default_factory=list)
    groups: dict[Any, Any] = field(default_factory=dict)  # with which lanes it delivers together: see together.py
    glides: list[Glide | None] = field(default_factory=list)  # one a use, up to the last: see `glide_for`


def lane_of(block: Cores, plan: Schedule, view: View, tile: tuple[int, ...], dtype: np.dtype[Any]) -> Lane:
    """Made once for a schedule, view and kind of tile."""
    key = view, tile, dtype
    found: Any = plan.cache.get(key)
    if found is None:
        found = plan.cache[key] = _lane(block, plan, view, tile, dtype)
    return found  # type: ignore[no-any-return]


def _lane(block: Cores, plan: Schedule, view: View, tile: tuple[int, ...], dtype: np.dtype[Any]) -> Lane:
    runs, ends, received = [], [], list[Buffer]()
    for batch in plan.batches:
        strip = view.count if batch.messages or view.axis != "x" else max(1, BATCH // max(1, batch.under_way))
        for lines, part in view.strips(strip):
            runs.append(_run(block, plan, batch, lines, part, tile, dtype, received))
            ends += [(lines, one[-1]) for step in batch.steps for one in step.deliveries if _even([one])]
    sends = [one for run in runs for step in run.steps for one in step.sends]
    block.host.sent_to.update(one.rank for one in sends)
    state = view.of(block.clock.state, 1)
    hops = [np.stack([np.atleast_1d(part.hops), np.zeros(np.size(part.hops))])[:, None] for part in plan.parts]
    return Lane(
        plan,
        view,
        runs,
        ends,
        Places(state, plan.delivered),
        Places(state[TIME], plan.delivered),
        tuple(
            Places(view.of(of), plan.delivered)
            for of in (block.clock.ramp_in, block.clock.asked[RAMP], block.clock.idle[RAMP])
        ),
        list(zip(_paths(state, plan.parts, received), hops, strict=True)),
        received,
        sum(one.time.size for one in sends),
        sum(one.spec[0].nbytes for one in sends),
        _wafer_hops(block, plan, view),
    )


def _wafer_hops(block: Cores, plan: Schedule, view: View) -> int:
    """Moves of all packets on the wafer, where a hop of the mesh may be several; 0 on a whole wafer."""
    if block.wafer is None:
        return 0
    lengths = view.of(block.lengths, 1)
    return sum(int((lengths[way][:, cores] * packets).sum()) for way, cores, packets in plan.crossings)


def _paths(state: np.ndarray, parts: Iterable[Part], received: list[Buffer]) -> list[Places]:
    """The hops and stages that packets leave with, [2, lines, count]: those of cores here, or those in a message."""
    return [
        Places((state if part.message < 0 else received[part.message].header)[HOPS:], part.source) for part in parts
    ]


def _run(
    block: Cores, plan: Schedule, batch: Batch, lines: slice, view: View,
    tile: tuple[int, ...], dtype: np.dtype[Any], received: list[Buffer],
) -> Run:  # fmt: skip
    """Adds the messages that it receives to `received`."""
    clock = block.clock
    time = view.new((), batch.slots, (), np.float64, clock.buffer(8 * view.count * batch.slots))
    cores, ramp_out = view.of(clock.state[TIME]), view.of(clock.ramp_out)
    used = {way for step in batch.steps for way, *_ in step.moves}
    links = {way: tuple(view.of(of[way]) for of in (clock.link_free, clock.asked, clock.idle)) for way in used}
    late = None if clock.late is None else view.of(clock.late, 1)

    def buffer(message: Message, tick: int) -> Buffer:
        return _buffer(block, plan, view, message, tick, tile, dtype, time, received)

    def step_of(step: Step) -> RunStep:
        sends, recvs = ([buffer(one, step.tick) for one in messages] for messages in (step.sends, step.recvs))
        received.extend(recvs)
        even = _even(step.moves)
        return RunStep(
            step.branches,
            [(time[:, slots], *(of[:, at] for of in links[way])) for way, slots, at in step.moves] if even else [],
            [] if even else [(slots, *links[way], at) for way, slots, at in step.moves],
            [] if not even else [time] if step.all_move else [time[:, slots] for _, slots, _ in step.moves],
            [] if late is None else [(slots, late[way][:, at]) for way, slots, at in step.moves],
            sends,
            recvs,
            [time[:, one[0]] for one in step.deliveries if _even([one])],
            [(slots, number) for slots, cores, number in step.deliveries if not _even([(slots, cores, number)])],
        )

    even = _even(batch.sources)
    own = [(time[:, slots], cores[:, at], ramp_out[:, at]) for slots, at in batch.sources] if even else []
    odd = () if even else batch.sources
    return Run(lines, time, cores, ramp_out, own, list(odd), [step_of(step) for step in batch.steps])


def _even(places: Iterable[tuple[Any, ...]]) -> bool:
    """Are all of these places, in tuples, slices? Integers stand for other things."""
    return not any(isinstance(one, np.ndarray) for group in places for one in group)


def glide_for(block: Cores, lane: Lane) -> Glide | None:
    """All hops of the lane at once; None the first few times, and where it cannot be."""
    uses = lane.glides
    if len(uses) <= SELDOM:
        one = len(uses) == SELDOM and len(lane.runs) == 1
        uses.append(glide_of(block, lane.plan, lane.view, lane.runs[0].time) if one else None)
    return uses[-1]


def new_landing(block: Cores, lane: Lane) -> Landing:
    """Memory for what a transfer on the lane delivers."""
    plan = lane.plan
    size = HEADER * plan.count * lane.view.count
    memory = block.clock.borrow(size)
    header = lane.view.new((3,), plan.count, (), np.float64, memory[:size])
    ends = [header[TIME][lines][:, number] for lines, number in lane.ends]
    return Landing(memory, header, header[TIME], ends, [Places(header[HOPS:], part.delivered) for part in plan.parts])


def _buffer(
    block: Cores, plan: Schedule, view: View, message: Message, tick: int, tile: tuple[int, ...],
    dtype: np.dtype[Any], time: np.ndarray, received: list[Buffer],
) -> Buffer:  # fmt: skip
    from mpi4py import MPI

    packets = message.count * view.count
    size = prod(tile) * dtype.itemsize if block.payload else 0
    data = np.empty(packets * (HEADER + size), np.uint8)
    heads = view.new((3,), message.count, (), np.float64, data[: packets * HEADER])
    tiles = view.new((), message.count, tile, dtype, data[packets * HEADER :]) if block.payload else data
    note = f"{plan.note}, tick {tick}".encode()
    sources = _paths(view.of(block.clock.state, 1), message.parts, received)
    paths = [(Places(heads[HOPS:], part.to), source) for part, source in zip(message.parts, sources, strict=True)]
    slots = Places(time, message.slots)
    return Buffer([data, MPI.BYTE], message.rank, heads, heads[TIME], slots, tiles, message.parts, paths, note)
