"""What stands in the brackets of a tensor: numbers, slices, `nl.ds`, index arrays, and tiles that hold indices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from meshrt.errors import UsageError
from meshrt.nki.tensors.pattern import AccessPattern, Reach


class ds(NamedTuple):
    """`size` indices from `start` on."""

    start: Any
    size: int


def whole(name: str, value: Any) -> int:
    """A whole number, also one that a division has made a float, as 256 / 128. UsageError."""
    if type(value) is int:
        return value
    value = _scalar(value)
    number = None
    if not isinstance(value, str | bytes):
        with suppress(TypeError, ValueError, OverflowError):
            number = int(value)
    if number is None or number != value:
        raise UsageError(f"{name} is {value!r}; it is a whole number: divide with //, and round up with -(-n // size)")
    return number


def indexed(pattern: AccessPattern, key: Any, keep_first: bool) -> AccessPattern:
    """The part of a pattern that `key` says. UsageError.

    keep_first: the first axis is the partitions; a number there leaves it with a size of 1. Indices beyond the tensor
    are found when the part is used, as a mask may cut them off.
    """
    items = _items(pattern, key)
    if keep_first and items and isinstance(items[0], int):
        items[0] = ds(items[0], 1)
    if pattern.elements is not None:
        return _of_listed(pattern, items)
    axes = _axes(items)
    sizes = [1] * axes.rank
    sizes[axes.first : axes.first + len(axes.common)] = axes.common
    reaches, scattered = [], False
    for (item, axis), limit in zip(axes.placed(items), pattern.sizes, strict=True):
        start, steps = item, tuple[int, ...]()
        if isinstance(item, np.ndarray):
            affine = _affine(item)
            scattered |= affine is None
            start, steps = (0, ()) if affine is None else affine
        elif not isinstance(item, int):
            start, step, sizes[axis] = _sliced(item, limit)
            steps = (step,)
        behind = axes.rank - axis - len(steps)
        reaches.append(Reach(limit, start, (*(0,) * axis, *steps, *(0,) * behind)))
    shape = tuple(sizes)
    if not all(shape):
        raise UsageError(f"nothing is left of a tensor of shape {list(pattern.sizes)}")
    if scattered:
        return _gathered(pattern, items, shape, axes)
    offset = pattern.offset + sum(reach.start * stride for reach, stride in zip(reaches, pattern.strides, strict=True))
    strides = [0] * axes.rank
    for reach, stride in zip(reaches, pattern.strides, strict=True):
        strides = [total + step * stride for total, step in zip(strides, reach.steps, strict=True)]
    kept = tuple(reach for reach in reaches if reach.excess(shape) is not None)
    return AccessPattern(shape, tuple(strides), offset, (*_carried(pattern, reaches), *kept))


class ResultAxes(NamedTuple):
    """The `rank` axes of what is indexed: from `first` on those of index arrays, which have the sizes `common` when
    they are broadcast, and around them those of slices and the new ones.
    """

    rank: int
    first: int
    common: tuple[int, ...]

    def placed(self, items: list[Any]) -> Iterator[tuple[Any, int]]:
        """Each index, without new axes, and the first axis of the result that it goes along; of a number 0."""
        others = 0
        for item in items:
            if isinstance(item, int):
                yield item, 0
            elif isinstance(item, np.ndarray):
                yield item, self.first + len(self.common) - item.ndim
            else:
                axis = others if others < self.first else others + len(self.common)
                others += 1
                if item is not None:
                    yield item, axis


def _axes(items: list[Any]) -> ResultAxes:
    """NumPy's: the axes of index arrays come where the first of them is, or first, if something stands between them."""
    spots = [at for at, item in enumerate(items) if isinstance(item, np.ndarray)]
    common = np.broadcast_shapes(*(items[at].shape for at in spots))
    rank = sum(not isinstance(item, int | np.ndarray) for item in items) + len(common)
    if not spots or any(not isinstance(item, int | np.ndarray) for item in items[spots[0] : spots[-1]]):
        return ResultAxes(rank, 0, common)
    return ResultAxes(rank, sum(not isinstance(item, int) for item in items[: spots[0]]), common)


def _carried(pattern: AccessPattern, reaches: list[Reach]) -> tuple[Reach, ...]:
    """Unchecked indices of the pattern that is indexed again, in the axes of the result."""
    carried = []
    for old in pattern.reaches:
        start, steps = old.start, [0] * (len(reaches[0].steps) if reaches else 0)
        for factor, new in zip(old.steps, reaches, strict=True):
            start += factor * new.start
            steps = [total + factor * step for total, step in zip(steps, new.steps, strict=True)]
        carried.append(Reach(old.limit, start, tuple(steps)))
    return tuple(carried)


def _items(pattern: AccessPattern, key: Any) -> list[Any]:
    """One entry for each axis, and None for new ones; numbers as int, index arrays as arrays of int64."""
    items = [_item(item, pattern) for item in (key if isinstance(key, tuple) and not isinstance(key, ds) else (key,))]
    rank, given = len(pattern.sizes), sum(item is not None and item is not Ellipsis for item in items)
    if given > rank:
        raise UsageError(f"{given} indices for a tensor of shape {list(pattern.sizes)}")
    rest = [slice(None)] * (rank - given)
    if Ellipsis in [item for item in items if not isinstance(item, np.ndarray)]:
        at = next(at for at, item in enumerate(items) if item is Ellipsis)
        items[at : at + 1] = rest
    else:
        items += rest
    return items


def _item(item: Any, pattern: AccessPattern) -> Any:
    if item is None or item is Ellipsis or isinstance(item, slice | ds):
        return item
    if hasattr(item, "as_index"):  # a tile with indices in it
        item = item.as_index()
    if isinstance(item, np.ndarray):
        if item.dtype.kind not in "iu":
            raise UsageError(f"an index array has whole numbers, not {item.dtype}; what cuts elements off is mask=")
        return int(item) if item.ndim == 0 else item.astype(np.int64)
    if isinstance(item, bool) or not hasattr(item, "__index__"):
        raise UsageError(f"a tensor is indexed by numbers, slices, nl.ds and nl.arange, not by {type(item).__name__}")
    return item.__index__()


def _sliced(item: Any, limit: int) -> tuple[int, int, int]:
    """(start, step, size) of a slice or ds. What it says beyond the axis stays, for a mask to cut off."""
    if isinstance(item, ds):
        return whole("the start of a ds", item.start), 1, whole("the size of a ds", item.size)
    step = 1 if item.step is None else whole("the step of a slice", item.step)
    if step <= 0:
        raise UsageError(f"a slice has a step of {step}; it counts upwards")
    start = 0 if item.start is None else whole("the start of a slice", item.start)
    stop = limit if item.stop is None else whole("the end of a slice", item.stop)
    start, stop = (start + limit if start < 0 else start), (stop + limit if stop < 0 else stop)
    return start, step, max(0, -(-(stop - start) // step))


def _scalar(value: Any) -> Any:
    return value.as_index() if hasattr(value, "as_index") else value


def _affine(array: np.ndarray) -> tuple[int, tuple[int, ...]] | None:
    """(start, a step for each axis) of an index array that counts evenly; None for any other."""
    start = int(array.flat[0])
    steps = []
    even = np.full((1,) * array.ndim, start, np.int64)
    for axis, size in enumerate(array.shape):
        step = 0
        if size > 1:
            at = [0] * array.ndim
            at[axis] = 1
            step = int(array[tuple(at)]) - start
            shape = [1] * array.ndim
            shape[axis] = size
            even = even + step * np.arange(size).reshape(shape)
        steps.append(step)
    return (start, tuple(steps)) if np.array_equal(even, array) else None


def _gathered(pattern: AccessPattern, items: list[Any], shape: tuple[int, ...], axes: ResultAxes) -> AccessPattern:
    """The flat numbers of elements, by indices that do not count evenly."""
    elements = np.full(shape, pattern.offset, np.int64)
    inside = np.ones(shape, np.bool_)
    for (item, axis), limit, stride in zip(axes.placed(items), pattern.sizes, pattern.strides, strict=True):
        numbers = item
        if isinstance(item, slice | ds):
            start, step, size = _sliced(item, limit)
            numbers = start + step * np.arange(size)
        if isinstance(numbers, np.ndarray):
            numbers = numbers.reshape(numbers.shape + (1,) * (axes.rank - axis - numbers.ndim))
        elements = elements + numbers * stride
        inside = inside & (numbers >= 0) & (numbers < limit)
    return AccessPattern(shape, (0,) * len(shape), elements=np.where(inside, elements, -1))


def _of_listed(pattern: AccessPattern, items: list[Any]) -> AccessPattern:
    """A part of elements that are listed already: NumPy's own indexing."""
    assert pattern.elements is not None
    plain = []
    limits = iter(pattern.sizes)
    for item in items:
        limit = None if item is None else next(limits)
        if isinstance(item, ds):
            start, _, size = _sliced(item, limit or 0)
            item = slice(start, start + size)
        plain.append(item)
    try:
        elements = pattern.elements[tuple(plain)]
    except IndexError as error:
        raise UsageError(f"a part of shape {list(pattern.sizes)} cannot be indexed so: {error}") from error
    return replace(pattern, sizes=elements.shape, strides=(0,) * elements.ndim, elements=elements)
