"""Tiles: rectangles [partition, free...] of SBUF, PSUM or HBM that kernels index as they index NKI tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.neuron.engines import Core
from meshrt.neuron.index import plain
from meshrt.neuron.operand import Operand
from meshrt.neuron.store import Buffer, Store, StoreView


class Tile(StoreView, Operand):
    """A view of a store: what kernels hold, slice and pass to instructions."""

    __slots__ = ()

    @property
    def core(self) -> Core:
        core: Core = self.store.core
        return core

    def __getitem__(self, key: Any) -> Tile:
        if key is Ellipsis:
            return self
        key = plain(key, self.data.shape)
        try:
            data = self.data[key]
        except (IndexError, TypeError) as error:
            raise UsageError(f"a tile of shape {list(self.shape)} cannot be indexed so: {error}") from error
        first = key[0] if key.__class__ is tuple else key
        if first.__class__ is not slice and first is not Ellipsis and (self.store.buffer.on_chip or not data.shape):
            raise UsageError(f"a tile of {self.store.buffer.name} keeps its first axis: a slice, not {first}")
        if not data.size:
            raise UsageError(f"nothing is left of a tile of shape {list(self.shape)} by {key}")
        return Tile(self.store, data, self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, Tile) and self._is_part(value, key):
            return  # the second half of an augmented assignment
        part = self[key]
        if isinstance(value, Deferred) and value.tile is None and (not value.adds or self.store.buffer.name == "psum"):
            value.into(part, False)
        elif isinstance(value, Operand):
            self.core.copy(part, as_tile(value))
        else:
            self.core.fill(part, value)

    def _is_part(self, value: Tile, key: Any) -> bool:
        if key is Ellipsis:
            return value is self
        return value.parent is self and bool(value.key == plain(key, self.data.shape))

    def __iadd__(self, value: Any) -> Tile:
        if isinstance(value, Deferred) and value.tile is None and value.adds and self.store.buffer.name == "psum":
            value.into(self, True)
        else:
            self.core.add(self, value)
        return self

    def reshape(self, *shape: Any) -> Tile:
        """The same elements in other axes; of a tensor in HBM, where they lie in one row."""
        if self.parent is not None or self.store.buffer.on_chip:
            raise UsageError("only a whole tensor of HBM can be reshaped; a tile's first axis is its partitions")
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        try:
            data = self.data.reshape(sizes)
        except (TypeError, ValueError) as error:
            raise UsageError(f"a tensor of shape {list(self.shape)} has no shape {list(sizes)}: {error}") from error
        return Tile(self.store, data, self, lambda mask: mask.reshape(sizes))

    def broadcast_to(self, shape: tuple[int, ...]) -> Tile:
        """A view in which free axes of size 1 are repeated, as an access pattern with a stride of 0."""
        if not isinstance(shape, tuple | list) or len(shape) != len(self.shape):
            raise UsageError(
                f"a tile of shape {list(self.shape)} cannot be repeated to {shape}: give every axis a size"
            )
        if shape[0] != self.shape[0]:
            raise UsageError(
                f"partitions cannot be repeated by a view: {self.shape[0]} to {shape[0]}; the product of ones [1, p] "
                "and a row [1, f] repeats it"
            )
        try:
            data = np.broadcast_to(self.data, shape)
        except ValueError as error:
            raise UsageError(f"a tile of shape {list(self.shape)} cannot be repeated to {list(shape)}") from error
        view = Tile(self.store, data, self, lambda mask: np.broadcast_to(mask, shape))
        view.repeats = True
        return view


class Deferred(Operand):
    """An instruction that has its operands, and gets its destination with the assignment that follows, or a new tile.

    `buf[...] = nl.load(...)` writes to buf and `acc[...] += nisa.nc_matmul(...)` adds in PSUM, without a copy, as in
    NKI. Any other use, or the next instruction, makes a tile of its own for the result.
    """

    __slots__ = ("adds", "buffer", "core", "dtype", "run", "shape", "tile", "version")

    def __init__(
        self, core: Core, buffer: Buffer, shape: tuple[int, ...], dtype: np.dtype[Any],
        run: Callable[[Tile, bool], None], adds: bool = False,
    ) -> None:  # fmt: skip
        self.buffer = buffer
        self.core = core
        self.shape = shape
        self.dtype = dtype
        self.run: Callable[[Tile, bool], None] | None = run
        self.adds = adds  # a product: it goes to PSUM, and can add to what is there
        self.tile: Tile | None = None
        self.version: int | None = None  # how often the tile that it was assigned to was written by then

    def into(self, target: Tile, add: bool) -> None:
        """Run the instruction, with its result in `target`."""
        self.core.deferred = None
        if target.data.shape != self.shape:
            raise UsageError(f"a result of shape {list(self.shape)} does not fit a tile of shape {list(target.shape)}")
        assert self.run is not None
        run, self.run = self.run, None
        self.tile = target
        run(target, add)
        self.version = -1 if add else target.store.writes

    def settle(self) -> Tile:
        """The result, in a tile of its own if nothing was assigned. UsageError if its place holds something else."""
        if self.tile is None:
            self.into(new_tile(self.buffer, self.shape, self.dtype), False)
            self.version = None
        elif self.version is not None and self.version != self.tile.store.writes:
            raise UsageError(
                "a result is used after the tile that it was assigned to was written again: use the tile, or assign a "
                "copy (nisa.tensor_copy) of the result"
            )
        assert self.tile is not None
        return self.tile

    def __getitem__(self, key: Any) -> Tile:
        return self.settle()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.settle()[key] = value

    def __iadd__(self, value: Any) -> Tile:
        tile = self.settle()
        tile += value
        return tile

    def broadcast_to(self, shape: tuple[int, ...]) -> Tile:
        """See Tile."""
        return self.settle().broadcast_to(shape)


def new_tile(buffer: Buffer, shape: tuple[int, ...], dtype: np.dtype[Any], full: bool = False) -> Tile:
    """An allocation in `buffer`; `full` if its contents are set by the caller."""
    store = Store(buffer, shape, dtype, full)
    return Tile(store, store.data)


def as_tile(value: Any) -> Tile:
    """An operand as a tile. UsageError for anything else."""
    if isinstance(value, Tile):
        return value
    if isinstance(value, Deferred):
        return value.settle()
    raise UsageError(f"an instruction works on tiles, not on {type(value).__name__}")
