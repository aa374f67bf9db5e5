"""Rotary position embedding: how fast each pair of a head's components turns.

The half-split convention of Hugging Face: component i of a head turns with component i + head_dim/2.
Computed in float32 step by step as transformers does (`modeling_rope_utils.py`): at high positions the rounding of a
frequency is what decides the last digits of a cosine.
"""

import math

import numpy as np
from numpy.typing import NDArray

from meshrt.models.config import Config


def inverse_frequencies(config: Config, number: int = 0) -> NDArray[np.float32]:
    """Radians per position of each pair, float32 [head_dim/2], in the model's rotary embedding of that number."""
    rope = config.ropes[number]
    exponent = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    frequency: NDArray[np.float32] = np.float32(1) / np.float32(rope.theta) ** exponent
    if rope.kind == "linear":
        return frequency / np.float32(rope.factor)
    if rope.kind == "llama3":
        # Llama 3.1: slow turns are slowed down by `factor`, fast ones are kept, and between the two it is blended.
        wavelength = np.float32(2 * math.pi) / frequency
        slowed = frequency / np.float32(rope.factor)
        turns = np.float32(rope.original_max_positions) / wavelength
        keep = (turns - np.float32(rope.low_freq_factor)) / np.float32(rope.high_freq_factor - rope.low_freq_factor)
        keep = np.clip(keep, np.float32(0), np.float32(1))
        frequency = (1 - keep) * slowed + keep * frequency
    return frequency


def cos_sin(
    config: Config, positions: NDArray[np.integer], number: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines of the angles at the given positions, each float32 [len(positions), head_dim/2]."""
    angle = np.asarray(positions, np.float32)[:, None] * inverse_frequencies(config, number)
    return np.cos(angle), np.sin(angle)
