"""What moves or makes numbers: DMA, memset, iota, shuffles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.neuron.dtypes import float32, rounded
from meshrt.nki.constants import chosen, oob_mode
from meshrt.nki.dtypes import tile_dtype
from meshrt.nki.generation import both, checked
from meshrt.nki.instructions.emit import check_carried, emit, masked, stamp
from meshrt.nki.instructions.operands import free
from meshrt.nki.instructions.scalar import affine
from meshrt.nki.session import session
from meshrt.nki.tensors.home import Home
from meshrt.nki.tensors.pattern import AccessPattern, squeezed
from meshrt.nki.tensors.patternview import PatternView
from meshrt.nki.tensors.tensor import Tensor

TURNS = ((1, 0), (2, 1, 0), (3, 1, 2, 0))  # in which a DMA can turn the axes of a tensor (NKI API reference)


def transfer(
    dst: Tensor, src: Tensor, mask: Any = None, turn: Sequence[int] | None = None, op: Any = None, skip: bool = False
) -> None:
    """One DMA, of what the mask leaves; `turn` permutes the axes on the way, at part of the bandwidth. The mask of a
    turned one has the source's axes. skip: elements whose indices are beyond a tensor are left out."""
    launch = session()
    core = launch.core
    src.settle()
    core.settle()
    if "psum" in (dst.buffer.name, src.buffer.name) and launch.device.name == "trn1":
        raise UsageError("a DMA moves between HBM and SBUF; PSUM goes through SBUF: tensor_copy first")
    if turn is not None and len(turn) != len(src.shape):
        raise UsageError(f"a transposing DMA of {list(src.shape)} turns {len(src.shape)} axes, not {list(turn)}")
    shape = src.shape if turn is None else tuple(src.shape[axis] for axis in turn)
    if squeezed(dst.shape) != squeezed(shape) and dst.size != src.size:
        raise UsageError(f"a DMA of {list(shape)} does not fit {list(dst.shape)}")
    like_dst = turn is None and mask is not None and len(dst.shape) == len(np.shape(mask))
    if skip and turn is None:
        mask, like_dst = _inside(dst, src, mask, like_dst), False
    extents, scattered = masked(mask, dst.shape if like_dst else src.shape)
    if extents is not None and 0 in extents:
        return
    if scattered is not None:
        _scattered(dst, src, scattered, turn, op)
        return
    turned = extents if extents is None or turn is None else tuple(extents[axis] for axis in turn)
    read, write = src.in_store(extents), dst.in_store(_fitting(turned, shape, dst.shape))
    read.check_written("a DMA")
    if op is not None:
        write.check_written("a DMA with dst_rmw_op")
    check_carried(launch, read, "a DMA")
    slower = 1.0 if turn is None else 1 / core.device.dma_transpose_rate
    move(read, write, slower, (*src.indices, *dst.indices))
    if op is not None and not dst.buffer.on_chip:
        core.counts["hbm_read"] += write.data.size * write.dtype.itemsize  # what it adds to
    if core.payload:
        values = read.data if turn is None else read.data.transpose(turn)
        values = values.reshape(write.shape)
        if src.dtype != dst.dtype:  # or it is rounded already
            values = rounded(values, dst.dtype)
        write.write(values if op is None else rounded(op(values, write.data), dst.dtype))
    stamp(launch, dst, write)


def _fitting(extents: Any, shape: tuple[int, ...], other: tuple[int, ...]) -> Any:
    """The same extents in the axes of another shape that differs by axes of 1."""
    if extents is None or shape == other:
        return extents
    rest = iter([extent for extent, size in zip(extents, shape, strict=True) if size != 1])
    return tuple(1 if size == 1 else next(rest) for size in other)


def _inside(dst: Tensor, src: Tensor, mask: Any, like_dst: bool) -> np.ndarray | None:
    """The mask of the elements that are inside both tensors, of the source's shape; None of all."""
    assert src.pattern is not None and dst.pattern is not None
    kept = (src.pattern.listed() >= 0) & (dst.pattern.listed() >= 0).reshape(src.shape)
    if mask is not None:
        kept = kept & np.broadcast_to(mask, dst.shape if like_dst else src.shape).reshape(src.shape)
    return None if kept.all() else kept


def skips(mode: Any) -> bool:
    """Are indices beyond a tensor skipped? UsageError for what is no nisa.oob_mode."""
    if not isinstance(mode, oob_mode):
        raise UsageError(f"an oob_mode is nisa.oob_mode.error or nisa.oob_mode.skip, not {mode!r}")
    return mode is oob_mode.skip


def _scattered(dst: Tensor, src: Tensor, kept: np.ndarray, turn: Sequence[int] | None, op: Any) -> None:
    """A transfer of the elements that a mask picks, one by one."""
    assert src.pattern is not None and dst.pattern is not None
    elements = dst.pattern.listed()
    if turn is not None:
        shape = tuple(kept.shape[axis] for axis in turn)
        elements = elements.reshape(shape).transpose(np.argsort(turn))
    chosen_, elements = (listed.reshape(kept.shape)[kept].reshape(-1, 1) for listed in (src.pattern.listed(), elements))
    source, target = (
        Tensor(tensor.buffer, tensor.dtype, home=tensor.home, indices=tensor.indices,
               pattern=AccessPattern(listed.shape, (0, 0), elements=listed))
        for tensor, listed in ((src, chosen_), (dst, elements))
    )  # fmt: skip
    transfer(target, source, op=op)


def move(read: PatternView, write: PatternView, slower: float, indices: Sequence[PatternView] = ()) -> None:
    """The time and the bytes of a transfer between any two of HBM and SBUF; of which parts, tiles of indices say."""
    core = session().core
    memories = (read.store.buffer.on_chip, write.store.buffer.on_chip)
    if memories[0] != memories[1]:
        core.transfer("load" if memories[1] else "store", read, write, slower, indices)
        return
    start = core.touch([read, *indices], write, core.dma.since)
    nbytes = read.data.size * read.dtype.itemsize
    rows = min(read.shape[0], core.device.partitions)
    end = core.move("copy", start, rows, nbytes / rows * slower)
    if not memories[0]:
        core.counts["hbm_read"] += nbytes
        core.counts["hbm_written"] += write.data.size * write.dtype.itemsize
    core.done(end, [read, *indices], write)


@checked
def dma_copy(
    dst: Tensor | None = None, src: Tensor | None = None, *, mask: Any = None, dst_rmw_op: Any = None,
    oob_mode: Any = oob_mode.error, engine: Any = None,
) -> Any:  # fmt: skip
    """A DMA between HBM and SBUF, either way, or within one of them; dst_rmw_op adds to what is there. engine: whose
    queue, which is not modelled."""
    if not isinstance(dst, Tensor) or not isinstance(src, Tensor):
        raise UsageError("dma_copy takes dst= and src=, both tensors")
    if dst_rmw_op is not None and getattr(dst_rmw_op, "__name__", "") != "add":
        raise UsageError("dma_copy: dst_rmw_op is nl.add or nothing")
    transfer(dst, src, mask, op=None if dst_rmw_op is None else np.add, skip=skips(oob_mode))
    return dst


@both(tensors=2)
def dma_transpose(dst: Tensor | None, src: Tensor, *, axes: Any = None, dtype: Any = None, mask: Any = None) -> Any:
    """A DMA that transposes, of 2 to 4 axes: (1, 0), (2, 1, 0) or (3, 1, 2, 0), at part of the bandwidth."""
    src.settle()
    rank = len(src.shape)
    turn = tuple(axes) if axes is not None else next((axes for axes in TURNS if len(axes) == rank), None)
    if turn is None:
        raise UsageError(f"dma_transpose takes 2 to 4 axes, not {list(src.shape)}")
    if turn not in TURNS:
        raise UsageError(f"dma_transpose: axes is {turn}; it is (1, 0), (2, 1, 0) or (3, 1, 2, 0)")
    if dst is None:
        dst = new_tile("sbuf", tuple(src.shape[axis] for axis in turn), tile_dtype(dtype, src.dtype))
    transfer(dst, src, mask, turn)
    return dst


def new_tile(memory: str, shape: tuple[int, ...], dtype: Any, name: str = "") -> Tensor:
    """An allocation of the running core."""
    core = session().core
    core.settle()
    buffer = getattr(core, memory)
    if buffer.on_chip and len(shape) == 1:
        shape = (*shape, 1)
    home = Home(session(), buffer, shape, dtype)
    return Tensor(buffer, dtype, home=home, pattern=AccessPattern.whole(shape), name=name)


@checked
def memset(
    dst: Any = None, value: Any = 0, dtype: Any = None, *, shape: Any = None, mask: Any = None, engine: Any = None,
    name: str | None = None,
) -> Any:  # fmt: skip
    """A tile set to a number: n cycles; n / 2 for zeros of 16 bit. New: (dst, value). Old: (shape, value, dtype)."""
    core = session().core
    if not isinstance(dst, Tensor):
        sizes = tuple(shape if dst is None else dst)
        core.settle()
        tile = new_tile("sbuf", sizes, tile_dtype(dtype, float32))
        _set(tile, value, mask, engine)
        return tile
    core.settle()
    _set(dst, value, mask, engine)
    return dst


def _set(tile: Tensor, value: Any, mask: Any, engine: Any) -> None:
    if not tile.buffer.on_chip:
        raise UsageError("memset writes SBUF or PSUM, not HBM: store a tile from there")
    try:
        number = np.asarray(float(value), np.float32)
        if tile.dtype.kind in "iu" and float(value).is_integer():  # float32 has not all of them
            number = np.asarray(min(max(int(value), -(2**63)), 2**63 - 1), np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"a tile is set to a number or a tile, not to {type(value).__name__}") from error
    passes = 0.5 if number == 0 and tile.dtype.itemsize == 2 else 1
    emit("memset", chosen("memset", engine, "vector"), lambda left: passes * free(left), [], tile.shape, tile.dtype,
         lambda: np.broadcast_to(number, ()) if mask is not None else np.full(tile.shape, number), dst=tile,
         mask=mask)  # fmt: skip


def iota(*args: Any, **kwargs: Any) -> Any:
    """Numbers that count, on GpSimd: 150 + n cycles.

    Old: (expr, dtype), of index arrays. New: (dst, pattern, offset, channel_multiplier=0).
    """
    if kwargs.get("dst") is not None or (args and isinstance(args[0], Tensor)):
        return _iota_new(*args, **kwargs)
    return _iota_old(*args, **kwargs)


def _iota_new(dst: Tensor, pattern: Any, offset: int = 0, channel_multiplier: int = 0, name: Any = None) -> Any:
    return _counted(dst, affine("iota", dst, pattern, offset, channel_multiplier), dst.dtype, None)


def _iota_old(expr: Any, dtype: Any, *, mask: Any = None) -> Any:
    values = np.asarray(expr)
    return _counted(None, values, tile_dtype(dtype), mask)


def _counted(dst: Tensor | None, values: np.ndarray, dtype: Any, mask: Any) -> Any:
    core = session().core
    start = core.device.gpsimd_start_cycles
    return emit("iota", core.gpsimd, lambda left: start + free(left), [], values.shape, dtype, lambda: values, dst=dst,
                mask=mask)  # fmt: skip


@both(tensors=2)
def nc_stream_shuffle(
    dst: Tensor | None, src: Tensor, shuffle_mask: Any, *, dtype: Any = None, mask: Any = None
) -> Any:
    """Partition i of each 32 of dst gets partition shuffle_mask[i] of those of src (255: what it has): 3 n cycles."""
    if dst is None:
        raise UsageError("nc_stream_shuffle writes dst: name it")
    order = np.asarray(shuffle_mask)
    if order.shape != (32,):
        raise UsageError(f"nc_stream_shuffle: shuffle_mask has {order.size} numbers; it takes 32, 0 to 31 or 255")
    keep = order == 255
    rows, lines = dst.shape[0], src.settle().shape[0]
    where = np.arange(rows) // 32 * 32 + np.where(keep, 0, order)[np.arange(rows) % 32]
    if int(where.max()) >= lines:
        raise UsageError(f"nc_stream_shuffle reads partition {int(where.max())} of {lines}")
    stays = keep[np.arange(rows) % 32]
    reads = [src, *([dst] if keep.any() else [])]

    def compute(x: np.ndarray, *old: np.ndarray) -> np.ndarray:
        moved = x[where]
        return np.where(stays.reshape(-1, *(1,) * (x.ndim - 1)), old[0], moved) if old else moved

    return emit("nc_stream_shuffle", session().core.vector, lambda left: 3 * free(left), reads, dst.shape, dst.dtype,
                compute, dst=dst, sums=(dst,))  # fmt: skip


def shared_constant_tile(values: np.ndarray, dtype: Any) -> Tensor:
    """A tensor in HBM that holds numbers known before the kernel runs."""
    core = session().core
    tile = new_tile("hbm", values.shape, dtype)
    assert tile.home is not None
    if core.payload:
        tile.home.store.data[...] = rounded(values, dtype)
    tile.home.store.full = True
    return tile
