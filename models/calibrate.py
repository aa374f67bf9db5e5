"""Which inputs the matrices of a model see: X^T X of the activations in the dense forward pass, layer by layer.

The matrices of an expert see the tokens that are routed to it, and no others: how many, `expert_tokens` counts.
NeuronMM, section 4.1: activations on a set of sentences, recorded in front of each matrix. Only their X^T X is kept.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from meshrt.models.config import Config
from meshrt.models.family import family_of
from meshrt.models.matrix import Experts, Layer, Matrix
from meshrt.models.reference import Array, NamedArrays, Project, embed, layer, project, rotary_tables


def layer_grams(
    config: Config, weights: NamedArrays, sequences: Sequence[Sequence[int]], dtype: DTypeLike = np.float32
) -> Iterator[dict[str, NDArray[np.float64]]]:
    """Of one layer after the other: by matrix, X^T X / tokens [in, in] over all sequences of token ids.

    Tokens are those that came to the matrix; where none did, all is zero.
    The forward pass is computed in `dtype`, the sums are float64. All layers are those of the given weights: what is
    done to one layer meanwhile does not show in the next.
    """
    sums: dict[str, Any] = {}
    tokens: dict[str, int] = {}

    def begin(layer: Layer) -> Project:
        sums.clear()
        sums.update({together[0].name: np.zeros(2 * (together[0].rows,)) for together in layer.inputs()})
        tokens.clear()
        tokens.update(dict.fromkeys(sums, 0))
        return recorder(sums, tokens)

    for each in _layers(config, weights, sequences, dtype, begin):
        grams = {name: total / max(tokens[name], 1) for name, total in sums.items()}
        yield {matrix.name: grams[together[0].name] for together in each.inputs() for matrix in together}


def expert_tokens(
    config: Config, weights: NamedArrays, sequences: Sequence[Sequence[int]], dtype: DTypeLike = np.float32
) -> dict[str, int]:
    """How many tokens of all sequences come to each expert, by its name, such as `..mlp.experts.3`.

    So the sum over a layer is its number of tokens times the experts that a token takes.
    """
    first: dict[str, str] = {}  # the names of the experts by that of one matrix that multiplies what comes in
    for number in range(config.layers):
        mlp = config.layer(number).mlp
        if isinstance(mlp, Experts):
            first |= {expert.up.name: expert.up.name.rpartition(".")[0] for expert in mlp.experts}
    counts = dict.fromkeys(first.values(), 0)

    def counted(w: NamedArrays, matrix: Matrix, x: Array) -> Array:
        if matrix.name in first:
            counts[first[matrix.name]] += len(x)
        return project(w, matrix, x)

    for _ in _layers(config, weights, sequences, dtype, lambda layer: counted) if counts else ():
        pass
    return counts


def _layers(
    config: Config, weights: NamedArrays, sequences: Sequence[Sequence[int]], dtype: DTypeLike,
    begin: Callable[[Layer], Project],
) -> Iterator[Layer]:  # fmt: skip
    """The layers, each after all sequences have gone through it with the projection that `begin` gives of it."""
    family = family_of(config)
    w = {name: np.asarray(weight, dtype) for name, weight in weights.items()}
    turns = rotary_tables(family, max(map(len, sequences)), dtype)
    states: list[Array] = [embed(family, w, np.asarray(ids)) for ids in sequences]
    for each in family.layers:
        record = begin(each)
        states = [
            layer(family, w, each, x, tuple((cos[: len(x)], sin[: len(x)]) for cos, sin in turns), record)
            for x in states
        ]
        yield each


def recorder(sums: dict[str, Any], tokens: dict[str, int]) -> Project:
    """A projection that adds X^T X of its input to `sums`, and its rows to `tokens`, where they have the matrix: the
    first with that input."""

    def recorded(w: NamedArrays, matrix: Matrix, x: Array) -> Array:
        if matrix.name in sums:
            wide = x.astype(np.float64)
            sums[matrix.name] = sums[matrix.name] + wide.T @ wide
            tokens[matrix.name] += len(x)
        return project(w, matrix, x)

    return recorded
