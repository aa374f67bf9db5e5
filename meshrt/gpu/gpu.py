"""One GPU: kernels that are launched one by one or as nodes of a graph, counted and timed; its memory; its buffers.

Two clocks, in seconds: that of the host thread that launches, and that of the device, which begins a kernel when it
was launched and the one before is done (a CUDA stream). What a kernel takes is timing.py's. A graph is launched once,
and its kernels need no host. A second stream is for collectives that go on beside the kernels.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.gpu.device import GpuDevice
from meshrt.gpu.memory import Budget
from meshrt.gpu.plan import KernelTurn, StaticPlan
from meshrt.gpu.timing import ProductShape, RowKernel, plain_seconds, products_seconds, rows_seconds
from meshrt.groups.group import hollow
from meshrt.records import dataclass
from meshrt.reports.trace import Event

_NONE: Mapping[str, int] = MappingProxyType({})
COMPUTED = np.dtype(np.float32)  # what numbers are computed in, whatever they are counted as
KernelBuffer = tuple[np.ndarray, Any, int]  # the dtype that it is counted in, None: the GPU's; and its bytes
KernelCall = tuple[Callable[..., object], np.ndarray, tuple[Any, ...]]  # of a kernel


class Cost:
    """What a kernel asks for: operations and bytes of GPU memory; `tally` counts what a program wants counted.

    `seconds`: what it takes, where more is known of it than that (timing.py). A plan keeps it, so that `set` can tell a
    recorded kernel before a replay what it will have to do.
    """

    __slots__ = ("device", "flops", "nbytes", "seconds", "tally")

    def __init__(
        self, device: GpuDevice, flops: int, nbytes: int, tally: Mapping[str, int] = _NONE,
        seconds: float | None = None,
    ) -> None:  # fmt: skip
        self.device = device
        self.tally = tally
        self.set(flops, nbytes, seconds)

    def set(self, flops: int, nbytes: int, seconds: float | None = None) -> None:
        self.flops = flops
        self.nbytes = nbytes
        self.seconds = plain_seconds(self.device, flops, nbytes) if seconds is None else seconds


@dataclass(slots=True)
class GpuCounters:
    """What a GPU did. Everything but the tallies is a number that differences can be taken of."""

    launches: int = 0
    graphs: int = 0
    flops: int = 0
    memory_traffic: int = 0  # bytes
    compute_seconds: float = 0.0  # that kernels took
    collective_seconds: float = 0.0  # from the launch of collectives to their ends, waiting for others included
    hidden_seconds: float = 0.0  # of these, in which kernels went on
    bubble_seconds: float = 0.0  # waiting for other groups: the bubbles of a pipeline
    tally: dict[str, int] = field(default_factory=dict)


@dataclass
class Gpu:
    """GPU `index` of a run, which has that `place` in its tensor-parallel group."""

    device: GpuDevice
    index: int
    payload: bool = True
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float32))  # of numbers, as they are counted
    now: float = 0.0
    host_clock: float = 0.0
    beside: float = 0.0  # when the second stream is free
    under_way: list[tuple[float, float]] = field(default_factory=list)  # on it: begin and end of what nobody waited for
    memory: Budget = field(init=False)
    counters: GpuCounters = field(default_factory=GpuCounters)
    plan: StaticPlan | None = None  # that is being recorded
    noted: StaticPlan | None = None  # what is launched now, to be counted again
    fusing: list[KernelCall] | None = None  # kernels of which one is being made
    costs: dict[tuple[Any, ...], Cost] = field(default_factory=dict)  # that are not set anew, by what was asked for
    scopes: list[list[KernelBuffer]] = field(default_factory=list)  # buffers made since each open scope began
    trace: list[Event] | None = None  # what ran when, if somebody wants to look at it
    place: int = -1  # `index`, unless another is given

    def __post_init__(self) -> None:
        self.place = self.index if self.place < 0 else self.place
        self.memory = Budget(self.device, self.index)

    def cost(
        self, flops: int, nbytes: int, tally: Mapping[str, int] = _NONE, seconds: float | None = None
    ) -> Cost:  # fmt: skip
        return Cost(self.device, flops, nbytes, tally, seconds)

    def cost_of_rows(self, kernel: RowKernel, shape: tuple[int, ...], flops: int, nbytes: int) -> Cost:
        """Of a kernel with a block of threads for each of the rows of an array of this shape."""
        key = (*kernel, shape, flops, nbytes)
        cost = self.costs.get(key)
        if cost is None:
            rows, width = shape
            seconds = float(rows_seconds(self.device, kernel, rows, width, nbytes))
            cost = self.costs[key] = Cost(self.device, flops, nbytes, _NONE, seconds)
        return cost

    def cost_of_products(self, shapes: tuple[ProductShape, ...], numbers: int) -> Cost:
        """Of one kernel for these products; they read and write so many numbers, of the GPU's own dtype."""
        item = self.dtype.itemsize
        cost = self.costs.get((shapes, numbers, item))
        if cost is None:
            flops, seconds = sum(2 * m * k * n for m, k, n in shapes), products_seconds(self.device, shapes, item)
            cost = self.costs[shapes, numbers, item] = Cost(self.device, flops, item * numbers, _NONE, seconds)
        return cost

    def launch(self, kernel: Callable[..., object], out: np.ndarray, *args: Any, cost: Cost) -> np.ndarray:
        """Run `kernel(out, *args)`, which writes to `out`, or record it. Without payload it is counted only."""
        if self.fusing is not None:
            self.fusing.append((kernel, out, args))
            return out
        name = "" if self.trace is None else kernel.__name__.strip("_")
        if self.plan is not None:
            if self.payload:
                self.plan.compute(kernel, out, *args)
            self.plan.count(self.index, self.nodes, (cost, name))
            return out
        if self.payload:
            kernel(out, *args)
        if self.noted is not None:
            self.noted.count(self.index, self.launched, (cost, name))
        self._take(((cost, name),), self.device.launch_seconds)
        return out

    def launched(self, turns: Sequence[KernelTurn]) -> None:
        """Kernels that the host launches one by one."""
        self._take(turns, self.device.launch_seconds)

    def nodes(self, turns: Sequence[KernelTurn]) -> None:
        """Kernels of a graph that was launched."""
        self._take(turns, None)

    @contextmanager
    def fused(self, cost: Cost) -> Iterator[None]:
        """What is launched inside is one kernel, of this cost: what it has between stays on the chip."""
        calls = self.fusing = []
        try:
            yield
        finally:
            self.fusing = None
        self.launch(_in_turn, calls[-1][1], calls, cost=cost)

    def _take(self, turns: Sequence[KernelTurn], launch: float | None) -> None:
        """The time of kernels, in turn, and what they count. `launch`: seconds of the host for each, None: none."""
        counters, between, now = self.counters, self.device.kernel_seconds, self.now
        flops, nbytes, computing = counters.flops, counters.memory_traffic, counters.compute_seconds
        for cost, name in turns:
            if launch is not None:
                self.host_clock += launch
                now = max(now, self.host_clock)
            seconds = cost.seconds
            flops += cost.flops
            nbytes += cost.nbytes
            computing += seconds
            now += between + seconds
            if self.under_way:
                for begin, end in self.under_way:
                    counters.hidden_seconds += max(min(now, end) - max(now - seconds, begin), 0.0)
            if self.trace is not None:
                self.trace.append(Event("kernels", name, now - seconds, now))
            if cost.tally is not _NONE:
                for tally, count in cost.tally.items():
                    self.count(tally, count)
        counters.launches += len(turns)
        counters.flops, counters.memory_traffic, counters.compute_seconds = flops, nbytes, computing
        self.now = now

    def synchronize(self) -> None:
        """The host waits until the device is done."""
        self.host_clock = max(self.host_clock, self.now)

    def count(self, name: str, count: int) -> None:
        """To the tally of that name."""
        self.counters.tally[name] = self.counters.tally.get(name, 0) + count

    def launch_graph(self) -> None:
        """One launch for all nodes that follow."""
        self.counters.graphs += 1
        self.host_clock += self.device.graph_launch_seconds
        self.now = max(self.now, self.host_clock)

    # ---- memory

    def size(self, array: np.ndarray, dtype: Any = None) -> int:
        """Bytes of an array as they are counted: in `dtype`, None: the GPU's own, whatever it is computed in here."""
        return array.size * (self.dtype.itemsize if dtype is None else np.dtype(dtype).itemsize)

    def keep(self, name: str, array: np.ndarray, dtype: Any = None) -> np.ndarray:
        """Count an array that stays: weights, a cache. LimitError."""
        self.memory.take(name, self.size(array, dtype))
        return array

    def shaped(self, shape: tuple[int, ...], dtype: Any = None) -> np.ndarray:
        """An array that is not counted: fresh, or without payload a shape, one zero with strides of zero.

        Without a dtype of its own it is counted in the GPU's, and computed in float32.
        """
        if self.payload:
            return np.empty(shape, COMPUTED if dtype is None else dtype)
        return hollow(shape, self.dtype if dtype is None else np.dtype(dtype))

    def new(self, *shape: int, dtype: Any = None) -> np.ndarray:
        """A buffer for a result, counted as workspace until the scope ends; in a plan, reused by its later scopes.
        UsageError for a number of bytes below 0."""
        if self.plan is not None:
            reused = self.plan.buffer(self.index, shape, dtype)
            if reused is not None:
                self._remember(reused, dtype, 0)
                return reused
        nbytes = int(prod(shape)) * (self.dtype if dtype is None else np.dtype(dtype)).itemsize
        if nbytes < 0:
            raise UsageError(f"a buffer {[*shape]} on GPU {self.index}: give sides of 0 and more")
        if self.plan is None:
            self.memory.take("workspace", nbytes)
        else:
            self.memory.take(self.plan.name, nbytes)
            self.plan.taken[self.index] = self.plan.taken.get(self.index, 0) + nbytes
        fresh = self.shaped(shape, dtype)  # after the GPU's limit, for the host may have less
        self._remember(fresh, dtype, nbytes)
        return fresh

    def _remember(self, buffer: np.ndarray, dtype: Any, nbytes: int) -> None:
        if self.scopes:
            self.scopes[-1].append((buffer, dtype, nbytes))

    def open_scope(self) -> None:
        self.scopes.append([])

    def close_scope(self) -> None:
        """The buffers made since the scope was opened, but not those of scopes inside, are needed no more."""
        buffers = self.scopes.pop()
        if self.plan is not None:
            self.plan.release(self.index, buffers)
        elif buffers:
            self.memory.give_back("workspace", sum([nbytes for _, _, nbytes in buffers]))


def _in_turn(_: np.ndarray, calls: Sequence[KernelCall]) -> None:
    for kernel, out, args in calls:
        kernel(out, *args)
