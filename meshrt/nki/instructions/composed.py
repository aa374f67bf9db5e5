"""Operators of `nl` that are made of instructions: products, statistics, norms."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.neuron.dtypes import float32
from meshrt.nki import isa
from meshrt.nki.dtypes import tile_dtype
from meshrt.nki.generation import checked
from meshrt.nki.instructions.emit import masked
from meshrt.nki.instructions.ops import OPS
from meshrt.nki.instructions.statistics import reduced
from meshrt.nki.session import session
from meshrt.nki.tensors.tensor import Tensor


@checked
def static_cast(x: Any, dtype: Any) -> Any:
    """The same numbers as another dtype."""
    return isa.tensor_copy(x, dtype=dtype) if isinstance(x, Tensor) else np.asarray(x).astype(tile_dtype(dtype))


@checked
def transpose(x: Any, dtype: Any = None, mask: Any = None) -> Any:
    """[p, f] to [f, p], on the tensor engine, in SBUF."""
    return isa.tensor_copy(isa.nc_transpose(_in_sbuf(x), mask=mask), dtype=dtype or x.dtype)


@checked
def matmul(x: Any, y: Any, *, transpose_x: bool = False, mask: Any = None) -> Any:
    """x y of x [m, k], or x^T y of x [k, m] if it is transposed already; y [k, n]. In PSUM.

    Operands in PSUM are copied to SBUF first; where one is float32, the other is cast to it.
    """
    x, y = _in_sbuf(x), _in_sbuf(y)
    if (x.dtype == float32) != (y.dtype == float32):
        x, y = (value if value.dtype == float32 else isa.tensor_copy(value, dtype=float32).settle() for value in (x, y))
    if not transpose_x:
        x = transpose(x).settle()
    return isa.nc_matmul(x, y, mask=mask)


def _in_sbuf(x: Any) -> Tensor:
    x = x.settled() if hasattr(x, "settled") else x
    if not isinstance(x, Tensor):
        raise UsageError(f"a product is of tiles, not of {type(x).__name__}")
    x.settle()
    settled: Tensor = isa.tensor_copy(x).settle() if x.buffer.name == "psum" else x
    return settled


@checked
def broadcast_to(x: Any, shape: Any = None, dtype: Any = None) -> Any:
    """Axes of size 1 repeated."""
    return x.broadcast_to(shape) if dtype is None else static_cast(x.broadcast_to(shape), dtype)


@checked
def expand_dims(x: Tensor, axis: int) -> Tensor:
    """An axis of 1 at `axis`."""
    return x.expand_dims(axis)


@checked
def mean(x: Tensor, axis: Any = None, dtype: Any = None, mask: Any = None, keepdims: bool = False) -> Any:
    """The mean along free axes: a sum and a product. Of whole numbers it is float32."""
    total = reduced(np.add, x, axis, dtype=float32, mask=mask, keepdims=keepdims).settle()
    kept = None if mask is None else masked(mask, x.shape)[0]
    count = prod((kept or x.shape)[1:]) // max(1, prod(total.shape[1:]))
    return isa.tensor_scalar(total, np.multiply, 1 / count, dtype=dtype or _of_mean(x))


def _of_mean(x: Tensor) -> Any:
    return float32 if x.dtype.kind in "iub" else x.dtype


@checked
def var(x: Tensor, axis: Any = None, dtype: Any = None, mask: Any = None, keepdims: bool = False) -> Any:
    """The variance along free axes: mean of the squares of what is left without the mean."""
    rest = OPS["subtract"](x, mean(x, axis, float32, mask, keepdims=True).settle(), dtype=float32)
    return mean(OPS["square"](rest).settle(), axis, dtype or _of_mean(x), mask, keepdims)


def _in_float32(name: str, dtype: Any) -> None:
    if dtype is not None and tile_dtype(dtype) != float32:
        raise UsageError(f"{name} computes in float32, not in {tile_dtype(dtype)}: leave compute_dtype away")


@checked
def softmax(x: Tensor, axis: Any = None, dtype: Any = None, mask: Any = None, compute_dtype: Any = None) -> Any:
    """e^(x - max) over its sum along free axes."""
    _in_float32("softmax", compute_dtype)
    largest = reduced(np.maximum, x, axis, dtype=float32, negate=True, mask=mask, keepdims=True).settle()
    if largest.size == largest.shape[0]:
        up = isa.activation(np.exp, x, bias=largest, dtype=float32, mask=mask).settle()
    else:  # of some axes: more than one number for each partition
        up = isa.activation(np.exp, OPS["add"](x, largest, dtype=float32, mask=mask).settle(), mask=mask).settle()
    total = reduced(np.add, up, axis, mask=mask, keepdims=True).settle()
    return isa.arithmetic(OPS["multiply"], up, isa.reciprocal(total).settle(), dtype or x.dtype, mask)


@checked
def rms_norm(
    x: Tensor, w: Tensor, axis: Any, n: int, epsilon: float = 1e-6, dtype: Any = None, mask: Any = None,
    compute_dtype: Any = None,
) -> Any:  # fmt: skip
    """x over the root of the mean of its squares along free axes of n elements, times w."""
    _in_float32("rms_norm", compute_dtype)
    squares = isa.activation(np.square, x, dtype=float32, mask=mask).settle()
    total = reduced(np.add, squares, axis, mask=mask, keepdims=True).settle()
    mean_ = isa.tensor_scalar(total, np.multiply, 1 / n, op1=np.add, operand1=epsilon).settle()
    scaled = isa.arithmetic(OPS["multiply"], x, isa.activation(OPS["rsqrt"], mean_).settle(), float32, mask).settle()
    return isa.arithmetic(OPS["multiply"], scaled, w, dtype or x.dtype, mask)


@checked
def dropout(x: Tensor, rate: Any, dtype: Any = None, mask: Any = None) -> Any:
    """See nisa.dropout."""
    return isa.dropout(data=x, prob=rate, dtype=dtype, mask=mask)


@checked
def random_seed(seed: Any, mask: Any = None) -> None:
    """Of the hardware's random numbers, which are not emulated: nisa.dropout says which rates there are."""


@checked
def loop_reduce(x: Tensor, op: Any = np.add, loop_indices: Any = None, dtype: Any = None, mask: Any = None) -> Any:
    """tile[...] = loop_reduce(x, op): tile[...] = op(tile, x), in each iteration of loops; as nisa.tensor_tensor."""

    def run(target: Tensor, _: bool) -> None:
        if target.home is None or target.home.store.writes == 0:
            raise UsageError("loop_reduce goes on with what its tile holds: set it before, and say tile[...] = ...")
        isa.tensor_tensor(dst=target, data1=target, data2=x, op=op, mask=mask)

    core = session().core
    return core.defer(Tensor(core.sbuf, tile_dtype(dtype, x.dtype), shape=x.settle().shape, pending=run))
