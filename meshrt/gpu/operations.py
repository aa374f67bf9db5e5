"""What any program launches on a GPU: products, sums, look-ups, with what each costs. Arrays are [rows, columns]."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.gpu.codes import Factored, GpuCodes, GpuMatrix, Rebuilt, Thin, factor_bytes, room_for, room_for_factor
from meshrt.gpu.gpu import Cost, Gpu
from meshrt.records import dataclass

FEW_ROWS = 64  # of a look-up: so many are sooner looked at one by one than by NumPy


def matmul(gpu: Gpu, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """x [m, k] @ w [k, n] (+ bias [n]) -> [m, n]: one kernel. UsageError for other shapes."""
    _check_product(x, w)
    m, (k, n) = len(x), w.shape
    out = gpu.new(m, n)
    cost = gpu.cost_of_products(((m, k, n),), x.size + w.size + out.size)
    return gpu.launch(_matmul, out, x, w, bias, cost=cost)


def matmuls(
    gpu: Gpu,
    xs: Sequence[np.ndarray],
    ws: Sequence[np.ndarray],
    biases: Sequence[np.ndarray | None],
    outs: Sequence[np.ndarray] | None = None,
) -> list[np.ndarray]:
    """Several products at once, of any sizes: one kernel, a grouped (or batched) matrix product; to `outs` if given."""
    results = [gpu.new(x.shape[0], w.shape[1]) for x, w in zip(xs, ws, strict=True)] if outs is None else [*outs]
    group = tuple(zip(results, xs, ws, biases, strict=True))
    gpu.launch(_matmuls, results[0], group, cost=product_cost(gpu, xs, ws, results))
    return results


def int3_matmul(gpu: Gpu, x: np.ndarray, w: GpuCodes) -> np.ndarray:
    """x [m, k] times W^T [n, k] in 3 bits (or 2 to 8) -> [m, n]: one kernel, which reads the codes as they are."""
    out = gpu.new(len(x), w.rows)
    _fused(gpu, [x], [GpuMatrix(w, (), "apart")], [out], False)
    return out


def coded_matmuls(
    gpu: Gpu, xs: Sequence[np.ndarray], ws: Sequence[GpuMatrix], biases: Sequence[np.ndarray | None],
    outs: Sequence[np.ndarray] | None = None,
) -> list[np.ndarray]:  # fmt: skip
    """Products with matrices of codes and their compensators, as their `way` says; to `outs` if given.

    `fused`: one kernel for all, x V^T never leaves the chip. `apart`: one for the codes, and two grouped ones for the
    compensators. `unfused`, as PyTorch does without such a kernel: each matrix is written in the GPU's dtype, U V is
    added to it, and it is read again.
    """
    results = [gpu.new(len(x), w.shape[1]) for x, w in zip(xs, ws, strict=True)] if outs is None else [*outs]
    if ws[0].way == "unfused":
        for x, w, out in zip(xs, ws, results, strict=True):
            _unfused(gpu, x, w, out)
    else:
        _fused(gpu, xs, ws, results, ws[0].way == "fused")
        if ws[0].way == "apart":
            _compensate(gpu, xs, ws, results)
    for out, bias in zip(results, biases, strict=True):
        if bias is not None:
            add(gpu, out, bias)
    return results


def add(gpu: Gpu, target: np.ndarray, other: np.ndarray) -> np.ndarray:
    """target += other, of the same shape or repeated along it. UsageError for other shapes."""
    if other.shape != target.shape:
        _check_repeats(target.shape, other.shape)
    cost = gpu.cost(target.size, (2 * target.size + other.size) * gpu.dtype.itemsize)
    return gpu.launch(_add, target, other, cost=cost)


def take(gpu: Gpu, table: np.ndarray, rows: np.ndarray, dtype: Any = None) -> np.ndarray:
    """Rows of a table [n, columns], int [m] -> [m, columns]. `dtype`: what it is counted in; None: the GPU's own.
    UsageError for a row that the table has not, negative ones too."""
    out = gpu.new(len(rows), table.shape[1], dtype=dtype)
    return gpu.launch(_take, out, table, rows, cost=gpu.cost(0, 2 * gpu.size(out, dtype)))


def product_cost(
    gpu: Gpu, xs: Sequence[np.ndarray], ws: Sequence[np.ndarray], outs: Sequence[np.ndarray]
) -> Cost:  # fmt: skip
    """What `matmuls` of these costs."""
    shapes = tuple((len(x), *w.shape) for x, w in zip(xs, ws, strict=True))
    numbers = 0
    for x, w, out in zip(xs, ws, outs, strict=True):
        _check_product(x, w)
        numbers += x.size + w.size + out.size
    return gpu.cost_of_products(shapes, numbers)


def _check_product(x: np.ndarray, w: np.ndarray) -> None:
    """UsageError for shapes that make no product: without numbers nothing else would fail."""
    if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[0]:
        raise UsageError(f"a product of {[*x.shape]} and {[*w.shape]}: give [m, k] and [k, n]")


def _check_repeats(target: tuple[int, ...], other: tuple[int, ...]) -> None:
    """UsageError where NumPy would not repeat one shape along another."""
    if len(other) > len(target) or any(
        n not in (1, size) for n, size in zip(reversed(other), reversed(target), strict=False)
    ):
        raise UsageError(f"{[*other]} added to {[*target]}: give an array of that shape, or one that repeats along it")


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
    few = rows.size <= FEW_ROWS
    for row in rows.ravel().tolist() if few else (rows.min(initial=0), rows.max(initial=0)):
        if row and not 0 < row < len(table):
            raise UsageError(f"row {row} of a table {[*table.shape]}: give rows from 0 to {len(table) - 1}")
    table.take(rows, 0, out, "clip")  # what raises takes a copy of `out` first


# ---- products with codes


@dataclass(frozen=True)
class _Pair:
    """Room for the factors of a compensator and what comes of them: x V^T [m, rank], and that times U^T [m, rows]."""

    thin: Thin
    u: Factored
    v: Factored
    low: np.ndarray
    more: np.ndarray  # [2, m, rows]


def _room(gpu: Gpu, x: np.ndarray, thin: Thin) -> _Pair:
    more = gpu.shaped((2, len(x), thin.rows.stop - thin.rows.start))
    return _Pair(
        thin, room_for_factor(thin.u), room_for_factor(thin.v), gpu.shaped((len(x), thin.rank)), more
    )  # fmt: skip


def _fused(gpu: Gpu, xs: Sequence[np.ndarray], ws: Sequence[GpuMatrix], outs: Sequence[np.ndarray], thin: bool) -> None:
    """One kernel for all products with codes, and with their compensators if `thin`."""
    flops = nbytes = dense = 0
    for x, w, out in zip(xs, ws, outs, strict=True):
        flops += 2 * len(x) * w.codes.rows * w.codes.columns
        nbytes += w.codes.nbytes + gpu.size(x) + gpu.size(out)
        dense += w.codes.rows * w.codes.columns * gpu.dtype.itemsize
        for compensator in w.thin if thin else ():
            flops += _thin_flops(x, compensator)
            nbytes += compensator.nbytes
    group = [
        (out, x, room_for(w.codes), tuple(_room(gpu, x, compensator) for compensator in w.thin) if thin else ())
        for x, w, out in zip(xs, ws, outs, strict=True) if gpu.payload
    ]  # fmt: skip
    gpu.launch(_coded, outs[0], group, cost=gpu.cost(flops, nbytes, {"dequantized_bytes": dense}))


def _thin_flops(x: np.ndarray, compensator: Thin) -> int:
    return int(2 * len(x) * compensator.rank * (x.shape[1] + compensator.rows.stop - compensator.rows.start))


def _compensate(gpu: Gpu, xs: Sequence[np.ndarray], ws: Sequence[GpuMatrix], outs: Sequence[np.ndarray]) -> None:
    """x V^T of all products in one kernel, and what U makes of them added to the results in another."""
    lows, pairs = [], []
    flops, nbytes, more_flops, more_bytes = 0, 0, 0, 0
    for x, w, out in zip(xs, ws, outs, strict=True):
        if not w.thin:
            continue
        ends = [*accumulate((compensator.rank for compensator in w.thin), initial=0)]
        low = gpu.new(len(x), ends[-1])
        nbytes += gpu.size(x)
        for compensator, (begin, end) in zip(w.thin, pairwise(ends), strict=True):
            part, target = low[:, begin:end], out[:, compensator.rows]
            flops += 2 * x.size * compensator.rank
            nbytes += factor_bytes(compensator.v) + gpu.size(part)
            more_flops += 2 * target.size * compensator.rank
            more_bytes += factor_bytes(compensator.u) + gpu.size(part) + 2 * gpu.size(target)
            if gpu.payload:
                lows.append((part, x, room_for_factor(compensator.v)))
                pairs.append((target, part, room_for_factor(compensator.u), gpu.shaped((2, *target.shape))))
    if flops:
        gpu.launch(_low, outs[0], lows, cost=gpu.cost(flops, nbytes))
        gpu.launch(_raise, outs[0], pairs, cost=gpu.cost(more_flops, more_bytes))


def _unfused(gpu: Gpu, x: np.ndarray, w: GpuMatrix, out: np.ndarray) -> None:
    dense = gpu.new(w.codes.rows, w.codes.columns)
    size = gpu.size(dense)
    room = room_for(w.codes) if gpu.payload else None
    cost = gpu.cost(2 * dense.size, w.codes.nbytes + size, {"dequantized_bytes": size})
    gpu.launch(_rebuild, dense, room, cost=cost)
    for compensator in w.thin:
        part = dense[compensator.rows]
        factors = (room_for_factor(compensator.u), room_for_factor(compensator.v)) if gpu.payload else ()
        cost = gpu.cost(2 * part.size * compensator.rank, compensator.nbytes + 2 * gpu.size(part))
        gpu.launch(_add_product, part, *factors, gpu.shaped(part.shape), cost=cost)
    cost = gpu.cost(2 * len(x) * dense.size, gpu.size(x) + size + gpu.size(out))
    gpu.launch(_matmul, out, x, dense.T, None, cost=cost)


def _coded(_: np.ndarray, group: Sequence[tuple[np.ndarray, np.ndarray, Rebuilt, Sequence[_Pair]]]) -> None:
    for out, x, room, pairs in group:
        for rows, block in room.blocks():
            np.matmul(x, block.T, out[:, rows])
        for pair in pairs:
            np.matmul(x, pair.v.whole().T, pair.low)
            _add_times(out[:, pair.thin.rows], pair.low, pair.u, pair.more)


def _low(_: np.ndarray, group: Sequence[tuple[np.ndarray, np.ndarray, Factored]]) -> None:
    for low, x, v in group:
        np.matmul(x, v.whole().T, low)


def _raise(_: np.ndarray, group: Sequence[tuple[np.ndarray, np.ndarray, Factored, np.ndarray]]) -> None:
    for out, low, u, more in group:
        _add_times(out, low, u, more)


def _add_times(out: np.ndarray, low: np.ndarray, u: Factored, more: np.ndarray) -> None:
    """out += low U^T. Of columns that are a part of an array NumPy's sum would take a buffer of its own."""
    np.matmul(low, u.whole().T, more[0])
    np.copyto(more[1], out)
    np.add(more[0], more[1], more[0])
    np.copyto(out, more[0])


def _rebuild(dense: np.ndarray, room: Rebuilt) -> None:
    for rows, block in room.blocks():
        np.copyto(dense[rows], block)


def _add_product(dense: np.ndarray, u: Factored, v: Factored, more: np.ndarray) -> None:
    np.matmul(u.whole(), v.whole(), more)
    np.add(dense, more, dense)
