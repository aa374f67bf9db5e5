"""Which inputs the matrices of a model see: X^T X of the activations in the dense forward pass, layer by layer.

NeuronMM, section 4.1: activations on a set of sentences, recorded in front of each matrix. Only their X^T X is kept.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from meshrt.models.config import Config
from meshrt.models.factors import ATTENTION, MLP
from meshrt.models.reference import Array, Project, Weights, layer, project
from meshrt.models.rope import cos_sin

# Matrices that share an input: it is recorded once.
RECORDED = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}


def layer_grams(
    config: Config, weights: Weights, sequences: Sequence[Sequence[int]], dtype: DTypeLike = np.float32
) -> Iterator[dict[str, NDArray[np.float64]]]:
    """Of one layer after the other: by matrix, X^T X / tokens [in, in] over all sequences of token ids.

    The forward pass is computed in `dtype`, the sums are float64. All layers are those of the given weights: what is
    done to one layer meanwhile does not show in the next.
    """
    w = {name: np.asarray(weight, dtype) for name, weight in weights.items()}
    longest = max(map(len, sequences))
    cos, sin = (table.astype(dtype) for table in cos_sin(config, np.arange(longest)))
    states: list[Array] = [w["model.embed_tokens.weight"][np.asarray(ids)] for ids in sequences]
    tokens = sum(map(len, sequences))
    for i in range(config.layers):
        sums: dict[str, Any] = {}
        record = recorder(sums)
        states = [layer(config, w, i, x, cos[: len(x)], sin[: len(x)], record) for x in states]
        names = [f"model.layers.{i}.self_attn.{name}" for name in ATTENTION]
        names += [f"model.layers.{i}.mlp.{name}" for name in MLP]
        yield {name: sums[recorded_name(name)] / tokens for name in names}


def recorder(sums: dict[str, Any]) -> Project:
    """A projection that adds X^T X of its input to `sums`, under the name of the first matrix with that input."""

    def recorded(w: Weights, name: str, x: Array) -> Array:
        if recorded_name(name) == name:
            wide = x.astype(np.float64)
            sums[name] = sums.get(name, 0.0) + wide.T @ wide
        return project(w, name, x)

    return recorded


def recorded_name(name: str) -> str:
    block, _, matrix = name.rpartition(".")
    return f"{block}.{RECORDED.get(matrix, matrix)}"
