"""`nisa`: instructions of the engines. Names and argument orders are those of neuronxcc.nki.isa.

Destinations are assigned to: `dst[...] = nisa.activation(...)`. What NKI's compiler chooses, an argument says: `engine`
is an engine of the core (core.vector, core.scalar, core.gpsimd).
"""

from typing import Any, NoReturn

import numpy as np

from meshrt.errors import UsageError
from meshrt.neuron import allocate
from meshrt.neuron.checks import check_engine
from meshrt.neuron.dtypes import float32
from meshrt.neuron.elementwise import (
    activation,
    activation_reduce,
    affine_select,
    free_elements,
    reciprocal,
    tensor_copy,
    tensor_reduce,
    tensor_scalar,
    tensor_tensor,
)
from meshrt.neuron.engines import Core
from meshrt.neuron.operand import Operand
from meshrt.neuron.tile import Deferred, Tile, as_tile
from meshrt.neuron.timeline import ComputeEngine

__all__ = (
    "activation", "activation_reduce", "affine_select", "dma_copy", "memset", "nc_matmul", "nc_transpose", "reciprocal",
    "tensor_copy", "tensor_reduce", "tensor_scalar", "tensor_tensor",
)  # fmt: skip


def nc_matmul(stationary: Operand, moving: Operand, *, is_transpose: bool = False) -> Deferred:
    """stationary [k, m], moving [k, n] in SBUF -> stationary^T moving [m, n] in PSUM, float32.

    k, the contraction, lies on the partitions: at most 128. m is at most 128, n at most 512.
    `acc[...] += nc_matmul(...)` adds in PSUM. UsageError for other shapes and places.
    Takes max(min(64, m), n) cycles of the tensor engine, `float32_passes` times as many in float32.
    """
    left, right = as_tile(stationary), as_tile(moving)
    core: Core = left.store.core
    device, stationary_shape, moving_shape = core.device, left.data.shape, right.data.shape
    if (
        not left.store.buffer.name == right.store.buffer.name == "sbuf"
        or not len(stationary_shape) == len(moving_shape) == 2
        or stationary_shape[0] != moving_shape[0]
        or stationary_shape[1] > device.stationary_free
        or moving_shape[1] > device.moving_free
    ):
        _refuse(core, left, right)
    (k, m), n = stationary_shape, moving_shape[1]
    if not left.store.full:
        left.check_written("nc_matmul (stationary)")
    if not right.store.full:
        right.check_written("nc_matmul (moving)")
    cycles, passes = max(min(device.least_cycles, m), n), 1
    if left.store.dtype == float32 or right.store.dtype == float32:
        if left.store.dtype != right.store.dtype:
            raise UsageError(
                f"nc_matmul: stationary is {left.dtype}, moving {right.dtype}; if one is float32 the other is, too:"
                " copy it with dtype"
            )
        passes = device.float32_passes

    def run(acc: Tile, adds: bool) -> None:
        if acc.store.buffer.name != "psum":
            raise UsageError(f"nc_matmul writes to PSUM, not to {acc.store.buffer.name}: copy the sum from there")
        if acc.dtype != float32:
            raise UsageError(f"sums in PSUM are float32, not {acc.dtype}")
        if adds and not acc.store.full:
            acc.check_written("nc_matmul (sum)")
        core.issue(core.tensor, "transpose" if is_transpose else "matmul", cycles * passes, (left, right), acc)
        core.counts["transpose_macs" if is_transpose else "macs"] += k * m * n
        core.counts["mac_passes"] += k * m * n * passes
        if core.payload:
            with np.errstate(all="ignore"):
                product = left.data.T @ right.data
                if adds:
                    product += acc.data
            acc.data[...] = product

    return core.defer(Deferred(core, core.psum, (m, n), float32, run, adds=True))


def nc_transpose(data: Operand, identity: Operand | None = None) -> Deferred:
    """data [p, f] in SBUF -> [f, p] in PSUM, p and f at most 128: a product with the identity, on the tensor engine.

    Without an identity, the core's own of data's dtype, which stays in SBUF from its first use on.
    """
    tile = as_tile(data)
    unit = core_identity(tile.core, tile.dtype) if identity is None else as_tile(identity)
    rows = tile.shape[0]
    return nc_matmul(tile, unit[0:rows, 0:rows], is_transpose=True)


def _refuse(core: Core, left: Tile, right: Tile) -> NoReturn:
    """Say what is wrong with the operands of a product."""
    device = core.device
    for name, tile, limit in (("stationary", left, device.stationary_free), ("moving", right, device.moving_free)):
        if tile.store.buffer.name != "sbuf":
            raise UsageError(f"nc_matmul reads SBUF; {name} is in {tile.store.buffer.name}: copy or load it first")
        if len(tile.shape) != 2:
            raise UsageError(f"nc_matmul: {name} has shape {list(tile.shape)}; it takes [partition, free]")
        if tile.shape[1] > limit:
            raise UsageError(
                f"nc_matmul: the free axis of {name} is {tile.shape[1]} long, {limit} is the limit; cut it into tiles"
            )
    raise UsageError(
        f"nc_matmul: stationary has {left.shape[0]} partitions, moving {right.shape[0]}; both hold the contraction"
    )


def memset(dst: Operand, value: float, *, engine: ComputeEngine | None = None) -> None:
    """Set a tile of SBUF or PSUM to a value, on the vector engine or another: n cycles, n / 2 for a zero of 16 bit."""
    dst = as_tile(dst)
    core = dst.core
    core.settle()
    engine = check_engine("memset", core, engine)
    if dst.store.buffer.name == "psum" and engine is core.gpsimd:
        raise UsageError("memset on the gpsimd engine cannot write psum: take another")
    if not dst.store.buffer.on_chip:
        raise UsageError("memset writes SBUF or PSUM, not HBM: store the tile from there")
    try:
        number = np.float32(float(value))
    except (TypeError, ValueError) as error:
        raise UsageError(f"a tile is set to a number or a tile, not to {type(value).__name__}") from error
    passes = 0.5 if number == 0 and dst.dtype != float32 else 1
    core.issue(engine, "memset", passes * free_elements(dst.shape), (), dst)
    if core.payload:
        core.put(dst, np.full(dst.shape, number))


def dma_copy(dst: Operand, src: Operand) -> None:
    """A DMA between HBM and SBUF, either way: NKI's explicit form of load and store."""
    dst, tile = as_tile(dst), as_tile(src)
    if dst.store.buffer.on_chip:
        allocate.load(tile).into(dst, False)
    else:
        allocate.store(dst, tile)


def shared_identity(core: Core, dtype: Any) -> Tile:
    """The 128 x 128 identity in SBUF, which products transpose with."""
    size = core.device.partitions
    tile: Tile = allocate.ndarray((allocate.par_dim(size), size), dtype, buffer=core.sbuf)
    memset(tile, 0.0)
    if core.payload:
        np.fill_diagonal(tile.data, 1.0)
    return tile


def core_identity(core: Core, dtype: np.dtype[Any]) -> Tile:
    """The core's own, made when it is first asked for."""
    if dtype not in core.identities:
        core.identities[dtype] = shared_identity(core, dtype)
    identity: Tile = core.identities[dtype]
    return identity
