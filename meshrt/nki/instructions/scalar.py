"""Instructions of the scalar engine, and selections. n: elements in each partition."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.nki.constants import reduce_cmd as cmd
from meshrt.nki.dtypes import promoted, tile_dtype
from meshrt.nki.generation import both
from meshrt.nki.instructions.emit import emit
from meshrt.nki.instructions.operands import check_number, free, operand, spread
from meshrt.nki.instructions.ops import cut_to, resolve
from meshrt.nki.instructions.registers import gathering
from meshrt.nki.session import session
from meshrt.nki.tensors.tensor import Tensor


def _activated(name: str, op: Any, data: Tensor, bias: Any, scale: Any) -> Any:
    function = resolve(name, op, 1)
    factor = operand("scale", scale, data)
    shift = None if bias is None else operand("bias", bias, data)
    tiles, arrays = spread([factor, shift], data)

    def compute(x: np.ndarray, *numbers: np.ndarray) -> np.ndarray:
        a, b = arrays(*numbers)
        if isinstance(factor, Tensor) or factor != 1:
            x = x * a
        return np.asarray(function(x if b is None else x + b))

    return [data.settle(), *tiles], compute


@both(tensors=1)
def activation(
    dst: Tensor | None, op: Any, data: Tensor, bias: Any = None, scale: Any = 1.0, reduce_op: Any = None,
    reduce_res: Any = None, reduce_cmd: Any = cmd.idle, *, dtype: Any = None, mask: Any = None,
) -> Any:  # fmt: skip
    """op(data * scale + bias): n cycles. reduce_op gathers its sums along the free axes in the engine's registers, and
    reduce_res takes these, 64 cycles more (registers.py).
    """
    core = session().core
    reads, compute = _activated("activation", op, data, bias, scale)
    if reduce_res is not None and reduce_cmd is cmd.idle and reduce_op is None:
        raise UsageError("activation: reduce_res goes with reduce_op and reduce_cmd")
    sums = gathering("activation", core.scalar, data, _added(reduce_op), reduce_cmd, reduce_res, mask)
    out = dst.dtype if dst is not None else tile_dtype(dtype, data.dtype)
    result = emit("activation", core.scalar, free, reads, data.shape, out, sums.beside(cut_to(out, (op,), compute)),
                  dst=dst, mask=mask)  # fmt: skip
    return sums.then(result, dst)


@both(tensors=1)
def activation_reduce(
    dst: Tensor | None, op: Any, data: Tensor, reduce_op: Any, reduce_res: Tensor, bias: Any = None, scale: Any = 1.0,
    *, dtype: Any = None, mask: Any = None,
) -> Any:  # fmt: skip
    """activation, and reduce_op along the free axes of its result into reduce_res [p, 1]: n + 64 cycles."""
    core = session().core
    reads, compute = _activated("activation_reduce", op, data, bias, scale)
    sums = gathering("activation_reduce", core.scalar, data, _added(reduce_op), cmd.reset_reduce, reduce_res, mask)
    out = dst.dtype if dst is not None else tile_dtype(dtype, data.dtype)
    result = emit("activation_reduce", core.scalar, free, reads, data.shape, out, sums.beside(compute), dst=dst,
                  mask=mask)  # fmt: skip
    return sums.then(result, dst)


def _added(reduce_op: Any) -> Any:
    return np.add if reduce_op is None else reduce_op


@both(tensors=2)
def reciprocal(dst: Tensor | None, data: Tensor, *, dtype: Any = None, mask: Any = None, engine: Any = None) -> Any:
    """1 / data, on the vector engine: 8 n cycles."""
    out = dst.dtype if dst is not None else tile_dtype(dtype, data.dtype)
    return emit("reciprocal", session().core.vector, lambda left: 8 * free(left), [data.settle()], data.shape, out,
                lambda x: np.float32(1) / x, dst=dst, mask=mask)  # fmt: skip


def affine_select(*args: Any, **kwargs: Any) -> Any:
    """A tile where an affine comparison of indices holds, a value elsewhere, on GpSimd: 150 + n cycles.

    Old: (pred, on_true_tile, on_false_value), pred a comparison of index arrays. New: (dst, pattern,
    channel_multiplier, on_true_tile, on_false_value, cmp_op=nl.equal, offset=0), which compares
    offset + partition * channel_multiplier + sum(i * step) over the pattern [[step, size], ...] with 0.
    """
    if "pred" in kwargs or (args and not isinstance(args[0], Tensor)):
        return _select_old(*args, **kwargs)
    return _select_new(*args, **kwargs)


def _select_old(pred: Any, on_true_tile: Tensor, on_false_value: float, *, mask: Any = None, dtype: Any = None) -> Any:
    return _selected(None, np.asarray(pred, np.bool_), on_true_tile, on_false_value, mask, dtype)


def _select_new(
    dst: Tensor, pattern: Any, channel_multiplier: int, on_true_tile: Tensor, on_false_value: float,
    cmp_op: Any = np.equal, offset: int = 0, name: str | None = None,
) -> Any:  # fmt: skip
    at = affine("affine_select", dst, pattern, offset, channel_multiplier)
    kept = resolve("affine_select", cmp_op, 2)(at, 0)
    return _selected(dst, np.asarray(kept, np.bool_), on_true_tile, on_false_value, None, None)


def affine(name: str, dst: Tensor, pattern: Any, offset: int, channel_multiplier: int) -> np.ndarray:
    """offset + partition * channel_multiplier + sum(i * step) over a pattern, of dst's shape. UsageError."""
    rows, count = dst.shape[0], prod(size for _, size in pattern)
    if count != free(dst.shape):
        raise UsageError(f"{name}: the pattern {pattern} has {count} elements, a partition of dst {free(dst.shape)}")
    at = np.asarray(offset + channel_multiplier * np.arange(rows)).reshape(rows, *(1,) * len(pattern))
    for axis, (step, size) in enumerate(pattern):
        at = at + (step * np.arange(size)).reshape(size, *(1,) * (len(pattern) - axis - 1))
    return np.broadcast_to(at, (rows, *(size for _, size in pattern))).reshape(dst.shape)


def _selected(dst: Tensor | None, pred: np.ndarray, tile: Tensor, otherwise: float, mask: Any, dtype: Any) -> Any:
    core = session().core
    check_number("on_false_value of affine_select", otherwise)
    tile.settle()
    try:
        kept = np.broadcast_to(pred, tile.shape)
    except ValueError as error:
        raise UsageError(f"affine_select: pred is {list(pred.shape)}, the tile {list(tile.shape)}") from error
    out = dst.dtype if dst is not None else tile_dtype(dtype, tile.dtype)
    start = core.device.gpsimd_start_cycles

    def compute(x: np.ndarray) -> np.ndarray:
        return np.where(kept[tuple(slice(size) for size in x.shape)], x, np.float32(otherwise))

    return emit("affine_select", core.gpsimd, lambda left: start + free(left), [tile], tile.shape, out, compute,
                dst=dst, mask=mask)  # fmt: skip


@both(tensors=2)
def select_reduce(
    dst: Tensor | None, predicate: Tensor, on_true: Any, on_false: Any, *, reduce_res: Any = None,
    reduce_cmd: Any = cmd.idle, reduce_op: Any = np.maximum, reverse_pred: bool = False, dtype: Any = None,
    mask: Any = None,
) -> Any:  # fmt: skip
    """on_true where predicate is not zero, on_false [p, 1] or a number elsewhere; its maximum into reduce_res: n."""
    if dst is None:
        raise UsageError("select_reduce writes dst: name it")
    core = session().core
    predicate.settle()
    check_number("on_true of select_reduce", on_true)
    tile = on_true if isinstance(on_true, Tensor) else None
    reads = [predicate, *([tile.settle()] if tile is not None else [])]
    other = operand("on_false", on_false, predicate)
    tiles, arrays = spread([other], predicate)

    def compute(chosen: np.ndarray, *numbers: np.ndarray) -> np.ndarray:
        taken = (chosen == 0) if reverse_pred else (chosen != 0)
        x = numbers[0].reshape(taken.shape) if tile is not None else np.float32(on_true)
        (otherwise,) = arrays(*numbers[1 if tile is not None else 0 :])
        return np.where(taken, x, otherwise)

    largest = gathering("select_reduce", core.vector, predicate, reduce_op, reduce_cmd, reduce_res, mask)
    result = emit("select_reduce", core.vector, free, [*reads, *tiles], dst.shape, dst.dtype, largest.beside(compute),
                  dst=dst, mask=mask)  # fmt: skip
    return largest.then(result, dst)


def _repeats(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """May axes of 1, and such as are not there, be repeated to the other shape?"""
    return len(shape) <= len(other) and all(size in (1, to) for size, to in zip(shape[::-1], other[::-1], strict=False))


def where(condition: Any, x: Any, y: Any, dtype: Any = None, mask: Any = None) -> Any:
    """x where condition is not zero, y elsewhere, each a tile or a number, on the vector engine: n cycles a tile."""
    condition = condition.settled() if hasattr(condition, "settled") else condition
    tiles = [value.settle() for value in (x, y) if isinstance(value, Tensor)]
    if isinstance(condition, np.ndarray):
        if len(tiles) != 1 or x is not tiles[0]:
            raise UsageError("nl.where with indices compared takes a tile, then a number")
        return affine_select(condition, x, y, dtype=dtype, mask=mask)
    for name, value in (("x", x), ("y", y)):
        check_number(f"{name} of nl.where", value)
    condition.settle()
    for name, tile in (("x", x), ("y", y)):
        if isinstance(tile, Tensor) and not _repeats(tile.shape, condition.shape):
            shapes = f"{list(tile.shape)}, its condition {list(condition.shape)}"
            raise UsageError(f"{name} of nl.where has shape {shapes}: repeat the condition to that shape")
    out = tile_dtype(dtype, promoted(*(tile.dtype for tile in tiles)) if tiles else condition.dtype)

    def compute(chosen: np.ndarray, *numbers: np.ndarray) -> np.ndarray:
        rest = iter(numbers)
        values = [next(rest) if isinstance(value, Tensor) else np.float32(value) for value in (x, y)]
        return np.where(chosen != 0, *values)

    count = max(1, len(tiles))
    return emit("select", session().core.vector, lambda left: count * free(left), [condition, *tiles], condition.shape,
                out, compute, mask=mask)  # fmt: skip


@both(tensors=2)
def dropout(dst: Tensor | None, data: Tensor, prob: Any, *, dtype: Any = None, mask: Any = None) -> Any:
    """data with elements set to zero with a probability: 2 n cycles. 0 and 1 only, as random numbers are not there."""
    core = session().core
    rate = operand("prob", prob, data)
    tiles, arrays = spread([rate], data)

    def compute(x: np.ndarray, *numbers: np.ndarray) -> np.ndarray:
        (p,) = arrays(*numbers)
        if not bool(np.isin(p, (0, 1)).all()):
            raise UsageError("dropout: a probability of 0 or 1; random numbers of the hardware are not emulated")
        return np.where(np.asarray(p) == 1, np.float32(0), x)

    out = dst.dtype if dst is not None else tile_dtype(dtype, data.dtype)
    return emit("dropout", core.vector, lambda left: 2 * free(left), [data.settle(), *tiles], data.shape, out, compute,
                dst=dst, mask=mask)  # fmt: skip
