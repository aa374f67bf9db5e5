"""Blocks of a preempted sequence in the host's memory: out over the PCIe bus, and back when there is room again."""

from dataclasses import field

import numpy as np

from meshrt.gpu.gpu import Cost, Gpu
from meshrt.gpu.gpus import Gpus
from meshrt.programs.gpu import kernels
from meshrt.programs.gpu.cache.numbers import PagedCache, Pools
from meshrt.programs.gpu.shards import ShardedModel
from meshrt.records import dataclass


@dataclass
class HostMemory:
    """Bytes for the blocks of each GPU in the host's memory; `limit` None: any number. `full` counts sequences that
    found no room."""

    limit: int | None
    used: int = 0
    peak: int = 0
    full: int = 0
    held: dict[int, int] = field(default_factory=dict)  # by sequence

    def take(self, sequence: int, nbytes: int) -> bool:
        """False, and nothing done, where there is no room."""
        if self.limit is not None and self.used + nbytes > self.limit:
            self.full += 1
            return False
        self.held[sequence] = nbytes
        self.used += nbytes
        self.peak = max(self.peak, self.used)
        return True

    def give_back(self, sequence: int) -> None:
        self.used -= self.held.pop(sequence)


@dataclass(frozen=True)
class SwappedTokens:
    """The first so many tokens of a sequence; of each hosted GPU, what its pools had of them."""

    tokens: int
    rows: tuple[tuple[np.ndarray, ...], ...]


def host_bytes(gpus: Gpus, model: ShardedModel, cache: PagedCache, tokens: int) -> int:
    """What so many tokens take in the host's memory of the GPU that has most of them. All ranks call it."""
    most = max(
        sum(cost.nbytes for _, cost in _each(gpu, model, cache, pools, tokens))
        for gpu, pools in zip(gpus.mine, cache.pools, strict=True)
    )
    return int(gpus.control.allreduce(most, max)) if gpus.control.size > 1 else most


def keep_on_host(gpus: Gpus, model: ShardedModel, cache: PagedCache, number: int, tokens: int) -> SwappedTokens:
    slots, rows = cache.pages.slots_of(number, 0, tokens), []
    for gpu, pools in zip(gpus.mine, cache.pools, strict=True):
        own = []
        for pool, cost in _each(gpu, model, cache, pools, tokens):
            kept = gpu.shaped((tokens, pool.shape[1]))
            own.append(gpu.launch(kernels.leave, kept, pool, slots, cost=cost))
        rows.append(tuple(own))
    return SwappedTokens(tokens, tuple(rows))


def bring_back(gpus: Gpus, model: ShardedModel, cache: PagedCache, number: int, kept: SwappedTokens) -> None:
    slots = cache.pages.slots_of(number, 0, kept.tokens)
    for gpu, pools, own in zip(gpus.mine, cache.pools, kept.rows, strict=True):
        for (pool, cost), rows in zip(_each(gpu, model, cache, pools, kept.tokens), own, strict=True):
            gpu.launch(kernels.store, pool, slots, rows, cost=cost)


def _each(gpu: Gpu, model: ShardedModel, cache: PagedCache, pools: Pools, tokens: int) -> list[tuple[np.ndarray, Cost]]:
    """The pools of a GPU, and what it costs to copy so many tokens of each, in whole blocks, a launch for each.
    The last layer's stand for those of layers that do not run."""
    slots, copies = cache.pages.needed(tokens) * cache.pages.size, []
    for layer in range(len(model.family.layers)):
        for pool in (of_layers[min(layer, len(of_layers) - 1)] for of_layers in (pools.keys, pools.values)):
            nbytes = slots * gpu.size(pool[0])
            seconds = nbytes / gpu.device.pcie_bytes_per_second
            copies.append((pool, gpu.cost(0, nbytes, {"swapped_bytes": nbytes}, seconds)))
    return copies
