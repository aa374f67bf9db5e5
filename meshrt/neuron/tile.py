"""Tiles: rectangles [partition, free...] of SBUF, PSUM or HBM that kernels index as they index NKI tensors."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.errors import UsageError

if TYPE_CHECKING:
    from meshrt.neuron.core import NeuronCore
    from meshrt.neuron.memory import Buffer

_ZERO = np.zeros((), np.float32)


class Store:
    """The memory of one allocation, freed when no tile refers to it any more.

    Numbers are kept as float32, rounded to `dtype` when they are written: the values are those of `dtype`, and the
    products need no conversion. Without payload the array is one zero with strides of zero, so that shapes still hold.
    """

    __slots__ = (
        "__weakref__", "buffer", "data", "dtype", "full", "idle", "mask", "owned", "ready", "resident", "row_bytes",
        "saved", "used", "written",
    )  # fmt: skip

    def __init__(self, buffer: Buffer, shape: tuple[int, ...], dtype: np.dtype[Any], full: bool) -> None:
        self.owned = False
        self.buffer = buffer
        self.dtype = dtype
        self.data: np.ndarray = np.empty(shape, np.float32) if buffer.payload else np.broadcast_to(_ZERO, shape)
        self.full = full  # every element was written
        self.mask: np.ndarray | None = None  # which were, if some were
        self.written = 0
        self.row_bytes = prod(shape[1:]) * dtype.itemsize  # in each partition
        self.ready = 0.0  # the second at which the last write ends
        self.idle = 0.0  # the second at which the last read ends, or at which the place was free
        self.used = 0  # when it was used last, in instructions
        self.resident = True  # False: spilled to HBM
        self.saved = False  # HBM has a copy that is still right
        buffer.take(self)
        self.owned = True

    def __del__(self) -> None:
        if self.owned:
            self.buffer.release(self)

    @property
    def dirty(self) -> bool:
        """Something was written, of which HBM has no copy."""
        return not self.saved and (self.full or self.mask is not None)


class Tile:
    """A view of a store: what kernels hold, slice and pass to instructions."""

    __slots__ = ("data", "key", "parent", "store", "updated")

    def __init__(self, store: Store, data: np.ndarray, parent: Tile | None = None, key: Any = None) -> None:
        self.store = store
        self.data = data
        self.parent = parent  # of which this is the part `key`; None: the whole store
        self.key = key  # an index, or a function from an array to a view of it
        self.updated = False  # by an augmented assignment

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.store.dtype

    @property
    def core(self) -> NeuronCore:
        return self.store.buffer.core

    def __getitem__(self, key: Any) -> Tile:
        key = plain(key)
        try:
            return Tile(self.store, self.data[key], self, key)
        except IndexError as error:
            raise UsageError(f"a tile of shape {list(self.shape)} cannot be indexed so: {error}") from error

    def __setitem__(self, key: Any, value: Any) -> None:
        if value is self or (isinstance(value, Tile) and value.updated and value.parent is self):
            return  # the second half of an augmented assignment
        part = self[key]
        if isinstance(value, Deferred) and value.tile is None:
            value.into(part, False)
        else:
            self.core.copy(part, as_tile(value))

    def __iadd__(self, value: Any) -> Tile:
        if isinstance(value, Deferred) and value.tile is None and value.adds and self.store.buffer.name == "psum":
            value.into(self, True)
        else:
            self.core.add(self, as_tile(value))
        self.updated = True
        return self

    def reshape(self, *shape: int) -> Tile:
        """The same elements in other axes; of a tensor in HBM, where they lie in one row."""
        if self.parent is not None or self.store.buffer.name != "hbm":
            raise UsageError("only a whole tensor of HBM can be reshaped; a tile's first axis is its partitions")
        return Tile(self.store, self.data.reshape(shape), self, lambda mask: mask.reshape(shape))

    def broadcast_to(self, shape: tuple[int, ...]) -> Tile:
        """A view in which free axes of size 1 are repeated, as an access pattern with a stride of 0."""
        if shape[0] != self.shape[0]:
            raise UsageError(f"partitions cannot be repeated by a view: {self.shape[0]} to {shape[0]}")
        return Tile(self.store, np.broadcast_to(self.data, shape), self, lambda mask: np.broadcast_to(mask, shape))

    def _mask(self) -> np.ndarray:
        """Of the elements of this view that were written; the store has a mask."""
        if self.parent is None:
            assert self.store.mask is not None
            return self.store.mask
        whole = self.parent._mask()
        mask: np.ndarray = self.key(whole) if callable(self.key) else whole[self.key]
        return mask

    def check_written(self, what: str) -> None:
        """UsageError unless every element was written before."""
        if self.store.full:
            return
        mask = np.zeros(self.shape, np.bool_) if self.store.mask is None else self._mask()
        if not mask.all():
            raise UsageError(
                f"{what} reads a tile of {self.store.buffer.name} that was never written: {list(self.shape)} elements, "
                f"the first of them missing in partition {int(np.argwhere(~mask)[0][0])}; load it, or set it to zeros"
            )

    def note_written(self) -> None:
        """Remember that all of this view is written."""
        store = self.store
        if store.full:
            return
        if self.data.size == store.data.size:
            store.full = True
        else:
            if store.mask is None:
                store.mask = np.zeros(store.data.shape, np.bool_)
            self._mask()[...] = True
            store.written += self.data.size
            store.full = store.written >= store.data.size and bool(store.mask.all())
        if store.full:
            store.mask = None


class Grid:
    """Tiles in rows and columns: what `nl.ndarray` gives where axes precede the partition axis."""

    def __init__(self, axes: tuple[int, ...], make: Callable[[], Tile]) -> None:
        self.axes = axes
        first = make()
        self.tiles = {at: make() if any(at) else first for at in np.ndindex(*axes)}
        self.shape = (*axes, *first.shape)

    def _find(self, key: Any) -> tuple[Tile, tuple[Any, ...]]:
        key = key if isinstance(key, tuple) else (key,)
        at = key[: len(self.axes)]
        if at not in self.tiles:
            raise UsageError(
                f"an array of {list(self.axes)} tiles needs {len(self.axes)} indices in range, not {list(at)}"
            )
        return self.tiles[at], key[len(self.axes) :]

    def __getitem__(self, key: Any) -> Tile:
        tile, rest = self._find(key)
        return tile[rest] if rest else tile

    def __setitem__(self, key: Any, value: Any) -> None:
        tile, rest = self._find(key)
        tile[rest or ...] = value


class Deferred:
    """An instruction that has its operands, and gets its destination with the assignment that follows, or a new tile.

    `buf[...] = nl.load(...)` writes to buf and `acc[...] += nisa.nc_matmul(...)` adds in PSUM, without a copy, as in
    NKI. Any other use, or the next instruction, makes a tile of its own for the result.
    """

    __slots__ = ("adds", "buffer", "dtype", "run", "shape", "tile")

    def __init__(
        self, buffer: Buffer, shape: tuple[int, ...], dtype: np.dtype[Any], run: Callable[[Tile, bool], None],
        adds: bool = False,
    ) -> None:  # fmt: skip
        self.buffer = buffer
        self.shape = shape
        self.dtype = dtype
        self.run: Callable[[Tile, bool], None] | None = run
        self.adds = adds  # it can add to what its destination holds
        self.tile: Tile | None = None

    def into(self, target: Tile, add: bool) -> None:
        """Run the instruction, with its result in `target`."""
        self.buffer.core.deferred = None
        if target.shape != self.shape:
            raise UsageError(f"a result of shape {list(self.shape)} does not fit a tile of shape {list(target.shape)}")
        assert self.run is not None
        run, self.run = self.run, None
        self.tile = target
        run(target, add)

    def settle(self) -> Tile:
        """The result, in a tile of its own if nothing was assigned."""
        if self.tile is None:
            self.into(new_tile(self.buffer, self.shape, self.dtype), False)
        assert self.tile is not None
        return self.tile

    def __getitem__(self, key: Any) -> Tile:
        return self.settle()[key]


Operand = Tile | Deferred


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


def plain(key: Any) -> Any:
    """NKI's index arrays (`nl.arange(n)[:, None]`, `nl.mgrid`) as slices, the rest as it is. UsageError."""
    if isinstance(key, tuple):
        for one in key:
            if isinstance(one, np.ndarray):
                return tuple(_as_slice(one) if isinstance(one, np.ndarray) else one for one in key)
        return key
    return _as_slice(key) if isinstance(key, np.ndarray) else key


def _as_slice(index: np.ndarray) -> slice:
    flat = index.reshape(-1)
    if flat.size == 0 or flat[-1] - flat[0] != flat.size - 1 or not (np.diff(flat) == 1).all():
        raise UsageError("an index array has to count up by one; strides and gathers are not supported")
    return slice(int(flat[0]), int(flat[-1]) + 1)
