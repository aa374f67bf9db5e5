"""Tiles on their way round rings: shifts, rotations, alignment. What rings there are: rings."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import zip_longest
from math import prod

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.collectives.rings import Ring, Rings
from meshrt.mesh.wires import fabric, receiving, software
from meshrt.mesh.wires.receiving import Flight


def start_shift(
    block: Block, ring: Ring, tiles: np.ndarray, out: np.ndarray, lines: np.ndarray | None = None, later: bool = False
) -> Flight:
    """Every tile goes to the next place on the ring; `receive` waits for it, and until then the cores can work.

    tiles, out: [bh, bw, rows, columns, *tile], the slots of a ring along x in the columns, along y in the rows. `out`
    may be `tiles`. `lines` (bool, over the whole mesh) shifts some lines only; the others keep what `out` has.

    Tiles leave from where they lie in `tiles` and arrive where they belong in `out`, so no core memory is taken; what
    gathers the slots that cross to other cores is the host's. Who shifts in place takes memory for what comes in while
    the core's own leave, as `rotate` and `align` do. `later`: in place, too, cores can read `tiles` until
    `receive`. UsageError for tiles that are not those of all cores, or do not have the slots of the ring.
    """
    if ring.slots > 1:
        _check_slots(block, ring, tiles, out)
    if ring.slots == 1 and ring.channels:
        return fabric.send(block, ring.channels[0][0], tiles, out, lines=lines, later=later)
    if ring.slots == 1:  # one core: its tile stays
        across = slice(None) if lines is None else _chosen(block, ring, lines)
        at = (across, slice(None)) if ring.axis == "x" else (slice(None), across)
        out[at] = tiles[at]
        return Flight(out, [])
    arrivals = []
    if not block.payload:
        out[...] = tiles
        packet = _by_line(ring.axis, tiles)[:, :, :, 0].copy()
        for channel, _ in ring.channels:
            arrivals += fabric.send(block, channel, packet, packet, lines=lines).arrivals
        return Flight(out, arrivals)
    before = _by_line(ring.axis, tiles)
    before = before.copy() if np.may_share_memory(tiles, out) else before
    after = _by_line(ring.axis, out)
    low, length = block.mesh.offset(ring.axis), block.mesh.block_length(ring.axis)
    chosen = _chosen(block, ring, lines)
    before = before[chosen]
    result = before.copy()  # a ring need not have all cores: the tiles of the others stay
    inside, _ = ring.inside.local(low, length)
    result[:, inside.to_core, :, inside.to_slot] = before[:, inside.core, :, inside.slot]
    for channel, moves in ring.channels:
        leaves, comes = moves.local(low, length)
        packet = np.zeros((*block.shape, before.shape[2], *before.shape[4:]), tiles.dtype)
        packet_lines = packet if ring.axis == "x" else packet.swapaxes(0, 1)
        packet_lines[chosen[:, None], leaves.core] = before[:, leaves.core, :, leaves.slot].swapaxes(0, 1)
        arrivals += fabric.send(block, channel, packet, packet, lines=lines).arrivals
        result[:, comes.to_core, :, comes.to_slot] = packet_lines[chosen[:, None], comes.to_core].swapaxes(0, 1)
    if later:
        return Flight(out, arrivals, [partial(after.__setitem__, chosen, result)])
    after[chosen] = result
    return Flight(out, arrivals)


def _chosen(block: Block, ring: Ring, lines: np.ndarray | None) -> np.ndarray:
    """Which of this block's lines these are: by number."""
    across = "y" if ring.axis == "x" else "x"
    low, count = block.mesh.offset(across), block.mesh.block_length(across) if block.payload else 1
    return np.arange(count) if lines is None else np.flatnonzero(lines[low : low + count])


def _check_slots(block: Block, ring: Ring, tiles: np.ndarray, out: np.ndarray) -> None:
    block.check_lead(tiles)
    at = 3 if ring.axis == "x" else 2
    if tiles.ndim < 4 or tiles.shape[at] != ring.slots or out.shape != tiles.shape:
        place = "[bh, bw, rows, slots, *tile]" if ring.axis == "x" else "[bh, bw, slots, columns, *tile]"
        raise UsageError(
            f"tiles of shape {list(tiles.shape)} to `out` of shape {list(out.shape)}: on a ring along {ring.axis} with"
            f" {ring.slots} slots at a core both are {place}"
        )


def _by_line(axis: str, tiles: np.ndarray) -> np.ndarray:
    """[bh, bw, rows, columns, *tile] as [lines, cores of a line, tiles across, slots, *tile]. A view."""
    return tiles if axis == "x" else tiles.swapaxes(0, 1).swapaxes(2, 3)


def rotate(block: Block, ring: Ring, back: Ring, tiles: np.ndarray, places: Sequence[int]) -> None:
    """Move every line of tiles round the ring by a number of places of its own, the short way; in place.

    `places` has one number for each of the mesh's lines of tiles: with several tiles across a core, as many lines to
    one line of cores. Negative numbers go back. UsageError for more, fewer or others; LimitError where a core has no
    room for what comes in meanwhile.
    """
    with block.memory.hold(f"tiles coming in along {ring.axis}", _incoming(ring, tiles)):
        for flights in _rotation(block, ring, back, tiles, places):
            receiving.receive_all(block, flights)


def align(block: Block, rings: Rings, a: np.ndarray, b: np.ndarray, once: bool = False) -> None:
    """Row r of A goes back by r's place on the ring along x, column c of B by c's along y, both at once; in place.

    That is how Cannon's and MeshGEMM's loop begins. LimitError as in `rotate`. Each step is one of some lines, that
    are others in the next: the host keeps the plans of all for another product, but not where they are used `once`.
    """
    channels = [channel for ring in (rings.x, rings.back_x, rings.y, rings.back_y) for channel, _ in ring.channels]
    along_x = _rotation(block, rings.x, rings.back_x, a, [-place for place in rings.rows])
    along_y = _rotation(block, rings.y, rings.back_y, b, [-place for place in rings.columns])
    with block.memory.hold("tiles of A and B coming in", _incoming(rings.x, a) + _incoming(rings.y, b)):
        for of_a, of_b in zip_longest(along_x, along_y, fillvalue=()):
            receiving.receive_all(block, (*of_a, *of_b))
            for channel in channels if once else ():
                fabric.forget_lines(channel)


def _incoming(ring: Ring, tiles: np.ndarray) -> int:
    """Bytes that come to a core in a shift, and have to wait for a place while its own tiles leave."""
    slots = min(ring.slots, 2) if ring.channels else 0  # with several, one from each side
    return prod(tiles.shape[2:]) // ring.slots * slots * tiles.itemsize


def _rotation(block: Block, ring: Ring, back: Ring, tiles: np.ndarray, places: Sequence[int]) -> Iterator[list[Flight]]:
    """The steps of `rotate`, each started and not yet waited for: one shift of every line that has further to go.

    Software sees to each: the cores of a line that shifts are busy with it first.
    """
    total = ring.around or block.mesh.length(ring.axis) * ring.slots
    lines = block.mesh.length("y" if ring.axis == "x" else "x")
    block.check_lead(tiles)
    across = tiles.shape[2 if ring.axis == "x" else 3] if tiles.ndim >= 4 else 0
    given = np.asarray(places)
    if given.dtype.kind not in "iu" or given.shape != (lines * across,) or not across:
        raise UsageError(
            f"{given.dtype} {list(given.shape)} places for tiles of shape {list(tiles.shape)} round rings along"
            f" {ring.axis}: tiles are [bh, bw, rows, columns, *tile], cut as the rings have slots, with a whole number"
            f" for each of the {lines} lines of cores times its lines of tiles"
        )
    onward = given % total
    ways = (
        (ring, np.where(onward <= total // 2, onward, 0)),
        (back, np.where(onward > total // 2, total - onward, 0)),
    )
    turns = np.where(onward <= total // 2, onward, total - onward).reshape(lines, across).max(axis=1)
    last = max(int(steps.max(initial=0)) for _, steps in ways)
    # Where only memory is looked at (weigh.py) the first will do: those after it are of some of its lines.
    for step in range(last if block.timed else min(last, 1)):
        flights = []
        if ring.channels and block.device.shift_cycles:
            channel = ring.channels[0][0]
            software.run(block, channel, block.device.shift_cycles, np.ones(channel.length, bool), turns > step)
        for way, steps in ways:
            for strip in range(across):
                on = steps[strip::across] > step
                if on.any():
                    part = tiles[:, :, strip : strip + 1] if ring.axis == "x" else tiles[:, :, :, strip : strip + 1]
                    flights.append(start_shift(block, way, part, part, on))
        yield flights
