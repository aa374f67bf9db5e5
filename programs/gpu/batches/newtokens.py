"""Batches of single new tokens, whose sequences have their keys and values, or latents of them, in the paged cache."""

from collections.abc import Sequence

import numpy as np

from meshrt.gpu.gpu import Cost, Gpu
from meshrt.gpu.gpus import Gpus
from meshrt.gpu.operations import matmuls
from meshrt.programs.gpu import kernels
from meshrt.programs.gpu.batches.prompts import Tokens, keep
from meshrt.programs.gpu.cache.numbers import PagedCache
from meshrt.programs.gpu.cache.squeezing import Squeezed, TokenRun, parts
from meshrt.programs.gpu.forward import Rotary, rotated
from meshrt.programs.gpu.schemes.scheme import Arrays, Results
from meshrt.programs.gpu.shards import HeadsShard, ShardedModel
from meshrt.records import dataclass


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
    sequence: they see the first slot of the cache, and write to block 0.
    """

    last: np.ndarray | None = None

    def __init__(
        self, gpus: Gpus, model: ShardedModel, cache: PagedCache, rows: int, blocks: int, total_blocks: int
    ) -> None:
        self.gpus, self.model, self.cache = gpus, model, cache
        size = cache.pages.size
        self.size, self.span = size, blocks * size
        self.tokens = np.zeros(rows, np.int64)
        self.position_rows = np.zeros(rows, np.int64)
        self.slots = np.zeros(rows, np.int64)
        self.table = np.zeros((rows, self.span), np.int64)  # block tables, slot by slot; of the buffer if low-rank
        windows = {layer.window for layer in model.family.layers}
        self.unseen = {window: np.ones((rows, self.span), bool) for window in windows}
        self.squeezed = Squeezed(gpus, model, cache, total_blocks) if cache.low_rank else None
        self.new_slots = np.zeros(rows, np.int64)  # of the new tokens in its buffer, and the row that comes there
        self.rows = np.zeros(rows, np.int64)
        self.rebuilt: list[TokenRun] = []  # keys and values of the layer that is under way, but for the new tokens'
        self.loaded = 0
        self.seen = dict.fromkeys(windows, 0)
        self.scratch: dict[tuple[int, HeadsShard, int | None], Scratch] = {}

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
        if self.squeezed is not None:
            self.squeezed.load(tables)
            self._enter(sequences, self.squeezed.remapped)
            self._find_slots(lengths, self.squeezed.remapped)
        else:
            self._enter(sequences, tables)
        for (at, heads, window), scratch in self.scratch.items():
            self._price(self.gpus.mine[at], heads, window, scratch.cost)

    def instead(self, sequences: Sequence[Tokens]) -> None:
        """By shape, others of the same number."""
        self.load(sequences)

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

    def _find_slots(self, lengths: Sequence[int], tables: Sequence[Sequence[int]]) -> None:
        """Rows of no sequence bring once more what the first brings."""
        count, size = len(lengths), self.size
        self.rows[:count], self.rows[count:] = range(count), 0
        news = [table[(n - 1) // size] * size + (n - 1) % size for n, table in zip(lengths, tables, strict=True)]
        self.new_slots[:count], self.new_slots[count:] = news, news[0]

    # ---- in a step

    def begin(self, gpus: Gpus, model: ShardedModel) -> None:
        if self.squeezed is not None:
            self.squeezed.begin()

    def ahead(self, gpus: Gpus, model: ShardedModel, layer: int) -> None:
        """Keys and values of the tokens before the new ones."""
        if self.squeezed is not None:
            self.rebuilt = [self.squeezed.rebuild(gpu, at, layer) for at, gpu in enumerate(gpus.mine)]

    def attend(
        self, gpus: Gpus, model: ShardedModel, layer: int, results: Sequence[Results], rotary: Sequence[Rotary | None]
    ) -> Arrays:
        ys, rebuilt, self.rebuilt = [], self.rebuilt, []
        for at, (gpu, result, turn) in enumerate(zip(gpus.mine, results, rotary, strict=True)):
            shard, pools = model.shards[at].layers[layer], self.cache.pools[at]
            q = rotated(gpu, result.values[0], shard.heads.dim, turn)
            if self.squeezed is not None:
                keep(gpu, pools, layer, self.slots, result.latents[1:])
                if rebuilt:
                    keys, values = self._complete(gpu, at, layer, rebuilt[at], result, turn)
                else:
                    keys, values = self.squeezed.rebuild(gpu, at, layer)
            else:
                k = rotated(gpu, result.values[1], shard.heads.dim, turn)
                keep(gpu, pools, layer, self.slots, [k, result.values[2]])
                keys, values = pools.keys[layer], pools.values[layer]
            ys.append(self._attend(gpu, at, layer, q, keys, values))
        return ys

    def _complete(
        self, gpu: Gpu, at: int, layer: int, rebuilt: TokenRun, result: Results, turn: Rotary | None
    ) -> TokenRun:  # fmt: skip
        """The new tokens' keys and values to where the others' are already."""
        qkv, heads = parts(self.model, at, layer)
        latents = [latent for latent in result.latents[1:] if latent is not None]
        new = matmuls(gpu, latents, qkv.up[1:], qkv.biases[1:])
        rotated(gpu, new[0], heads.dim, turn)
        for target, rows in zip(rebuilt, new, strict=True):
            cost = gpu.cost(0, 2 * gpu.size(rows))
            gpu.launch(kernels.store_rows, target, self.new_slots, rows, self.rows, gpu.shaped(rows.shape), cost=cost)
        return rebuilt

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

    def _scratch(self, gpu: Gpu, rows: int, heads: HeadsShard, window: int | None) -> Scratch:
        kv, cost = len(heads.kv), gpu.cost(0, 0)
        self._price(gpu, heads, window, cost)
        k, v = (gpu.shaped((rows, self.span, heads.width)) for _ in range(2))
        split = (rows, self.span, kv, heads.dim)
        kt, vt = k.reshape(split).transpose(0, 2, 3, 1), v.reshape(split).transpose(0, 2, 1, 3)
        shape = (rows, kv, heads.group, self.span)
        total = gpu.shaped((*shape[:-1], 1))
        return Scratch(cost, k, v, kt, vt, gpu.shaped(shape), total, gpu.shaped(shape))

    def _price(self, gpu: Gpu, heads: HeadsShard, window: int | None, cost: Cost) -> None:
        """What the attention of the loaded sequences costs: each key and value that is seen is read once."""
        queries, item, seen = len(heads.queries), gpu.dtype.itemsize, self.seen[window]
        cost.tally = {"attention_heads": self.loaded * queries}
        cost.set(
            4 * seen * queries * heads.dim,
            item * (2 * seen * heads.width + 2 * self.loaded * queries * heads.dim),
        )
