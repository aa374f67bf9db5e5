"""Rotary frequencies against the formulas of transformers, written out in float64."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from random_models import BASE, LLAMA3

from meshrt.models.config import Config
from meshrt.models.rope import cos_sin, inverse_frequencies

HEAD_DIM = 16
PLAIN = {"rope_type": "default", "rope_theta": 500.0}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
SCALED = {"rope_type": "llama3"} | LLAMA3


def plain_frequency(i: int) -> float:
    return math.pow(500.0, -2 * i / HEAD_DIM)


def linear_frequency(i: int) -> float:
    return plain_frequency(i) / 4.0


def llama3_frequency(i: int) -> float:
    """As the Llama 3.1 code has it: three cases by wavelength."""
    frequency = plain_frequency(i)
    wavelength, original = 2 * math.pi / frequency, LLAMA3["original_max_position_embeddings"]
    low, high, factor = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"], LLAMA3["factor"]
    if wavelength < original / high:
        return frequency
    if wavelength > original / low:
        return frequency / factor
    smooth = (original / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


@pytest.mark.parametrize(
    ("parameters", "formula"), [(PLAIN, plain_frequency), (LINEAR, linear_frequency), (SCALED, llama3_frequency)]
)
def test_rope_frequencies(parameters: dict[str, Any], formula: Callable[[int], float]) -> None:
    config = Config.from_dict(BASE | {"head_dim": HEAD_DIM, "rope_parameters": parameters})
    expected = [formula(i) for i in range(HEAD_DIM // 2)]
    assert inverse_frequencies(config).dtype == np.float32
    np.testing.assert_allclose(inverse_frequencies(config), expected, rtol=1e-6)


def test_rope_llama3_case_has_all_three_bands() -> None:
    ratios = {round(llama3_frequency(i) / plain_frequency(i), 6) for i in range(HEAD_DIM // 2)}
    assert {1.0, 0.125} < ratios


def test_rope_tables_belong_to_their_positions() -> None:
    config = Config.from_dict(BASE | {"head_dim": HEAD_DIM})
    cos, sin = cos_sin(config, np.array([0, 5, 100]))
    assert cos.shape == sin.shape == (3, HEAD_DIM // 2)
    assert cos.dtype == sin.dtype == np.float32
    np.testing.assert_array_equal(cos[0], 1)
    np.testing.assert_allclose(cos**2 + sin**2, 1, rtol=1e-6)
    np.testing.assert_array_equal(cos[1], cos_sin(config, np.arange(6))[0][5])
    np.testing.assert_allclose(sin[2, 0], math.sin(100), rtol=1e-6)
