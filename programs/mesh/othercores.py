"""From prefill's cores to decode's, where those are others: weights and cache are cut anew (waferllm, section 4.4).

Where decode has another number of cores than prefill, or other regions, every matrix is cut anew, along x and along y,
at the north-west corner that both share, and goes on from there, as on a conveyor, to the region that runs its layer.
"""

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.collectives.remap import remap
from meshrt.mesh.mesh import Mesh
from meshrt.mesh.repeat import sampled
from meshrt.mesh.wires import fabric, routes
from meshrt.mesh.wires.tables import installed
from meshrt.models import matrix as forms
from meshrt.models.config import Config
from meshrt.models.family import family_of
from meshrt.programs.mesh.chunks import Chunks, plain
from meshrt.programs.mesh.climb import fill_evenly
from meshrt.programs.mesh.codes.packed import Packed
from meshrt.programs.mesh.crossings import cross_matrix, every_core, lay, matrix_crossing, take
from meshrt.programs.mesh.linear import Linear
from meshrt.programs.mesh.meshgemm import zeros
from meshrt.programs.mesh.regions import Region
from meshrt.programs.mesh.units import Cut, as_units, cache_units, cut, from_units
from meshrt.programs.mesh.weights import MeshExperts, MeshLayer, MeshMlp, Vector
from meshrt.records import dataclass


def change_cores(
    config: Config, before: Sequence[Region], after: Sequence[Region], cells: Sequence[tuple[int, int]], old: Chunks,
    new: Chunks, sample: int | None = None,
) -> None:  # fmt: skip
    """Move weights, which `turn` has been at, and caches to the cores of other regions, which have room for them.

    `cells` are those of the new regions on the wafer, as `arrange` gives them. The first of both begin at the same
    corner, where everything is cut anew. `sample` is that of `prefill`.
    """
    old_block, new_block = before[0].block, after[0].block
    mover = old_block.another(
        "re-placement",
        max(old_block.mesh.width, new_block.mesh.width),
        max(old_block.mesh.height, new_block.mesh.height),
    )
    dimensions = Dimensions(mover, (old_block.mesh, new_block.mesh), old, new)
    heads, vocabulary, embedding = (
        dimensions.cut(*axis_and_name) for axis_and_name in (("x", "queries"), ("x", "vocabulary"), ("y", "embedding"))
    )
    owner = {number: (region, at) for region in before for at, number in enumerate(region.layers)}
    mover.follow(old_block)
    family = family_of(config)
    layers = family.layers
    route = RegionRoute(mover, cells, after, sample)
    for region in after:
        for at in sampled(mover, len(region.layers), sample):
            home, number = owner[region.layers[at]]
            layer, to = home.weights.layers[number], region.weights.layers[at]
            move_linear(route, home, region, layer.qkv, to.qkv, dimensions, "embedding", "queries")
            move_linear(route, home, region, layer.out, to.out, dimensions, "queries", "embedding")
            for (w, target), inner in zip(mlps(layer, to), inners(layers[region.layers[at]]), strict=True):
                move_linear(route, home, region, w.up, target.up, dimensions, "embedding", inner)
                move_linear(route, home, region, w.down, target.down, dimensions, inner, "embedding")
                move_biases(route, home, region, w, target, dimensions, inner)
            move_router(route, home, region, layer.mlp, to.mlp, dimensions, embedding)
            for vector, other in zip(layer.vectors(), to.vectors(), strict=True):
                move_vector(route, home, region, vector, other, embedding)
            move(route, home, region, layer.qkv_bias, to.qkv_bias, heads, None)
            move(route, home, region, layer.head_norms, to.head_norms, heads, None)
            move_cache(route, home, number, region, at, heads)
    move(route, before[0], after[0], before[0].weights.table, after[0].weights.table, vocabulary, embedding)
    positions = before[0].weights.positions
    if positions is not None:
        rows = dimensions.cut("x", family.max_positions + family.position_offset)
        move(route, before[0], after[0], positions, after[0].weights.positions, rows, embedding)
    if after[-1].weights.head is not after[0].weights.table:
        move(route, before[-1], after[-1], before[-1].weights.head, after[-1].weights.head, vocabulary, embedding)
    last, to_last = before[-1].weights.norm, after[-1].weights.norm
    assert last is not None and to_last is not None
    move_vector(route, before[-1], after[-1], last.weight, to_last.weight, embedding)
    move_vector(route, before[-1], after[-1], last.bias, to_last.bias, embedding)
    old_block.follow(mover)


@dataclass(frozen=True)
class Dimensions:
    """The dimensions of a model, by their names in Chunks, or others by their size; keys are cut as queries are."""

    mover: Block
    meshes: tuple[Mesh, Mesh]
    old: Chunks
    new: Chunks

    def cut(self, axis: str, dimension: str | int) -> Cut:
        old_and_new = self.old, self.new
        if isinstance(dimension, int):
            return cut(self.mover, axis, self.meshes, [plain(dimension, chunks.sides) for chunks in old_and_new])
        tables = [getattr(chunks, dimension) for chunks in old_and_new]
        unit_sizes = [2 * chunks.heads for chunks in old_and_new] if dimension == "queries" else (1, 1)
        return cut(self.mover, axis, self.meshes, tables, unit_sizes)


@dataclass(frozen=True)
class RegionRoute:
    """The way from one set of regions to another: over the corner that they share, then from region to region."""

    mover: Block
    cells: Sequence[tuple[int, int]]
    after: Sequence[Region]
    sample: int | None


def mlps(layer: MeshLayer, to: MeshLayer) -> list[tuple[MeshMlp, MeshMlp]]:
    """A layer's MLP, or those of its experts and the shared one, before and after."""
    before, after = (
        [w] if isinstance(w, MeshMlp) else [*w.rounds, *([] if w.shared is None else [w.shared])]
        for w in (layer.mlp, to.mlp)
    )
    return list(zip(before, after, strict=True))


def inners(layer: forms.Layer) -> list[int]:
    """The columns of each of them."""
    return [mlp.down.rows for mlp in ([layer.mlp] if isinstance(layer.mlp, forms.Mlp) else layer.mlp.mlps)]


def move_vector(
    route: RegionRoute, home: Region, region: Region, vector: Vector | None, to: Vector | None, rows: Cut
) -> None:  # fmt: skip
    """Numbers of E, as decode has them."""
    if vector is not None and to is not None:
        move(route, home, region, vector.y, to.y, None, rows)


def move_biases(
    route: RegionRoute, home: Region, region: Region, w: MeshMlp, to: MeshMlp, dimensions: Dimensions, inner: int
) -> None:
    """Those between the matrices of an MLP, as decode has them."""
    if w.up_bias_y:
        for bias, other in zip(w.up_bias_y, to.up_bias_y, strict=True):
            move(route, home, region, bias, other, None, dimensions.cut("y", inner))
        return
    for bias, other in zip(w.up_bias, to.up_bias, strict=True):
        move(route, home, region, bias, other, dimensions.cut("x", inner), None)


def move_router(
    route: RegionRoute, home: Region, region: Region, w: MeshMlp | MeshExperts, to: MeshMlp | MeshExperts,
    dimensions: Dimensions, rows: Cut,
) -> None:  # fmt: skip
    """What decode decides by: whole at every column, or cut as any matrix, before and after."""
    if isinstance(w, MeshMlp) or isinstance(to, MeshMlp):
        return
    if w.router_cut:
        move(route, home, region, w.router_y, to.router_y, dimensions.cut("x", w.logits), rows)
        return
    columns = w.router_y.shape[-1]
    tiles = np.moveaxis(w.router_y.reshape(*w.router_y.shape[:2], 1, -1, columns), 3, 4)
    moved = travel(route, home.block, region, tiles, None, rows)  # [bh, bw, along y, 1, columns]
    if region.block.payload:
        to.router_y[...] = moved.reshape(to.router_y.shape)


def move_linear(
    route: RegionRoute, home: Region, region: Region, w: Linear, to: Linear, dimensions: Dimensions, rows: str | int,
    columns: str | int,
) -> None:  # fmt: skip
    """Matrices with these rows and columns: as one if all are whole, else one by one, and their factors. Tiles of codes
    go as they are, packed, from a core to the same core of other regions: the engine refuses what would cut them anew.
    """
    if isinstance(w.first, Packed):
        assert isinstance(to.first, Packed)
        move(route, home, region, w.first.data, to.first.data, None, None)
        return
    assert not isinstance(to.first, Packed)

    def fill(tiles: np.ndarray, target: np.ndarray, rows: str | int, columns: str | int, turned: bool) -> None:
        x, y = (rows, columns) if turned else (columns, rows)
        move(route, home, region, tiles, target, dimensions.cut("x", x), dimensions.cut("y", y), turned)

    first_turned, second_turned = w.turned
    if w.whole:
        fill(w.first, to.first, rows, columns, first_turned)
        return
    for part, tiles, target_part, target in zip(w.parts, w.split(w.first), to.parts, to.split(to.first), strict=True):
        fill(tiles, target, rows, columns if part.rank is None else part.rank, first_turned)
        if part.rank is not None and part.second is not None and target_part.second is not None:
            fill(part.second, target_part.second, part.rank, columns, second_turned)


def move(
    route: RegionRoute, home: Region, region: Region, tiles: np.ndarray | None, to: np.ndarray | None, x: Cut | None,
    y: Cut | None, rows_last: bool = False,
) -> None:  # fmt: skip
    """Fill `to` with what `tiles` has. Without a cut along x or y the vector is the same all along it."""
    if tiles is None or to is None:
        return
    units = travel(route, home.block, region, as_units(tiles, x, y, rows_last), x, y)
    if region.block.payload:
        to[...] = from_units(units, to.shape, x, y, rows_last)


def move_cache(route: RegionRoute, home: Region, number: int, region: Region, at: int, heads: Cut) -> None:
    """Keys and values of one layer: their heads' numbers along x, their tokens along y, evenly over the new rows."""
    tokens = int(home.cache.held.sum())
    if at == 0:
        fill_evenly(region.cache, tokens)
    length = route.mover.mesh.height
    ends = [np.concatenate([[0], np.cumsum(held)]) for held in (home.cache.held, region.cache.held)]
    before, after = (np.pad(end, (0, length + 1 - len(end)), mode="edge") for end in ends)
    fullest = max(1, int(home.cache.held.max())), max(1, int(region.cache.held.max()))
    y = Cut(before, after, fullest, (1, 1))
    units = travel(route, home.block, region, cache_units(home.cache, number, fullest[0], heads), heads, y)
    if region.block.payload:
        columns, pairs = heads.chunks[1], heads.units[1]
        units = units.reshape(*units.shape[:3], columns, pairs, 2, -1, 2).transpose(0, 1, 2, 5, 6, 3, 7, 4)
        region.cache.data[:, :, : fullest[1], at] = units.reshape(*units.shape[:5], -1)


def travel(
    route: RegionRoute, home: Block, region: Region, tiles: np.ndarray, x: Cut | None, y: Cut | None
) -> np.ndarray:
    """[bh, bw, places along x, numbers, places along y] of the old cores -> [bh, bw, along y, along x, numbers]."""
    mover, memory = route.mover, route.mover.memory
    numbers = mover.tiles("numbers of a matrix", tiles.shape[2:], tiles.dtype)
    lay(mover, numbers, every_core(home, tiles), 0, 0)
    del tiles  # the host's: the cores have taken them from the matrix at home
    wider = region.block.mesh.width > home.mesh.width, region.block.mesh.height > home.mesh.height
    if x is not None:
        numbers = room(mover, remap(mover, "x", numbers, x.before, x.after), x)
    elif wider[0]:
        numbers = repeat_along(mover, "x", numbers)
    numbers = memory.keep("numbers of a matrix", np.ascontiguousarray(np.moveaxis(numbers, 4, 2)))
    if y is not None:
        numbers = room(mover, remap(mover, "y", numbers, y.before, y.after), y)
    elif wider[1]:
        numbers = repeat_along(mover, "y", numbers)
    block, (columns, rows) = mover, route.cells[route.after.index(region)]
    width, height = region.block.mesh.width, region.block.mesh.height
    corner = mover.another("corner", width, height)
    moved = take(corner, numbers, every_core(mover, numbers), 0, 0)
    del numbers
    corner.follow(mover)
    block = corner
    for number, step in enumerate([(1, 0)] * columns + [(0, 1)] * rows):
        with ExitStack() as stack:
            onward = mover.another(f"way {number + 1}", width, height)
            crossing = matrix_crossing(stack, corner, number, step)
            moved = cross_matrix(block, onward, crossing, moved, route.sample)
            block = onward
    mover.follow(block)
    return moved


def repeat_along(block: Block, axis: str, tiles: np.ndarray) -> np.ndarray:
    """A vector that is the same all along an axis, for cores that have not had it: from the first core of each line."""
    with installed(block, axis, routes.multicast, 0) as channel:
        return fabric.transfer(block, channel, tiles, tiles)


def room(block: Block, tiles: np.ndarray, cut: Cut) -> np.ndarray:
    """Tiles with as many places as the chunks of a core have, those without a number zero."""
    size = cut.units[1] * cut.chunks[1]
    padded = zeros(block, "numbers of a matrix", (size, *tiles.shape[3:]), tiles.dtype)
    padded[:, :, : tiles.shape[2]] = tiles[:, :, :size]
    return padded
