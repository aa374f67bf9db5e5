"""The block: the cores that one rank hosts, with everything that belongs to them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt import fabric, meter
from meshrt.clock import Clock
from meshrt.console import Console
from meshrt.control import Control
from meshrt.device import Device
from meshrt.errors import UsageError
from meshrt.host import waiter
from meshrt.memory import Memory
from meshrt.mesh import Mesh, tile_ranks
from meshrt.tables import Tables

if TYPE_CHECKING:
    from meshrt.board import Board


@dataclass
class Block:
    """A rank's cores. A program is written once for all of them: their tiles are one array [bh, bw, *tile].

    `comm` carries mesh packets and nothing else. `control` is for loading, gathering and reports and `scouts` for
    planning; neither is counted.
    """

    mesh: Mesh
    device: Device
    comm: Any
    control: Control
    scouts: Control
    watch: "Board"
    payload: bool = True  # False: tiles are shapes, [1, 1, *tile] for any core, and only headers move
    console: Console = field(default_factory=Console)
    wait: Callable[[Any], object] = field(default_factory=waiter)  # for an MPI request
    tables: Tables = field(init=False)
    memory: Memory = field(init=False)
    clock: Clock = field(init=False)
    counters: meter.Counters = field(init=False)  # of the segment that is running
    host: meter.HostCounters = field(default_factory=meter.HostCounters)
    segments: list[meter.Segment] = field(default_factory=list)
    startup_cpu_seconds: float = field(default_factory=process_time)  # what this rank had used when it got its block
    notes: dict[str, Any] = field(default_factory=dict)  # what a program measured of the host; rank 0's are reported
    traffic: dict[tuple[Any, Any], int] = field(default_factory=dict)  # bytes by schedule, not yet on the links

    def __post_init__(self) -> None:
        self.tables = Tables(self.mesh, self.device)
        self.memory = Memory(self.mesh, self.device)
        self.clock = Clock(self.mesh, self.device)
        self._open("")

    @property
    def shape(self) -> tuple[int, int]:
        """(bh, bw) of this rank's block."""
        return self.mesh.block_height, self.mesh.block_width

    @property
    def lead(self) -> tuple[int, int]:
        """The leading dimensions of tiles as they are held here: those of the block, or (1, 1) without payloads."""
        return self.shape if self.payload else (1, 1)

    def tiles(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Fresh core memory: [bh, bw, *shape], counted under that name, full of NaN, so that unwritten numbers show.

        Integers have no NaN and get their largest value. LimitError.
        """
        dtype = np.dtype(dtype)
        self.memory.take(name, prod(shape) * dtype.itemsize)
        blank = np.iinfo(dtype).max if dtype.kind in "iu" else np.nan
        return np.full((*self.lead, *shape), blank, dtype)

    def matmul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Every core multiplies its tiles: [.., m, k] @ [.., k, n] -> float32 [.., m, n], counted and timed.

        Leading dimensions after [bh, bw] are several products at one core.
        """
        if not self.payload:
            a, b = np.zeros_like(a), np.zeros_like(b)  # buffers that no transfer has filled are not numbers
        c = np.matmul(a.astype(np.float32, copy=False), b.astype(np.float32, copy=False))
        macs = prod(c.shape[2:]) * a.shape[-1]
        self.counters.macs += macs * self.mesh.block_width * self.mesh.block_height
        self.clock.compute(macs)
        return np.asarray(c)

    def work(self, macs: np.ndarray) -> None:
        """Every core does its own number of multiply-accumulates, int [bh, bw] (or what broadcasts to it)."""
        each = np.broadcast_to(macs, self.shape)
        self.counters.macs += int(each.sum())
        if self.device.macs_per_cycle is not None:
            self.clock.state[0] += each / self.device.macs_per_cycle
        self.clock.state[0] += self.device.call_cycles

    def elementwise(self, tiles: np.ndarray, calls: int = 1) -> None:
        """Every core is busy for `calls` element-wise operations on tiles of this size."""
        self.clock.compute(calls * prod(tiles.shape[2:]), calls)

    @contextmanager
    def phase(self, name: str) -> Iterator[meter.Segment]:
        """A named stretch of the run with counters of its own. All cores begin it when the last of them is there."""
        self._close()
        yield self._open(name)
        self._close()
        self._open("")

    def _open(self, name: str) -> meter.Segment:
        self.counters = meter.new_counters(self.mesh)
        begin = self.segments[-1].end if self.segments else (0.0, 0, 0)
        self.tables.peak = int(self.tables.entries.max())
        self.memory.peak = self.memory.common + self.memory.most_extra
        self.segments.append(meter.Segment(name, self.counters, begin=begin))
        return self.segments[-1]

    def _close(self) -> None:
        fabric.settle(self)
        segment = self.segments[-1]
        segment.end = self.control.allreduce(self.clock.last(), max)
        self.clock.meet(*segment.end)
        segment.entries, segment.memory = self.tables.peak, self.memory.peak
        segment.wall_seconds = perf_counter() - segment.wall_begin

    def finish(self) -> list[meter.Segment]:
        """End the last segment and return all of them."""
        self._close()
        return self.segments

    def close(self) -> None:
        """Give the communicators back: a process has a few thousand, and a sweep makes hundreds of blocks."""
        for comm in (self.comm, self.control.comm, self.scouts.comm):
            comm.Free()


def make_block(comm: Any, device: Device, width: int, height: int, watch: "Board", payload: bool = True) -> Block:
    """This rank's block of a W x H mesh shared by all ranks of the communicator. UsageError where it cannot be."""
    for what, asked, most in (("width", width, device.width), ("height", height, device.height)):
        if most is not None and asked > most:
            raise UsageError(f"mesh {width}x{height}: the {what} of device {device.name} is {most} at most")
    columns, rows = tile_ranks(width, height, comm.size)
    mesh = Mesh(width, height, columns, rows, comm.rank)
    control = Control(comm.Dup(), watch, "control")
    scouts = Control(comm.Dup(), watch, "first use of a route set")
    return Block(mesh, device, comm.Dup(), control, scouts, watch, payload)
