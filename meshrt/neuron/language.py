"""`nl`: allocate, load and store, and the operators of `ops`. Names and argument orders are neuronxcc.nki.language's.

Where NKI says `buffer=nl.sbuf`, say `buffer=core.sbuf`: a kernel's core is not a global here.
"""

from operator import index
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from meshrt.errors import UsageError
from meshrt.neuron.core import NeuronCore
from meshrt.neuron.dtypes import DTYPES as DTYPES
from meshrt.neuron.dtypes import bfloat16 as bfloat16
from meshrt.neuron.dtypes import float16 as float16
from meshrt.neuron.dtypes import float32 as float32
from meshrt.neuron.dtypes import known
from meshrt.neuron.grid import Grid
from meshrt.neuron.memory import Buffer
from meshrt.neuron.operand import Operand
from meshrt.neuron.ops import *  # noqa: F403 - max, min and sum are NKI's from here on
from meshrt.neuron.tile import Deferred, Tile, as_tile, new_tile

tile_size = SimpleNamespace(pmax=128, gemm_stationary_fmax=128, gemm_moving_fmax=512, psum_fmax=512)

arange = np.arange
# Engines overlap as far as tiles and memory allow, in any loop: these only say what the author knows of its iterations.
affine_range = sequential_range = static_range = range


def __getattr__(name: str) -> Any:
    if name in ("sbuf", "psum", "hbm", "shared_hbm", "private_hbm"):
        raise UsageError(f"nl.{name} is no global here: say core.{name.split('_')[-1]}, of the kernel's core")
    if name.startswith("_"):
        raise AttributeError(f"nl has no {name!r}")
    raise UsageError(f"nl has no {name!r}: docs/neuron.md says what there is, and what to write instead")


class par_dim(int):
    """Marks the partition axis of a shape; axes before it make a grid of tiles."""


class Indices(NamedTuple):
    """Index arrays of a partition axis and a free one."""

    p: np.ndarray
    x: np.ndarray


class _Mgrid:
    """`nl.mgrid[0:p, 0:f]`: index arrays .p and .x."""

    def __getitem__(self, key: tuple[slice, slice]) -> Indices:
        return Indices(*np.ogrid[key])


mgrid = _Mgrid()


def ndarray(shape: tuple[int, ...], dtype: Any, *, buffer: Buffer) -> Any:
    """Memory in core.sbuf, core.psum or core.hbm that is not written yet: a tile, or a grid of them.

    The axis marked by par_dim is the partition axis, or the first one. Axes before it count tiles.
    """
    _check_buffer(buffer)
    buffer.core.settle()
    try:
        sizes = tuple(map(index, shape))
    except TypeError:
        sizes = ()
    if not sizes or any(size < 1 for size in sizes):
        raise UsageError(f"a tile of shape {shape}: every axis needs a size, a whole number from 1 on")
    dtype = known(dtype)
    at = next((at for at, size in enumerate(shape) if isinstance(size, par_dim)), 0)
    return Grid(sizes[:at], lambda: new_tile(buffer, sizes[at:], dtype)) if at else new_tile(buffer, sizes, dtype)


def _check_buffer(buffer: Any) -> None:
    if not isinstance(buffer, Buffer):
        raise UsageError(f"buffer is {buffer!r}; say core.sbuf, core.psum or core.hbm, of the kernel's core")


def full(shape: tuple[int, ...], fill_value: float, dtype: Any, *, buffer: Buffer) -> Any:
    """The same, set to a value by the vector engine."""
    from meshrt.neuron import isa

    made = ndarray(shape, dtype, buffer=buffer)
    for tile in made if isinstance(made, Grid) else (made,):
        isa.memset(tile, fill_value)
    return made


def zeros(shape: tuple[int, ...], dtype: Any, *, buffer: Buffer) -> Any:
    """The same, set to zero. In PSUM that costs nothing: the first product of a sum overwrites what is there."""
    _check_buffer(buffer)
    if buffer.name != "psum":
        return full(shape, 0.0, dtype, buffer=buffer)
    made = ndarray(shape, dtype, buffer=buffer)
    for tile in made if isinstance(made, Grid) else (made,):
        if buffer.payload:
            tile.data[...] = 0
        tile.note_written()
    return made


def zeros_like(x: Operand) -> Any:
    """Zeros in the same buffer, shape and dtype."""
    tile = as_tile(x)
    return zeros(tile.shape, tile.dtype, buffer=tile.store.buffer)


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
    return core.defer(Deferred(core.sbuf, shape, known(dtype) if dtype else src.dtype, run))


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


def shared_identity(core: NeuronCore, dtype: Any) -> Tile:
    """The 128 x 128 identity in SBUF, which products transpose with."""
    from meshrt.neuron import isa

    size = core.device.partitions
    tile: Tile = ndarray((par_dim(size), size), dtype, buffer=core.sbuf)
    isa.memset(tile, 0.0)
    if core.payload:
        np.fill_diagonal(tile.data, 1.0)
    return tile


def core_identity(core: NeuronCore, dtype: np.dtype[Any]) -> Tile:
    """The core's own, made when it is first asked for."""
    if dtype not in core.identities:
        core.identities[dtype] = shared_identity(core, dtype)
    return core.identities[dtype]
