"""What is computed of elements: operators for `nisa`, which called with tiles are the instruction, as in NKI.

`nl.exp` is NumPy's: nisa.activation(nl.exp, tile) and nl.exp(tile) are the same instruction, and so are nl.add(a, b),
a + b and nisa.tensor_tensor(a, b, nl.add). nl.max, nl.min and nl.sum reduce; they serve as reduce_op too.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from meshrt.neuron import elementwise, isa
from meshrt.neuron.operand import Operand
from meshrt.neuron.tile import Deferred, as_tile

__all__ = (
    "add", "bitwise_and", "copy", "divide", "exp", "gelu_apprx_tanh", "log", "matmul", "max", "maximum", "mean", "min",
    "minimum", "multiply", "relu", "right_shift", "rsqrt", "sigmoid", "silu", "sqrt", "square", "subtract", "sum",
    "tanh", "transpose",
)  # fmt: skip

ReducedAxes = int | Sequence[int] | None

add, subtract, multiply, divide = np.add, np.subtract, np.multiply, np.divide
maximum, minimum = np.maximum, np.minimum
exp, log, square, sqrt, tanh, copy = np.exp, np.log, np.square, np.sqrt, np.tanh, np.positive


def bitwise_and(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x and y, bit by bit: of tiles of whole numbers."""
    return np.bitwise_and(np.asarray(x, np.int32), np.asarray(y, np.int32)).astype(np.float32)


def right_shift(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The bits of x, y places lower: of tiles of whole numbers."""
    return np.right_shift(np.asarray(x, np.int32), np.asarray(y, np.int32)).astype(np.float32)


def _of_tiles(function: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Any]:
    """A function of arrays that, called with a tile, is an instruction."""

    @wraps(function)
    def either(x: Any, *, dtype: Any = None) -> Any:
        return elementwise.activation(either, x, dtype=dtype) if isinstance(x, Operand) else function(x)

    return either


@_of_tiles
def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x), without overflow."""
    y: np.ndarray = 0.5 * (1 + np.tanh(0.5 * x))
    return y


@_of_tiles
def silu(x: np.ndarray) -> np.ndarray:
    """x sigmoid(x)."""
    y: np.ndarray = x * sigmoid(x)
    return y


@_of_tiles
def gelu_apprx_tanh(x: np.ndarray) -> np.ndarray:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    y: np.ndarray = np.float32(0.5) * x * (1 + np.tanh(inner))
    return y


@_of_tiles
def rsqrt(x: np.ndarray) -> np.ndarray:
    """1 / sqrt(x)."""
    y: np.ndarray = 1 / np.sqrt(x)
    return y


@_of_tiles
def relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0)."""
    y: np.ndarray = np.maximum(x, 0)
    return y


def _reduction(op: np.ufunc, doc: str) -> Callable[..., Any]:
    def reduce(x: Any, axis: ReducedAxes = None, *, dtype: Any = None, keepdims: bool = False) -> Any:
        if isinstance(x, Operand):
            return elementwise.tensor_reduce(op, x, axis, dtype=dtype, keepdims=keepdims)
        return op.reduce(x, axis=axis, keepdims=keepdims)

    reduce.__doc__ = doc
    return reduce


max = _reduction(np.maximum, "The largest along the last axes: nisa.tensor_reduce.")
min = _reduction(np.minimum, "The smallest along the last axes.")
sum = _reduction(np.add, "The sum along the last axes.")


def mean(x: Operand, axis: ReducedAxes = None, *, dtype: Any = None) -> Deferred:
    """The mean along the last axes: a sum and a product. Of whole numbers it is float32."""
    total = as_tile(elementwise.tensor_reduce(np.add, x, axis, dtype=np.float32))
    tile = as_tile(x)
    count = (tile.data.size // tile.shape[0]) // (total.data.size // total.shape[0])
    own = np.float32 if tile.dtype.kind in "iu" else tile.dtype
    return elementwise.tensor_scalar(total, np.multiply, 1 / count, dtype=dtype or own)


def matmul(x: Operand, y: Operand, *, transpose_x: bool = False) -> Deferred:
    """x^T y of x [k, m] if it is transposed already, else x y of x [m, k], turned first; y [k, n]. In PSUM."""
    if not transpose_x:
        x = elementwise.tensor_copy(isa.nc_transpose(x), dtype=as_tile(x).dtype)
    return isa.nc_matmul(x, y)


def transpose(x: Operand) -> Deferred:
    """x [p, f] -> [f, p] in PSUM: nisa.nc_transpose."""
    return isa.nc_transpose(x)
