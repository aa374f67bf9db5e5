"""Rings along lines: which way their tiles go, and the routes for that.

Each exists on all lines of an axis at once. `with` installs the routes, and leaving it frees them.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import lcm
from numbers import Integral

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.wires import routes
from meshrt.mesh.wires.tables import Channel, installed
from meshrt.records import dataclass


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
        )  # type: ignore[return-value]  # two of them


@dataclass(frozen=True, eq=False)
class Ring:
    """A ring along every line: its N * slots places, `slots` at each core, move on by one in a shift.

    Interleaved: with one slot a tile moves up to two hops, as on Figure 7 of waferllm. With more, most tiles only
    change their slot inside a core, and one in each direction crosses to the next core, one hop.
    Plain, as Cannon has it: tiles go to the next slot or the next core, and from the last core N - 1 hops back.
    `places`: the place on the ring of each of the line's tiles, from west to east or north to south.
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
    _check_slots(slots)
    n = block.mesh.length(axis)
    patterns = [routes.interleaved_ring(n, reverse)] if slots == 1 else [routes.chain(n, step) for step in (1, -1)]
    patterns = patterns if n > 1 else []
    with ExitStack() as stack:
        channels = [stack.enter_context(installed(block, axis, pattern)) for pattern in patterns]
        yield _ring(axis, n, slots, reverse, channels)


@contextmanager
def plain_ring(block: Block, axis: str, slots: int = 1, reverse: bool = False) -> Iterator[Ring]:
    """Install a ring with a wrap-around along every line of the axis: 3 route entries a core."""
    _check_slots(slots)
    n = block.mesh.length(axis)
    with installed(block, axis, routes.ring, reverse) as channel:
        yield _ring(axis, n, slots, reverse, [channel] if n > 1 else [], range(n * slots))


def _check_slots(slots: int) -> None:
    """UsageError for no number of places."""
    if not isinstance(slots, Integral) or slots < 1:
        raise UsageError(f"slots is {slots!r}: a ring has a whole number of places at each core, 1 or more")


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
    """Install interleaved rings along both axes, both ways round, with lcm(W, H) places on each: `Rings`."""
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
    """Install Cannon's rings along both axes, both ways round, with lcm(W, H) places on each: `Rings`."""
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
                    channels = [stack.enter_context(installed(block, axis, route_set)) for route_set in sets]
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
            stack.enter_context(installed(block, "x", routes.side_by_side(routes.chain(width, step), width, groups)))
            for step in ((1, -1) if width > 1 else ())
        ]
        rings = [_ring("x", width, slots, reverse, channels) for reverse in (False, True)]
        onward, back = (replace(_side_by_side(ring, width, groups), around=None) for ring in rings)
        yield onward, back
