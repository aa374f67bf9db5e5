"""Arrays of tiles: what `nl.ndarray` gives where axes precede the partition axis (`nl.par_dim`)."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.nki.instructions.moves import memset, new_tile
from meshrt.nki.tensors.index import ds
from meshrt.nki.tensors.tensor import Tensor, assign
from meshrt.records import dataclass


class par_dim(int):
    """Marks the partition axis of a shape; axes before it count tiles."""


class Blocks:
    """Tiles by their numbers, each made when it is first named."""

    def __init__(self, memory: str, axes: tuple[int, ...], shape: tuple[int, ...], dtype: Any, zero: bool) -> None:
        self.memory = memory
        self.axes = axes
        self.tile_shape = shape
        self.shape = (*axes, *shape)
        self.dtype = dtype
        self.zero = zero
        self.tiles: dict[tuple[int, ...], Tensor] = {}

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def find(self, at: tuple[int, ...]) -> Tensor:
        """The tile of these numbers."""
        if not all(0 <= index < size for index, size in zip(at, self.axes, strict=True)):
            raise UsageError(f"there is no tile {list(at)} of {list(self.axes)}")
        if at not in self.tiles:
            tile = new_tile(self.memory, self.tile_shape, self.dtype)
            if self.zero:
                zeroed(tile)
            self.tiles[at] = tile
        return self.tiles[at]

    def _split(self, key: Any) -> tuple[tuple[int, ...], tuple[Any, ...]] | None:
        items = key if isinstance(key, tuple) and not isinstance(key, ds) else (key,)
        count = len(self.axes)
        numbers = [_number(item) for item in items[:count]]
        if len(items) < count or any(number is None for number in numbers):
            return None
        return tuple(numbers), tuple(items[count:])  # type: ignore[arg-type]  # none is None, by the line above

    def __getitem__(self, key: Any) -> Any:
        split = self._split(key)
        if split is None:
            return BlockSlices(self, key)
        at, rest = split
        tile = self.find(at)
        return tile[rest] if rest else tile

    def __setitem__(self, key: Any, value: Any) -> None:
        split = self._split(key)
        if split is None:
            BlockSlices(self, key).assign(value)
            return
        at, rest = split
        self.find(at)[rest or ...] = value

    def view(self, dtype: Any) -> ViewedBlocks:
        """The same bytes as numbers of another dtype, to be read."""
        return ViewedBlocks(self, dtype)

    def every(self) -> Iterable[Tensor]:
        """All tiles."""
        return [self.find(at) for at in np.ndindex(*self.axes)]

    def settled(self) -> Any:
        if prod(self.axes) == 1:
            return self.find((0,) * len(self.axes))
        raise UsageError(f"an array of {list(self.axes)} tiles is no operand: name one by its numbers")


@dataclass(frozen=True)
class ViewedBlocks:
    """An array of tiles read as another dtype."""

    blocks: Blocks
    dtype: Any

    def __getitem__(self, key: Any) -> Tensor:
        items, count = (key if isinstance(key, tuple) else (key,)), len(self.blocks.axes)
        viewed: Tensor = self.blocks[items[:count]].view(self.dtype)
        return viewed[items[count:]] if items[count:] else viewed


class BlockSlices:
    """Several tiles of an array, for assignments to all of them: `blocks[...] = 0`."""

    def __init__(self, blocks: Blocks, key: Any) -> None:
        items = key if isinstance(key, tuple) and not isinstance(key, ds) else (key,)
        if Ellipsis in [item for item in items if not isinstance(item, np.ndarray)]:
            at = items.index(Ellipsis)
            items = (*items[:at], *(slice(None),) * (len(blocks.shape) - len(items) + 1), *items[at + 1 :])
        items = (*items, *(slice(None),) * (len(blocks.shape) - len(items)))
        count = len(blocks.axes)
        self.blocks = blocks
        self.rest = items[count:]
        self.choices = [_choices(item, size) for item, size in zip(items[:count], blocks.axes, strict=True)]

    def settled(self) -> Any:
        if prod(len(choice) for choice in self.choices) == 1:
            return self.blocks.find(tuple(choice[0] for choice in self.choices))[self.rest]
        raise UsageError("several tiles at once are no operand: name one by its numbers, in a loop")

    def assign(self, value: Any) -> None:
        """The same value to each."""
        for at in np.ndindex(*(len(choice) for choice in self.choices)):
            tile = self.blocks.find(tuple(choice[spot] for choice, spot in zip(self.choices, at, strict=True)))
            assign(tile[self.rest], value)

    def __getitem__(self, key: Any) -> Any:
        single = [len(choice) == 1 for choice in self.choices]
        items = key if isinstance(key, tuple) and not isinstance(key, ds) else (key,)
        if all(single):
            return self.settled()[key]
        fixed = sum(isinstance(choice, _One) for choice in self.choices)
        done = [choice[0] for choice in self.choices[:fixed]]
        return self.blocks[(*done, *items)]

    def __setitem__(self, key: Any, value: Any) -> None:
        target = self[key]
        target.assign(value) if isinstance(target, BlockSlices) else assign(target, value)

    @property
    def dtype(self) -> Any:
        return self.blocks.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return (*(len(c) for c in self.choices if not isinstance(c, _One)), *self.blocks.tile_shape)


class _One(list[int]):
    """The tile number that was given as a number."""


def _choices(item: Any, size: int) -> list[int]:
    number = _number(item)
    if number is not None:
        return _One([number])
    if isinstance(item, slice):
        return list(range(size))[item]
    if isinstance(item, ds):
        return list(range(int(item.start), int(item.start) + int(item.size)))
    if isinstance(item, np.ndarray):
        return [int(index) for index in item.reshape(-1)]
    raise UsageError(f"tiles of an array are named by numbers, not by {type(item).__name__}")


def _number(item: Any) -> int | None:
    if isinstance(item, np.ndarray) and item.size == 1:
        return int(item.reshape(()))
    if isinstance(item, Tensor) and item.size == 1:
        return int(item.as_index())
    return item.__index__() if hasattr(item, "__index__") and not isinstance(item, np.ndarray | bool) else None


def zeroed(tile: Tensor) -> None:
    """A tile set to zero. In PSUM that costs nothing: the first product of a sum overwrites what is there."""
    assert tile.home is not None
    if tile.buffer.name == "psum":
        store = tile.home.store
        if store.buffer.payload:
            store.data[...] = 0
        store.full = True
    else:
        memset(dst=tile, value=0)
