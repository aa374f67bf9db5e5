"""Instructions of the tensor engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.neuron.dtypes import float32
from meshrt.nki.constants import engine as engines
from meshrt.nki.constants import matmul_perf_mode
from meshrt.nki.dtypes import tile_dtype
from meshrt.nki.generation import both
from meshrt.nki.instructions.emit import Extents, check_start, emit
from meshrt.nki.instructions.moves import memset
from meshrt.nki.instructions.operands import free
from meshrt.nki.instructions.vector import tensor_copy
from meshrt.nki.session import session
from meshrt.nki.tensors.home import Home
from meshrt.nki.tensors.pattern import AccessPattern
from meshrt.nki.tensors.tensor import Tensor


def check_operands(name: str, left: Tensor, right: Tensor, rows: int = 1) -> None:
    """UsageError for what the tensor engine does not take."""
    device = session().device
    for which, tensor, limit in (
        ("stationary", left, device.stationary_free), ("moving", right, device.moving_free)
    ):  # fmt: skip
        tensor.settle()
        if tensor.buffer.name != "sbuf":
            raise UsageError(f"{name} reads SBUF; {which} is in {tensor.buffer.name}: copy or load it first")
        if free(tensor.shape) > limit * rows:
            raise UsageError(f"{name}: the free axis of {which} is {free(tensor.shape)} long, {limit} is the limit")
        if tensor.dtype.kind in "iub":
            raise UsageError(f"{name}: {which} is {tensor.dtype}; the tensor engine multiplies floats: cast it first")
        check_start(name, which, tensor)
    if left.shape[0] != right.shape[0]:
        raise UsageError(
            f"{name}: stationary has {left.shape[0]} partitions, moving {right.shape[0]}; both hold the contraction"
        )
    if (left.dtype == float32) != (right.dtype == float32):
        raise UsageError(
            f"{name}: stationary is {left.dtype}, moving {right.dtype}; if one is float32, the other has to be: cast it"
        )


def _in_sbuf(tensor: Tensor) -> Tensor:
    tensor.settle()
    copied: Tensor = tensor_copy(tensor).settle() if tensor.buffer.name == "psum" else tensor
    return copied


@both(tensors=3)
def nc_matmul(
    dst: Tensor | None, stationary: Tensor, moving: Tensor, *, is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False, is_transpose: bool = False, accumulate: bool | None = None,
    tile_position: Any = (), tile_size: Any = (), perf_mode: Any = matmul_perf_mode.none, mask: Any = None,
) -> Any:  # fmt: skip
    """stationary^T moving, [k, m] and [k, n], in PSUM: max(min(64, m), n) cycles, four times that in float32.

    perf_mode double_row: operands [k, 2, ..] of 8-bit floats, twice the contraction in the same cycles.
    The first product into a tile overwrites, the next add, if dst is given; `+=` adds where there is none.
    """
    mode = str(getattr(perf_mode, "value", perf_mode))
    rows = 2 if mode.startswith("double_row") else 1
    if mode != "none" and rows == 1:
        raise UsageError(f"nc_matmul: perf_mode {mode} is not there; none and double_row are")
    launch = session()
    core = launch.core
    if dst is None:  # what the old API's compiler places: a result that is multiplied has to be in SBUF
        stationary, moving = (_in_sbuf(tensor) for tensor in (stationary, moving))
    check_operands("nc_matmul", stationary, moving, rows)
    m = free(stationary.shape) // rows
    if rows == 2:
        for tensor in (stationary, moving):
            if len(tensor.shape) != 3 or tensor.shape[1] != 2 or not tensor.dtype.name.startswith("float8"):
                raise UsageError("nc_matmul: double_row takes two operands [k, 2, columns] of 8-bit floats")
    passes = core.device.float32_passes if stationary.dtype == float32 else 1
    least = core.device.least_cycles
    k = stationary.shape[0] * rows
    shape = (m, *moving.shape[rows:])
    if dst is not None and dst.buffer.name != "psum":
        raise UsageError(f"nc_matmul writes PSUM, not {dst.buffer.name}: copy the sum from there")
    if dst is not None and dst.dtype != float32 and not is_transpose:
        raise UsageError(f"nc_matmul: sums in PSUM are float32, not {dst.dtype}: copy the sum to a tile of that dtype")

    if dst is not None and accumulate:
        dst.in_store().check_written("nc_matmul, with accumulate=True,")

    def cycles(left: Extents) -> float:
        macs = k * left[0] * free(left)
        core.counts["transpose_macs" if is_transpose else "macs"] += macs
        core.counts["mac_passes"] += macs * passes
        return passes * max(min(least, left[0]), free(left))

    def compute(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        product: np.ndarray = (a.reshape(k, -1).T @ b.reshape(k, -1)).reshape(-1, *b.shape[rows:])
        return product

    name = "transpose" if is_transpose else "matmul"
    out = stationary.dtype if is_transpose and dst is None and launch.device.name != "trn1" else float32
    return emit(name, core.tensor, cycles, [stationary, moving], shape, out, compute, dst=dst, mask=mask,
                memory="psum", adds=True, always_add=dst is not None and accumulate is not False,
                whole_reads=True)  # fmt: skip


def identity(dtype: Any) -> Tensor:
    """The running core's 128 x 128 identity in SBUF, made when it is first asked for."""
    core = session().core
    if dtype not in core.identities:
        size = core.device.partitions
        home = Home(session(), core.sbuf, (size, size), dtype)
        tile = Tensor(core.sbuf, dtype, home=home, pattern=AccessPattern.whole((size, size)))
        memset(dst=tile, value=0)
        if core.payload:
            np.fill_diagonal(home.store.data, 1)
        core.identities[dtype] = tile
    kept: Tensor = core.identities[dtype]
    return kept


@both(tensors=2)
def nc_transpose(
    dst: Tensor | None, data: Tensor, *, mask: Any = None, dtype: Any = None, engine: Any = engines.unknown
) -> Any:
    """data [p, f] to [f, p]: a product with the identity, into PSUM; blocks of 32 x 32 by the vector engine, n cycles.

    p and f at most 128. From PSUM, and into SBUF, the vector engine alone.
    """
    core = session().core
    data.settle()
    rows, columns = data.shape[0], free(data.shape)
    by_vector = engine is engines.vector or data.buffer.name == "psum" or (
        dst is not None and dst.buffer.name == "sbuf")  # fmt: skip
    if by_vector:
        if rows > 32 or columns > 32:
            raise UsageError(
                f"nc_transpose on the vector engine takes 32 x 32 at most, not {rows} x {columns}: on the tensor "
                "engine it reads SBUF and writes PSUM"
            )
        out = dst.dtype if dst is not None else tile_dtype(dtype, data.dtype)
        memory = "sbuf" if dst is None else dst.buffer.name
        return emit("transpose", core.vector, lambda _: columns, [data], (columns, rows), out,
                    lambda x: x.reshape(rows, -1).T, dst=dst, memory=memory, over=data.shape)  # fmt: skip
    limit = core.device.partitions
    if columns > limit:
        raise UsageError(f"nc_transpose: the free axis is {columns} long, {limit} is the limit: cut it")
    check_start("nc_transpose", "data", data)
    whole = data.dtype.kind in "iub"
    unit = identity(data.dtype)
    passes = core.device.float32_passes if data.dtype == float32 else 1
    out = dst.dtype if dst is not None else tile_dtype(dtype, data.dtype if whole else _transposed_dtype(data))

    def cycles(left: Extents) -> float:
        core.counts["transpose_macs"] += rows * columns * rows
        core.counts["mac_passes"] += rows * columns * rows * passes
        return passes * max(min(core.device.least_cycles, columns), rows)

    return emit("transpose", core.tensor, cycles, [data, unit[0:rows, 0:rows]], (columns, rows), out,
                lambda x, _: x.reshape(rows, -1).T, dst=dst, memory="psum", mask=mask,
                over=(columns, rows) if mask is None else data.shape,
                result_extents=lambda left: (left[1], left[0]))  # fmt: skip


def _transposed_dtype(data: Tensor) -> Any:
    """float32 on trn1, whose tensor engine writes nothing else; data's own from trn2 on."""
    return float32 if session().device.name == "trn1" else data.dtype
