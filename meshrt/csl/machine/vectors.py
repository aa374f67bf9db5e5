"""Data structure descriptors: vectors in memory, on the fabric, and FIFOs; and what is set in them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

WORD = 2  # bytes


@dataclass(frozen=True, slots=True)
class Mem:
    """A vector in memory: element i, j at base + (i * strides[0] + j * strides[1]) * nbytes."""

    base: int  # in bytes
    nbytes: int  # of an element
    extents: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    dtype: str = "f4"
    index_offset: bool = False

    @property
    def extent(self) -> int:
        count = 1
        for extent in self.extents:
            count *= extent
        return count


@dataclass(frozen=True, slots=True)
class Fab:
    """A vector that comes from the fabric (`inward`) or goes to it."""

    inward: bool
    color: int | None
    queue: int | None
    extent: int
    control: bool = False
    simd: int = 1  # numbers of 16 bits in a cycle
    advance_switch: bool = False
    index_offset: bool = False
    on_control: Any = None  # (what is done, task)
    index: int = 0  # the upper bits of its wavelets, where index_offset says so


@dataclass(slots=True, eq=False)
class Fifo:
    """What a FIFO has in a core: numbers with the time from which each is there.

    A pop activates its task where a push found too little room before, a push where a pop found too few numbers (SDK
    documentation, task activation on pop and push).
    """

    capacity: int
    nbytes: int
    activate_push: int | None = None
    activate_pop: int | None = None
    held: list[Any] = field(default_factory=list)  # (times, numbers, what they come from)
    count: int = 0
    was_full: bool = False
    was_empty: bool = False

    def push(self, data: Any, time: float, chain: Any) -> None:
        self.held.append((time, data, chain))
        self.count += len(data)

    def pop(self, count: int, time: float) -> tuple[Any, float, Any]:
        """The oldest numbers, when all of them are there, at `time` or later, and what the last come from."""
        parts, final, comes_from = [], time, self.held[0][2]
        self.count -= count
        while count:
            when, data, chain = self.held[0]
            taken = min(count, len(data))
            parts.append(data[:taken])
            if when > final:
                final, comes_from = when, chain
            count -= taken
            if taken == len(data):
                self.held.pop(0)
            else:
                self.held[0] = (when, data[taken:], chain)
        return np.concatenate(parts), final, comes_from


@dataclass(frozen=True, slots=True)
class FifoName:
    """A FIFO of all tiles of an image: which of a core's FIFOs it is."""

    index: int
    capacity: int
    nbytes: int
    activate_push: int | None = None
    activate_pop: int | None = None


@dataclass(frozen=True, slots=True)
class Dsr:
    """A register of descriptors: dsr_dest, dsr_src0 or dsr_src1, and its number among those."""

    kind: str
    index: int


@lru_cache(maxsize=4096)
def offsets(extents: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """Of each element, in elements, in the order in which hardware goes: the last index is the fastest."""
    total = np.zeros((), np.int64)
    for extent, stride in zip(extents, strides, strict=True):
        total = total[..., None] + np.arange(extent, dtype=np.int64) * stride
    return total.ravel()


@lru_cache(maxsize=4096)
def apart(extents: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """So many elements on end, from each multiple of it on, lie at places of their own: the last axes, as far as each
    steps over all that shorter steps reach."""
    for first in range(len(extents)):
        reach, count = 0, 1
        for stride, extent in sorted((abs(step), e) for step, e in zip(strides[first:], extents[first:], strict=True)):
            if extent > 1 and stride <= reach:
                break
            reach += stride * (extent - 1)
            count *= extent
        else:
            return max(1, count)
    return 1


def indexed(operand: Any, index: Any) -> Any:
    """An operand where an operation has .index: its beginning, in words, or its wavelets' upper bits."""
    if isinstance(operand, Mem) and operand.index_offset:
        return replace(operand, base=operand.base + int(index) * WORD)
    if isinstance(operand, Fab) and operand.index_offset:
        return replace(operand, index=int(index))
    return operand


def increment(dsd: Any, by: Any, nbytes: int) -> Any:
    """The vector so many elements of `nbytes` on."""
    return _moved(dsd, dsd.base + int(by) * nbytes)


def set_base(dsd: Any, base: Any) -> Any:
    """The vector at another address, in bytes."""
    return _moved(dsd, int(base))


def _moved(dsd: Mem, base: int) -> Mem:
    """As `replace` would, in a third of the time: kernels do little else."""
    return Mem(base, dsd.nbytes, dsd.extents, dsd.strides, dsd.dtype, dsd.index_offset)


def set_length(dsd: Any, length: Any) -> Any:
    """The vector, in memory along its first axis, of so many elements. ArithmeticError."""
    if length < 0:
        raise ArithmeticError(f"@set_dsd_length to {length}: 0 or more are")
    if isinstance(dsd, Mem):
        extents = (int(length), *dsd.extents[1:])
        return Mem(dsd.base, dsd.nbytes, extents, dsd.strides, dsd.dtype, dsd.index_offset)
    return replace(dsd, extent=int(length))


def set_stride(dsd: Any, stride: Any) -> Any:
    """The vector in memory whose first axis takes such steps, in elements."""
    return replace(dsd, strides=(int(stride), *dsd.strides[1:]))
