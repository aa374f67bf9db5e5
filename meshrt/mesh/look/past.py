"""What led to each core's time, kept so that the critical path can be followed back from the end (criticalpath.py).

While a run is traced, each core's number rides with the path that packets take along: as the fraction of its stages,
which are whole. A core that waited for a packet finds there whose it was. Nothing else changes: reports have whole
stages, and where two paths are compared, fractions decide between equal ones alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshrt.mesh.clock import IS_THERE, STAGES, TIME
from meshrt.mesh.mesh import Mesh
from meshrt.records import dataclass

if TYPE_CHECKING:
    from meshrt.mesh.exchange.legs import Transfer
    from meshrt.mesh.exchange.retrace import Begun

SENDS = 20_000  # transfers and meetings of a run that are followed: what comes after them is one step, "not kept"
NUMBERS = 1 << 28  # of cores times transfers, of larger meshes
EXCHANGE = 10  # transfers whose room an exchange takes: the clock's cells are kept
UNIT = 2.0**-22  # of the fraction: a mesh has fewer cores
MEETS = "waits for the last core"
HANDS = "hands packets on to any core, and waits for its own"


@dataclass(eq=False)
class Events:
    """Clocks went on: after `moments` transfers and meetings, to these times, bytes of float64 [cores of the block].

    Of a wait: for the transfer of number `sent`, whose packets asked for the receiver's ramp at `asked_at`, one by one;
    the numbers of their cores are in the fractions of `stages`, bytes as `times`, where a core's time went on. `sent`
    is -1 for what is no wait for a packet, and the moment of a meeting there. `landed`: int32 [2, cores], hops of the
    packet, its number in `asked_at`; of what was not run, its hops.

    Columns, as a run has tens of thousands: of an object for each Python would look time and again what it refers to.
    """

    moments: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    times: list[bytes] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    stages: list[bytes | None] = field(default_factory=list)
    asked_at: list[np.ndarray | None] = field(default_factory=list)
    landed: list[np.ndarray | int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.moments)


@dataclass(eq=False)
class Moments:
    """Transfers and meetings so far, the same on all ranks, and how many of them are followed."""

    count: int = 0
    most: int = SENDS
    pasts: list["Past"] = field(default_factory=list)  # of this rank, all blocks
    lasts: dict[int, "Last"] = field(default_factory=dict)  # of them, who was last when some met, by its moment

    @property
    def over(self) -> bool:
        return self.count >= self.most


class Last(NamedTuple):
    """The core that all others wait for, by its time and, where several are as late, by the length of its path.

    They sort: the last is the largest. Core: number of the block, y, x of the mesh, as negative numbers.
    """

    time: float
    hops: int
    stages: int
    core: tuple[int, int, int]


@dataclass(eq=False)
class Past:
    """Of the cores of one block; `busy` are the cycles that packets of a transfer keep a link busy, by its number."""

    site: str
    number: int  # of the block, the same on all ranks: several may have been at a site
    mesh: Mesh
    state: np.ndarray  # the clock's [3, bh, bw]
    moments: Moments
    events: Events = field(default_factory=Events)
    busy: dict[int, float] = field(default_factory=dict)
    exchanges: list["Begun"] = field(default_factory=list)
    later: Callable[[str], None] | None = None  # told of what is not followed any more
    times: np.ndarray = field(init=False)  # of the state
    stages: np.ndarray = field(init=False)
    last: bytes = field(init=False)
    own: np.ndarray = field(init=False)  # fractions

    def __post_init__(self) -> None:
        mesh = self.mesh
        rows = np.arange(mesh.y0, mesh.y0 + mesh.block_height)[:, None] * mesh.width
        self.own = (rows + np.arange(mesh.x0, mesh.x0 + mesh.block_width) + 1) * UNIT
        self.times, self.stages = self.state[TIME], self.state[STAGES]
        self.last = self.times.tobytes()
        self.moments.pasts.append(self)
        self.sign()

    def sign(self) -> None:
        """From here on paths that lead on from these cores have their numbers."""
        np.floor(self.stages, out=self.stages)
        self.stages += self.own

    def sends(self, busy: float) -> int:
        """A transfer begins: its number."""
        number = self.moments.count
        if not self.moments.over:
            self.busy[number] = busy
        self.moments.count += 1
        return number

    def exchange(self, cells: np.ndarray, transfers: "Sequence[Transfer]") -> None:
        """An exchange begins, with the clock's cells like these. It takes the room of EXCHANGE transfers."""
        moments = self.moments
        if not moments.over:
            from meshrt.mesh.exchange.retrace import begun

            self.exchanges.append(begun(moments.count, cells, transfers))
        moments.count += EXCHANGE

    def is_last(self) -> Last:
        """The last core of this block: `Clock.last`."""
        time, hops, stages = (np.floor(part) if row else part for row, part in enumerate(self.state))
        order = np.lexsort([stages.ravel(), hops.ravel(), time.ravel()])
        end = order[-1]
        alike = (time.ravel() == time.flat[end]) & (hops.ravel() == hops.flat[end])
        y, x = divmod(int(np.argmax(alike & (stages.ravel() == stages.flat[end]))), time.shape[1])
        core = -self.number, -(self.mesh.y0 + y), -(self.mesh.x0 + x)
        return Last(float(time[y, x]), int(hops[y, x]), int(stages[y, x]), core)

    def note(self, name: str, sent: int = -1, asked_at: np.ndarray | None = None, landed: np.ndarray | int = 0) -> None:
        """Clocks may have gone on, and this is why."""
        meets, moments = name == MEETS, self.moments
        if name == IS_THERE:
            if not moments.over:
                moments.lasts[moments.count] = max(past.is_last() for past in moments.pasts)
            return
        if meets:
            moments.count += 1
        if moments.count > moments.most:
            if self.later is not None:
                self.later(name)
            return
        now = self.times.tobytes()
        if meets or now != self.last:
            self.last = now
            moment = moments.count - 1 if meets else sent
            stages = self.stages.tobytes() if sent >= 0 else None
            events = self.events
            events.moments.append(moments.count)
            events.names.append(name)
            events.times.append(now)
            events.sent.append(moment)
            events.stages.append(stages)
            events.asked_at.append(asked_at)
            events.landed.append(landed)
            if sent >= 0:
                self.sign()
        if meets or name == HANDS:
            self.sign()

    def share(self) -> dict[str, Any]:
        """What the walk needs, of this block."""
        mesh = self.mesh
        return {
            "site": self.site, "number": self.number, "corner": (mesh.x0, mesh.y0),
            "shape": (mesh.block_height, mesh.block_width), "width": mesh.width,
            "events": self.events, "busy": self.busy, "exchanges": self.exchanges,
        }  # fmt: skip
