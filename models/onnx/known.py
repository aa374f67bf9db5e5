"""What is known of the values of a graph whose sizes may be names: shapes, and what small whole tensors hold."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from meshrt.models.onnx.graphs import constant
from meshrt.models.onnx.sizes import SymbolicSize

SymbolicShape = tuple[SymbolicSize, ...]
Content = NDArray[Any]  # of SymbolicSize, or of bool
MOST = 64  # numbers in a tensor that is followed


class Symbols:
    """What is known of the values of a graph: shapes, and contents of small whole tensors."""

    def __init__(self) -> None:
        self.shapes: dict[ir.Value, SymbolicShape] = {}
        self.contents: dict[ir.Value, Content] = {}
        self._fresh = 0

    def name(self) -> SymbolicSize:
        """A size of which nothing is known."""
        self._fresh += 1
        return SymbolicSize.of(f"n{self._fresh}")

    def shape(self, value: ir.Value | None) -> SymbolicShape | None:
        if value is None:
            return None
        if value not in self.shapes:
            if value.shape is None:
                return None
            self.shapes[value] = tuple(self._size(size) for size in value.shape)
        return self.shapes[value]

    def content(self, value: ir.Value | None) -> Content | None:
        """What a small tensor holds; None where that is not known."""
        if value is None or value in self.contents or value.const_value is None or value.const_value.size > MOST:
            return None if value is None else self.contents.get(value)
        numbers = constant(value)
        if numbers is not None and numbers.dtype.kind in "iu":
            self.contents[value] = objects([SymbolicSize.of(int(n)) for n in numbers.reshape(-1)], numbers.shape)
        elif numbers is not None and numbers.dtype.kind == "b":
            self.contents[value] = numbers
        return self.contents.get(value)

    def _size(self, size: Any) -> SymbolicSize:
        value = size if isinstance(size, int) else size.value
        return self.name() if value is None else SymbolicSize.of(value)

    def known(self, node: ir.Node, at: int) -> SymbolicShape:
        """An input's shape. ValueError where it is not known."""
        shape = self.shape(node.inputs[at])
        if shape is None:
            raise ValueError("not known")
        return shape


def objects(values: Sequence[Any], shape: tuple[int, ...]) -> Content:
    """An array of sizes: NumPy would look into them."""
    out = np.empty(len(values), object)
    out[:] = values
    return out.reshape(shape)
