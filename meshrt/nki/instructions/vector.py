"""Instructions of the vector engine, element by element. n: elements in each partition."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.neuron.dtypes import bfloat16, float32
from meshrt.nki.constants import chosen
from meshrt.nki.constants import reduce_cmd as cmd
from meshrt.nki.dtypes import promoted, tile_dtype
from meshrt.nki.generation import both
from meshrt.nki.instructions.emit import emit
from meshrt.nki.instructions.operands import check_number, free, operand, sizes_of, spread
from meshrt.nki.instructions.ops import check_bits, cut_to, gathers, resolve
from meshrt.nki.instructions.registers import gathering
from meshrt.nki.instructions.repeat import repeated
from meshrt.nki.session import session
from meshrt.nki.tensors.tensor import Tensor

FAST = ("add", "subtract", "multiply")  # two of bfloat16 at a time
FAST_PAIR = ["subtract", "multiply"]  # of scalar_tensor_tensor, where their number is even, too


@both(tensors=3)
def tensor_tensor(
    dst: Tensor | None, data1: Tensor, data2: Tensor, op: Any, *, dtype: Any = None, mask: Any = None,
    engine: Any = None,
) -> Any:  # fmt: skip
    """op(data1, data2): 2 n cycles; n if one of the two is in PSUM, or if all is bfloat16 and simple arithmetic."""
    function = resolve("tensor_tensor", op, 2)
    memories = sizes_of(data1, data2)
    if memories == ("psum", "psum"):
        raise UsageError("tensor_tensor: both operands are in PSUM, one at most may be: copy one of them to SBUF")
    if data1.shape != data2.shape:
        if dst is None and data1.shape[0] == data2.shape[0] and data2.size == data2.shape[0]:
            data2 = repeated(data2.reshape((data2.shape[0],) + (1,) * (len(data1.shape) - 1)), data1.shape)
        elif dst is None and _repeats(data2.shape, data1.shape):  # the old API's compiler does
            data2 = repeated(data2, data1.shape)
        if data1.size // data1.shape[0] != data2.size // data2.shape[0] or data1.shape[0] != data2.shape[0]:
            raise UsageError(f"tensor_tensor: shapes {list(data1.shape)} and {list(data2.shape)} differ")
        data2 = data2.reshape(data1.shape)
    out = dst.dtype if dst is not None else tile_dtype(dtype, promoted(data1.dtype, data2.dtype))
    check_bits("tensor_tensor", (op,), (data1, data2), out)
    name = getattr(op, "__name__", "")
    fast = name in FAST and data1.dtype == data2.dtype == out == bfloat16
    passes = 1 if fast or memories[0] != memories[1] else 2
    return emit("tensor_tensor", chosen("tensor_tensor", engine, "vector", ("vector", "gpsimd")),
                lambda left: passes * free(left), [data1, data2], data1.shape, out, cut_to(out, (op,), function),
                dst=dst, mask=mask,
                sums=() if not gathers(op) else (data1,) if name == "subtract" else (data1, data2))  # fmt: skip


def _repeats(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """May free axes of 1 be repeated to the other shape?"""
    return len(shape) == len(other) and shape[0] == other[0] and all(
        size in (1, wanted) for size, wanted in zip(shape, other, strict=True)
    )  # fmt: skip


@both(tensors=2)
def tensor_scalar(
    dst: Tensor | None, data: Tensor, op0: Any, operand0: Any, reverse0: bool = False, op1: Any = None,
    operand1: Any = None, reverse1: bool = False, *, dtype: Any = None, mask: Any = None, engine: Any = None,
) -> Any:  # fmt: skip
    """op1(op0(data, operand0), operand1): n cycles, for one op as for two. reverse: operand first."""
    first = operand("operand0", operand0, data)
    second = None if op1 is None else operand("operand1", operand1, data)
    apply0, apply1 = resolve("tensor_scalar", op0, 2), None if op1 is None else resolve("tensor_scalar", op1, 2)
    tiles, arrays = spread([first, second], data)

    def compute(x: np.ndarray, *numbers: np.ndarray) -> np.ndarray:
        a, b = arrays(*numbers)
        y = apply0(a, x) if reverse0 else apply0(x, a)
        if apply1 is not None:
            y = apply1(b, y) if reverse1 else apply1(y, b)
        return np.asarray(y)

    out = dst.dtype if dst is not None else tile_dtype(dtype, data.dtype)
    check_bits("tensor_scalar", (op0, op1), (data, first, second), out)
    return emit("tensor_scalar", chosen("tensor_scalar", engine, "vector"), free, [data.settle(), *tiles], data.shape,
                out, cut_to(out, (op0, op1), compute), dst=dst, mask=mask,
                sums=(data,) if gathers(op0) and op1 is None and not reverse0 else ())  # fmt: skip


@both(tensors=2)
def tensor_copy(dst: Tensor | None, src: Tensor, *, dtype: Any = None, mask: Any = None, engine: Any = None) -> Any:
    """A copy within or between SBUF and PSUM, cast if the dtypes differ: n cycles."""
    src.settle()
    out = dst.dtype if dst is not None else tile_dtype(dtype, src.dtype)
    if dst is not None and dst.shape != src.shape and dst.size != src.size:
        src = repeated(src, dst.shape)
    return emit("tensor_copy", chosen("tensor_copy", engine, "vector"), free, [src], src.shape, out, lambda x: x,
                dst=dst, mask=mask)  # fmt: skip


@both(tensors=3)
def scalar_tensor_tensor(
    dst: Tensor | None, data: Tensor, op0: Any, operand0: Any, op1: Any, operand1: Any, reverse0: bool = False,
    reverse1: bool = False, *, dtype: Any = None, mask: Any = None, engine: Any = None,
) -> Any:  # fmt: skip
    """op1(op0(data, operand0), operand1), operand0 a number for each partition, operand1 a tile: 2 n cycles.

    n if one of the two tiles is in PSUM, or for a difference times an even number of bfloat16.
    """
    first = operand("operand0", operand0, data)
    other = operand1.settle() if isinstance(operand1, Tensor) else None
    if other is None or other.size != data.size:
        raise UsageError("scalar_tensor_tensor: operand1 is a tile of data's shape; tensor_scalar takes numbers")
    apply0, apply1 = resolve("scalar_tensor_tensor", op0, 2), resolve("scalar_tensor_tensor", op1, 2)
    tiles, arrays = spread([first], data)
    memories = sizes_of(data, other)

    def compute(x: np.ndarray, z: np.ndarray, *numbers: np.ndarray) -> np.ndarray:
        (a,) = arrays(*numbers)
        y = apply0(a, x) if reverse0 else apply0(x, a)
        z = z.reshape(x.shape)
        return np.asarray(apply1(z, y) if reverse1 else apply1(y, z))

    out = dst.dtype if dst is not None else tile_dtype(dtype, promoted(data.dtype, other.dtype))
    check_bits("scalar_tensor_tensor", (op0, op1), (data, first, other), out)
    names = [getattr(op, "__name__", "") for op in (op0, op1)]
    fast = names == FAST_PAIR and data.dtype == other.dtype == bfloat16 and free(data.shape) % 2 == 0
    passes = 1 if fast or memories[0] != memories[1] else 2
    return emit("scalar_tensor_tensor", chosen("scalar_tensor_tensor", engine, "vector", ("vector", "gpsimd")),
                lambda left: passes * free(left), [data, other, *tiles], data.shape, out, compute, dst=dst, mask=mask,
                sums=(other,) if gathers(op1) and not reverse1 else ())  # fmt: skip


@both(tensors=3)
def tensor_tensor_scan(
    dst: Tensor | None, data0: Tensor, data1: Tensor, initial: Any, op0: Any, op1: Any, reverse0: bool = False,
    reverse1: bool = False, *, dtype: Any = None, mask: Any = None,
) -> Any:  # fmt: skip
    """y[i] = op1(op0(data0[i], y[i - 1]), data1[i]) along the free axis, y[-1] = initial: 2 n cycles."""
    if data0.settle().shape[0] != data1.settle().shape[0] or data0.size != data1.size:
        raise UsageError(f"tensor_tensor_scan: shapes {list(data0.shape)} and {list(data1.shape)} differ")
    if sizes_of(data0, data1) == ("psum", "psum"):
        raise UsageError("tensor_tensor_scan: both operands are in PSUM, one at most may be: copy one of them to SBUF")
    start = operand("initial", initial, data0)
    apply0, apply1 = resolve("tensor_tensor_scan", op0, 2), resolve("tensor_tensor_scan", op1, 2)
    tiles, arrays = spread([start], data0)

    def compute(a: np.ndarray, b: np.ndarray, *numbers: np.ndarray) -> np.ndarray:
        (first,) = arrays(*numbers)
        a, b = (part.reshape(len(part), -1) for part in (a, b))
        y = np.broadcast_to(np.asarray(first, np.float32).reshape(-1, 1), (len(a), 1))[:, 0]
        result = np.empty(a.shape, np.float32)
        for at in range(a.shape[1]):
            y = apply0(y, a[:, at]) if reverse0 else apply0(a[:, at], y)
            y = apply1(b[:, at], y) if reverse1 else apply1(y, b[:, at])
            result[:, at] = y
        return result

    out = dst.dtype if dst is not None else tile_dtype(dtype, promoted(data0.dtype, data1.dtype))
    vector = session().core.vector
    return emit("tensor_tensor_scan", vector, lambda left: 2 * free(left), [data0, data1, *tiles],
                data0.shape, out, compute, dst=dst, mask=mask)  # fmt: skip


@both(tensors=2)
def tensor_scalar_reduce(
    dst: Tensor | None, data: Tensor, op0: Any, operand0: Any, reduce_op: Any, reduce_res: Tensor,
    reverse0: bool = False, *, dtype: Any = None, mask: Any = None,
) -> Any:  # fmt: skip
    """tensor_scalar, and its reduction along the free axes into reduce_res [p, 1]: n + `least_cycles` cycles."""
    core = session().core
    first, apply0 = operand("operand0", operand0, data), resolve("tensor_scalar_reduce", op0, 2)
    tiles, arrays = spread([first], data)

    def compute(x: np.ndarray, *numbers: np.ndarray) -> np.ndarray:
        (a,) = arrays(*numbers)
        return np.asarray(apply0(a, x) if reverse0 else apply0(x, a))

    out = dst.dtype if dst is not None else tile_dtype(dtype, data.dtype)
    check_bits("tensor_scalar_reduce", (op0,), (data, first), out)
    total = gathering("tensor_scalar_reduce", core.vector, data, reduce_op, cmd.reset_reduce, reduce_res, mask)
    result = emit("tensor_scalar", core.vector, free, [data.settle(), *tiles], data.shape, out, total.beside(compute),
                  dst=dst, mask=mask)  # fmt: skip
    return total.then(result, dst)


@both(tensors=2)
def tensor_copy_predicated(
    dst: Tensor | None, src: Any, predicate: Tensor, *, dtype: Any = None, mask: Any = None, reverse_pred: bool = False
) -> Any:
    """dst where predicate is zero keeps what it has, elsewhere src: 2 n cycles; n if something is in PSUM, or src is a
    number.
    """
    if dst is None:
        raise UsageError("tensor_copy_predicated changes dst: name it")
    check_number("src of tensor_copy_predicated", src)
    predicate.settle()
    reads = [predicate, dst, *([src] if isinstance(src, Tensor) else [])]

    def compute(chosen_: np.ndarray, old: np.ndarray, *new: np.ndarray) -> np.ndarray:
        taken = (chosen_ == 0) if reverse_pred else (chosen_ != 0)
        if taken.size == old.size:
            taken = taken.reshape(old.shape)
        elif taken.size == len(old):  # one for each partition
            taken = taken.reshape(-1, *(1,) * (old.ndim - 1))
        elif taken.shape == old.shape[: taken.ndim]:  # the last axes repeat it
            taken = taken.reshape(*taken.shape, *(1,) * (old.ndim - taken.ndim))
        return np.where(taken, new[0].reshape(old.shape) if new else np.float32(src), old)

    passes = 2 if isinstance(src, Tensor) and set(sizes_of(*reads)) == {"sbuf"} else 1
    return emit("tensor_copy_predicated", session().core.vector, lambda left: passes * free(left), reads, dst.shape,
                dst.dtype, compute, dst=dst, mask=mask, sums=(dst,))  # fmt: skip


def _leaves_whole_numbers(op: Any, *values: Any) -> bool:
    """Is a result of whole numbers none: a quotient, or something with a fraction?"""
    if any(isinstance(value, Tensor) and value.dtype.kind not in "iub" for value in values):
        return False
    return getattr(op, "__name__", "") == "divide" or any(isinstance(value, float) for value in values)


def arithmetic(op: Any, x: Any, y: Any, dtype: Any = None, mask: Any = None) -> Any:
    """op(x, y) of tiles and numbers: tensor_tensor, or tensor_scalar where one has a number for each partition."""
    x, y = (value.settled() if hasattr(value, "settled") else value for value in (x, y))
    if dtype is None and _leaves_whole_numbers(op, x, y):
        dtype = float32
    if not isinstance(y, Tensor):
        return tensor_scalar(x, op, y, dtype=dtype, mask=mask)
    if not isinstance(x, Tensor):
        return tensor_scalar(y, op, x, True, dtype=dtype, mask=mask)
    x, y = x.settle(), y.settle()
    rows = max(x.shape[0], y.shape[0])
    if x.shape[0] == y.shape[0] and (x.size == rows) != (y.size == rows):
        out = dtype or promoted(x.dtype, y.dtype)
        if y.size == rows:
            return tensor_scalar(x, op, y, dtype=out, mask=mask)
        return tensor_scalar(y, op, x, True, dtype=out, mask=mask)
    if x.shape != y.shape:
        try:
            shape = np.broadcast_shapes(x.shape, y.shape)
        except ValueError as error:
            raise UsageError(f"shapes {list(x.shape)} and {list(y.shape)} do not go together") from error
        x, y = (value if value.shape == shape else repeated(value, shape) for value in (x, y))
    if sizes_of(x, y) == ("psum", "psum"):
        y = tensor_copy(y).settle()
    return tensor_tensor(x, y, op, dtype=dtype, mask=mask)
