"""When chosen links of a mesh were busy, with whose packet, and how long that had waited (`--trace-links`).

A link is busy from when a head is given it for as long as its packet takes: what a transfer did to the clock's times of
links is looked at after it. When heads asked is found from where they were before, so the rows and columns of the
chosen cores are watched, and ramps out of their cores.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshrt.mesh.clock import LINK_FREE, RAMP_OUT, Clock
from meshrt.mesh.device import Device
from meshrt.mesh.mesh import PORT_NAMES, RAMP, STEP, Mesh
from meshrt.records import dataclass

if TYPE_CHECKING:
    from meshrt.mesh.exchange.retrace import Journal
    from meshrt.mesh.past import Moments
    from meshrt.mesh.wires.lines import View
    from meshrt.mesh.wires.schedule import Schedule

Link = tuple[int, int]  # core y * W + x of the mesh, port


class Crossing(NamedTuple):
    """A packet that core `origin` sent had a link at `begin`, as its hop number `hop` (0: its core's ramp).

    `after`: when it was at the next router; `asked`: when it asked for the link, nan where that is found later.
    """

    sent: int
    core: int
    port: int
    origin: int
    hop: int
    begin: float
    after: float
    asked: float


@dataclass(eq=False)
class Links:
    """Of one block: the links that are watched, and what crossed them so far."""

    site: str
    number: int  # of the block
    mesh: Mesh
    clock: Clock
    chosen: Sequence[Link]
    moments: "Moments"
    at: np.ndarray  # positions in the clock's cells of what is watched
    idle_at: np.ndarray  # and in its `idle`
    cores: np.ndarray  # the core in the block, and the port, of each
    ports: np.ndarray
    are_links: np.ndarray  # and not ramps, of which those into cores have the same times of idleness
    crossings: list[tuple[np.ndarray, ...]] = field(default_factory=list)  # columns of Crossing
    sends: dict[int, tuple[str, int, float]] = field(
        default_factory=dict
    )  # what a transfer is, bytes, cycles of a link
    started: dict[int, int] = field(default_factory=dict)  # of transfers whose heads wait (heads.py), their number

    def before(self) -> tuple[np.ndarray, np.ndarray]:
        """A transfer begins."""
        return self.clock.cells.reshape(-1)[self.at], self.clock.idle.reshape(-1)[self.idle_at]

    def after(
        self, sent: int, schedule: "Schedule", views: "tuple[View, ...]", nbytes: int, busy: float, alpha: float,
        before: tuple[np.ndarray, np.ndarray],
    ) -> None:  # fmt: skip
        """It has been replayed, or, where heads have to wait for each other, its packets have left their cores."""
        if sent >= self.moments.most:
            return
        self.sends[sent] = schedule.note, nbytes, busy
        self.started[self.clock.started] = sent
        if not busy:
            return
        free, idle = self.before()
        moved = free != before[0]
        crossed = np.flatnonzero(moved | ((idle != before[1]) & self.are_links))
        begin = np.where(moved, free, idle)[crossed] - busy  # one that asked early went while the link was idle
        origins, hops = self._courses(schedule, views)
        late = np.zeros(len(crossed))
        if self.clock.late is not None:
            links = self.ports[crossed] != RAMP
            late[links] = self.clock.late.reshape(4, -1)[self.ports[crossed][links], self.cores[crossed][links]]
        after = begin + np.where(self.ports[crossed] == RAMP, 0.0, alpha + late)
        self._enter(sent, crossed, origins[crossed], hops[crossed], begin, after, np.full(len(crossed), np.nan))

    def head(
        self, waiting: Any, port: int, line: int, position: int, slot: int, hops: int, asked: float, begin: float
    ) -> None:
        """One head of those that waited for each other, of a `Waiting` of heads.py, has been given a link."""
        sent = self.started.get(waiting.number, -1)
        key = waiting.lane.view, "cores"
        known: Any = waiting.lane.schedule.cache
        if key not in known:
            known[key] = waiting.lane.view.of(np.arange(self.clock.ramp_in.size).reshape(self.clock.ramp_in.shape))
        found = np.flatnonzero((self.cores == known[key][line, position]) & (self.ports == port))
        if sent < 0 or not len(found):
            return
        origin = self._senders(waiting.lane.schedule.slot_origins[slot : slot + 1], waiting.lane.view, line)
        self._enter(sent, found, origin, np.array([hops + 1]), *np.array([[begin], [np.nan], [asked]]))

    def _enter(self, sent: int, at: np.ndarray, origins: np.ndarray, hops: np.ndarray, *times: np.ndarray) -> None:
        y, x = np.divmod(self.cores[at], self.mesh.block_width)
        cores = (self.mesh.y0 + y) * self.mesh.width + self.mesh.x0 + x
        self.crossings.append((np.full(len(at), sent), cores, self.ports[at], origins, hops, *times))

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
        known: Any = schedule.cache
        key = views, Links
        if key not in known:
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
            known[key] = tuple(array.reshape(5, -1)[self.ports, self.cores] for array in (origins, hops))
        return known[key]  # type: ignore[no-any-return]  # kept under this key alone

    def share(self, totals: np.ndarray | None) -> dict[str, Any]:
        """What of the block is to be written. `totals`: bytes over its links in the whole run, [4, bh, bw]."""
        columns = [np.concatenate(column) for column in zip(*self.crossings, strict=True)] if self.crossings else []
        nbytes = {}
        for core, port in self.chosen:
            y, x = divmod(core, self.mesh.width)
            nbytes[core, port] = 0 if totals is None else int(totals[port, y - self.mesh.y0, x - self.mesh.x0])
        return {"site": self.site, "number": self.number, "width": self.mesh.width, "chosen": self.chosen,
                "columns": columns, "sends": self.sends, "bytes": nbytes}  # fmt: skip


def links_of(
    site: str, number: int, mesh: Mesh, clock: Clock, cores: Sequence[tuple[int, int]], moments: "Moments"
) -> Links:
    """Watch the links out of these cores (x, y) of the mesh."""
    rows, columns = {y for _, y in cores}, {x for x, _ in cores}
    chosen, watched = [], []
    for y in range(mesh.y0, mesh.y0 + mesh.block_height):
        for x in range(mesh.x0, mesh.x0 + mesh.block_width):
            here = (y - mesh.y0) * mesh.block_width + x - mesh.x0
            if y in rows or x in columns:
                watched += [(here, port) for port in range(5)]
            if (x, y) in cores:
                inside = [port for port, (dx, dy) in enumerate(STEP)
                          if 0 <= x + dx < mesh.width and 0 <= y + dy < mesh.height]  # fmt: skip
                chosen += [(y * mesh.width + x, port) for port in inside]
    at, ports = (np.array([one[part] for one in watched], np.int64) for part in range(2))
    size = clock.cells.shape[1]
    cells = np.where(ports == RAMP, RAMP_OUT, LINK_FREE + ports) * size + at
    idle = ports * clock.ramp_in.size + at
    return Links(site, number, mesh, clock, chosen, moments, cells, idle, at, ports, ports != RAMP)


def intervals(
    shares: Sequence[Mapping[str, Any]], journals: "Mapping[tuple[int, int], Journal]", device: Device, end: float
) -> Iterator[tuple[str, str, tuple[str, float, float], dict[str, Any]]]:
    """(site, link, (what, begin, end), more) of all chosen links, by link in the order of time.

    `journals` are the exchanges, by number of the block and of the transfer. What is missing of a link's bytes, as the
    counters have them, is one interval at its end.
    """
    busy: dict[tuple[str, int], dict[Link, list[Any]]] = defaultdict(lambda: defaultdict(list))
    totals: dict[tuple[str, int, Link], int] = defaultdict(int)
    for share in shares:
        site, width = share["site"], share["width"]
        for link in share["chosen"]:
            busy[site, width][link] += []
            totals[site, width, link] = max(totals[site, width, link], share["bytes"][link])
    for number in sorted({share["number"] for share in shares}):
        mine = [share for share in shares if share["number"] == number]
        site, width = mine[0]["site"], mine[0]["width"]
        chosen = {link for share in mine for link in share["chosen"]}
        sends = {sent: facts for share in mine for sent, facts in share["sends"].items()}
        for row in _chosen([share["columns"] for share in mine], width, chosen):
            name, nbytes, cycles = sends[row.sent]
            more = {"bytes": nbytes, "from": _place(row.origin, width)}
            if row.asked == row.asked:
                more["waited"] = max(0.0, row.begin - row.asked)
            busy[site, width][row.core, row.port].append((row.begin, row.begin + cycles, name, more))
        for (block, _), journal in journals.items():
            for hop in journal.hops if block == number and device.busy_cycles(1) else ():
                if (hop.source, hop.port) in chosen:
                    more = {"bytes": hop.nbytes, "from": _place(hop.source, width), "waited": hop.left - hop.ready}
                    busy[site, width][hop.source, hop.port].append((hop.left, hop.left + hop.busy, "exchange", more))
    for (site, width), links in sorted(busy.items()):
        for (core, port), found in sorted(links.items()):
            x, y = _place(core, width)
            lane = f"link ({x}, {y}) {PORT_NAMES[port]}"
            found.sort(key=lambda one: one[:2])
            for begin, until, name, more in found:
                yield site, lane, (name, begin, until), more
            rest = totals[site, width, (core, port)] - sum(more["bytes"] for *_, more in found)
            if rest:
                yield site, lane, ("not kept", found[-1][1] if found else 0.0, end), {"bytes": rest}


def _chosen(parts: Sequence[Sequence[np.ndarray]], width: int, chosen: set[Link]) -> Iterator[Crossing]:
    """What crossed those links, of what all ranks have seen, and when it asked: when it was there from where it was."""
    columns = [np.concatenate(column) for column in zip(*filter(None, parts), strict=True)]
    if not columns or not len(columns[0]):
        return
    sent, core, port, origin, hop, _, after, asked = columns
    steps = np.array([dx + dy * width for dx, dy in STEP] + [0])
    apart = 2 + int(max(core.max(), *(core for core, _ in chosen)) + abs(steps).max())
    packet = np.unique(sent * apart + origin + 1, return_inverse=True)[1]
    from_hop = (packet * (2 + int(hop.max())) + hop) * apart  # a packet has been at a core once
    there, wanted = from_hop + core + steps[port], from_hop - apart + core
    order = np.argsort(there, kind="stable")
    is_chosen = np.isin(port * apart + core, [port * apart + core for core, port in chosen])
    at = order[np.searchsorted(there[order], wanted).clip(max=len(order) - 1)]
    known = np.where(there[at] == wanted, after[at], np.nan)
    columns[-1] = np.where(np.isnan(asked), known, asked)
    yield from map(Crossing._make, zip(*(column[is_chosen].tolist() for column in columns), strict=True))


def _place(core: int, width: int) -> list[int]:
    return [core % width, core // width]
