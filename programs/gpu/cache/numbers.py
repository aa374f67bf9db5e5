"""The numbers of the cache on each GPU: keys and values, or what K and V have in the low-rank space.

The low-rank cache (DeInfer, section 4.2) is the same on every GPU, since its latents come from an all-gather. Two
buffers a GPU, allocated once, serve all layers one after the other: one for the latents of all sequences squeezed
together, one for the keys and values that are made of them.
"""

from math import prod

import numpy as np

from meshrt.errors import FullError, UsageError
from meshrt.gpu.gpu import Gpu
from meshrt.gpu.gpus import Gpus
from meshrt.programs.gpu.cache.pages import Pages
from meshrt.programs.gpu.shards import ShardedModel
from meshrt.records import dataclass

SHARE = 0.9  # of a GPU's memory, for weights and cache; the rest is workspace


@dataclass(frozen=True)
class Pools:
    """One GPU's cache: of each layer that runs, two arrays [slots, width]. Buffers are flat; None: keys and values."""

    keys: tuple[np.ndarray, ...]
    values: tuple[np.ndarray, ...]
    squeezed: tuple[np.ndarray, np.ndarray] | None
    rebuilt: tuple[np.ndarray, np.ndarray] | None


@dataclass(frozen=True)
class PagedCache:
    """The cache of a model: blocks and their tables, alike on all GPUs, and each hosted GPU's numbers."""

    pages: Pages
    pools: tuple[Pools, ...]
    kv: str  # "dense", or low-rank: rebuilt in kernels of their own ("lowrank") or in one ("fused")

    @property
    def low_rank(self) -> bool:
        return self.kv != "dense"


def check_low_rank(model: ShardedModel, scheme: str, kv: str) -> None:
    """UsageError where K and V have no latents that every GPU has whole."""
    if scheme not in ("deinfer", "overlapped"):
        raise UsageError(
            f"--kv {kv} needs --scheme deinfer or overlapped: in {scheme!r} no GPU has the whole latents of K and V;"
            " use --kv dense"
        )
    if model.family.clip is not None or any(layer.head_norms for layer in model.family.layers):
        raise UsageError(f"--kv {kv}: keys are normed or bounded after the low-rank space; use --kv dense")
    for layer in model.family.layers:
        for matrix in (layer.k, layer.v):
            if matrix.rank is None:
                raise UsageError(f"--kv {kv}: {matrix.name} is not decomposed; use --kv dense")


def _widths(model: ShardedModel, at: int, layer: int, low_rank: bool) -> tuple[int, int]:
    """Numbers that a token has in a layer's cache on the hosted GPU number `at`."""
    shape = model.family.layers[layer]
    if low_rank:
        assert shape.k.rank is not None and shape.v.rank is not None
        return shape.k.rank, shape.v.rank
    width = model.shards[at].layers[layer].heads.width
    return width, width


def make_cache(
    gpus: Gpus, model: ShardedModel, kv: str, block_size: int, needed: int, blocks: int | None, keeps: bool = False
) -> PagedCache:
    """A cache of so many blocks; None: what is needed, or what fits in 90 % of each GPU's memory. LimitError."""
    low_rank = kv != "dense"
    run, layers = model.layers_run, len(model.family.layers)
    widths = [[_widths(model, at, layer, low_rank) for layer in range(run)] for at in range(len(gpus.mine))]
    item = gpus.mine[0].dtype.itemsize
    needs = []  # bytes of a slot: of all layers, and of the buffers
    for pairs, shard in zip(widths, model.shards, strict=True):
        of_layers = [sum(pair) for pair in pairs]
        buffers = max(of_layers) + 2 * max(layer.heads.width for layer in shard.layers) if low_rank else 0
        needs.append(item * (sum(of_layers) + of_layers[-1] * (layers - run) + buffers))
    room = min(
        int((SHARE * gpu.memory.limit - gpu.memory.used) // (need * block_size))
        for gpu, need in zip(gpus.mine, needs, strict=True)
    )
    room = gpus.control.allreduce(room, min) - 1  # block 0 belongs to nobody
    if blocks is None and room < 1:
        raise FullError(
            f"{gpus.mine[0].memory.used} bytes of weights leave no room for a cache on a GPU of "
            f"{gpus.device.memory_bytes} bytes ({SHARE:.0%} of them for both): use more GPUs (--tp), or --gpu-memory"
        )
    pages = Pages(min(room, needed) if blocks is None else blocks, block_size, keeps)
    pools = tuple(
        make_pools(gpu, pages.slots, pairs, max(layer.heads.width for layer in shard.layers), low_rank, layers)
        for gpu, pairs, shard in zip(gpus.mine, widths, model.shards, strict=True)
    )
    return PagedCache(pages, pools, kv)


def make_pools(gpu: Gpu, slots: int, widths: list[tuple[int, int]], width: int, low_rank: bool, layers: int) -> Pools:
    def pool(columns: int) -> np.ndarray:
        array = gpu.keep("cache", gpu.shaped((slots, columns)))
        if gpu.payload:
            array.fill(np.nan)  # what is read before it was written shows
        return array

    def buffer(columns: int) -> np.ndarray:
        array = gpu.keep("rebuilt cache", gpu.shaped((slots * columns,)))
        if gpu.payload:
            array.fill(0)
        return array

    keys, values = tuple(pool(pair[0]) for pair in widths), tuple(pool(pair[1]) for pair in widths)
    gpu.memory.take("cache", (gpu.size(keys[-1]) + gpu.size(values[-1])) * (layers - len(widths)))
    if not low_rank:
        return Pools(keys, values, None, None)
    squeezed = (buffer(max(pair[0] for pair in widths)), buffer(max(pair[1] for pair in widths)))
    return Pools(keys, values, squeezed, (buffer(width), buffer(width)))


def shaped(buffer: np.ndarray, *shape: int) -> np.ndarray:
    """The beginning of a flat buffer, in a shape."""
    return buffer[: prod(shape)].reshape(shape) if buffer.strides != (0,) else np.broadcast_to(buffer[:1], shape)
