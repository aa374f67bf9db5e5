"""`nisa`: instructions of the engines. Names and argument orders are those of neuronxcc.nki.isa.

Costs (AWS Neuron SDK documentation, NKI ISA and the architecture guides), in cycles of the engine, never fewer than
`least_cycles`: a product takes max(min(64, stationary free axis), moving free axis), four times that in float32; other
instructions take one cycle for each element of a partition, and two where two tiles are read.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.neuron.core import NeuronCore
from meshrt.neuron.language import Op, float32
from meshrt.neuron.tile import Deferred, Operand, Tile, as_tile
from meshrt.neuron.timeline import Engine


def nc_matmul(stationary: Operand, moving: Operand, *, is_transpose: bool = False) -> Deferred:
    """stationary [k, m], moving [k, n] in SBUF -> stationary^T moving [m, n] in PSUM, float32.

    k, the contraction, lies on the partitions: at most 128. m is at most 128, n at most 512.
    `acc[...] += nc_matmul(...)` adds in PSUM. UsageError for other shapes and places.
    """
    left, right = as_tile(stationary), as_tile(moving)
    core = left.core
    core.settle()
    k, m, n = _product_shape(core, left, right)
    left.check_written("nc_matmul (stationary)")
    right.check_written("nc_matmul (moving)")
    cycles = max(min(core.device.least_cycles, m), n)
    if left.dtype == float32 or right.dtype == float32:
        cycles *= core.device.float32_passes

    def run(acc: Tile, adds: bool) -> None:
        if acc.store.buffer.name != "psum":
            raise UsageError(f"nc_matmul writes to PSUM, not to {acc.store.buffer.name}: copy the sum from there")
        if acc.dtype != float32:
            raise UsageError(f"sums in PSUM are float32, not {acc.dtype}")
        if adds:
            acc.check_written("nc_matmul (sum)")
        core.issue(core.tensor, "transpose" if is_transpose else "matmul", cycles, (left, right), acc)
        core.counts["transpose_macs" if is_transpose else "macs"] += k * m * n
        if core.payload:
            product = left.data.T @ right.data
            if adds:
                acc.data[...] += product
            else:
                acc.data[...] = product

    return core.defer(Deferred(core.psum, (m, n), float32, run, adds=True))


def nc_transpose(data: Operand, identity: Operand) -> Deferred:
    """data [p, f] in SBUF -> [f, p] in PSUM, p and f at most 128: a product with the identity, on the tensor engine."""
    tile, unit = as_tile(data), as_tile(identity)
    rows = tile.shape[0]
    return nc_matmul(tile, unit[0:rows, 0:rows], is_transpose=True)


def _product_shape(core: NeuronCore, left: Tile, right: Tile) -> tuple[int, int, int]:
    device = core.device
    for name, tile, limit in (("stationary", left, device.stationary_free), ("moving", right, device.moving_free)):
        if tile.store.buffer.name != "sbuf":
            raise UsageError(f"nc_matmul reads SBUF; {name} is in {tile.store.buffer.name}: copy or load it first")
        if len(tile.shape) != 2:
            raise UsageError(f"nc_matmul: {name} has shape {list(tile.shape)}; it takes [partition, free]")
        if tile.shape[0] > device.partitions:
            raise UsageError(
                f"nc_matmul: {name} has {tile.shape[0]} partitions, {device.partitions} at most: cut the contraction"
            )
        if tile.shape[1] > limit:
            raise UsageError(
                f"nc_matmul: the free axis of {name} is {tile.shape[1]} long, {limit} is the limit; cut it into tiles"
            )
    if left.shape[0] != right.shape[0]:
        raise UsageError(
            f"nc_matmul: stationary has {left.shape[0]} partitions, moving {right.shape[0]}; both hold the contraction"
        )
    return left.shape[0], left.shape[1], right.shape[1]


def activation(
    op: Op, data: Operand, *, bias: Operand | None = None, scale: float | Operand = 1.0, dtype: Any = None
) -> Deferred:
    """op(data * scale + bias), element by element, on the scalar engine. bias and a tile as scale are [p, 1]."""
    tile = as_tile(data)
    vectors = [as_tile(one) for one in (scale, bias) if isinstance(one, Tile | Deferred)]

    def compute() -> np.ndarray:
        factor = as_tile(scale).data if isinstance(scale, Tile | Deferred) else np.float32(scale)
        x = tile.data * factor
        return op(x if bias is None else x + as_tile(bias).data)

    return _elementwise(tile.core.scalar, "activation", [tile, *vectors], tile.shape, 1, compute, dtype)


def tensor_tensor(
    data1: Operand, data2: Operand, op: Op, *, dtype: Any = None, engine: Engine | None = None
) -> Deferred:
    """op(data1, data2), element by element, on the vector engine: 2 cycles an element of a partition."""
    a, b = as_tile(data1), as_tile(data2)
    if a.shape != b.shape:
        raise UsageError(f"tensor_tensor: shapes {list(a.shape)} and {list(b.shape)} differ")
    return _elementwise(engine or a.core.vector, "tensor_tensor", [a, b], a.shape, 2, lambda: op(a.data, b.data), dtype)


def tensor_scalar(
    data: Operand, op0: Op, operand0: float | Operand, *, dtype: Any = None, engine: Engine | None = None
) -> Deferred:
    """op0(data, operand0) with a number, or a tile [p, 1] whose element is used all along its partition."""
    tile = as_tile(data)
    vector = as_tile(operand0) if isinstance(operand0, Tile | Deferred) else None
    if vector is not None and vector.shape != (tile.shape[0], 1):
        raise UsageError(f"tensor_scalar: operand0 has shape {list(vector.shape)}; it takes {[tile.shape[0], 1]}")

    def compute() -> np.ndarray:
        return op0(tile.data, np.float32(operand0) if vector is None else vector.data)  # type: ignore[arg-type]

    reads = [tile] if vector is None else [tile, vector]
    return _elementwise(engine or tile.core.vector, "tensor_scalar", reads, tile.shape, 1, compute, dtype)


def tensor_copy(src: Operand, *, dtype: Any = None, engine: Engine | None = None) -> Deferred:
    """A copy between or within SBUF and PSUM, with a cast if dtype says so, on the vector engine or another."""
    tile = as_tile(src)
    return _elementwise(engine or tile.core.vector, "tensor_copy", [tile], tile.shape, 1, lambda: tile.data, dtype)


def tensor_reduce(op: Op, data: Operand, *, dtype: Any = None) -> Deferred:
    """add, maximum or minimum along the free axes: [p, f...] -> [p, 1], on the vector engine."""
    tile = as_tile(data)

    def compute() -> np.ndarray:
        flat = tile.data.reshape(tile.shape[0], -1)
        reduced: np.ndarray = op.reduce(flat, axis=1, keepdims=True)  # type: ignore[attr-defined]
        return reduced

    return _elementwise(tile.core.vector, "tensor_reduce", [tile], (tile.shape[0], 1), 1, compute, dtype)


def reciprocal(data: Operand, *, dtype: Any = None) -> Deferred:
    """1 / data, on the vector engine."""
    tile = as_tile(data)
    return _elementwise(tile.core.vector, "reciprocal", [tile], tile.shape, 1, lambda: 1 / tile.data, dtype)


def affine_select(pred: np.ndarray, on_true_tile: Operand, on_false_value: float) -> Deferred:
    """The tile where `pred` holds, a value elsewhere, on the GpSimd engine. pred, bool [p, f], is known in advance."""
    tile = as_tile(on_true_tile)

    def compute() -> np.ndarray:
        return np.where(pred, tile.data, np.float32(on_false_value))

    return _elementwise(tile.core.gpsimd, "affine_select", [tile], tile.shape, 1, compute, None)


def memset(dst: Tile, value: float) -> None:
    """Set a tile of SBUF to a value, on the GpSimd engine."""
    core = dst.core
    core.settle()
    core.issue(core.gpsimd, "memset", _free_elements(dst.shape), (), dst)
    if core.payload:
        dst.data[...] = value


def dma_copy(dst: Tile, src: Operand) -> None:
    """A DMA between HBM and SBUF, either way: NKI's explicit form of load and store."""
    from meshrt.neuron import language

    tile = as_tile(src)
    if dst.store.buffer.name == "hbm":
        language.store(dst, tile)
    else:
        language.load(tile).into(dst, False)


def _elementwise(
    engine: Engine, name: str, reads: Sequence[Tile], shape: tuple[int, ...], passes: int, compute: Any, dtype: Any
) -> Deferred:
    """An instruction of a vector-like engine with its result in SBUF unless it is assigned elsewhere."""
    core = reads[0].core
    core.settle()
    for tile in reads:
        if tile.store.buffer.name == "hbm":
            raise UsageError(f"{name} reads SBUF or PSUM; an operand is in HBM: load it first")
        tile.check_written(name)
    cycles = passes * _free_elements(reads[0].shape)

    def run(dst: Tile, _: bool) -> None:
        if dst.store.buffer.name == "hbm":
            raise UsageError(f"{name} writes to SBUF or PSUM, not to HBM: store the result from there")
        core.issue(engine, name, cycles, reads, dst)
        if core.payload:
            core.put(dst, compute())

    return core.defer(Deferred(core.sbuf, shape, np.dtype(dtype) if dtype else reads[0].dtype, run))


def _free_elements(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape[1:], dtype=np.int64))
