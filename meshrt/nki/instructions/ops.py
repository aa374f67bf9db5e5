"""Operators of `nl`: called with tiles each is an instruction, given to `nisa` it says what that computes."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, pi, sqrt
from typing import Any

import numpy as np

from meshrt.errors import UsageError, nearest
from meshrt.nki.generation import IGNORED, of_old
from meshrt.nki.session import session
from meshrt.nki.tensors.tensor import Tensor
from meshrt.records import dataclass

ArrayFunction = Callable[..., Any]  # of arrays


@dataclass(frozen=True, eq=False)
class Op:
    """A function of one or two arrays, by NKI's name."""

    name: str
    function: ArrayFunction
    inputs: int
    bits: bool = False  # of whole numbers, whose dtype stays

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, x: Any, y: Any = None, dtype: Any = None, mask: Any = None, **more: Any) -> Any:
        _refuse(self.name, more, mask)
        if not any(isinstance(value, Tensor) or hasattr(value, "settled") for value in (x, y)):
            return self.function(x) if self.inputs == 1 else self.function(x, y)
        isa = session().nisa
        if self.name == "copy":
            return isa.tensor_copy(x, dtype=dtype, mask=mask)
        if self.name == "reciprocal":
            return isa.reciprocal(x, dtype=dtype, mask=mask)
        if self.inputs == 1:
            return isa.activation(self, x, dtype=dtype, mask=mask)
        return isa.arithmetic(self, x, y, dtype, mask)


@dataclass(frozen=True, eq=False)
class Reduction:
    """A function along axes: called with a tile it is nisa.tensor_reduce; an operator of two for `nisa`."""

    name: str
    function: np.ufunc

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(
        self, x: Any, axis: Any = None, dtype: Any = None, mask: Any = None, keepdims: bool = False, **more: Any
    ) -> Any:
        _refuse(self.name, more, mask)
        if not isinstance(x, Tensor):
            axes = tuple(axis) if isinstance(axis, list) else axis
            return self.function.reduce(x, axis=axes, keepdims=keepdims)
        return session().nisa.reduced(self, x, axis, dtype=dtype, mask=mask, keepdims=keepdims)


def _refuse(name: str, more: dict[str, Any], mask: Any) -> None:
    """UsageError for an argument that operators do not take."""
    if strange := [key for key in more if key not in IGNORED]:
        takes = "x, y, axis, dtype, mask, keepdims"
        way = nearest(strange[0], takes.split(", "), f"operators take {takes}")
        raise UsageError(f"nl.{name} has no argument {strange[0]}=: {way}")
    if mask is not None:
        of_old()


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.vectorize(erf, otypes=[np.float32])(x / sqrt(2)))


def _gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))


def _sigmoid(x: Any) -> Any:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _silu_dx(x: Any) -> Any:
    y = _sigmoid(x)
    return y * (1 + x * (1 - y))


def _softplus(x: Any) -> Any:
    return np.logaddexp(x, 0)


ONE: dict[str, ArrayFunction] = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "square": np.square,
    "abs": np.abs, "negative": np.negative, "sin": np.sin, "cos": np.cos, "tan": np.tan, "tanh": np.tanh,
    "arctan": np.arctan, "erf": np.vectorize(erf, otypes=[np.float32]), "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x), "silu_dx": _silu_dx, "relu": lambda x: np.maximum(x, 0), "gelu": _gelu,
    "gelu_apprx_tanh": _gelu_tanh, "gelu_apprx_sigmoid": lambda x: x * _sigmoid(1.702 * x), "softplus": _softplus,
    "mish": lambda x: x * np.tanh(_softplus(x)), "sign": np.sign, "floor": np.floor, "ceil": np.ceil,
    "trunc": np.trunc, "reciprocal": lambda x: 1 / x, "copy": np.positive, "logical_not": np.logical_not,
}  # fmt: skip
TWO: dict[str, ArrayFunction] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "power": np.power,
    "maximum": np.maximum, "minimum": np.minimum, "mod": np.mod, "fmod": np.fmod,
    "equal": np.equal, "not_equal": np.not_equal, "less": np.less, "less_equal": np.less_equal,
    "greater": np.greater, "greater_equal": np.greater_equal,
    "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor,
    "abs_max": lambda x, y: np.maximum(np.abs(x), np.abs(y)), "abs_min": lambda x, y: np.minimum(np.abs(x), np.abs(y)),
}  # fmt: skip
BITS: dict[str, ArrayFunction] = {
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift, "right_shift": np.right_shift,
}  # fmt: skip
OPS: dict[str, Op | Reduction] = {
    **{name: Op(name, function, 1) for name, function in ONE.items()},
    **{name: Op(name, function, 2) for name, function in TWO.items()},
    **{name: Op(name, function, 2, bits=True) for name, function in BITS.items()},
    "invert": Op("invert", np.invert, 1, bits=True),
    "max": Reduction("max", np.maximum), "min": Reduction("min", np.minimum), "sum": Reduction("sum", np.add),
    "prod": Reduction("prod", np.multiply), "all": Reduction("all", np.logical_and),
    "any": Reduction("any", np.logical_or),
}  # fmt: skip
_ANY_ORDER = (
    "add", "subtract", "multiply", "maximum", "max", "minimum", "min", "sum", "logical_and", "logical_or",
)  # fmt: skip
_NUMPY = {np.max: np.maximum, np.min: np.minimum, np.sum: np.add, np.prod: np.multiply, np.amax: np.maximum}


def resolve(name: str, op: Any, inputs: int) -> ArrayFunction:
    """What an instruction computes of `inputs` arrays, from an operator of nl or NumPy. UsageError."""
    if isinstance(op, Op) and op.inputs == inputs:
        return _of_bits(op.function) if op.bits else _arithmetic(op.function)
    if op is np.copy and inputs == 1:
        return _arithmetic(np.positive)
    if isinstance(op, Reduction) and inputs == 2:
        return _arithmetic(op.function)
    if isinstance(op, np.ufunc) and op.nin == inputs:
        return _of_bits(op) if op.__name__ in BITS or op is np.invert else _arithmetic(op)
    if op in _NUMPY and inputs == 2:
        return _arithmetic(_NUMPY[op])
    if isinstance(op, Op) and op.inputs == 1 and inputs == 2 and op.name in ("abs", "rsqrt"):  # of data, no operand
        return _arithmetic(lambda x, _: op.function(x))
    shown = getattr(op, "__name__", repr(op))
    ways = "one tile" if inputs == 1 else "two"
    fitting = [name for name, other in OPS.items() if (other.inputs if isinstance(other, Op) else 2) == inputs]
    others = f"there are {', '.join(fitting[:6])} and others, in docs/nki.md"
    raise UsageError(f"{name} takes an operator of {ways}, not {shown}: {nearest(shown, fitting, others)}")


def gathers(op: Any) -> bool:
    """May a loop apply it to a tile in any order of its iterations?"""
    return getattr(op, "__name__", "") in (*_ANY_ORDER, "bitwise_and", "bitwise_or", "bitwise_xor")


def along(reduce: Any, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """x without these axes: of bits, where the operator is of them, else in float32."""
    if reduce.__name__ in BITS:
        x = x.astype(np.int64)
    elif x.dtype.kind in "iub":
        x = x.astype(np.float32)
    if reduce is np.subtract and len(axes) > 1:  # what NumPy takes along one axis only
        left = [at for at in range(x.ndim) if at not in axes]
        x = x.transpose(*left, *axes).reshape(*(x.shape[at] for at in left), -1)
        axes = (x.ndim - 1,)
    return np.asarray(reduce.reduce(x, axis=axes))


def of_bits(op: Any) -> bool:
    """Is an operator one of bits?"""
    return getattr(op, "__name__", "") in (*BITS, "invert")


def check_bits(name: str, ops: tuple[Any, ...], tensors: tuple[Any, ...], out: np.dtype[Any]) -> None:
    """UsageError for operators of bits beside arithmetic ones, or of what is no whole number."""
    are = [of_bits(op) for op in ops if op is not None]
    if not any(are):
        return
    if not all(are):
        raise UsageError(f"{name}: one operator is of bits, the other arithmetic: take two instructions")
    dtypes = [*(tensor.dtype for tensor in tensors if isinstance(tensor, Tensor)), out]
    if wrong := [dtype for dtype in dtypes if dtype.kind not in "iub"]:
        raise UsageError(f"{name}: operators of bits take and give whole numbers, not {wrong[0]}: cast, or view(dtype)")


class OfMagnitudes:
    """A reduction of magnitudes, called as ufuncs are: also of a single number the magnitude."""

    def __init__(self, function: np.ufunc) -> None:
        self.function = function
        self.__name__ = function.__name__

    def __call__(self, x: Any, y: Any) -> Any:
        return self.function(np.abs(x), np.abs(y))

    def reduce(self, x: Any, **how: Any) -> Any:
        return self.function.reduce(np.abs(x), **how)


def reducing(name: str, op: Any) -> Any:
    """The ufunc that reduces as an operator says, or what reduces as one. UsageError."""
    function = op.function if isinstance(op, Op | Reduction) else _NUMPY.get(op, op)
    if isinstance(function, np.ufunc) and function.nin == 2:
        return function
    if isinstance(op, Op) and op.name in ("abs_max", "abs_min"):
        return OfMagnitudes(np.maximum if op.name == "abs_max" else np.minimum)
    raise UsageError(f"{name} reduces by nl.add, nl.max, nl.min and their like, not by {getattr(op, '__name__', op)}")


def _arithmetic(function: ArrayFunction) -> ArrayFunction:
    """Engines compute in float32, whole numbers as well."""

    def compute(*arrays: Any) -> Any:
        return function(*(_float(array) for array in arrays))

    return compute


def _float(array: Any) -> Any:
    return array.astype(np.float32) if isinstance(array, np.ndarray) and array.dtype.kind in "iub" else array


def _of_bits(function: ArrayFunction) -> ArrayFunction:
    """Of whole numbers, which a store may keep as float32. Numbers of Python's have the bits that the others have room
    for.
    """

    def compute(*arrays: Any) -> Any:
        whole = [
            array.astype(np.int64) if isinstance(array, np.ndarray) and array.dtype.kind == "f" else array
            for array in arrays
        ]
        kind = next(array.dtype for array in whole if isinstance(array, np.ndarray))
        return function(*(_bits_of(value, kind) for value in whole))

    return compute


def _bits_of(value: Any, kind: np.dtype[Any]) -> Any:
    return value if isinstance(value, np.ndarray) else np.asarray(int(value) & (1 << 64) - 1, np.uint64).astype(kind)


def cut_to(out: np.dtype[Any], ops: tuple[Any, ...], function: ArrayFunction) -> ArrayFunction:
    """A function whose results, if its operators are of bits, are cut to those of `out`, and do not saturate."""
    if out.kind not in "iu" or not all(op is None or of_bits(op) for op in ops):
        return function
    return lambda *arrays: np.asarray(function(*arrays)).astype(out)
