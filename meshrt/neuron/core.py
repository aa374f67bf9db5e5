"""One NeuronCore, as programs have it: tensors in its HBM, and arithmetic with tiles as instructions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.neuron.dtypes import known, rounded
from meshrt.neuron.elementwise import activation, tensor_copy, tensor_scalar, tensor_tensor
from meshrt.neuron.engines import Core
from meshrt.neuron.isa import memset
from meshrt.neuron.operand import Operand
from meshrt.neuron.tile import Deferred, Tile, as_tile, new_tile


class NeuronCore(Core):
    """A core that computes on the vector engine where a kernel has operators and assignments of tiles."""

    def tensor_of(self, values: np.ndarray | tuple[int, ...], dtype: Any) -> Tile:
        """A tensor in HBM with these values, rounded to dtype; a shape alone will do without payload."""
        values = values if isinstance(values, tuple) else np.asarray(values)
        shape = values if isinstance(values, tuple) else values.shape
        if not shape:
            raise UsageError("a tensor has an axis at least, the partitions: give an array, such as np.full((p, f), 3)")
        tile = new_tile(self.hbm, shape, known(dtype), full=True)
        if self.payload:
            if isinstance(values, tuple):
                raise UsageError("a tensor of a run with numbers needs its values, not only their shape")
            try:
                tile.data[...] = rounded(values, tile.dtype)
            except (TypeError, ValueError) as error:
                raise UsageError(f"a tensor is made of numbers, not of {values.dtype}: {error}") from error
        return tile

    def apply(self, op: Any, inputs: Sequence[Any], dtype: Any) -> Deferred:
        """The instruction for a function of tiles: `np.exp(tile)`, `tile * 2`, `nl.add(tile, tile)`."""
        if len(inputs) == 1:
            return tensor_copy(inputs[0], dtype=dtype) if op is np.positive else activation(op, inputs[0], dtype=dtype)
        left, right = inputs
        tiles = [isinstance(value, Operand) for value in inputs]
        if all(tiles):
            left, right = as_tile(left), as_tile(right)
            narrow = [tile.shape == (tile.shape[0], 1) for tile in (left, right)]
            if narrow[0] == narrow[1] or left.shape[0] != right.shape[0]:
                return tensor_tensor(left, right, op, dtype=dtype)
            tiles = [not is_narrow for is_narrow in narrow]
        tile, operand = (left, right) if tiles[0] else (right, left)
        return tensor_scalar(tile, op, operand, not tiles[0], dtype=dtype)

    def copy(self, target: Tile, source: Tile) -> None:
        """target[...] = source, on the vector engine."""
        tensor_copy(source).into(target, False)

    def add(self, target: Tile, value: Any) -> None:
        """target += a tile or a number, on the vector engine."""
        self.apply(np.add, (target, value), None).into(target, False)

    def fill(self, target: Tile, value: Any) -> None:
        """target[...] = a number, on the vector engine."""
        memset(target, value)
