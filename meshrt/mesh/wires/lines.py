"""How the arrays of a block look as lines of cores, and positions along those lines."""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from meshrt.records import dataclass

Index = slice | np.ndarray

ROOM = 4096  # positions that are kept one by one: for more they would take more memory than what they are positions of


def marked(n: int, cores: Iterable[int]) -> np.ndarray:
    """bool [n]: these cores of a line of n."""
    marks = np.zeros(n, bool)
    marks[list(cores)] = True
    return marks


@dataclass(frozen=True, eq=False)
class View:
    """How arrays of the block look as [lines, positions along the line]; without an axis, as one line of all cores."""

    axis: str | None
    lines: slice
    count: int
    length: int

    def of(self, array: np.ndarray, lead: int = 0) -> np.ndarray:
        """The array with its dimensions lead and lead + 1, which are [bh, bw], as [lines, length]. A view."""
        if self.axis is None:
            return array.reshape(*array.shape[:lead], 1, -1, *array.shape[lead + 2 :])
        turned = array.swapaxes(lead, lead + 1) if self.axis == "y" else array
        return turned[(slice(None),) * lead + (self.lines,)] if lead else turned[self.lines]

    def new(self, lead: tuple[int, ...], length: int, tail: tuple[int, ...], dtype: Any, out: Any = None) -> np.ndarray:
        """An array [*lead, lines, length, *tail], in memory ordered as the block's own are, so that copies are fast."""
        count = self.count
        shape = (*lead, length, count, *tail) if self.axis == "y" else (*lead, count, length, *tail)
        array = np.empty(shape, dtype) if out is None else out.view(dtype).reshape(shape)
        return array.swapaxes(len(lead), len(lead) + 1) if self.axis == "y" else array

    def strips(self, lines: int) -> list[tuple[slice, "View"]]:
        """So many lines at a time: which of this view's lines they are, and a view of them alone."""
        if lines >= self.count:
            return [(slice(None), self)]
        parts = []
        for low in range(0, self.count, lines):
            high = min(low + lines, self.count)
            chosen = range(*self.lines.indices(self.lines.stop))[low:high]
            parts.append((slice(low, high), View(self.axis, as_slice(chosen), high - low, self.length)))
        return parts


class Positions:
    """Some positions of an array's last axis: a view made once where they are evenly spaced, else a copy each time."""

    __slots__ = ("array", "index", "view")

    def __init__(self, array: np.ndarray, index: Index) -> None:
        self.view = array[..., index] if isinstance(index, slice) else None
        if not isinstance(index, slice):  # positions in the memory that the array is a view of: several times as fast
            array, index = _in_memory(array, index)
        self.array, self.index = array, index

    def get(self) -> np.ndarray:
        return self.array[self.index] if self.view is None else self.view

    def put(self, values: np.ndarray) -> None:
        if self.view is None:
            self.array[self.index] = values
        elif values is not self.view:
            self.view[...] = values


def _in_memory(array: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, Any]:
    """The flat memory that an array is a view of, and where those positions of its last axis are in it."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if owner.dtype != array.dtype or not owner.flags.c_contiguous or prod(array.shape[:-1]) * len(index) > ROOM:
        return array, (..., index)
    start = (array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]) // array.itemsize
    *steps, last = [step // array.itemsize for step in array.strides]
    flat = start + last * index
    for size, step in zip(array.shape[-2::-1], steps[::-1], strict=True):
        flat = np.add.outer(step * np.arange(size), flat)
    return owner.reshape(-1), flat


def as_slice(positions: range) -> slice:
    """The slice that picks the positions of a range."""
    return slice(positions.start, positions.stop if positions.stop >= 0 else None, positions.step)


def as_index(positions: Sequence[int] | np.ndarray) -> Index:
    """A slice where the positions are evenly spaced and rising, which NumPy follows without a copy; else themselves."""
    at: np.ndarray = np.asarray(positions, np.int64)
    count = len(at)
    if not count:
        return slice(0, 0)
    first = int(at[0])
    step = int(at[1]) - first if count > 1 else 1
    last = first + step * (count - 1)
    if step > 0 and at[-1] == last and (count < 3 or bool((at[1:] - at[:-1] == step).all())):
        return slice(first, last + 1, step)
    return at


def positions(index: Index) -> list[int]:
    """The positions that an index of `as_index` picks."""
    picked: list[int] = index.tolist() if isinstance(index, np.ndarray) else [*range(*index.indices(index.stop))]
    return picked


def pieces(*positions: np.ndarray) -> list[tuple[Index, ...]]:
    """Positions of several arrays that belong together, cut so that slices do for all; as they are if that is many.

    The order of the positions is not kept.
    """
    count = len(positions[0])
    if count < 2:  # as mostly on a small mesh
        return [tuple(as_index(array) for array in positions)] if count else []
    # By distance, then by position.
    order = np.lexsort((positions[0], *(array - positions[0] for array in positions[1:])))
    remaining = np.array([array[order] for array in positions])
    gaps = remaining[:, 1:] - remaining[:, :-1]
    runs: list[tuple[Index, ...]] = []
    while remaining.shape[1]:
        even = (gaps == gaps[:, :1]).all(axis=0) if gaps.shape[1] and (gaps[:, 0] > 0).all() else np.zeros(0, bool)
        count = 1 + (len(even) if even.all() else int(np.argmin(even)))
        ends = zip(remaining[:, 0].tolist(), remaining[:, count - 1].tolist(), strict=True)
        steps = gaps[:, 0].tolist() if count > 1 else [1] * len(positions)
        runs.append(tuple(slice(first, last + 1, step) for (first, last), step in zip(ends, steps, strict=True)))
        remaining, gaps = remaining[:, count:], gaps[:, count:]
        if len(runs) > 4 and len(runs) * 16 > len(order):
            return [tuple(as_index(array) for array in positions)]
    return runs
