"""The GPUs of a run, shared out over the ranks, and what they do together."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.gpu.device import LINKS, GpuDevice
from meshrt.gpu.gpu import Gpu
from meshrt.gpu.meter import Phase, Reading, reading
from meshrt.gpu.plan import Plan
from meshrt.ranks.console import Console
from meshrt.ranks.control import Control
from meshrt.ranks.group import Group
from meshrt.ranks.pairs import Table
from meshrt.ranks.rings import Link, Ring
from meshrt.ranks.trace import Event
from meshrt.records import dataclass

Arrays = list[np.ndarray]


@dataclass
class Gpus:
    """`count` GPUs, of which this rank hosts `mine`; a program works on those, with a list of arrays, one for each.

    Which rank hosts a GPU changes nothing but the host's time. `control` is for sharing inputs and results and is not
    counted. `static`: programs record what they repeat, and replay it.
    """

    count: int
    device: GpuDevice
    control: Control
    payload: bool = True
    static: bool = False
    console: Console = field(default_factory=Console)
    mine: list[Gpu] = field(init=False)
    group: Group = field(init=False)
    phases: dict[str, Phase] = field(default_factory=dict)
    plan: Plan | None = None  # that is being recorded
    noted: Plan | None = None  # what is done now, to be counted again
    sampled: bool = False  # some layers stood for others
    trace_path: str | None = None  # of a file for what ran when
    notes: dict[str, Any] = field(default_factory=dict)  # what a program found of the host; rank 0's are reported

    def __post_init__(self) -> None:
        device = self.device
        if self.count < 1:
            raise UsageError(f"--tp is {self.count}; a run has one GPU at least")
        if self.control.size > self.count:
            raise UsageError(
                f"{self.control.size} ranks for {self.count} GPUs: start {self.count} ranks at most, or give"
                f" --tp {self.control.size}"
            )
        if device.link not in LINKS:
            raise UsageError(f"--link is {device.link!r}; there are {', '.join(LINKS)}")
        if device.link == "nvlink" and self.count > device.nvlink_gpus:
            raise UsageError(
                f"NVLink joins {device.nvlink_gpus} GPUs of type {device.name}, not {self.count}: give --link pcie"
            )
        link = Link(device.link_bytes_per_second, 0.0)  # each collective has a protocol's
        self.group = Group(self.control, self.count, link, self.payload)
        self.mine = [Gpu(device, index, self.payload) for index in self.group.mine]

    def close(self) -> None:
        """Nothing to give back: the communicator is the run's."""

    # ---- collectives

    def all_gather(self, parts: Arrays, sizes: Sequence[int], dtype: Any = None, rows: bool = False) -> Arrays:
        """All GPUs' parts side by side along the last axis, or if `rows` the first, on every GPU. `sizes`: of all of
        them, along that axis.

        `dtype`: what numbers are counted in; None: the GPUs' own.
        """
        if self.count == 1:
            return parts
        outs = [
            gpu.new(*((sum(sizes), *part.shape[1:]) if rows else (*part.shape[:-1], sum(sizes))), dtype=dtype)
            for gpu, part in zip(self.mine, parts, strict=True)
        ]
        return self._together("all_gather", parts, outs, sizes, self.itemsize(dtype), 0 if rows else -1)

    def reduce_sum(self, parts: Arrays) -> Arrays:
        """The sum of all GPUs' arrays, on every GPU."""
        if self.count == 1:
            return parts
        outs = [gpu.new(*part.shape) for gpu, part in zip(self.mine, parts, strict=True)]
        return self._together("reduce_sum", parts, outs, (), self.itemsize())

    def all_to_all(
        self, parts: Sequence[Arrays], outs: Sequence[Arrays], rows: Table, row_bytes: int
    ) -> None:  # fmt: skip
        """Each GPU's arrays, rows in order of the GPUs that they are for, to `outs`, in order of those that sent them.

        `rows` [from][to], known to all; a row is `row_bytes` on a link. Where links join neighbours only, parts are
        handed on round the ring. Each GPU's protocol is the fastest for the largest of its parts.
        """
        if self.count == 1:
            for sources, targets in zip(parts, outs, strict=True):
                for source, target in zip(sources, targets, strict=True):
                    if self.payload:
                        target[...] = source
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
        self._ended("all_to_all", begins, times)
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
    ) -> tuple[Ring, float]:
        """A collective to be run, and what it takes before its first step."""
        extra, link = self.way(kind, outs, itemsize)
        if kind == "all_gather":
            return self.group.gather_ring(parts, outs, axis % parts[0].ndim, sizes, link), extra
        return self.group.sum_ring(parts, outs, link), extra

    def _launch_round(self, ring: Ring, extra: float, begins: list[float], ends: list[float]) -> None:
        for gpu in self.mine:
            gpu.host_clock += gpu.device.launch_seconds
            gpu.now = max(gpu.now, gpu.host_clock)
        self._go_round(ring, extra, begins, ends)

    def _go_round(self, ring: Ring, extra: float, begins: list[float], ends: list[float]) -> None:
        """A collective, which begins on each GPU when that is there. The lists are room for times."""
        for at, gpu in enumerate(self.mine):
            begins[at] = gpu.now + gpu.device.kernel_seconds
            ends[at] = begins[at] + extra
        self.group.go_round(ring, ends)
        self._ended(ring.kind, begins, ends)

    def _ended(self, kind: str, begins: list[float], ends: list[float]) -> None:
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
        self.wait_until(now)
        return now

    def wait_until(self, time: float) -> None:
        for gpu in self.mine:
            gpu.now = gpu.host_clock = max(gpu.now, time)

    @contextmanager
    def phase(self, name: str, tokens: int = 0) -> Iterator[None]:
        """Count what is done inside by name; the same name again adds to it. All GPUs meet at its end."""
        before = self._readings()
        yield
        self.meet()
        self.phases.setdefault(name, Phase(len(self.mine))).add(before, self._readings(), tokens)
        for gpu, start in zip(self.mine, before, strict=True):
            if gpu.trace is not None:
                gpu.trace.append(Event("phases", name, start.now, gpu.now))

    def _readings(self) -> list[Reading]:
        return [reading(gpu, traffic) for gpu, traffic in zip(self.mine, self.group.traffic, strict=True)]

    # ---- buffers and plans

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Buffers that are made inside are given back at its end."""
        for gpu in self.mine:
            gpu.open_scope()
        yield
        for gpu in self.mine:
            gpu.close_scope()

    @contextmanager
    def recording(self, name: str) -> Iterator[Plan]:
        """Nothing runs inside: kernels and collectives go to the plan, which is to be replayed."""
        plan = Plan(name)
        for gpu in self.mine:
            plan.add(gpu.launch_graph)
            gpu.plan = plan
        self.plan = plan
        yield plan
        self.plan = None
        for gpu in self.mine:
            gpu.plan = None

    @contextmanager
    def noting(self) -> Iterator[Plan]:
        """What is launched inside is kept as well, so that a replay counts the same again, launch by launch, and takes
        the same memory. Without payload: nothing is computed again."""
        assert not self.payload and self.plan is None
        plan, before = Plan("workspace"), [(gpu.memory.used, gpu.memory.peak) for gpu in self.mine]
        for gpu in self.mine:
            gpu.noted, gpu.memory.peak = plan, gpu.memory.used
        self.noted = plan
        yield plan
        self.noted = None
        for gpu, (used, peak) in zip(self.mine, before, strict=True):
            gpu.noted = None
            plan.calls.insert(0, (gpu.memory.pass_through, (plan.name, gpu.memory.peak - used)))
            gpu.memory.peak = max(peak, gpu.memory.peak)

    def give_up(self, plan: Plan) -> None:
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
