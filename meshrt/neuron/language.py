"""`nl`: allocate, load and store. Names and argument orders are those of neuronxcc.nki.language.

Where NKI says `buffer=nl.sbuf`, say `buffer=core.sbuf`: a kernel's core is not a global here.
"""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from meshrt.errors import UsageError
from meshrt.neuron.core import NeuronCore
from meshrt.neuron.memory import Buffer
from meshrt.neuron.tile import Deferred, Grid, Operand, Tile, as_tile, new_tile

float32 = np.dtype(np.float32)
float16 = np.dtype(np.float16)
bfloat16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {"float32": float32, "float16": float16, "bfloat16": bfloat16}

tile_size = SimpleNamespace(pmax=128, gemm_stationary_fmax=128, gemm_moving_fmax=512, psum_fmax=512)

arange = np.arange
add, subtract, multiply, maximum, minimum = np.add, np.subtract, np.multiply, np.maximum, np.minimum
exp, square, sqrt, tanh, copy = np.exp, np.square, np.sqrt, np.tanh, np.positive


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x), without overflow."""
    y: np.ndarray = 0.5 * (1 + np.tanh(0.5 * x))
    return y


def silu(x: np.ndarray) -> np.ndarray:
    """x sigmoid(x)."""
    y: np.ndarray = x * sigmoid(x)
    return y


def rsqrt(x: np.ndarray) -> np.ndarray:
    """1 / sqrt(x)."""
    y: np.ndarray = 1 / np.sqrt(x)
    return y


def relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0)."""
    y: np.ndarray = np.maximum(x, 0)
    return y


class par_dim(int):
    """Marks the partition axis of a shape; axes before it make a grid of tiles."""


class _Mgrid:
    """`nl.mgrid[0:p, 0:f]`: index arrays .p and .x."""

    def __getitem__(self, key: tuple[slice, slice]) -> SimpleNamespace:
        p, x = np.ogrid[key]
        return SimpleNamespace(p=p, x=x)


mgrid = _Mgrid()


def affine_range(stop: int) -> Iterator[int]:
    """Iterations that do not depend on one another. Engines overlap as far as tiles and memory allow, in any loop."""
    return iter(range(stop))


def sequential_range(stop: int) -> Iterator[int]:
    """Iterations that depend on one another; here the same as affine_range."""
    return iter(range(stop))


static_range = sequential_range


def ndarray(shape: tuple[int, ...], dtype: Any, *, buffer: Buffer) -> Any:
    """Memory in core.sbuf, core.psum or core.hbm that is not written yet: a tile, or a grid of them.

    The axis marked by par_dim is the partition axis, or the first one. Axes before it count tiles.
    """
    buffer.core.settle()
    if not shape or any(size < 1 for size in shape):
        raise UsageError(f"a tile of shape {list(shape)}: every axis needs a size of 1 or more")
    marked = next((at for at, size in enumerate(shape) if isinstance(size, par_dim)), 0)
    sizes = tuple(int(size) for size in shape)
    dtype = _known(dtype)
    if marked == 0:
        return new_tile(buffer, sizes, dtype)
    return Grid(sizes[:marked], lambda: new_tile(buffer, sizes[marked:], dtype))


def zeros(shape: tuple[int, ...], dtype: Any, *, buffer: Buffer) -> Any:
    """The same, set to zero. In PSUM that costs nothing: the first product of a sum overwrites."""
    from meshrt.neuron import isa

    made = ndarray(shape, dtype, buffer=buffer)
    for tile in made.tiles.values() if isinstance(made, Grid) else (made,):
        if buffer.name == "sbuf":
            isa.memset(tile, 0.0)
        else:
            if buffer.payload:
                tile.data[...] = 0
            tile.note_written()
    return made


def zeros_like(x: Tile) -> Any:
    """Zeros in the same buffer, shape and dtype."""
    return zeros(x.shape, x.dtype, buffer=x.store.buffer)


def load(src: Operand, *, dtype: Any = None) -> Deferred:
    """HBM to SBUF: [partition, free...], partition at most 128. Cast on the way if dtype says so."""
    return _load(as_tile(src), dtype, False)


def load_transpose2d(src: Operand, *, dtype: Any = None) -> Deferred:
    """HBM [f, p] to SBUF [p, f]: the DMA engines transpose, at part of their bandwidth."""
    return _load(as_tile(src), dtype, True)


def _load(src: Tile, dtype: Any, transpose: bool) -> Deferred:
    core = src.core
    core.settle()
    if src.store.buffer.name != "hbm":
        raise UsageError(f"load reads HBM; the operand is in {src.store.buffer.name}: use tensor_copy")
    if transpose and len(src.shape) != 2:
        raise UsageError(f"load_transpose2d takes two axes, not a shape of {list(src.shape)}")
    src.check_written("load")
    slower = 1 / core.device.dma_transpose_rate if transpose else 1.0

    def run(dst: Tile, _: bool) -> None:
        core.transfer("load", src, dst, dst, slower)
        if core.payload:
            core.put(dst, src.data.T if transpose else src.data)

    shape = src.shape[::-1] if transpose else src.shape
    return core.defer(Deferred(core.sbuf, shape, _known(dtype) if dtype else src.dtype, run))


def store(dst: Tile, value: Operand) -> None:
    """SBUF to HBM. What is in PSUM goes through SBUF first."""
    tile = as_tile(value)
    core = dst.core
    core.settle()
    if dst.store.buffer.name != "hbm" or tile.store.buffer.name != "sbuf":
        raise UsageError(f"store moves SBUF to HBM, not {tile.store.buffer.name} to {dst.store.buffer.name}")
    if tile.shape != dst.shape:
        raise UsageError(f"store: a tile of shape {list(tile.shape)} does not fit {list(dst.shape)}")
    tile.check_written("store")
    core.transfer("store", tile, dst, tile)
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


def _known(dtype: Any) -> np.dtype[Any]:
    found: np.dtype[Any] | None = DTYPES.get(dtype) if isinstance(dtype, str) else np.dtype(dtype)
    if found is None or found not in DTYPES.values():
        raise UsageError(f"tiles are float32, float16 or bfloat16, not {dtype}")
    return found


Op = Callable[..., np.ndarray]
