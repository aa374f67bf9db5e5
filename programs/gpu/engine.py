"""A language model on tensor-parallel GPUs as an engine: one request, served alone."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from meshrt.gpu import state
from meshrt.gpu.gpus import Gpus
from meshrt.programs.generation.choice import at_rank_0
from meshrt.programs.gpu.experts import mixing
from meshrt.programs.gpu.serving.request import Request
from meshrt.programs.gpu.steps import CacheSteps
from meshrt.ranks.snapshot import Snapshot, SnapshotPart
from meshrt.records import dataclass


@dataclass(eq=False)
class GpuEngine:
    """`request` is the one that is served. All of its tokens but the newest are in the cache of `steps`."""

    gpus: Gpus
    steps: CacheSteps
    request: Request

    def fill(self, context: int) -> None:
        """Without payload there are lengths only, and the request has its own."""

    def prefill(self, ids: Sequence[int], every: bool) -> "GpuScores":
        self.steps.cache.pages.reserve(self.request.number, len(ids) + 1)
        return GpuScores(self.steps, self.steps.prompts([self.request.tokens()])[0])

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Each step is a stretch of decode's phase of its own."""
        yield

    def step(self, token: int, position: int) -> "GpuScores":
        self.steps.cache.pages.reserve(self.request.number, position + 1)
        return GpuScores(self.steps, self.steps.new_tokens([self.request.tokens()])[0])

    def took(self, token: int) -> None:
        self.request.new.append(token)
        self.request.times.append(self.gpus.meet())

    def describe(self) -> tuple[dict[str, Any], dict[str, SnapshotPart]]:
        steps, pages = self.steps, self.steps.cache.pages
        facts = state.describe(self.gpus) | {
            "times": self.request.times,
            "pages": [pages.free, pages.tables.get(self.request.number, [])],
            "plans": [[recorded.number, *key] for key, recorded in steps.plans.items()],
            "steps": [steps.recorded, steps.largest],
        }
        if steps.model.mixing is not None:
            facts["experts"] = mixing.describe(self.gpus, steps.model.mixing)
        return facts, {name: SnapshotPart(pool[self._slots()]) for name, pool in self._pools().items()}

    def restore(self, snapshot: Snapshot, new: Sequence[int]) -> None:
        steps, pages, facts = self.steps, self.steps.cache.pages, snapshot.facts
        self.request.new.extend(new)
        self.request.times.extend(map(float, facts["times"]))
        free, table = facts["pages"]
        pages.free[:] = map(int, free)
        pages.tables[self.request.number] = [*map(int, table)]
        for number, rows, blocks, together in facts["plans"]:
            steps.record((int(rows), int(blocks), int(together)), int(number))
        steps.recorded, steps.largest = map(int, facts["steps"])
        if steps.model.mixing is not None:
            mixing.restore(self.gpus, steps.model.mixing, facts["experts"])
        state.restore(self.gpus, snapshot)
        pools, slots = self._pools(), self._slots()
        rows_of = {name: np.empty((len(slots), pool.shape[1]), pool.dtype) for name, pool in pools.items()}
        snapshot.fill({name: SnapshotPart(rows) for name, rows in rows_of.items()})
        for name, pool in pools.items():
            pool[slots] = rows_of[name]

    def _slots(self) -> list[int]:
        """Where the tokens are that are in the cache."""
        pages, number = self.steps.cache.pages, self.request.number
        return [pages.slot(number, at) for at in range(len(self.request) - 1)] if self.gpus.payload else []

    def _pools(self) -> dict[str, np.ndarray]:
        """Every layer's keys and values, or their latents, on the hosted GPUs, if there are payloads."""
        return {
            f"{name} {layer} of {gpu.index}": pool
            for gpu, own in zip(self.gpus.mine, self.steps.cache.pools, strict=True)
            for name, pools in (("keys", own.keys), ("values", own.values))
            for layer, pool in enumerate(pools)
            if self.gpus.payload
        }


@dataclass(frozen=True, eq=False)
class GpuScores:
    """The token that the GPUs have found, and the logits of the pass, of which each has its own words."""

    steps: CacheSteps
    likeliest: int

    def greedy(self) -> int:
        return self.likeliest

    def draw(self, choose: Callable[[np.ndarray], int]) -> int:
        logits = self._logits
        return at_rank_0(self.steps.gpus.control, None if logits is None else logits[-1], choose)

    def rows(self) -> list[np.ndarray]:
        logits = self._logits
        return [] if logits is None or self.steps.gpus.control.rank else [*logits]

    @cached_property
    def _logits(self) -> np.ndarray | None:
        return self.steps.logits()
