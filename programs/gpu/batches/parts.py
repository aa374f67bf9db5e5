"""Batches of parts of sequences: some new tokens of each, whose earlier ones are in the paged cache."""

from collections.abc import Sequence

import numpy as np

from meshrt.gpu.gpu import Cost, Gpu
from meshrt.gpu.gpus import Gpus
from meshrt.programs.gpu import kernels
from meshrt.programs.gpu.batches.prompts import Tokens, keep, looked_at
from meshrt.programs.gpu.cache.numbers import PagedCache
from meshrt.programs.gpu.cache.squeezing import Squeezed
from meshrt.programs.gpu.forward import Rotary, rotated
from meshrt.programs.gpu.schemes.scheme import Arrays, Results
from meshrt.programs.gpu.shards import HeadsShard, ShardedModel


class PromptParts:
    """Of each sequence the tokens from its `begin` on. Their numbers change from step to step: it is never a plan's.

    By shape a step may be counted again for others, of as many sequences and as many tokens in all (`instead`).
    """

    def __init__(self, gpus: Gpus, model: ShardedModel, cache: PagedCache, sequences: Sequence[Tokens]) -> None:
        pages = cache.pages
        self.cache, self.family = cache, model.family
        self.costs: list[tuple[Gpu, HeadsShard, int | None, Cost]] = []  # of attention
        self.spans = [(sequence.begin, len(sequence.tokens)) for sequence in sequences]
        self.ends = tuple(np.cumsum([end - begin for begin, end in self.spans]).tolist())
        self.tokens = np.concatenate([np.asarray(sequence.tokens[sequence.begin :]) for sequence in sequences])
        self.loaded = len(self.tokens)
        positions = np.concatenate([np.arange(*span) for span in self.spans])
        self.position_rows = positions + model.family.position_offset
        self.last: np.ndarray | None = np.asarray(self.ends) - 1
        self.slots = np.concatenate(
            [pages.slots_of(sequence.number, sequence.begin, len(sequence.tokens)) for sequence in sequences]
        )
        tables = [pages.tables[sequence.number][: pages.needed(len(sequence.tokens))] for sequence in sequences]
        self.squeezed: Squeezed | None = None
        if cache.low_rank:
            self.squeezed = Squeezed(gpus, model, cache, min(sum(map(len, tables)), pages.blocks))
            self.squeezed.load(tables)
            tables = [[*blocks] for blocks in self.squeezed.remapped]
        within = np.arange(pages.size)
        self.seen_slots = [  # of all that a sequence has in the cache, or in the buffer
            (np.asarray(table)[:, None] * pages.size + within).reshape(-1)[:end]
            for table, (_, end) in zip(tables, self.spans, strict=True)
        ]

    def instead(self, sequences: Sequence[Tokens]) -> None:
        self.spans = [(sequence.begin, len(sequence.tokens)) for sequence in sequences]
        for gpu, heads, window, cost in self.costs:
            self._price(gpu, heads, window, cost)

    def _price(self, gpu: Gpu, heads: HeadsShard, window: int | None, cost: Cost) -> None:
        seen = sum(looked_at(end, window) - looked_at(begin, window) for begin, end in self.spans)
        read = sum(min(end, end - begin + (window or end) - 1) for begin, end in self.spans)
        width = self.loaded * len(heads.queries) * heads.dim
        cost.tally = {"attention_heads": self.loaded * len(heads.queries)}
        cost.set(4 * seen * len(heads.queries) * heads.dim, 2 * gpu.dtype.itemsize * (width + read * heads.width))

    @property
    def wanted(self) -> int:
        return 1 if self.cache.low_rank else 3

    def begin(self, gpus: Gpus, model: ShardedModel) -> None:
        if self.squeezed is not None:
            self.squeezed.begin()

    def ahead(self, gpus: Gpus, model: ShardedModel, layer: int) -> None:
        pass

    def attend(
        self, gpus: Gpus, model: ShardedModel, layer: int, results: Sequence[Results], rotary: Sequence[Rotary | None]
    ) -> Arrays:
        ys, family, window = [], self.family, self.family.layers[layer].window
        for at, (gpu, result, turn) in enumerate(zip(gpus.mine, results, rotary, strict=True)):
            pools, heads = self.cache.pools[at], model.shards[at].layers[layer].heads
            q = rotated(gpu, result.values[0], heads.dim, turn)
            if self.squeezed is not None:
                keep(gpu, pools, layer, self.slots, result.latents[1:])
                keys, values = self.squeezed.rebuild(gpu, at, layer)
            else:
                k = rotated(gpu, result.values[1], heads.dim, turn)
                keep(gpu, pools, layer, self.slots, [k, result.values[2]])
                keys, values = pools.keys[layer], pools.values[layer]
            cost = gpu.cost(0, 0)
            self._price(gpu, heads, window, cost)
            self.costs.append((gpu, heads, window, cost))
            shape = (len(heads.kv), heads.group, heads.dim)
            ys.append(
                gpu.launch(
                    kernels.attend_parts, gpu.new(*q.shape), q, keys, values, shape, self.seen_slots, self.spans,
                    family.scale, family.score_cap, window, cost=cost,
                )
            )  # fmt: skip
        return ys
