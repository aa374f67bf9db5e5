"""Regions: the layers of a model and the cores that run them.

Most models run on one mesh and have one region. Where a model does not fit the memory of a mesh, its layers are spread
over several regions of the wafer, meshes of the same size side by side, that work one after the other as the regions of
a pipeline (waferllm, sections 7.5 and 8). What a layer hands to the next in another region is a real transfer:

    decode     E_y goes from the cores at the border along every row of the next region, or, where that lies to the
               south or north, down the columns, row y in column y, and is spread by a sum along x
    prefill    L_y E_x goes core by core, as on a conveyor, each tile as far as a region is wide
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.collectives.rings import Rings
from meshrt.mesh.device import Device
from meshrt.mesh.repeat import sampled
from meshrt.mesh.tiles import gather_parts
from meshrt.mesh.wires import fabric, routes
from meshrt.mesh.wires.routes import Path
from meshrt.mesh.wires.tables import Channel, installed, installed_paths
from meshrt.models.checkpoint import Checkpoint
from meshrt.models.config import Config
from meshrt.models.family import family_of, first_unlike
from meshrt.programs.mesh.cache import Cache, Policy, kv_cache, stairs
from meshrt.programs.mesh.chunks import Chunks
from meshrt.programs.mesh.meshgemm import zeros
from meshrt.programs.mesh.mixture import Mixture
from meshrt.programs.mesh.systems import NO_PRODUCTS, NO_SUMS, Products, Sums, System, open_products, open_system
from meshrt.programs.mesh.weights import Weights, load_weights


@dataclass(frozen=True, eq=False)
class Region:
    """Some layers of a model, in order, on the cores of a block. `sums` and `products` are what is installed there."""

    block: Block
    layers: range
    weights: Weights
    cache: Cache
    sums: Sums = NO_SUMS
    products: Products = NO_PRODUCTS
    crossing: "Crossing | None" = None  # from the region before; in decode, to the first region from the last one
    mixture: Mixture | None = None


@dataclass(frozen=True, eq=False)
class Crossing:
    """A border between two regions as a mesh of its own, and the routes over it."""

    border: Block
    step: tuple[int, int]  # (dx, dy) from the region before
    channel: Channel


def open_regions(
    stack: ExitStack, block: Block, config: Config, chunks: Chunks, checkpoint: Checkpoint | None, dtype: Any,
    count: int, room: int, kv: Policy, mixture: Mixture | None = None, name: str = "region", turned: bool = False,
    apart: bool = False,
) -> list[Region]:  # fmt: skip
    """Load a model into so many regions, the first being the block's own cores; the caches are empty. LimitError.

    Without a checkpoint there is memory for the weights, and nothing in it. `turned` and `apart` are those of
    `load_weights`.
    """
    width, height = block.mesh.width, block.mesh.height
    opened = []
    for number, layers in enumerate(share(config.layers, count)):
        region_block = block if number == 0 else block.another(f"{name} {number}", width, height)
        grid = None if mixture is None else mixture.grid
        weights = load_weights(region_block, config, chunks, checkpoint, dtype, layers, turned, grid, apart)
        token = (len(layers), 2, chunks.kv_heads, chunks.columns * chunks.keys.shape[1] // chunks.kv_heads)
        cache = stack.enter_context(kv_cache(region_block, token, room, dtype, kv, climbs=False))
        opened.append(Region(region_block, layers, weights, cache, mixture=mixture))
    return opened


def install(
    stack: ExitStack, regions: Sequence[Region], system: System, chunks: Chunks, phases: int,
    rings: Sequence[Rings | None] | None, sample: int | None = None,
) -> list[Region]:  # fmt: skip
    """The regions with the routes of prefill, if they have rings, or else those of decode; until the stack is left.

    Where prefill is of a model with experts, its rings are there for parts of a layer only (`multiplying`), None here.
    `sample` is that of `systems.open_system`.
    """
    first_block = regions[0].block
    cells = arrange(first_block.device, first_block.mesh.width, first_block.mesh.height, len(regions))
    ready = []
    for number, region in enumerate(regions):
        block, crossing = region.block, None
        if number:
            (u, v), (x, y) = cells[number - 1], cells[number]
            cross = vector_crossing if rings is None else matrix_crossing
            crossing = cross(stack, block, number, (x - u, y - v))
        elif rings is None and len(regions) > 1:
            crossing = way_back(stack, block, cells)
        ring = None if rings is None else rings[number]
        bare = rings is not None and ring is None
        products, sums = open_system(stack, system, block, chunks, phases, ring, sample, bare)
        if rings is None and region.cache.policy == "shift":
            region.cache.stairs = stack.enter_context(stairs(block))
        ready.append(replace(region, sums=sums, products=products, crossing=crossing))
    return ready


@contextmanager
def multiplying(region: Region, chunks: Chunks) -> Iterator[Region]:
    """The region with its products: where there are experts they are not there all the time."""
    if region.products is not NO_PRODUCTS:
        yield region
        return
    with ExitStack() as stack:
        sample = None if region.mixture is None else region.mixture.steps
        products, sums = open_products(stack, region.block, chunks, region.sums, sample)
        yield replace(region, products=products, sums=sums)


@contextmanager
def layers_timed(block: Block, spent: list[float] | None) -> Iterator[None]:
    """Note the virtual time, cycles, that the layers of a region take, the rest of the model apart."""
    if spent is None:
        yield
        return
    begin = block.control.allreduce(block.clock.last(), max)[0]
    yield
    spent.append(block.control.allreduce(block.clock.last(), max)[0] - begin)


def share(layers: int, count: int) -> list[range]:
    """Layers by region: as even as can be, the first ones with one more. UsageError."""
    if not 1 <= count <= layers:
        raise UsageError(f"{count} regions for {layers} layers: choose 1 to {layers}")
    cuts = [-(-layers * at // count) for at in range(count + 1)]
    return [range(low, high) for low, high in pairwise(cuts)]


def check_alike(config: Config, counts: Iterable[int], run: int) -> None:
    """UsageError where, in so many regions, a layer does not run and has other forms than the one counted for it."""
    layers = family_of(config).layers
    for span in (span for count in counts for span in share(config.layers, count)):
        unlike = first_unlike(layers[span.start : span.stop], run)
        if unlike is not None:
            raise UsageError(
                f"--layers-run {run}: layer {span[unlike]} has other ranks than layer {span[run - 1]}, so it has to run"
            )


def arrange(device: Device, width: int, height: int, count: int) -> list[tuple[int, int]]:
    """(column, row) of so many W x H regions of the wafer, each beside the one before. UsageError."""
    columns = count if device.width is None else device.width // width
    rows = count if device.height is None else device.height // height
    if count > columns * rows:
        raise UsageError(
            f"{count} regions of {width} x {height} cores do not fit the {device.width} x {device.height} cores of"
            f" {device.name}, which have room for {columns * rows}"
        )
    cells = []
    for row in range(rows):
        line = [(column, row) for column in range(columns)]
        cells += line if row % 2 == 0 else line[::-1]
    return cells[:count]


def way_back(stack: ExitStack, block: Block, cells: Sequence[tuple[int, int]]) -> Crossing:
    """The way of a token from the north-west core of the last region to that of the first, west and then north."""
    (x, y), width, height = cells[-1], block.mesh.width, block.mesh.height
    x, y = x * width, y * height
    wafer = block.another("way back", x + width, y + height)  # whole regions, which the ranks tile
    path = [(at, y) for at in range(x, -1, -1)] + [(0, at) for at in range(y - 1, -1, -1)]
    return Crossing(wafer, (-x, -y), stack.enter_context(installed_paths(wafer.tables, [Path(tuple(path))])))


def hand_back(regions: Sequence[Region]) -> None:
    """The token that the last region has found goes to the first, along its first row and down all columns."""
    first, last = regions[0], regions[-1]
    if first.crossing is None:
        return
    wafer, block = first.crossing.border, first.block
    wafer.follow(last.block)
    fabric.transfer(wafer, first.crossing.channel, zeros(wafer, "token", (1,), np.int32))
    block.follow(wafer)
    row = np.arange(block.mesh.height) == 0
    for axis, lines in (("x", row), ("y", None)):
        with installed(block.tables, axis, routes.multicast(block.mesh.length(axis), 0), lines) as channel:
            fabric.transfer(block, channel, zeros(block, "token", (1,), np.int32))


def vector_crossing(stack: ExitStack, block: Block, number: int, step: tuple[int, int]) -> Crossing:
    """The border that activations of decode, E_y, cross to get to region `number`, which lies at `step`."""
    width, height = block.mesh.width, block.mesh.height
    if step[0]:
        border = block.another(f"border {number}", width + 1, height)
        way = routes.multicast(width + 1, 0 if step[0] > 0 else width)
        return Crossing(border, step, stack.enter_context(installed(border.tables, "x", way)))
    border = block.another(f"border {number}", width, 2 * height)
    ways = []
    for y in range(height):
        rows = range(y, y + height + 1) if step[1] > 0 else range(height + y, y - 1, -1)
        ways.append(Path(tuple((y % width, row) for row in rows)))
    return Crossing(border, step, stack.enter_context(installed_paths(border.tables, ways)))


def cross_vector(before: Region, after: Region, x: np.ndarray) -> np.ndarray:
    """E_y, [bh, bw, rows, Et] the same in every column, from one region to the next."""
    assert after.crossing is not None
    border, (dx, dy), channel = after.crossing.border, after.crossing.step, after.crossing.channel
    width, height = after.block.mesh.width, after.block.mesh.height
    all_tiles = every_core(before.block, x)
    border.follow(before.block)
    tiles = border.tiles("activations", x.shape[2:], x.dtype)
    if dx:
        lay(border, tiles, all_tiles, 0 if dx > 0 else width, 0, columns=1)
    else:
        lay(border, tiles, all_tiles, 0, 0 if dy > 0 else height)
    del all_tiles
    arrived = every_core(border, fabric.transfer(border, channel, tiles))
    after.block.follow(border)
    if dx:
        return take(after.block, x, arrived, 1 if dx > 0 else 0, 0)
    landed = take(after.block, x, arrived, 0, height if dy > 0 else 0)
    if after.block.payload:
        mesh = after.block.mesh
        y, column = np.arange(mesh.y0, mesh.y0 + mesh.block_height), np.arange(mesh.x0, mesh.x0 + mesh.block_width)
        landed[y[:, None] % width != column] = 0
    return after.sums.x(landed)


def matrix_crossing(stack: ExitStack, block: Block, number: int, step: tuple[int, int]) -> Crossing:
    """The border that activations of prefill, L_y E_x, cross to get to region `number`, which lies at `step`."""
    width, height = block.mesh.width, block.mesh.height
    axis = "x" if step[0] else "y"
    border = block.another(f"border {number}", width * (2 if step[0] else 1), height * (2 if step[1] else 1))
    way = routes.chain(border.mesh.length(axis), sum(step))
    return Crossing(border, step, stack.enter_context(installed(border.tables, axis, way)))


def cross_matrix(
    before: Block, after: Block, crossing: Crossing | None, x: np.ndarray, sample: int | None = None
) -> np.ndarray:
    """Tiles [bh, bw, ..] from every core of one region to the same core of the next, as on a conveyor.

    Software at every core on the way takes a tile and sends it on: one hop and one region a step, all tiles at once.
    """
    assert crossing is not None
    border, step, channel = crossing.border, crossing.step, crossing.channel
    axis = "x" if step[0] else "y"
    n, onward = after.mesh.length(axis), sum(step)
    start = 0 if onward > 0 else n  # where the region before begins on the border's line
    all_tiles = every_core(before, x)
    border.follow(before)
    tiles = border.tiles("activations", x.shape[2:], x.dtype)
    lay(border, tiles, all_tiles, start if axis == "x" else 0, start if axis == "y" else 0)
    del all_tiles
    at = np.arange(2 * n)
    steps_run = None if sample is None else max(2, sample)
    for moved in sampled(border, n, steps_run):
        if not border.payload and moved + 1 == steps_run:  # the far end stands for what is left out: all cores are used
            moved = n - 1
        low = start + onward * moved
        senders = (at >= low) & (at < low + n)
        tiles = fabric.transfer(border, channel, tiles, positions=senders)
        fabric.stage(border, channel, 0, np.roll(senders, onward))
        fabric.forget(border, channel)
    arrived = every_core(border, tiles)
    after.follow(border)
    return take(after, x, arrived, n - start if axis == "x" else 0, n - start if axis == "y" else 0)


# ------------------------------------------------------------------- cores that change the rank that hosts them


def every_core(block: Block, tiles: np.ndarray) -> np.ndarray | None:
    """The tiles of all cores, [H, W, *tile], on every rank; None without payloads. Not a matter of the machine."""
    if not block.payload:
        return None
    all_tiles: np.ndarray = block.control.bcast(gather_parts(block, tiles, (block.mesh.height, block.mesh.width)))
    return all_tiles


def lay(block: Block, tiles: np.ndarray, source: np.ndarray | None, x: int, y: int, columns: int | None = None) -> None:
    """Put those tiles, or the first columns of them, at the cores from (x, y) on; in place."""
    if source is None:
        return
    source = source[:, :columns]
    mesh = block.mesh
    low_x, high_x = max(x, mesh.x0), min(x + source.shape[1], mesh.x0 + mesh.block_width)
    low_y, high_y = max(y, mesh.y0), min(y + source.shape[0], mesh.y0 + mesh.block_height)
    if low_x < high_x and low_y < high_y:
        part = source[low_y - y : high_y - y, low_x - x : high_x - x]
        tiles[low_y - mesh.y0 : high_y - mesh.y0, low_x - mesh.x0 : high_x - mesh.x0] = part


def take(block: Block, like: np.ndarray, source: np.ndarray | None, x: int, y: int) -> np.ndarray:
    """This rank's tiles of a region that begins at core (x, y) of a larger mesh, in its memory. LimitError.

    Without payloads they are as `like`, and otherwise of its kind.
    """
    tiles = block.empty("activations", like.shape[2:], like.dtype)
    mesh = block.mesh
    x, y = x + mesh.x0, y + mesh.y0
    tiles[...] = like if source is None else source[y : y + mesh.block_height, x : x + mesh.block_width]
    return tiles
