"""A system on a chip: its cores, shared out over the ranks, what they do in parallel, and the memory they share."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, TypeVar

from meshrt.arm.bus import ends
from meshrt.arm.cache import Lru, SharedCache
from meshrt.arm.core import ArmCore, StretchCost, Team
from meshrt.arm.device import ArmDevice
from meshrt.arm.memory import Dram
from meshrt.errors import UsageError
from meshrt.machine import one_phase
from meshrt.ranks.console import Console
from meshrt.ranks.control import Control
from meshrt.records import dataclass
from meshrt.reports.trace import Event
from meshrt.units import counted

PartResult = TypeVar("PartResult")
PhaseSums = defaultdict[str, float]  # of the system: counts, bytes, seconds


def sums(of: Mapping[str, float]) -> PhaseSums:
    """A copy of these; what is not there is 0."""
    return defaultdict(float, of)


@dataclass
class ArmPhase:
    """Sums over the stretches of one name: of the hosted cores, and of the system."""

    tokens: int | None = None
    cores: Counter[str] = field(default_factory=Counter)
    system: PhaseSums = field(default_factory=lambda: sums({}))
    begun: tuple[Counter[str], PhaseSums] = field(default_factory=lambda: (Counter(), sums({})))


@dataclass
class Soc:
    """The first `count` cores of a device, of which this rank hosts `mine`.

    Memory is shared: what a core has computed, every rank gets over `control`, which is not counted; the core's stores
    are. Which rank hosts a core changes nothing but the host's time.
    """

    device: ArmDevice
    count: int
    control: Control
    payload: bool = True
    spill: bool = False
    console: Console = field(default_factory=Console)
    mine: list[ArmCore] = field(init=False)
    memory: Dram = field(init=False)
    slc: SharedCache = field(init=False)
    system: PhaseSums = field(default_factory=lambda: sums({}))  # the same on every rank
    phases: dict[str, ArmPhase] = field(default_factory=dict)
    open_phase: str = ""
    flash_free: float = 0.0  # when what is being read from flash is there
    sampled: bool = False  # some layers stood for others
    trace_path: str | None = None  # of a file for what ran when
    maps_path: str | None = None  # and of one for what each did
    notes: dict[str, Any] = field(default_factory=dict)  # what a program found of the host; rank 0's are reported

    def __post_init__(self) -> None:
        available, ranks = len(self.device.cores), self.control.size
        if not 1 <= self.count <= available:
            raise UsageError(f"--cores is {self.count}; device {self.device.name} has {available} cores")
        if ranks > self.count:
            raise UsageError(
                f"{ranks} ranks for {counted(self.count, 'core')}: start {counted(self.count, 'rank')} at most,"
                " or raise --cores"
            )
        hosted = self.control.hosted(self.count)
        self.mine = [ArmCore(self.device, index, self.payload, self.spill) for index in hosted]
        self.memory = Dram(self.device)
        self.slc = SharedCache(Lru(self.device.slc_bytes))

    def close(self) -> None:
        """Nothing to give back: the communicator is the run's."""

    # ---- memory

    def buffer(self, name: str, nbytes: int) -> int:
        """Room in DRAM, by its number. LimitError."""
        return self.memory.take(name, nbytes)

    def free(self, name: str) -> None:
        """Its numbers are needed no more: nothing of it goes to DRAM from now on."""
        self.slc.drop(self.memory.give_back(name))

    # ---- flash

    def fetch(self, nbytes: int) -> float:
        """Begin to read from flash, after what is being read: the second at which it is there. Cores go on."""
        self.flash_free = max(self.flash_free, self.system["seconds"]) + nbytes / self.device.flash_bytes_per_second
        self.system["flash_bytes"] += nbytes
        return self.flash_free

    def arrived(self, time: float, buffers: Iterable[int]) -> None:
        """All cores wait for what comes from flash; what caches have of the buffers that it is in is of before."""
        now = self.system["seconds"]
        late = max(0.0, time - now)
        if late:
            self.note("work", "waits for flash", now, now + late)
        self.system["seconds"] += late
        self.system["flash_wait_seconds"] += late
        for buffer in buffers:
            self.slc.drop(buffer)
            for core in self.mine:
                core.caches.l1.drop(buffer)
                core.caches.l2.drop(buffer)

    # ---- work

    def parallel(
        self, shares: Sequence[Sequence[int]], work: Callable[[Team], PartResult]
    ) -> list[tuple[list[int], PartResult]]:
        """Each core does its share of some work: `work` is done for all that this rank hosts, and counted for each.

        They begin together and end when the last is done. What `work` makes of units, with these, of every rank in the
        order of the cores; without payload this rank's alone.
        """
        team = [(core, shares[core.index]) for core in self.mine if shares[core.index]]
        parts: list[tuple[list[int], PartResult]] = []
        if team:
            for core, _ in team:
                core.begin()
            parts.append(([unit for _, units in team for unit in units], work(team)))
        self._advance([cost for of_rank in self._all([core.end() for core, _ in team]) for cost in of_rank])
        return [part for of_rank in (self._all(parts) if self.payload else [parts]) for part in of_rank]

    def alone(self, work: Callable[[ArmCore], PartResult]) -> PartResult | None:
        """The same on the first core; the others wait. None on other ranks without payload."""
        shares: list[Sequence[int]] = [(0,), *(() for _ in range(self.count - 1))]
        return next((part for _, part in self.parallel(shares, lambda team: work(team[0][0]))), None)

    def _advance(self, costs: Sequence[StretchCost]) -> None:
        """Time and DRAM traffic of a stretch, in which these cores took part."""
        if not costs:
            return
        for cost in costs:
            written = {key for key, _ in cost.written}
            for core in self.mine:
                if core.index != cost.core:
                    core.caches.forget(written)
        moved = self.slc.serve([cost.misses for cost in costs], [cost.written for cost in costs])
        seconds = [cost.seconds for cost in costs]
        caps = [self.device.cores[cost.core].bytes_per_second for cost in costs]
        nbytes = [read + wrote for read, wrote in moved]
        done = ends(seconds, nbytes, caps, self.device.bus_bytes_per_second)
        last = max(done)
        if self.trace_path is not None:
            self._note_stretch(costs, done)
        several = len(costs) > 1
        self.system["dram_read"] += sum(read for read, _ in moved)
        self.system["dram_written"] += sum(wrote for _, wrote in moved)
        self.system["stretches"] += 1
        self.system["shared_stretches"] += several
        self.system["seconds"] += last + several * self.device.fork_join_seconds
        self.system["compute_seconds"] += sum(seconds)
        self.system["idle_seconds"] += (self.count - len(done)) * last + sum(last - end for end in done)

    def note(self, track: str, name: str, begin: float, end: float) -> None:
        """What all hosted cores do, where a trace is kept."""
        for core in self.mine:
            if core.trace is not None:
                core.trace.append(Event(track, name, begin, end))

    def _note_stretch(self, costs: Sequence[StretchCost], done: Sequence[float]) -> None:
        """What each hosted core does in a stretch that begins now: computes, then waits for DRAM, then for others."""
        now, last = self.system["seconds"], max(done)
        ended = {cost.core: (cost.seconds, end) for cost, end in zip(costs, done, strict=True)}
        for core in self.mine:
            computed, end = ended.get(core.index, (0.0, 0.0))
            computed = min(computed, end)
            for name, begin, until in (
                ("computes", 0.0, computed),
                ("waits for DRAM", computed, end),
                ("waits for other cores", end, last),
            ):
                if until > begin and core.trace is not None:
                    core.trace.append(Event("work", name, now + begin, now + until))
        if len(costs) > 1:
            self.note("work", "fork and join", now + last, now + last + self.device.fork_join_seconds)

    def _all(self, mine: list[PartResult]) -> list[list[PartResult]]:
        """Every rank's, on every rank, in the order of the ranks, which is that of the cores."""
        if self.control.size == 1:
            return [mine]
        shares: list[list[PartResult]] = self.control.bcast(self.control.gather(mine))
        return shares

    # ---- counters

    @contextmanager
    def phase(self, name: str, tokens: int | None = None) -> Iterator[ArmPhase]:
        """Count what is done inside by name; the same name again adds to it."""
        with one_phase(self, name, tokens):
            phase = self.phases.setdefault(name, ArmPhase())
            phase.begun = self.counted(), sums(self.system)
            try:
                yield phase
            finally:  # also of one that an exception ends which a program catches
                self.note("phases", name, phase.begun[1]["seconds"], self.system["seconds"])
                cores, system = phase.begun
                if tokens is not None:
                    phase.tokens = (phase.tokens or 0) + tokens
                phase.cores.update({key: n - cores[key] for key, n in self.counted().items()})
                for key, n in self.system.items():
                    phase.system[key] += n - system[key]

    def counted(self) -> Counter[str]:
        """What the hosted cores have come to: instructions by their names, and other counts."""
        total: Counter[str] = Counter()
        for core in self.mine:
            total.update({f"instructions {op}": count for op, count in core.instructions.items()})
            total.update(core.counts)
        return total
