"""What a machine does for a generation: a prompt, then token after token, and where it stands between two of them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from meshrt.ranks.snapshot import Snapshot, SnapshotPart


class Scores(Protocol):
    """The logits of a pass, where the machine has them. All ranks call these together; either finds the next token."""

    def greedy(self) -> int:
        """The likeliest next token; of equal ones the lowest id; 0 by shape. UsageError where no logit is a number."""
        ...

    def draw(self, choose: Callable[[np.ndarray], int]) -> int:
        """The token that `choose` picks, at rank 0, by the last token's logits, float32 [vocabulary]."""
        ...

    def rows(self) -> list[np.ndarray]:
        """The logits of all tokens that they were asked of, float32 [vocabulary] each, at rank 0; none elsewhere."""
        ...


class Engine(Protocol):
    """A model on a machine, with its cache, for one generation.

    It is opened for a prompt and a number of new tokens, and either starts with `prefill` or `fill`, or goes on from a
    state. Steps come inside of `decoding`.
    """

    def fill(self, context: int) -> None:
        """By shape: so many tokens are in the cache, whatever they say."""
        ...

    def prefill(self, ids: Sequence[int], every: bool) -> Scores:
        """The prompt in one pass: logits of `every` token, or of the last alone."""
        ...

    def decoding(self) -> AbstractContextManager[None]:
        """Make ready for single tokens; what is counted inside is decode's."""
        ...

    def step(self, token: int, position: int) -> Scores:
        """One token more, which is at that position."""
        ...

    def took(self, token: int) -> None:
        """The token that comes next is known, and no logits are needed any more."""
        ...

    def describe(self) -> tuple[dict[str, Any], dict[str, SnapshotPart]]:
        """Where the machine stands between two tokens: facts, whole at rank 0 only, and this rank's parts of arrays."""
        ...

    def restore(self, snapshot: Snapshot, new: Sequence[int]) -> None:
        """Stand where one stood that had these new tokens, as if nothing had happened. Inside of `decoding`."""
        ...
