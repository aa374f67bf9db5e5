"""How work is shared out to cores: units of it, such as panels of columns, each to one core.

    equal   as many units each
    rate    by how fast a core gets through them when all work: it computes, and has a fair share of the bus meanwhile
    paper   MNN's rule: by computing speed where the operator has at least as many operations a byte as the device
            can do for each byte of its bus, else equal
    steal   whoever is free takes the next unit

Cores' speeds are those of the device's numbers, and the same on every rank; no split changes a bit of a result.
"""

from collections.abc import Sequence
from heapq import heapify, heapreplace
from math import ceil
from typing import Literal

from meshrt.arm.bus import fair
from meshrt.records import dataclass

Split = Literal["equal", "rate", "paper", "steal"]


@dataclass(frozen=True)
class SplitWork:
    """Units of work: seconds that each core computes on one, bytes of it from DRAM; what cores and bus can draw.

    `intense`: has the whole of it as many operations a byte as the device can do?
    """

    units: int
    seconds: tuple[float, ...]
    unit_bytes: float
    caps: tuple[float, ...]
    bus: float
    intense: bool = True

    def rates(self) -> list[float]:
        """Units a second of each core while all work."""
        if not self.unit_bytes:
            return [1 / seconds for seconds in self.seconds]
        demands = [min(cap, self.unit_bytes / busy) for cap, busy in zip(self.caps, self.seconds, strict=True)]
        return [rate / self.unit_bytes for rate in fair(demands, self.bus)]


def share_out(split: Split, work: SplitWork) -> list[Sequence[int]]:
    """The units of each core."""
    if split == "rate":
        return in_order(by_rate(work.units, work.rates()))
    if split == "steal":
        return stolen(work.units, work.rates())
    if split == "paper" and work.intense:
        return in_order(by_speed(work.units, [min(work.seconds) / seconds for seconds in work.seconds]))
    return equal(work.units, len(work.seconds))


def equal(units: int, cores: int) -> list[Sequence[int]]:
    """As even as it goes, in order; the first cores have one more."""
    small, more = divmod(units, cores)
    return in_order([small + (core < more) for core in range(cores)])


def in_order(counts: Sequence[int]) -> list[Sequence[int]]:
    """So many units for each core, one core's after the other's."""
    shares: list[Sequence[int]] = []
    begin = 0
    for count in counts:
        shares.append(range(begin, begin + count))
        begin += count
    return shares


def by_rate(units: int, rates: Sequence[float]) -> list[int]:
    """Units of each core, so that the last is done as early as it can be."""
    counts = [0 for _ in rates]
    ready = [(1 / rate, core) for core, rate in enumerate(rates)]  # when a core would be done with one more
    heapify(ready)
    for _ in range(units):
        core = ready[0][1]
        counts[core] += 1
        heapreplace(ready, ((counts[core] + 1) / rates[core], core))
    return counts


def stolen(units: int, rates: Sequence[float]) -> list[Sequence[int]]:
    """The units that each core takes, one at a time, when it is free; of several the first core."""
    shares: list[list[int]] = [[] for _ in rates]
    free = [(0.0, core) for core in range(len(rates))]
    for unit in range(units):
        core = free[0][1]
        shares[core].append(unit)
        heapreplace(free, (len(shares[core]) / rates[core], core))
    return [*shares]


def by_speed(units: int, speeds: Sequence[float]) -> list[int]:
    """Units in proportion to speed, rounded up for each cluster (cores of one speed), and in it for each core."""
    counts, left, begin = [], units, 0
    while begin < len(speeds):
        end = begin
        while end < len(speeds) and speeds[end] == speeds[begin]:
            end += 1
        cluster = ceil(units * speeds[begin] * (end - begin) / sum(speeds))
        for _ in range(begin, end):
            counts.append(min(ceil(cluster / (end - begin)), left))
            left -= counts[-1]
        begin = end
    return counts
