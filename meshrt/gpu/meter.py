"""What GPUs did, as differences between readings: of a whole run, and of its phases."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from meshrt.gpu.gpu import Gpu, GpuCounters
from meshrt.groups.group import Traffic
from meshrt.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NUMBERS = tuple(field.name for field in fields(GpuCounters) if field.name != "tally")


@dataclass(frozen=True)
class Reading:
    """Where one GPU stands: its clock, and its counters by name; of collectives as "calls KIND", "bytes KIND", and
    "between KIND" those to other nodes."""

    now: float
    numbers: dict[str, Any]


def reading(gpu: Gpu, traffic: "Mapping[str, Traffic]") -> Reading:
    numbers = {name: getattr(gpu.counters, name) for name in NUMBERS}
    numbers |= {f"tally {name}": count for name, count in gpu.counters.tally.items()}
    for kind, counted in traffic.items():
        numbers |= {f"calls {kind}": counted.calls, f"bytes {kind}": counted.bytes}
        if counted.between:
            numbers[f"between {kind}"] = counted.between
    return Reading(gpu.now, numbers)


class GpuPhase:
    """Sums over the stretches of one name, for each hosted GPU."""

    def __init__(self, gpus: int) -> None:
        self.tokens = 0
        self.seconds = 0.0
        self.numbers: list[dict[str, Any]] = [{} for _ in range(gpus)]

    def add(self, before: list[Reading], after: list[Reading], tokens: int) -> None:
        """One stretch more. All GPUs begin and end it together."""
        self.tokens += tokens
        self.seconds += after[0].now - before[0].now
        for sums, old, new in zip(self.numbers, before, after, strict=True):
            for name, count in new.numbers.items():
                sums[name] = sums.get(name, 0) + count - old.numbers.get(name, 0)


class LinkBytes:
    """Bytes that the hosted GPUs send between `begin` and `end`, added up as a tally of that name."""

    def __init__(self, gpus: "Sequence[Gpu]", traffic: "Sequence[Mapping[str, Traffic]]", name: str) -> None:
        self.gpus, self.traffic, self.name = gpus, traffic, name
        self.before = [0 for _ in gpus]

    def begin(self) -> None:
        for at, counted in enumerate(self.traffic):
            self.before[at] = _sent(counted)

    def end(self) -> None:
        for gpu, counted, before in zip(self.gpus, self.traffic, self.before, strict=True):
            gpu.counters.tally[self.name] = gpu.counters.tally.get(self.name, 0) + _sent(counted) - before


def _sent(traffic: "Mapping[str, Traffic]") -> int:
    total = 0
    for counted in traffic.values():
        total += counted.bytes
    return total
