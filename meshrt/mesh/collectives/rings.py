"""Collectives along lines that only move tiles: shifts round a ring, alignment.

Each exists on all lines of an axis at once. `with` installs the routes, and leaving it frees them.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import lcm, prod

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.wires import fabric, routes
from meshrt.mesh.wires.tables import Channel, installed


@dataclass(frozen=True, eq=False)
class Moves:
    """Tiles that change place in one shift: core and slot before and after. Positions along the line."""

    core: np.ndarray
    slot: np.ndarray
    to_core: np.ndarray
    to_slot: np.ndarray

    def side_by_side(self, width: int, copies: int) -> "Moves":
        """The same on each of so many stretches of `width` cores of a line."""
        at = np.arange(0, copies * width, width)[:, None]
        core, to_core = ((at + cores).ravel() for cores in (self.core, self.to_core))
        return Moves(core, np.tile(self.slot, copies), to_core, np.tile(self.to_slot, copies))

    def local(self, low: int, length: int) -> tuple["Moves", "Moves"]:
        """Those that leave, and those that come to, the cores low to low + length, numbered from low."""
        leaves = (self.core >= low) & (self.core < low + length)
        comes = (self.to_core >= low) & (self.to_core < low + length)
        return tuple(
            Moves(self.core[on] - low, self.slot[on], self.to_core[on] - low, self.to_slot[on])
            for on in (leaves, comes)
        )  # type: ignore[return-value]


@dataclass(frozen=True, eq=False)
class Ring:
    """A ring along every line: its N * slots places, `slots` at each core, move on by one in a shift.

    Interleaved: with one slot a tile moves up to two hops, as on Figure 7 of waferllm. With more, most tiles only
    change their slot inside a core, and one in each direction crosses to the next core, one hop.
    Plain, as Cannon has it: tiles go to the next slot or the next core, and from the last core N - 1 hops back.
    """

    axis: str
    slots: int
    channels: tuple[tuple[Channel, Moves], ...]
    inside: Moves
    places: tuple[int, ...]  # the place on the ring of each of the line's N * slots tiles
    around: int | None = None  # places of each ring, where several lie on a line and tiles go the short way round


@contextmanager
def interleaved_ring(block: Block, axis: str, slots: int = 1, reverse: bool = False) -> Iterator[Ring]:
    """Install an interleaved ring along every line of the axis: 3 route entries a core, 4 with several slots."""
    n = block.mesh.length(axis)
    patterns = [routes.interleaved_ring(n, reverse)] if slots == 1 else [routes.chain(n, step) for step in (1, -1)]
    patterns = patterns if n > 1 else []
    with ExitStack() as stack:
        channels = [stack.enter_context(installed(block.tables, axis, pattern)) for pattern in patterns]
        yield _ring(axis, n, slots, reverse, channels)


@contextmanager
def plain_ring(block: Block, axis: str, slots: int = 1, reverse: bool = False) -> Iterator[Ring]:
    """Install a ring with a wrap-around along every line of the axis: 3 route entries a core."""
    n = block.mesh.length(axis)
    with installed(block.tables, axis, routes.ring(n, reverse)) as channel:
        yield _ring(axis, n, slots, reverse, [channel] if n > 1 else [], range(n * slots))


def _ring(
    axis: str, n: int, slots: int, reverse: bool, channels: list[Channel], order: Sequence[int] | None = None
) -> Ring:
    """A ring on installed routes: one channel for all, or one to each neighbour (step 1, then -1).

    `order` has the N * slots tiles in the order of the ring; without, it is interleaved.
    """
    total = n * slots
    following = np.array(routes.ring_order(total) if order is None else order)
    places = np.argsort(following)
    before, after = np.arange(total), following[(places + (-1 if reverse else 1)) % total]
    core, to_core = before // slots, after // slots

    def moves(on: np.ndarray) -> Moves:
        return Moves(core[on], before[on] % slots, to_core[on], after[on] % slots)

    crossing = [core != to_core] if len(channels) == 1 else [to_core == core + step for step in (1, -1)]
    pairs = [(channel, moves(on)) for channel, on in zip(channels, crossing, strict=False)]  # none on one core
    return Ring(axis, slots, tuple(pairs), moves(core == to_core), tuple(places.tolist()))


@dataclass(frozen=True, eq=False)
class Rings:
    """Rings along both axes, both ways round: what MeshGEMM and Cannon need, 12 route entries a core at most.

    `columns` are the places on the ring along x of the columns of tiles that go round along y: row r of what goes round
    along x meets column c where both have moved on by as much as lies between their places. `rows` are those on the
    ring along y of the rows of tiles that go round along x.
    """

    x: Ring
    y: Ring
    back_x: Ring
    back_y: Ring
    columns: tuple[int, ...]
    rows: tuple[int, ...]


@contextmanager
def interleaved_rings(block: Block) -> Iterator[Rings]:
    """Install them, with lcm(W, H) places on every ring."""
    side = lcm(block.mesh.width, block.mesh.height)
    rings, backs = {}, {}
    with ExitStack() as stack:
        for axis in "xy":
            n = block.mesh.length(axis)
            slots = side // n
            rings[axis] = stack.enter_context(interleaved_ring(block, axis, slots))
            if slots == 1:
                backs[axis] = stack.enter_context(interleaved_ring(block, axis, slots, reverse=True))
            else:  # both ways round go by the same routes to the neighbours
                backs[axis] = _ring(axis, n, slots, True, [channel for channel, _ in rings[axis].channels])
        yield Rings(rings["x"], rings["y"], backs["x"], backs["y"], rings["x"].places, rings["y"].places)


@contextmanager
def plain_rings(block: Block) -> Iterator[Rings]:
    """Install Cannon's, with lcm(W, H) places on every ring."""
    side = lcm(block.mesh.width, block.mesh.height)
    with ExitStack() as stack:
        x, y, back_x, back_y = (
            stack.enter_context(plain_ring(block, axis, side // block.mesh.length(axis), reverse))
            for reverse in (False, True)
            for axis in "xy"
        )
        yield Rings(x, y, back_x, back_y, x.places, y.places)


@contextmanager
def rings_in_regions(block: Block, width: int, height: int) -> Iterator[Rings]:
    """Interleaved rings inside each of the regions of width x height cores that the mesh is cut into.

    Each has lcm(width, height) places; 12 route entries a core at most.
    """
    side, made = lcm(width, height), {}
    with ExitStack() as stack:
        for axis, n in (("x", width), ("y", height)):
            copies, slots = block.mesh.length(axis) // n, side // n
            channels: list[Channel] = []
            for reverse in (False, True):
                if n > 1 and (slots == 1 or not channels):
                    patterns = (
                        [routes.interleaved_ring(n, reverse)]
                        if slots == 1
                        else [routes.chain(n, 1), routes.chain(n, -1)]
                    )
                    sets = [routes.side_by_side(pattern, n, copies) for pattern in patterns]
                    channels = [stack.enter_context(installed(block.tables, axis, one)) for one in sets]
                made[axis, reverse] = _side_by_side(_ring(axis, n, slots, reverse, channels), n, copies)
        x, y = made["x", False], made["y", False]
        columns, rows = (ring.places * (block.mesh.length(ring.axis) // n) for ring, n in ((x, width), (y, height)))
        yield Rings(x, y, made["x", True], made["y", True], columns, rows)


def _side_by_side(ring: Ring, width: int, copies: int) -> Ring:
    """The same ring on each of so many stretches of a line."""
    channels = tuple((channel, moves.side_by_side(width, copies)) for channel, moves in ring.channels)
    return replace(ring, channels=channels, inside=ring.inside.side_by_side(width, copies), around=len(ring.places))


@contextmanager
def ring_in_groups(block: Block, slots: int, width: int, groups: int) -> Iterator[tuple[Ring, Ring]]:
    """Interleaved rings, both ways round, on each of so many stretches of `width` cores of every row: 4 entries a core.

    `slots`, 2 or more, are the places at each core. Both ways go by the same routes to the neighbours.
    """
    with ExitStack() as stack:
        channels = [
            stack.enter_context(
                installed(block.tables, "x", routes.side_by_side(routes.chain(width, step), width, groups))
            )
            for step in ((1, -1) if width > 1 else ())
        ]
        rings = [_ring("x", width, slots, reverse, channels) for reverse in (False, True)]
        onward, back = (replace(_side_by_side(ring, width, groups), around=None) for ring in rings)
        yield onward, back


def start_shift(
    block: Block, ring: Ring, tiles: np.ndarray, out: np.ndarray, lines: np.ndarray | None = None
) -> tuple[fabric.Flight, ...]:
    """Every tile goes to the next place on the ring; `finish_shift` waits for it, and until then the cores can work.

    tiles, out: [bh, bw, rows, columns, *tile], the slots of a ring along x in the columns, along y in the rows. `out`
    may be `tiles`. `lines` (bool, over the whole mesh) shifts some lines only; the others keep what `out` has.

    Tiles leave from where they lie in `tiles` and arrive where they belong in `out`, so no core memory is taken; what
    gathers the slots that cross to other cores is the host's. Who shifts in place takes memory for what comes in while
    the core's own leave, as `rotate` and `align` do.
    """
    if ring.slots == 1:
        if not ring.channels:  # one core: its tile stays
            out[...] = tiles
        return tuple(fabric.send(block, channel, tiles, out, lines=lines) for channel, _ in ring.channels)
    if not block.payload:
        out[...] = tiles
        packet = _by_line(ring.axis, tiles)[:, :, :, 0].copy()
        sent = [fabric.send(block, channel, packet, packet, lines=lines) for channel, _ in ring.channels]
        return tuple(fabric.Flight(out, flight.arrivals) for flight in sent)
    before = _by_line(ring.axis, tiles)
    before = before.copy() if np.may_share_memory(tiles, out) else before
    after = _by_line(ring.axis, out)
    low, length = block.mesh.offset(ring.axis), block.mesh.block_length(ring.axis)
    across = block.mesh.offset("y" if ring.axis == "x" else "x")
    chosen = np.arange(len(before)) if lines is None else np.flatnonzero(lines[across : across + len(before)])
    before = before[chosen]
    result = before.copy()  # a ring need not have all cores: the tiles of the others stay
    inside, _ = ring.inside.local(low, length)
    result[:, inside.to_core, :, inside.to_slot] = before[:, inside.core, :, inside.slot]
    flights = []
    for channel, moves in ring.channels:
        leaves, comes = moves.local(low, length)
        packet = np.zeros((*block.shape, before.shape[2], *before.shape[4:]), tiles.dtype)
        packet_lines = packet if ring.axis == "x" else packet.swapaxes(0, 1)
        packet_lines[chosen[:, None], leaves.core] = before[:, leaves.core, :, leaves.slot].swapaxes(0, 1)
        flights.append(fabric.Flight(out, fabric.send(block, channel, packet, packet, lines=lines).arrivals))
        result[:, comes.to_core, :, comes.to_slot] = packet_lines[chosen[:, None], comes.to_core].swapaxes(0, 1)
    after[chosen] = result
    return tuple(flights)


def finish_shift(block: Block, flights: tuple[fabric.Flight, ...]) -> None:
    """Wait for a shift that was started."""
    fabric.receive_all(block, flights)


def _by_line(axis: str, tiles: np.ndarray) -> np.ndarray:
    """[bh, bw, rows, columns, *tile] as [lines, cores of a line, tiles across, slots, *tile]. A view."""
    return tiles if axis == "x" else tiles.swapaxes(0, 1).swapaxes(2, 3)


def rotate(block: Block, ring: Ring, back: Ring, tiles: np.ndarray, places: Sequence[int]) -> None:
    """Move every line of tiles round the ring by a number of places of its own, the short way; in place.

    `places` has one number for each of the mesh's lines of tiles: with several tiles across a core, as many lines to
    one line of cores. Negative numbers go back. LimitError where a core has no room for what comes in meanwhile.
    """
    with block.memory.hold(f"tiles coming in along {ring.axis}", _incoming(ring, tiles)):
        for flights in _rotation(block, ring, back, tiles, places):
            finish_shift(block, flights)


def align(block: Block, rings: Rings, a: np.ndarray, b: np.ndarray) -> None:
    """Row r of A goes back by r's place on the ring along x, column c of B by c's along y, both at once; in place.

    That is how Cannon's and MeshGEMM's loop begins. LimitError as in `rotate`.
    """
    along_x = _rotation(block, rings.x, rings.back_x, a, [-place for place in rings.rows])
    along_y = _rotation(block, rings.y, rings.back_y, b, [-place for place in rings.columns])
    with block.memory.hold("tiles of A and B coming in", _incoming(rings.x, a) + _incoming(rings.y, b)):
        for of_a, of_b in zip_longest(along_x, along_y, fillvalue=()):
            finish_shift(block, of_a + of_b)


def _incoming(ring: Ring, tiles: np.ndarray) -> int:
    """Bytes that come to a core in a shift, and have to wait for a place while its own tiles leave."""
    slots = min(ring.slots, 2) if ring.channels else 0  # with several, one from each side
    return prod(tiles.shape[2:]) // ring.slots * slots * tiles.itemsize


def _rotation(
    block: Block, ring: Ring, back: Ring, tiles: np.ndarray, places: Sequence[int]
) -> Iterator[tuple[fabric.Flight, ...]]:
    """The steps of `rotate`, each started and not yet waited for: one shift of every line that has further to go.

    Software sees to each: the cores of a line that shifts are busy with it first.
    """
    total = ring.around or block.mesh.length(ring.axis) * ring.slots
    onward = np.asarray(places) % total
    lines = block.mesh.length("y" if ring.axis == "x" else "x")
    across = len(onward) // lines
    ways = (
        (ring, np.where(onward <= total // 2, onward, 0)),
        (back, np.where(onward > total // 2, total - onward, 0)),
    )
    turns = np.where(onward <= total // 2, onward, total - onward).reshape(lines, across).max(axis=1)
    for step in range(max(int(steps.max(initial=0)) for _, steps in ways)):
        flights: tuple[fabric.Flight, ...] = ()
        if ring.channels and block.device.shift_cycles:
            channel = ring.channels[0][0]
            fabric.software(block, channel, block.device.shift_cycles, np.ones(channel.length, bool), turns > step)
        for way, steps in ways:
            for strip in range(across):
                on = steps[strip::across] > step
                if on.any():
                    part = tiles[:, :, strip : strip + 1] if ring.axis == "x" else tiles[:, :, :, strip : strip + 1]
                    flights += start_shift(block, way, part, part, on)
        yield flights
