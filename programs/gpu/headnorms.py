"""Norms of queries and keys before they are turned, of each head or of all together, and the bounds that follow.

Of all heads together a GPU has some: it adds up the squares of its own, and a sum over the GPUs makes the norm's. A key
head that several GPUs hold is counted by the first of them.
"""

from collections.abc import Sequence

import numpy as np

from meshrt.gpu.gpu import Gpu
from meshrt.gpu.gpus import Gpus
from meshrt.programs.gpu import kernels
from meshrt.programs.gpu.schemes.scheme import Results
from meshrt.records import dataclass


@dataclass(frozen=True)
class HeadNorm:
    """`weight` of `size` numbers that make a norm, or of this GPU's part of them; then `counted` says which columns it
    adds up, 1 or 0."""

    weight: np.ndarray
    size: int
    counted: np.ndarray | None


def prepared(
    gpus: Gpus, norms: Sequence[tuple[HeadNorm | None, HeadNorm | None]], clip: float | None, eps: float,
    results: list[Results],
) -> list[Results]:  # fmt: skip
    """Q, K and V as the attention wants them."""
    if norms[0] != (None, None):
        results = _normed(gpus, norms, eps, results)
    if clip is not None:
        for gpu, result in zip(gpus.mine, results, strict=True):
            for x in result.values:
                gpu.launch(_clip, x, clip, cost=gpu.cost(2 * x.size, 2 * gpu.size(x)))
    return results


def _normed(
    gpus: Gpus, norms: Sequence[tuple[HeadNorm | None, HeadNorm | None]], eps: float, results: list[Results]
) -> list[Results]:
    pairs = [
        [(norm, x) for norm, x in zip(own, result.values, strict=False) if norm is not None]
        for own, result in zip(norms, results, strict=True)
    ]
    sums: list[np.ndarray | None] = [None for _ in pairs]
    if pairs[0][0][0].counted is not None:
        sums = [*gpus.reduce_sum([_squares(gpu, own) for gpu, own in zip(gpus.mine, pairs, strict=True)])]
    normed = []
    for gpu, own, result, total in zip(gpus.mine, pairs, results, sums, strict=True):
        values = [_scaled(gpu, norm, x, eps, total, at) for at, (norm, x) in enumerate(own)]
        normed.append(Results([*values, *result.values[len(values) :]], result.latents))
    return normed


def _squares(gpu: Gpu, pairs: Sequence[tuple[HeadNorm, np.ndarray]]) -> np.ndarray:
    """Sums of the squares that this GPU counts, [tokens, 2], of queries and keys."""
    out = gpu.new(len(pairs[0][1]), len(pairs))
    group = [(out[:, at], x, norm.counted, gpu.shaped(x.shape)) for at, (norm, x) in enumerate(pairs)]
    nbytes = sum(gpu.size(x) for _, x in pairs) + gpu.size(out)
    return gpu.launch(_square, out, group, cost=gpu.cost(2 * sum(x.size for _, x in pairs), nbytes))


def _scaled(gpu: Gpu, norm: HeadNorm, x: np.ndarray, eps: float, total: np.ndarray | None, at: int) -> np.ndarray:
    out, tokens = gpu.new(*x.shape), len(x)
    cost = gpu.cost(4 * x.size, 2 * gpu.size(x))
    if total is None:
        shape = (tokens, x.shape[1] // norm.size, norm.size)
        scale, wide = gpu.shaped((*shape[:2], 1)), gpu.shaped(shape)
        source, target = x.reshape(shape), out.reshape(shape)
        gpu.launch(kernels.rms_norm, target, source, norm.weight, eps, scale, wide, cost=cost)
        return out
    sums, wide = total[:, at : at + 1], gpu.shaped(x.shape)
    return gpu.launch(_divide, out, x, norm.weight, sums, norm.size, eps, gpu.shaped((tokens, 1)), wide, cost=cost)


def _square(_: np.ndarray, group: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]) -> None:
    for out, x, counted, wide in group:
        np.copyto(wide, x)
        np.multiply(wide, wide, wide)
        np.matmul(wide, counted, out)


def _divide(
    out: np.ndarray, x: np.ndarray, weight: np.ndarray, sums: np.ndarray, size: int, eps: float, scale: np.ndarray,
    wide: np.ndarray,
) -> None:  # fmt: skip
    np.divide(sums, size, scale)
    np.add(scale, eps, scale)
    np.sqrt(scale, scale)
    np.copyto(wide, scale)
    np.copyto(out, x)
    np.divide(out, wide, out)
    np.copyto(wide, weight)
    np.multiply(out, wide, out)


def _clip(x: np.ndarray, most: float) -> None:
    np.minimum(x, most, out=x)
    np.maximum(x, -most, out=x)
