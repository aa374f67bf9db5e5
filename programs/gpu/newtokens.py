"""Batches of single new tokens, whose sequences have their keys and values, or latents of them, in the paged cache."""

from collections.abc import Sequence

import numpy as np

from meshrt.gpu.gpu import Cost, Gpu
from meshrt.gpu.gpus import Gpus
from meshrt.gpu.operations import matmuls
from meshrt.programs.gpu import deinfer, kernels
from meshrt.programs.gpu.batch import Tokens, keep
from meshrt.programs.gpu.cache import Cache, shaped
from meshrt.programs.gpu.forward import Rotary, rotated, turning
from meshrt.programs.gpu.pages import runs
from meshrt.programs.gpu.scheme import Arrays, Results
from meshrt.programs.gpu.shards import Heads, Model
from meshrt.records import dataclass

Run = tuple[np.ndarray, np.ndarray]  # a stretch of the buffer, a stretch of the cache


@dataclass
class Scratch:
    """Buffers and views of the attention of some heads on one GPU, for all layers that have it so."""

    cost: Cost
    k: np.ndarray
    v: np.ndarray
    kt: np.ndarray
    vt: np.ndarray
    scores: np.ndarray
    total: np.ndarray
    wide: np.ndarray


class NewTokens:
    """One new token of each of some sequences, `rows` at most, which see `blocks` blocks each, in all `total_blocks`.

    `load` says which; it may be called again and again, as it is for a plan. Rows that are left over stand for no
    sequence: they see the first place of the cache, and write to block 0.
    """

    last: np.ndarray | None = None

    def __init__(self, gpus: Gpus, model: Model, cache: Cache, rows: int, blocks: int, total_blocks: int) -> None:
        self.gpus, self.model, self.cache = gpus, model, cache
        size = cache.pages.size
        self.size, self.span, self.capacity = size, blocks * size, total_blocks * size
        self.tokens = np.zeros(rows, np.int64)
        self.position_rows = np.zeros(rows, np.int64)
        self.slots = np.zeros(rows, np.int64)
        self.table = np.zeros((rows, self.span), np.int64)  # block tables, slot by slot; of the buffer if low-rank
        windows = {layer.window for layer in model.family.layers}
        self.unseen = {window: np.ones((rows, self.span), bool) for window in windows}
        self.positions = np.zeros(self.capacity if cache.low_rank else 0, np.int64)  # of what is in the buffer
        self.runs: list[tuple[int, int, int]] = []
        self.tables: list[list[int]] = []  # of the loaded sequences, and how many blocks they have together
        self.blocks = 0
        self.loaded = 0
        self.seen = dict.fromkeys(windows, 0)
        self.scratch: dict[tuple[int, Heads, int | None], Scratch] = {}
        self.copies: list[tuple[int, int, list[Run], Cost]] = []  # of a plan: GPU, layer, what to copy
        self.turn: list[list[Rotary]] = []

    @property
    def wanted(self) -> int:
        return 1 if self.cache.low_rank else 3

    # ---- before a step

    def load(self, sequences: Sequence[Tokens]) -> None:
        """The sequences of the next step; the last token of each is the new one, and there is a slot for it."""
        pages = self.cache.pages
        lengths = [len(sequence.tokens) for sequence in sequences]
        tables = [
            pages.tables[sequence.number][: pages.needed(length)]
            for sequence, length in zip(sequences, lengths, strict=True)
        ]
        self.loaded = len(sequences)
        self.seen = {window: sum(min(length, window or length) for length in lengths) for window in self.seen}
        if self.cache.low_rank:
            # The remapping list: where a sequence's blocks are in the buffer, instead of in the cache.
            ends = np.cumsum([len(table) for table in tables])
            in_buffer = [range(end - len(table), end) for end, table in zip(ends.tolist(), tables, strict=True)]
            self._squeeze(tables)
            self._enter(sequences, in_buffer)
        else:
            self._enter(sequences, tables)
        for (at, heads, window), scratch in self.scratch.items():
            self._price(self.gpus.mine[at], heads, window, scratch.cost)

    def _enter(self, sequences: Sequence[Tokens], tables: Sequence[Sequence[int]]) -> None:
        """Tokens, positions, slots, and the block tables slot by slot; nobody looks at them without payload."""
        if not self.gpus.payload:
            return
        count, within, offset = len(sequences), np.arange(self.size), self.model.family.position_offset
        self.tokens[count:] = self.slots[count:] = 0
        self.position_rows[count:] = offset
        for unseen in self.unseen.values():
            unseen[:] = True
            unseen[count:, 0] = False
        for row, (sequence, table) in enumerate(zip(sequences, tables, strict=True)):
            new = len(sequence.tokens) - 1
            self.tokens[row] = sequence.tokens[new]
            self.position_rows[row] = new + offset
            self.slots[row] = self.cache.pages.slot(sequence.number, new)
            for window, unseen in self.unseen.items():
                unseen[row, max(0, new + 1 - (window or new + 1)) : new + 1] = False
            self.table[row, : len(table) * self.size] = (np.asarray(table)[:, None] * self.size + within).reshape(-1)

    def _squeeze(self, tables: list[list[int]]) -> None:
        """What lies together in the cache, and the positions of what will be in the buffer.

        Tables are compared, not blocks: the same blocks may be shared out to sequences in another way.
        """
        if tables != self.tables:
            blocks = [block for table in tables for block in table]
            self.tables, self.blocks, self.runs = tables, len(blocks), runs(blocks)
            begin = 0
            for table in tables:
                end = begin + len(table) * self.size
                self.positions[begin:end] = np.arange(end - begin)
                begin = end
            for at, layer, views, cost in self.copies:
                views[:] = self._views(at, layer)
                cost.set(0, self._copied(at, layer))
                cost.tally = self._tally()

    def _views(self, at: int, layer: int) -> list[Run]:
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

    # ---- in a step

    def begin(self, gpus: Gpus, model: Model) -> None:
        if self.cache.low_rank:
            self.turn = [
                [turning(gpu, tables, self.positions) for tables in shard.rotary]
                for gpu, shard in zip(gpus.mine, model.shards, strict=True)
            ]

    def attend(
        self, gpus: Gpus, model: Model, layer: int, results: Sequence[Results], rotary: Sequence[Rotary | None]
    ) -> Arrays:
        ys = []
        for at, (gpu, result, turn) in enumerate(zip(gpus.mine, results, rotary, strict=True)):
            shard, pools = model.shards[at].layers[layer], self.cache.pools[at]
            q = rotated(gpu, result.values[0], shard.heads.dim, turn)
            if self.cache.low_rank:
                keep(gpu, pools, layer, self.slots, result.latents[1:])
                keys, values = self._rebuild(gpu, at, layer)
            else:
                k = rotated(gpu, result.values[1], shard.heads.dim, turn)
                keep(gpu, pools, layer, self.slots, [k, result.values[2]])
                keys, values = pools.keys[layer], pools.values[layer]
            ys.append(self._attend(gpu, at, layer, q, keys, values))
        return ys

    def _rebuild(self, gpu: Gpu, at: int, layer: int) -> Run:
        """Keys and values of all that is loaded, from the low-rank cache (section 4.2): squeeze, multiply, rotate."""
        pools, qkv, heads = self.cache.pools[at], *_parts(self.model, at, layer)
        assert pools.squeezed is not None and pools.rebuilt is not None
        views = self._views(at, layer)
        cost = gpu.cost(0, self._copied(at, layer), self._tally())
        if gpu.plan is not None:
            self.copies.append((at, layer, views, cost))
        gpu.launch(kernels.copy_runs, pools.squeezed[0], views, cost=cost)
        kept = (pools.keys[layer], pools.values[layer])
        latents = [shaped(flat, self.capacity, pool.shape[1]) for flat, pool in zip(pools.squeezed, kept, strict=True)]
        outs = [shaped(flat, self.capacity, heads.width) for flat in pools.rebuilt]
        matmuls(gpu, latents, qkv.up[1:], qkv.biases[1:], outs)
        turns = self.turn[at]
        rotated(gpu, outs[0], heads.dim, turns[self.model.family.layers[layer].rope] if turns else None)
        return outs[0], outs[1]

    def _attend(self, gpu: Gpu, at: int, layer: int, q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        out, rows, family = gpu.new(*q.shape), len(q), self.model.family
        heads, window = self.model.shards[at].layers[layer].heads, family.layers[layer].window
        scratch, unseen = self.scratch.get((at, heads, window)), self.unseen[window]
        if scratch is None:
            scratch = self.scratch[at, heads, window] = self._scratch(gpu, rows, heads, window)
        shape = (rows, len(heads.kv), heads.group, heads.dim)
        gpu.launch(
            kernels.attend_cached, out.reshape(shape), q.reshape(shape), keys, values, self.table,
            family.scale, family.score_cap, scratch.k, scratch.v, scratch.kt, scratch.vt, unseen[:, :, None],
            unseen[:, None, None, :], scratch.scores, scratch.total, scratch.wide, cost=scratch.cost,
        )  # fmt: skip
        return out

    def _scratch(self, gpu: Gpu, rows: int, heads: Heads, window: int | None) -> Scratch:
        kv, cost = len(heads.kv), gpu.cost(0, 0)
        self._price(gpu, heads, window, cost)
        k, v = (gpu.shaped((rows, self.span, heads.width)) for _ in range(2))
        split = (rows, self.span, kv, heads.dim)
        kt, vt = k.reshape(split).transpose(0, 2, 3, 1), v.reshape(split).transpose(0, 2, 1, 3)
        shape = (rows, kv, heads.group, self.span)
        total = gpu.shaped((*shape[:-1], 1))
        return Scratch(cost, k, v, kt, vt, gpu.shaped(shape), total, gpu.shaped(shape))

    def _price(self, gpu: Gpu, heads: Heads, window: int | None, cost: Cost) -> None:
        """What the attention of the loaded sequences costs: each key and value that is seen is read once."""
        queries, item, seen = len(heads.queries), gpu.dtype.itemsize, self.seen[window]
        cost.tally = {"attention_heads": self.loaded * queries}
        cost.set(
            4 * seen * queries * heads.dim,
            item * (2 * seen * heads.width + 2 * self.loaded * queries * heads.dim),
        )


def _parts(model: Model, at: int, layer: int) -> tuple[deinfer.DeInferFirst, Heads]:
    """The low-rank cache goes with DeInfer's scheme, whose weights these are."""
    shard = model.shards[at].layers[layer]
    assert isinstance(shard.qkv, deinfer.DeInferFirst)
    return shard.qkv, shard.heads
