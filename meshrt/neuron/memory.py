"""HBM, SBUF and PSUM: who has which bytes, what is spilled, and when a place is free again.

Two questions are kept apart. What fits is decided in the order of the program: a store takes its bytes when it is made
and gives them back when the last reference to it goes. When a place can be used again is decided on the clock: not
before the last user of the store that had it is done. So a block that is still referred to while the next is loaded is
a double buffer, as in the program's text, and counts as one.
"""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshrt.errors import LimitError, UsageError

if TYPE_CHECKING:
    from meshrt.neuron.core import NeuronCore
    from meshrt.neuron.tile import Store


class Buffer:
    """One memory of a NeuronCore. `limit`, `live` and `peak` are bytes, of a partition in SBUF and PSUM."""

    name = ""

    def __init__(self, core: NeuronCore, limit: int) -> None:
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


class Hbm(Buffer):
    """Device memory; a store may have any shape."""

    name = "hbm"

    def take(self, store: Store) -> None:
        nbytes = store.data.size * store.dtype.itemsize
        if self.live + nbytes > self.limit:
            raise LimitError(
                f"HBM of NeuronCore {self.core.index} is full: {nbytes} bytes asked for, {self.live} in use, the limit "
                f"is {self.limit}; use more cores or a smaller problem"
            )
        self._grow(nbytes)

    def release(self, store: Store) -> None:
        self.live -= store.data.size * store.dtype.itemsize


class Sbuf(Buffer):
    """The state buffer. When it is full, the least recently used store is spilled to HBM and comes back when used."""

    name = "sbuf"

    def __init__(self, core: NeuronCore, limit: int) -> None:
        super().__init__(core, limit)
        self.stores: weakref.WeakValueDictionary[int, Store] = weakref.WeakValueDictionary()
        self.placed = 0  # bytes that have had a user already
        self.idle: dict[int, list[float]] = {}  # places that are free, by size: when the last user is done

    def take(self, store: Store) -> None:
        if store.row_bytes > self.limit:
            raise LimitError(
                f"a tile of SBUF asks for {store.row_bytes} bytes of a partition, which has {self.limit}: cut the tile"
            )
        _check_partitions(store, self)
        self.core.ticks += 1
        store.used = self.core.ticks
        self.stores[id(store)] = store
        self._place(store, ())

    def release(self, store: Store) -> None:
        if store.resident:
            self._free(store.row_bytes, max(store.ready, store.idle))

    def restore(self, store: Store, pinned: Sequence[Store]) -> None:
        """Bring a spilled store back, for an instruction that needs all of `pinned` at once. LimitError."""
        self._place(store, pinned)
        store.resident = True
        store.ready = self.core.spill(store, "reload", max(store.ready, store.idle))

    def _place(self, store: Store, pinned: Sequence[Store]) -> None:
        nbytes = store.row_bytes
        while self.live + nbytes > self.limit:
            self._spill_one(store, pinned)
        self._grow(nbytes)
        idle = self.idle.get(nbytes)
        free = heapq.heappop(idle) if idle else self._carve(nbytes)
        store.idle = max(store.idle, free)

    def _carve(self, nbytes: int) -> float:
        """Room that nobody had yet, or that places of other sizes make: when it is free."""
        self.placed += nbytes
        free = 0.0
        while self.placed > self.limit:
            size = min((size for size, times in self.idle.items() if times), key=lambda size: self.idle[size][0])
            free = max(free, heapq.heappop(self.idle[size]))
            self.placed -= size
        return free

    def _free(self, nbytes: int, when: float) -> None:
        self.live -= nbytes
        heapq.heappush(self.idle.setdefault(nbytes, []), when)

    def _spill_one(self, wanted: Store, pinned: Sequence[Store]) -> None:
        victims = [one for one in self.stores.values() if one.resident and one is not wanted and one not in pinned]
        if not victims:
            raise LimitError(
                f"SBUF: the tiles of one instruction take more than the {self.limit} bytes of a partition; cut them"
            )
        victim = min(victims, key=lambda one: one.used)
        when = max(victim.ready, victim.idle)
        if victim.dirty:
            when = self.core.spill(victim, "save", victim.ready)
            victim.saved = True
        victim.resident = False
        self._free(victim.row_bytes, max(when, victim.idle))


class Psum(Buffer):
    """The partial sum buffer: banks, of which a store takes whole ones. Nothing is spilled."""

    name = "psum"

    def __init__(self, core: NeuronCore, banks: int, bank_bytes: int) -> None:
        super().__init__(core, banks * bank_bytes)
        self.bank_bytes = bank_bytes
        self.idle = [0.0] * banks  # of the banks that are free: when the last user is done
        self.banks = banks

    def take(self, store: Store) -> None:
        _check_partitions(store, self)
        needed = -(-store.row_bytes // self.bank_bytes)
        if needed > len(self.idle):
            raise LimitError(
                f"PSUM: {needed} banks asked for, {len(self.idle)} of {self.banks} are free; a bank holds "
                f"{self.bank_bytes // 4} float32 numbers of a partition: copy finished sums to SBUF and drop them first"
            )
        self._grow(needed * self.bank_bytes)
        store.idle = max(heapq.heappop(self.idle) for _ in range(needed))

    def release(self, store: Store) -> None:
        needed = -(-store.row_bytes // self.bank_bytes)
        self.live -= needed * self.bank_bytes
        for _ in range(needed):
            heapq.heappush(self.idle, max(store.ready, store.idle))


def _check_partitions(store: Store, buffer: Buffer) -> None:
    rows, limit = store.data.shape[0], buffer.core.device.partitions
    if rows > limit:
        raise UsageError(
            f"a tile of {buffer.name.upper()} has {rows} partitions, {limit} at most: cut its first axis into tiles"
        )
