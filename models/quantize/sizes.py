"""How many bytes a quantized model takes: in our folders, and as the papers' codes store it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil, prod
from typing import Any

from meshrt.models.quantize.form import HEAD_BITS, Activations, GroupSize, Quantized, row_group
from meshrt.models.quantize.shapes import KINDS, MatrixShape, Shapes
from meshrt.records import dataclass

ITEM_BYTES = {"U8": 1, "F16": 2}


@dataclass(frozen=True)
class CodeScheme:
    """How all matrices of a model are quantized."""

    method: str
    bits: int
    group: GroupSize
    symmetric: bool
    compensator_bits: int
    activations: Activations | None = None
    head: bool = False  # in 8 bits

    @property
    def offset(self) -> bool:
        return self.method == "w4a8" and not self.symmetric

    def group_of(self, columns: int) -> int:
        """The weights that share a scale, of a matrix with so many inputs."""
        return row_group(columns) if self.group == "row" else self.group

    def form(self, rank: int, columns: int) -> Quantized:
        """Of a matrix with so many inputs."""
        return Quantized(
            self.bits, self.group_of(columns), self.symmetric, rank, self.compensator_bits, self.offset,
            self.activations,
        )  # fmt: skip


def matrix_bytes(scheme: CodeScheme, shape: MatrixShape, rank: int) -> int:
    """All of a matrix in a folder."""
    return bytes_of(scheme.form(rank, shape.columns).tensors(shape.name, shape.rows, shape.columns))


def head_bytes(scheme: CodeScheme, head: MatrixShape) -> int:
    """Of a head in 8 bits in a folder."""
    form = replace(scheme.form(0, head.columns), bits=HEAD_BITS)
    return bytes_of(form.tensors(head.name, head.rows, head.columns))


def compensator_bytes(scheme: CodeScheme, shape: MatrixShape, rank: int) -> int:
    return bytes_of(scheme.form(rank, shape.columns).compensator(shape.rows, shape.columns))


def published_codes_bits(scheme: CodeScheme, shape: MatrixShape) -> Fraction:
    """As HQQ and MiLo store it: ten values of 3 bits in 32, scale and zero of 16 bits a group. Of GPTQ: no bit wasted,
    a scale of 16 bits and a zero of `bits` a group, a group number of 32 bits for each input.

    Without what fills a matrix up to whole groups and words.
    """
    weights, group = shape.rows * shape.columns, shape.columns if scheme.group == "row" else scheme.group
    if scheme.method == "gptq":
        return weights * (scheme.bits + Fraction(16 + scheme.bits, group)) + 32 * shape.columns
    return weights * (_ten_in_32(scheme.bits) + Fraction(16 if scheme.symmetric else 32, group))


def published_compensator_bits(scheme: CodeScheme, shape: MatrixShape, rank: int) -> Fraction:
    """3 bits: one float32 scale a group. 8: a float32 scale and zero for each row of U and of V. 16: float16."""
    numbers = rank * (shape.rows + shape.columns)
    if scheme.compensator_bits == 8:
        return Fraction(8 * numbers + 64 * (shape.rows + rank) if rank else 0)
    if scheme.compensator_bits == 16:
        return Fraction(16 * numbers)
    return numbers * (_ten_in_32(scheme.compensator_bits) + Fraction(32, scheme.group_of(shape.columns)))


def count_alike(matrices: Sequence[MatrixShape], ranks: Mapping[str, int]) -> list[tuple[MatrixShape, int, int]]:
    """A matrix of each shape and rank, its rank, and how many are like it: a mixture has thousands."""
    shapes = {(shape.rows, shape.columns, ranks.get(shape.name, 0)): shape for shape in matrices}
    many = Counter((shape.rows, shape.columns, ranks.get(shape.name, 0)) for shape in matrices)
    return [(shape, key[2], many[key]) for key, shape in shapes.items()]


def sizes(shapes: Shapes, scheme: CodeScheme, ranks: Mapping[str, int]) -> dict[str, Any]:
    """The whole model's: what is stored (`bytes`), as published, and by kind of matrix.

    `bits_per_weight` is what a quantized weight takes, with its share of scales, zeros and compensators.
    """
    alike = count_alike(shapes.matrices, ranks)
    stored = sum(many * matrix_bytes(scheme, shape, rank) for shape, rank, many in alike)
    added = sum(many * compensator_bytes(scheme, shape, rank) for shape, rank, many in alike)
    published = sum(many * published_codes_bits(scheme, shape) for shape, _, many in alike)
    published_added = sum(many * published_compensator_bits(scheme, shape, rank) for shape, rank, many in alike)
    others = shapes.others * shapes.item_bytes
    if scheme.head:
        stored_head, head = head_bytes(scheme, shapes.head), shapes.head.rows * shapes.head.columns
        others += stored_head - (0 if shapes.tied else head * shapes.item_bytes)
    groups = [(kind, [shape for shape in shapes.matrices if shape.kind == kind]) for kind in KINDS]
    return {
        "quantized_weights": shapes.weights,
        "other_weights": shapes.others,
        "bytes_before": (shapes.weights + shapes.others) * shapes.item_bytes,
        "bytes": stored + others,
        "compensator_bytes": added,
        "published_bytes": ceil((published + published_added) / 8) + others,
        "published_compensator_bytes": ceil(published_added / 8),
        "bits_per_weight": 8 * stored / shapes.weights,
        "groups": [_group(kind, matrices, scheme, ranks) for kind, matrices in groups if matrices],
    }


def _group(kind: str, matrices: Sequence[MatrixShape], scheme: CodeScheme, ranks: Mapping[str, int]) -> dict[str, Any]:
    return {
        "name": kind,
        "matrices": len(matrices),
        "weights": sum(shape.rows * shape.columns for shape in matrices),
        "rank": sum(ranks.get(shape.name, 0) for shape in matrices) / len(matrices),
        "bytes": sum(many * matrix_bytes(scheme, shape, rank) for shape, rank, many in count_alike(matrices, ranks)),
    }


def _ten_in_32(bits: int) -> Fraction:
    return Fraction(32, 10) if bits == 3 else Fraction(bits)


def bytes_of(specs: Mapping[str, tuple[str, tuple[int, ...]]]) -> int:
    """Of tensors, by dtype and shape."""
    return sum(prod(shape) * ITEM_BYTES[dtype] for dtype, shape in specs.values())
