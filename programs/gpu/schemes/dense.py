"""The undecomposed model: Megatron's tensor parallelism (2019, https://arxiv.org/abs/1909.08053).

Columns of the first matrices, rows of the second one, and one reduce-sum of [tokens, hidden] after it.
"""

from collections.abc import Sequence

import numpy as np

from meshrt.gpu.gpus import Gpus
from meshrt.gpu.operations import add
from meshrt.models.folders.checkpoint import Index
from meshrt.models.matrix import Matrix
from meshrt.programs.gpu.cut import EVERY, Cutter, GpuWeight, product
from meshrt.programs.gpu.schemes.scheme import Arrays, Results, RunAhead
from meshrt.records import dataclass


@dataclass(frozen=True)
class DenseFirst:
    """This GPU's columns of all matrices, side by side [in, columns]; where each begins and ends."""

    w: GpuWeight
    bias: np.ndarray | None
    ends: tuple[int, ...]


@dataclass(frozen=True)
class DenseSecond:
    """This GPU's rows of the matrix [rows, out], and the whole bias, which comes after the sum."""

    w: GpuWeight
    bias: np.ndarray | None


def split(matrices: Sequence[Matrix]) -> bool:
    return True


def cut_first(cut: Cutter, matrices: Sequence[Matrix], columns: Sequence[Index]) -> DenseFirst:
    parts = [cut.whole(matrix, EVERY, index) for matrix, index in zip(matrices, columns, strict=True)]
    biases = [cut.bias(matrix, index) for matrix, index in zip(matrices, columns, strict=True)]
    ends = tuple(int(end) for end in np.cumsum([part.shape[1] for part in parts]))
    present = [bias for bias in biases if bias is not None]
    joined = (np.concatenate(present) if cut.gpu.payload else cut.gpu.shaped((ends[-1],))) if present else None
    return DenseFirst(cut.joined(parts), joined, ends)


def first(
    gpus: Gpus, shards: Sequence[DenseFirst], xs: Arrays, wanted: int, ahead: RunAhead = None
) -> list[Results]:  # fmt: skip
    """One product with all columns."""
    results = []
    for gpu, shard, x in zip(gpus.mine, shards, xs, strict=True):
        y = product(gpu, x, shard.w, shard.bias)
        values = [y[:, begin:end] for begin, end in zip((0, *shard.ends), shard.ends, strict=False)]
        results.append(Results(values, [None for _ in values]))
    return results


def cut_second(cut: Cutter, matrix: Matrix, rows: Index, split: bool) -> DenseSecond:
    return DenseSecond(cut.whole(matrix, rows, EVERY), cut.bias(matrix, EVERY))


def second(gpus: Gpus, shards: Sequence[DenseSecond], ys: Arrays) -> Arrays:
    """Partial results, and their sum over the GPUs."""
    parts = [product(gpu, y, shard.w) for gpu, shard, y in zip(gpus.mine, shards, ys, strict=True)]
    return biased(gpus, gpus.reduce_sum(parts), [shard.bias for shard in shards])


def biased(gpus: Gpus, sums: Arrays, biases: Sequence[np.ndarray | None]) -> Arrays:
    """Each GPU adds the whole bias to a sum."""
    return [
        total if bias is None else add(gpu, total, bias)
        for gpu, total, bias in zip(gpus.mine, sums, biases, strict=True)
    ]
