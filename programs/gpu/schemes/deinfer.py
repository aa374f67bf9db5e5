"""DeInfer (section 4.1, Figure 3): a decomposed model that exchanges what is small, in the low-rank space.

First sub-layer: the A of all matrices side by side, cut by columns; an all-gather of [tokens, sum of ranks]; then each
GPU multiplies the latents by its own columns of every B, in one batched product. It has its own heads, as without
decomposition, and no head is computed twice. Second sub-layer: A cut by rows, a reduce-sum of [tokens, rank], and B
whole on every GPU.

Matrices that are not decomposed are as in the dense scheme; quantized ones, of which none is, are its own.
"""

from collections.abc import Sequence

import numpy as np

from meshrt.gpu.gpus import Gpus
from meshrt.gpu.operations import matmul, matmuls
from meshrt.models.folders.checkpoint import Index
from meshrt.models.matrix import Matrix
from meshrt.models.quantize.form import Quantized
from meshrt.programs.gpu.cut import EVERY, Cutter, GpuWeight
from meshrt.programs.gpu.schemes import dense
from meshrt.programs.gpu.schemes.scheme import Arrays, Results, RunAhead
from meshrt.programs.shares import shares
from meshrt.records import dataclass


@dataclass(frozen=True)
class DeInferFirst:
    """One GPU's part of the first matrices.

    `down` [in, share] has this GPU's columns of all A side by side, `shares` those of all GPUs, and `spans` where each
    matrix is in what is gathered (None: not decomposed). `up` is B [rank, columns], or W [in, columns].
    """

    down: np.ndarray | None
    shares: tuple[int, ...]
    spans: tuple[slice | None, ...]
    up: tuple[np.ndarray, ...]
    biases: tuple[np.ndarray | None, ...]


@dataclass(frozen=True)
class DeInferSecond:
    """This GPU's rows of A [rows, rank], the whole of B [rank, out] and of the bias."""

    down: np.ndarray
    up: np.ndarray
    bias: np.ndarray | None


def split(matrices: Sequence[Matrix]) -> bool:
    return True


def cut_first(cut: Cutter, matrices: Sequence[Matrix], columns: Sequence[Index]) -> DeInferFirst | dense.DenseFirst:
    if isinstance(matrices[0].form, Quantized):
        return dense.cut_first(cut, matrices, columns)
    spans: list[slice | None] = []
    end = 0
    for matrix in matrices:
        spans.append(None if matrix.rank is None else slice(end, end + matrix.rank))
        end += matrix.rank or 0
    share = cut.own(end)
    downs = []
    for matrix, span in zip(matrices, spans, strict=True):
        if span is not None and max(share.start, span.start) < min(share.stop, span.stop):
            ranks = slice(max(share.start, span.start) - span.start, min(share.stop, span.stop) - span.start)
            downs.append(cut.a(matrix, EVERY, ranks))
    nothing = cut.gpu.shaped((matrices[0].rows, 0))  # more GPUs than ranks
    ups = [
        _array(cut.whole(matrix, EVERY, index)) if span is None else cut.b(matrix, EVERY, index)
        for matrix, span, index in zip(matrices, spans, columns, strict=True)
    ]
    biases = tuple(cut.bias(matrix, index) for matrix, index in zip(matrices, columns, strict=True))
    down = _array(cut.joined(downs or [nothing])) if end else None
    return DeInferFirst(down, shares(cut.count, end), tuple(spans), tuple(ups), biases)


def first(
    gpus: Gpus, shards: Sequence[DeInferFirst | dense.DenseFirst], xs: Arrays, wanted: int, ahead: RunAhead = None
) -> list[Results]:  # fmt: skip
    """Down, all-gather, up: only of the first `wanted` matrices; the latents are those of all."""
    latents, own = xs, [shard for shard in shards if isinstance(shard, DeInferFirst)]
    if not own:
        return dense.first(gpus, [shard for shard in shards if isinstance(shard, dense.DenseFirst)], xs, wanted)
    shards = own
    if shards[0].down is not None:
        latents = gpus.all_gather(own_latents(gpus, shards, xs), shards[0].shares)
    results = []
    for gpu, shard, x, low in zip(gpus.mine, shards, xs, latents, strict=True):
        matrix_latents, inputs = inner(shard, x, low)
        results.append(Results(matmuls(gpu, inputs[:wanted], shard.up[:wanted], shard.biases[:wanted]), matrix_latents))
    return results


def own_latents(gpus: Gpus, shards: Sequence[DeInferFirst], xs: Arrays) -> Arrays:
    """Each hosted GPU's share of the latents of all matrices, [tokens, share]."""
    parts = []
    for gpu, shard, x in zip(gpus.mine, shards, xs, strict=True):
        assert shard.down is not None
        parts.append(matmul(gpu, x, shard.down))
    return parts


def inner(shard: DeInferFirst, x: np.ndarray, low: np.ndarray) -> tuple[list[np.ndarray | None], list[np.ndarray]]:
    """Each matrix's latents, None where it has none, and what its second product takes."""
    latents = [None if span is None else low[:, span] for span in shard.spans]
    return latents, [x if latent is None else latent for latent in latents]


def cut_second(cut: Cutter, matrix: Matrix, rows: Index, split: bool) -> DeInferSecond | dense.DenseSecond:
    if matrix.rank is None:
        return dense.cut_second(cut, matrix, rows, split)
    return DeInferSecond(cut.a(matrix, rows, EVERY), cut.b(matrix, EVERY, EVERY), cut.bias(matrix, EVERY))


def second(gpus: Gpus, shards: Sequence[DeInferSecond | dense.DenseSecond], ys: Arrays) -> Arrays:
    """Down, reduce-sum, up."""
    pairs = [shard for shard in shards if isinstance(shard, DeInferSecond)]
    if not pairs:
        return dense.second(gpus, [shard for shard in shards if isinstance(shard, dense.DenseSecond)], ys)
    parts = [matmul(gpu, y, shard.down) for gpu, shard, y in zip(gpus.mine, pairs, ys, strict=True)]
    return [
        matmul(gpu, low, shard.up, shard.bias)
        for gpu, shard, low in zip(gpus.mine, pairs, gpus.reduce_sum(parts), strict=True)
    ]


def _array(weights: GpuWeight) -> np.ndarray:
    assert isinstance(weights, np.ndarray)  # where a matrix is quantized, all are
    return weights
