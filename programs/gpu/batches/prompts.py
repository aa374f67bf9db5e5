"""Batches of whole prompts, whose keys and values are at hand; those of new tokens are in newtokens.py."""

from collections.abc import Sequence

import numpy as np

from meshrt.gpu.gpu import Gpu
from meshrt.gpu.gpus import Gpus
from meshrt.programs.gpu import kernels
from meshrt.programs.gpu.cache.numbers import PagedCache, Pools
from meshrt.programs.gpu.forward import Rotary, rotated
from meshrt.programs.gpu.schemes.scheme import Arrays, Results
from meshrt.programs.gpu.shards import ShardedModel
from meshrt.records import dataclass


@dataclass(frozen=True)
class Tokens:
    """A sequence as a batch sees it: who it is, for the block table, and its tokens, of which the first `begin` are in
    the cache."""

    number: int
    tokens: Sequence[int]
    begin: int = 0


class Prompts:
    """Whole sequences side by side; nothing of them is in the cache yet."""

    wanted = 3

    def __init__(self, model: ShardedModel, cache: PagedCache, sequences: Sequence[Tokens]) -> None:
        self.cache = cache
        lengths = [len(sequence.tokens) for sequence in sequences]
        self.ends = tuple(int(end) for end in np.cumsum(lengths))
        self.tokens = np.concatenate([np.asarray(sequence.tokens) for sequence in sequences])
        self.loaded = len(self.tokens)
        positions = np.concatenate([np.arange(length) for length in lengths])
        self.position_rows = positions + model.family.position_offset
        self.last: np.ndarray | None = np.asarray(self.ends) - 1
        self.slots = np.concatenate([
            cache.pages.slots_of(each.number, 0, length) for each, length in zip(sequences, lengths, strict=True)
        ])  # fmt: skip
        self.lengths = lengths

    def begin(self, gpus: Gpus, model: ShardedModel) -> None:
        pass

    def ahead(self, gpus: Gpus, model: ShardedModel, layer: int) -> None:
        pass

    def attend(
        self, gpus: Gpus, model: ShardedModel, layer: int, results: Sequence[Results], rotary: Sequence[Rotary | None]
    ) -> Arrays:
        ys = []
        for at, (gpu, result, turn) in enumerate(zip(gpus.mine, results, rotary, strict=True)):
            pools, heads = self.cache.pools[at], model.shards[at].layers[layer].heads
            q, k, v = result.values
            rotated(gpu, q, heads.dim, turn)
            rotated(gpu, k, heads.dim, turn)
            keep(gpu, pools, layer, self.slots, result.latents[1:] if self.cache.low_rank else [k, v])
            queries, family, window = len(heads.queries), model.family, model.family.layers[layer].window
            cost = gpu.cost(
                4 * sum(looked_at(length, window) for length in self.lengths) * queries * heads.dim,
                2 * gpu.size(q) + gpu.size(k) + gpu.size(v),
                {"attention_heads": len(self.tokens) * queries},
            )
            out, shape = gpu.new(*q.shape), (len(heads.kv), heads.group, heads.dim)
            ys.append(
                gpu.launch(
                    kernels.attend_causal,
                    out,
                    q,
                    k,
                    v,
                    shape,
                    self.ends,
                    family.scale,
                    family.score_cap,
                    window,
                    cost=cost,
                )
            )
        return ys


def looked_at(length: int, window: int | None) -> int:
    """Keys that the queries of so many tokens look at."""
    wide = min(length, window or length)
    return wide * (wide + 1) // 2 + (length - wide) * wide


def keep(gpu: Gpu, pools: Pools, layer: int, slots: np.ndarray, rows: Sequence[np.ndarray | None]) -> None:
    """New tokens' rows to the cache of a layer: keys and values, or their latents."""
    for pool, array in zip((pools.keys[layer], pools.values[layer]), rows, strict=True):
        assert array is not None
        gpu.launch(kernels.store, pool, slots, array, cost=gpu.cost(0, 2 * gpu.size(array)))
