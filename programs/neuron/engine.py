"""LLaMA on NeuronCores as an engine: a pass over the prompt, then passes over single tokens."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from meshrt.models.config import Config
from meshrt.neuron import state
from meshrt.neuron.cores import Cores
from meshrt.programs.generation.hostscores import HostScores
from meshrt.programs.neuron.model import Share, forward
from meshrt.ranks.snapshot import Snapshot, SnapshotPart
from meshrt.records import dataclass


@dataclass(eq=False)
class NeuronEngine:
    """A model as the hosted cores have it; `held` tokens are in the cache."""

    cores: Cores
    config: Config
    shares: Sequence[Share]
    held: int = 0
    steps: int = 0

    def fill(self, context: int) -> None:
        for share in self.shares:
            for cache in share.caches:
                for tensor in (*cache.keys, *cache.values):
                    tensor.store.full = True
        self.held = context

    def prefill(self, ids: Sequence[int], every: bool) -> HostScores:
        with self.cores.phase("prefill", len(ids)):
            logits = forward(self.cores, self.shares, self.config, ids, 0, len(ids) if every else 1)
        self.held = len(ids)
        return HostScores(self.cores.control, logits)

    @contextmanager
    def decoding(self) -> Iterator[None]:
        with self.cores.phase("decode") as phases:
            yield
            for phase in phases:
                phase.tokens = self.steps

    def step(self, token: int, position: int) -> HostScores:
        self.steps += 1
        self.held = position + 1
        return HostScores(self.cores.control, forward(self.cores, self.shares, self.config, [token], position, 1))

    def took(self, token: int) -> None:
        """The logits are at the host already."""

    def describe(self) -> tuple[dict[str, Any], dict[str, SnapshotPart]]:
        facts, parts = state.describe(self.cores, self._tiles())
        return facts | {"cached": [self.held]}, parts

    def restore(self, snapshot: Snapshot, new: Sequence[int]) -> None:
        (self.held,) = map(int, snapshot.facts["cached"])
        self.steps = len(new) - 1
        state.restore(self.cores, self._tiles(), snapshot)

    def _tiles(self) -> list[state.NamedTiles]:
        """What each hosted core has between two tokens, weights apart: of keys and values, those of the tokens."""
        all_tiles: list[state.NamedTiles] = []
        for share in self.shares:
            tiles = {"identity": share.identity}
            for layer, cache in enumerate(share.caches):
                for head, (keys, values) in enumerate(zip(cache.keys, cache.values, strict=True)):
                    tiles[f"keys {layer} {head}"] = keys[:, 0 : self.held]
                    tiles[f"values {layer} {head}"] = values[0 : self.held]
            all_tiles.append(tiles)
        return all_tiles

    def seconds(self, name: str) -> float | None:
        """Virtual seconds of a phase that is over; None where there was none. All ranks call it."""
        phases = [phase for core in self.cores.mine for phase in core.phases if phase.name == name]
        return self.cores.lasted(phases) if phases else None
