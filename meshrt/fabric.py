"""Moving packets: a transfer sends one tile from each source of a channel along its route, one hop a tick.

Headers are arrays [3, lines, packets] of time, hops and stages of the path that led to the packet; they ride in front
of the tiles in every message between ranks. Inside a block a hop is an index move and a tile is copied once, to where
it is delivered. Time: a head leaves its core at max(the core's time, the ramp free), and each router at max(its time,
the link free) + alpha; it keeps what it crosses busy for bytes / width, at last the ramp that it is delivered by.
"""

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt import relay
from meshrt.clock import HOPS, STAGES, TIME
from meshrt.schedule import Index, Message, Part, Schedule, as_index, compile_schedule, line_indices, scout
from meshrt.tables import Channel

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshrt.block import Block


@dataclass(frozen=True)
class Flight:
    """A transfer under way: what it brings is in `tiles` on the host, but no core has waited for it yet."""

    tiles: np.ndarray
    arrivals: list[tuple["Places", np.ndarray]]  # (state of the cores, headers of the packets for them)


@dataclass(frozen=True, eq=False)
class View:
    """How arrays of the block look as [lines, positions along the line]."""

    axis: str | None
    lines: slice
    count: int
    length: int

    def of(self, array: np.ndarray, lead: int = 0) -> np.ndarray:
        """The array with its dimensions lead and lead + 1, which are [bh, bw], as [lines, length]. A view."""
        if self.axis is None:
            return array.reshape(*array.shape[:lead], 1, -1, *array.shape[lead + 2 :])
        turned = array.swapaxes(lead, lead + 1) if self.axis == "y" else array
        return turned[(slice(None),) * lead + (self.lines,)]

    def new(self, lead: tuple[int, ...], length: int, tail: tuple[int, ...], dtype: Any, out: Any = None) -> np.ndarray:
        """An array [*lead, lines, length, *tail], in memory ordered as the block's own are, so that copies are fast."""
        count = self.count
        shape = (*lead, length, count, *tail) if self.axis == "y" else (*lead, count, length, *tail)
        array = np.empty(shape, dtype) if out is None else out.view(dtype).reshape(shape)
        return array.swapaxes(len(lead), len(lead) + 1) if self.axis == "y" else array


# ------------------------------------------------------------------------------------------------------ transfers


def send(
    block: "Block",
    channel: Channel,
    tiles: np.ndarray,
    out: np.ndarray | None = None,
    *,
    positions: np.ndarray | None = None,
    lines: np.ndarray | None = None,
    combine: "Callable[..., np.ndarray] | None" = None,
    stream: bool = False,
) -> Flight:
    """Send the tile [bh, bw, *tile] of every source of the channel; the cores go on with their work meanwhile.

    `positions` and `lines` (bool, over the whole mesh) choose sources and lines. What arrives goes into `out`, which
    keeps what it has where nothing arrives (default: fresh, NaN); with `combine(there, arrived)` it is combined with
    what is there. The cores meet the packets when they `receive`: the tail, when all of a tile is in; or with `stream`
    the head, where they add word by word and pass on each word at once. Then `tail` is what they have to wait for at
    the end, and a ramp is busy for as long as the additions take, if that is longer.
    """
    if not block.payload:
        out = np.empty_like(tiles) if out is None else out
        out[...] = 1  # a number to go on with, that can be divided by
    if out is None:
        out = np.full_like(tiles, np.nan if tiles.dtype.kind not in "iu" else np.iinfo(tiles.dtype).max)
    if channel.relay is not None:
        if np.may_share_memory(tiles, out):
            tiles = tiles.copy()  # relayed packets arrive in `out` while others have yet to leave
        relay.send(block, channel, tiles, out, positions, lines, combine)
    plan, views = _plan(block, channel, positions, lines)
    if plan.idle:
        return Flight(out, [])
    arrivals: list[tuple[Places, np.ndarray]] = []
    for view in views:
        _replay(block, plan, view, tiles, out, combine, stream, arrivals)
    return Flight(out, arrivals)


def receive(block: "Block", flight: Flight) -> np.ndarray:
    """Wait for the packets: each core's clock goes to the arrival, if that is later. Returns the tiles."""
    for places, header in flight.arrivals:
        state = places.get()
        np.copyto(state, header, where=header[TIME] > state[TIME])
        places.put(state)
    return flight.tiles


def receive_at(block: "Block", channel: Channel, flight: Flight, positions: np.ndarray) -> None:
    """Only the cores at these positions (bool) of the channel's lines wait for the packets; the others do so later."""
    assert channel.axis is not None
    low, length = block.mesh.offset(channel.axis), block.mesh.block_length(channel.axis)
    for places, header in flight.arrivals:
        cores = np.arange(places.array.shape[-1])[places.index]
        if places.array.shape[-1] != length:  # the block as one line
            cores = cores % block.mesh.block_width if channel.axis == "x" else cores // block.mesh.block_width
        here = positions[low + cores]
        if here.any():
            state = places.get()
            np.copyto(state, header, where=here & (header[TIME] > state[TIME]))
            places.put(state)


def transfer(
    block: "Block", channel: Channel, tiles: np.ndarray, out: np.ndarray | None = None, **options: Any
) -> np.ndarray:
    """Send and receive at once; the options are those of `send`."""
    return receive(block, send(block, channel, tiles, out, **options))


def stage(
    block: "Block", channel: Channel, operations: int, positions: np.ndarray, lines: np.ndarray | None = None
) -> None:
    """Software at these positions of the channel's lines touches a packet: relays it, or adds so many numbers."""
    states, count = _chosen(block, channel, positions, lines)
    if count:
        cycles = block.device.beta + block.device.compute_cycles(operations)
        block.counters.stages += count
        for places in states:
            state = places.get()
            state[TIME] += cycles
            state[STAGES] += 1
            places.put(state)


def tail(
    block: "Block", channel: Channel, tiles: np.ndarray, positions: np.ndarray, lines: np.ndarray | None = None
) -> None:
    """The cores at these positions of the channel's lines wait for the rest of a streamed packet: one of `tiles`.

    Words come, and are added, as fast as the slower of link and core can: max(bytes / link width, numbers / rate).
    """
    cycles = _streaming_cycles(block, tiles)
    if cycles:
        for places in _chosen(block, channel, positions, lines)[0]:
            state = places.get()
            state[TIME] += cycles
            places.put(state)


def _streaming_cycles(block: "Block", tiles: np.ndarray) -> float:
    """How long a tile takes to pass a ramp while every number of it is added to another."""
    numbers, rate = prod(tiles.shape[2:]), block.device.macs_per_cycle
    busy = block.device.busy_cycles(numbers * tiles.itemsize)
    return busy if rate is None else max(busy, numbers / rate)


def _chosen(
    block: "Block", channel: Channel, positions: np.ndarray, lines: np.ndarray | None
) -> tuple[list["Places"], int]:
    """State of the cores at these positions of the channel's lines, and how many they are here."""
    key = ("cores", positions.tobytes(), None if lines is None else lines.tobytes())
    found: Any = channel.cache.get(key)
    if found is None:
        whole = channel.axis is None
        low, length = (
            (0, len(positions))
            if channel.axis is None
            else (block.mesh.offset(channel.axis), block.mesh.block_length(channel.axis))
        )
        at = np.flatnonzero(positions[low : low + length])
        views = _views(block, channel, lines, whole) if len(at) else ()
        states = [Places(view.of(block.clock.state, 1), as_index(at)) for view in views]
        found = channel.cache[key] = states, len(at) * sum(view.count for view in views)
    return found  # type: ignore[no-any-return]


def settle(block: "Block") -> None:
    """Enter the bytes of all transfers since the last time at the links that they crossed."""
    for (plan, view), nbytes in block.traffic.items():
        links = view.of(block.link_bytes, 1)
        for step in plan.steps:
            for way, _, cores in step.moves:
                links[way][:, cores] += nbytes
    block.traffic.clear()


# --------------------------------------------------------------------------------------------------------- replay


def _plan(
    block: "Block", channel: Channel, positions: np.ndarray | None, lines: np.ndarray | None
) -> tuple[Schedule, tuple[View, ...]]:
    """The schedule and the views it applies to: from the channel's cache, or made now if tables were changed since."""
    cache: dict[Any, Any] = channel.cache
    if cache.get("epoch") != block.tables.epoch:
        cache.clear()
        cache["epoch"] = block.tables.epoch
        cache["trace"] = scout(block, channel)
    chosen = None if positions is None else positions.tobytes()
    within = None if lines is None else lines.tobytes()
    found = cache.get((chosen, within))
    if found is None:
        trace = cache["trace"]
        name = (chosen, within if trace.whole_block else None, Schedule)
        if name not in cache:
            cache[name] = compile_schedule(block, channel, trace, positions, lines)
        found = cache[chosen, within] = cache[name], _views(block, channel, lines, trace.whole_block)
    return found


def _views(block: "Block", channel: Channel, lines: np.ndarray | None, whole_block: bool) -> tuple[View, ...]:
    """Views of the block's arrays that show the chosen lines: one for every run of evenly spaced ones."""
    if whole_block or channel.axis is None:
        return (View(None, slice(None), 1, block.mesh.block_width * block.mesh.block_height),)
    chosen = line_indices(block, channel)
    if lines is not None:
        low = block.mesh.offset("y" if channel.axis == "x" else "x")
        chosen = chosen[lines[chosen + low]]
    length, views = block.mesh.block_length(channel.axis), []
    while len(chosen):
        gap = int(chosen[1] - chosen[0]) if len(chosen) > 1 else 1
        even = np.diff(chosen) == gap
        count = len(chosen) if even.all() else int(np.argmin(even)) + 1
        run = as_index(chosen[:count])
        assert isinstance(run, slice)
        views.append(View(channel.axis, run, count, length))
        chosen = chosen[count:]
    return tuple(views)


class Places:
    """Some positions of an array's last axis: a view made once where they are evenly spaced, else a copy each time."""

    __slots__ = ("array", "index", "view")

    def __init__(self, array: np.ndarray, index: Index) -> None:
        self.array, self.index = array, index
        self.view = array[..., index] if isinstance(index, slice) else None

    def get(self) -> np.ndarray:
        return self.array[..., self.index] if self.view is None else self.view

    def put(self, values: np.ndarray) -> None:
        if self.view is None:
            self.array[..., self.index] = values
        elif values is not self.view:
            self.view[...] = values


@dataclass(frozen=True)
class Buffer:
    """One message as bytes, how its header and tiles lie in them, and the places of its headers in the lane's."""

    spec: list[Any]  # what mpi4py takes
    rank: int
    header: np.ndarray  # [3, lines, count]
    slots: Places
    tiles: np.ndarray  # [lines, count, *tile]
    parts: tuple[Part, ...]
    note: bytes  # what a rank that waits for it says


@dataclass(frozen=True)
class LaneStep:
    """One tick of a schedule on one lane."""

    branches: list[tuple[Places, Places]]  # (headers of the copies, headers of the parents)
    moves: list[tuple[Places, Places]]  # (times of the packets, when their links are free)
    moved: int
    sends: list[Buffer]
    recvs: list[Buffer]
    delivered: tuple[Places, Places, Places] | None  # (state of the cores, headers, when the ramps are free)


@dataclass(frozen=True)
class Lane:
    """A schedule on the lines of a view for one kind of tile: every buffer and every view that a replay needs."""

    header: np.ndarray  # [3, lines, slots]
    own: list[tuple[Places, Places, Places]]  # (headers, state of the sources, when their ramps are free)
    sent: int
    steps: list[LaneStep]
    packets: int  # that this rank puts on MPI
    bytes: int


def _lane(block: "Block", plan: Schedule, view: View, tile: tuple[int, ...], dtype: np.dtype[Any]) -> Lane:
    """Made once for a schedule, view and kind of tile."""
    found: Any = plan.cache.get((view, tile, dtype))
    if found is not None:
        return found  # type: ignore[no-any-return]
    from mpi4py import MPI

    size = prod(tile) * dtype.itemsize if block.payload else 0
    header = view.new((3,), plan.slots, (), np.float64)
    header[...] = 0
    state, free = view.of(block.clock.state, 1), view.of(block.clock.link_free, 1)
    ramp_in, ramp_out = view.of(block.clock.ramp_in), view.of(block.clock.ramp_out)

    def buffer(message: Message, tick: int) -> Buffer:
        packets = message.count * view.count
        data = np.empty(packets * (24 + size), np.uint8)
        heads = view.new((3,), message.count, (), np.float64, data[: packets * 24])
        tiles = view.new((), message.count, tile, dtype, data[packets * 24 :]) if block.payload else data
        note = f"{plan.note}, tick {tick}".encode()
        return Buffer(
            [data, MPI.BYTE],
            message.rank,
            heads,
            Places(header, message.slots),
            tiles,
            message.parts,
            note,
        )

    steps = [
        LaneStep(
            [(Places(header, copy), Places(header, parent)) for parent, copy in step.branches],
            [(Places(header[TIME], slots), Places(free[way], cores)) for way, slots, cores in step.moves],
            step.moved * view.count,
            [buffer(one, tick) for one in step.sends],
            [buffer(one, tick) for one in step.recvs],
            None
            if step.deliveries is None
            else (
                Places(state, step.deliveries[1]),
                Places(header, step.deliveries[0]),
                Places(ramp_in, step.deliveries[1]),
            ),
        )
        for tick, step in enumerate(plan.steps, 1)
    ]
    sends = [one for step in steps for one in step.sends]
    lane = Lane(
        header,
        [(Places(header, slots), Places(state, cores), Places(ramp_out, cores)) for slots, cores in plan.sources],
        plan.sent * view.count,
        steps,
        sum(one.header[0].size for one in sends),
        sum(one.spec[0].nbytes for one in sends),
    )
    block.host.sent_to.update(one.rank for one in sends)
    plan.cache[view, tile, dtype] = lane
    return lane


def _replay(
    block: "Block", plan: Schedule, view: View, tiles: np.ndarray, out: np.ndarray,
    combine: "Callable[..., np.ndarray] | None", stream: bool, arrivals: list[tuple[Places, np.ndarray]],
) -> None:  # fmt: skip
    """Run the schedule on the lines of the view; adds what the cores will wait for to `arrivals`."""
    comm, counters, host, watch, payload = block.comm, block.counters, block.host, block.watch, block.payload
    tile = tiles.shape[2:]
    nbytes = prod(tile) * tiles.itemsize
    busy, alpha = block.device.busy_cycles(nbytes), block.device.alpha
    taking = _streaming_cycles(block, tiles) if stream else busy  # how long a delivery keeps its ramp
    lane = _lane(block, plan, view, tile, tiles.dtype)
    time, hops = lane.header[TIME], lane.header[HOPS]
    own = view.of(tiles) if payload else tiles
    received: list[np.ndarray] = []
    pending = []
    counters.messages += lane.sent
    for headers, cores, ramps in lane.own:
        if not busy:
            headers.put(cores.get())
            continue
        leaving = cores.get().copy()
        np.maximum(leaving[TIME], ramps.get(), out=leaving[TIME])
        ramps.put(leaving[TIME] + busy)
        headers.put(leaving)
    for tick, step in enumerate(lane.steps, 1):
        for copies, parents in step.branches:
            copies.put(parents.get())
        if busy:
            for times, links in step.moves:
                start = np.maximum(times.get(), links.get())
                links.put(start + busy)
                start += alpha
                times.put(start)
        else:
            time += alpha  # no link is ever busy; slots that are not under way are not looked at again
        hops += 1
        counters.hops += step.moved
        for message in step.sends:
            message.header[...] = message.slots.get()
            if payload:
                for part in message.parts:
                    source = own if part.message < 0 else received[part.message]
                    message.tiles[:, part.to] = source[:, part.source]
            pending.append(comm.Isend(message.spec, message.rank, plan.tag))
        for message in step.recvs:
            watch.waiting(message.rank, message.note)
            block.wait(comm.Irecv(message.spec, message.rank, plan.tag))
            watch.moving()
            message.slots.put(message.header)
            received.append(message.tiles)
        if step.delivered is not None:
            at, headers, ramps = step.delivered
            header = headers.get().copy()
            if taking:
                np.maximum(header[TIME], ramps.get(), out=header[TIME])
                ramps.put(header[TIME] + taking)
            if not stream:
                header[TIME] += busy
            arrivals.append((at, header))
            counters.max_hops = max(counters.max_hops, tick)
    block.traffic[plan, view] = block.traffic.get((plan, view), 0) + nbytes
    if payload and plan.parts:
        there = view.of(out)
        moved = [(own if part.message < 0 else received[part.message])[:, part.source] for part in plan.parts]
        if np.may_share_memory(own, there):  # nothing is to be overwritten before it has left
            moved = [arrived.copy() for arrived in moved]
        for part, arrived in zip(plan.parts, moved, strict=True):
            there[:, part.to] = arrived if combine is None else combine(there[:, part.to], arrived)
        if view.axis is None and not np.may_share_memory(there, out):  # a flat view of scattered memory is a copy
            out[...] = there.reshape(out.shape)
    if pending:
        host.messages += len(pending)
        host.packets += lane.packets
        host.bytes += lane.bytes
        for request in pending:
            block.wait(request)
