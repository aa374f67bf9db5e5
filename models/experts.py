"""Which experts a token takes, and with what share: the one place where the reference and all machines learn it.

Softmax over all experts, the likeliest k of them, and these divided by their sum where the model says so: Mixtral
(2024, https://arxiv.org/abs/2401.04088), DeepSeekMoE (2024, https://arxiv.org/abs/2401.06066), Qwen2-MoE, OLMoE (2024,
https://arxiv.org/abs/2409.02060) and Qwen3-MoE do the same. The k likeliest first, then softmax over these k, is the
same as dividing by the sum.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def route(logits: NDArray[Any], top: int, renormalise: bool) -> tuple[NDArray[np.intp], NDArray[Any]]:
    """Logits [T, experts] of the router to the experts of each token and their shares, both [T, top].

    Experts are in order of their number, so that all who add up in this order get the same bits. Of experts that are
    equally likely, those of the lower numbers are taken. Shares are float32, or float64 of float64 logits: that is what
    models in 16 bits do as well.
    """
    logits = logits.astype(np.result_type(logits.dtype, np.float32), copy=False)
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    chosen = np.sort(np.argsort(-p, axis=-1, kind="stable")[:, :top], axis=-1)
    shares = np.take_along_axis(p, chosen, axis=-1)
    if renormalise:
        shares = shares / shares.sum(axis=-1, keepdims=True)
    return chosen, shares
