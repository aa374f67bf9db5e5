"""Tiles and grids of them in a core's memories, and what moves between HBM and SBUF: what `language` has of that."""

from collections.abc import Callable, Iterator
from operator import index
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.neuron.dtypes import known
from meshrt.neuron.operand import Operand
from meshrt.neuron.store import Buffer
from meshrt.neuron.tile import Deferred, Tile, as_tile, new_tile


class par_dim(int):
    """Marks the partition axis of a shape; axes before it make a grid of tiles."""


class TileGrid:
    """Tiles in rows and columns: what `nl.ndarray` gives where axes precede the partition axis."""

    def __init__(self, axes: tuple[int, ...], make: Callable[[], Tile]) -> None:
        self.axes = axes
        self.tiles = {at: make() for at in np.ndindex(*axes)}
        first = next(iter(self))
        self.shape = (*axes, *first.shape)
        self.dtype = first.dtype

    def __iter__(self) -> Iterator[Tile]:
        return iter(self.tiles.values())

    def _find(self, key: Any) -> tuple[Tile, tuple[Any, ...]]:
        key = key if isinstance(key, tuple) else (key,)
        at = key[: len(self.axes)]
        if not all(isinstance(number, int | np.integer) for number in at) or at not in self.tiles:
            raise UsageError(
                f"an array of {list(self.axes)} tiles needs {len(self.axes)} numbers in range before the tile's own "
                f"indices, not {', '.join(map(str, at))}"
            )
        return self.tiles[at], key[len(self.axes) :]

    def __getitem__(self, key: Any) -> Tile:
        tile, rest = self._find(key)
        return tile[rest] if rest else tile

    def __setitem__(self, key: Any, value: Any) -> None:
        tile, rest = self._find(key)
        tile[rest or ...] = value


def ndarray(shape: tuple[int, ...], dtype: Any, *, buffer: Buffer) -> Any:
    """Memory in core.sbuf, core.psum or core.hbm that is not written yet: a tile, or a grid of them.

    The axis marked by par_dim is the partition axis, or the first one. Axes before it count tiles.
    """
    check_buffer(buffer)
    buffer.core.settle()
    try:
        sizes = tuple(map(index, shape))
    except TypeError:
        sizes = ()
    if not sizes or any(size < 1 for size in sizes):
        raise UsageError(f"a tile of shape {shape}: every axis needs a size, a whole number from 1 on")
    dtype = known(dtype)
    at = next((at for at, size in enumerate(shape) if isinstance(size, par_dim)), 0)
    return TileGrid(sizes[:at], lambda: new_tile(buffer, sizes[at:], dtype)) if at else new_tile(buffer, sizes, dtype)


def check_buffer(buffer: Any) -> None:
    if not isinstance(buffer, Buffer):
        raise UsageError(f"buffer is {buffer!r}; say core.sbuf, core.psum or core.hbm, of the kernel's core")


def load(src: Operand, *, dtype: Any = None) -> Deferred:
    """HBM to SBUF: [partition, free...], partition at most 128. Cast on the way if dtype says so."""
    return _load(as_tile(src), dtype, False)


def load_transpose2d(src: Operand, *, dtype: Any = None) -> Deferred:
    """HBM [f, p] to SBUF [p, f]: the DMA engines transpose, at part of their bandwidth."""
    return _load(as_tile(src), dtype, True)


def _load(src: Tile, dtype: Any, transpose: bool) -> Deferred:
    core = src.core
    if src.store.buffer.on_chip:
        raise UsageError(f"load reads HBM; the operand is in {src.store.buffer.name}: use tensor_copy")
    if transpose and len(src.shape) != 2:
        raise UsageError(f"load_transpose2d takes two axes, not a shape of {list(src.shape)}")
    src.check_written("load")
    slower = 1 / core.device.dma_transpose_rate if transpose else 1.0

    def run(dst: Tile, _: bool) -> None:
        if dst.store.buffer.name != "sbuf":
            raise UsageError(f"load writes SBUF, not {dst.store.buffer.name}")
        core.transfer("load", src, dst, slower)
        if core.payload:
            core.put(dst, src.data.T if transpose else src.data)

    shape = src.shape[::-1] if transpose else src.shape
    return core.defer(Deferred(core, core.sbuf, shape, known(dtype) if dtype else src.dtype, run))


def store(dst: Operand, value: Operand) -> None:
    """SBUF to HBM. What is in PSUM goes through SBUF first."""
    dst, tile = as_tile(dst), as_tile(value)
    core = dst.core
    core.settle()
    if dst.store.buffer.on_chip or tile.store.buffer.name != "sbuf":
        raise UsageError(f"store moves SBUF to HBM, not {tile.store.buffer.name} to {dst.store.buffer.name}")
    if tile.shape != dst.shape:
        raise UsageError(f"store: a tile of shape {list(tile.shape)} does not fit {list(dst.shape)}")
    tile.check_written("store")
    core.transfer("store", tile, dst)
    if core.payload:
        core.put(dst, tile.data)
