"""Logits that a machine hands to the host: the next token is found there."""

from collections.abc import Callable

import numpy as np

from meshrt.models.sampling import sample
from meshrt.programs.generation.choice import at_rank_0
from meshrt.ranks.control import Control
from meshrt.records import dataclass


@dataclass(frozen=True, eq=False)
class HostScores:
    """Logits that are at the host, float32 [tokens, vocabulary]; None by shape."""

    control: Control
    logits: np.ndarray | None

    def greedy(self) -> int:
        return 0 if self.logits is None else self.draw(sample)

    def draw(self, choose: Callable[[np.ndarray], int]) -> int:
        return at_rank_0(self.control, None if self.logits is None else self.logits[-1], choose)

    def rows(self) -> list[np.ndarray]:
        return [] if self.logits is None or self.control.rank else [*self.logits]
