"""Operands of instructions that work element by element: numbers, and tiles with one for each partition."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.nki.instructions.emit import Extents
from meshrt.nki.instructions.repeat import repeated
from meshrt.nki.tensors.tensor import Tensor


def free(extents: Extents) -> int:
    """Elements in each partition."""
    return prod(extents[1:])


def check_number(name: str, value: Any) -> None:
    """UsageError for None, of which NumPy makes NaN, and for a text, which it reads."""
    if value is None or isinstance(value, str):
        raise UsageError(f"{name} is {value!r}; it is a number or a tile")


def operand(name: str, value: Any, data: Tensor) -> Any:
    """A number, or a tile with one for each partition of data. UsageError."""
    if not isinstance(value, Tensor):
        if value is None or isinstance(value, str):  # NumPy makes NaN of the one, and reads the other
            raise UsageError(f"{name} is {value!r}; it is a number or a tile [{data.shape[0]}, 1]")
        try:
            if np.ndim(value):
                raise TypeError
            return int(value) if isinstance(value, int | np.integer) else np.float32(value)
        except (TypeError, ValueError):
            raise UsageError(f"{name} is {value!r:.60}; it is a number or a tile [{data.shape[0]}, 1]") from None
    value.settle()
    if value.shape[0] == 1 and data.shape[0] != 1 and value.size == 1:
        return repeated(value, (data.shape[0], 1))
    if value.shape[0] != data.shape[0] or value.size != value.shape[0]:
        raise UsageError(f"{name} has shape {list(value.shape)}; it is a number or a tile [{data.shape[0]}, 1]")
    return value


def spread(values: list[Any], data: Tensor) -> tuple[list[Tensor], Any]:
    """The tiles among operands, and how to have all of them as arrays that fit data's, from the tiles' numbers."""
    tiles = [value for value in values if isinstance(value, Tensor)]

    def arrays(*numbers: np.ndarray) -> list[Any]:
        rest = iter(numbers)
        rank = len(data.shape)
        return [next(rest).reshape(-1, *(1,) * (rank - 1)) if isinstance(value, Tensor) else value for value in values]

    return tiles, arrays


def sizes_of(*tensors: Tensor) -> tuple[str, ...]:
    return tuple(tensor.settle().buffer.name for tensor in tensors)
