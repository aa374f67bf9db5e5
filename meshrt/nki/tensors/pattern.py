"""Which elements of a store an operand is: an offset and a stride for each axis, or a list of them."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from meshrt.errors import UsageError
from meshrt.records import dataclass


@dataclass(frozen=True, eq=False)
class Reach:
    """Where an index goes on one axis of what it indexes: start + sum(steps[d] * i[d]), which has to be in 0..limit."""

    limit: int
    start: int
    steps: tuple[int, ...]  # one for each axis of the result

    def excess(self, sizes: tuple[int, ...]) -> int | None:
        """An index beyond the axis, if there is one."""
        turns = [step * (size - 1) for step, size in zip(self.steps, sizes, strict=True)]
        low, high = self.start + sum(t for t in turns if t < 0), self.start + sum(t for t in turns if t > 0)
        return low if low < 0 else high if high >= self.limit else None


@dataclass(frozen=True, eq=False)
class AccessPattern:
    """Elements of a store, which is flat here: sizes, strides and offset count elements.

    `elements`, if given, are their flat numbers themselves, an array of `sizes`, -1 for those beyond the tensor.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    reaches: tuple[Reach, ...] = ()  # of indices that were not checked yet
    elements: np.ndarray | None = None

    @staticmethod
    def whole(sizes: tuple[int, ...]) -> AccessPattern:
        strides = tuple(prod(sizes[at + 1 :]) for at in range(len(sizes)))
        return AccessPattern(sizes, strides)

    @property
    def repeats(self) -> bool:
        """One element stands for several."""
        if self.elements is not None:
            return False
        return any(stride == 0 and size > 1 for stride, size in zip(self.strides, self.sizes, strict=True))

    def checked(self) -> AccessPattern:
        """The same, all of it inside the tensor. UsageError."""
        for reach in self.reaches:
            excess = reach.excess(self.sizes)
            if excess is not None:
                raise UsageError(
                    f"an index reaches {excess} on an axis of {reach.limit}: make it smaller, or give mask="
                )
        if self.elements is not None and self.elements.size and int(self.elements.min()) < 0:
            raise UsageError("an index array reaches beyond its tensor: make it smaller, or give mask=")
        return replace(self, reaches=()) if self.reaches else self

    def cut(self, extents: tuple[int, ...]) -> AccessPattern:
        """The first elements along each axis, which axes of size 1 keep: aligned at the last axis."""
        extents = extents[len(extents) - len(self.sizes) :] if len(extents) >= len(self.sizes) else extents
        if len(extents) != len(self.sizes):
            return self
        sizes = tuple(min(size, extent) if size > 1 else size for size, extent in zip(self.sizes, extents, strict=True))
        if sizes == self.sizes:
            return self
        elements = None if self.elements is None else self.elements[tuple(slice(size) for size in sizes)]
        return replace(self, sizes=sizes, elements=elements)

    def kept(self, mask: np.ndarray) -> AccessPattern:
        """What a mask leaves: the first elements along each axis. UsageError for others."""
        extents = kept_extents(mask, self.sizes)
        if extents is None:
            raise UsageError("a mask in brackets leaves the first elements of each axis, no others")
        return self.cut(extents)

    def listed(self) -> np.ndarray:
        """The elements' flat numbers, -1 for those beyond the tensor."""
        if self.elements is not None:
            return self.elements
        elements = np.full(self.sizes, self.offset, np.int64)
        inside = np.ones(self.sizes, np.bool_)
        grids = np.ogrid[tuple(slice(size) for size in self.sizes)]
        for grid, stride in zip(grids, self.strides, strict=True):
            elements = elements + grid * stride
        for reach in self.reaches:
            at: Any = reach.start
            for grid, step in zip(grids, reach.steps, strict=True):
                at = at + grid * step
            inside = inside & (at >= 0) & (at < reach.limit)
        return np.where(inside, elements, -1)

    def view(self, flat: np.ndarray) -> np.ndarray:
        """Those elements of an array of the store's size: a view, or a copy where they are listed."""
        if self.elements is not None:
            listed: np.ndarray = flat.reshape(-1)[self.elements]
            return listed
        width = flat.itemsize
        if 0 in flat.strides:  # shapes only
            return np.ndarray(self.sizes, flat.dtype, buffer=bytes(width), strides=(0,) * len(self.sizes))
        return np.ndarray(
            self.sizes, flat.dtype, flat, self.offset * width, tuple(stride * width for stride in self.strides)
        )

    def put(self, flat: np.ndarray, values: Any) -> None:
        """Set those elements of an array of the store's size."""
        if self.elements is not None:
            flat.reshape(-1)[self.elements] = values
        else:
            self.view(flat)[...] = values


def kept_extents(mask: Any, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The first so many along each axis, if that is what a mask leaves of a shape. UsageError."""
    try:
        kept = np.broadcast_to(np.asarray(mask, np.bool_), shape)
    except ValueError as error:
        raise UsageError(f"a mask of {list(np.shape(mask))} does not fit a tile of {list(shape)}") from error
    axes = range(kept.ndim)
    extents = tuple(int(kept.any(axis=tuple(other for other in axes if other != axis)).sum()) for axis in axes)
    inside = kept[tuple(slice(extent) for extent in extents)]
    return extents if bool(inside.all()) and kept.sum() == inside.size else None


def padded(part: AccessPattern) -> AccessPattern:
    """With a last axis of 1."""
    return replace(
        part, sizes=(*part.sizes, 1), strides=(*part.strides, 1),
        reaches=tuple(replace(reach, steps=(*reach.steps, 0)) for reach in part.reaches),
        elements=None if part.elements is None else part.elements[..., None],
    )  # fmt: skip


def reshaped(pattern: AccessPattern, sizes: tuple[int, ...]) -> AccessPattern:
    """The same elements in the same order in other axes. ValueError where their strides do not allow that."""
    pattern = pattern.checked()
    if pattern.elements is not None:
        listed = pattern.elements.reshape(sizes)
        return AccessPattern(listed.shape, (0,) * listed.ndim, elements=listed)
    probe = as_strided(np.zeros(1, np.int8), pattern.sizes, pattern.strides)  # never looked into
    shaped = np.reshape(probe, sizes, copy=False)
    return AccessPattern(shaped.shape, shaped.strides, pattern.offset)


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without its axes of 1."""
    return tuple(size for size in shape if size != 1)


def retyped(pattern: AccessPattern, of: np.dtype[Any], to: np.dtype[Any]) -> AccessPattern:
    """The same bytes as numbers of another dtype. UsageError where rows do not come out even."""
    pattern = pattern.checked()
    if pattern.elements is not None or (pattern.sizes[-1] > 1 and pattern.strides[-1] != 1):
        raise UsageError("view takes a tile whose last axis lies in one row")
    old, width = of.itemsize, to.itemsize
    lengths = (*pattern.strides[:-1], pattern.offset, pattern.sizes[-1])
    if any(length * old % width for length in lengths):
        raise UsageError(f"rows of {pattern.sizes[-1]} {of} do not come out as numbers of {to}")
    *strides, offset, last = (length * old // width for length in lengths)
    return AccessPattern((*pattern.sizes[:-1], last), (*strides, 1), offset)
