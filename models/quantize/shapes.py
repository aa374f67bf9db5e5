"""The matrices of a model by shape and kind: what is quantized, and what rank policies and sizes go by.

Routers and the gates of shared experts are small and stay as they are (models/matrix.py, `routing`).
"""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from meshrt.models.config import Config, read_config
from meshrt.models.folders.checkpoint import expected_shapes
from meshrt.models.matrix import Layer, Matrix, Mlp
from meshrt.records import dataclass

MatrixKind = Literal["attention", "mlp", "shared", "expert", "head"]
KINDS: tuple[MatrixKind, ...] = ("attention", "mlp", "shared", "expert")  # of the layers' matrices
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class MatrixShape:
    """A matrix [rows, columns], out and in. `expert` is the name of its expert, None: every token goes through it."""

    name: str
    rows: int
    columns: int
    kind: MatrixKind
    expert: str | None = None


@dataclass(frozen=True)
class Shapes:
    """A model's matrices, its other weights (embedding, head, norms, biases, routers) and how many bytes each takes.

    `head` is one of the others; where it is `tied`, it is the embedding.
    """

    matrices: tuple[MatrixShape, ...]
    others: int
    item_bytes: int
    head: MatrixShape
    tied: bool

    @property
    def weights(self) -> int:
        return sum(shape.rows * shape.columns for shape in self.matrices)


def read_shapes(folder: Path) -> Shapes:
    """Those of a model folder, which needs no weights. Raises ModelError."""
    return shapes_of(read_config(folder))


def shapes_of(config: Config) -> Shapes:
    """Those of a model, in order of its layers."""
    matrices = tuple(shape for number in range(config.layers) for shape in _of_layer(config.layer(number)))
    others = sum(map(math.prod, expected_shapes(config).values())) - sum(
        shape.rows * shape.columns for shape in matrices
    )
    head = MatrixShape(config.head_matrix.name, config.vocab_size, config.hidden_size, "head")
    return Shapes(matrices, others, ITEM_BYTES[config.dtype or "float32"], head, config.tie_word_embeddings)


def _of_layer(layer: Layer) -> Iterator[MatrixShape]:
    def shapes(matrices: Iterable[Matrix], kind: MatrixKind, expert: str | None = None) -> Iterator[MatrixShape]:
        return (MatrixShape(matrix.name, matrix.columns, matrix.rows, kind, expert) for matrix in matrices)

    yield from shapes(layer.attention, "attention")
    if isinstance(layer.mlp, Mlp):
        yield from shapes(layer.mlp.matrices(), "mlp")
        return
    for expert in layer.mlp.experts:
        yield from shapes(expert.matrices(), "expert", expert.up.name.rpartition(".")[0])
    if layer.mlp.shared is not None:
        yield from shapes(layer.mlp.shared.matrices(), "shared")
