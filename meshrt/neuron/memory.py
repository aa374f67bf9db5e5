"""HBM, SBUF and PSUM: who has which bytes, what is spilled, and when a place is free again.

Two questions are kept apart. What fits is decided in the order of the program: a store takes its bytes when it is made
and gives them back when the last reference to it goes. When a place can be used again is decided on the clock: not
before the last user of the store that had it is done. So a block that is still referred to while the next is loaded is
a double buffer, as in the program's text, and counts as one. Free room of SBUF is used wherever it lies.
"""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from meshrt.errors import FullError, LimitError, UsageError
from meshrt.neuron.store import Buffer, Store, StoreOwner


class Hbm(Buffer):
    """Device memory; a store may have any shape. What is there is known by kind and shape: stores have no names."""

    name = "hbm"
    on_chip = False

    def __init__(self, core: StoreOwner, limit: int) -> None:
        super().__init__(core, limit)
        self.held: dict[str, int] = {}
        self.at_most: dict[str, int] | None = None  # None: it is full as never before

    @property
    def fullest(self) -> dict[str, int]:
        """What was there when it was fullest."""
        return self.held if self.at_most is None else self.at_most

    def take(self, store: Store) -> None:
        if self.live + store.nbytes > self.limit:
            raise FullError(
                f"HBM of NeuronCore {self.core.index} is full: {store.nbytes} bytes asked for, {self.live} in use, the "
                f"limit is {self.limit}; use more cores or a smaller problem"
            )
        if self.live + store.nbytes > self.most:
            self.at_most = None
        self._grow(store.nbytes)
        kind = _kind(store)
        self.held[kind] = self.held.get(kind, 0) + store.nbytes

    def release(self, store: Store) -> None:
        if self.at_most is None:
            self.at_most = dict(self.held)
        self.held[_kind(store)] -= store.nbytes
        self.live -= store.nbytes


def _kind(store: Store) -> str:
    return _named(store.dtype, store.shape)


@lru_cache(1 << 12)  # NumPy makes the name of a dtype anew each time: a tenth of a small run
def _named(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    return f"{dtype} {list(shape)}"


class Sbuf(Buffer):
    """The state buffer. When it is full, the least recently used store is spilled to HBM and comes back when used."""

    name = "sbuf"

    def __init__(self, core: StoreOwner, limit: int) -> None:
        super().__init__(core, limit)
        self.stores: weakref.WeakValueDictionary[int, Store] = weakref.WeakValueDictionary()
        self.idle = [(0.0, limit)]  # free room: since when, bytes of a partition

    def take(self, store: Store) -> None:
        _check_shape(store, self)
        if store.row_bytes > self.limit:
            raise LimitError(
                f"a tile of SBUF asks for {store.row_bytes} bytes of a partition, which has {self.limit}: cut the tile"
            )
        self.core.ticks += 1
        store.used = self.core.ticks
        self.stores[id(store)] = store
        self._find_room(store, ())

    def release(self, store: Store) -> None:
        if store.resident:
            self._free(store.row_bytes, max(store.ready, store.idle))

    def restore(self, store: Store, pinned: Sequence[Store], whole: bool) -> None:
        """Bring a spilled store back, for an instruction that needs all of `pinned` at once. LimitError.

        What was never written, or is about to be written as a `whole`, needs a place but no transfer.
        """
        self._find_room(store, pinned)
        store.resident = True
        if store.saved and not whole:
            store.ready = self.core.spill(store, "reload", max(store.ready, store.idle))

    def _find_room(self, store: Store, pinned: Sequence[Store]) -> None:
        while self.live + store.row_bytes > self.limit:
            self._spill_one(store, pinned)
        self._grow(store.row_bytes)
        store.idle = max(store.idle, self._room(store.row_bytes))

    def _room(self, nbytes: int) -> float:
        """Take the room that is free longest, wherever it lies: the second from which all of it is free."""
        since = 0.0
        while nbytes > 0:
            since, size = heapq.heappop(self.idle)
            nbytes -= size
        if nbytes < 0:
            heapq.heappush(self.idle, (since, -nbytes))
        return since

    def _free(self, nbytes: int, when: float) -> None:
        self.live -= nbytes
        heapq.heappush(self.idle, (when, nbytes))

    def _spill_one(self, store: Store, pinned: Sequence[Store]) -> None:
        victims = [
            candidate
            for candidate in self.stores.values()
            if candidate.resident and candidate is not store and candidate not in pinned
        ]
        if not victims:
            raise LimitError(
                f"SBUF: the tiles of one instruction take more than the {self.limit} bytes of a partition; cut them"
            )
        victim = min(victims, key=lambda candidate: candidate.used)
        if victim.dirty:
            victim.ready = self.core.spill(victim, "save", victim.ready)
            victim.saved = True
        victim.as_one()
        victim.resident = False
        self._free(victim.row_bytes, max(victim.ready, victim.idle))


class Psum(Buffer):
    """The partial sum buffer: banks, of which each store takes one. Nothing is spilled."""

    name = "psum"

    def __init__(self, core: StoreOwner, banks: int, bank_bytes: int) -> None:
        super().__init__(core, banks * bank_bytes)
        self.bank_bytes = bank_bytes
        self.idle = [0.0] * banks  # of the banks that are free: when the last user is done
        self.banks = banks

    def take(self, store: Store) -> None:
        _check_shape(store, self)
        if store.row_bytes > self.bank_bytes:
            raise LimitError(
                f"a tile of PSUM asks for {store.row_bytes} bytes of a partition; it lies in one bank, which has "
                f"{self.bank_bytes}, or {self.bank_bytes // 4} float32 numbers: cut the tile"
            )
        if not self.idle:
            raise LimitError(
                f"PSUM: all {self.banks} banks are in use, a bank by each tile: copy finished sums to SBUF and drop "
                "them first"
            )
        self._grow(self.bank_bytes)
        store.idle = heapq.heappop(self.idle)

    def release(self, store: Store) -> None:
        self.live -= self.bank_bytes
        heapq.heappush(self.idle, max(store.ready, store.idle))


def _check_shape(store: Store, buffer: Buffer) -> None:
    rows, limit = store.shape[0], buffer.core.device.partitions
    if len(store.shape) < 2:
        raise UsageError(
            f"a tile of {buffer.name.upper()} is [partition, free...], not {list(store.shape)}: add an axis of 1"
        )
    if rows > limit:
        raise UsageError(
            f"a tile of {buffer.name.upper()} has {rows} partitions, {limit} at most: cut its first axis into tiles"
        )
