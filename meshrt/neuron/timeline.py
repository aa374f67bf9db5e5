"""When things happen: engines side by side, each in the order of its program or not, the DMA engines beside them."""

from bisect import bisect_right
from dataclasses import field
from operator import itemgetter

from meshrt.records import dataclass

_GAPS = 64  # idle stretches that are remembered; the oldest are given up first


def book(gaps: list[tuple[float, float]], end: float, earliest: float, seconds: float) -> float:
    """The start of the first stretch of `seconds` from `earliest` on that is idle; it is taken.

    Idle are the gaps, (begin, end) in order, and all from `end` on, the end of what was booked last or later.
    """
    if earliest < end:
        for at in range(bisect_right(gaps, earliest, key=itemgetter(1)), len(gaps)):
            begin, stop = gaps[at]
            start = begin if begin > earliest else earliest
            if start + seconds <= stop:
                gaps[at : at + 1] = [gap for gap in ((begin, start), (start + seconds, stop)) if gap[0] < gap[1]]
                return start
    start = max(end, earliest)
    if start > end:
        gaps.append((end, start))
        del gaps[:-_GAPS]
    return start


@dataclass(slots=True)
class ComputeEngine:
    """One compute engine: it takes its instructions in order. `now`, `busy` are seconds."""

    name: str
    hz: float
    now: float = 0.0
    busy: float = 0.0
    instructions: int = 0

    def run(self, earliest: float, cycles: float) -> float:
        """Start an instruction when the engine and its operands are ready: the second at which it ends."""
        seconds = cycles / self.hz
        end = max(self.now, earliest) + seconds
        self.now = end
        self.busy += seconds
        self.instructions += 1
        return end

    def begin(self, now: float) -> None:
        """Nothing starts before that."""
        self.now = now

    def earliest(self) -> float:
        """The second before which nothing starts any more."""
        return self.now


@dataclass(slots=True)
class ReorderedEngine(ComputeEngine):
    """An engine whose instructions a compiler has put in the order that suits it best, as far as it sees from here.

    Each takes the first idle stretch that is long enough for it, of the last 64, once its operands are ready; so it may
    go before others that the program has earlier, but never holds them up. `now`: idle from there on.
    """

    since: float = 0.0  # nothing starts before that
    gaps: list[tuple[float, float]] = field(default_factory=list)  # idle before `now`, in order

    def run(self, earliest: float, cycles: float) -> float:
        """See ComputeEngine."""
        seconds = cycles / self.hz
        start = book(self.gaps, self.now, earliest, seconds)
        self.now = max(self.now, start + seconds)
        self.busy += seconds
        self.instructions += 1
        return start + seconds

    def begin(self, now: float) -> None:
        """See ComputeEngine."""
        self.now = self.since = now
        self.gaps.clear()

    def earliest(self) -> float:
        """See ComputeEngine."""
        return self.since


@dataclass(slots=True)
class DmaRings:
    """The DMA engines of a NeuronCore, which share its HBM bandwidth.

    Each kind of transfer ("load", "store", "spill") has a queue that starts its transfers in order. A transfer is cut
    by partitions over the engines, a descriptor each, and keeps that share of them busy; a queue that waits, and a
    transfer that is about to start, leave their time to the others.
    """

    engines: int
    partitions: int
    bytes_per_second: float  # of one engine, never more than its share of the HBM's
    descriptor_seconds: float
    transfer_seconds: float
    start_seconds: float  # from when a transfer can start to when it does
    since: float = 0.0  # nothing is asked for before that
    end: float = 0.0  # from here on all engines are idle
    busy: float = 0.0  # seconds of all engines together, divided by their number
    transfers: int = 0
    gaps: list[tuple[float, float]] = field(default_factory=list)  # idle before `end`, in order
    queues: dict[str, float] = field(default_factory=dict)  # the last start in each

    def run(self, queue: str, earliest: float, rows: int, row_bytes: float) -> float:
        """Move `rows` partitions of `row_bytes` each, which may go from `earliest` on: the second at which it ends."""
        engines = min(self.engines, -(-rows * self.engines // self.partitions))
        each = row_bytes / self.bytes_per_second + self.descriptor_seconds
        seconds = -(-rows // engines) * each + self.transfer_seconds
        ready = max(earliest, self.since) + self.start_seconds
        start = self._book(max(ready, self.queues.get(queue, 0.0)), seconds * engines / self.engines)
        self.queues[queue] = start
        self.transfers += 1
        return start + seconds

    def _book(self, earliest: float, seconds: float) -> float:
        """The first stretch of `seconds` from `earliest` on in which the engines are idle is taken."""
        self.busy += seconds
        start = book(self.gaps, self.end, earliest, seconds)
        self.end = max(self.end, start + seconds)
        return start
