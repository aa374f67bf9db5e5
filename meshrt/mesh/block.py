"""The block: a rank's cores in the course of a run: its phases, other sites on the wafer, its end."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from meshrt.errors import StallError, UsageError
from meshrt.machine import check_phase, one_phase
from meshrt.mesh import meter
from meshrt.mesh.computing import Computing
from meshrt.mesh.defects import WaferMap, embed
from meshrt.mesh.device import Device
from meshrt.mesh.look.peaks import NamedMemory
from meshrt.mesh.mesh import Mesh, tile_ranks
from meshrt.mesh.wires import ramps, tally
from meshrt.mesh.wires.core import chosen
from meshrt.ranks.asleep import duplicates
from meshrt.ranks.bells import hang_up, no_bells
from meshrt.ranks.board import Board
from meshrt.ranks.control import Control
from meshrt.ranks.host import waiter

if TYPE_CHECKING:
    from meshrt.mesh.look.timeline import Timeline


class Block(Computing):
    """What a program runs on: it is written once for all of a rank's cores, and says where the run's phases begin."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ledger.segments:
            self._open("")

    @contextmanager
    def phase(self, name: str, tokens: int | None = None) -> Iterator[meter.Segment]:
        """A named stretch of the run with counters of its own; the report adds up those of one name. All cores begin it
        when the last of them is there. `tokens`: how many it is about, for the report. UsageError for a name or a
        number that is none; in one's own program also for a phase inside of another.

        One that an exception ends, which the program catches, has what was done until then; nobody meets then.
        """
        check_phase(name, tokens)
        with nullcontext() if self.audit is None else one_phase(self.audit, name, tokens):
            self._close()
            segment = self._open(name)
            segment.tokens = tokens
            try:
                yield segment
            except BaseException:
                self._cut()
                raise
            self._close()
            self._open("")

    def _open(self, name: str) -> meter.Segment:
        ledger = self.ledger
        begin = ledger.segments[-1].end if ledger.segments else (0.0, 0, 0)
        ledger.counters = meter.Counters()
        ledger.segments.append(meter.Segment(name, ledger.counters, begin=begin))
        self.begin()
        return ledger.segments[-1]

    def _close(self) -> None:
        segment, working = self.ledger.segments[-1], self._working()
        for active in working:
            ramps.settle(active)
        cut, self.ledger.cut = self.ledger.cut, None
        before = [] if cut is None else [cut.end]
        *cut_end, segment.end = self.control.allreduce(
            [*before, max(active.clock.last() for active in working)], _latest
        )
        if cut is not None:
            cut.end = segment.begin = cut_end[0]
        for active in working:
            active.settle()
            active.clock.meet(*segment.end)
        self._note_end(segment)

    def _cut(self) -> None:
        """The segment ends at this rank, by an exception: no other may be waited for, so when it did on all is found at
        the next end.
        """
        segment, working = self.ledger.segments[-1], self._working()
        segment.end = max(active.clock.last() for active in working)
        for active in working:
            active.settle()
        self._note_end(segment)
        self.ledger.cut = segment
        self._open("")

    def _working(self) -> "list[Block]":
        """The blocks that are at work, this one among them."""
        return [*(self.ledger.at_work | {id(self): self}).values()]

    def _note_end(self, segment: meter.Segment) -> None:
        for active in self._working():
            active.rest()
        segment.wall_seconds = perf_counter() - segment.wall_begin
        segment.cpu_seconds = process_time() - segment.cpu_begin

    def settle(self) -> None:
        """Enter what these cores keep for themselves, as long as they are at work, in the segment that is running."""
        tally.settle(self)
        segment = self.ledger.segments[-1]
        segment.entries = max(segment.entries, self.tables.peak)
        segment.memory = max(segment.memory, self.memory.peak)
        if isinstance(self.memory, NamedMemory):
            self.memory.enter()
        used = self.clock.state[0] > self.clock.met  # where time went on, something was done
        segment.counters.used[self.site_key] = segment.counters.used.get(self.site_key, False) | used

    def another(self, site: str, width: int, height: int) -> "Block":
        """Cores at another site on the wafer, on the same ranks, with memory, tables and clocks of their own.

        They stand still until they `follow` those that work. UsageError where the ranks do not tile them.
        """
        columns, rows = tile_ranks(width, height, self.control.size)
        mesh = Mesh(width, height, columns, rows, self.mesh.rank)
        return Block(
            mesh, self.device, self.comm, self.control, self.scouts, self.watch, self.payload, self.console, self.wait,
            self.ring, self.bells, self.core, self.ledger, site,
            None if self.wafer is None else embed(self.wafer.defects, width, height),
            audit=self.audit, timed=self.timed,
        )  # fmt: skip

    def follow(self, other: "Block") -> None:
        """Go on where the cores of another site have stopped: these begin when the last of those is done."""
        if other is self:
            return
        other.settle()
        ramps.settle(other)
        other.rest()
        self.begin()
        self.clock.meet(*self.control.allreduce(other.clock.last(), max))

    def meet(self) -> None:
        """All cores go on when the last one is there: a barrier that costs nothing, to see what waiting would do."""
        self.settle()
        ramps.settle(self)
        self.clock.meet(*self.control.allreduce(self.clock.last(), max))

    def finish(self) -> list[meter.Segment]:
        """End the last segment and return all of them."""
        self._close()
        return self.ledger.segments

    def close(self) -> None:
        """Give the communicators back: a process has a few thousand, and a sweep makes hundreds of blocks."""
        for comm in (self.comm, self.control.comm, self.scouts.comm):
            comm.Free()


def _latest(ranks: list[list[Any]]) -> list[Any]:
    """Of some moments, each as every rank has it: when the last one was there. StallError where some have others."""
    if len(set(map(len, ranks))) > 1:
        raise StallError(
            "an exception has ended a phase on some ranks and not on others: ranks have to make the same calls in the"
            " same order"
        )
    return [max(moments) for moments in zip(*ranks, strict=True)]


def make_block(
    comm: Any, device: Device, width: int, height: int, watch: Board, payload: bool = True,
    wafer: WaferMap | None = None, maps_path: str | None = None, timeline: "Timeline | None" = None,
    timed: bool = True, messages: Any = None,
) -> Block:  # fmt: skip
    """This rank's block of a W x H mesh shared by all ranks of the communicator. UsageError where it cannot be."""
    for side, size, most in (("width", width, device.width), ("height", height, device.height)):
        if most is not None and size > most:
            raise UsageError(f"mesh {width}x{height}: the {side} of device {device.name} is {most} at most")
    columns, rows = tile_ranks(width, height, comm.size)
    mesh = Mesh(width, height, columns, rows, comm.rank)
    ledger = meter.Ledger(maps_path=maps_path, timeline=timeline, messages=messages)
    bells = hang_up(watch, chosen()) if len(watch.ranks) > 1 else None
    wait, ring = waiter(bells), no_bells if bells is None else bells.ring
    of_control, of_scouts, of_packets = duplicates(comm, 3)
    control = Control(of_control, watch, "control", wait, ring)
    scouts = Control(of_scouts, watch, "first use of a route set", wait, ring)
    return Block(
        mesh, device, of_packets, control, scouts, watch, payload, wait=wait, ring=ring, bells=bells, ledger=ledger,
        wafer=wafer,
        timed=timed,
    )  # fmt: skip
