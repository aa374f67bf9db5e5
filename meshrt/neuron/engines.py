"""A core's engines, memories and counters, and how an instruction gets its time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, Protocol, TypeVar

import numpy as np

from meshrt.errors import UsageError
from meshrt.machine import one_phase
from meshrt.neuron.device import NeuronDevice
from meshrt.neuron.dtypes import rounded
from meshrt.neuron.memory import Hbm, Psum, Sbuf
from meshrt.neuron.regions import PartTimes
from meshrt.neuron.store import Store, StoreView, check_start
from meshrt.neuron.timeline import ComputeEngine, DmaRings, ReorderedEngine
from meshrt.records import dataclass
from meshrt.reports.trace import Event

COUNTS = (
    "hbm_read", "hbm_written", "spill_saved", "spill_reloaded", "dma_descriptors", "macs", "transpose_macs",
    "mac_passes", "operand_bytes", "link_bytes", "collectives",
)  # fmt: skip


@dataclass
class NeuronPhase:
    """A stretch of a run by name: what was counted from `begin` to `end`, in seconds of virtual time."""

    name: str
    begin: float
    counts: dict[str, int]
    busy: dict[str, float]
    instructions: dict[str, int]
    end: float = 0.0
    peaks: dict[str, int] = field(default_factory=dict)
    tokens: int | None = None


class PendingInstruction(Protocol):
    """An instruction that has no destination yet (tile.py)."""

    def settle(self) -> object: ...


AnyPending = TypeVar("AnyPending", bound=PendingInstruction)


class Core(ABC):
    """Core number `index` of a run, as instructions know it; NeuronCore (core.py) has instructions for arithmetic.

    With `payload` False tiles are shapes only; counts and times are the same. `reorder`: compute engines take their
    instructions in the order that suits them, not the program's (timeline.py).
    """

    def __init__(self, device: NeuronDevice, index: int = 0, payload: bool = True, reorder: bool = False) -> None:
        self.device = device
        self.index = index
        self.payload = payload
        self.reorder = reorder
        self.hbm = Hbm(self, device.hbm_bytes)
        self.sbuf = Sbuf(self, device.sbuf_partition_bytes)
        self.psum = Psum(self, device.psum_banks, device.psum_bank_bytes)
        new_engine = ReorderedEngine if reorder else ComputeEngine
        self.tensor = new_engine("tensor", device.tensor_hz)
        self.vector = new_engine("vector", device.vector_hz)
        self.scalar = new_engine("scalar", device.scalar_hz)
        self.gpsimd = new_engine("gpsimd", device.gpsimd_hz)
        self.dma = DmaRings(
            device.dma_engines,
            device.partitions,
            min(device.dma_bytes_per_second, device.hbm_bytes_per_second / device.dma_engines),
            device.dma_descriptor_seconds,
            device.dma_transfer_seconds,
            device.dma_start_seconds,
        )
        self.ticks = 0  # allocations and instructions so far: what least recently used means
        self.counts = dict.fromkeys(COUNTS, 0)
        self.phases: list[NeuronPhase] = []
        self.open_phase = ""
        self.finish = 0.0  # the last write so far ends
        self.trace: list[Event] | None = None  # what ran when, if somebody wants to look at it
        self.deferred: PendingInstruction | None = None
        self.identities: dict[np.dtype[Any], Any] = {}  # tiles that transposes share

    @property
    def engines(self) -> tuple[ComputeEngine, ...]:
        return (self.tensor, self.vector, self.scalar, self.gpsimd)

    # ---- instructions

    def defer(self, deferred: AnyPending) -> AnyPending:
        """Hold an instruction until it is known where its result goes; the one before is run now at the latest."""
        self.settle()
        self.deferred = deferred
        return deferred

    def settle(self) -> None:
        """Run what is deferred."""
        if self.deferred is not None:
            self.deferred.settle()

    def issue(
        self, engine: ComputeEngine, name: str, cycles: float, reads: Sequence[StoreView], write: StoreView
    ) -> None:
        """Give an instruction its place on the clock: after its engine, its operands and the readers of its result."""
        if write.parent is not None:
            check_start(name, write)
        for tile in reads:
            if tile.parent is not None:
                check_start(name, tile)
        start = self.touch(reads, write, engine.earliest() if self.reorder else engine.now)
        nbytes = write.data.size * write.store.itemsize
        for tile in reads:
            nbytes += tile.data.size * tile.store.itemsize
        self.counts["operand_bytes"] += nbytes
        busy, least = engine.busy, self.device.least_cycles
        end = engine.run(start, cycles if cycles > least else least)
        if self.trace is not None:
            self.trace.append(Event(engine.name, name, end - (engine.busy - busy), end))
        self.done(end, reads, write)

    def touch(self, reads: Sequence[StoreView], write: StoreView, start: float) -> float:
        """Operands that are all in place, and the second from which an instruction may run that cannot before `start`.

        It waits for the writes of all bytes that it reads or writes, and for the reads of those that it writes.
        """
        self.ticks += 1
        target = write.store
        target.used = self.ticks
        resident = target.resident
        for tile in reads:
            store = tile.store
            if store.core is not self:
                raise UsageError(f"NeuronCore {self.index} has no tile of NeuronCore {store.core.index}")
            store.used = self.ticks
            resident = resident and store.resident
            if store.ready > start:
                start = max(start, store.written_by(tile))
        if target.core is not self or write.repeats:
            raise UsageError("a tile of another NeuronCore, or a view that repeats its elements, cannot be written")
        if not resident:
            start = max(start, self._bring_back([tile.store for tile in reads], write))
        if target.idle > start:
            start = max(start, target.idle_by(write))
        if target.ready > start and write.rewrites():
            start = max(start, target.written_by(write))
        return start

    def _bring_back(self, stores: Sequence[Store], write: StoreView) -> float:
        """Operands that were spilled, and the result's store: the second from which those operands can be read."""
        target, spilled = write.store, [store for store in stores if not store.resident]
        for store in spilled:
            if not store.resident:  # it may stand there twice
                self.sbuf.restore(store, (*stores, target), False)
        if not target.resident:
            self.sbuf.restore(target, (*stores, target), write.data.size == target.data.size)
        return max((store.ready for store in spilled), default=0.0)

    def done(self, end: float, reads: Sequence[StoreView], write: StoreView) -> None:
        """Note that an instruction has ended."""
        for tile in reads:
            store = tile.store
            parts = store.part_reads
            if tile.data.size != store.size:
                if parts is None:
                    parts = store.part_reads = PartTimes(store.shape, store.itemsize, store.idle)
                parts.note(end, tile.extent())
            elif parts is not None and end > parts.base:
                parts.base = end
            if end > store.idle:
                store.idle = end
        target = write.store
        if write.data.size == target.size:  # all of it was read and written before
            target.part_reads = target.part_writes = None
        else:
            if target.part_writes is None:
                target.part_writes = PartTimes(target.shape, target.itemsize, target.ready)
            target.part_writes.note(end, write.extent())
        if end > target.ready:
            target.ready = end
        target.saved = False
        target.writes += 1
        if not target.full:
            write.note_written()
        if end > self.finish:
            self.finish = end

    def transfer(
        self, queue: str, source: StoreView, target: StoreView, slower: float = 1.0, indices: Sequence[StoreView] = ()
    ) -> None:
        """A DMA transfer, a "load" from HBM to SBUF or a "store" back. A cast on the way is free: HBM's bytes count.

        `indices`: tiles that say which parts these are, and have to be there before.
        """
        start = self.touch([source, *indices], target, self.dma.since)
        hbm, tile = (source, target) if queue == "load" else (target, source)
        row_bytes = tile.data.size // tile.shape[0] * hbm.dtype.itemsize
        end = self.move(queue, start, tile.shape[0], row_bytes * slower)
        self.counts["hbm_read" if queue == "load" else "hbm_written"] += row_bytes * tile.shape[0]
        self.done(end, [source, *indices], target)

    def spill(self, store: Store, way: str, earliest: float) -> float:
        """Move a store between SBUF and the place in HBM that spills go to: the second at which it is there."""
        nbytes = store.nbytes
        self.counts["spill_saved" if way == "save" else "spill_reloaded"] += nbytes
        self.counts["hbm_written" if way == "save" else "hbm_read"] += nbytes
        end = self.move("spill", earliest, store.shape[0], store.row_bytes)
        self.finish = max(self.finish, end)
        return end

    def move(self, queue: str, earliest: float, rows: int, row_bytes: float) -> float:
        """A transfer of the DMA engines, a descriptor for each row: the second at which it ends."""
        self.counts["dma_descriptors"] += rows
        end = self.dma.run(queue, earliest, rows, row_bytes)
        if self.trace is not None:
            self.trace.append(Event(f"dma {queue}", f"{rows} x {row_bytes:g} bytes", self.dma.queues[queue], end))
        return end

    @abstractmethod
    def apply(self, op: Any, inputs: Sequence[Any], dtype: Any) -> Any:
        """The instruction for a function of tiles, such as that of `a + b`."""

    @abstractmethod
    def copy(self, target: Any, source: Any) -> None:
        """target[...] = source."""

    @abstractmethod
    def add(self, target: Any, value: Any) -> None:
        """target += a tile or a number."""

    @abstractmethod
    def fill(self, target: Any, value: Any) -> None:
        """target[...] = a number."""

    def put(self, target: StoreView, values: np.ndarray) -> None:
        """Write numbers, rounded to the dtype of their place."""
        target.data[...] = rounded(values, target.dtype)

    # ---- time

    @property
    def now(self) -> float:
        """The second at which everything issued so far is done."""
        return max(self.finish, *(engine.now for engine in self.engines))

    def barrier(self, when: float | None = None) -> float:
        """All engines and queues wait until everything so far is done, or until `when`."""
        self.settle()
        now = self.now if when is None else max(when, self.now)
        for engine in self.engines:
            engine.begin(now)
        self.dma.gaps.clear()
        self.dma.end = max(self.dma.end, now)
        self.dma.since = now
        self.finish = now
        return now

    @contextmanager
    def phase(self, name: str, tokens: int | None = None) -> Iterator[NeuronPhase]:
        """Count what happens inside by name. It begins when all before is done, and ends when all of it is."""
        with one_phase(self, name, tokens):
            begin = self.barrier()
            for buffer in (self.hbm, self.sbuf, self.psum):
                buffer.begin_phase()
            phase = NeuronPhase(
                name, begin, dict(self.counts), {engine.name: engine.busy for engine in self.engines},
                {engine.name: engine.instructions for engine in self.engines}, tokens=tokens,
            )  # fmt: skip
            phase.busy["dma"], phase.instructions["dma"] = self.dma.busy, self.dma.transfers
            self.phases.append(phase)
            try:
                yield phase
            finally:  # also of one that an exception ends which a program catches
                phase.end = self.barrier()
                phase.counts = {key: self.counts[key] - before for key, before in phase.counts.items()}
                for engine in self.engines:
                    phase.busy[engine.name] = engine.busy - phase.busy[engine.name]
                    phase.instructions[engine.name] = engine.instructions - phase.instructions[engine.name]
                phase.busy["dma"] = self.dma.busy - phase.busy["dma"]
                phase.instructions["dma"] = self.dma.transfers - phase.instructions["dma"]
                phase.peaks = {buffer.name: buffer.peak for buffer in (self.hbm, self.sbuf, self.psum)}
