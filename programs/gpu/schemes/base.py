"""A decomposed model as tensor parallelism without second thoughts has it (DeInfer, section 2.2, Figure 2b).

Of every pair A B, each GPU has columns of A and the rows of B that go with them, and the partial results in the full
space are summed: one reduce-sum a pair, seven a layer of LLaMA. After those of Q, K and V every GPU has all of them, so
that every GPU computes every attention head and keeps the whole cache.

A matrix that is not decomposed is cut by columns (first) or rows (second). If all of a sub-layer's first matrices are
so, their results stay where they are; else they are gathered, since the others are everywhere.
"""

from collections.abc import Sequence

import numpy as np

from meshrt.gpu.gpu import Gpu
from meshrt.gpu.gpus import Gpus
from meshrt.gpu.operations import matmul
from meshrt.models.folders.checkpoint import Index
from meshrt.models.matrix import Matrix
from meshrt.programs.gpu.cut import EVERY, Cutter, GpuWeight, product
from meshrt.programs.gpu.schemes.dense import biased
from meshrt.programs.gpu.schemes.scheme import Arrays, Results, RunAhead
from meshrt.programs.shares import shares
from meshrt.records import dataclass


@dataclass(frozen=True)
class FactorShards:
    """A's columns [in, share of the rank] and B's rows [share, out]."""

    a: np.ndarray
    b: np.ndarray


@dataclass(frozen=True)
class Columns:
    """Columns of a matrix that is not decomposed; `sizes` of all GPUs if they are to be gathered."""

    w: GpuWeight
    sizes: tuple[int, ...] | None


@dataclass(frozen=True)
class BaseFirst:
    """The matrices as one GPU has them, and their biases, of the columns that it ends up with."""

    matrices: tuple[FactorShards | Columns, ...]
    biases: tuple[np.ndarray | None, ...]


@dataclass(frozen=True)
class BaseSecond:
    """The matrix as one GPU has it; its `rows` of an input that every GPU has; `sizes` of inputs to be gathered."""

    matrix: FactorShards | GpuWeight
    bias: np.ndarray | None
    rows: slice | None
    sizes: tuple[int, ...] | None


def split(matrices: Sequence[Matrix]) -> bool:
    return all(matrix.rank is None for matrix in matrices)


def cut_first(cut: Cutter, matrices: Sequence[Matrix], columns: Sequence[Index]) -> BaseFirst:
    if split(matrices):
        pairs = [*zip(matrices, columns, strict=True)]
        return BaseFirst(
            tuple(Columns(cut.whole(matrix, EVERY, index), None) for matrix, index in pairs),
            tuple(cut.bias(matrix, index) for matrix, index in pairs),
        )

    def cut_one(matrix: Matrix) -> FactorShards | Columns:
        if matrix.rank is not None:
            return _pair(cut, matrix)
        sizes = shares(cut.count, matrix.columns)
        return Columns(cut.whole(matrix, EVERY, cut.own(matrix.columns)), sizes)

    return BaseFirst(tuple(map(cut_one, matrices)), tuple(cut.bias(matrix, EVERY) for matrix in matrices))


def _pair(cut: Cutter, matrix: Matrix) -> FactorShards:
    assert matrix.rank is not None
    share = cut.own(matrix.rank)
    return FactorShards(cut.a(matrix, EVERY, share), cut.b(matrix, share, EVERY))


def first(
    gpus: Gpus, shards: Sequence[BaseFirst], xs: Arrays, wanted: int, ahead: RunAhead = None
) -> list[Results]:  # fmt: skip
    """Matrix by matrix: x A B, and the sum over the GPUs."""
    results = [Results([], []) for _ in shards]
    for at in range(len(shards[0].matrices)):
        products = _product(gpus, [shard.matrices[at] for shard in shards], xs)
        for result, value in zip(results, biased(gpus, products, [shard.biases[at] for shard in shards]), strict=True):
            result.values.append(value)
            result.latents.append(None)
    return results


def _product(gpus: Gpus, matrices: Sequence[FactorShards | Columns], xs: Arrays) -> Arrays:
    parts = []
    for gpu, weights, x in zip(gpus.mine, matrices, xs, strict=True):
        parts.append(_through(gpu, weights, x) if isinstance(weights, FactorShards) else product(gpu, x, weights.w))
    matrix = matrices[0]
    if isinstance(matrix, FactorShards):
        return gpus.reduce_sum(parts)
    return parts if matrix.sizes is None else gpus.all_gather(parts, matrix.sizes)


def _through(gpu: Gpu, pair: FactorShards, x: np.ndarray) -> np.ndarray:
    return matmul(gpu, matmul(gpu, x, pair.a), pair.b)


def cut_second(cut: Cutter, matrix: Matrix, rows: Index, split: bool) -> BaseSecond:
    bias = cut.bias(matrix, EVERY)
    if matrix.rank is not None:
        return BaseSecond(_pair(cut, matrix), bias, None, shares(cut.count, matrix.rows) if split else None)
    share = cut.own(matrix.rows)
    return BaseSecond(cut.whole(matrix, share, EVERY), bias, None if split else share, None)


def second(gpus: Gpus, shards: Sequence[BaseSecond], ys: Arrays) -> Arrays:
    """Its input where it is needed, then as in `first`."""
    sizes = shards[0].sizes
    if sizes is not None:
        ys = gpus.all_gather(ys, sizes)
    parts = []
    for gpu, shard, y in zip(gpus.mine, shards, ys, strict=True):
        if isinstance(shard.matrix, FactorShards):
            parts.append(_through(gpu, shard.matrix, y))
        else:
            parts.append(product(gpu, y if shard.rows is None else y[:, shard.rows], shard.matrix))
    return biased(gpus, gpus.reduce_sum(parts), [shard.bias for shard in shards])
