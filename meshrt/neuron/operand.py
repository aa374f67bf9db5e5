"""What tiles and results have in common: arithmetic with them is an instruction."""

from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.neuron.engines import Core


class Operand:
    """A tile, or a result that has none yet. Arithmetic with them, and NumPy's functions of them, are instructions."""

    __slots__ = ()
    core: Any  # that it is of: engines.Core

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, dtype: Any = None, **options: Any) -> Any:
        if method != "__call__" or options:
            raise UsageError(f"{ufunc.__name__} of tiles takes tiles, numbers and dtype, no more; see nl and nisa")
        return _instruction(ufunc, *inputs, dtype=dtype)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise UsageError("a tile is no array: use nl and nisa on it, or read tensor.data at the end")

    def __eq__(self, other: object) -> bool:
        if other is None or other is self:
            return other is self
        raise UsageError("tiles are not compared by == and !=: Python would ask whether they are one object")

    __hash__ = object.__hash__

    def __add__(self, other: Any) -> Any:
        return _instruction(np.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return _instruction(np.add, other, self)

    def __sub__(self, other: Any) -> Any:
        return _instruction(np.subtract, self, other)

    def __rsub__(self, other: Any) -> Any:
        return _instruction(np.subtract, other, self)

    def __mul__(self, other: Any) -> Any:
        return _instruction(np.multiply, self, other)

    def __rmul__(self, other: Any) -> Any:
        return _instruction(np.multiply, other, self)

    def __truediv__(self, other: Any) -> Any:
        return _instruction(np.divide, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _instruction(np.divide, other, self)


def _instruction(ufunc: np.ufunc, *inputs: Any, dtype: Any = None) -> Any:
    core: Core = next(value.core for value in inputs if isinstance(value, Operand))
    return core.apply(ufunc, inputs, dtype)
