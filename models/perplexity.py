"""How well a model predicts a text: exp of the mean of -log p over its tokens."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import DTypeLike

from meshrt.models.config import Config
from meshrt.models.errors import ModelError
from meshrt.models.reference import NamedArrays, Project, forward, project

Loss = tuple[float, int]  # -log p of a sequence's tokens, in nats, and their number


def perplexity(
    config: Config,
    weights: NamedArrays,
    sequences: Sequence[Sequence[int]],
    dtype: DTypeLike = np.float32,
    progress: Callable[[int, int], None] | None = None,
) -> float:
    """Per token, of every token after the first of each sequence of ids. `progress` hears how many are done, of all.

    The forward pass is computed in `dtype`, the sum in float64. Raises ModelError if there is nothing to predict.
    """
    return of_losses(losses(config, weights, sequences, dtype, progress))


def losses(
    config: Config,
    weights: NamedArrays,
    sequences: Sequence[Sequence[int]],
    dtype: DTypeLike = np.float32,
    progress: Callable[[int, int], None] | None = None,
    project: Project = project,
) -> list[Loss]:
    """What `perplexity` adds up, of each sequence that has a token after its first. ModelError if none has.

    `project` is what multiplies (models/reference.py).
    """
    per_sequence = []
    for number, ids in enumerate(sequences):
        if len(ids) > 1:
            with np.errstate(over="ignore", invalid="ignore"):  # what comes of that is refused
                logits = forward(config, weights, ids[:-1], dtype, project).astype(np.float64)
            if not np.isfinite(logits).all():
                raise ModelError("there is no perplexity: a logit is infinite or not a number")
            logits -= logits.max(axis=-1, keepdims=True)
            log_p = logits[np.arange(len(logits)), ids[1:]] - np.log(np.exp(logits).sum(axis=-1))
            per_sequence.append((-float(log_p.sum()), len(logits)))
        if progress:
            progress(number + 1, len(sequences))
    if not per_sequence:
        raise ModelError("there is no token to predict: the text is empty")
    return per_sequence


def of_losses(losses: Sequence[Loss]) -> float:
    """The perplexity of all these sequences."""
    nats = 0.0
    for loss, _ in losses:
        nats += loss
    return math.exp(nats / sum(tokens for _, tokens in losses))


def difference(before: Sequence[Loss], after: Sequence[Loss]) -> tuple[float, float | None]:
    """Nats a token that `after` loses more on the same sequences, and its standard error.

    Paired: the sequences differ far more than two models on one of them. Of a single one there is no error.
    """
    more = np.array([loss[0] - other[0] for loss, other in zip(after, before, strict=True)])
    tokens = np.array([n for _, n in before], float)
    mean, count = float(more.sum() / tokens.sum()), len(more)
    if count == 1:
        return mean, None
    spread = float(np.sum((more - mean * tokens) ** 2))  # of a ratio of two sums
    return mean, math.sqrt(spread * count / (count - 1)) / float(tokens.sum())
