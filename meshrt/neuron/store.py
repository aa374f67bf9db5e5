"""An allocation in a memory and views of it: its bytes, what of them was written, when they can be read and written."""

from __future__ import annotations

from math import prod
from typing import Any, Protocol

import numpy as np

from meshrt.errors import UsageError
from meshrt.neuron.device import NeuronDevice
from meshrt.neuron.dtypes import held
from meshrt.neuron.regions import PartTimes

_ZERO = bytes(4)


class StoreOwner(Protocol):
    """What a memory asks of the core that it belongs to."""

    device: NeuronDevice
    index: int
    payload: bool
    ticks: int

    def spill(self, store: Store, way: str, earliest: float) -> float: ...

    def settle(self) -> None: ...


class Buffer:
    """One memory of a NeuronCore. `limit`, `live` and `peak` are bytes, of a partition in SBUF and PSUM."""

    name = ""
    on_chip = True  # tiles have a partition axis

    def __init__(self, core: StoreOwner, limit: int) -> None:
        self.core = core
        self.payload = core.payload
        self.limit = limit
        self.live = 0
        self.peak = 0  # since the phase began
        self.most = 0  # ever

    def take(self, store: Store) -> None:
        """Give a new store its place. LimitError."""
        raise NotImplementedError

    def release(self, store: Store) -> None:
        """The store is gone."""
        raise NotImplementedError

    def begin_phase(self) -> None:
        self.peak = self.live

    def _grow(self, nbytes: int) -> None:
        self.live += nbytes
        self.peak = max(self.peak, self.live)
        self.most = max(self.most, self.live)


class Store:
    """The memory of one allocation, freed when no tile refers to it any more.

    Floats are kept as float32, rounded to `dtype` when they are written: the values are those of `dtype`, and the
    products need no conversion. Without payload the array is one zero with strides of zero, so that shapes still hold.
    """

    __slots__ = (
        "__weakref__", "buffer", "core", "data", "dtype", "full", "idle", "itemsize", "mask", "nbytes", "owned",
        "part_reads", "part_writes", "ready", "resident", "row_bytes", "saved", "shape", "size", "used", "writes",
        "written",
    )  # fmt: skip

    def __init__(self, buffer: Buffer, shape: tuple[int, ...], dtype: np.dtype[Any], full: bool) -> None:
        self.owned = False
        self.buffer = buffer
        self.core: Any = buffer.core  # the Core (engines.py), which knows stores
        self.shape = shape
        self.dtype = dtype
        self.itemsize = dtype.itemsize
        self.full = full  # every element was written
        self.mask: np.ndarray | None = None  # which were, if some were
        self.written = 0
        self.writes = 0  # instructions that wrote here
        self.row_bytes = prod(shape[1:]) * self.itemsize  # in each partition
        self.size = prod(shape)  # elements
        self.nbytes = self.row_bytes * shape[0]
        self.ready = 0.0  # the second at which the last write ends
        self.idle = 0.0  # the second at which the last read ends, or at which the place was free
        self.part_writes: PartTimes | None = None  # the former by region, where parts were written one by one
        self.part_reads: PartTimes | None = None  # the latter, where they were read
        self.used = 0  # when it was used last, in instructions
        self.resident = True  # False: spilled to HBM
        self.saved = False  # HBM has a copy that is still right
        buffer.take(self)
        self.owned = True
        self.data: np.ndarray = (
            np.empty(shape, held(dtype))
            if buffer.payload
            else np.ndarray(shape, np.float32, buffer=_ZERO, strides=(0,) * len(shape))
        )

    def __del__(self) -> None:
        if self.owned:
            self.buffer.release(self)

    def written_by(self, view: StoreView) -> float:
        """The second at which the last write to any byte of a view ends."""
        parts = self.part_writes
        return self.ready if parts is None or view.data.size == self.size else parts.latest(view.extent())

    def idle_by(self, view: StoreView) -> float:
        """The second at which the last read of any byte of a view ends, and at which the place was free."""
        parts = self.part_reads
        return self.idle if parts is None or view.data.size == self.size else parts.latest(view.extent())

    def as_one(self) -> None:
        """It moves as a whole: from here on its parts wait for one another."""
        self.part_reads = self.part_writes = None

    @property
    def dirty(self) -> bool:
        """Something was written, of which HBM has no copy."""
        return not self.saved and (self.full or self.mask is not None)


class StoreView:
    """A part of a store, or all of it: what instructions read and write."""

    __slots__ = ("data", "key", "parent", "repeats", "store")

    def __init__(self, store: Store, data: np.ndarray, parent: StoreView | None = None, key: Any = None) -> None:
        self.store = store
        self.data = data
        self.parent = parent  # of which this is the part `key`; None: the whole store
        self.key = key  # an index, or a function from an array to a view of it
        self.repeats: bool = parent is not None and parent.repeats  # an element stands for several: not to be written

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.store.dtype

    def extent(self) -> Any:
        """Which part of the store this is, without a reference to it: see regions.py."""
        parent = self.parent
        return self.key if parent is not None and parent.parent is None else self.keys()

    def keys(self) -> list[Any]:
        """What was indexed, one part of the other, from the whole on."""
        return [] if self.parent is None else [*self.parent.keys(), self.key]

    def _mask(self) -> np.ndarray:
        """Of the elements of this view that were written; the store has a mask."""
        if self.parent is None:
            assert self.store.mask is not None
            return self.store.mask
        whole = self.parent._mask()
        mask: np.ndarray = self.key(whole) if callable(self.key) else whole[self.key]
        return mask

    def check_written(self, name: str) -> None:
        """UsageError unless every element was written before."""
        if self.store.full:
            return
        mask = np.zeros(self.shape, np.bool_) if self.store.mask is None else self._mask()
        if not mask.all():
            raise UsageError(
                f"{name} reads a tile of {self.store.buffer.name} that was never written: {list(self.shape)} elements, "
                f"the first of them missing in partition {int(np.argwhere(~mask)[0][0])}; load it, or set it to zeros"
            )

    def rewrites(self) -> bool:
        """Was something of this view written before?"""
        return self.store.full or (self.store.mask is not None and bool(self._mask().any()))

    def note_written(self) -> None:
        """Remember that all of this view is written."""
        store = self.store
        if store.full:
            return
        if self.data.size == store.data.size:
            store.full = True
        else:
            if store.mask is None:
                store.mask = np.zeros(store.shape, np.bool_)
            self._mask()[...] = True
            store.written += self.data.size
            store.full = store.written >= store.data.size and bool(store.mask.all())
        if store.full:
            store.mask = None


def first_partition(view: StoreView) -> int:
    """The partition at which a tile of SBUF or PSUM starts. Only slices go on from another than their parent's."""
    start, part = 0, view
    while part.parent is not None:
        first = part.key[0] if part.key.__class__ is tuple else part.key
        if first.__class__ is slice:
            start += first.indices(part.parent.shape[0])[0]
        part = part.parent
    return start


def starts(rows: int) -> tuple[int, ...]:
    """The partitions at which an operand of an engine may start that has so many (architecture guides for NKI)."""
    return (0, 32, 64, 96) if rows <= 32 else (0, 64) if rows <= 64 else (0,)


def check_start(name: str, view: StoreView) -> None:
    """UsageError for an operand that starts at a partition at which engines do not start."""
    if view.parent is None or not view.store.buffer.on_chip:
        return
    key = view.key
    if view.parent.parent is None and key.__class__ is tuple and key[0].__class__ is slice and not key[0].start:
        return
    start = first_partition(view)
    if start == 0:
        return
    rows = view.shape[0]
    allowed = starts(rows)
    if start not in allowed:
        raise UsageError(
            f"{name}: an operand has {rows} partitions from {start} on; so many start at "
            f"{' or '.join(map(str, allowed))}"
        )
