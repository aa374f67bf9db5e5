"""Virtual time: one clock per core, and when each link and each ramp is free again. Cycles, float64."""

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import field
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.device import Device
from meshrt.mesh.mesh import Mesh
from meshrt.records import dataclass

TIME, HOPS, STAGES, LINK_FREE = range(4)  # rows of `Clock.cells`; four of links, by port
RAMP_IN, RAMP_OUT = LINK_FREE + 4, LINK_FREE + 5
# What `seen` is told: of cores that are about to meet; at the end of what is said where a stretch is counted again.
IS_THERE, AGAIN = "is there", "times more, as before"


@dataclass(eq=False)
class Clock:
    """`state` is [3, bh, bw]: a core's time, and the hops and stages on the path of events that led to that time.

    A core that waits for a packet takes over the packet's time and path; one that did not have to wait keeps its own.
    The path of the core that ends last is therefore the critical path, measured and not derived.
    """

    mesh: Mesh
    device: Device
    cells: np.ndarray = field(init=False)  # [9, cores + 1]: all of the following by core, and a last one for no core
    state: np.ndarray = field(init=False)
    link_free: np.ndarray = field(init=False)  # [4, bh, bw]: when the link out of each port is free again
    ramp_in: np.ndarray = field(init=False)  # [bh, bw]: when the ramp is free again, router to core
    ramp_out: np.ndarray = field(init=False)  # and core to router: a link of its own
    asked_at: np.ndarray = field(
        init=False
    )  # [5, bh, bw]: when the heads asked that had them last; by port, the ramp too
    idle: np.ndarray = field(init=False)  # [5, bh, bw]: from when on they were idle before that
    late: np.ndarray | None = None  # [4, bh, bw]: cycles that a hop out of each port takes longer, past defects

    under_way: dict[int, Callable[[], None]] = field(default_factory=dict)  # see `path_changes`
    heads: list[list[Any]] = field(default_factory=list)  # lanes of transfers whose heads have still to be moved
    started: int = 0  # such transfers so far; numbers them
    coming: list[Any] = field(default_factory=list)  # arrivals whose ramps are not all given out, as they were started
    users: dict[Any, Any] = field(default_factory=dict)  # channels that were last on their links; see order.py
    busy: np.ndarray | None = None  # [bh, bw]: cycles of work, not yet in the maps; None where there are none
    seen: Callable[..., None] | None = None  # told why clocks went on, if somebody wants to look at it
    past: Any = None  # what led to the cores' times, if somebody wants to know: look/past.py
    messages: Any = None  # told of transfers, if these are to be written: look/messages.py
    links: Any = None  # told of transfers, if somebody wants to see links: look/linktrace.py
    scratch: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)  # see `buffer`
    tables: dict[str, bytes] = field(default_factory=dict)  # for the compiled core; see strides.py
    sums: list[Any] = field(default_factory=list)  # one, where sums are made by tables: see sums.py
    numbered: WeakValueDictionary[Any, np.ndarray] = field(default_factory=WeakValueDictionary)  # see strides.py
    costs: dict[tuple[float, int, int, int], float] = field(default_factory=dict)  # cycles of what was computed before
    products: dict[tuple[int, int, int, int, bool], tuple[float, int]] = field(
        default_factory=dict
    )  # the same of products, and bytes that they read and write
    lent: list[np.ndarray] = field(default_factory=list)  # memory that was given back, the smallest first

    def __post_init__(self) -> None:
        self.met = 0.0  # when all cores last went on from one moment
        shape = (self.mesh.block_height, self.mesh.block_width)
        self.cells = np.empty((9, shape[0] * shape[1] + 1))  # one piece of memory: large ones get large pages
        self.cells[...] = 0
        cells = self.cells[:, :-1].reshape(9, *shape)
        self.state, self.link_free = cells[:LINK_FREE], cells[LINK_FREE:RAMP_IN]
        self.ramp_in, self.ramp_out = cells[RAMP_IN], cells[RAMP_OUT]
        self.asked_at, self.idle = np.zeros((5, *shape)), np.zeros((5, *shape))
        alone = self.state.size == len(self.state)  # then NumPy would take ten times as long for its one number
        self.alone = memoryview(self.cells[TIME]).cast("B").cast("d") if alone else None

    def path_changes(self) -> None:
        """To be called before hops or stages of cores change: packets that have left take a copy of what they were.

        Few cores wait for most packets, and the paths of the others are never looked at.
        """
        for take in self.under_way.values():
            take()
        self.under_way.clear()

    def buffer(self, use: str, nbytes: int) -> np.ndarray:
        """Bytes to write to and read in one transfer, for this use; the next one gets the same, still in the
        processor's cache."""
        size = _rounded(nbytes)
        if (use, size) not in self.scratch:
            self.scratch[use, size] = np.empty(size, np.uint8)
        return self.scratch[use, size][:nbytes]

    def borrow(self, nbytes: int) -> np.ndarray:
        """So many bytes of the host's or more, to be given back: transfers of all sizes use the same memory in turn.

        Where none is large enough, the largest give way to it, as many as there is room for in one: in all there is no
        more than was ever in use at once.
        """
        fit = bisect_left(self.lent, nbytes, key=_size)
        if fit < len(self.lent):
            return self.lent.pop(fit)
        given_up = 0
        while self.lent and given_up < nbytes:
            given_up += self.lent.pop().nbytes
        eighth = _rounded(nbytes) // 8
        return np.empty(-(-nbytes // eighth) * eighth if eighth else nbytes, np.uint8)

    def give_back(self, memory: np.ndarray) -> None:
        """Memory that was borrowed, and that nobody looks at any more."""
        insort(self.lent, memory, key=_size)

    def compute(
        self, operations: float, calls: int = 1, cores: np.ndarray | None = None, itemsize: int = 4, operands: int = 2
    ) -> None:  # fmt: skip
        """All cores of the block, or those, work: so many element-wise operations each, in `calls` alike."""
        kind = operations, calls, itemsize, operands
        cycles = self.costs.get(kind)
        if cycles is None:
            cycles = self.costs[kind] = calls * self.device.compute_cycles(operations / calls, itemsize, operands)
        self.software(cycles, cores)

    def vectors(
        self, length: int, calls: int, itemsize: int, cores: np.ndarray | None = None, operands: int = 2
    ) -> None:  # fmt: skip
        """All cores of the block, or those, issue so many vector instructions on `length` numbers of that size."""
        self.software(self.device.vector_cycles(length, calls, itemsize, operands), cores)

    def software(self, cycles: float, cores: Any = None) -> None:
        """All cores of the block, or those that `cores` indexes, are busy for so long. UsageError for less than 0."""
        if not cycles >= 0:  # nor what is no number
            raise UsageError(f"work of {cycles:g} cycles: what a core does takes no less than 0")
        if cycles and cores is None and self.alone is not None:
            self.alone[0] += float(cycles)
        elif cycles and cores is None:
            self.state[TIME] += cycles
        elif cycles:
            self.state[TIME][cores] += cycles
        if self.busy is not None:
            self.busy[... if cores is None else cores] += cycles
        if self.seen is not None:
            self.seen("computes")

    def spend(self, cycles: np.ndarray) -> None:
        """Every core works for so many cycles of its own, [bh, bw]."""
        self.state[TIME] += cycles
        if self.busy is not None:
            self.busy += cycles
        if self.seen is not None:
            self.seen("computes")

    def last(self) -> tuple[float, int, int]:
        """(time, hops, stages) of the core of this block that is last; the longest path where several are."""
        time = self.state[TIME]
        late = self.state[:, time == time.max()]
        hops = late[HOPS].max()
        stages = late[STAGES][late[HOPS] == hops].max()
        return float(time.max()), int(hops), int(stages)

    def meet(self, time: float, hops: int, stages: int) -> None:
        """All cores go on from one moment: that at which the last one of the mesh was done."""
        self.met = time
        self.path_changes()
        if self.seen is not None:
            self.seen(IS_THERE)
        self.state[TIME], self.state[HOPS], self.state[STAGES] = time, hops, stages
        if self.seen is not None:
            self.seen("waits for the last core")


class Still(Clock):
    """A clock that does not go on, of cores that are only to hold what they would hold in a run."""

    def software(self, cycles: float, cores: Any = None) -> None:
        pass

    def spend(self, cycles: np.ndarray) -> None:
        pass

    def last(self) -> tuple[float, int, int]:
        return 0.0, 0, 0

    def meet(self, time: float, hops: int, stages: int) -> None:
        pass


def _size(memory: np.ndarray) -> int:
    return memory.nbytes


def _rounded(nbytes: int) -> int:
    """The next power of two: few sizes, so that memory is often of the size that is asked for."""
    return int(1 << max(0, nbytes - 1).bit_length())
