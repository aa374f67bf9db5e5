"""Which token comes next. Order and meaning of the filters as in transformers: temperature, then top-k, then top-p."""

import numpy as np
from numpy.typing import NDArray

from meshrt.models.errors import ModelError


def check_sampling(temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0) -> None:
    """Raises ModelError for a value out of range. To be called before a run, not after its first token."""
    if not 0 <= temperature < float("inf"):
        raise ModelError(f"temperature is {temperature}; it must be 0 (greedy) or positive")
    if top_k < 0:
        raise ModelError(f"top_k is {top_k}; it must be 0 (off) or positive")
    if not 0 < top_p <= 1:
        raise ModelError(f"top_p is {top_p}; it must be above 0 and at most 1 (off)")


def check_drawing(temperature: float, top_k: int, top_p: float, seed: int) -> None:
    """Raises ModelError for options of a run that the likeliest token has no use for."""
    if not temperature and (top_k, top_p, seed) != (0, 1.0, 0):
        raise ModelError(
            f"top_k is {top_k}, top_p {top_p}, seed {seed}: they are for tokens that are drawn, and at a temperature"
            " of 0 the likeliest is taken: give --temperature, or leave them away"
        )


def sample(
    logits: NDArray[np.float32],
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    rng: "np.random.Generator | None" = None,
) -> int:
    """Picks a token id by its logits [vocab]. Temperature 0 takes the greatest, of equal ones the lowest id.

    top_k keeps the k greatest and what equals the last of them. top_p keeps the fewest tokens whose probabilities
    add up to at least top_p. Draws one number from `rng`, none when greedy. Raises ModelError for a value out of range
    and for logits without a finite maximum: no token would be right then.
    """
    check_sampling(temperature, top_k, top_p)
    if not logits.size or not np.isfinite(np.max(logits)):
        raise ModelError(
            f"no token can be picked: {int((~np.isfinite(logits)).sum())} of {logits.size} logits not finite"
        )
    if temperature == 0:
        return int(np.argmax(logits))
    if rng is None:
        raise ModelError("sampling at a temperature above 0 needs a random generator")
    cumulative = np.cumsum(distribution(logits, temperature, top_k, top_p))
    # Scaled by the last sum, so that rounding never leaves the draw beyond it.
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def distribution(logits: NDArray[np.float32], temperature: float, top_k: int, top_p: float) -> NDArray[np.float64]:
    """The probabilities [vocab] that `sample` draws from; they add up to 1."""
    # From the greatest logit down: at a low temperature everything else goes to exp(-inf) = 0, and nothing overflows.
    with np.errstate(over="ignore"):
        scaled = (logits.astype(np.float64) - float(np.max(logits))) / temperature
    if 0 < top_k < scaled.size:
        scaled[scaled < np.partition(scaled, -top_k)[-top_k]] = -np.inf
    p = np.exp(scaled)
    p /= p.sum()
    if top_p < 1:
        order = np.argsort(-p, kind="stable")
        before = np.concatenate(([0.0], np.cumsum(p[order])[:-1]))
        p[order[before >= top_p]] = 0
        p /= p.sum()
    return p
