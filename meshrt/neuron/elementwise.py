"""Instructions of the vector, scalar and GpSimd engines. `isa` has them under NKI's names.

Arithmetic is in float32, results are rounded to their dtype. Costs are those of the NKI reference (docs/neuron.md), in
cycles of the engine, with n elements in each partition of `data`, and never fewer than `least_cycles`.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.neuron.checks import check_engine, check_op, check_reduction
from meshrt.neuron.dtypes import bfloat16, float32, known
from meshrt.neuron.engines import Core
from meshrt.neuron.operand import Operand
from meshrt.neuron.tile import Deferred, Tile, as_tile
from meshrt.neuron.timeline import ComputeEngine

ElementwiseOp = Callable[..., Any]  # of arrays, such as np.add and np.exp
FAST_OPS = (np.add, np.subtract, np.multiply)  # two of bfloat16 at a time
FAST_REDUCTIONS = (np.add, np.maximum)


def activation(
    op: ElementwiseOp, data: Operand, *, bias: Operand | None = None, scale: float | Operand = 1.0, dtype: Any = None
) -> Deferred:
    """op(data * scale + bias), element by element, on the scalar engine: n cycles. bias, a tile as scale: [p, 1]."""
    check_op("activation", op, 1)
    reads, compute = _activated(op, data, bias, scale)
    return _deferred(reads[0].core.scalar, "activation", reads, reads[0].shape, 1, compute, dtype)


def activation_reduce(
    op: ElementwiseOp, data: Operand, *, reduce_op: ElementwiseOp, reduce_res: Tile, bias: Operand | None = None,
    scale: float | Operand = 1.0, dtype: Any = None,
) -> Deferred:  # fmt: skip
    """activation, and reduce_op along the free axes of its result into reduce_res [p, 1]: n + `least_cycles` cycles."""
    check_op("activation_reduce", op, 1)
    check_reduction("activation_reduce", reduce_op)
    reads, compute = _activated(op, data, bias, scale)
    core, rows = reads[0].core, reads[0].shape[0]
    if reduce_res.shape != (rows, 1):
        raise UsageError(f"activation_reduce: reduce_res has shape {list(reduce_res.shape)}; it takes {[rows, 1]}")
    result = _deferred(core.scalar, "activation_reduce", reads, reads[0].shape, 1, compute, dtype)
    activate = result.run
    assert activate is not None

    def run(dst: Tile, adds: bool) -> None:
        sums = _reduced(reduce_op, compute().reshape(rows, -1)) if core.payload else None  # dst may be data
        activate(dst, adds)
        core.issue(core.scalar, "read sums", 0, [dst], reduce_res)  # reads the registers that hold the sums
        if sums is not None:
            core.put(reduce_res, sums)

    result.run = run
    return result


def tensor_tensor(
    data1: Operand, data2: Operand, op: ElementwiseOp, *, dtype: Any = None, engine: ComputeEngine | None = None
) -> Deferred:
    """op(data1, data2), element by element, on the vector engine: 2n cycles.

    n cycles where one of the two is in PSUM, or where all is bfloat16 and is added, subtracted or multiplied.
    """
    check_op("tensor_tensor", op, 2)
    a, b = as_tile(data1), as_tile(data2)
    if a.shape != b.shape:
        raise UsageError(f"tensor_tensor: shapes {list(a.shape)} and {list(b.shape)} differ")
    buffers = a.store.buffer.name, b.store.buffer.name
    if buffers == ("psum", "psum"):
        raise UsageError("tensor_tensor: both operands are in PSUM, one at most may be: copy one of them to SBUF")
    out = known(dtype) if dtype else a.dtype if a.dtype == b.dtype else float32
    fast = op in FAST_OPS and a.dtype == b.dtype == out == bfloat16
    passes = 1 if fast or buffers[0] != buffers[1] else 2
    engine = check_engine("tensor_tensor", a.core, engine)
    return _deferred(engine, "tensor_tensor", [a, b], a.shape, passes, lambda: op(a.data, b.data), out)


def tensor_scalar(
    data: Operand, op0: ElementwiseOp, operand0: float | Operand, reverse0: bool = False,
    op1: ElementwiseOp | None = None, operand1: float | Operand | None = None, reverse1: bool = False, *,
    dtype: Any = None, engine: ComputeEngine | None = None,
) -> Deferred:  # fmt: skip
    """op0(data, operand0), then op1(that, operand1), on the vector engine: n cycles, for one op as for two.

    Operands are numbers, or tiles [p, 1] whose element is used all along its partition. reverse: operand first.
    """
    tile = as_tile(data)
    first, second = _scalar("operand0", operand0, data), _scalar("operand1", operand1, data)
    if (op1 is None) != (second is None):
        raise UsageError("tensor_scalar: op1 and operand1 go together")
    for op in (op0, op1) if op1 is not None else (op0,):
        check_op("tensor_scalar", op, 2)

    def compute() -> np.ndarray:
        x: np.ndarray = op0(_value(first), tile.data) if reverse0 else op0(tile.data, _value(first))
        if op1 is not None:
            x = op1(_value(second), x) if reverse1 else op1(x, _value(second))
        return x

    reads = [tile, *_tiles(first, second)]
    engine = check_engine("tensor_scalar", tile.core, engine)
    return _deferred(engine, "tensor_scalar", reads, tile.shape, 1, compute, dtype)


def tensor_copy(src: Operand, *, dtype: Any = None, engine: ComputeEngine | None = None) -> Deferred:
    """A copy between or within SBUF and PSUM, cast if dtype says so, on the vector engine or another: n cycles."""
    tile = as_tile(src)
    engine = check_engine("tensor_copy", tile.core, engine)
    return _deferred(engine, "tensor_copy", [tile], tile.shape, 1, lambda: tile.data, dtype)


def tensor_reduce(
    op: ElementwiseOp, data: Operand, axis: int | Sequence[int] | None = None, *, dtype: Any = None,
    negate: bool = False, keepdims: bool = False,
) -> Deferred:  # fmt: skip
    """add, maximum or minimum along the last axes, or all free ones, on the vector engine: n cycles.

    [p, f...] -> [p, 1]; where free axes are left, [p, those]. n / 2 cycles for a sum or maximum of all bfloat16.
    """
    check_reduction("tensor_reduce", op)
    tile = as_tile(data)
    rank = len(tile.shape)
    axes = list(range(1, rank)) if axis is None else [axis] if isinstance(axis, int) else list(axis)
    inside = all(-rank <= number < rank for number in axes)
    axes = sorted(number % rank for number in axes)
    if not inside or not axes or axes != list(range(axes[0], rank)) or axes[0] == 0:
        raise UsageError(f"tensor_reduce: axis {axis} of {list(tile.shape)}; it takes the last axes, never the first")
    leading = tile.shape[: axes[0]]
    shape = (*leading, *(1 for _ in axes)) if keepdims else leading if len(leading) > 1 else (*leading, 1)

    def compute() -> np.ndarray:
        x = _reduced(op, tile.data.reshape(*leading, -1)).reshape(shape)
        return -x if negate else x

    out = known(dtype) if dtype else tile.dtype
    fast = op in FAST_REDUCTIONS and tile.dtype == out == bfloat16
    return _deferred(tile.core.vector, "tensor_reduce", [tile], shape, 0.5 if fast else 1, compute, out)


def reciprocal(data: Operand, *, dtype: Any = None) -> Deferred:
    """1 / data, on the vector engine: 8n cycles."""
    tile = as_tile(data)
    return _deferred(tile.core.vector, "reciprocal", [tile], tile.shape, 8, lambda: np.float32(1) / tile.data, dtype)


def affine_select(pred: np.ndarray, on_true_tile: Operand, on_false_value: float, *, dtype: Any = None) -> Deferred:
    """The tile where `pred` holds, a value elsewhere, on the GpSimd engine: `gpsimd_start_cycles` + n cycles.

    pred: bool, of the tile's shape or what NumPy repeats to it; known in advance, such as `rows[:, None] >= columns`.
    """
    tile = as_tile(on_true_tile)
    try:
        mask = np.broadcast_to(np.asarray(pred, np.bool_), tile.shape)
    except ValueError as error:
        raise UsageError(f"affine_select: pred is {list(np.shape(pred))}, the tile {list(tile.shape)}") from error

    def compute() -> np.ndarray:
        return np.where(mask, tile.data, np.float32(on_false_value))

    start = tile.core.device.gpsimd_start_cycles
    return _deferred(tile.core.gpsimd, "affine_select", [tile], tile.shape, 1, compute, dtype, start)


def free_elements(shape: tuple[int, ...]) -> int:
    """Elements in each partition."""
    return prod(shape[1:])


def _activated(op: ElementwiseOp, data: Operand, bias: Any, scale: Any) -> tuple[list[Tile], Callable[[], np.ndarray]]:
    tile, factor, shift = as_tile(data), _scalar("scale", scale, data), _scalar("bias", bias, data)

    def compute() -> np.ndarray:
        x = tile.data * _value(factor)
        result: np.ndarray = op(x if shift is None else x + _value(shift))
        return result

    return [tile, *_tiles(factor, shift)], compute


def _scalar(name: str, value: Any, data: Operand) -> Tile | np.floating | None:
    """A number, or a tile with a number for each partition of data. UsageError."""
    if value is None:
        return None
    if isinstance(value, Operand):
        tile, rows = as_tile(value), as_tile(data).shape[0]
        if tile.shape != (rows, 1):
            raise UsageError(f"{name} has shape {list(tile.shape)}; it is a number or a tile [{rows}, 1]")
        return tile
    try:
        return np.float32(float(value))
    except (TypeError, ValueError) as error:
        shown = f"an array of {list(value.shape)}" if isinstance(value, np.ndarray) else repr(value)
        raise UsageError(f"{name} is {shown}; it is a number or a tile with one for each partition") from error


def _value(scalar: Tile | np.floating | None) -> Any:
    return scalar.data if isinstance(scalar, Tile) else scalar


def _tiles(*scalars: Any) -> list[Tile]:
    return [scalar for scalar in scalars if isinstance(scalar, Tile)]


def _reduced(op: ElementwiseOp, x: np.ndarray) -> np.ndarray:
    """Along the last axis, which stays with a size of 1; op is a ufunc, or a reduction such as np.max."""
    reduced: np.ndarray = getattr(op, "reduce", op)(x, axis=-1, keepdims=True)
    return reduced


def _deferred(
    engine: ComputeEngine, name: str, reads: Sequence[Tile], shape: tuple[int, ...], passes: float,
    compute: Callable[[], np.ndarray], dtype: Any, start: int = 0,
) -> Deferred:  # fmt: skip
    """An instruction with its result in SBUF unless it is assigned elsewhere."""
    core: Core = reads[0].core
    barred = ("hbm", "psum") if engine is core.gpsimd else ("hbm",)
    for tile in reads:
        if tile.store.buffer.name in barred:
            raise UsageError(f"{name} on the {engine.name} engine cannot read {tile.store.buffer.name}: go by SBUF")
        tile.check_written(name)
    cycles = start + passes * free_elements(reads[0].shape)

    def run(dst: Tile, _: bool) -> None:
        if dst.store.buffer.name in barred:
            raise UsageError(f"{name} on the {engine.name} engine cannot write {dst.store.buffer.name}: go by SBUF")
        core.issue(engine, name, cycles, reads, dst)
        if core.payload:
            with np.errstate(all="ignore"):
                try:
                    core.put(dst, compute())
                except (TypeError, ValueError) as error:
                    raise UsageError(
                        f"{name}: its function does not work on arrays of {list(dst.shape)}: {error}"
                    ) from error

    return core.defer(Deferred(core, core.sbuf, shape, known(dtype) if dtype else reads[0].dtype, run))
