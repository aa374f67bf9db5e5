"""The NeuronCores of a run, shared out over the ranks."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field
from functools import partial
from math import ceil
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.groups.group import Group
from meshrt.groups.halving import halving_sum, steps_of
from meshrt.groups.rings import Arrays, Link, Times, Touched
from meshrt.neuron.core import NeuronCore
from meshrt.neuron.device import NeuronDevice
from meshrt.neuron.engines import NeuronPhase
from meshrt.neuron.tile import Tile, new_tile
from meshrt.ranks.console import Console
from meshrt.ranks.control import Control
from meshrt.records import dataclass
from meshrt.units import counted

Sum = Callable[[Arrays, Times], tuple[Arrays, Times]]


@dataclass
class Cores:
    """`count` NeuronCores, of which this rank hosts `mine`; a program works on those, one after the other.

    Which rank hosts a core changes nothing but the host's time. `control` is for sharing inputs and results and is not
    counted.
    """

    count: int
    device: NeuronDevice
    control: Control
    payload: bool = True
    console: Console = field(default_factory=Console)
    mine: list[NeuronCore] = field(init=False)
    group: Group = field(init=False)
    trace_path: str | None = None  # of a file for what ran when
    maps_path: str | None = None  # and of one for what each did
    notes: dict[str, Any] = field(default_factory=dict)  # what a program found of the host; rank 0's are reported

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"--cores is {self.count}; a run has one NeuronCore at least")
        ranks = self.control.size
        if ranks > self.count:
            raise UsageError(
                f"{ranks} ranks for {counted(self.count, 'NeuronCore')}: start {counted(self.count, 'rank')} at most,"
                f" or give --cores {ranks}"
            )
        link = Link(self.device.link_bytes_per_second, self.device.link_seconds)
        self.group = Group(self.control, self.count, link, self.payload)
        self.mine = [NeuronCore(self.device, index, self.payload) for index in self.group.mine]

    def close(self) -> None:
        """Nothing to give back: the communicator is the run's."""

    @contextmanager
    def phase(self, name: str, tokens: int | None = None) -> Iterator[list[NeuronPhase]]:
        """Count what the hosted cores do inside by name; the report adds up what has one name. It begins on all cores
        when the last is there.
        """
        self.barrier()
        with ExitStack() as stack:
            yield [stack.enter_context(core.phase(name, tokens)) for core in self.mine]
        self.barrier()

    def lasted(self, phases: list[NeuronPhase]) -> float:
        """Virtual seconds of a phase that is over, on its slowest core."""
        seconds: float = self.control.allreduce(max((phase.end - phase.begin for phase in phases), default=0.0), max)
        return seconds

    def barrier(self) -> None:
        """All cores wait for the last of them."""
        if self.count > 1:
            now = self.control.allreduce(max((core.barrier() for core in self.mine), default=0.0), max)
            for core in self.mine:
                core.barrier(now)

    def all_reduce(self, parts: list[Tile]) -> list[Tile]:
        """The sum over all cores of a tensor that each has in HBM, on each of them; chunks go from HBM to HBM.

        From each core to all at once, by recursive halving and doubling where they are a power of two, or round a ring,
        whichever is fastest by the device's numbers: so small tensors go at once, large ones round the ring
        ("Intra-node Collective Communications", Neuron SDK documentation). UsageError for what is not a tensor in HBM
        of each hosted core, all of one shape and dtype.
        """
        self._check_parts(parts)
        if self.count == 1:
            return parts
        arrays, times = [self._as_sent(part) for part in parts], [core.barrier() for core in self.mine]
        self.group.touched = [Touched() for _ in parts]
        sums, times = self._fastest_sum(arrays[0].nbytes)(arrays, times)
        results = []
        counted = zip(self.group.traffic, self.group.touched, strict=True)
        for core, part, total, time, (traffic, touched) in zip(self.mine, parts, sums, times, counted, strict=True):
            core.barrier(time)
            core.counts["hbm_read"] += touched.read
            core.counts["hbm_written"] += touched.written
            core.counts["collectives"] += 1
            core.counts["link_bytes"] = sum(kind.bytes for kind in traffic.values())
            out = new_tile(core.hbm, part.shape, part.dtype, full=True)
            if self.payload:
                core.put(out, total)
            results.append(out)
        return results

    def _check_parts(self, parts: Sequence[Tile]) -> None:
        if len(parts) != len(self.mine):
            given = counted(len(parts), "tensor")
            raise UsageError(f"all_reduce of {given}: give a list of one for each of {len(self.mine)} NeuronCores")
        for core, part in zip(self.mine, parts, strict=True):
            if not isinstance(part, Tile) or part.store.buffer is not core.hbm:
                raise UsageError(f"all_reduce on NeuronCore {core.index} of what is not in its HBM: nl.store it there")
            if (part.shape, part.dtype) != (parts[0].shape, parts[0].dtype):
                first, other = (f"{[*tile.shape]} of {tile.dtype}" for tile in (parts[0], part))
                raise UsageError(f"all_reduce of {first} and, on NeuronCore {core.index}, {other}: give these alike")

    def _fastest_sum(self, nbytes: int) -> Sum:
        """How a tensor of so many bytes is summed soonest: what a core sends is the same in all ways, 2 (n - 1) / n of
        it, but not how often it waits for a link, and how much of that link is its own.
        """
        device, sent = self.device, 2 * (self.count - 1) * nbytes / self.count
        mesh = Link(device.mesh_share * device.link_bytes_per_second, device.mesh_steps * device.link_seconds)
        halving = Link(device.halving_share * device.link_bytes_per_second, device.link_seconds)
        ways: list[tuple[int, Link, Sum]] = [
            (2, mesh, partial(self.group.mesh_sum, link=mesh)),
            (2 * (self.count - 1), self.group.link, self.group.reduce_sum),
        ]
        if (steps := steps_of(self.count)) is not None:
            ways.insert(1, (2 * len(steps), halving, partial(halving_sum, self.group, link=halving)))
        return min(ways, key=lambda way: way[0] * way[1].latency + sent / way[1].bytes_per_second)[2]

    def _as_sent(self, part: Tile) -> np.ndarray:
        """A tensor's numbers in its own dtype, which is what crosses the link."""
        return part.data.astype(part.dtype) if self.payload else np.broadcast_to(np.zeros((), part.dtype), part.shape)

    def to_host(self, parts: list[Tile], axis: int) -> np.ndarray | None:
        """The cores' parts of a tensor in HBM side by side, on every rank; None without payload. Not of the machine."""
        if not self.payload:
            return None
        shares = self.control.gather([part.data for part in parts])
        whole = None if shares is None else np.concatenate([part for share in shares for part in share], axis=axis)
        gathered: np.ndarray | None = self.control.bcast(whole)
        return gathered

    def share(self, index: int, size: int, unit: int = 1) -> slice:
        """The part of 0..size that core `index` works on: whole units, as even as they go."""
        units = ceil(size / unit)
        return slice(
            *(min(units * at // self.count * unit, size) for at in (index, index + 1)),
        )
