"""The experts of one token in decode.

split: every expert is cut over the whole mesh, as an MLP is. Those that the token takes are multiplied side by side,
the shared one with them, and their outputs are added up at each core before they are summed along x: two allreduces,
whatever k is, and all cores have work whatever the token takes.

    E_y --gate|up of all k--> y: 2 k F_x --silu, share--> F_x --down of all k, added--> x: E_y

regions: E_y is cut anew for the rows of the regions that the token takes, in their columns; these multiply, the others
wait. Lines are shorter there and packets wider. What comes out goes back to all rows, and one sum along x over all
columns adds up what regions have and what their columns have:

    E_y --along y--> E_y of a region's rows --gate|up--> y, inside: 2 F_x --silu, share--> F_x --down--> E_y of these
        --along y--> E_y --> x: E_y
"""

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.collectives.allreduce import allreduce, ktree
from meshrt.mesh.collectives.remap import remap
from meshrt.programs.mesh.activations import swiglu
from meshrt.programs.mesh.experts.gate import ExpertChoice, timed
from meshrt.programs.mesh.experts.grid import RegionGrid
from meshrt.programs.mesh.linear import along, second
from meshrt.programs.mesh.meshgemm import zeros
from meshrt.programs.mesh.regions import Region
from meshrt.programs.mesh.weights import MeshExperts, MeshMlp


def experts_of_token(
    region: Region, w: MeshExperts, choice: ExpertChoice, normed: np.ndarray, hidden: int
) -> np.ndarray:
    """E_y of rms(x), [bh, bw, rows, Et], to the sum of what its experts make of it, in order of their number.

    E is `hidden`.
    """
    assert region.mixture is not None
    tally = region.mixture.tally
    grid = region.mixture.grid
    with timed(region, "decode", "experts"):
        if grid is None:
            result = _split(region, w, choice, normed)
        else:
            result = _in_regions(region, grid, w, choice, normed, hidden)
    tally.used += 1 if grid is None else len({expert % grid.count for expert in choice.experts}) / grid.count
    tally.steps += 1
    return result


def _split(region: Region, w: MeshExperts, choice: ExpertChoice, normed: np.ndarray) -> np.ndarray:
    block, sums = region.block, region.sums
    mlps = [w.rounds[number] for number in choice.experts]
    shares: list[np.ndarray | None] = [choice.shares[:, :, None, at : at + 1] for at in range(len(mlps))]
    if w.shared is not None:
        mlps.append(w.shared)
        shares.append(None if choice.shared is None else choice.shared[:, :, None])
    ends = np.cumsum([mlp.up.first.shape[-1] for mlp in mlps])
    packet = zeros(block, "products of experts", (mlps[0].up.first.shape[3], int(ends[-1])))
    for mlp, end in zip(mlps, ends, strict=True):
        along(block, normed, mlp.up.first, False, packet[..., end - mlp.up.first.shape[-1] : end])
    packet = sums.y(packet)
    total, others = None, []
    for mlp, share, first in zip(mlps, shares, np.split(packet, ends[:-1], axis=-1), strict=True):
        hidden = swiglu(block, second(block, sums, mlp.up, first))
        if share is not None:
            hidden *= share
            block.elementwise(hidden)
        turned = mlp.down.turned[0]
        if mlp.down.whole and turned:
            total = along(block, hidden, mlp.down.first, turned, total)
        else:
            product = (sums.x if turned else sums.y)(along(block, hidden, mlp.down.first, turned))
            others.append(second(block, sums, mlp.down, product))
    if total is not None:
        others.insert(0, sums.x(total))
    result, *rest = others
    for other in rest:
        result += other
        block.elementwise(other)
    return result


def _in_regions(
    region: Region, grid: RegionGrid, w: MeshExperts, choice: ExpertChoice, normed: np.ndarray, hidden: int
) -> np.ndarray:
    block, sums = region.block, region.sums
    assert region.mixture is not None
    taken = [divmod(expert, grid.count) for expert in choice.experts]  # (round, region)
    numbers = sorted({number for _, number in taken})
    by_row = {
        row: _columns(block, grid, numbers, row) for row in sorted({number // grid.columns for number in numbers})
    }
    rows, et = w.rounds[0].up.first.shape[2], w.rounds[0].up.first.shape[4]
    at_home = _bounds(block, 0, block.mesh.height, normed.shape[2] * normed.shape[3], hidden)
    inside = {row: _bounds(block, row * grid.height, (row + 1) * grid.height, rows * et, hidden) for row in by_row}
    x = zeros(block, "activations in regions", (rows, et))
    units = normed.reshape(*block.lead, -1)
    for row, lines in by_row.items():
        _add(x, remap(block, "y", units, at_home, inside[row], lines))
    total = zeros(block, "outputs of experts", (rows, et))
    with ktree(block, "y", region.mixture.phases, stretches=(grid.rows, grid.height)) as tree:
        for at, (turn, number) in enumerate(taken):
            cores, mlp = _cores(block, grid, number), w.rounds[turn]
            row = number // grid.columns
            first = along(block, x, mlp.up.first, False, cores=cores)
            own = tree.only(row * grid.height, (row + 1) * grid.height)
            allreduce(block, own, first, lines=_columns(block, grid, [number], row), out=first)
            inner = swiglu(block, first, cores)
            inner *= choice.shares[:, :, None, at : at + 1]
            block.elementwise(inner, cores=cores)
            along(block, inner, mlp.down.first, True, total, cores)
    del x, first, inner
    out = zeros(block, "outputs of experts", normed.shape[2:])
    units = total.reshape(*block.lead, -1)
    for row, lines in by_row.items():
        _add(out, remap(block, "y", units, inside[row], at_home, lines))
    if w.shared is not None:
        _add_shared(region, w.shared, choice, normed, out)
    return np.asarray(sums.x(out))


def _add_shared(region: Region, w: MeshMlp, choice: ExpertChoice, normed: np.ndarray, out: np.ndarray) -> None:
    """What each core has of the shared expert's output."""
    block, sums = region.block, region.sums
    hidden = swiglu(block, second(block, sums, w.up, sums.y(along(block, normed, w.up.first, False))))
    if choice.shared is not None:
        hidden *= choice.shared[:, :, None]
        block.elementwise(hidden)
    along(block, hidden, w.down.first, True, out)


def _add(total: np.ndarray, units: np.ndarray) -> None:
    """Units [bh, bw, count], of which a core may have places for fewer than another."""
    flat = total.reshape(*total.shape[:2], -1)
    flat[:, :, : units.shape[2]] += units[:, :, : flat.shape[2]]


def _bounds(block: Block, low: int, high: int, each: int, size: int) -> np.ndarray:
    """Of `size` units, those of each core of a column, as `remap` takes them: cores low to high - 1 have `each`."""
    return np.clip((np.arange(block.mesh.height + 1) - low) * each, 0, min(size, (high - low) * each))


def _columns(block: Block, grid: RegionGrid, numbers: list[int], row: int) -> np.ndarray:
    """The columns of cores, bool [W], of those of the regions that are in that row of the grid."""
    columns = [number % grid.columns for number in numbers if number // grid.columns == row]
    return np.isin(np.arange(block.mesh.width) // grid.width, columns)


def _cores(block: Block, grid: RegionGrid, number: int) -> np.ndarray:
    """The cores of this block that are in the region, bool [bh, bw]."""
    cores = np.zeros(block.shape, bool)
    for region, part in grid.parts(block.mesh):
        if region == number:
            cores[part.rows, part.columns] = True
    return cores
