"""Tensors as kernels hold them: of HBM, SBUF or PSUM, whole or in part, or a result that has no place yet."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from meshrt.errors import LimitError, MeshrtError, UsageError
from meshrt.neuron.dtypes import to_raw
from meshrt.neuron.store import Buffer
from meshrt.nki.dtypes import tile_dtype
from meshrt.nki.session import blame, session
from meshrt.nki.tensors.home import Home
from meshrt.nki.tensors.index import ds, indexed, whole
from meshrt.nki.tensors.pattern import AccessPattern, padded, reshaped, retyped, squeezed
from meshrt.nki.tensors.patternview import PatternView


class Tensor:
    """Part of an allocation, by a pattern; or a result, by the instruction `pending` that will write it.

    Arithmetic with tensors is the instruction of the same name in `nl`. `name` is what the kernel called it.
    """

    __slots__ = (
        "adds", "buffer", "dtype", "home", "indices", "name", "parent", "pattern", "pending", "shape", "version",
    )  # fmt: skip

    def __init__(
        self, buffer: Buffer, dtype: np.dtype[Any], *, home: Home | None = None, pattern: AccessPattern | None = None,
        shape: tuple[int, ...] = (), pending: Callable[[Tensor, bool], None] | None = None, adds: bool = False,
        name: str = "", parent: Tensor | None = None, indices: tuple[PatternView, ...] = (),
    ) -> None:  # fmt: skip
        self.buffer = buffer
        self.dtype = dtype
        self.home = home
        self.pattern = pattern
        self.shape = shape if pattern is None else pattern.sizes
        self.pending = pending
        self.adds = adds  # a product, which PSUM can add to what it holds
        self.version: int | None = None  # of the tile that a result was assigned to: how often that was written by then
        self.name = name
        self.parent = parent
        # Tiles that say which part it is.
        self.indices: tuple[PatternView, ...] = indices if parent is None else (*parent.indices, *indices)

    # ---- what kernels ask

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def data(self) -> np.ndarray:
        """The numbers, in the tensor's own dtype."""
        return to_raw(self.in_store().data, self.dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        raise UsageError("a kernel is traced before its numbers exist: no `if` on a tile; use nl.where or mask=")

    def _number(self) -> Any:
        raise UsageError(
            "a kernel is traced before its numbers exist: a tile is no number of Python's; use nl and nisa on it, or "
            "nki.typing.scalar(tile) for the bounds of a loop"
        )

    __float__ = __int__ = __index__ = _number

    def __iter__(self) -> Any:
        raise UsageError("a tile is not iterated over: index it in an nl.affine_range loop")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """np.float32(2) * tile: the instruction, as of Python's numbers."""
        numbers = all(isinstance(value, Tensor | np.generic) for value in inputs)
        if method != "__call__" or options or not numbers or ufunc.__name__ not in session().nl.OPS:
            return self.__array__()
        return session().nl.OPS[ufunc.__name__](*inputs)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise UsageError("a tile is no array: use nl and nisa on it, or return a tensor of nl.shared_hbm")

    def __getitem__(self, key: Any) -> Tensor:
        self.settle()
        assert self.pattern is not None
        if key is Ellipsis or key is True:  # a mask that leaves all
            return self
        if isinstance(key, np.ndarray) and key.dtype == np.bool_:
            return self.viewed(self.pattern.kept(key))
        part = indexed(self.pattern, key, self.buffer.on_chip)
        if len(part.sizes) == (1 if self.buffer.on_chip else 0):
            part = padded(part)
        named = tuple(tile.in_store() for tile in named_by(key))
        return Tensor(self.buffer, self.dtype, home=self.home, pattern=part, name=self.name, parent=self, indices=named)

    def __setitem__(self, key: Any, value: Any) -> None:
        if value.__class__ is Tensor and value is not self and self._holds(value, key):
            return  # the second half of an augmented assignment
        if value is not self:
            assign(self[key], value)

    def _holds(self, value: Tensor, key: Any) -> bool:
        """Is the value this part of this tensor already?"""
        if value.home is not self.home or value.home is None or value.parent is None:
            return False
        part = self[key].pattern
        held = value.pattern
        return part is not None and held is not None and part.elements is None and (
            (part.sizes, part.strides, part.offset) == (held.sizes, held.strides, held.offset)
        )  # fmt: skip

    # ---- views

    def view(self, dtype: Any) -> Tensor:
        """The same bytes as numbers of another dtype."""
        self.settle()
        assert self.pattern is not None
        new = tile_dtype(dtype)
        pattern = retyped(self.pattern, self.dtype, new)
        return Tensor(self.buffer, new, home=self.home, pattern=pattern, name=self.name, parent=self)

    def reshape(self, *sizes_: Any, shape: Any = None) -> Tensor:
        """The same elements in other axes, where they lie evenly."""
        self.settle()
        sizes = shape or (sizes_[0] if len(sizes_) == 1 and isinstance(sizes_[0], tuple | list) else sizes_)
        assert self.pattern is not None
        try:
            return self.viewed(reshaped(self.pattern, tuple(whole("an axis of a shape", size) for size in sizes)))
        except ValueError as error:
            raise UsageError(f"a tensor of shape {list(self.shape)} has no shape {list(sizes)}: {error}") from error

    def expand_dims(self, axis: int) -> Tensor:
        """An axis of 1 at `axis`."""
        rank = len(self.shape) + 1
        at = axis % rank
        return self[(slice(None),) * at + (None,)]

    def broadcast_to(self, shape: Any) -> Tensor:
        """Axes of size 1 repeated. Partitions are repeated by a product with ones, which is an instruction."""
        sizes = tuple(whole("an axis of a shape", size) for size in shape)
        repeated: Tensor = session().nl.repeated(self.settle(), sizes)
        return repeated

    def ap(self, pattern: Any, offset: int = 0, dtype: Any = None, **options: Any) -> Tensor:
        """The access pattern [[stride, size], ...] from `offset` on, in elements of the whole tensor."""
        self.settle()
        if dtype is not None and np.dtype(dtype) != self.dtype:
            raise UsageError(f"ap: another dtype ({dtype}) over a tensor of {self.dtype} is not there")
        if options.get("scalar_offset") is not None or options.get("vector_offset") is not None:
            raise UsageError("ap: scalar_offset and vector_offset are not there: index with a tile of indices")
        assert self.pattern is not None and self.home is not None
        strides, sizes = tuple(int(step) for step, _ in pattern), tuple(int(size) for _, size in pattern)
        begin, store = self.pattern.offset + int(offset), self.home.store
        turns = [step * (size - 1) for step, size in zip(strides, sizes, strict=True)]
        low, high = begin + sum(turn for turn in turns if turn < 0), begin + sum(turn for turn in turns if turn > 0)
        count = store.nbytes // self.itemsize
        if low < 0 or high >= count or min(sizes, default=0) < 1:
            raise UsageError(f"ap: the pattern {pattern} from {begin} on reaches elements {low} to {high} of {count}")
        return self.viewed(AccessPattern(sizes, strides, begin))

    def viewed(self, pattern: AccessPattern) -> Tensor:
        """The same memory by another pattern."""
        return Tensor(self.buffer, self.dtype, home=self.home, pattern=pattern, name=self.name, parent=self)

    def as_index(self) -> Any:
        """The numbers as indices."""
        if not self.buffer.payload:
            raise UsageError("indices that are computed need numbers: run the kernel on arrays, not on shapes")
        view = self.in_store()
        view.check_written("an index")
        values = np.rint(view.data).astype(np.int64)
        return int(values.reshape(())) if values.size == 1 else values

    # ---- where it lies

    def settle(self) -> Tensor:
        """Itself, with a place: that of its own if it was not assigned to any."""
        if self.pending is not None:
            launch = session()
            pending, self.pending = self.pending, None
            launch.core.deferred = None
            try:
                self.home = Home(launch, self.buffer, self.shape, self.dtype)
            except MeshrtError as error:
                blame(error, getattr(pending, "spot", ("", 0)))
                raise
            self.pattern = AccessPattern.whole(self.shape)
            pending(self, False)
        return self

    def into(self, target: Tensor, add: bool) -> None:
        """Run the instruction with its result in `target`."""
        pending, self.pending = self.pending, None
        assert pending is not None and target.pattern is not None and target.home is not None
        session().core.deferred = None
        pending(target, add)
        self.home, self.pattern, self.buffer, self.dtype = target.home, target.pattern, target.buffer, target.dtype
        self.shape = target.shape
        self.version = target.home.store.writes

    def in_store(self, extents: tuple[int, ...] | None = None) -> PatternView:
        """What instructions are given; of it the first elements along each axis. UsageError, LimitError."""
        self.settle()
        assert self.home is not None and self.pattern is not None
        home = self.home
        if self.version is not None and self.version != home.store.writes:
            raise UsageError(
                "a result is used after the tile that it was assigned to was written again: use the tile, or a copy"
            )
        if home.lost is not None:
            raise LimitError(
                f"PSUM: the tile of {home.line} is used after its bank went to that of {home.lost}: more than "
                f"{self.buffer.banks} tiles are in use at once; copy finished sums to SBUF first"  # type: ignore[attr-defined]  # PSUM has them
            )
        if not self.buffer.on_chip:
            home.store.core = session().core  # the cores of a launch share HBM
        return PatternView(home.store, self.pattern if extents is None else self.pattern.cut(extents), self.dtype)

    # ---- arithmetic

    def __iadd__(self, value: Any) -> Tensor:
        if isinstance(value, Tensor) and value.pending is not None and value.adds and self.buffer.name == "psum":
            value.into(self, True)
        else:
            session().nl.add(self.settle(), value).into(self, False)
        return self


def named_by(key: Any) -> list[Tensor]:
    """The tiles in a tensor's brackets."""
    items = key if isinstance(key, tuple) and not isinstance(key, ds) else (key,)
    values = [item.start if isinstance(item, ds) else item for item in items]
    return [value for value in values if isinstance(value, Tensor)]


def _operator(name: str, swapped: bool = False) -> Callable[..., Any]:
    def operate(self: Tensor, *other: Any) -> Any:
        op = getattr(session().nl, name)
        return op(*other, self) if swapped else op(self, *other)

    return operate


def _comparison(name: str, of_none: bool) -> Callable[..., Any]:
    def compare(self: Tensor, other: Any) -> Any:
        return of_none if other is None else getattr(session().nl, name)(self, other)

    return compare


for _dunder, _name in {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "mod": "mod", "pow": "power",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "left_shift", "rshift": "right_shift",
}.items():  # fmt: skip
    setattr(Tensor, f"__{_dunder}__", _operator(_name))
    setattr(Tensor, f"__r{_dunder}__", _operator(_name, swapped=True))
for _dunder, _name in {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "neg": "negative", "invert": "invert",
}.items():  # fmt: skip
    setattr(Tensor, f"__{_dunder}__", _operator(_name))
Tensor.__eq__ = _comparison("equal", False)  # type: ignore[method-assign]  # else a tile is equal to itself alone
Tensor.__ne__ = _comparison("not_equal", True)  # type: ignore[method-assign]
Tensor.__hash__ = object.__hash__  # type: ignore[method-assign]


def assign(target: Tensor, value: Any) -> None:
    """target[...] = value: the instruction that makes the value writes there; a tile is copied, a number is set."""
    launch = session()
    isa = launch.nisa
    if isinstance(value, Tensor):
        if value.pending is not None and launch.core.deferred is value and _can_take(target, value):
            value.into(target, False)
        else:
            value.settle()
            isa.tensor_copy(dst=target, src=value) if target.buffer.on_chip else isa.dma_copy(dst=target, src=value)
    elif hasattr(value, "settled"):
        assign(target, value.settled())
    else:
        isa.memset(dst=target, value=value)


def _can_take(target: Tensor, value: Tensor) -> bool:
    return target.buffer.on_chip and squeezed(target.shape) == squeezed(value.shape)
