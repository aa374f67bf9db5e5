"""Instructions that reduce. n: elements in each partition."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.neuron.dtypes import bfloat16
from meshrt.nki.dtypes import tile_dtype
from meshrt.nki.generation import both
from meshrt.nki.instructions.emit import Extents, emit
from meshrt.nki.instructions.operands import free
from meshrt.nki.instructions.ops import along, check_bits, of_bits, reducing
from meshrt.nki.session import session
from meshrt.nki.tensors.tensor import Tensor

MOST_SEARCHED = 16_384  # elements of a partition, by max8 and nc_find_index8 (NKI API reference)


def _numbered(axis: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Axes as numbers from 0 on, in order. UsageError for one that the shape has not."""
    rank = len(shape)
    try:
        numbers = [index(at) for at in (axis if isinstance(axis, tuple | list) else (axis,))]
    except TypeError:
        raise UsageError(f"tensor_reduce: axis is {axis!r}; it is a number, or several") from None
    if not all(-rank <= at < rank for at in numbers):
        raise UsageError(f"tensor_reduce: axis {axis} of {list(shape)}, whose axes are 0 to {rank - 1}")
    return tuple(sorted(at % rank for at in numbers))


@both(tensors=1)
def tensor_reduce(
    dst: Tensor | None, op: Any, data: Tensor, axis: Any = None, *, dtype: Any = None, negate: bool = False,
    keepdims: bool = False, mask: Any = None,
) -> Any:  # fmt: skip
    """A reduction as `reduced`; in the new API along the last axes, in the old, and by operators of nl, along any."""
    rank = len(data.shape)
    axes = () if axis is None else _numbered(axis, data.shape)
    if dst is not None and axes and axes != tuple(range(axes[0], rank)):
        raise UsageError(
            f"tensor_reduce: axis {axis} of {list(data.shape)}; it reduces the last axes: take a view where these are"
        )
    return reduced(dst=dst, op=op, data=data, axis=axis, dtype=dtype, negate=negate, keepdims=keepdims, mask=mask)


@both(tensors=1)
def reduced(
    dst: Tensor | None, op: Any, data: Tensor, axis: Any = None, *, dtype: Any = None, negate: bool = False,
    keepdims: bool = False, mask: Any = None,
) -> Any:  # fmt: skip
    """A reduction along free axes, [p, f...] to [p, 1] or more: n cycles, n / 2 for a sum or maximum of bfloat16."""
    reduce, bits = reducing("tensor_reduce", op), of_bits(op)
    data.settle()
    rank = len(data.shape)
    axes = tuple(range(1, rank)) if axis is None else _numbered(axis, data.shape)
    if 0 in axes:
        raise UsageError(
            f"tensor_reduce: axis {axis} of {list(data.shape)}; the first is the partitions: tensor_partition_reduce, "
            "or a product with ones"
        )
    left_axes = tuple(at for at in range(rank) if at not in axes)

    def result(shape: Extents) -> Extents:
        if keepdims:
            return tuple(1 if at in axes else size for at, size in enumerate(shape))
        kept = tuple(shape[at] for at in left_axes)
        return kept if len(kept) > 1 else (*kept, 1)

    def compute(x: np.ndarray) -> np.ndarray:
        y = along(reduce, x, axes)
        return y if bits else np.asarray(-y if negate else y, np.float32)

    out = dst.dtype if dst is not None else tile_dtype(dtype, data.dtype)
    check_bits("tensor_reduce", (op,), (data,), out)
    if bits and negate:
        raise UsageError("tensor_reduce: negate goes with arithmetic operators, not with those of bits")
    fast = reduce in (np.add, np.maximum) and data.dtype == out == bfloat16
    return emit("tensor_reduce", session().core.vector, lambda left: free(left) * (0.5 if fast else 1), [data],
                result(data.shape), out, compute, dst=dst, mask=mask, over=data.shape,
                result_extents=result)  # fmt: skip


@both(tensors=1)
def tensor_partition_reduce(dst: Tensor | None, op: Any, data: Tensor, *, dtype: Any = None, mask: Any = None) -> Any:
    """A reduction over the partitions, [p, f...] to [1, f...], on GpSimd: 64 n cycles."""
    reduce = reducing("tensor_partition_reduce", op)
    data.settle()
    out = dst.dtype if dst is not None else tile_dtype(dtype, data.dtype)
    check_bits("tensor_partition_reduce", (op,), (data,), out)
    return emit("tensor_partition_reduce", session().core.gpsimd, lambda left: 64 * free(left), [data],
                (1, *data.shape[1:]), out, lambda x: along(reduce, x, (0,))[None], dst=dst, mask=mask,
                over=data.shape, result_extents=lambda left: (1, *left[1:]))  # fmt: skip


@both(tensors=2)
def bn_stats(dst: Tensor | None, data: Tensor, *, dtype: Any = None, mask: Any = None) -> Any:
    """[p, n <= 512] to [p, 6]: count, mean, variance times count of even elements, then of odd ones: n cycles."""
    data.settle()
    if free(data.shape) > 512:
        raise UsageError(f"bn_stats takes 512 elements at most, not {free(data.shape)}: cut the tile")

    def compute(x: np.ndarray) -> np.ndarray:
        x, columns = x.reshape(len(x), -1).astype(np.float32), []
        for part in (x[:, 0::2], x[:, 1::2]):
            count = part.shape[1]
            mean = part.mean(axis=1) if count else np.zeros(len(x), np.float32)
            spread = ((part - mean[:, None]) ** 2).sum(axis=1)
            columns += [np.full(len(x), count, np.float32), mean, spread]
        return np.stack(columns, axis=1)

    out = dst.dtype if dst is not None else tile_dtype(dtype, data.dtype)
    return emit("bn_stats", session().core.vector, free, [data], (data.shape[0], 6), out, compute, dst=dst, mask=mask,
                over=data.shape, result_extents=lambda left: (left[0], 6))  # fmt: skip


@both(tensors=2)
def bn_aggr(dst: Tensor | None, data: Tensor, *, dtype: Any = None, mask: Any = None) -> Any:
    """[p, 3 k] of bn_stats to [p, 2], mean and variance of all: 13 n / 3 cycles."""
    data.settle()
    if free(data.shape) % 3:
        raise UsageError(f"bn_aggr takes counts, means and variances in turn, not {free(data.shape)} numbers")

    def compute(x: np.ndarray) -> np.ndarray:
        count, mean, spread = (x.reshape(len(x), -1)[:, at::3].astype(np.float64) for at in range(3))
        total = count.sum(axis=1)
        middle = (count * mean).sum(axis=1) / total
        variance = (spread + count * (mean - middle[:, None]) ** 2).sum(axis=1) / total
        return np.stack([middle, variance], axis=1).astype(np.float32)

    out = dst.dtype if dst is not None else tile_dtype(dtype, data.dtype)
    return emit("bn_aggr", session().core.vector, lambda left: 13 * free(left) / 3, [data], (data.shape[0], 2), out,
                compute, dst=dst, mask=mask, over=data.shape, result_extents=lambda left: (left[0], 2))  # fmt: skip


def _check_eight(name: str, data: Tensor) -> None:
    """UsageError for fewer or more elements in a partition than are searched."""
    if not 8 <= (count := free(data.settle().shape)) <= MOST_SEARCHED:
        raise UsageError(f"{name} takes 8 to {MOST_SEARCHED:,} elements of a partition, not {count:,}: cut the tile")


@both(tensors=2)
def max8(dst: Tensor | None, src: Tensor, *, dtype: Any = None, mask: Any = None) -> Any:
    """The eight largest of each partition, the largest first: n cycles."""
    _check_eight("max8", src)
    out = dst.dtype if dst is not None else tile_dtype(dtype, src.dtype)
    return emit("max8", session().core.vector, free, [src], (src.shape[0], 8), out,
                lambda x: np.sort(x.reshape(len(x), -1), axis=1)[:, :-9:-1], dst=dst, mask=mask, over=src.shape,
                result_extents=lambda left: (left[0], 8))  # fmt: skip


@both(tensors=3)
def nc_find_index8(dst: Tensor | None, data: Tensor, vals: Tensor, *, dtype: Any = None, mask: Any = None) -> Any:
    """Where each of eight values is first found in its partition: n cycles."""
    _check_eight("nc_find_index8", data)
    if free(vals.settle().shape) != 8 or vals.shape[0] != data.shape[0]:
        raise UsageError(f"nc_find_index8: vals has shape {list(vals.shape)}; it takes [{data.shape[0]}, 8]")
    out = dst.dtype if dst is not None else tile_dtype(dtype, "uint32")

    def compute(x: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        matches = x.reshape(len(x), 1, -1) == wanted.reshape(len(x), -1, 1)
        return np.asarray(matches.argmax(axis=2), np.uint32)

    return emit("nc_find_index8", session().core.vector, lambda _: free(data.shape), [data, vals],
                (data.shape[0], 8), out, compute, dst=dst, mask=mask)  # fmt: skip
