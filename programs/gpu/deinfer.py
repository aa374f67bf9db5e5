"""DeInfer (section 4.1, Figure 3): a decomposed model that exchanges what is small, in the low-rank space.

First sub-layer: the A of all matrices side by side, cut by columns; an all-gather of [tokens, sum of ranks]; then each
GPU multiplies the latents by its own columns of every B, in one batched product. It has its own heads, as without
decomposition, and no head is computed twice. Second sub-layer: A cut by rows, a reduce-sum of [tokens, rank], and B
whole on every GPU.

Matrices that are not decomposed are as in the dense scheme.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshrt.gpu.gpus import Gpus
from meshrt.gpu.operations import matmul, matmuls
from meshrt.models.checkpoint import Index
from meshrt.models.matrix import Matrix
from meshrt.programs.gpu import dense
from meshrt.programs.gpu.cut import EVERY, Cutter, shares
from meshrt.programs.gpu.scheme import Arrays, Results


@dataclass(frozen=True)
class First:
    """One GPU's part of the first matrices.

    `down` [in, share] has this GPU's columns of all A side by side, `shares` those of all GPUs, and `places` where each
    matrix is in what is gathered (None: not decomposed). `up` is B [rank, columns], or W [in, columns].
    """

    down: np.ndarray | None
    shares: tuple[int, ...]
    places: tuple[slice | None, ...]
    up: tuple[np.ndarray, ...]
    biases: tuple[np.ndarray | None, ...]


@dataclass(frozen=True)
class Second:
    """This GPU's rows of A [rows, rank], the whole of B [rank, out] and of the bias."""

    down: np.ndarray
    up: np.ndarray
    bias: np.ndarray | None


def split(matrices: Sequence[Matrix]) -> bool:
    return True


def cut_first(cut: Cutter, matrices: Sequence[Matrix], columns: Sequence[Index]) -> First:
    places: list[slice | None] = []
    end = 0
    for matrix in matrices:
        places.append(None if matrix.rank is None else slice(end, end + matrix.rank))
        end += matrix.rank or 0
    own = cut.own(end)
    downs = []
    for matrix, place in zip(matrices, places, strict=True):
        if place is not None and max(own.start, place.start) < min(own.stop, place.stop):
            here = slice(max(own.start, place.start) - place.start, min(own.stop, place.stop) - place.start)
            downs.append(cut.a(matrix, EVERY, here))
    nothing = cut.gpu.shaped((matrices[0].rows, 0))  # more GPUs than ranks
    ups = [
        cut.whole(matrix, EVERY, there) if place is None else cut.b(matrix, EVERY, there)
        for matrix, place, there in zip(matrices, places, columns, strict=True)
    ]
    biases = tuple(cut.bias(matrix, there) for matrix, there in zip(matrices, columns, strict=True))
    down = cut.joined(downs or [nothing]) if end else None
    return First(down, shares(cut.count, end), tuple(places), tuple(ups), biases)


def first(gpus: Gpus, shards: Sequence[First], xs: Arrays, wanted: int) -> list[Results]:
    """Down, all-gather, up: only of the first `wanted` matrices; the latents are those of all."""
    latents = xs
    if shards[0].down is not None:
        parts = []
        for gpu, own, x in zip(gpus.mine, shards, xs, strict=True):
            assert own.down is not None
            parts.append(matmul(gpu, x, own.down))
        latents = gpus.all_gather(parts, shards[0].shares)
    results = []
    for gpu, own, x, low in zip(gpus.mine, shards, xs, latents, strict=True):
        kept = [None if place is None else low[:, place] for place in own.places]
        inputs = [x if latent is None else latent for latent in kept]
        results.append(Results(matmuls(gpu, inputs[:wanted], own.up[:wanted], own.biases[:wanted]), kept))
    return results


def cut_second(cut: Cutter, matrix: Matrix, rows: Index, split: bool) -> Second | dense.Second:
    if matrix.rank is None:
        return dense.cut_second(cut, matrix, rows, split)
    return Second(cut.a(matrix, rows, EVERY), cut.b(matrix, EVERY, EVERY), cut.bias(matrix, EVERY))


def second(gpus: Gpus, shards: Sequence[Second | dense.Second], ys: Arrays) -> Arrays:
    """Down, reduce-sum, up."""
    pairs = [own for own in shards if isinstance(own, Second)]
    if not pairs:
        return dense.second(gpus, [own for own in shards if isinstance(own, dense.Second)], ys)
    parts = [matmul(gpu, y, own.down) for gpu, own, y in zip(gpus.mine, pairs, ys, strict=True)]
    return [
        matmul(gpu, low, own.up, own.bias)
        for gpu, own, low in zip(gpus.mine, pairs, gpus.reduce_sum(parts), strict=True)
    ]
