"""How well a model predicts a text: exp of the mean of -log p over its tokens."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import DTypeLike

from meshrt.models.config import Config
from meshrt.models.errors import ModelError
from meshrt.models.reference import Weights, forward


def perplexity(
    config: Config,
    weights: Weights,
    sequences: Sequence[Sequence[int]],
    dtype: DTypeLike = np.float32,
    progress: Callable[[int, int], None] | None = None,
) -> float:
    """Per token, of every token after the first of each sequence of ids. `progress` hears how many are done, of all.

    The forward pass is computed in `dtype`, the sum in float64. Raises ModelError if there is nothing to predict.
    """
    nats, tokens = 0.0, 0
    for number, ids in enumerate(sequences):
        if len(ids) > 1:
            logits = forward(config, weights, ids[:-1], dtype).astype(np.float64)
            logits -= logits.max(axis=-1, keepdims=True)
            log_p = logits[np.arange(len(logits)), ids[1:]] - np.log(np.exp(logits).sum(axis=-1))
            nats, tokens = nats - float(log_p.sum()), tokens + len(logits)
        if progress:
            progress(number + 1, len(sequences))
    if not tokens:
        raise ModelError("there is no token to predict: the text is empty")
    return math.exp(nats / tokens)
