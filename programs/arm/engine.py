"""LLaMA on Arm cores as an engine: a pass over the prompt, then passes over single tokens."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from meshrt.arm import state
from meshrt.arm.soc import Soc
from meshrt.programs.arm.kv import ArmLayerCache
from meshrt.programs.arm.model import forward
from meshrt.programs.arm.parts import ArmModel
from meshrt.programs.generation.hostscores import HostScores
from meshrt.ranks.snapshot import Snapshot, SnapshotPart
from meshrt.records import dataclass


@dataclass(eq=False)
class ArmEngine:
    """A model in DRAM and what its layers keep of the tokens so far."""

    soc: Soc
    model: ArmModel
    caches: Sequence[ArmLayerCache]
    steps: int = 0

    def fill(self, context: int) -> None:
        for cache in self.caches:
            cache.fill(context)

    def prefill(self, ids: Sequence[int], every: bool) -> HostScores:
        with self.soc.phase("prefill", len(ids)):
            logits = forward(self.soc, self.model, self.caches, ids, 0, len(ids) if every else 1)
        return HostScores(self.soc.control, logits)

    @contextmanager
    def decoding(self) -> Iterator[None]:
        with self.soc.phase("decode") as phase:
            yield
            phase.tokens = self.steps

    def step(self, token: int, position: int) -> HostScores:
        self.steps += 1
        return HostScores(self.soc.control, forward(self.soc, self.model, self.caches, [token], position, 1))

    def took(self, token: int) -> None:
        """The logits are at the host already."""

    def describe(self) -> tuple[dict[str, Any], dict[str, SnapshotPart]]:
        """Every rank has all keys and values; rank 0 writes them down."""
        facts = state.describe(self.soc) | {"caches": [cache.facts() for cache in self.caches], "steps": self.steps}
        if self.model.loads is not None:
            facts["experts"] = self.model.loads.tolist()
        return facts, {
            name: SnapshotPart(array) for name, array in self._arrays().items()
        } if not self.soc.control.rank else {}

    def restore(self, snapshot: Snapshot, new: Sequence[int]) -> None:
        self.steps = int(snapshot.facts["steps"])
        if self.model.loads is not None:
            self.model.loads[...] = snapshot.facts["experts"]
        for cache, facts in zip(self.caches, snapshot.facts["caches"], strict=True):
            cache.stand(*map(int, facts))
        state.restore(self.soc, snapshot)
        stored = {name: np.ascontiguousarray(array) for name, array in self._arrays().items()}
        snapshot.fill({name: SnapshotPart(array) for name, array in stored.items()})
        for name, array in self._arrays().items():
            array[...] = stored[name]

    def _arrays(self) -> dict[str, np.ndarray]:
        """Keys and values of the tokens so far as bytes, if there are payloads."""
        return {
            f"{name} {layer}": array
            for layer, cache in enumerate(self.caches)
            for name, array in cache.arrays().items()
        }

    def seconds(self, name: str) -> float | None:
        """Virtual seconds of a phase that is over; None where there was none."""
        phase = self.soc.phases.get(name)
        return None if phase is None else phase.system["seconds"]
