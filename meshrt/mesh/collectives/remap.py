"""Tiles cut anew: the numbers along a line go to other cores of it, in the same order, on other numbers of cores.

    before   0 1 2 | 3 4 5 | 6 7 8 | 9          how a line's numbers are cut
    after    0 1 2 3 4 | 5 6 7 8 9 |   |

Every core passes its tile on to the next one that wants a part of it, and so on, as on a conveyor: one hop and one
stage of software a step, all tiles at once. So it takes as many steps as the tile that goes farthest has hops.
"""

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.wires import fabric, routes, software
from meshrt.mesh.wires.tables import installed
from meshrt.options import in_short


def remap(
    block: Block, axis: str, tiles: np.ndarray, before: np.ndarray, after: np.ndarray, lines: np.ndarray | None = None
) -> np.ndarray:
    """Move units [bh, bw, places, *unit] along the axis: core i has units before[i] to before[i + 1], in its first
    places, and is to have after[i] to after[i + 1]; int [N + 1] each, over all cores of a line.

    Returns [bh, bw, most after, *unit], zero where there is no unit. A core holds that, its own tile, the one that it
    passes on and one coming in. LimitError where they do not fit. `lines`, bool over the whole mesh, are those on which
    units move; on the others cores keep what they have of theirs. UsageError for tiles that are not those of all cores,
    and for cuts that are none of them.
    """
    block.check_lead(tiles)
    before, after = np.asarray(before), np.asarray(after)
    _check_cuts(block, axis, tiles, before, after)
    n, sizes = block.mesh.length(axis), np.diff(after)
    result = block.empty("units of others", (max(1, int(sizes.max())), *tiles.shape[3:]), tiles.dtype)
    result[...] = 0
    _keep(block, axis, tiles, result, before, after, np.arange(n))
    # The first and the last core that want a part of each tile.
    has_units = np.diff(before) > 0
    first = np.where(has_units, np.searchsorted(after, before[:-1], "right") - 1, np.arange(n))
    last = np.where(has_units, np.searchsorted(after, before[1:], "left") - 1, np.arange(n))
    for step, reach in ((-1, np.arange(n) - first), (1, last - np.arange(n))):
        if reach.max() < 1:
            continue
        with installed(block, axis, routes.chain, step, lines=lines) as channel:
            moving = tiles
            for hops in range(1, int(reach.max()) + 1):
                owners = np.flatnonzero(reach >= hops)
                holders = np.full(n, -1)  # whose tile is at each core after this hop
                holders[owners + step * hops] = owners
                senders = np.zeros(n, bool)
                senders[owners + step * (hops - 1)] = True
                moving = fabric.transfer(block, channel, moving, positions=senders, lines=lines)
                software.stage(block, channel, 0, holders >= 0, lines)
                _keep(block, axis, moving, result, before, after, holders, lines)
                fabric.forget(block, channel)
    return result


def _check_cuts(block: Block, axis: str, tiles: np.ndarray, before: np.ndarray, after: np.ndarray) -> None:
    if axis not in ("x", "y"):
        raise UsageError(f"units along axis {axis!r}: lines of the mesh are rows, axis 'x', and columns, axis 'y'")
    count, places = block.mesh.length(axis) + 1, tiles.shape[2] if tiles.ndim > 2 else 0
    for name, cuts in (("before", before), ("after", after)):
        whole = cuts.shape == (count,) and cuts.dtype.kind in "iu" and (np.diff(cuts) >= 0).all()
        if not whole or (name == "before" and np.diff(cuts).max() > places):
            raise UsageError(
                f"`{name}` is {in_short(cuts)} of a line along {axis}: {count} whole numbers that do not fall are"
                f" wanted, where each core's units begin and the last's end; in `tiles` a core has places for {places}"
            )
    if after[0] > before[0] or after[-1] < before[-1]:
        raise UsageError(
            f"units {before[0]} to {before[-1]} of a line along {axis} are to go to cores that have {after[0]} to"
            f" {after[-1]}: each has to have a place"
        )


def _keep(
    block: Block, axis: str, tiles: np.ndarray, result: np.ndarray, before: np.ndarray, after: np.ndarray,
    holders: np.ndarray, lines: np.ndarray | None = None,
) -> None:  # fmt: skip
    """Every core of the lines takes what is for it out of the tile that is there: core holders[i]'s, none where that is
    -1."""
    if not block.payload:
        return
    low, length = block.mesh.offset(axis), block.mesh.block_length(axis)
    owner = holders[low : low + length, None]
    unit = after[low : low + length, None] + np.arange(result.shape[2])  # global numbers of this core's units
    position = unit - before[owner]
    inside = (owner >= 0) & (unit < after[low + 1 : low + length + 1, None])
    inside &= (position >= 0) & (unit < before[owner + 1])
    core, at = np.nonzero(inside)
    result, tiles = (part if axis == "x" else part.swapaxes(0, 1) for part in (result, tiles))
    chosen: slice | np.ndarray = slice(None)
    if lines is not None:
        across = block.mesh.offset("y" if axis == "x" else "x")
        chosen = np.flatnonzero(lines[across : across + len(result)])[:, None]
    result[chosen, core, at] = tiles[chosen, core, position[core, at]]
