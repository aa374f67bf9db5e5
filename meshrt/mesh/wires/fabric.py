"""Moving packets: a transfer sends one tile from each source of a channel along its route, one hop a tick.

Headers are arrays [3, lines, packets] of time, hops and stages of the path that led to the packet; they ride in front
of the tiles in every message between ranks. Inside a block a hop is an index move and a tile is copied once, to where
it is delivered. Time: a head leaves its core at max(the core's time, the ramp free), and each router at max(its time,
the link free) + alpha; it keeps what it crosses busy for bytes / width, at last the ramp that it is delivered by.
"""

from collections.abc import Sequence
from dataclasses import field, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.mesh.cores import Cores
from meshrt.mesh.wires import heads, order, ramps, sends, tally
from meshrt.mesh.wires.heads import Passage, Waiting
from meshrt.mesh.wires.lane import Lane, MessageBuffer, lane_of
from meshrt.mesh.wires.lines import View
from meshrt.mesh.wires.planning import check_chosen, is_crossed, scheduled
from meshrt.mesh.wires.replay import Arrival, Look, can_be_at_once, replay
from meshrt.mesh.wires.schedule import Schedule
from meshrt.mesh.wires.software import streaming_cycles
from meshrt.mesh.wires.strides import strides_of
from meshrt.mesh.wires.tables import Channel
from meshrt.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

MANY = 1 << 18  # bytes of tiles for which it pays to ask the compiled core
PIECE = 1 << 16  # bytes that change their place together, where tiles of several lines lie side by side


@dataclass(frozen=True, eq=False)
class Flight:
    """A transfer under way: what it brings is in `tiles` on the host, but no core has waited for it yet. What `moves`
    do is put there when they have.
    """

    tiles: np.ndarray
    arrivals: list[Arrival]
    moves: "list[Callable[[], None]]" = field(default_factory=list)


def send(
    block: Cores,
    channel: Channel,
    tiles: np.ndarray,
    out: np.ndarray | None = None,
    *,
    positions: np.ndarray | None = None,
    lines: np.ndarray | None = None,
    combine: "Callable[..., np.ndarray] | None" = None,
    stream: bool = False,
    at_once: bool = False,
    later: bool = False,
) -> Flight:
    """Send the tile [bh, bw, *tile] of every source of the channel; the cores go on with their work meanwhile.

    `positions` and `lines` (bool, over the whole mesh) choose sources and lines. What arrives goes into `out`, which
    keeps what it has where nothing arrives (default: fresh core memory, NaN); with `combine(there, arrived)` it is
    combined with what is there. The cores meet the packets when they `receive`: the tail, when all of a tile is in; or
    with `stream` the head, where they add word by word and pass on each word at once. Then `software.tail` is what they
    have to wait for at the end, and a ramp is busy for as long as the additions take, if that is longer. UsageError for
    tiles that are not those of all cores; in one's own program also where `out`, `positions` or `lines` do not fit.

    A packet under way takes no core memory: it is in routers. What arrives takes that of `out`, from when it is sent.

    `at_once`: whoever calls will `receive` it before anything else, which is done here where nothing is in the way.

    `later`: tiles are put into `out` when they are waited for. Until then who sends may read them, but not write.
    """
    block.check_lead(tiles)
    if block.audit is not None:
        block.audit.fits(tiles, out)
        check_chosen(block, channel, positions, lines)
    if out is None:
        out = np.full_like(tiles, np.nan if tiles.dtype.kind not in "iu" else np.iinfo(tiles.dtype).max)
        block.memory.keep("tile that came in", out)
    prepared = prepare(block, channel, tiles, positions, lines, stream) if block.timed else None
    flight = Flight(out, [])
    moves = flight.moves if later else None
    flight.arrivals.extend(_start(block, channel, prepared, tiles, out, combine, at_once, moves))
    return flight


@dataclass(frozen=True, eq=False)
class Prepared:
    """What a transfer of such tiles is on these lines, each time: made at its first use."""

    schedule: Schedule
    views: tuple[View, ...]
    nbytes: int  # of a tile
    apart: bool  # no two of its routes share a link; see order.py
    unwatched: Passage
    watched: Passage
    lanes: dict[View, Lane]  # made when something is sent


def prepare(
    block: Cores, channel: Channel, tiles: np.ndarray, positions: np.ndarray | None = None,
    lines: np.ndarray | None = None, stream: bool = False,
) -> Prepared:  # fmt: skip
    """From the channel's cache, or made now. All ranks call it together; what it returns holds for a `tables.epoch`."""
    cache = channel.cache
    tile, dtype = tiles.shape[2:], tiles.dtype
    chosen = None if positions is None else positions.tobytes(), None if lines is None else lines.tobytes()
    key = chosen, tile, dtype, stream
    prepared: Prepared | None = cache.get(key) if cache.get("epoch") == block.tables.epoch else None
    if prepared is None:
        schedule, views = scheduled(block, channel, positions, lines)
        nbytes = prod(tile) * tiles.itemsize
        busy = block.device.busy_cycles(nbytes)
        taking = streaming_cycles(block, tiles) if stream else busy
        apart = not cache["trace"].meets and not block.tables.epoch
        passage = Passage(busy, taking, stream)
        prepared = Prepared(schedule, views, nbytes, apart, passage, replace(passage, watch=True), {})
        cache[key] = prepared
    return prepared


def _start(
    block: Cores, channel: Channel, prepared: Prepared | None, tiles: np.ndarray, out: np.ndarray,
    combine: "Callable[..., np.ndarray] | None", at_once: bool, moves: "list[Callable[[], None]] | None" = None,
) -> list[Arrival]:  # fmt: skip
    """A transfer begins: what cores have to wait for. Where nothing is timed nothing is prepared, nor moved."""
    if not block.payload:
        out[...] = 1  # a number to go on with, that can be divided by
    block.begin()
    if prepared is None:
        return []
    passage, clock = _passage(block, channel, prepared), block.clock
    arrivals: list[Arrival] = []
    timeline, messages = block.ledger.timeline, clock.messages
    sent = -1 if timeline is None else timeline.sends(clock, 0.0 if passage.stream else passage.busy)
    number = -1 if messages is None else messages.send(prepared.schedule, prepared.views, prepared.nbytes)
    if prepared.schedule.idle:
        return arrivals
    links = clock.links
    before = None if links is None else links.before()
    at_once = at_once and passage.waiting is None and can_be_at_once(block)
    look = None if clock.seen is None else partial(_looked, block, sent, number)
    for view in prepared.views:
        arrived = _send(block, prepared, view, tiles, out, combine, passage, at_once, look, moves)
        if arrived is not None:
            arrived.sent, arrived.number = sent, number
            arrivals.append(arrived)
    if links is not None:
        links.after(sent, prepared.schedule, prepared.views, prepared.nbytes, passage.busy, block.device.alpha, before)
    if block.audit is not None:
        block.audit.sends(arrivals)
    return arrivals


def _passage(block: Cores, channel: Channel, prepared: Prepared) -> Passage:
    """How the packets of a transfer pass. All ranks find the same, also those that nothing passes."""
    passage, schedule = prepared.unwatched, prepared.schedule
    if not passage.busy:  # nobody ever waits
        return passage
    if schedule.meets or (channel.axis is None and is_crossed(block, channel)):
        waiting = list[Waiting]()
        block.clock.heads.append(waiting)
        block.clock.started += 1
        return replace(passage, waiting=waiting)
    watch = order.begin_use(block, channel, schedule, prepared.views, prepared.apart, passage.busy)
    return prepared.watched if watch else passage


def _send(
    block: Cores, prepared: Prepared, view: View, tiles: np.ndarray, out: np.ndarray,
    combine: "Callable[..., np.ndarray] | None", passage: Passage, at_once: bool, look: Look | None,
    moves: "list[Callable[[], None]] | None" = None,
) -> Arrival | None:  # fmt: skip
    """A transfer on the lines of a view."""
    schedule, lane = prepared.schedule, prepared.lanes.get(view)
    if lane is None:
        lane = prepared.lanes[view] = lane_of(block, schedule, view, tiles.shape[2:], tiles.dtype)
    own = view.of(tiles) if block.payload else None
    rows, pending, arrives = None, list[Any](), out
    if block.hosted == 1 and own is not None and combine is None and look is None and passage.waiting is None:
        arrives = out if moves is None else np.empty_like(out)
        rows = sends.rows_of(block, lane, passage, tiles, arrives, at_once)
    if rows is None:
        arrival, pending = replay(block, lane, own, passage, at_once, look)
    else:
        arrival = sends.send(block, lane, rows, passage, tiles, arrives, at_once)
    counters = block.ledger.counters
    counters.messages += schedule.sent * view.count
    counters.hops += schedule.hops * view.count
    counters.wafer_hops += lane.wafer_hops
    if schedule.longest > counters.max_hops:
        counters.max_hops = schedule.longest
    key = schedule, view
    block.traffic[key] = block.traffic.get(key, 0) + prepared.nbytes
    if block.mapped:
        tally.sent(block, schedule, view, prepared.nbytes)
    posted = len(pending) if rows is None else rows.posted
    if posted:
        host = block.ledger.host
        host.messages += posted
        host.packets += lane.packets
        host.bytes += lane.bytes
    if own is not None and schedule.parts:
        if rows is None:
            packets = _packets(schedule, own, lane.received, moves is not None)
            move = partial(_deliver, block, schedule, view, own, packets, out, combine)
        else:  # they have put it where it arrives
            move = partial(np.copyto, out, arrives)
        if moves is not None:
            moves.append(move)
        elif rows is None:
            move()
    for request in pending:
        block.wait(request)
    return arrival


def _packets(
    schedule: Schedule, own: np.ndarray, received: list[MessageBuffer], kept: bool = False
) -> list[np.ndarray]:  # fmt: skip
    """Of each part of what arrives, the tiles where they are now. The next messages overwrite those that came in one:
    of these a copy, if they are to be kept.
    """
    packets = [(own if part.message < 0 else received[part.message].tiles)[:, part.source] for part in schedule.parts]
    if kept:
        packets = [
            packet if part.message < 0 else packet.copy() for part, packet in zip(schedule.parts, packets, strict=True)
        ]
    return packets


def _deliver(
    block: Cores, schedule: Schedule, view: View, own: np.ndarray, packets: list[np.ndarray], out: np.ndarray,
    combine: "Callable[..., np.ndarray] | None",
) -> None:  # fmt: skip
    """Put the tiles that arrive on the lines of a view where they belong."""
    target, parts = view.of(out), schedule.parts
    # one part alone NumPy copies by itself where it has to
    takes = len(parts) > 1 and any(part.message < 0 for part in parts) and np.may_share_memory(own, target)
    strided = combine is None and target.nbytes > MANY and schedule.strided
    many = strided and block.core is not None and _are_alike(target, own)
    if many and takes and _are_one(block, target, own):
        _move_around(block, schedule, view, target)
        others = [number for number, part in enumerate(parts) if part.message >= 0]
        parts, packets, takes = tuple(parts[number] for number in others), [packets[number] for number in others], False
    if many and not takes:
        arrays = [array for part, packet in zip(parts, packets, strict=True) for array in (target[:, part.to], packet)]
        block.core.deliver(*map(_plain, arrays))
    else:
        if takes:
            packets = [packet.copy() for packet in packets]  # nothing is to be overwritten before it has left
        for part, packet in zip(parts, packets, strict=True):
            own_tiles = target[:, part.to]
            if isinstance(part.to, slice) and isinstance(combine, np.ufunc) and target.dtype.kind == "f":
                combine(own_tiles, packet, out=own_tiles)  # NumPy looks after memory that both share
            else:
                target[:, part.to] = packet if combine is None else combine(own_tiles, packet)
    if view.axis is None and not np.may_share_memory(target, out):  # a flat view of scattered memory is a copy
        out[...] = target.reshape(out.shape)


def _are_alike(target: np.ndarray, own: np.ndarray) -> bool:
    """May the compiled core put tiles where they belong? Not where they are to become numbers of another kind."""
    if target.dtype != own.dtype or target.shape[2:] != own.shape[2:]:
        return False
    plain = target.dtype.kind != "V" or target.itemsize <= 2  # NumPy shows others none of what it does not know
    return target.ndim < 9 and plain


def _are_one(block: Cores, target: np.ndarray, own: np.ndarray) -> bool:
    """Is each place in both the same place in memory?"""
    return target.strides == own.strides and bool(block.core.address(target) == block.core.address(own))


def _move_around(block: Cores, schedule: Schedule, view: View, target: np.ndarray) -> None:
    """What comes from these lines themselves changes its place in them, so many lines at a time as lie side by side."""
    tile_bytes = target[:1, :1].nbytes
    lines = max(1, PIECE // tile_bytes) if view.axis == "y" else 1
    room = block.core.address(block.clock.buffer("leaving", lines * tile_bytes))
    block.core.rotate(room, lines, schedule.moves, _plain(target))


def _plain(array: np.ndarray) -> np.ndarray:
    """As the compiled core may see it: of kinds of numbers that NumPy does not know it shows none of their memory."""
    return array.view(f"u{array.itemsize}") if array.dtype.kind == "V" else array


def receive(block: Cores, flight: Flight, *others: Flight) -> np.ndarray:
    """Wait for the packets: each core's clock goes to the arrival, if that is later; then for those of the other
    flights, one after the other. Returns the tiles of the first.
    """
    receive_all(block, (flight, *others))
    return flight.tiles


def receive_all(block: Cores, flights: Sequence[Flight]) -> None:
    """As `receive`, of any number of flights."""
    heads.resolve(block)
    arrivals = [arrival for flight in flights for arrival in flight.arrivals if not arrival.over]
    asked_at = None if block.clock.seen is None else [_asked(arrival) for arrival in arrivals]
    ramps.serve_all(block, arrivals)
    for at, arrival in enumerate(arrivals):
        _wait_all(block, arrival)
        arrival.end()
        if asked_at is not None:
            _looked(block, arrival.sent, arrival.number, arrival.lane, asked_at[at])
    for flight in flights:
        while flight.moves:
            flight.moves.pop(0)()


def _looked(block: Cores, sent: int, number: int, lane: Lane, asked_at: np.ndarray | None) -> None:
    """Cores have waited for the packets of a lane: whoever looks is told, and for which transfer, by its numbers."""
    clock = block.clock
    if clock.messages is not None:
        clock.messages.wait(number, lane)
    clock.seen(f"waits for {lane.schedule.note}", sent, asked_at, _landed(block, lane))  # type: ignore[misc]  # is there


def _asked(arrival: Arrival) -> np.ndarray | None:
    """When the packets of an arrival asked for the ramps of their cores; None where some have their ramps already."""
    return arrival.landing.time.flatten() if arrival.served is None else None


def _landed(block: Cores, lane: Lane) -> np.ndarray:
    """Of a lane's packets by receiver, int32 [2, cores of the block]: hops, and the number of the packet in `_asked`;
    0 and -1 where none comes. Made once.
    """
    if not lane.landed:
        hops, number = np.zeros(block.shape, np.int32), np.full(block.shape, -1, np.int32)
        landed = np.zeros((lane.view.count, lane.schedule.count), np.int32)
        for part in lane.schedule.parts:
            landed[:, part.delivered] = part.hops
        lane.view.of(hops)[:, lane.schedule.delivered] = landed
        lane.view.of(number)[:, lane.schedule.delivered] = np.arange(landed.size).reshape(landed.shape)
        lane.landed.append(np.stack([hops.ravel(), number.ravel()]))
    return lane.landed[0]


def _wait_all(block: Cores, arrival: Arrival) -> None:
    """All cores that get a packet wait for it."""
    if block.core is None:
        _wait(block, arrival, arrival.landing.time > arrival.lane.time.get())
        return
    strides, landing = strides_of(block, arrival.lane), arrival.landing.address
    if block.core.replay(strides.late, landing, 0.0, 0.0, False) is not None:
        block.clock.path_changes()
        arrival.take_path()
        block.core.replay(strides.takes_over, landing, 0.0, 0.0, False)


def _wait(block: Cores, arrival: Arrival, late: np.ndarray) -> None:
    """Those cores that are marked take over the time and the path of the packets that they waited for."""
    waiting = np.count_nonzero(late)
    if not waiting:
        return
    block.clock.path_changes()
    arrival.take_path()
    lane, landing = arrival.lane, arrival.landing
    if waiting == late.size:
        lane.state.put(landing.header)
        return
    state = lane.state.get()
    np.copyto(state, landing.header, where=late)
    lane.state.put(state)


def receive_at(block: Cores, channel: Channel, flight: Flight, positions: np.ndarray) -> None:
    """Only the cores at these positions (bool) of the channel's lines wait for the packets; the others do so later."""
    assert channel.axis is not None
    check_chosen(block, channel, positions, None, "positions")
    low = block.mesh.offset(channel.axis)
    heads.resolve(block)
    for arrival in flight.arrivals:
        lane = arrival.lane
        cores = np.arange(lane.view.length)[lane.schedule.delivered]
        if lane.view.axis is None:  # the block as one line
            cores = cores % block.mesh.block_width if channel.axis == "x" else cores // block.mesh.block_width
        if not arrival.over:
            ramps.serve(block, arrival, positions[low + cores])
            _wait(block, arrival, positions[low + cores] & (arrival.landing.time > lane.time.get()))
            if block.clock.messages is not None:
                block.clock.messages.wait(arrival.number, lane, positions[low + cores])
            if block.clock.seen is not None:
                block.clock.seen(f"waits for {lane.schedule.note}", arrival.sent, landed=_landed(block, lane))


def transfer(
    block: Cores, channel: Channel, tiles: np.ndarray, out: np.ndarray | None = None, **options: Any
) -> np.ndarray:
    """Send and receive at once; the options are those of `send`."""
    flight = send(block, channel, tiles, out, **options, at_once=True)
    if flight.arrivals or block.clock.heads:
        receive(block, flight)
    return flight.tiles


def transfer_again(
    block: Cores, channel: Channel, prepared: Prepared | None, tiles: np.ndarray,
    combine: "Callable[..., np.ndarray] | None" = None, out: np.ndarray | None = None,
) -> None:  # fmt: skip
    """As `transfer` of what was prepared for such tiles: what repeats is looked up once, not each time. In place, or
    to `out`.
    """
    out = tiles if out is None else out
    arrivals = _start(block, channel, prepared, tiles, out, combine, True)
    if arrivals or block.clock.heads:
        receive(block, Flight(out, arrivals))


def forget(block: Cores, channel: Channel) -> None:
    """Drop the schedules of a channel that will not be used again: each holds times of all that it delivers."""
    tally.settle(block)
    for key in [key for key in channel.cache if key not in ("epoch", "trace")]:
        del channel.cache[key]


def forget_lines(channel: Channel) -> None:
    """Drop what was made for transfers on these or those lines of a channel that will not be used so again. Nothing of
    it may be under way. What packets do on a line stays known.
    """
    for key, entry in [*channel.cache.items()]:
        if isinstance(entry, Prepared):
            entry.schedule.cache.clear()
        if not isinstance(key, str) and not isinstance(entry, Schedule):
            del channel.cache[key]
