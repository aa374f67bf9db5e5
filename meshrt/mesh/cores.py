"""The cores that one rank hosts, with what belongs to each: memory, tables, clocks, counters."""

from collections.abc import Callable
from dataclasses import field
from functools import cached_property
from math import prod
from operator import index
from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh import meter
from meshrt.mesh.clock import Clock, Still
from meshrt.mesh.defects import WaferMap, links_of
from meshrt.mesh.device import Device
from meshrt.mesh.look.maps import Maps, new_maps
from meshrt.mesh.look.peaks import NamedMemory, new_peaks
from meshrt.mesh.memory import CoreMemory
from meshrt.mesh.mesh import NORTH, SOUTH, Mesh
from meshrt.mesh.wires.core import chosen
from meshrt.mesh.wires.tables import Tables
from meshrt.ranks import hostmemory
from meshrt.ranks.bells import Bells, no_bells
from meshrt.ranks.board import Board
from meshrt.ranks.console import Console
from meshrt.ranks.control import Control
from meshrt.ranks.host import waiter
from meshrt.records import dataclass

if TYPE_CHECKING:
    from meshrt.mesh.audit import Audit
    from meshrt.mesh.look.pairs import Pairs


@dataclass(eq=False)
class Cores:
    """A rank's cores: the rectangle of the mesh that it hosts. Their tiles are one array [bh, bw, *tile].

    `comm` carries mesh packets and nothing else. `control` is for loading, gathering and reports and `scouts` for
    planning; neither is counted. What moves packets works on these. `Block` (block.py) adds the course of a run.
    """

    mesh: Mesh
    device: Device
    comm: Any
    control: Control
    scouts: Control
    watch: Board
    payload: bool = True  # False: tiles are shapes, [1, 1, *tile] for any core, and only headers move
    console: Console = field(default_factory=Console)
    wait: Callable[..., None] = field(default_factory=waiter)  # for an MPI request, from that rank
    ring: Callable[[int], None] = no_bells  # tell a rank that a message for it has been posted
    bells: Bells | None = None  # by which ranks are told
    core: Any = field(default_factory=chosen)  # the compiled core, if it is there and wanted
    tables: Tables = field(init=False)
    memory: CoreMemory = field(init=False)
    clock: Clock = field(init=False)
    ledger: meter.Ledger = field(default_factory=meter.Ledger)
    site: str = ""  # where on the wafer the cores are, if the run has several sites
    wafer: WaferMap | None = None  # that the mesh is laid on, if that has defects
    startup_cpu_seconds: float = field(default_factory=process_time)  # what this rank had used when it got its block
    traffic: dict[tuple[Any, Any], int] = field(default_factory=dict)  # bytes by schedule, not yet on the links
    summed: dict[Any, int] = field(init=False, default_factory=dict)  # uses of tables of sums, not yet counted
    uses: dict[tuple[Any, Any, int], int] = field(default_factory=dict)  # with maps: transfers by schedule and bytes
    audit: "Audit | None" = None  # of a user's own program
    timed: bool = True  # False: nothing moves and no clock goes on; memory and tables are as in a run (weigh.py)
    mapped: bool = field(init=False)  # is it kept what each core and link did?

    def __post_init__(self) -> None:
        hostmemory.require(f"a mesh of {self.mesh.width} x {self.mesh.height} cores", self._bookkeeping())
        self.tables = Tables(self.mesh, self.device)
        self.mapped = self.ledger.maps_path is not None
        named = self.mapped or not self.timed
        self.memory = (NamedMemory if named else CoreMemory)(self.mesh, self.device, self.site)
        self.clock = (Clock if self.timed else Still)(self.mesh, self.device)
        if self.mapped:
            self.clock.busy = np.zeros(self.shape)
        if self.ledger.timeline is not None:
            self.ledger.timeline.watch(self.mesh, self.site_key, self.clock)
        if self.ledger.messages is not None:
            self.ledger.messages.watch(self.mesh, self.clock)
        if self.wafer is not None:
            self.clock.late = (self.lengths - 1) * self.device.alpha
            self.ledger.wafers[self.site_key] = links_of(self.wafer, self.mesh)
        dies = self._die_edges()
        if dies is not None:
            self.clock.late = dies if self.clock.late is None else self.clock.late + dies

    def _die_edges(self) -> np.ndarray | None:
        """Cycles that a hop out of each port, [4, bh, bw], takes longer as it goes on to the rows of the next die.

        Row 0 is taken to be the first of a die.
        """
        mesh, device = self.mesh, self.device
        if device.die_rows is None or mesh.height <= device.die_rows or not device.die_cycles:
            return None
        rows = np.arange(mesh.y0, mesh.y0 + mesh.block_height)
        dies = np.floor(np.stack((rows - 1, rows, rows + 1)) / device.die_rows)
        edges = np.zeros((4, *self.shape))
        edges[NORTH] = (device.die_cycles * (dies[0] < dies[1]) * (rows > 0))[:, None]
        edges[SOUTH] = (device.die_cycles * (dies[2] > dies[1]))[:, None]
        return edges

    def _bookkeeping(self) -> int:
        """Bytes for what is kept of every core: colours of all, and of these the tables, clocks and link counters."""
        colours = self.device.route_entries or 8
        hosted = prod(self.shape)
        return colours * (self.mesh.width * self.mesh.height + 2 * hosted) + 8 * (9 + 10 + 4 + 1) * hosted

    @property
    def counters(self) -> meter.Counters:
        """Of the segment that is running."""
        return self.ledger.counters

    @property
    def host(self) -> meter.HostCounters:
        return self.ledger.host

    @property
    def notes(self) -> dict[str, Any]:
        return self.ledger.notes

    @property
    def link_bytes(self) -> np.ndarray:
        """Bytes that went over every link of these cores in this segment, int64 [4, bh, bw] by port of departure."""
        links = self.ledger.counters.links
        if self.site_key not in links:
            links[self.site_key] = np.zeros((4, *self.shape), np.int64)
        return links[self.site_key]

    @property
    def ramp_bytes(self) -> np.ndarray:
        """Bytes that left these cores by their ramps in this segment, and that came by them, int64 [2, bh, bw]."""
        ramps = self.ledger.counters.ramps
        if self.site_key not in ramps:
            ramps[self.site_key] = np.zeros((2, *self.shape), np.int64)
        return ramps[self.site_key]

    @property
    def maps(self) -> Maps:
        """What each of these cores and links did in this segment, of a run that was asked for it (`mapped`)."""
        maps = self.ledger.counters.maps
        if self.site_key not in maps:
            maps[self.site_key] = new_maps(self.shape)
        return maps[self.site_key]

    @property
    def pairs(self) -> "tuple[Pairs, Pairs]":
        """Who sent to whom in this segment, of such a run: packets, and what exchanges carried."""
        pairs = self.ledger.counters.pairs
        if self.site_key not in pairs:
            from meshrt.mesh.look.pairs import new_pairs  # most runs have no maps

            pairs[self.site_key] = new_pairs(self.mesh), new_pairs(self.mesh)
        return pairs[self.site_key]

    @property
    def lengths(self) -> np.ndarray:
        """Hops on the wafer for each link out of these cores, int [4, bh, bw]; only where the wafer has defects."""
        assert self.wafer is not None
        mesh = self.mesh
        rows, columns = slice(mesh.y0, mesh.y0 + mesh.block_height), slice(mesh.x0, mesh.x0 + mesh.block_width)
        return np.ascontiguousarray(self.wafer.lengths[:, rows, columns])

    @property
    def site_key(self) -> str:
        """What counters of single cores and links are kept under: two sites, or two meshes, are never added up."""
        return f"{self.site} {self.mesh.width} x {self.mesh.height}"

    @cached_property
    def shape(self) -> tuple[int, int]:
        """(bh, bw) of this rank's block."""
        return self.mesh.block_height, self.mesh.block_width

    @cached_property
    def hosted(self) -> int:
        """How many cores these are."""
        return prod(self.shape)

    @cached_property
    def lead(self) -> tuple[int, int]:
        """The leading dimensions of tiles as they are held here: those of the block, or (1, 1) without payloads."""
        return self.shape if self.payload else (1, 1)

    @property
    def x(self) -> np.ndarray:
        """int [bw]: the column of each core, along the second dimension of tiles as they are held here (`lead`)."""
        return np.arange(self.mesh.x0, self.mesh.x0 + self.lead[1])

    @property
    def y(self) -> np.ndarray:
        """int [bh]: the row of each core, along the first."""
        return np.arange(self.mesh.y0, self.mesh.y0 + self.lead[0])

    def check_lead(self, tiles: np.ndarray) -> None:
        """UsageError where an array does not have the tiles of all cores."""
        if tiles.shape[:2] != self.lead:
            raise UsageError(
                f"tiles of shape {list(tiles.shape)}: the first two dimensions are the cores of the block,"
                f" {list(self.lead)} here (block.lead), and what follows is one core's tile"
            )

    def tiles(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Fresh core memory: [bh, bw, *shape], counted under that name, full of NaN, so that unwritten numbers show.

        It is given back when nothing refers to it any more. Integers have no NaN and get their largest value.
        UsageError for a tile of no numbers, or of a shape or kind that is none; LimitError.
        """
        try:
            least, dtype = min(map(index, shape), default=1), np.dtype(dtype)
            if dtype.kind in "OSUMm":  # what is no number, or has no size
                raise TypeError
        except TypeError as error:
            raise UsageError(
                f"{name!r} is to have tiles of {shape!r}, {dtype!r}: a shape is a tuple of whole numbers, such as (8,),"
                " and a kind of numbers one of NumPy's, such as np.float32"
            ) from error
        if least < 1:
            raise UsageError(f"{name!r} is to have tiles of {list(shape)} at every core: give sizes of 1 or more")
        blank = np.iinfo(dtype).max if dtype.kind in "iu" else np.nan
        self._require(name, shape, dtype)
        fresh = np.full((*self.lead, *shape), blank, dtype)
        return self.memory.keep(name, fresh if self.audit is None else self.audit.makes(self.memory, name, fresh))

    def empty(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """As `tiles`, for what is written whole before it is read: what is in it is not defined. LimitError."""
        self._require(name, shape, np.dtype(dtype))
        return self.memory.keep(name, np.empty((*self.lead, *shape), dtype))

    def _require(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """LimitError where a core has no room for such tiles, UsageError where the host has none for those of all."""
        nbytes = prod(shape) * dtype.itemsize
        self.memory.require(name, nbytes)
        hostmemory.require(f"{name!r} of all cores", prod(self.lead) * nbytes)

    def begin(self) -> None:
        """These cores are at work in the segment that is running, which is to have what they keep for themselves."""
        if id(self) not in self.ledger.at_work:
            self.ledger.at_work[id(self)] = self
            self.reset_peaks()

    def rest(self) -> None:
        """These cores are not at work: what is made ready at them then is in no segment, until they `begin`."""
        self.ledger.at_work.pop(id(self), None)
        self.tables.most = None
        if isinstance(self.memory, NamedMemory):
            self.memory.peaks = None

    def reset_peaks(self) -> None:
        self.tables.peak = int(self.tables.entries.max())
        self.memory.peak = self.memory.common + self.memory.most_extra
        if isinstance(self.memory, NamedMemory):
            peaks = new_peaks(self.tables.entries)
            self.ledger.counters.peaks.setdefault(self.site_key, []).append(peaks)
            self.tables.most = peaks.entries
            self.memory.watch(peaks)
