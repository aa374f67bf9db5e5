"""Broadcasts and allgather along lines, from every core, with as many static routes as the tables have room for.

A route from each of N sources takes N entries at every router. Where that is too many, the line is cut into segments:
a core has a route to the rest of its own segment only, and software at the segment's ends relays what comes to them, a
stage each, by one more route, to all of the next segment. Segments of one core are a chain of single hops.

    segments of 3:      0 -- 1 -- 2 | 3 -- 4 -- 5 | 6 -- 7 -- 8
    from core 4:        3 <- 4 -> 5, then 5 -> 6, 7, 8 and 3 -> 2, 1, 0: two stages
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from numbers import Integral

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.wires import fabric, receiving, software
from meshrt.mesh.wires.lines import marked
from meshrt.mesh.wires.receiving import Flight, receive
from meshrt.mesh.wires.routes import Route
from meshrt.mesh.wires.tables import Channel, installed
from meshrt.records import dataclass


@dataclass(frozen=True, eq=False)
class Spread:
    """Routes for broadcasts from any core along every line of an axis."""

    axis: str
    bounds: tuple[int, ...]  # the first core of each segment, and N
    near: Channel | None  # from every core to the rest of its segment
    channels: tuple[tuple[int, Channel], ...]  # (step, from the end of each segment to all of the next that way)

    @property
    def n(self) -> int:
        """Cores of a line."""
        return self.bounds[-1]

    @property
    def longest(self) -> int:
        """Cores of the longest segment."""
        return longest_of(self.bounds)

    def end(self, segment: int, step: int) -> int:
        """The core that relays what leaves the segment in that direction (1 or -1)."""
        return self.bounds[segment + 1] - 1 if step > 0 else self.bounds[segment]

    def segment(self, core: int) -> int:
        """The segment that a core is in."""
        return int(np.searchsorted(self.bounds, core, side="right")) - 1


def cut(n: int, longest: int) -> tuple[int, ...]:
    """The bounds of the fewest segments of at most so many cores, as equal as can be."""
    count = -(-n // longest)
    return tuple(n * segment // count for segment in range(count + 1))


def longest_of(bounds: Sequence[int]) -> int:
    """Cores of the longest segment."""
    return max(high - low for low, high in pairwise(bounds))


def colours(bounds: Sequence[int]) -> int:
    """The most that the routes of a line cut so need: one from every core of a segment, four that pass its ends."""
    longest = longest_of(bounds)
    return (longest if longest > 1 else 0) + (0, 0, 2, 4)[min(len(bounds) - 1, 3)]


@contextmanager
def spreads(block: Block, longest: int | None = None) -> Iterator[tuple[Spread, Spread]]:
    """Install broadcasts along x and along y, which share the tables: `with spreads(block) as (along_x, along_y)`.

    `longest`: cores of a segment; without, as many as fit beside what is in the tables. UsageError, LimitError.
    """
    if longest is not None and (not isinstance(longest, Integral) or longest < 1):
        raise UsageError(f"segments of {longest!r} cores; they have a whole number of them, from 1 on")
    mesh = block.mesh
    room = block.tables.limit - int(block.tables.book.any(axis=(1, 2)).sum())
    for most in range(max(mesh.width, mesh.height), 0, -1) if longest is None else (longest,):
        cuts = [cut(n, most) for n in (mesh.width, mesh.height)]
        if sum(colours(bounds) for bounds in cuts) <= room:
            break
    with _spread(block, "x", cuts[0]) as x, _spread(block, "y", cuts[1]) as y:
        yield x, y


@contextmanager
def _spread(block: Block, axis: str, bounds: tuple[int, ...]) -> Iterator[Spread]:
    near = [
        Route(source, tuple(core for core in range(low, high) if core != source))
        for low, high in pairwise(bounds)
        for source in range(low, high)
        if high - low > 1
    ]
    triples = list(zip(bounds, bounds[1:], bounds[2:], strict=False))
    onward = [
        (1, [Route(middle - 1, tuple(range(middle, high))) for _, middle, high in triples]),
        (-1, [Route(middle, tuple(range(low, middle))) for low, middle, _ in triples]),
    ]
    with ExitStack() as stack:
        yield Spread(
            axis,
            bounds,
            stack.enter_context(installed(block, axis, near)) if near else None,
            tuple((step, stack.enter_context(installed(block, axis, way))) for step, way in onward if way),
        )


# -------------------------------------------------------------------------------------------------------- broadcast


@dataclass(frozen=True)
class Broadcast:
    """A broadcast under way: what it brings is in `out` on the host, but the cores have not waited for it yet."""

    spread: Spread
    source: int
    out: np.ndarray
    flights: list[Flight]


def start(block: Block, spread: Spread, source: int, tiles: np.ndarray, out: np.ndarray) -> Broadcast:
    """The source core of every line sends its tile [bh, bw, *tile] to its segment; `relay` and `finish` follow.

    `out`, as large as `tiles`, is where all cores have it then, the source too. UsageError for tiles that are not those
    of all cores, another `out`, and a source that is no core of a line.
    """
    block.check_lead(tiles)
    if not isinstance(source, Integral) or not 0 <= source < spread.n:
        raise UsageError(
            f"a broadcast from core {source!r} of a line along {spread.axis}: its cores are 0 to {spread.n - 1}"
        )
    _check_out(out, tiles.shape)
    begun = Broadcast(spread, source, out, [])
    if block.payload:
        source_lines, target_lines = (_by_line(spread.axis, array) for array in (tiles, out))
        at = source - block.mesh.offset(spread.axis)
        if 0 <= at < target_lines.shape[1]:
            target_lines[:, at] = source_lines[:, at]
    if spread.near is not None:
        begun.flights.append(fabric.send(block, spread.near, tiles, out, positions=marked(spread.n, [source])))
    return begun


def relay(block: Block, begun: Broadcast) -> None:
    """The ends of the segments wait for the tile and send it on; the other cores go on with their work."""
    spread, source, out = begun.spread, begun.source, begun.out
    last = len(spread.bounds) - 2
    near = list(begun.flights)
    for step, channel in spread.channels:
        arriving, segment = near, spread.segment(source)
        while 0 <= segment + step <= last:
            end = spread.end(segment, step)
            relays = marked(spread.n, [end])
            if end != source:
                for flight in arriving:
                    receiving.receive_at(block, channel, flight, relays)
                software.stage(block, channel, 0, relays)
            arriving = [fabric.send(block, channel, out, out, positions=relays)]
            begun.flights.extend(arriving)
            segment += step


def finish(block: Block, begun: Broadcast) -> np.ndarray:
    """All cores wait for the tile."""
    for flight in begun.flights:
        receive(block, flight)
    return begun.out


# -------------------------------------------------------------------------------------------------------- allgather


def start_allgather(block: Block, spread: Spread, tiles: np.ndarray, out: np.ndarray | None = None) -> Flight:
    """Every core of a line gets the tiles of all: [bh, bw, *tile] -> [bh, bw, N, *tile], its own among them.

    They are in `out`, or in fresh core memory. Packets leave from their places there and arrive in them. LimitError;
    UsageError for tiles that are not those of all cores, and another `out`.

    First inside the segments, then segment by segment, the nearest tiles first, so that the ends of the segments always
    have one to relay. Those wait for what they relay; `receive` waits for all, at all cores.
    """
    block.check_lead(tiles)
    bounds, n = spread.bounds, spread.n
    if out is not None:
        _check_out(out, (*tiles.shape[:2], n, *tiles.shape[2:]))
    count = len(bounds) - 1
    line_tiles = block.empty("tiles of the line", (n, *tiles.shape[2:]), tiles.dtype) if out is None else out
    line_tiles[...] = tiles[:, :, None]
    last: dict[tuple[int, int], Flight] = {}  # by direction and number in the segment
    flights = []
    numbers = range(spread.longest)
    if spread.near is not None:
        for number in numbers:
            sources = {at: low + number for at, (low, high) in enumerate(pairwise(bounds)) if low + number < high}
            packet = tiles.copy()
            flight = fabric.send(block, spread.near, tiles, packet, positions=marked(n, sources.values()))
            _keep(block, spread, line_tiles, packet, sources)
            flights.append(Flight(line_tiles, flight.arrivals))
            last[1, number] = last[-1, number] = flights[-1]
    for far in range(count - 1):
        for number in numbers:
            for step, channel in spread.channels:
                sources = {}  # by the segment that gets the tile
                for segment in range(max(0, step * (far + 1)), min(count, count + step * (far + 1))):
                    first, after = bounds[segment - step * (far + 1) :][:2]
                    if first + number < after:
                        sources[segment] = first + number
                ends = {spread.end(segment - step, step): source for segment, source in sources.items()}
                if not ends:
                    continue
                relays = marked(n, (end for end, source in ends.items() if end != source))
                if (step, number) in last:
                    receiving.receive_at(block, channel, last[step, number], relays)
                software.stage(block, channel, 0, relays)
                packet = tiles.copy()
                _load(block, spread, line_tiles, packet, ends)
                flight = fabric.send(block, channel, packet, packet, positions=marked(n, ends))
                _keep(block, spread, line_tiles, packet, sources)
                flights.append(Flight(line_tiles, flight.arrivals))
                last[step, number] = flights[-1]
    return Flight(line_tiles, [arrival for flight in flights for arrival in flight.arrivals])


def _check_out(out: np.ndarray, wanted: tuple[int, ...]) -> None:
    if out.shape != wanted:
        raise UsageError(f"`out` of shape {list(out.shape)}: what the cores get is {list(wanted)}")


def _load(block: Block, spread: Spread, line_tiles: np.ndarray, packet: np.ndarray, sources: dict[int, int]) -> None:
    """At each of these cores of a line, put the tile from that source in the packet."""
    if block.payload:
        low = block.mesh.offset(spread.axis)
        source_lines, target_lines = _by_line(spread.axis, line_tiles), _by_line(spread.axis, packet)
        for core, source in sources.items():
            if 0 <= core - low < target_lines.shape[1]:
                target_lines[:, core - low] = source_lines[:, core - low, source]


def _keep(block: Block, spread: Spread, line_tiles: np.ndarray, arrived: np.ndarray, sources: dict[int, int]) -> None:
    """In each of these segments, what has arrived is from that source."""
    if block.payload:
        offset = block.mesh.offset(spread.axis)
        source_lines, target_lines = _by_line(spread.axis, arrived), _by_line(spread.axis, line_tiles)
        for segment, source in sources.items():
            low, high = (max(0, bound - offset) for bound in spread.bounds[segment : segment + 2])
            target_lines[:, low:high, source] = source_lines[:, low:high]


def _by_line(axis: str, tiles: np.ndarray) -> np.ndarray:
    """[bh, bw, *tile] as [lines, cores of a line, *tile]. A view."""
    return tiles if axis == "x" else tiles.swapaxes(0, 1)
