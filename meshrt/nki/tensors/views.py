"""What tensors of the new API offer beside brackets: the same elements under other axes, and how they lie.

No data moves. On the chip the first axis is the partitions, and stays the first.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, NoReturn

from meshrt.errors import UsageError
from meshrt.nki.names import MissingName, told
from meshrt.nki.session import session
from meshrt.nki.tensors.pattern import AccessPattern
from meshrt.nki.tensors.tensor import Tensor


def permute(self: Tensor, dims: Any) -> Tensor:
    """The axes in another order."""
    pattern, order = _pattern(self), tuple(dims)
    if sorted(order) != list(range(len(self.shape))):
        raise UsageError(f"permute takes each axis of {list(self.shape)} once, not {list(order)}")
    _stays(self, "permute", order[0] != 0)
    turned = replace(
        pattern, sizes=tuple(pattern.sizes[at] for at in order), strides=tuple(pattern.strides[at] for at in order),
        reaches=tuple(replace(reach, steps=tuple(reach.steps[at] for at in order)) for reach in pattern.reaches),
        elements=None if pattern.elements is None else pattern.elements.transpose(order),
    )  # fmt: skip
    return self.viewed(turned)


def broadcast(self: Tensor, dim: int, size: int) -> Tensor:
    """An axis of 1 repeated."""
    at = _axis(self, "broadcast", dim)
    return self.broadcast_to((*self.shape[:at], size, *self.shape[at + 1 :]))


def expand_dim(self: Tensor, dim: int) -> Tensor:
    """An axis of 1 in front of axis `dim`."""
    _stays(self, "expand_dim", dim % (len(self.shape) + 1) == 0)
    return self.expand_dims(dim)


def squeeze_dim(self: Tensor, dim: int) -> Tensor:
    """Without an axis of 1."""
    at = _axis(self, "squeeze_dim", dim)
    if self.shape[at] != 1:
        raise UsageError(f"squeeze_dim: axis {dim} of {list(self.shape)} is not 1")
    return self.reshape((*self.shape[:at], *self.shape[at + 1 :]))


def reshape_dim(self: Tensor, dim: int, shape: Any) -> Tensor:
    """An axis cut into several; a size of -1 is what is left."""
    at, sizes = dim % len(self.shape), [*shape]
    _stays(self, "reshape_dim", at == 0 and len(sizes) > 1)
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = self.shape[at] // max(1, -prod(sizes))
    if prod(sizes) != self.shape[at]:
        raise UsageError(f"reshape_dim: axis {dim} of {list(self.shape)} is no {list(shape)}")
    return self.reshape((*self.shape[:at], *sizes, *self.shape[at + 1 :]))


def flatten_dims(self: Tensor, start_dim: int, end_dim: int) -> Tensor:
    """The axes from one to another, inclusive, as one."""
    first, last = (axis % len(self.shape) for axis in (start_dim, end_dim))
    _stays(self, "flatten_dims", first == 0 and last > 0)
    return self.reshape((*self.shape[:first], prod(self.shape[first : last + 1]), *self.shape[last + 1 :]))


def rearrange(self: Tensor, src_pattern: Any, dst_pattern: Any, fixed_sizes: Any = None) -> Tensor:
    """Axes by names, as in einops: (("b", ("h", "w")), ("b", "w", "h"), {"h": 4}) cuts the second and turns."""
    names: list[str] = []
    sizes, cut = dict(fixed_sizes or {}), self
    for at in range(len(src_pattern) - 1, -1, -1):
        group = (src_pattern[at],) if isinstance(src_pattern[at], str) else tuple(src_pattern[at])
        names[:0] = group
        if len(group) > 1:
            cut = reshape_dim(cut, at, [sizes.get(name, -1) for name in group])
    groups = [(part,) if isinstance(part, str) else tuple(part) for part in dst_pattern]
    wanted = [name for group in groups for name in group]
    if sorted(wanted) != sorted(names):
        raise UsageError(f"rearrange: {dst_pattern} has other names than {src_pattern}")
    turned = permute(cut, [names.index(name) for name in wanted])
    for at in range(len(groups) - 1, -1, -1):
        if len(groups[at]) > 1:
            first = sum(map(len, groups[:at]))
            turned = flatten_dims(turned, first, first + len(groups[at]) - 1)
    return turned


def slice_(self: Tensor, dim: int, start: int, end: int, step: int = 1) -> Tensor:
    """Part of an axis."""
    at = dim % len(self.shape)
    if not 0 <= start < end <= self.shape[at]:
        raise UsageError(f"slice: {start} to {end} is no part of axis {dim} of {list(self.shape)}")
    return self[(slice(None),) * at + (slice(start, end, step),)]


def select(self: Tensor, dim: int, index: Any) -> Tensor:
    """One element of an axis, which goes; by a number, or by a tile [1, 1] with one in it."""
    at = dim % len(self.shape)
    return self[(slice(None),) * at + (index,)]


def vector_select(self: Tensor, dim: int, vector_offset: Tensor) -> Tensor:
    """Rows of a tensor of HBM by a tile of indices [p, 1], one for each partition of the result."""
    if dim or self.settle().buffer.on_chip:
        raise UsageError("vector_select takes axis 0 of a tensor of HBM")
    offsets = vector_offset.reshape((vector_offset.shape[0], 1))
    picked = self[(offsets.as_index().reshape(-1),)]
    picked.indices = (*picked.indices, offsets.in_store())
    return picked


def is_contiguous(self: Tensor) -> bool:
    """Do the elements lie one after the other, on the chip those of a partition?"""
    pattern, first = _pattern(self), int(self.buffer.on_chip)
    return pattern.elements is None and all(
        size == 1 or stride == prod(pattern.sizes[at + 1 :])
        for at, (size, stride) in enumerate(zip(pattern.sizes, pattern.strides, strict=True))
        if at >= first
    )


def get_pattern(self: Tensor) -> list[list[int]]:
    """[[stride, size], ...], as `ap` takes them."""
    pattern = _pattern(self)
    return [[stride, size] for stride, size in zip(pattern.strides, pattern.sizes, strict=True)]


def is_indirect(self: Tensor) -> bool:
    """Was it picked by a tile of indices?"""
    return _pattern(self).elements is not None


def _pattern(tensor: Tensor) -> AccessPattern:
    pattern = tensor.settle().pattern
    assert pattern is not None
    return pattern


def _axis(tensor: Tensor, name: str, dim: int) -> int:
    at = dim % len(tensor.shape)
    _stays(tensor, name, at == 0)
    return at


def _stays(tensor: Tensor, name: str, first: bool) -> None:
    if first and tensor.settle().buffer.on_chip:
        raise UsageError(f"{name}: the first axis of a tile of {tensor.buffer.name} is its partitions, and stays")


def _missing(self: Tensor, name: str) -> NoReturn:
    if name.startswith("_") or name == "settled":
        raise AttributeError(name)
    own = [member for member in dir(Tensor) if member[0] != "_"]
    if name in session().nl.__all__ or name in session().nl.OPS:
        raise MissingName(f"a tensor has no {name!r}: say nl.{name}(tile)")
    raise MissingName(told("a tensor", name, own))


def _shown(self: Tensor) -> str:
    """For print in a kernel: what it is, and its numbers if it has any yet."""
    text = f"{self.dtype} {list(self.shape)} in {self.buffer.name}"
    lost = self.home is not None and self.home.lost is not None  # its bank of PSUM
    return f"<{text}>" if self.pending is not None or lost or not self.buffer.payload else f"<{text}>\n{self.data}"


for _view in (
    permute, broadcast, expand_dim, squeeze_dim, reshape_dim, flatten_dims, rearrange, select, vector_select,
    is_contiguous, get_pattern, is_indirect,
):  # fmt: skip
    setattr(Tensor, _view.__name__, _view)
Tensor.slice = slice_  # type: ignore[attr-defined]  # as the others; in this file the name is Python's
Tensor.__getattr__ = _missing  # type: ignore[attr-defined]
Tensor.__repr__ = _shown  # type: ignore[method-assign, assignment]
