"""Sampling against its definition, written the slow way."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from meshrt.models.errors import ModelError
from meshrt.models.sampling import distribution, sample

LOGITS = arrays(np.float32, st.integers(1, 12), elements=st.floats(-20, 20, width=32))
TEMPERATURES = st.floats(0.05, 10)


def definition(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> list[float]:
    scores = [float(logit) / temperature for logit in logits]
    kept = set(range(len(scores)))
    if 0 < top_k < len(scores):
        kth = sorted(scores, reverse=True)[top_k - 1]
        kept = {i for i in kept if scores[i] >= kth}
    top = max(scores)
    mass = {i: math.exp(scores[i] - top) for i in kept}
    total = math.fsum(mass.values())
    p = {i: m / total for i, m in mass.items()}
    nucleus: list[int] = []
    for i in sorted(kept, key=lambda i: (-p[i], i)):
        nucleus.append(i)
        if math.fsum(p[j] for j in nucleus) >= top_p:
            break
    total = math.fsum(p[i] for i in nucleus)
    return [p[i] / total if i in nucleus else 0.0 for i in range(len(scores))]


@given(LOGITS, TEMPERATURES, st.integers(0, 14), st.sampled_from([0.05, 0.31, 0.5, 0.77, 0.93]))
def test_sampling_distribution_is_the_definition(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float
) -> None:
    p = distribution(logits, temperature, top_k, top_p)
    expected = definition(logits, temperature, top_k, top_p)
    # A set whose mass is top_p up to the last bit may have one token more or less.
    full = sorted(distribution(logits, temperature, top_k, 1.0), reverse=True)
    if np.min(np.abs(np.cumsum(full) - top_p)) > 1e-9:
        np.testing.assert_allclose(p, expected, rtol=1e-6, atol=1e-12)
    assert math.isclose(p.sum(), 1)


@given(LOGITS, TEMPERATURES, st.integers(0, 14), st.floats(0.01, 1.0), st.integers(0, 2**32))
def test_sampling_draws_only_what_is_kept(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, seed: int
) -> None:
    p = distribution(logits, temperature, top_k, top_p)
    options: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    token = sample(logits, rng=np.random.default_rng(seed), **options)
    assert p[token] > 0
    assert token == sample(logits, rng=np.random.default_rng(seed), **options)


@given(LOGITS)
def test_sampling_greedy_takes_the_first_maximum(logits: np.ndarray) -> None:
    token = sample(logits, temperature=0)
    assert token == min(i for i, logit in enumerate(logits) if logit == max(logits))


@given(LOGITS, st.integers(0, 2**32))
def test_sampling_top_k_of_one_and_tiny_temperature_are_greedy(logits: np.ndarray, seed: int) -> None:
    greedy = logits[sample(logits, temperature=0)]
    rng = np.random.default_rng(seed)
    assert logits[sample(logits, temperature=1.0, top_k=1, rng=rng)] == greedy
    assert logits[sample(logits, temperature=1e-300, rng=rng)] == greedy


def test_sampling_frequencies() -> None:
    logits, rng = np.log(np.array([1, 2, 3, 4], np.float32)), np.random.default_rng(0)
    counts = np.bincount([sample(logits, temperature=1.0, rng=rng) for _ in range(4000)], minlength=4)
    np.testing.assert_allclose(counts / 4000, [0.1, 0.2, 0.3, 0.4], atol=0.03)


def test_sampling_masked_logits_are_never_drawn() -> None:
    logits = np.array([-np.inf, 0, -np.inf, 0], np.float32)
    assert {sample(logits, temperature=5.0, rng=np.random.default_rng(i)) for i in range(50)} == {1, 3}


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": math.nan},
    ],
)
def test_sampling_refuses(options: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=next(iter(options))):
        sample(np.zeros(4, np.float32), **{"temperature": 1.0} | options, rng=np.random.default_rng(0))


@pytest.mark.parametrize("logits", [[], [math.nan, 1.0], [math.inf, 1.0], [-math.inf, -math.inf]])
def test_sampling_refuses_logits_without_a_maximum(logits: list[float]) -> None:
    with pytest.raises(ModelError, match="not finite"):
        sample(np.array(logits, np.float32), temperature=0)
