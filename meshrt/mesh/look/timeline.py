"""What some cores of a mesh did from one moment to the next, as a file that trace viewers draw (`--trace`).

A core's clock goes on where it works, waits or is made to wait, and nowhere else. What made it go on is a step of that
core: its steps lie end to end, and add up to the whole run, to the cycle.
"""

import gc
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.clock import TIME, Clock
from meshrt.mesh.device import Device
from meshrt.mesh.mesh import Mesh
from meshrt.ranks.control import Control
from meshrt.records import dataclass
from meshrt.reports.trace import Numbers, rows_of, text_of, write_rows

if TYPE_CHECKING:
    from meshrt.mesh.exchange.legs import Transfer
    from meshrt.mesh.look.busylinks import LinkTrack
    from meshrt.mesh.look.criticalpath import BlockEvents, PathStep
    from meshrt.mesh.look.linktrace import WatchedLinks
    from meshrt.mesh.look.past import Last, Moments, Past

CORES = 32  # of a mesh that are looked at, if nobody says which
MOST_CORES = 1024
NOT_KEPT = "not kept"
STEPS = 20_000  # of a core that are kept: what follows is one step, "not kept"

NOTES = 8192  # that are made into steps together

TimelineStep = tuple[str, float, float]  # what, and from when to when, in cycles


class CoreSteps(NamedTuple):
    """Of a core: what each was, as a number of names, and from when to when, in cycles."""

    whys: np.ndarray
    begins: np.ndarray
    ends: np.ndarray


@dataclass(eq=False)
class Tracks:
    """The chosen cores of one block: (x, y) of the mesh, where they are in its clock, and their steps so far."""

    site: str
    cores: Sequence[tuple[int, int]]
    state: np.ndarray  # float64 [3, bh, bw]: the clock's
    past: "Past"
    at: tuple[np.ndarray, np.ndarray]
    last: np.ndarray
    links: "WatchedLinks | None" = None
    numbers: dict[str, int] = field(default_factory=lambda: {NOT_KEPT: 0})  # names of steps
    entered: int = 0  # events of the past that are steps
    names: list[str] = field(default_factory=list)  # later notes that are no steps yet: why, and what time it was then
    rows: list[np.ndarray] = field(default_factory=list)
    steps: list[CoreSteps] = field(init=False)  # by core

    def __post_init__(self) -> None:
        self.steps = [CoreSteps(np.zeros(0, np.int64), np.zeros(0), np.zeros(0)) for _ in self.cores]

    def note(self, name: str) -> None:
        """Clocks may have gone on, and this is why; the past has it no more."""
        if not self.names:
            self.enter()
        self.names.append(name)
        self.rows.append(self.state[TIME][self.at])
        if len(self.names) == NOTES:
            self.enter()

    def enter(self) -> None:
        """Make steps of what the past has, and of the notes after it."""
        events, shape = self.past.events, self.state[TIME].shape
        for low in range(self.entered, len(events), NOTES):
            times = np.frombuffer(b"".join(events.times[low : low + NOTES])).reshape(-1, *shape)
            self._enter(events.names[low : low + NOTES], times[:, *self.at])
        self.entered = len(events)
        if self.names:
            self._enter(self.names, np.array(self.rows))
            self.names.clear()
            self.rows.clear()

    def _enter(self, names: list[str], rows: np.ndarray) -> None:
        """Make steps of why and to what time cores went on, [notes, cores]."""
        whys = np.array([self.numbers.setdefault(name, len(self.numbers)) for name in names])
        times = np.concatenate([self.last[None], rows])
        went_on = times[1:] > times[:-1]
        for core, before in enumerate(self.steps):
            at = np.flatnonzero(went_on[:, core])
            why = np.append(before.whys, whys[at])
            begins, ends = np.append(before.begins, times[at, core]), np.append(before.ends, times[at + 1, core])
            first = np.flatnonzero(np.append(True, why[1:] != why[:-1])[: len(why)])
            last = np.append(first[1:], len(why))[: len(first)] - 1
            if len(first) > STEPS:
                first, last = first[: STEPS + 1], np.append(last[:STEPS], len(why) - 1)
                why[first[-1]] = self.numbers[NOT_KEPT]
            self.steps[core] = CoreSteps(why[first], begins[first], ends[last])
        self.last = times[-1]


@dataclass(eq=False)
class Timeline:
    """Of a run: where it is to be written, which cores are looked at (None: some), and what they did, by site."""

    path: str
    chosen: str | None = None
    links: str | None = None  # the cores whose links out are looked at; None: none
    tracks: list[Tracks] = field(default_factory=list)
    moments: "Moments | None" = None

    def watch(self, mesh: Mesh, site: str, clock: Clock) -> None:
        """Look at a block: from now on its clock tells where times may have gone on, with the reason."""
        state, least = clock.state, 0 if self.tracks else 1  # a further mesh of the run may be smaller
        own_cores = [
            (x, y) for x, y in choose(self.chosen, mesh.width, mesh.height, least=least)
            if 0 <= x - mesh.x0 < mesh.block_width and 0 <= y - mesh.y0 < mesh.block_height
        ]  # fmt: skip
        at = np.array([y - mesh.y0 for _, y in own_cores], int), np.array([x - mesh.x0 for x, _ in own_cores], int)
        from meshrt.mesh.look.past import NUMBERS, SENDS, Moments, Past  # most runs are not traced

        if self.moments is None:
            self.moments = Moments(most=min(SENDS, NUMBERS // (mesh.width * mesh.height)))
        past = Past(site, len(self.tracks), mesh, state, self.moments)
        self.tracks.append(Tracks(site, own_cores, state, past, at, state[TIME][at].copy()))
        past.later = self.tracks[-1].note
        clock.seen, clock.past = past.note, past
        if self.links is not None:
            from meshrt.mesh.look.linktrace import links_of

            cores = choose(self.links, mesh.width, mesh.height, "--trace-links", least)
            clock.links = links_of(site, past.number, mesh, clock, cores, self.moments)
            self.tracks[-1].links = clock.links

    def exchanges(self, clock: Clock, transfers: "Sequence[Transfer]") -> None:
        """An exchange of the block of this clock begins."""
        clock.past.exchange(clock.cells, transfers)

    def sends(self, clock: Clock, busy: float) -> int:
        """A transfer of the block of this clock begins: its number. Links are busy with a packet for so long."""
        return int(clock.past.sends(busy))


def choose(
    text: str | None, width: int, height: int, option: str = "--trace-cores", least: int = 1
) -> list[tuple[int, int]]:
    """'3,*;0,0' -> the cores of column 3, and core (0, 0), of those that the mesh has; None: some along its diagonal.

    UsageError.
    """
    if text is None:
        count = min(CORES, max(width, height))
        steps = max(1, count - 1)
        return sorted({(at * (width - 1) // steps, at * (height - 1) // steps) for at in range(count)})
    chosen: set[tuple[int, int]] = set()
    for part in text.split(";"):
        words = [word.strip() for word in part.split(",")]
        if len(words) != 2 or not all(word == "*" or word.isdecimal() for word in words):
            raise UsageError(f"{option} {text!r}: give X,Y or X,* or *,Y, with a ; between several")
        columns, rows = (
            range(length) if word == "*" else range(int(word), min(int(word) + 1, length))
            for word, length in zip(words, (width, height), strict=True)
        )
        chosen |= {(x, y) for x in columns for y in rows}
    if not least <= len(chosen) <= MOST_CORES:
        raise UsageError(f"{option} {text!r} are {len(chosen)} of {width} x {height} cores; give 1 to {MOST_CORES}")
    return sorted(chosen)


def write_timeline(
    timeline: Timeline,
    control: Control,
    device: Device,
    phases: Sequence[TimelineStep],
    crossed: Mapping[str, np.ndarray],
) -> None:
    """All ranks' steps and the critical path, in the Trace Event Format (JSON), in microseconds; cycles are told too.

    `crossed`: bytes over the links of this rank, [4, bh, bw], by site. Rank 0 writes.
    """
    from meshrt.mesh.look.criticalpath import parts_of

    for track in timeline.tracks:
        track.enter()
    shares = control.gather(
        [
            (track.site, core, [*track.numbers], steps)
            for track in timeline.tracks
            for core, steps in zip(track.cores, track.steps, strict=True)
        ]
    )
    pasts = control.gather([track.past.share() for track in timeline.tracks])
    lasts = control.gather({} if timeline.moments is None else timeline.moments.lasts)
    links = control.gather(
        [track.links.share(crossed.get(track.site)) for track in timeline.tracks if track.links is not None]
    )
    if shares is None or pasts is None or lasts is None or links is None:
        return
    with uncollected():
        parts = parts_of([past for share in pasts for past in share])
        tracks = sorted((track for share in shares for track in share), key=lambda track: track[:2])
        rows = _events(parts, tracks, lasts, [share for of_rank in links for share in of_rank], device, phases)
        write_rows(filter(None, rows), "--trace", timeline.path)


def _events(
    parts: "Sequence[BlockEvents]", tracks: Sequence[tuple[str, tuple[int, int], list[str], CoreSteps]],
    lasts: "Sequence[Mapping[int, Last]]", links: Sequence[Mapping[str, Any]], device: Device,
    phases: Sequence[TimelineStep],
) -> Iterator[str]:  # fmt: skip
    """All lines, one after the other: each is written, and let go, before the next is made."""
    from meshrt.mesh.look.criticalpath import follow
    from meshrt.mesh.look.waits import waited, waits

    end, numbers = max((phase[2] for phase in phases), default=0.0), Numbers()
    yield text_of([_event("phases", "phases", step, device) for step in phases if step[0]])
    yield from _rows("critical path", "critical path", *_path(follow(parts, lasts, device, end)), device, numbers)
    for at, (site, core, names, (whys, begins, ends)) in enumerate(tracks):
        if at % CORES == 0:  # as many at a time: what is known of their waits are numbers for each event
            group = tracks[at : at + CORES]
            by_part = [waited(part, [core for site, core, *_ in group if site == part.site]) for part in parts]
        more = [""] * len(whys)
        waiting = np.flatnonzero(np.array([name.startswith("waits for route") for name in names])[whys])
        texts = waits(parts, by_part, device, site, core, ends[waiting], numbers)
        for number, text in zip(waiting.tolist(), texts, strict=True):
            more[number] = text
        named = map(names.__getitem__, whys.tolist())
        yield from _rows(site.strip(), f"core ({core[0]}, {core[1]})", named, begins, ends, more, device, numbers)
    for track in _of_links(links, parts, device, end, numbers):
        yield from _rows(f"links {track.site.strip()}", *track[1:], device, numbers)


@contextmanager
def uncollected() -> Iterator[None]:
    """Nothing is looked through for circles meanwhile: a trace's steps are hundreds of thousands, and have none."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _path(steps: "Sequence[PathStep]") -> tuple[list[str], np.ndarray, np.ndarray, list[str]]:
    """Names, begins, ends and further arguments of the critical path."""
    sites = {step.site: json.dumps(step.site.strip()) for step in steps}
    more = [
        f', "core": [{step.core[0]}, {step.core[1]}], "site": {sites[step.site]}'
        + "".join([f', "{key}": {value!r}' for key, value in step.more.items()]) for step in steps
    ]  # fmt: skip
    begins, ends = (np.array([step[at] for step in steps], float) for at in (1, 2))
    return [step.name for step in steps], begins, ends, more


def _rows(
    process: str, track: str, names: Iterable[str], begins: np.ndarray, ends: np.ndarray, more: Iterable[str],
    device: Device, numbers: Numbers,
) -> Iterator[str]:  # fmt: skip
    return rows_of(process, track, names, begins, ends - begins, 1e6 / device.clock_hz, more, numbers)


def _of_links(
    shares: Sequence[Mapping[str, Any]], parts: "Sequence[BlockEvents]", device: Device, end: float, numbers: Numbers
) -> "Iterable[LinkTrack]":
    """When chosen links were busy."""
    if not shares:
        return ()
    from meshrt.mesh.look.busylinks import link_tracks
    from meshrt.mesh.look.criticalpath import journal_of

    exchanges = {(part.number, exchange.number): (part, exchange) for part in parts for exchange in part.exchanges}
    journals = {key: journal_of(parts, part, exchange, device) for key, (part, exchange) in exchanges.items()}
    return link_tracks(shares, journals, device, end, numbers)


def _event(process: str, track: str, step: TimelineStep, device: Device) -> dict[str, Any]:
    name, begin, end = step
    scale = 1e6 / device.clock_hz
    return {"name": name, "ph": "X", "pid": process, "tid": track, "ts": scale * begin, "dur": scale * (end - begin),
            "args": {"begin": begin, "cycles": end - begin}}  # fmt: skip
