"""What any program launches on a GPU: products, sums, look-ups, with what each costs. Arrays are [rows, columns]."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt.gpu.gpu import Gpu


def matmul(gpu: Gpu, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """x [m, k] @ w [k, n] (+ bias [n]) -> [m, n]: one kernel."""
    out = gpu.new(x.shape[0], w.shape[1])
    nbytes = (x.size + w.size + out.size) * gpu.dtype.itemsize
    return gpu.launch(_matmul, out, x, w, bias, cost=gpu.cost(_flops(x, w), nbytes))


def matmuls(
    gpu: Gpu,
    xs: Sequence[np.ndarray],
    ws: Sequence[np.ndarray],
    biases: Sequence[np.ndarray | None],
    outs: Sequence[np.ndarray] | None = None,
) -> list[np.ndarray]:
    """Several products at once, of any sizes: one kernel, a grouped (or batched) matrix product; to `outs` if given."""
    results = [gpu.new(x.shape[0], w.shape[1]) for x, w in zip(xs, ws, strict=True)] if outs is None else [*outs]
    flops = sum(map(_flops, xs, ws))
    nbytes = sum(array.size for arrays in (xs, ws, results) for array in arrays) * gpu.dtype.itemsize
    group = tuple(zip(results, xs, ws, biases, strict=True))
    gpu.launch(_matmuls, results[0], group, cost=gpu.cost(flops, nbytes))
    return results


def add(gpu: Gpu, target: np.ndarray, other: np.ndarray) -> np.ndarray:
    """target += other."""
    cost = gpu.cost(target.size, (2 * target.size + other.size) * gpu.dtype.itemsize)
    return gpu.launch(_add, target, other, cost=cost)


def take(gpu: Gpu, table: np.ndarray, rows: np.ndarray, dtype: Any = None) -> np.ndarray:
    """Rows of a table [n, columns], int [m] -> [m, columns]. `dtype`: what it is counted in; None: the GPU's own."""
    out = gpu.new(len(rows), table.shape[1], dtype=dtype)
    return gpu.launch(_take, out, table, rows, cost=gpu.cost(0, 2 * gpu.size(out, dtype)))


def _flops(x: np.ndarray, w: np.ndarray) -> int:
    return int(2 * x.shape[0] * w.shape[0] * w.shape[1])


def _matmul(out: np.ndarray, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None) -> None:
    np.matmul(x, w, out)
    if bias is not None:
        np.add(out, bias, out)


def _matmuls(_: np.ndarray, group: tuple[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None], ...]) -> None:
    for out, x, w, bias in group:
        _matmul(out, x, w, bias)


def _add(target: np.ndarray, other: np.ndarray) -> None:
    np.add(target, other, target)


def _take(out: np.ndarray, table: np.ndarray, rows: np.ndarray) -> None:
    table.take(rows, 0, out, "clip")  # what raises takes a copy of `out` first
