"""Regions: the layers of a model and the cores that run them.

Most models run on one mesh and have one region. Where a model does not fit the memory of a mesh, its layers are spread
over several regions of the wafer, meshes of the same size side by side, that work one after the other as the regions of
a pipeline (waferllm, sections 7.5 and 8). What one hands to the next crosses a border (crossings.py).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.collectives.rings import Rings
from meshrt.mesh.device import Device
from meshrt.models.config import Config
from meshrt.models.family import family_of, first_unlike
from meshrt.models.folders.checkpoint import Checkpoint
from meshrt.programs.mesh.cache import Policy, TokenCache, kv_cache, stairs
from meshrt.programs.mesh.chunks import Chunks
from meshrt.programs.mesh.crossings import Crossing, matrix_crossing, vector_crossing, way_back
from meshrt.programs.mesh.experts.mixture import Mixture
from meshrt.programs.mesh.systems import NO_PRODUCTS, NO_SUMS, Products, Programs, Sums, open_products, open_system
from meshrt.programs.mesh.weights import MeshWeights, load_weights
from meshrt.records import dataclass


@dataclass(frozen=True, eq=False)
class Region:
    """Some layers of a model, in order, on the cores of a block. `sums` and `products` are what is installed there."""

    block: Block
    layers: range
    weights: MeshWeights
    cache: TokenCache
    sums: Sums = NO_SUMS
    products: Products = NO_PRODUCTS
    crossing: Crossing | None = None  # from the region before; in decode, to the first region from the last one
    mixture: Mixture | None = None
    system: Programs = "waferllm"  # that sums and products are of


def open_regions(
    stack: ExitStack, block: Block, chunks: Chunks, checkpoint: Checkpoint | None, count: int, *, config: Config,
    dtype: Any, room: int, kv: Policy, mixture: Mixture | None, apart: bool, name: str = "region", turned: bool = False,
    as_published: bool = False,
) -> list[Region]:  # fmt: skip
    """Load a model into so many regions, the first being the block's own cores; the caches are empty. LimitError.

    Without a checkpoint there is memory for the weights, and nothing in it. `turned` and `apart` are those of
    `load_weights`. `as_published` places them for prefill as the published programs do.
    """
    width, height = block.mesh.width, block.mesh.height
    opened = []
    for number, layers in enumerate(share(config.layers, count)):
        region_block = block if number == 0 else block.another(f"{name} {number}", width, height)
        grid, cut = (None, False) if mixture is None else (mixture.grid, mixture.router_cut)
        weights = load_weights(
            region_block, config, chunks, checkpoint, dtype, layers, turned, grid, apart, cut,
            aligned=as_published and not turned,
        )  # fmt: skip
        token = (len(layers), 2, chunks.kv_heads, chunks.columns * chunks.keys.shape[1] // chunks.kv_heads)
        cache = stack.enter_context(kv_cache(region_block, token, room, dtype, kv, climbs=False))
        opened.append(Region(region_block, layers, weights, cache, mixture=mixture))
    return opened


def install(
    stack: ExitStack, regions: Sequence[Region], system: Programs, chunks: Chunks, phases: int,
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
        kind = region.cache.data.dtype
        products, sums = open_system(stack, system, block, chunks, phases, ring, sample, bare, kind)
        if rings is None and region.cache.policy == "shift":
            region.cache.stairs = stack.enter_context(stairs(block))
        ready.append(replace(region, sums=sums, products=products, crossing=crossing, system=system))
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
                f"--layers-run {run}: layer {span[unlike]} has other ranks than layer {span[run - 1]}, or another"
                " window, so it has to run"
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
    for row in range(-(-count // columns)):
        line = [(column, row) for column in range(columns)]
        cells += line if row % 2 == 0 else line[::-1]
    return cells[:count]
