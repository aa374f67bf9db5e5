"""The critical path of a run, followed back from its end: steps that lie end to end, and add up to the makespan.

The core that ended last was at work, or waited for a packet, or for the last core of a phase. What it waited for leads
to another core at the time when that one sent, and so on back to the begin. Every core's past is there (past.py).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from meshrt.mesh.device import Device
from meshrt.mesh.past import MEETS, Event


class PathStep(NamedTuple):
    """Of the path, on a core (x, y) of a site: what, from when to when, in cycles, and more of packets (`reasons`)."""

    name: str
    begin: float
    end: float
    site: str
    core: tuple[int, int]
    more: dict[str, Any]


class Part(NamedTuple):
    """One rank's cores of a site, their events, and their times after each, [cores, events]."""

    site: str
    number: int
    corner: tuple[int, int]
    shape: tuple[int, int]
    width: int
    events: Sequence[Event]
    busy: dict[int, float]
    moments: np.ndarray
    times: np.ndarray


def parts_of(shares: Sequence[dict[str, Any]]) -> list[Part]:
    """What all ranks' `Past.share` say."""
    parts = []
    for share in shares:
        events = share["events"]
        cores = share["shape"][0] * share["shape"][1]
        times = np.array([event.times for event in events]).T.copy() if events else np.zeros((cores, 0))
        parts.append(Part(**share, moments=np.array([event.moment for event in events], np.int64), times=times))
    return sorted(parts, key=lambda part: (part.number, part.corner[::-1]))


def follow(parts: Sequence[Part], device: Device, end: float) -> list[PathStep]:
    """The steps of the path, first to last, up to `end`, the makespan in cycles."""
    at, core, time = _last(parts, None)
    steps = [PathStep("not kept", time, end, parts[at].site, _place(parts[at], core), {})] if end > time else []
    limit = len(parts[at].events)
    while time > 0:
        part = parts[at]
        number = int(np.searchsorted(part.times[core, :limit], time, "left"))
        event = part.events[number]
        before = float(part.times[core, number - 1]) if number else 0.0
        place = _place(part, core)
        if event.name == MEETS:
            other = _waited_for(parts, event, time)
            if other is not None and other != (at, core):
                at, core = other
                limit = _until(parts[at], event.sent)
                continue
        source = None if event.sources is None else _source(parts, part, int(event.sources[core]), event.sent)
        if source is not None and 0 <= source[2] < time:
            there, sender, left = source
            more = reasons(part, event, core, (there, _place(parts[there], sender)), left, time, device)
            steps.append(
                PathStep(f"packet, {event.name.removeprefix('waits for ')}", left, time, part.site, place, more)
            )
            at, core, time, limit = there, sender, left, _until(parts[there], event.sent)
            continue
        if steps and steps[-1][0] == event.name and steps[-1].core == place and steps[-1].begin == time:
            steps[-1] = steps[-1]._replace(begin=before)
        else:
            steps.append(PathStep(event.name, before, time, part.site, place, {}))
        time, limit = before, number
    return steps[::-1]


def reasons(
    part: Part, event: Event, core: int, source: tuple[int, tuple[int, int]], left: float, time: float, device: Device
) -> dict[str, Any]:
    """Where the cycles of a packet went: hops, busy links and the sender's ramp, a busy ramp at its end, the tail."""
    (x, y), (u, v) = _place(part, core), source[1]
    hops, busy = abs(x - u) + abs(y - v), part.busy.get(event.sent, 0.0)
    more: dict[str, Any] = {"from": [u, v], "hops": hops, "left": left}
    if event.asked is None or not np.isfinite(event.asked[core]):
        return more
    asked = float(event.asked[core])
    tail = min(busy, time - asked)
    return more | {
        "on_the_way": hops * device.alpha, "links": max(0.0, asked - left - hops * device.alpha),
        "ramp": time - asked - tail, "tail": tail,
    }  # fmt: skip


def waited(parts: Sequence[Part], device: Device, site: str, core: tuple[int, int], end: float) -> dict[str, Any]:
    """Of the wait of a core that ended then: for whom, and why it took so long; empty where that is not known."""
    for part in parts:
        x, y = core[0] - part.corner[0], core[1] - part.corner[1]
        if part.site != site or not (0 <= x < part.shape[1] and 0 <= y < part.shape[0]):
            continue
        at = y * part.shape[1] + x
        number = int(np.searchsorted(part.times[at], end, "left"))
        if number == len(part.events) or part.times[at, number] != end:
            continue
        event = part.events[number]
        source = None if event.sources is None else _source(parts, part, int(event.sources[at]), event.sent)
        if source is None:
            continue
        there, sender, left = source
        before = float(part.times[at, number - 1]) if number else 0.0
        more = reasons(part, event, at, (there, _place(parts[there], sender)), left, end, device)
        return more | {"data": max(0.0, left - before)}
    return {}


def _place(part: Part, core: int) -> tuple[int, int]:
    y, x = divmod(core, part.shape[1])
    return part.corner[0] + x, part.corner[1] + y


def _until(part: Part, moment: int) -> int:
    """How many of its events were before the transfer or meeting of that number."""
    return int(np.searchsorted(part.moments, moment, "right"))


def _source(parts: Sequence[Part], part: Part, core: int, sent: int) -> tuple[int, int, float] | None:
    """(part, core of it, its time then) of the core of that number of the mesh when a transfer was sent."""
    if core < 0:
        return None
    y, x = divmod(core, part.width)
    for at, other in enumerate(parts):
        u, v = x - other.corner[0], y - other.corner[1]
        if other.number == part.number and 0 <= u < other.shape[1] and 0 <= v < other.shape[0]:
            index, until = v * other.shape[1] + u, _until(other, sent)
            return at, index, float(other.times[index, until - 1]) if until else 0.0
    return None


def _last(parts: Sequence[Part], moment: int | None) -> tuple[int, int, float]:
    """(part, core, time) of the core that was last then; the first in order of sites, rows, columns where several."""
    best: tuple[float, int, int, int, int, int] | None = None
    for at, part in enumerate(parts):
        until = len(part.events) if moment is None else _until(part, moment)
        times = part.times[:, until - 1] if until else np.zeros(len(part.times))
        for core in np.flatnonzero(times == times.max()):
            x, y = _place(part, int(core))
            found = (-float(times[core]), part.number, y, x, at, int(core))
            best = found if best is None or found < best else best
    assert best is not None
    return best[4], best[5], -best[0]


def _waited_for(parts: Sequence[Part], event: Event, time: float) -> tuple[int, int] | None:
    """The core that was the last at a meeting, if it is one that is looked at."""
    at, core, then = _last(parts, event.sent)
    return (at, core) if then == time else None
