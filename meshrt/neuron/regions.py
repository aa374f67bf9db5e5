"""When parts of an allocation were last read or written: seconds, by partition and byte.

What an operand touches is a list of boxes, of rows (partitions; in HBM the first axis) and of bytes in a row. They are
exact for slices, for strides of up to MOST_BOXES pieces, and for rows that follow one another; else one box around all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

Box = tuple[int, int, int, int]  # rows from, to; bytes of a row from, to
MOST_BOXES = 64  # that an operand is cut into
MOST_CELLS = 1 << 16  # of a grid: what would cut it further takes in the cells around it
LOGGED = 1024  # accesses that wait for their place in the grid


class Extent:
    """Which part of a store an operand is, without a reference to it."""

    def boxes(self, shape: tuple[int, ...], itemsize: int) -> list[Box]:
        """Of a store of that shape, and of so many bytes an element."""
        raise NotImplementedError


# An operand's part may also be said by what was indexed: an index or a function from an array to a view of it; a list
# of them, each of the part before, from the whole on.
AnyExtent = Any


def boxes_of(offset: int, sizes: Sequence[int], strides: Sequence[int], width: int, row_bytes: int) -> list[Box]:
    """The bytes of `width` at offset + i * stride for all i below the sizes, in rows of `row_bytes`."""
    axes = sorted((abs(stride), size) for size, stride in zip(sizes, strides, strict=True) if size > 1 and stride)
    offset += sum(stride * (size - 1) for size, stride in zip(sizes, strides, strict=True) if stride < 0)
    run, axes = _run(width, axes)
    across, down = [axis for axis in axes if axis[0] < row_bytes], [axis for axis in axes if axis[0] >= row_bytes]
    row, column = divmod(offset, row_bytes)
    reach = run + sum(stride * (size - 1) for stride, size in across)
    if column + reach > row_bytes or any(stride % row_bytes for stride, _ in down):
        last = offset + reach + sum(stride * (size - 1) for stride, size in down)
        return [(row, -(-last // row_bytes), 0, row_bytes)]
    rows, down = _run(1, [(stride // row_bytes, size) for stride, size in down])
    if prod(size for _, size in (*down, *across)) > MOST_BOXES:
        return [(row, row + rows + sum(stride * (size - 1) for stride, size in down), column, column + reach)]
    starts = product(_starts(row, down), _starts(column, across))
    return [(high, high + rows, left, left + run) for high, left in starts]


def _run(length: int, axes: Sequence[tuple[int, int]]) -> tuple[int, list[tuple[int, int]]]:
    """What the first axes (stride, size), in order of their strides, make of a run without gaps; and the other axes."""
    for at, (stride, size) in enumerate(axes):
        if stride > length:
            return length, [*axes[at:]]
        length += stride * (size - 1)
    return length, []


def _starts(first: int, axes: Sequence[tuple[int, int]]) -> list[int]:
    """Where the pieces that axes (stride, size) cut begin."""
    starts = [first]
    for stride, size in axes:
        starts = [start + stride * turn for start in starts for turn in range(size)]
    return starts


@lru_cache(maxsize=256)
def _hollow(shape: tuple[int, ...]) -> np.ndarray:
    """An array of that shape that is never looked into: it has no memory."""
    strides = np.cumprod([1, *shape[:0:-1]])[::-1]
    return as_strided(np.zeros(1, np.int8), shape, strides)


def _boxes(extent: AnyExtent, shape: tuple[int, ...], itemsize: int) -> list[Box]:
    if isinstance(extent, Extent):
        return extent.boxes(shape, itemsize)
    if extent.__class__ is tuple and len(shape) == len(extent) == 2:
        rows, columns = extent
        if rows.__class__ is slice and columns.__class__ is slice:
            (top, end, down), (left, right, across) = rows.indices(shape[0]), columns.indices(shape[1])
            if down == across == 1:
                return [(top, end, left * itemsize, right * itemsize)]
    whole = view = _hollow(shape)
    for key in extent if isinstance(extent, list) else (extent,):
        view = key(view) if callable(key) else view[key]
    offset = view.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    strides = [stride * itemsize for stride in view.strides]
    return boxes_of(offset * itemsize, view.shape, strides, itemsize, whole.size // shape[0] * itemsize)


class TimeGrid:
    """Seconds of boxes: rows and bytes are cut where boxes have begun and ended, and each cell has its time."""

    __slots__ = ("columns", "rows", "times")

    def __init__(self, rows: Sequence[int], columns: Sequence[int], times: np.ndarray) -> None:
        self.rows = [*rows]  # cuts, of which the first and the last are the ends
        self.columns = [*columns]
        self.times = times  # [cuts of rows - 1, cuts of columns - 1]

    def latest(self, box: Box) -> float:
        """The last second of any cell that the box has a byte of."""
        top, end, left, right = box
        rows, columns = self.rows, self.columns
        high, low = bisect_right(rows, top) - 1, bisect_left(rows, end)
        first, last = bisect_right(columns, left) - 1, bisect_left(columns, right)
        if low - high == last - first == 1:
            return float(self.times[high, first])
        return float(self.times[high:low, first:last].max())

    def note(self, box: Box, when: float) -> None:
        """Nothing of the box is before `when`."""
        top, end, left, right = box
        high, low = self._cut(0, self.rows, top, False), self._cut(0, self.rows, end, True)
        first, last = self._cut(1, self.columns, left, False), self._cut(1, self.columns, right, True)
        cells = self.times[high:low, first:last]
        np.maximum(cells, when, out=cells)

    def _cut(self, axis: int, cuts: list[int], where: int, up: bool) -> int:
        """The number of the cut at `where`, a new one if need be; the next one `up` or down if there are too many."""
        at = bisect_left(cuts, where)
        if cuts[at] == where:
            return at
        if self.times.size + self.times.shape[1 - axis] > MOST_CELLS:
            return at if up else at - 1
        self.times = np.insert(self.times, at, self.times.take(at - 1, axis), axis)
        cuts.insert(at, where)
        return at

    def after(self, since: float, base: float) -> TimeGrid:
        """The same with the fewest cuts; no cell before `base`, and 0 in what is not after `since`."""
        times = np.maximum(self.times, base)
        times = np.where(times > since, times, 0.0)
        down = [0, *(1 + np.flatnonzero((times[1:] != times[:-1]).any(axis=1)))]
        across = [0, *(1 + np.flatnonzero((times[:, 1:] != times[:, :-1]).any(axis=0)))]
        rows, columns = [self.rows[at] for at in down], [self.columns[at] for at in across]
        return TimeGrid([*rows, self.rows[-1]], [*columns, self.columns[-1]], times[np.ix_(down, across)])


class PartTimes:
    """When each byte of a store was last read, or written, once this differs: accesses are found a place if asked for.

    `base`: the second of what was accessed as a whole, or before there were parts.
    """

    __slots__ = ("base", "ends", "extents", "grid", "itemsize", "shape")

    def __init__(self, shape: tuple[int, ...], itemsize: int, base: float) -> None:
        self.shape = shape
        self.itemsize = itemsize
        self.base = base
        self.ends: list[float] = []  # of accesses that have no place in the grid yet
        self.extents: list[AnyExtent] = []  # and of which part they were
        self.grid: TimeGrid | None = None

    def note(self, when: float, extent: AnyExtent) -> None:
        """A part is in use until `when`."""
        self.ends.append(when)
        self.extents.append(extent)
        if len(self.ends) > LOGGED:
            self.place()

    def latest(self, extent: AnyExtent) -> float:
        """The second until which any byte of a part is in use."""
        grid = self.place()
        return max(self.base, max(map(grid.latest, _boxes(extent, self.shape, self.itemsize)), default=0.0))

    def keep(self, box: Box, when: float) -> None:
        """The same of a box, which may have nothing in it."""
        if when and box[0] < box[1] and box[2] < box[3]:
            self.place().note(box, when)

    def after(self, since: float) -> TimeGrid | None:
        """All of it in one form whatever happened before `since`; None if all bytes have one time."""
        grid = self.place().after(since, self.base)
        return grid if grid.times.size > 1 else None

    def place(self) -> TimeGrid:
        """Everything that was noted, in the grid."""
        if self.grid is None:
            row_bytes = prod(self.shape[1:]) * self.itemsize
            self.grid = TimeGrid((0, self.shape[0]), (0, row_bytes), np.zeros((1, 1)))
        if self.ends:
            boxes: dict[Box, float] = {}
            for when, extent in zip(self.ends, self.extents, strict=True):
                if when > self.base:
                    _keep(boxes, _boxes(extent, self.shape, self.itemsize), when)
            self.ends.clear()
            self.extents.clear()
            for box, when in boxes.items():
                self.grid.note(box, when)
        return self.grid


def _keep(times: dict[Box, float], boxes: Iterable[Box], when: float) -> None:
    for box in boxes:
        if when > times.get(box, 0.0):
            times[box] = when
