"""Keys and values of many sequences from a low-rank cache (DeInfer, section 4.2): squeeze, multiply, rotate."""

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np

from meshrt.gpu.gpu import Cost, Gpu
from meshrt.gpu.gpus import Gpus
from meshrt.gpu.operations import matmuls, product_cost
from meshrt.programs.gpu import kernels
from meshrt.programs.gpu.cache.numbers import PagedCache, shaped
from meshrt.programs.gpu.cache.pages import runs
from meshrt.programs.gpu.forward import Rotary, rotated, turning
from meshrt.programs.gpu.schemes import deinfer
from meshrt.programs.gpu.shards import HeadsShard, ShardedModel

TokenRun = tuple[np.ndarray, np.ndarray]  # a stretch of the buffer, a stretch of the cache


class Squeezed:
    """The buffers that hold so many blocks of the cache side by side, a block that several sequences have once."""

    def __init__(self, gpus: Gpus, model: ShardedModel, cache: PagedCache, blocks: int) -> None:
        self.gpus, self.model, self.cache = gpus, model, cache
        self.size = cache.pages.size
        self.capacity = blocks * self.size
        self.positions = np.zeros(self.capacity, np.int64)  # of what is in the buffer
        lengths = [len(cos) for shard in model.shards for cos, _ in shard.rotary]
        self.last = min(lengths, default=1) - 1  # position of a token; beyond are slots of a block without one
        self.runs: list[tuple[int, int, int]] = []
        self.tables: list[list[int]] = []  # of the loaded sequences, and how many blocks they have together
        self.blocks = 0
        self.remapped: list[Sequence[int]] = []  # where a sequence's blocks are in the buffer: the remapping list
        self.copies: list[tuple[int, int, list[TokenRun], Cost]] = []  # of a plan: GPU, layer, what to copy
        self.turn: list[list[Rotary]] = []

    def load(self, tables: list[list[int]]) -> None:
        """What lies together in the cache, and the positions of what will be in the buffer.

        Tables are compared, not blocks: the same blocks may be shared out to sequences in another way.
        """
        if tables == self.tables:
            return
        blocks = [block for table in tables for block in table]
        if self.cache.pages.keeps:
            blocks = [*dict.fromkeys(blocks)]
            in_buffer = {block: at for at, block in enumerate(blocks)}
            self.remapped = [[in_buffer[block] for block in table] for table in tables]
        else:
            ends = np.cumsum([len(table) for table in tables]).tolist()
            self.remapped = [range(end - len(table), end) for end, table in zip(ends, tables, strict=True)]
        self.tables, self.blocks, self.runs = tables, len(blocks), runs(blocks)
        by_block, within = self.positions.reshape(-1, self.size), np.arange(self.size)
        for blocks_at in self.remapped:
            positions = self.size * np.arange(len(blocks_at))[:, None] + within
            by_block[np.asarray(blocks_at)] = np.minimum(positions, self.last)
        for at, layer, views, cost in self.copies:
            views[:] = self._views(at, layer)
            if self.cache.kv == "lowrank":
                cost.set(0, self._copied(at, layer))
            cost.tally = self._tally()

    def begin(self) -> None:
        """Before the first layer: how far each position is rotated."""
        self.turn = [
            [turning(gpu, tables, self.positions) for tables in shard.rotary]
            for gpu, shard in zip(self.gpus.mine, self.model.shards, strict=True)
        ]

    def rebuild(self, gpu: Gpu, at: int, layer: int) -> TokenRun:
        """Keys and values of all that is loaded."""
        pools, qkv, heads = self.cache.pools[at], *parts(self.model, at, layer)
        assert pools.squeezed is not None and pools.rebuilt is not None
        views = self._views(at, layer)
        kept = (pools.keys[layer], pools.values[layer])
        latents = [shaped(flat, self.capacity, pool.shape[1]) for flat, pool in zip(pools.squeezed, kept, strict=True)]
        outs = [shaped(flat, self.capacity, heads.width) for flat in pools.rebuilt]
        turn = self.turn[at][self.model.family.layers[layer].rope] if self.turn[at] else None
        fused = self.cache.kv == "fused"
        if fused:  # blocks are read where they lie, and numbers are turned before they are written
            whole, turned = product_cost(gpu, latents, qkv.up[1:], outs), 0 if turn is None else 3 * outs[0].size
            cost = gpu.cost(whole.flops + turned, whole.nbytes, self._tally(), whole.seconds)
        else:
            cost = gpu.cost(0, self._copied(at, layer), self._tally())
        if gpu.plan is not None:
            self.copies.append((at, layer, views, cost))
        with gpu.fused(cost) if fused else nullcontext():
            gpu.launch(kernels.copy_runs, pools.squeezed[0], views, cost=cost)
            matmuls(gpu, latents, qkv.up[1:], qkv.biases[1:], outs)
            rotated(gpu, outs[0], heads.dim, turn)
        return outs[0], outs[1]

    def _views(self, at: int, layer: int) -> list[TokenRun]:
        pools, views = self.cache.pools[at], []
        assert pools.squeezed is not None
        if not self.gpus.payload:
            return []
        for pool, flat in zip((pools.keys[layer], pools.values[layer]), pools.squeezed, strict=True):
            buffer = shaped(flat, self.capacity, pool.shape[1])
            for index, block, count in self.runs:
                target = slice(index * self.size, (index + count) * self.size)
                views.append((buffer[target], pool[block * self.size : (block + count) * self.size]))
        return views

    def _copied(self, at: int, layer: int) -> int:
        """Bytes read and written."""
        pools = self.cache.pools[at]
        slot = sum(self.gpus.mine[at].size(pool[layer][0]) for pool in (pools.keys, pools.values))
        return 2 * self.blocks * self.size * slot

    def _tally(self) -> dict[str, int]:
        return {"cache_runs": 2 * len(self.runs), "cache_blocks": 2 * self.blocks}


def parts(model: ShardedModel, at: int, layer: int) -> tuple[deinfer.DeInferFirst, HeadsShard]:
    """The low-rank cache goes with DeInfer's scheme, whose weights these are."""
    shard = model.shards[at].layers[layer]
    assert isinstance(shard.qkv, deinfer.DeInferFirst)
    return shard.qkv, shard.heads
