"""Memory that kernels ask for: of which kind, empty or filled."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.neuron.dtypes import float32
from meshrt.nki import isa
from meshrt.nki.dtypes import tile_dtype
from meshrt.nki.generation import checked
from meshrt.nki.instructions.moves import new_tile
from meshrt.nki.instructions.products import identity
from meshrt.nki.session import session
from meshrt.nki.tensors.blocks import Blocks, par_dim, zeroed
from meshrt.nki.tensors.tensor import Tensor
from meshrt.records import dataclass


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


@checked
def ndarray(shape: Any, dtype: Any = float32, buffer: Any = None, name: str = "") -> Any:
    """Memory that is not written yet: a tile, an array of tiles where axes precede nl.par_dim, a tensor of HBM."""
    return _allocated(shape, dtype, buffer, name, False)


@checked
def zeros(shape: Any, dtype: Any = float32, buffer: Any = None, name: str = "") -> Any:
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
        tensor: Tensor = launch.outputs[at]
        if tensor.shape != sizes or tensor.dtype != dtype:
            raise UsageError(
                f"program {list(launch.program)} allocates {dtype} {list(sizes)} in shared_hbm where the first has "
                f"{tensor.dtype} {list(tensor.shape)}: all programs allocate the same"
            )
        return tensor
    made = new_tile("hbm", sizes, dtype, name)
    launch.outputs.append(made)
    return made


@checked
def full(shape: Any, fill_value: Any, dtype: Any = float32, buffer: Any = None, name: str = "") -> Any:
    """The same, set to a number by the vector engine."""
    allocated = ndarray(shape, dtype, buffer=buffer, name=name)
    for tile in allocated.every() if isinstance(allocated, Blocks) else (allocated,):
        isa.memset(dst=tile, value=fill_value)
    return allocated


@checked
def ones(shape: Any, dtype: Any = float32, buffer: Any = None, name: str = "") -> Any:
    """The same, set to one."""
    return full(shape, 1, dtype, buffer=buffer, name=name)


@checked
def zeros_like(x: Any, dtype: Any = None, buffer: Any = None) -> Any:
    """Zeros of the same shape, dtype and memory."""
    return zeros(x.shape, dtype or x.dtype, buffer=buffer or Memory(x.settle().buffer.name))


@checked
def empty_like(x: Any, dtype: Any = None, buffer: Any = None) -> Any:
    """Memory of the same shape, dtype and kind."""
    return ndarray(x.shape, dtype or x.dtype, buffer=buffer or Memory(x.settle().buffer.name))


@checked
def shared_constant(values: Any, dtype: Any = None) -> Tensor:
    """Numbers known before the kernel runs, as a tensor in HBM."""
    array = np.asarray(values)
    return isa.shared_constant_tile(array, tile_dtype(dtype, array.dtype))


@checked
def shared_identity_matrix(n: int = 128, dtype: Any = "uint8", dst: Any = None) -> Tensor:
    """The identity in SBUF, or in a tile of the kernel's own."""
    tile = identity(tile_dtype(dtype))[0:n, 0:n]
    return tile if dst is None else isa.tensor_copy(dst=dst, src=tile)
