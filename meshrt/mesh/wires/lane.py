"""A lane: a schedule on the lines of a view for one kind of tile, with every view of clocks and headers made once.

What is then done for each packet is a handful of passes over arrays of times (replay.py); hops and stages stay
with the source, until a core that waited for the packet takes them over.
"""

from collections.abc import Iterable, Iterator
from dataclasses import field
from itertools import count
from math import prod
from typing import Any

import numpy as np

from meshrt.mesh.clock import HOPS, TIME
from meshrt.mesh.cores import Cores
from meshrt.mesh.mesh import RAMP
from meshrt.mesh.wires.glide import Glide, glide_of
from meshrt.mesh.wires.lines import Index, Positions, View
from meshrt.mesh.wires.schedule import BATCH, BatchTick, Message, PacketBatch, PayloadMove, Schedule
from meshrt.records import dataclass

SELDOM = 8  # uses of a lane, in which it does not pay to put all of its hops together
HEADER = 24  # bytes: time, hops, stages
ROOM = 4096  # bytes that a message has at least: headers of small ones are all in one place, see strides.py
KEPT = 64 * 1024  # bytes of headers that a lane keeps to itself, with views of them; more is shared by all lanes


@dataclass(frozen=True, eq=False)
class MessageBuffer:
    """One message as bytes, how its header and tiles lie in them, and its packets' positions among the slots."""

    spec: list[Any]  # what mpi4py takes
    rank: int
    header: np.ndarray  # [3, lines, count]; hops and stages are those of the sources
    time: np.ndarray  # of the header
    slots: Positions  # times of the packets
    tiles: np.ndarray  # [lines, count, *tile]
    parts: tuple[PayloadMove, ...]  # where the payloads of a message to be sent are from
    paths: list[tuple[Positions, Positions]]  # (hops and stages in the header, where they are from)
    note: bytes  # what a rank that waits for it says


@dataclass(frozen=True, eq=False)
class RunTick:
    """One tick of a batch on a strip of lines. Evenly spaced positions are views, made once; else see `odd_`."""

    branches: tuple[tuple[Index, Index], ...]
    moves: list[tuple[np.ndarray, ...]]  # (times of the packets, of their links: free, asked, idle: see order.py)
    odd_moves: list[tuple[Any, ...]]  # (slots, of all links out of a port: free, asked, idle; cores)
    under_way: list[np.ndarray]  # times of what moves, but for odd moves
    detours: list[tuple[Index, np.ndarray]]  # (slots, cycles that their hops take longer), where the wafer has defects
    sends: list[MessageBuffer]
    recvs: list[MessageBuffer]
    ends: list[np.ndarray]  # times of what is delivered
    odd_ends: list[tuple[Index, Index]]  # (slots, numbers among what is delivered)


@dataclass(frozen=True, eq=False)
class Run:
    """A batch of packets on a strip of a lane's lines."""

    batch: PacketBatch
    view: View
    lines: slice  # of the lane's view
    time: np.ndarray  # [lines, slots]: of the headers
    cores: np.ndarray  # [lines, length]: time of the cores
    ramp_out: np.ndarray
    own: list[tuple[np.ndarray, np.ndarray, np.ndarray]]  # (times of packets, of their sources, when ramps are free)
    odd_own: list[tuple[Index, Index]]  # (slots, cores)
    ticks: list[RunTick]


@dataclass(frozen=True, eq=False)
class Landing:
    """Where a transfer's packets are put down until cores have waited for them. Used again and again."""

    memory: np.ndarray
    address: int  # of the memory, for the compiled core
    header: np.ndarray  # [3, lines, cores that get packets]
    time: np.ndarray  # of the header
    ends: list[np.ndarray]  # the parts of `time` for RunTick.ends, in their order
    paths: list[Positions]  # hops and stages in the header, for each of the schedule's parts


@dataclass(frozen=True, eq=False)
class Lane:
    """A schedule on the lines of a view, ready to be replayed."""

    schedule: Schedule
    view: View
    runs: list[Run]
    ends: list[tuple[slice, Index]]  # (lines, numbers among what is delivered) for RunTick.ends, in their order
    state: Positions  # of the cores that get packets
    time: Positions
    ramps: tuple[Positions, ...]  # free, asked, idle of those that packets are delivered by: see order.py
    paths: list[tuple[Positions, np.ndarray]]  # (where hops and stages are from, those on the way), as in Landing
    received: list[MessageBuffer]
    packets: int  # that this rank puts on MPI
    bytes: int
    wafer_hops: int  # router-to-router moves past the defects of the wafer
    spare: list[Landing] = field(default_factory=list)
    groups: dict[Any, Any] = field(default_factory=dict)  # with which lanes it delivers together: see together.py
    glides: list[Glide | None] = field(default_factory=list)  # one a use, up to the last: see `glide_for`
    strides: list[Any] = field(default_factory=list)  # the same for the compiled core: see strides.py
    landed: list[np.ndarray] = field(default_factory=list)  # one, of a run that is looked at: receiving.py
    sends: dict[Any, Any] = field(default_factory=dict)  # rows of whole transfers: see sends.py


def lane_of(block: Cores, schedule: Schedule, view: View, tile: tuple[int, ...], dtype: np.dtype[Any]) -> Lane:
    """Made once for a schedule and view; where messages take tiles along, for each kind of tile."""
    key = (view, tile, dtype) if any(batch.messages for batch in schedule.batches) else (view, Lane)
    lane: Lane | None = schedule.cache.get(key)
    if lane is None:
        lane = schedule.cache[key] = _lane(block, schedule, view, tile, dtype)
    return lane


def _lane(block: Cores, schedule: Schedule, view: View, tile: tuple[int, ...], dtype: np.dtype[Any]) -> Lane:
    runs, ends, received, numbers = [], [], list[MessageBuffer](), count()
    for batch in schedule.batches:
        strip = view.count if batch.messages or view.axis != "x" else max(1, BATCH // max(1, batch.under_way))
        for lines, part in view.strips(strip):
            runs.append(_run(block, schedule, batch, lines, part, tile, dtype, received, numbers))
            if block.core is None:
                ends += [
                    (lines, delivery[-1]) for tick in batch.ticks for delivery in tick.deliveries if _even([delivery])
                ]
    sends = [message for run in runs for tick in run.ticks for message in tick.sends]
    block.host.sent_to.update(message.rank for message in sends)
    state = view.of(block.clock.state, 1)
    parts = schedule.parts if block.core is None else ()  # it has its own tables of paths, see strides.py
    hops = [np.stack([np.atleast_1d(part.hops), np.zeros(np.size(part.hops))])[:, None] for part in parts]
    return Lane(
        schedule,
        view,
        runs,
        ends,
        Positions(state, schedule.delivered),
        Positions(state[TIME], schedule.delivered),
        tuple(
            Positions(view.of(array), schedule.delivered)
            for array in (block.clock.ramp_in, block.clock.asked_at[RAMP], block.clock.idle[RAMP])
        ),
        list(zip(_paths(state, parts, received), hops, strict=True)),
        received,
        sum(message.time.size for message in sends),
        sum(message.spec[0].nbytes for message in sends),
        _wafer_hops(block, schedule, view),
    )


def _wafer_hops(block: Cores, schedule: Schedule, view: View) -> int:
    """Moves of all packets on the wafer, where a hop of the mesh may be several; 0 on a whole wafer."""
    if block.wafer is None:
        return 0
    lengths = view.of(block.lengths, 1)
    return sum(int((lengths[way][:, cores] * packets).sum()) for way, cores, packets in schedule.crossings)


def _paths(state: np.ndarray, parts: Iterable[PayloadMove], received: list[MessageBuffer]) -> list[Positions]:
    """The hops and stages that packets leave with, [2, lines, count]: those of cores here, or those in a message."""
    return [
        Positions((state if part.message < 0 else received[part.message].header)[HOPS:], part.source) for part in parts
    ]


def _run(
    block: Cores, schedule: Schedule, batch: PacketBatch, lines: slice, view: View,
    tile: tuple[int, ...], dtype: np.dtype[Any], received: list[MessageBuffer], numbers: Iterator[int],
) -> Run:  # fmt: skip
    """Adds the messages that it receives to `received`; `numbers` count those of the lane."""
    clock = block.clock
    time = view.new((), batch.slots, (), np.float64, clock.buffer("headers", 8 * view.count * batch.slots))
    cores, ramp_out = view.of(clock.state[TIME]), view.of(clock.ramp_out)
    used = {way for tick in batch.ticks for way, *_ in tick.moves} if block.core is None else ()
    links = {way: tuple(view.of(array[way]) for array in (clock.link_free, clock.asked_at, clock.idle)) for way in used}
    late = None if clock.late is None else view.of(clock.late, 1)

    def buffer(message: Message, number: int) -> MessageBuffer:
        return _buffer(block, schedule, view, message, number, tile, dtype, time, received, next(numbers))

    def tick_of(tick: BatchTick) -> RunTick:
        sends, recvs = ([buffer(message, tick.number) for message in messages] for messages in (tick.sends, tick.recvs))
        received.extend(recvs)
        if block.core is not None:  # has its own tables of the rest, see strides.py
            return RunTick((), [], [], [], [], sends, recvs, [], [])
        even = _even(tick.moves)
        return RunTick(
            tick.branches,
            [(time[:, slots], *(array[:, at] for array in links[way])) for way, slots, at in tick.moves]
            if even
            else [],
            [] if even else [(slots, *links[way], at) for way, slots, at in tick.moves],
            [] if not even else [time] if tick.all_move else [time[:, slots] for _, slots, _ in tick.moves],
            [] if late is None else [(slots, late[way][:, at]) for way, slots, at in tick.moves],
            sends,
            recvs,
            [time[:, delivery[0]] for delivery in tick.deliveries if _even([delivery])],
            [(slots, number) for slots, cores, number in tick.deliveries if not _even([(slots, cores, number)])],
        )

    even = _even(batch.sources)
    starts = [(time[:, slots], cores[:, at], ramp_out[:, at]) for slots, at in batch.sources] if even else []
    odd = () if even else batch.sources
    return Run(batch, view, lines, time, cores, ramp_out, starts, list(odd), [tick_of(tick) for tick in batch.ticks])


def _even(positions: Iterable[tuple[Any, ...]]) -> bool:
    """Are all of these positions, in tuples, slices? Integers stand for other things."""
    return not any(isinstance(index, np.ndarray) for group in positions for index in group)


def glide_for(block: Cores, lane: Lane) -> Glide | None:
    """All hops of the lane at once; None the first few times, and where it cannot be."""
    uses = lane.glides
    if len(uses) <= SELDOM:
        ready = len(uses) == SELDOM and len(lane.runs) == 1
        uses.append(glide_of(block, lane.schedule, lane.view, lane.runs[0].time) if ready else None)
    return uses[-1]


def new_landing(block: Cores, lane: Lane) -> Landing:
    """Memory for what a transfer on the lane delivers."""
    schedule = lane.schedule
    size = HEADER * schedule.count * lane.view.count
    memory = np.empty(size, np.uint8) if size <= KEPT else block.clock.borrow(size)
    header = lane.view.new((3,), schedule.count, (), np.float64, memory[:size])
    ends = [header[TIME][lines][:, number] for lines, number in lane.ends]
    parts = schedule.parts if block.core is None else ()
    address = 0 if block.core is None else block.core.address(memory)
    return Landing(
        memory,
        address,
        header,
        header[TIME],
        ends,
        [Positions(header[HOPS:], part.delivered) for part in parts],
    )


def _buffer(
    block: Cores, schedule: Schedule, view: View, message: Message, number: int, tile: tuple[int, ...],
    dtype: np.dtype[Any], time: np.ndarray, received: list[MessageBuffer], of_lane: int,
) -> MessageBuffer:  # fmt: skip
    """Its memory is that of other lanes' messages, too: when a transfer has been replayed, nobody looks at it."""
    from mpi4py import MPI

    packets = message.count * view.count
    size = prod(tile) * dtype.itemsize if block.payload else 0
    nbytes = packets * (HEADER + size)
    data = block.clock.buffer(f"message {of_lane}", max(ROOM, nbytes))[:nbytes]
    heads = view.new((3,), message.count, (), np.float64, data[: packets * HEADER])
    tiles = view.new((), message.count, tile, dtype, data[packets * HEADER :]) if block.payload else data
    note = f"{schedule.note}, tick {number}".encode()
    sources = _paths(view.of(block.clock.state, 1), message.parts, received)
    paths = [(Positions(heads[HOPS:], part.to), source) for part, source in zip(message.parts, sources, strict=True)]
    slots = Positions(time, message.slots)
    return MessageBuffer([data, MPI.BYTE], message.rank, heads, heads[TIME], slots, tiles, message.parts, paths, note)
