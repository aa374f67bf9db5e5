"""A part of a store by its pattern: what the machine's instructions are given."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.neuron.dtypes import from_raw, to_raw
from meshrt.neuron.regions import Box, Extent, boxes_of
from meshrt.neuron.store import Store, StoreView
from meshrt.nki.tensors.pattern import AccessPattern
from meshrt.records import dataclass


@dataclass(frozen=True, eq=False)
class PatternExtent(Extent):
    """Elements of `width` bytes that a pattern names: what the machine keeps of when they were used."""

    pattern: AccessPattern
    width: int

    def boxes(self, shape: tuple[int, ...], itemsize: int) -> list[Box]:
        """See regions.py. Of elements that are listed, the box around all."""
        pattern, width, row_bytes = self.pattern, self.width, prod(shape[1:]) * itemsize
        if pattern.elements is None:
            strides = [stride * width for stride in pattern.strides]
            return boxes_of(pattern.offset * width, pattern.sizes, strides, width, row_bytes)
        if not pattern.elements.size:
            return []
        rows, columns = np.divmod(pattern.elements * width, row_bytes)
        return [(int(rows.min()), int(rows.max()) + 1, int(columns.min()), int(columns.max()) + width)]


class PatternView(StoreView):
    """StoreView (neuron/store.py) of any strides, or of elements that are listed; `data` is then a copy."""

    __slots__ = ("as_dtype", "pattern")

    def __init__(self, store: Store, pattern: AccessPattern, dtype: np.dtype[Any] | None = None) -> None:
        pattern = pattern.checked()
        self.as_dtype = store.dtype if dtype is None else dtype  # another reads the same bytes as that
        super().__init__(store, pattern.view(self._flat(store)))
        self.pattern = pattern
        self.repeats = pattern.repeats

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.as_dtype

    def extent(self) -> PatternExtent:
        return PatternExtent(self.pattern, self.as_dtype.itemsize)

    def _flat(self, store: Store) -> np.ndarray:
        if self.as_dtype == store.dtype or not store.buffer.payload:
            return store.data
        return from_raw(to_raw(store.data, store.dtype).reshape(-1).view(self.as_dtype))

    def _mask(self) -> np.ndarray:
        assert self.store.mask is not None
        return self.of(self.store.mask, np.logical_and)

    def of(self, marks: np.ndarray, join: np.ufunc = np.maximum) -> np.ndarray:
        """These elements of an array that has one number for each of the store; those of wider ones are joined."""
        if self.as_dtype != self.store.dtype:
            old, new = self.store.dtype.itemsize, self.as_dtype.itemsize
            marks = np.asarray(join.reduce(np.repeat(marks.reshape(-1), old).reshape(-1, new), axis=1))
        return self.pattern.view(marks)

    def mark(self, marks: np.ndarray, value: Any) -> None:
        """Set these elements of such an array; narrower ones set that which they are a part of."""
        if self.as_dtype == self.store.dtype:
            self.pattern.put(marks, value)
            return
        old, new = self.store.dtype.itemsize, self.as_dtype.itemsize
        touched = np.zeros(marks.size * old // new, np.bool_)
        self.pattern.put(touched, True)
        marks.reshape(-1)[np.repeat(touched, new).reshape(-1, old).any(axis=1)] = value

    def check_written(self, name: str) -> None:
        store = self.store
        if store.full or (store.mask is not None and bool(self._mask().all())):
            return
        if store.mask is None:
            missing = "nothing of it was"
        else:
            missing = f"{int((~self._mask()).sum())} of {self.data.size} elements were not"
        raise UsageError(
            f"{name} reads {list(self.shape)} of {store.buffer.name} that was never written ({missing}): load it, or "
            "set it to zeros"
        )

    def note_written(self) -> None:
        store = self.store
        if store.full:
            return
        if self.data.size == store.data.size and not self.repeats and self.as_dtype.itemsize == store.dtype.itemsize:
            store.full = True
        else:
            if store.mask is None:
                store.mask = np.zeros(store.shape, np.bool_)
            self.mark(store.mask, True)
            store.written += self.data.size
            store.full = store.written >= store.data.size and bool(store.mask.all())
        if store.full:
            store.mask = None

    def write(self, values: Any) -> None:
        """Set the numbers, which are rounded already."""
        if self.as_dtype != self.store.dtype:
            raw = to_raw(self.store.data, self.store.dtype)
            self.pattern.put(raw.reshape(-1).view(self.as_dtype), to_raw(np.asarray(values), self.as_dtype))
            self.store.data[...] = from_raw(raw)
            return
        if self.pattern.elements is None:
            self.data[...] = values
        else:
            self.pattern.put(self.store.data, values)
