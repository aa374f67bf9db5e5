"""When chosen links of a mesh were busy, with whose packet, and how long that had waited (`--trace-links`).

A link is busy from when a head is given it for as long as its packet takes: what a transfer did to the clock's times of
links is looked at after it. When heads asked is found from where they were before, so the rows and columns of the
chosen cores are watched, and ramps out of their cores.
"""

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshrt.mesh.clock import LINK_FREE, RAMP_OUT, Clock
from meshrt.mesh.mesh import RAMP, STEP, Mesh
from meshrt.records import dataclass

if TYPE_CHECKING:
    from meshrt.mesh.look.past import Moments
    from meshrt.mesh.wires.lines import View
    from meshrt.mesh.wires.schedule import Schedule

MeshLink = tuple[int, int]  # core y * W + x of the mesh, port


TOGETHER = 1 << 17  # times of what is watched, of as many transfers as that is, that are looked through in one
LinkTimes = tuple[np.ndarray, np.ndarray]  # of what is watched: when it is free, and from when on it was idle before


class SeenTransfer(NamedTuple):
    """A transfer: its number, what its packets cross (origins and hops, as `_courses`), the cycles of a link and of a
    hop, and the times before and after it.
    """

    sent: int
    course: LinkTimes
    busy: float
    alpha: float
    before: LinkTimes
    after: LinkTimes


@dataclass(eq=False)
class WatchedLinks:
    """Of one block: the links that are watched, and what crossed them so far.

    A crossing is a packet that core `origin` sent, of a transfer, which had a link (core, port) at `begin`, as its hop
    of that number (0: its core's ramp), and was at the next router `after`; it asked for the link at `asked_at`, nan
    where that is found later.
    """

    site: str
    number: int  # of the block
    mesh: Mesh
    clock: Clock
    chosen: Sequence[MeshLink]
    moments: "Moments"
    at: np.ndarray  # positions in the clock's cells of what is watched
    idle_at: np.ndarray  # and in its `idle`
    cores: np.ndarray  # the core in the block, and the port, of each
    ports: np.ndarray
    are_links: np.ndarray  # and not ramps, of which those into cores have the same times of idleness
    crossings: list[tuple[np.ndarray, ...]] = field(
        default_factory=list
    )  # sent, core, port, origin, hop, begin, after, asked
    seen: list[SeenTransfer] = field(default_factory=list)  # transfers that are no crossings yet
    # what a transfer is, bytes, cycles of a link
    sends: dict[int, tuple[str, int, float]] = field(default_factory=dict)
    started: dict[int, int] = field(default_factory=dict)  # of transfers whose heads wait (heads.py), their number

    def before(self) -> LinkTimes:
        """A transfer begins."""
        return self.clock.cells.reshape(-1).take(self.at), self.clock.idle.reshape(-1).take(self.idle_at)

    def after(
        self, sent: int, schedule: "Schedule", views: "tuple[View, ...]", nbytes: int, busy: float, alpha: float,
        before: LinkTimes,
    ) -> None:  # fmt: skip
        """It has been replayed, or, where heads have to wait for each other, its packets have left their cores."""
        if sent >= self.moments.most:
            return
        self.sends[sent] = schedule.note, nbytes, busy
        self.started[self.clock.started] = sent
        if not busy:
            return
        self.seen.append(SeenTransfer(sent, self._courses(schedule, views), busy, alpha, before, self.before()))
        if len(self.seen) * len(self.at) >= TOGETHER:
            self.enter()

    def enter(self) -> None:
        """Make crossings of the transfers that were seen."""
        seen, self.seen = self.seen, []
        if not seen:
            return
        free_before, idle_before = map(np.stack, zip(*(transfer.before for transfer in seen), strict=True))
        free, idle = map(np.stack, zip(*(transfer.after for transfer in seen), strict=True))
        moved = free != free_before
        row, at = np.nonzero(moved | ((idle != idle_before) & self.are_links))
        busy, alpha = (np.array([getattr(transfer, name) for transfer in seen])[row] for name in ("busy", "alpha"))
        begin = np.where(moved, free, idle)[row, at] - busy  # one that asked early went while the link was idle
        courses = list({id(transfer.course): transfer.course for transfer in seen}.values())
        indices = {id(course): index for index, course in enumerate(courses)}
        which = np.array([indices[id(transfer.course)] for transfer in seen])[row]
        origins, hops = (np.stack([course[part] for course in courses])[which, at] for part in range(2))
        late = np.zeros(len(at))
        if self.clock.late is not None:
            links = self.ports[at] != RAMP
            late[links] = self.clock.late.reshape(4, -1)[self.ports[at][links], self.cores[at][links]]
        after = begin + np.where(self.ports[at] == RAMP, 0.0, alpha + late)
        sent = np.array([transfer.sent for transfer in seen])[row]
        self._enter(sent, at, origins, hops, begin, after, np.full(len(at), np.nan))

    def head(
        self, waiting: Any, port: int, line: int, position: int, slot: int, hops: int, asked_at: float, begin: float
    ) -> None:
        """One head of those that waited for each other, of a `Waiting` of heads.py, has been given a link."""
        sent = self.started.get(waiting.number, -1)
        key = waiting.lane.view, "cores"
        cache: Any = waiting.lane.schedule.cache
        if key not in cache:
            cache[key] = waiting.lane.view.of(np.arange(self.clock.ramp_in.size).reshape(self.clock.ramp_in.shape))
        at = np.flatnonzero((self.cores == cache[key][line, position]) & (self.ports == port))
        if sent < 0 or not len(at):
            return
        origin = self._senders(waiting.lane.schedule.slot_origins[slot : slot + 1], waiting.lane.view, line)
        self.enter()
        self._enter(
            np.full(len(at), sent), at, origin, np.array([hops + 1]), *np.array([[begin], [np.nan], [asked_at]])
        )

    def _enter(
        self, sent: np.ndarray, at: np.ndarray, origins: np.ndarray, hops: np.ndarray, *times: np.ndarray
    ) -> None:
        y, x = np.divmod(self.cores[at], self.mesh.block_width)
        cores = (self.mesh.y0 + y) * self.mesh.width + self.mesh.x0 + x
        self.crossings.append((sent, cores, self.ports[at], origins, hops, *times))

    def _senders(self, origins: np.ndarray, view: "View", line: int) -> np.ndarray:
        """Where packets of a line of a view are from, as cores of the mesh."""
        if view.axis is None:
            return origins
        across = range(*view.lines.indices(max(self.clock.ramp_in.shape)))[line]
        if view.axis == "x":
            return np.asarray((self.mesh.y0 + across) * self.mesh.width + origins)
        return np.asarray(origins * self.mesh.width + self.mesh.x0 + across)

    def _courses(self, schedule: "Schedule", views: "tuple[View, ...]") -> tuple[np.ndarray, np.ndarray]:
        """Of what is watched: which core's packet of the transfer crosses it, and after how many hops. Made once."""
        cache: Any = schedule.cache
        key = views, WatchedLinks
        if key not in cache:
            shape = (5, *self.clock.ramp_in.shape)
            origins, hops = np.full(shape, -1), np.zeros(shape, np.int64)
            own = np.arange(self.clock.ramp_in.size).reshape(shape[1:])
            y, x = np.divmod(own, self.mesh.block_width)
            origins[RAMP] = (self.mesh.y0 + y) * self.mesh.width + self.mesh.x0 + x
            for view in views:
                for cores, packets in schedule.departures:  # of several from one core, which was when is not known
                    view.of(origins[RAMP])[:, cores] = np.where(packets == 1, view.of(origins[RAMP])[:, cores], -1)
                for port, cores, pos, hop in schedule.courses:
                    for line in range(view.count):
                        view.of(origins[port])[line, cores] = self._senders(pos, view, line)
                    view.of(hops[port])[:, cores] = hop
            cache[key] = tuple(array.reshape(5, -1)[self.ports, self.cores] for array in (origins, hops))
        return cache[key]  # type: ignore[no-any-return]  # kept under this key alone

    def share(self, totals: np.ndarray | None) -> dict[str, Any]:
        """What of the block is to be written. `totals`: bytes over its links in the whole run, [4, bh, bw]."""
        self.enter()
        columns = [np.concatenate(column) for column in zip(*self.crossings, strict=True)] if self.crossings else []
        nbytes = {}
        for core, port in self.chosen:
            y, x = divmod(core, self.mesh.width)
            nbytes[core, port] = 0 if totals is None else int(totals[port, y - self.mesh.y0, x - self.mesh.x0])
        return {"site": self.site, "number": self.number, "width": self.mesh.width, "chosen": self.chosen,
                "columns": columns, "sends": self.sends, "bytes": nbytes}  # fmt: skip


def links_of(
    site: str, number: int, mesh: Mesh, clock: Clock, cores: Sequence[tuple[int, int]], moments: "Moments"
) -> WatchedLinks:
    """Watch the links out of these cores (x, y) of the mesh."""
    rows, columns = {y for _, y in cores}, {x for x, _ in cores}
    chosen, watched = [], []
    for y in range(mesh.y0, mesh.y0 + mesh.block_height):
        for x in range(mesh.x0, mesh.x0 + mesh.block_width):
            core = (y - mesh.y0) * mesh.block_width + x - mesh.x0
            if y in rows or x in columns:
                watched += [(core, port) for port in range(5)]
            if (x, y) in cores:
                inside = [port for port, (dx, dy) in enumerate(STEP)
                          if 0 <= x + dx < mesh.width and 0 <= y + dy < mesh.height]  # fmt: skip
                chosen += [(y * mesh.width + x, port) for port in inside]
    at, ports = (np.array([link[part] for link in watched], np.int64) for part in range(2))
    size = clock.cells.shape[1]
    cells = np.where(ports == RAMP, RAMP_OUT, LINK_FREE + ports) * size + at
    idle = ports * clock.ramp_in.size + at
    return WatchedLinks(site, number, mesh, clock, chosen, moments, cells, idle, at, ports, ports != RAMP)
