"""Moving packets: a transfer sends one tile from each source of a channel along its route, one hop a tick.

Headers are arrays [3, lines, packets] of time, hops and stages of the path that led to the packet; they ride in front
of the tiles in every message between ranks. Inside a block a hop is an index move and a tile is copied once, to where
it is delivered. Time: a head leaves its core at max(the core's time, the ramp free), and each router at max(its time,
the link free) + alpha; it keeps what it crosses busy for bytes / width, at last the ramp that it is delivered by.
"""

from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.mesh.cores import Cores
from meshrt.mesh.wires import delivery, order, receiving, sends, tally
from meshrt.mesh.wires.heads import Passage, Waiting
from meshrt.mesh.wires.lane import Lane, lane_of
from meshrt.mesh.wires.lines import View
from meshrt.mesh.wires.planning import check_chosen, is_crossed, scheduled
from meshrt.mesh.wires.receiving import Flight
from meshrt.mesh.wires.replay import Arrival, Look, can_be_at_once, replay
from meshrt.mesh.wires.schedule import Schedule
from meshrt.mesh.wires.software import streaming_cycles
from meshrt.mesh.wires.tables import Channel
from meshrt.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable


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
        block.audit.fits(tiles, out, combine)
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
    whole: bool  # from all of the channel's sources on all of its lines; the same on all ranks
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
        whole = positions is None or bool(positions[channel.sources].all())
        whole = whole and (lines is None or bool(lines[channel.lines].all()))
        passage = Passage(busy, taking, stream)
        prepared = Prepared(schedule, views, nbytes, apart, whole, passage, replace(passage, watch=True), {})
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
    look = None if clock.seen is None else partial(receiving.looked, block, sent, number)
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
    if block.clock.heads or schedule.meets or (channel.axis is None and is_crossed(block, channel)):
        waiting = list[Waiting]()
        block.clock.heads.append(waiting)
        block.clock.started += 1
        return replace(passage, waiting=waiting)
    apart, whole = prepared.apart, prepared.whole
    watch = order.begin_use(block, channel, schedule, prepared.views, apart, whole, passage.busy)
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
            packets = delivery.packets_of(schedule, own, lane.received, moves is not None)
            move = partial(delivery.deliver, block, schedule, view, own, packets, out, combine)
        else:  # they have put it where it arrives
            move = partial(np.copyto, out, arrives)
        if moves is not None:
            moves.append(move)
        elif rows is None:
            move()
    for request in pending:
        block.wait(request)
    return arrival


def transfer(
    block: Cores, channel: Channel, tiles: np.ndarray, out: np.ndarray | None = None, **options: Any
) -> np.ndarray:
    """Send and receive at once; the options are those of `send`."""
    flight = send(block, channel, tiles, out, **options, at_once=True)
    if flight.arrivals or block.clock.heads:
        receiving.receive(block, flight)
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
        receiving.receive(block, Flight(out, arrivals))


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
