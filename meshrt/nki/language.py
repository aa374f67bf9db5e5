"""`nl`: memories, loops, indices, loads and stores, and operators, of both generations of the API."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from meshrt.errors import UsageError, nearest
from meshrt.neuron.dtypes import float32
from meshrt.nki import isa
from meshrt.nki.blocks import Blocks, par_dim, zeroed
from meshrt.nki.dtypes import NAMES, tile_dtype
from meshrt.nki.emit import masked, poison
from meshrt.nki.index import ds
from meshrt.nki.moves import new_tile, transfer
from meshrt.nki.ops import OPS
from meshrt.nki.products import identity
from meshrt.nki.repeat import repeated
from meshrt.nki.scalar import where
from meshrt.nki.session import Loop, running, session
from meshrt.nki.tensor import Tensor


@dataclass(frozen=True)
class Memory:
    """Where a tensor lies; shared: all programs of a launch have it in common."""

    name: str
    shared: bool = False

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Memory) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


sbuf, psum, hbm, private_hbm = Memory("sbuf"), Memory("psum"), Memory("hbm"), Memory("hbm")
shared_hbm = Memory("hbm", shared=True)
arange = np.arange
tensor = Tensor


class _TileSize:
    """The sizes that tiles can have at most."""

    pmax = 128
    psum_fmax = gemm_moving_fmax = bn_stats_fmax = 512
    gemm_stationary_fmax = 128
    psum_min_align = 4
    sbuf_min_align = 1

    @property
    def total_available_sbuf_size(self) -> int:
        return session().device.sbuf_partition_bytes


tile_size = _TileSize()


def finfo(dtype: Any) -> Any:
    """The limits of a dtype, as NumPy's."""
    return ml_dtypes.finfo(tile_dtype(dtype))  # type: ignore[no-untyped-call]


fp32 = SimpleNamespace(min=float(np.finfo(np.float32).min), max=float(np.finfo(np.float32).max))


def __getattr__(name: str) -> Any:
    if name in OPS:
        return OPS[name]
    if name in NAMES:
        return NAMES[name]
    if name.startswith("__"):
        raise AttributeError(f"nl has no {name!r}")
    known = [*OPS, *NAMES, *(key for key in globals() if not key.startswith("_"))]
    raise UsageError(f"nl has no {name!r} here: {nearest(name, known, 'docs/nki.md lists what there is')}")


# ---- loops and programs


def affine_range(*bounds: Any, **_: Any) -> Iterator[int]:
    """Iterations that do not depend on one another; one that does is noted in the report."""
    return _iterations(bounds, False)


def sequential_range(*bounds: Any, **_: Any) -> Iterator[int]:
    """Iterations in order. Directives are the compiler's."""
    return _iterations(bounds, True)


def static_range(*bounds: Any, **_: Any) -> range:
    """Iterations that are unrolled: Python's own."""
    return range(*(int(bound) for bound in bounds))


def _iterations(bounds: tuple[Any, ...], ordered: bool) -> Iterator[int]:
    launch = running()
    if launch is None:
        yield from static_range(*bounds)
        return
    loop = Loop(launch.steps, launch.steps, ordered)
    launch.loops.append(loop)
    try:
        for index in static_range(*bounds):
            launch.steps += 1
            loop.iteration = launch.steps
            yield index
    finally:
        if loop in launch.loops:
            launch.loops.remove(loop)


def program_id(axis: int) -> int:
    """The running program's number along an axis of the grid; 0 where there is no grid."""
    program = session().program
    return program[axis] if axis < len(program) else 0


def num_programs(axes: Any = None) -> Any:
    """How many programs there are, along an axis or several; 1 where there is no grid."""
    grid = session().grid
    if axes is None:
        return prod(grid)
    if isinstance(axes, int):
        return grid[axes] if axes < len(grid) else 1
    return tuple(num_programs(axis) for axis in axes)


def program_ndim() -> int:
    """How many axes the grid has."""
    return len(session().grid)


@dataclass(frozen=True)
class nc:
    """NeuronCores to deal programs over."""

    count: int


@dataclass(frozen=True)
class spmd_dim:
    """An axis of a grid, made of programs and the cores that they are dealt over."""

    first: Any
    second: Any

    @property
    def sizes(self) -> tuple[int, int]:
        """(programs, cores)."""
        counts = [part.count if isinstance(part, nc) else int(part) for part in (self.first, self.second)]
        cores = next((part.count for part in (self.first, self.second) if isinstance(part, nc)), 1)
        return prod(counts), cores


# ---- memory


def ndarray(shape: Any, dtype: Any = float32, *, buffer: Any = None, name: str = "", **_: Any) -> Any:
    """Memory that is not written yet: a tile, an array of tiles where axes precede nl.par_dim, a tensor of HBM."""
    return _allocated(shape, dtype, buffer, name, False)


def zeros(shape: Any, dtype: Any = float32, *, buffer: Any = None, name: str = "", **_: Any) -> Any:
    """The same, set to zero; of PSUM that costs nothing."""
    return _allocated(shape, dtype, buffer, name, True)


def _allocated(shape: Any, dtype: Any, buffer: Any, name: str, zero: bool) -> Any:
    memory = sbuf if buffer is None else buffer
    if not isinstance(memory, Memory):
        raise UsageError(f"buffer is {buffer!r}; say nl.sbuf, nl.psum, nl.hbm, nl.private_hbm or nl.shared_hbm")
    given = shape if isinstance(shape, tuple | list) else (shape,)
    try:
        sizes = tuple(size.__index__() for size in given)
    except AttributeError:
        raise UsageError(f"a shape is of whole numbers, not {shape}") from None
    if not sizes or any(size < 1 for size in sizes):
        raise UsageError(f"a tensor of shape {list(sizes)}: every axis needs a size, a whole number from 1 on")
    kind = tile_dtype(dtype)
    if memory.shared:
        return _shared(sizes, kind, name)
    at = next((at for at, size in enumerate(given) if isinstance(size, par_dim)), 0)
    if at and memory.name != "hbm":
        blocks = Blocks(memory.name, sizes[:at], sizes[at:], kind, zero)
        if zero and memory.name == "sbuf":
            blocks.every()
        return blocks
    tile = new_tile(memory.name, sizes, kind, name)
    if zero:
        zeroed(tile) if tile.buffer.on_chip else _zero_hbm(tile)
    return tile


def _zero_hbm(tile: Tensor) -> None:
    raise UsageError("a tensor of HBM is not set to zero by itself: store a tile of zeros")


def _shared(sizes: tuple[int, ...], dtype: Any, name: str) -> Tensor:
    """A tensor of HBM that all programs of the launch have in common: the first makes it."""
    launch = session()
    at, launch.allocated = launch.allocated, launch.allocated + 1
    if at < len(launch.outputs):
        found: Tensor = launch.outputs[at]
        if found.shape != sizes or found.dtype != dtype:
            raise UsageError(
                f"program {list(launch.program)} allocates {dtype} {list(sizes)} in shared_hbm where the first has "
                f"{found.dtype} {list(found.shape)}: all programs allocate the same"
            )
        return found
    made = new_tile("hbm", sizes, dtype, name)
    launch.outputs.append(made)
    return made


def full(shape: Any, fill_value: Any, dtype: Any = float32, *, buffer: Any = None, name: str = "", **_: Any) -> Any:
    """The same, set to a number by the vector engine."""
    allocated = ndarray(shape, dtype, buffer=buffer, name=name)
    for tile in allocated.every() if isinstance(allocated, Blocks) else (allocated,):
        isa.memset(dst=tile, value=fill_value)
    return allocated


def ones(shape: Any, dtype: Any = float32, *, buffer: Any = None, name: str = "", **_: Any) -> Any:
    """The same, set to one."""
    return full(shape, 1, dtype, buffer=buffer, name=name)


def zeros_like(x: Any, dtype: Any = None, *, buffer: Any = None, **_: Any) -> Any:
    """Zeros of the same shape, dtype and memory."""
    return zeros(x.shape, dtype or x.dtype, buffer=buffer or Memory(x.settle().buffer.name))


def empty_like(x: Any, dtype: Any = None, *, buffer: Any = None, **_: Any) -> Any:
    """Memory of the same shape, dtype and kind."""
    return ndarray(x.shape, dtype or x.dtype, buffer=buffer or Memory(x.settle().buffer.name))


def shared_constant(values: Any, dtype: Any = None) -> Tensor:
    """Numbers known before the kernel runs, as a tensor in HBM."""
    array = np.asarray(values)
    return isa.shared_constant_tile(array, tile_dtype(dtype, array.dtype))


def shared_identity_matrix(n: int = 128, dtype: Any = "uint8", **_: Any) -> Tensor:
    """The identity in SBUF."""
    return identity(tile_dtype(dtype))[0:n, 0:n]


# ---- moves


def load(src: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tensor:
    """HBM to SBUF, cast on the way if dtype says so."""
    return _loaded(src, mask, dtype, None)


def load_transpose2d(src: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tensor:
    """HBM [f, p] to SBUF [p, f], transposed by the DMA at part of its bandwidth."""
    return _loaded(src, mask, dtype, (1, 0))


def _loaded(src: Any, mask: Any, dtype: Any, turn: tuple[int, ...] | None) -> Tensor:
    launch = session()
    if not isinstance(src, Tensor):
        raise UsageError(f"load reads a tensor of HBM, not {type(src).__name__}")
    source = src.settle()
    if source.buffer.on_chip:
        raise UsageError(f"load reads HBM; the operand is in {source.buffer.name}: use nl.copy")
    shape = source.shape if turn is None else tuple(source.shape[axis] for axis in turn)
    shape = (*shape, 1) if len(shape) == 1 else shape

    def run(target: Tensor, _: bool) -> None:
        if mask is not None and target.home is not None and target.home.store.writes == 0:
            poison(target)
        transfer(target, source, mask, turn)

    core = launch.core
    return core.defer(Tensor(core.sbuf, tile_dtype(dtype, source.dtype), shape=shape, pending=run))


def store(dst: Any, value: Any, *, mask: Any = None, **_: Any) -> None:
    """SBUF to HBM. A tile of PSUM goes through SBUF by itself, a number through a tile of it."""
    value = value.settled() if hasattr(value, "settled") else value
    if not isinstance(dst, Tensor) or dst.settle().buffer.on_chip:
        raise UsageError("store writes a tensor of HBM: use nl.copy within SBUF")
    if not isinstance(value, Tensor):
        value = full(dst.shape, value, dst.dtype)
    value.settle()
    if value.buffer.name == "psum":
        value = isa.tensor_copy(value, dtype=dst.dtype, mask=mask).settle()
    if dst.shape != value.shape and dst.size != value.size and mask is None:
        value = repeated(value, dst.shape)
    transfer(dst, value, mask)


# ---- tiles


def static_cast(x: Any, dtype: Any) -> Any:
    """The same numbers as another dtype."""
    return isa.tensor_copy(x, dtype=dtype) if isinstance(x, Tensor) else np.asarray(x).astype(tile_dtype(dtype))


def transpose(x: Any, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
    """[p, f] to [f, p], on the tensor engine, in SBUF."""
    return isa.tensor_copy(isa.nc_transpose(_in_sbuf(x), mask=mask), dtype=dtype or x.dtype)


def matmul(x: Any, y: Any, *, transpose_x: bool = False, mask: Any = None, **_: Any) -> Any:
    """x y of x [m, k], or x^T y of x [k, m] if it is transposed already; y [k, n]. In PSUM.

    Operands in PSUM are copied to SBUF first; where one is float32, the other is cast to it.
    """
    x, y = _in_sbuf(x), _in_sbuf(y)
    if (x.dtype == float32) != (y.dtype == float32):
        x, y = (value if value.dtype == float32 else isa.tensor_copy(value, dtype=float32).settle() for value in (x, y))
    if not transpose_x:
        x = transpose(x).settle()
    return isa.nc_matmul(x, y, mask=mask)


def _in_sbuf(x: Any) -> Tensor:
    x = x.settled() if hasattr(x, "settled") else x
    if not isinstance(x, Tensor):
        raise UsageError(f"a product is of tiles, not of {type(x).__name__}")
    x.settle()
    settled: Tensor = isa.tensor_copy(x).settle() if x.buffer.name == "psum" else x
    return settled


def broadcast_to(x: Any, shape: Any = None, **_: Any) -> Tensor:
    """Axes of size 1 repeated."""
    repeated_: Tensor = x.broadcast_to(shape)
    return repeated_


def expand_dims(x: Tensor, axis: int) -> Tensor:
    """An axis of 1 at `axis`."""
    return x.expand_dims(axis)


def mean(x: Tensor, axis: Any = None, dtype: Any = None, mask: Any = None, keepdims: bool = False) -> Any:
    """The mean along free axes: a sum and a product."""
    total = isa.tensor_reduce(np.add, x, axis, dtype=float32, mask=mask, keepdims=keepdims).settle()
    kept = None if mask is None else masked(mask, x.shape)[0]
    count = prod((kept or x.shape)[1:]) // max(1, prod(total.shape[1:]))
    return isa.tensor_scalar(total, np.multiply, 1 / count, dtype=dtype or x.dtype)


def var(x: Tensor, axis: Any = None, dtype: Any = None, mask: Any = None, keepdims: bool = False) -> Any:
    """The variance along free axes: mean of the squares of what is left without the mean."""
    rest = OPS["subtract"](x, mean(x, axis, float32, mask).settle(), dtype=float32)
    return mean(OPS["square"](rest).settle(), axis, dtype or x.dtype, mask, keepdims)


def softmax(x: Tensor, axis: Any = None, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
    """e^(x - max) over its sum along free axes."""
    largest = isa.tensor_reduce(np.maximum, x, axis, dtype=float32, negate=True, mask=mask).settle()
    up = isa.activation(np.exp, x, bias=largest, dtype=float32, mask=mask).settle()
    total = isa.tensor_reduce(np.add, up, axis, mask=mask).settle()
    return isa.tensor_scalar(up, np.multiply, isa.reciprocal(total).settle(), dtype=dtype or x.dtype, mask=mask)


def rms_norm(
    x: Tensor, w: Tensor, axis: Any, n: int, epsilon: float = 1e-6, dtype: Any = None, mask: Any = None, **_: Any
) -> Any:
    """x over the root of the mean of its squares along free axes of n elements, times w."""
    squares = isa.activation(np.square, x, dtype=float32, mask=mask).settle()
    total = isa.tensor_reduce(np.add, squares, axis, mask=mask).settle()
    mean_ = isa.tensor_scalar(total, np.multiply, 1 / n, op1=np.add, operand1=epsilon).settle()
    scaled = isa.arithmetic(OPS["multiply"], x, isa.activation(OPS["rsqrt"], mean_).settle(), float32, mask).settle()
    return isa.arithmetic(OPS["multiply"], scaled, w, dtype or x.dtype, mask)


def dropout(x: Tensor, rate: Any, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
    """See nisa.dropout."""
    return isa.dropout(data=x, prob=rate, dtype=dtype, mask=mask)


def random_seed(seed: Any, mask: Any = None, **_: Any) -> None:
    """Of the hardware's random numbers, which are not emulated: nisa.dropout says which rates there are."""


def loop_reduce(
    x: Tensor, op: Any = np.add, loop_indices: Any = None, dtype: Any = None, mask: Any = None, **_: Any
) -> Any:
    """tile[...] = loop_reduce(x, op): tile[...] = op(tile, x), in each iteration of loops; as nisa.tensor_tensor."""

    def run(target: Tensor, _: bool) -> None:
        if target.home is None or target.home.store.writes == 0:
            raise UsageError("loop_reduce goes on with what its tile holds: set it before, and say tile[...] = ...")
        isa.tensor_tensor(dst=target, data1=target, data2=x, op=op, mask=mask)

    core = session().core
    return core.defer(Tensor(core.sbuf, tile_dtype(dtype, x.dtype), shape=x.settle().shape, pending=run))


class Indices(tuple[np.ndarray, ...]):
    """Index arrays, one for each axis, the first of the partitions."""

    @property
    def p(self) -> np.ndarray:
        return self[0]

    @property
    def x(self) -> np.ndarray:
        return self[1]

    @property
    def y(self) -> np.ndarray:
        return self[2]

    @property
    def z(self) -> np.ndarray:
        return self[3]


class _Mgrid:
    """`nl.mgrid[0:p, 0:f]`: index arrays, by position or as .p, .x, .y, .z."""

    def __getitem__(self, key: Any) -> Indices:
        return Indices(np.ogrid[key if isinstance(key, tuple) else (key,)])


mgrid = _Mgrid()
_REEXPORTED = (ds, where)
