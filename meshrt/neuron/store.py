"""The memory of one allocation: its bytes, what of it was written, and when it can be read and written again."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from meshrt.neuron.memory import Buffer

_ZERO = bytes(4)


class Store:
    """The memory of one allocation, freed when no tile refers to it any more.

    Numbers are kept as float32, rounded to `dtype` when they are written: the values are those of `dtype`, and the
    products need no conversion. Without payload the array is one zero with strides of zero, so that shapes still hold.
    """

    __slots__ = (
        "__weakref__", "buffer", "core", "data", "dtype", "full", "idle", "mask", "nbytes", "owned", "ready",
        "resident", "row_bytes", "saved", "shape", "used", "writes", "written",
    )  # fmt: skip

    def __init__(self, buffer: Buffer, shape: tuple[int, ...], dtype: np.dtype[Any], full: bool) -> None:
        self.owned = False
        self.buffer = buffer
        self.core = buffer.core
        self.shape = shape
        self.dtype = dtype
        self.full = full  # every element was written
        self.mask: np.ndarray | None = None  # which were, if some were
        self.written = 0
        self.writes = 0  # instructions that wrote here
        self.row_bytes = prod(shape[1:]) * dtype.itemsize  # in each partition
        self.nbytes = self.row_bytes * shape[0]
        self.ready = 0.0  # the second at which the last write ends
        self.idle = 0.0  # the second at which the last read ends, or at which the place was free
        self.used = 0  # when it was used last, in instructions
        self.resident = True  # False: spilled to HBM
        self.saved = False  # HBM has a copy that is still right
        buffer.take(self)
        self.owned = True
        self.data: np.ndarray = (
            np.empty(shape, np.float32)
            if buffer.payload
            else np.ndarray(shape, np.float32, buffer=_ZERO, strides=(0,) * len(shape))
        )

    def __del__(self) -> None:
        if self.owned:
            self.buffer.release(self)

    @property
    def dirty(self) -> bool:
        """Something was written, of which HBM has no copy."""
        return not self.saved and (self.full or self.mask is not None)
