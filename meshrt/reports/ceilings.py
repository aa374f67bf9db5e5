"""What a machine can do at most, beside what was counted in a part of a run: the numbers of a roofline."""

from collections.abc import Mapping
from dataclasses import field

from meshrt.records import dataclass

COMPUTE = "compute"  # the name of the bound by operations, in tables and the JSON


@dataclass(frozen=True)
class Level:
    """Something that bytes cross: a memory, caches, links.

    `nbytes` of all that there is of it, which moves `rate` bytes a second together (infinite: no limit). It took
    `seconds` at least: by the one of them that moved most, where that was counted.
    """

    name: str
    path: str  # of the bytes in a report: what they are is in fields.py
    nbytes: int
    rate: float
    seconds: float


@dataclass(frozen=True)
class Ceilings:
    """Of a phase, or of a whole run.

    `peak`: operations a second of all cores, for the kinds of operations that these were (infinite: no limit).
    `others`: seconds that something without bytes took at least, by its name: latencies, launches, engines.
    """

    path: str  # of the operations in a report
    operations: int
    peak: float
    levels: tuple[Level, ...] = ()
    others: Mapping[str, float] = field(default_factory=dict)

    @property
    def bounds(self) -> dict[str, float]:
        """All seconds that the part took at least, by what they are due to."""
        bytes_cross = {level.name: level.seconds for level in self.levels}
        return {COMPUTE: self.operations / self.peak, **bytes_cross, **self.others}
