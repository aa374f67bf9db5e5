"""The GPUs of a run, shared out over the ranks, and what they do together."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from numbers import Integral
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.gpu import nodes
from meshrt.gpu.device import GpuDevice
from meshrt.gpu.gpu import Gpu
from meshrt.gpu.meter import GpuPhase, Reading, reading
from meshrt.gpu.nodes import AUTO, check_nodes
from meshrt.gpu.parts import check_parts
from meshrt.gpu.plan import StaticPlan
from meshrt.groups.course import CollectiveCourse
from meshrt.groups.group import EVERY, Group, Traffic
from meshrt.groups.pairs import PairTable
from meshrt.groups.rings import Link, RingCollective
from meshrt.machine import one_phase
from meshrt.ranks.console import Console
from meshrt.ranks.control import Control
from meshrt.records import dataclass
from meshrt.reports.trace import Event
from meshrt.units import counted

Arrays = list[np.ndarray]


@dataclass
class Gpus:
    """`count` GPUs, of which this rank hosts `mine`; a program works on those, with a list of arrays, one for each.

    With `node_size` they are in nodes of so many, each collective is the fastest of ALGORITHMS by the links' numbers,
    or the one that `collectives` says. They may be `dp` replicas of `pp` stages of tensor-parallel groups (stages.py).

    Which rank hosts a GPU changes nothing but the host's time. `control` is for sharing inputs and results and is not
    counted. `static`: programs record what they repeat, and replay it.
    """

    count: int
    device: GpuDevice
    control: Control
    payload: bool = True
    static: bool = False
    console: Console = field(default_factory=Console)
    node_size: int | None = None
    collectives: str = AUTO
    pp: int = 1
    dp: int = 1
    mine: list[Gpu] = field(init=False)
    group: Group = field(init=False)
    members: range = field(init=False)  # of the run's GPUs
    among: slice = field(default_factory=lambda: EVERY)  # of those that the rank hosts
    phases: dict[str, GpuPhase] = field(default_factory=dict)
    open_phase: str = ""
    plan: StaticPlan | None = None  # that is being recorded
    noted: StaticPlan | None = None  # what is done now, to be counted again
    sampled: bool = False  # some layers stood for others
    trace_path: str | None = None  # of a file for what ran when
    maps_path: str | None = None  # and of one for what each did
    notes: dict[str, Any] = field(default_factory=dict)  # what a program found of the host; rank 0's are reported

    def __post_init__(self) -> None:
        device = self.device
        if self.count < 1:
            raise UsageError(f"--tp is {self.count}; a run has one GPU at least")
        if self.control.size > self.count:
            raise UsageError(
                f"{self.control.size} ranks for {counted(self.count, 'GPU')}: start"
                f" {counted(self.count, 'rank')} at most, or give --tp {self.control.size}"
            )
        check_nodes(device, self.count, self.count // (self.pp * self.dp), self.node_size, self.collectives)
        tp = self.count // (self.pp * self.dp)
        self.device = device = device.joined(min(tp, self.node_size or tp))
        link = Link(device.link_bytes_per_second, 0.0)  # each collective has a protocol's
        self.group, self.members = Group(self.control, self.count, link, self.payload), range(self.count)
        self.mine = [Gpu(device, index, self.payload, place=index % tp) for index in self.group.mine]

    def close(self) -> None:
        """Nothing to give back: the communicator is the run's."""

    @property
    def traffic(self) -> list[dict[str, Traffic]]:
        """What each hosted GPU sent, by kind."""
        return self.group.traffic[self.among]

    # ---- collectives

    def all_gather(self, parts: Arrays, sizes: Sequence[int], dtype: Any = None, rows: bool = False) -> Arrays:
        """All GPUs' parts side by side along the last axis, or if `rows` the first, on every GPU. `sizes`: of all of
        them, along that axis. UsageError for sizes that are not the parts'.

        `dtype`: what numbers are counted in; None: the GPUs' own.
        """
        check_parts(self.mine, "all_gather", parts, sizes, 0 if rows else -1, self.members)
        if self.count == 1:
            return parts
        outs = [
            gpu.new(*((sum(sizes), *part.shape[1:]) if rows else (*part.shape[:-1], sum(sizes))), dtype=dtype)
            for gpu, part in zip(self.mine, parts, strict=True)
        ]
        return self._together("all_gather", parts, outs, sizes, self.itemsize(dtype), 0 if rows else -1)

    def reduce_sum(self, parts: Arrays) -> Arrays:
        """The sum of all GPUs' arrays, which have one shape, on every GPU."""
        check_parts(self.mine, "reduce_sum", parts)
        if self.count == 1:
            return parts
        outs = [gpu.new(*part.shape) for gpu, part in zip(self.mine, parts, strict=True)]
        return self._together("reduce_sum", parts, outs, (), self.itemsize())

    def reduce_scatter(self, parts: Arrays, rows: bool = False) -> Arrays:
        """GPU i gets part i of the sum of all GPUs' arrays, cut along the last axis, or if `rows` the first, as evenly
        as it goes (NumPy's array_split)."""
        check_parts(self.mine, "reduce_scatter", parts)
        if self.count == 1:
            return parts
        outs = [gpu.new(*part.shape) for gpu, part in zip(self.mine, parts, strict=True)]
        axis = 0 if rows else -1
        self._together("reduce_scatter", parts, outs, (), self.itemsize(), axis)
        return [
            np.array_split(out, self.count, axis)[gpu.index - self.members.start]
            for gpu, out in zip(self.mine, outs, strict=True)
        ]

    def broadcast(self, parts: Arrays, root: int = 0) -> Arrays:
        """The array of GPU `root` on every GPU; the others' say its shape."""
        if not isinstance(root, Integral) or not 0 <= root < self.count:
            raise UsageError(f"broadcast from GPU {root}: there are GPUs 0 to {self.count - 1}")
        check_parts(self.mine, "broadcast", parts)
        if self.count == 1:
            return parts
        outs = [gpu.new(*part.shape) for gpu, part in zip(self.mine, parts, strict=True)]
        return self._together("broadcast", parts, outs, (root,), self.itemsize())

    def all_to_all(
        self, parts: Sequence[Arrays], outs: Sequence[Arrays], rows: PairTable, row_bytes: int
    ) -> None:  # fmt: skip
        """Each GPU's arrays, rows in order of the GPUs that they are for, to `outs`, in order of those that sent them.

        `rows` [from][to], known to all; a row is `row_bytes` on a link. Where links join neighbours only, parts are
        handed on round the ring. Each GPU's protocol is the fastest for the largest of its parts. Over several nodes
        parts may be handed on inside the node before they leave it (groups/hierarchy.py).
        """
        if self.count == 1:
            for sources, targets in zip(parts, outs, strict=True):
                for source, target in zip(sources, targets, strict=True):
                    if self.payload:
                        target[...] = source
            return
        if not self.one_level:
            made, start, held = nodes.all_to_all(self, parts, rows, row_bytes)
            self._launch_round(made, start, [0.0 for _ in self.mine], [0.0 for _ in self.mine])
            for gpu, arrays, targets, handed in zip(self.mine, held, outs, made.handed, strict=True):
                self.group.unpack(nodes.arrived(arrays, gpu.index, rows, self.payload), targets, gpu.index, rows)
                gpu.count("all_to_all_parts", handed)
            made.close()
            return
        times, begins, links = [], [], []
        for gpu in self.mine:
            largest = row_bytes * max(n for to, n in enumerate(rows[gpu.index]) if to != gpu.index)
            protocol = self.device.protocol(self.count - 1, largest)
            gpu.host_clock += gpu.device.launch_seconds
            gpu.now = max(gpu.now, gpu.host_clock)
            begins.append(gpu.now + gpu.device.kernel_seconds)
            times.append(begins[-1] + protocol.seconds)
            links.append(Link(protocol.share * self.device.link_bytes_per_second, protocol.step_seconds))
        hops = self.group.all_to_all(parts, outs, rows, row_bytes, times, links, self.device.neighbours)
        self.ended("all_to_all", begins, times)
        for gpu, moved in zip(self.mine, hops, strict=True):
            gpu.count("all_to_all_parts", moved)

    def itemsize(self, dtype: Any = None) -> int:
        """Bytes of a number as it is counted."""
        return (self.mine[0].dtype if dtype is None else np.dtype(dtype)).itemsize

    def _together(
        self, kind: str, parts: Arrays, outs: Arrays, sizes: Sequence[int], itemsize: int, axis: int = -1
    ) -> Arrays:
        ring, extra = self.ring(kind, parts, outs, sizes, itemsize, axis)
        begins, ends = ([0.0 for _ in parts] for _ in range(2))
        if self.plan is not None:
            self.plan.add(self._go_round, ring, extra, begins, ends)
            self.plan.closing.append(ring.close)
            return outs
        self._launch_round(ring, extra, begins, ends)
        if self.noted is None:
            ring.close()
        else:
            self.noted.add(self._launch_round, ring, extra, begins, ends)
            self.noted.closing.append(ring.close)
        return outs

    def ring(
        self, kind: str, parts: Arrays, outs: Arrays, sizes: Sequence[int], itemsize: int, axis: int
    ) -> tuple[RingCollective | CollectiveCourse, float]:
        """A collective to be run, and what it takes before its first step. `sizes`: of a gather's parts, or the root of
        a broadcast."""
        axis = axis % parts[0].ndim if parts else 0
        if not (self.among == EVERY and self.one_level and kind in ("all_gather", "reduce_sum")):
            return nodes.course(self, kind, parts, outs, sizes, itemsize, axis)
        extra, link = self.way(kind, outs, itemsize)
        if kind == "all_gather":
            return self.group.gather_ring(parts, outs, axis, sizes, link), extra
        return self.group.sum_ring(parts, outs, link), extra

    @property
    def one_level(self) -> bool:
        """Are all of these GPUs in one node?"""
        size = self.node_size or self.members.stop
        return self.members.start // size == (self.members.stop - 1) // size

    def _launch_round(
        self, ring: RingCollective | CollectiveCourse, extra: float, begins: list[float], ends: list[float]
    ) -> None:
        for gpu in self.mine:
            gpu.host_clock += gpu.device.launch_seconds
            gpu.now = max(gpu.now, gpu.host_clock)
        self._go_round(ring, extra, begins, ends)

    def _go_round(
        self, ring: RingCollective | CollectiveCourse, extra: float, begins: list[float], ends: list[float]
    ) -> None:
        """A collective, which begins on each GPU when that is there. The lists are room for times."""
        for at, gpu in enumerate(self.mine):
            begins[at] = gpu.now + gpu.device.kernel_seconds
            ends[at] = begins[at] + extra
        self.group.go_round(ring, ends, self.among)
        self.ended(ring.kind, begins, ends)

    def ended(self, kind: str, begins: list[float], ends: list[float]) -> None:
        for gpu, begin, end in zip(self.mine, begins, ends, strict=True):
            gpu.counters.collective_seconds += end - begin
            gpu.now = end
            if gpu.trace is not None:
                gpu.trace.append(Event("collectives", kind, begin, end))

    def way(self, kind: str, outs: Arrays, itemsize: int) -> tuple[float, Link]:
        """What a collective takes before its first step, and the link as its protocol uses it."""
        rounds = 2 if kind == "reduce_sum" else 1
        protocol = self.device.protocol(rounds * (self.count - 1), itemsize * outs[0].size / self.count)
        return protocol.seconds, Link(
            protocol.share * self.device.link_bytes_per_second, protocol.step_seconds, itemsize
        )

    # ---- time

    def meet(self) -> float:
        """All GPUs and their hosts wait for the last of them, as they do for a token: the time then."""
        now = max(gpu.now for gpu in self.mine)
        if self.control.size > 1:
            now = self.control.allreduce(now, max)
        if self.pp * self.dp > 1:
            for gpu in self.mine:
                gpu.counters.bubble_seconds += now - gpu.now
        self.wait_until(now)
        return now

    def wait_until(self, time: float) -> None:
        for gpu in self.mine:
            gpu.now = gpu.host_clock = max(gpu.now, time)

    @contextmanager
    def phase(self, name: str, tokens: int = 0) -> Iterator[None]:
        """Count what is done inside by name; the same name again adds to it. All GPUs meet at its begin and its end."""
        with one_phase(self, name, tokens):
            self.meet()
            before = self._readings()
            try:
                yield
                self.meet()
            finally:  # also of one that an exception ends which a program catches; nobody meets then
                self.phases.setdefault(name, GpuPhase(len(self.mine))).add(before, self._readings(), tokens)
                for gpu, start in zip(self.mine, before, strict=True):
                    if gpu.trace is not None:
                        gpu.trace.append(Event("phases", name, start.now, gpu.now))

    def _readings(self) -> list[Reading]:
        return [reading(gpu, traffic) for gpu, traffic in zip(self.mine, self.traffic, strict=True)]

    # ---- buffers and plans

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Buffers that are made inside are given back at its end."""
        for gpu in self.mine:
            gpu.open_scope()
        try:
            yield
        finally:
            for gpu in self.mine:
                gpu.close_scope()

    @contextmanager
    def recording(self, name: str) -> Iterator[StaticPlan]:
        """Nothing runs inside: kernels and collectives go to the plan, which is to be replayed."""
        plan = StaticPlan(name)
        for gpu in self.mine:
            plan.add(gpu.launch_graph)
            gpu.plan = plan
        self.plan = plan
        try:
            yield plan
        finally:
            self.plan = None
            for gpu in self.mine:
                gpu.plan = None

    @contextmanager
    def noting(self) -> Iterator[StaticPlan]:
        """What is launched inside is kept as well, so that a replay counts the same again, launch by launch, and takes
        the same memory. Without payload: nothing is computed again."""
        assert not self.payload and self.plan is None
        plan, before = StaticPlan("workspace"), [
            (gpu.memory.used, gpu.memory.peak, dict(gpu.memory.fullest)) for gpu in self.mine
        ]  # fmt: skip
        for gpu in self.mine:
            gpu.noted, gpu.memory.peak, gpu.memory.at_peak = plan, gpu.memory.used, None
        self.noted = plan
        yield plan
        self.noted = None
        for gpu, (used, peak, names) in zip(self.mine, before, strict=True):
            gpu.noted = None
            plan.calls.insert(0, (gpu.memory.pass_through, (plan.name, gpu.memory.peak - used)))
            if peak >= gpu.memory.peak:
                gpu.memory.peak, gpu.memory.at_peak = peak, names

    def give_up(self, plan: StaticPlan) -> None:
        """Free a plan and its buffers."""
        plan.close()
        for gpu in self.mine:
            if gpu.index in plan.taken:
                gpu.memory.give_back(plan.name, plan.taken[gpu.index])

    # ---- the host

    def to_host(self, parts: Arrays) -> np.ndarray | None:
        """All GPUs' parts side by side along the last axis, on every rank; None without payload. Not counted."""
        if not self.payload:
            return None
        if self.control.size == 1:
            return np.concatenate(parts, axis=-1)
        shares = self.control.gather(parts)
        whole = None if shares is None else np.concatenate([part for share in shares for part in share], axis=-1)
        gathered: np.ndarray | None = self.control.bcast(whole)
        return gathered
