"""Moving packets: a transfer sends one tile from each source of a channel along its route, one hop a tick.

Headers are arrays [3, lines, packets] of time, hops and stages of the path that led to the packet; they ride in front
of the tiles in every message between ranks. Inside a block a hop is an index move and a tile is copied once, to where
it is delivered. Time: at each router a head leaves at max(its time, the link free) + alpha and keeps the link busy for
bytes / width; it is delivered when its tail is in.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt import relay
from meshrt.clock import HOPS, STAGES, TIME
from meshrt.schedule import Message, Schedule, as_index, compile_schedule, line_indices, scout
from meshrt.tables import Channel

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshrt.block import Block


@dataclass(frozen=True)
class Flight:
    """A transfer under way: what it brings is in `tiles` on the host, but no core has waited for it yet."""

    tiles: np.ndarray
    arrivals: tuple[tuple["View", np.ndarray], ...]  # per run of lines: header [3, lines, n], time -inf for no packet


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
) -> Flight:
    """Send the tile [bh, bw, *tile] of every source of the channel; the cores go on with their work meanwhile.

    `positions` and `lines` (bool, over the whole mesh) choose sources and lines. What arrives goes into `out`, which
    keeps what it has where nothing arrives (default: fresh, NaN); with `combine(there, arrived)` it is combined with
    what is there. The cores meet the packets when they `receive`.
    """
    if out is None:
        out = np.full_like(tiles, np.nan if tiles.dtype.kind not in "iu" else np.iinfo(tiles.dtype).max)
    if channel.relay is not None:
        relay.send(block, channel, tiles, out, positions, lines, combine)
    plan, views = _plan(block, channel, positions, lines)
    if plan.idle:
        return Flight(out, ())
    return Flight(out, tuple((view, _replay(block, plan, view, tiles, out, combine)) for view in views))


def receive(block: "Block", flight: Flight) -> np.ndarray:
    """Wait for the packets: each core's clock goes to the arrival, if that is later. Returns the tiles."""
    for view, header in flight.arrivals:
        state = view.of(block.clock.state, 1)
        np.copyto(state, header, where=header[TIME] > state[TIME])
    return flight.tiles


def transfer(
    block: "Block", channel: Channel, tiles: np.ndarray, out: np.ndarray | None = None, **options: Any
) -> np.ndarray:
    """Send and receive at once; the options are those of `send`."""
    return receive(block, send(block, channel, tiles, out, **options))


def stage(
    block: "Block", channel: Channel, operations: int, positions: np.ndarray, lines: np.ndarray | None = None
) -> None:
    """Software at these positions of the channel's lines touches a packet: relays it, or adds so many numbers."""
    key = ("stage", positions.tobytes(), None if lines is None else lines.tobytes())
    found: Any = channel.cache.get(key)
    if found is None:
        whole = channel.axis is None
        low, length = (0, len(positions)) if whole else (
            block.mesh.offset(channel.axis), block.mesh.block_length(channel.axis)
        )
        here = np.flatnonzero(positions[low : low + length])
        found = channel.cache[key] = as_index(here), len(here), _views(block, channel, lines, whole)
    at, count, views = found
    if count:
        cycles = block.device.beta + block.device.compute_cycles(operations)
        for view in views:
            state = view.of(block.clock.state, 1)
            state[TIME][:, at] += cycles
            state[STAGES][:, at] += 1
            block.counters.stages += count * view.count


def settle(block: "Block") -> None:
    """Enter the bytes of all transfers since the last time at the links that they crossed."""
    for (plan, view), nbytes in block.traffic.items():
        links = view.of(block.counters.link_bytes, 1)
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


@dataclass(frozen=True)
class Buffer:
    """The bytes of one message, and how its header [3, lines, count] and tiles [lines, count, *tile] lie in them."""

    spec: list[Any]  # what mpi4py takes
    header: np.ndarray
    tiles: np.ndarray
    note: bytes  # what a rank that waits for it says


Buffers = tuple[tuple[tuple[Buffer, ...], tuple[Buffer, ...]], ...]


def _buffers(block: "Block", plan: Schedule, view: View, tile: tuple[int, ...], dtype: np.dtype[Any]) -> Buffers:
    """Buffers for the sends and receives of every step; made once for a schedule, view and tile."""
    found: Any = plan.cache.get((view, tile, dtype))
    if found is None:
        from mpi4py import MPI

        size = int(np.prod(tile, dtype=np.int64)) * dtype.itemsize if block.payload else 0

        def buffer(message: Message, tick: int) -> Buffer:
            packets = message.count * view.count
            data = np.empty(packets * (24 + size), np.uint8)
            header = view.new((3,), message.count, (), np.float64, data[: packets * 24])
            tiles = view.new((), message.count, tile, dtype, data[packets * 24 :]) if block.payload else data
            return Buffer([data, MPI.BYTE], header, tiles, f"{plan.note}, tick {tick}".encode())

        found = plan.cache[view, tile, dtype] = tuple(
            (tuple(buffer(one, tick) for one in step.sends), tuple(buffer(one, tick) for one in step.recvs))
            for tick, step in enumerate(plan.steps, 1)
        )
    return found  # type: ignore[no-any-return]


def _replay(
    block: "Block",
    plan: Schedule,
    view: View,
    tiles: np.ndarray,
    out: np.ndarray,
    combine: "Callable[..., np.ndarray] | None",
) -> np.ndarray:
    """Run the schedule on the lines of the view; returns the arrivals, [3, lines, length]."""
    comm, counters, host = block.comm, block.counters, block.host
    tile = tiles.shape[2:]
    nbytes = int(np.prod(tile, dtype=np.int64)) * tiles.dtype.itemsize
    busy, alpha = block.device.busy_cycles(nbytes), block.device.alpha
    buffers = _buffers(block, plan, view, tile, tiles.dtype)
    state, free = view.of(block.clock.state, 1), view.of(block.clock.link_free, 1)
    header = view.new((3,), plan.slots, (), np.float64)
    arrivals = view.new((3,), view.length, (), np.float64)
    arrivals[TIME] = -np.inf
    time, hops = header[TIME], header[HOPS]
    own = view.of(tiles) if block.payload else tiles
    received: list[Buffer] = []
    pending = []
    if plan.sources is not None:
        slots, cores = plan.sources
        header[:, :, slots] = state[:, :, cores]
        counters.messages += plan.sent * view.count
    for tick, (step, (sends, recvs)) in enumerate(zip(plan.steps, buffers, strict=True), 1):
        for parent, copy in step.branches:
            header[:, :, copy] = header[:, :, parent]
        if busy:
            for way, slots, cores in step.moves:
                link = free[way]
                start = np.maximum(time[:, slots], link[:, cores])
                link[:, cores] = start + busy
                start += alpha
                time[:, slots] = start
        else:
            time += alpha  # no link is ever busy; slots that are not under way are not looked at again
        hops += 1
        counters.hops += step.moved * view.count
        for message, buffer in zip(step.sends, sends, strict=True):
            buffer.header[...] = header[:, :, message.slots]
            if block.payload:
                for part in message.parts:
                    source = own if part.message < 0 else received[part.message].tiles
                    buffer.tiles[:, part.to] = source[:, part.source]
            pending.append(comm.Isend(buffer.spec, message.rank, plan.tag))
            host.messages += 1
            host.packets += message.count * view.count
            host.bytes += buffer.spec[0].nbytes
            host.sent_to.add(message.rank)
        for message, buffer in zip(step.recvs, recvs, strict=True):
            block.watch.waiting(message.rank, buffer.note)
            comm.Recv(buffer.spec, message.rank, plan.tag)
            block.watch.moving()
            header[:, :, message.slots] = buffer.header
            received.append(buffer)
        if step.deliveries is not None:
            slots, cores = step.deliveries
            arrivals[:, :, cores] = header[:, :, slots]
            counters.max_hops = max(counters.max_hops, tick)
    arrivals[TIME] += busy
    traffic = (plan, view)
    block.traffic[traffic] = block.traffic.get(traffic, 0) + nbytes
    if block.payload:
        there = view.of(out)
        for part in plan.parts:
            source = own if part.message < 0 else received[part.message].tiles
            arrived = source[:, part.source]
            there[:, part.to] = arrived if combine is None else combine(there[:, part.to], arrived)
        if view.axis is None and not np.may_share_memory(there, out):  # a flat view of scattered memory is a copy
            out[...] = there.reshape(out.shape)
    if pending:
        wait_all(pending)
    return arrivals


def wait_all(requests: list[Any]) -> None:
    from mpi4py import MPI

    MPI.Request.Waitall(requests)
