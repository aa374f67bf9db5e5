"""`nl`: memories, loops, indices, loads and stores, and operators, of both generations of the API."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

import meshrt.nki.tensors.views  # noqa: F401 - what it gives tensors
from meshrt.errors import UsageError
from meshrt.nki import isa
from meshrt.nki.constants import oob_mode
from meshrt.nki.dtypes import NAMES, tile_dtype
from meshrt.nki.generation import checked, of_old
from meshrt.nki.grids import (
    affine_range,
    nc,
    num_programs,
    program_id,
    program_ndim,
    sequential_range,
    spmd_dim,
    static_range,
)
from meshrt.nki.instructions.composed import (
    broadcast_to,
    dropout,
    expand_dims,
    loop_reduce,
    matmul,
    mean,
    random_seed,
    rms_norm,
    softmax,
    static_cast,
    transpose,
    var,
)
from meshrt.nki.instructions.emit import poison
from meshrt.nki.instructions.moves import skips, transfer
from meshrt.nki.instructions.ops import OPS
from meshrt.nki.instructions.repeat import repeated
from meshrt.nki.instructions.scalar import where
from meshrt.nki.names import told
from meshrt.nki.session import from_here, session
from meshrt.nki.sizes import tile_size
from meshrt.nki.tensors.allocation import (
    Memory,
    empty_like,
    full,
    hbm,
    ndarray,
    ones,
    private_hbm,
    psum,
    sbuf,
    shared_constant,
    shared_hbm,
    shared_identity_matrix,
    zeros,
    zeros_like,
)
from meshrt.nki.tensors.blocks import par_dim
from meshrt.nki.tensors.index import ds
from meshrt.nki.tensors.tensor import Tensor

__all__ = (
    "Indices", "Memory", "affine_range", "arange", "broadcast_to", "device_print", "dropout", "ds", "empty_like",
    "expand_dims", "finfo", "fp32", "full", "hbm", "is_hbm", "is_on_chip", "is_psum", "is_sbuf", "load",
    "load_transpose2d", "loop_reduce", "matmul", "mean", "mgrid", "nc", "ndarray", "num_programs", "ones", "par_dim",
    "private_hbm", "program_id", "program_ndim", "psum", "random_seed", "rms_norm", "sbuf", "sequential_range",
    "shared_constant", "shared_hbm", "shared_identity_matrix", "softmax", "spmd_dim", "static_cast", "static_range",
    "store", "tensor", "tile_size", "transpose", "var", "where", "zeros", "zeros_like",
)  # fmt: skip

tensor = Tensor


def arange(*bounds: Any) -> np.ndarray:
    """Indices that count, as NumPy's; the old API's."""
    of_old()
    return np.arange(*bounds)


def finfo(dtype: Any) -> Any:
    """The limits of a dtype, as NumPy's."""
    return ml_dtypes.finfo(tile_dtype(dtype))  # type: ignore[no-untyped-call]  # ml_dtypes has no types for it


fp32 = SimpleNamespace(min=float(np.finfo(np.float32).min), max=float(np.finfo(np.float32).max))


def __getattr__(name: str) -> Any:
    if name in OPS:
        return OPS[name]
    if name in NAMES:
        return NAMES[name]
    if name.startswith("__"):
        raise AttributeError(f"nl has no {name!r}")
    raise UsageError(told("nl", name, [*OPS, *NAMES, *__all__]))


# ---- moves


@checked
def load(src: Any, dtype: Any = None, *, mask: Any = None, mode: Any = oob_mode.error) -> Tensor:
    """HBM to SBUF, cast on the way if dtype says so. mode: what indices beyond the tensor are, nisa.oob_mode."""
    return _loaded(src, mask, dtype, None, skips(mode))


@checked
def load_transpose2d(src: Any, dtype: Any = None, *, mask: Any = None) -> Tensor:
    """HBM [f, p] to SBUF [p, f], transposed by the DMA at part of its bandwidth."""
    return _loaded(src, mask, dtype, (1, 0))


def _loaded(src: Any, mask: Any, dtype: Any, turn: tuple[int, ...] | None, skip: bool = False) -> Tensor:
    launch = session()
    if not isinstance(src, Tensor):
        raise UsageError(f"load reads a tensor of HBM, not {type(src).__name__}")
    source = src.settle()
    if any(source.home is tile.home for tile in launch.core.identities.values()):  # in the old API it lies in HBM
        return isa.tensor_copy(source, dtype=dtype)  # type: ignore[no-any-return]  # without dst it is a tensor
    if source.buffer.on_chip:
        raise UsageError(f"load reads HBM; the operand is in {source.buffer.name}: use nl.copy")
    shape = source.shape if turn is None else tuple(source.shape[axis] for axis in turn)
    shape = (*shape, 1) if len(shape) == 1 else shape

    def run(target: Tensor, _: bool) -> None:
        if (mask is not None or skip) and target.home is not None and target.home.store.writes == 0:
            poison(target)
        transfer(target, source, mask, turn, skip=skip)

    core = launch.core
    return core.defer(Tensor(core.sbuf, tile_dtype(dtype, source.dtype), shape=shape, pending=from_here(run)))


@checked
def store(dst: Any, value: Any, *, mask: Any = None, mode: Any = oob_mode.error) -> None:
    """SBUF to HBM. A tile of PSUM goes through SBUF by itself, a number through a tile of it. mode: as of load."""
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
    transfer(dst, value, mask, skip=skips(mode))


def device_print(print_prefix: Any, tensor: Any) -> None:
    """Print a tensor on standard output, as print does."""
    print(f"{print_prefix} {tensor.settle() if isinstance(tensor, Tensor) else tensor}")


def is_hbm(buffer: Any) -> bool:
    """Is a memory, or that of a tensor, one of HBM?"""
    return bool(getattr(buffer, "name", buffer) == "hbm")


def is_sbuf(buffer: Any) -> bool:
    """Is it SBUF?"""
    return bool(getattr(buffer, "name", buffer) == "sbuf")


def is_psum(buffer: Any) -> bool:
    """Is it PSUM?"""
    return bool(getattr(buffer, "name", buffer) == "psum")


def is_on_chip(buffer: Any) -> bool:
    """Is it one of the core's own?"""
    return is_sbuf(buffer) or is_psum(buffer)


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
        of_old()
        return Indices(np.ogrid[key if isinstance(key, tuple) else (key,)])


mgrid = _Mgrid()
