"""One core: what it runs is counted, and takes its time."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from math import prod
from typing import NamedTuple

import numpy as np

from meshrt.arm.cache import CachePieces, CoreCaches, Lru, bytes_of
from meshrt.arm.device import ArmDevice, Cluster
from meshrt.arm.isa import Array
from meshrt.arm.kernel import KernelTally, MicroKernel, execute
from meshrt.arm.spill import spills
from meshrt.errors import LimitError, UsageError
from meshrt.records import dataclass
from meshrt.reports.trace import Event

Team = Sequence[tuple["ArmCore", Sequence[int]]]  # the hosted cores that have a share of some work, and the units of it


class StretchCost(NamedTuple):
    """What a stretch of work cost a core: seconds if DRAM were no limit, and what its own caches did not have."""

    core: int
    seconds: float
    misses: CachePieces
    written: CachePieces


@dataclass
class ArmCore:
    """Core `index` of a system on a chip. Without `payload`, kernels are counted and not run."""

    device: ArmDevice
    index: int
    payload: bool = True
    spill: bool = False
    instructions: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    registers: int = 0  # that a kernel held, the most
    caches: CoreCaches = field(init=False)
    trace: list[Event] | None = None  # what ran when, if somebody wants to look at it
    pipes: Counter[str] = field(default_factory=Counter)  # of the present stretch: simd, loads, stores

    def __post_init__(self) -> None:
        self.caches = CoreCaches(Lru(self.cluster.l1_bytes), Lru(self.cluster.l2_bytes))

    @property
    def cluster(self) -> Cluster:
        return self.device.cores[self.index]

    def count(self, kernel: MicroKernel, tiles: int, steps: int, useful: int) -> None:
        """A micro-kernel on so many micro-tiles. LimitError where it needs more registers than there are.

        `useful`: its operations without those of padding.
        """
        registers = len(kernel.registers)
        if registers > self.device.registers:
            if not self.spill:
                raise LimitError(
                    f"core {self.index}: kernel {kernel.name} asks for {registers} registers, the limit is"
                    f" {self.device.registers} (device {self.device.name}); take a smaller --tile, or --spill"
                )
            if kernel.widest > self.device.registers:
                raise LimitError(
                    f"core {self.index}: an instruction of kernel {kernel.name} names {kernel.widest} registers, the"
                    f" limit is {self.device.registers} (device {self.device.name}), and --spill makes room for the"
                    " others alone; take a smaller --tile, or more --registers"
                )
            self._spilled(tiles, *spills(kernel, steps, self.device.registers))
        self.registers = max(self.registers, min(registers, self.device.registers))
        self.issue(kernel.total(steps), tiles)
        if useful:
            self.counts[f"useful {kernel.unit}"] += useful

    def issue(self, tally: KernelTally, times: int) -> None:
        """Count instructions, so many times."""
        for op, needs in tally.extensions:
            if needs not in self.device.isa:
                raise UsageError(f"device {self.device.name} has no {op} (extension {needs}): take another --unit")
        for op, count in tally.instructions.items():
            self.instructions[op] += count * times
        self._moved(tally.loads * times, tally.stores * times)
        self.pipes["simd"] += tally.simd * times
        self.counts["operations"] += tally.operations * times

    def _moved(self, loads: int, stores: int) -> None:
        """Registers that were loaded and stored."""
        self.pipes["loads"] += loads
        self.pipes["stores"] += stores
        self.counts["l1_bytes"] += 16 * (loads + stores)

    def _spilled(self, tiles: int, loads: int, stores: int) -> None:
        self.instructions["ld1"] += tiles * loads
        self.instructions["st1"] += tiles * stores
        self.counts["spill_loads"] += tiles * loads
        self.counts["spill_stores"] += tiles * stores
        self._moved(tiles * loads, tiles * stores)

    # ---- stretches

    def begin(self) -> None:
        self.pipes.clear()
        self.caches.begin()

    def end(self) -> StretchCost:
        """What has been done since `begin`: as long as its busiest part took; the others work beside it."""
        cluster, caches = self.cluster, self.caches
        written = [(key, span) for key, spans in caches.written.items() for span in spans]
        slc_bytes = caches.slc_bytes + bytes_of(span for _, span in written)
        self.counts["l2_bytes"] += caches.l2_bytes
        self.counts["slc_bytes"] += slc_bytes
        cycles = max(
            self.pipes["simd"] / cluster.simd_pipes,
            self.pipes["loads"] / cluster.loads,
            self.pipes["stores"] / cluster.stores,
            caches.l2_bytes / cluster.l2_bytes_per_cycle,
            slc_bytes / cluster.slc_bytes_per_cycle,
        )
        return StretchCost(self.index, cycles / cluster.hz, caches.misses, written)


def run(
    team: Team, kernel: MicroKernel, grid: Sequence[int], axis: int, steps: int, streams: Mapping[str, Array],
    useful: Sequence[int],
) -> None:  # fmt: skip
    """A micro-kernel on all micro-tiles of a grid, whose axis of that number is the team's units, one after the other.

    Each core counts its own, `useful` operations of each core among them; all are computed together.
    """
    assert sum(len(units) for _, units in team) == grid[axis]
    others = prod(grid) // grid[axis]
    for (core, units), operations in zip(team, useful, strict=True):
        core.count(kernel, others * len(units), steps, operations)
    if team[0][0].payload:
        with np.errstate(all="ignore"):  # as cores do: what overflows is infinite
            execute(kernel, grid, steps, streams)
