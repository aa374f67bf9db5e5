"""The critical path of a run, followed back from its end: steps that lie end to end, and add up to the makespan.

The core that ended last was at work, or waited for a packet, or for the last core of a phase. What it waited for leads
to another core at the time when that one sent, and so on back to the begin. Every core's past is there (past.py).
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import floor
from typing import Any, NamedTuple

import numpy as np

from meshrt.mesh.device import Device
from meshrt.mesh.exchange.retrace import Begun, Journal, journal
from meshrt.mesh.look.past import HANDS, MEETS, UNIT, Events, Last

TOGETHER = 256  # events whose times are put in place in one


class PathStep(NamedTuple):
    """Of the path, on a core (x, y) of a site: what, from when to when, in cycles, and more of packets (`reasons`)."""

    name: str
    begin: float
    end: float
    site: str
    core: tuple[int, int]
    more: dict[str, Any]


class BlockEvents(NamedTuple):
    """One rank's cores of a site, their events, and their times after each, [cores, events]."""

    site: str
    number: int
    corner: tuple[int, int]
    shape: tuple[int, int]
    width: int
    events: Events
    busy: dict[int, float]
    exchanges: Sequence[Begun]
    moments: np.ndarray
    times: np.ndarray
    meets: Sequence[int]  # which of the events are meetings
    until: Sequence[int]  # how many of them were before each moment was over


def parts_of(shares: Sequence[dict[str, Any]]) -> list[BlockEvents]:
    """What all ranks' `Past.share` say."""
    parts = []
    for share in shares:
        events = share["events"]
        cores = share["shape"][0] * share["shape"][1]
        times = np.empty((cores, len(events)))
        for low in range(0, len(events), TOGETHER):
            chunk = b"".join(events.times[low : low + TOGETHER])
            times[:, low : low + TOGETHER] = np.frombuffer(chunk).reshape(-1, cores).T
        moments = np.array(events.moments, np.int64)
        meets = [number for number, name in enumerate(events.names) if name == MEETS]
        until = np.searchsorted(moments, np.arange(moments.max(initial=0) + 1), "right").tolist()
        parts.append(BlockEvents(**share, moments=moments, times=times, meets=meets, until=until))
    return sorted(parts, key=lambda part: (part.number, part.corner[::-1]))


def follow(
    parts: Sequence[BlockEvents], lasts: Sequence[Mapping[int, Last]], device: Device, end: float
) -> list[PathStep]:
    """The steps of the path, first to last, up to `end`, the makespan in cycles. `lasts`: `Moments.lasts`, by rank."""
    at, core, time = _end(parts)
    steps = [PathStep("not kept", time, end, parts[at].site, _xy(parts[at], core), {})] if end > time else []
    limit = len(parts[at].events)
    while time > 0:
        part = parts[at]
        number = int(part.times[core, :limit].searchsorted(time))
        met = bisect_left(part.meets, limit) - 1
        if met >= 0 and part.meets[met] >= number:  # the last to be there may be another, also for a core that was
            sent = part.events.sent[part.meets[met]]
            other = _waited_for(parts, lasts, sent, time)
            if other is not None:
                at, core = other
                limit = _until(parts[at], sent)
                continue
        name, landed = part.events.names[number], part.events.landed[number]
        before = float(part.times[core, number - 1]) if number else 0.0
        xy = _xy(part, core)
        if name == HANDS and part.exchanges:
            exchange = next(each for each in part.exchanges[::-1] if each.number < part.events.moments[number])
            exchange_steps, begun = _through(parts, part, exchange, (xy[1] * part.width + xy[0], time), device)
            steps += exchange_steps
            at, core = _find(parts, part, begun[0])
            time, limit = begun[1], _until(parts[at], exchange.number)
            continue
        source = _source(parts, part, core, number)
        if source is not None and 0 <= source[2] < time:
            sender_part, sender, left = source
            more = reasons(part, number, core, (sender_part, _xy(parts[sender_part], sender)), left, time, device)
            steps.append(PathStep(f"packet, {name.removeprefix('waits for ')}", left, time, part.site, xy, more))
            at, core, time, limit = sender_part, sender, left, _until(parts[sender_part], part.events.sent[number])
            continue
        if steps and steps[-1][0] == name and steps[-1].core == xy and steps[-1].begin == time:
            steps[-1] = steps[-1]._replace(begin=before)
        else:
            steps.append(PathStep(name, before, time, part.site, xy, {}))
        if isinstance(landed, int) and landed:
            steps[-1] = steps[-1]._replace(more={"hops": landed + steps[-1].more.get("hops", 0)})
        time, limit = before, number
    return steps[::-1]


def reasons(
    part: BlockEvents, number: int, core: int, source: tuple[int, tuple[int, int]], left: float, time: float,
    device: Device,
) -> dict[str, Any]:  # fmt: skip
    """Where the cycles of a packet went: hops, busy links and the sender's ramp, a busy ramp at its end, the tail."""
    (x, y), (u, v) = _xy(part, core), source[1]
    landed, asks = part.events.landed[number], part.events.asked_at[number]
    busy = part.busy.get(part.events.sent[number], 0.0)
    if isinstance(landed, np.ndarray):
        hops, packet = landed[:, core].tolist()
    else:
        hops, packet = abs(x - u) + abs(y - v), -1
    more: dict[str, Any] = {"from": [u, v], "hops": hops, "left": left}
    if asks is None or packet < 0:
        return more
    asked_at = float(asks[packet])
    tail = min(busy, time - asked_at)
    return more | {
        "on_the_way": hops * device.alpha, "links": max(0.0, asked_at - left - hops * device.alpha),
        "ramp": time - asked_at - tail, "tail": tail,
    }  # fmt: skip


def _xy(part: BlockEvents, core: int) -> tuple[int, int]:
    y, x = divmod(core, part.shape[1])
    return part.corner[0] + x, part.corner[1] + y


def _until(part: BlockEvents, moment: int) -> int:
    """How many of its events were before the transfer or meeting of that number."""
    return part.until[min(moment, len(part.until) - 1)]


def _source(parts: Sequence[BlockEvents], part: BlockEvents, core: int, number: int) -> tuple[int, int, float] | None:
    """(part, core of it, its time when it sent) of whose packet a core waited for at an event; None: for none."""
    signed, before = part.events.stages[number], part.times[core, number - 1] if number else 0.0
    if signed is None or part.times[core, number] == before:
        return None
    stages: float = memoryview(signed).cast("d")[core]
    sender = round((stages - floor(stages)) / UNIT) - 1
    if sender < 0:
        return None
    at, index = _find(parts, part, sender)
    until = _until(parts[at], part.events.sent[number])
    return at, index, float(parts[at].times[index, until - 1]) if until else 0.0


def _find(parts: Sequence[BlockEvents], part: BlockEvents, core: int) -> tuple[int, int]:
    """(part, core of it) of the core of that number of the mesh that a part is of."""
    y, x = divmod(core, part.width)
    for at, other in enumerate(parts):
        u, v = x - other.corner[0], y - other.corner[1]
        if other.number == part.number and 0 <= u < other.shape[1] and 0 <= v < other.shape[0]:
            return at, v * other.shape[1] + u
    raise ValueError(f"no rank has core {core} of {part.site}")


def _end(parts: Sequence[BlockEvents]) -> tuple[int, int, float]:
    """(part, core, time) of a core that was last in the end."""
    ends = [(part.times[:, -1] if len(part.events) else np.zeros(len(part.times))) for part in parts]
    at = max(range(len(parts)), key=lambda at: float(ends[at].max()))
    return at, int(np.argmax(ends[at])), float(ends[at].max())


def _waited_for(
    parts: Sequence[BlockEvents], lasts: Sequence[Mapping[int, Last]], moment: int, time: float
) -> tuple[int, int] | None:
    """(part, core) of the core that was the last at a meeting, if that is known."""
    last = max((of_rank[moment] for of_rank in lasts if moment in of_rank), default=None)
    if last is None or last.time != time:
        return None
    number, y, x = (-part for part in last.core)
    part = next(part for part in parts if part.number == number)
    return _find(parts, part, y * part.width + x)


def _through(
    parts: Sequence[BlockEvents], part: BlockEvents, exchange: Begun, end: tuple[int, float], device: Device
) -> tuple[list[PathStep], tuple[int, float]]:
    """The steps, last to first, that led to a core's time in an exchange: (core, time), and to which at its begin."""
    core, time = end
    did = journal_of(parts, part, exchange, device).last.get(core)
    assert did is not None and did.after == time
    steps = []
    while did is not None:
        y, x = divmod(core, part.width)
        if did.after > did.begin:
            steps.append(PathStep("relays or adds a packet", did.begin, did.after, part.site, (x, y), {}))
        if did.hop is None:
            time, did = did.begin, did.before
            continue
        hop = did.hop
        v, u = divmod(hop.source, part.width)
        more = {
            "from": [u, v], "hops": 1, "left": hop.ready, "on_the_way": device.alpha, "links": hop.left - hop.ready,
            "ramp": hop.came - hop.busy - hop.asked_at, "tail": hop.busy,
        }  # fmt: skip
        steps.append(PathStep("packet, exchange", hop.ready, hop.came, part.site, (x, y), more))
        core, time, did = hop.source, hop.ready, hop.behind
    return steps, (core, time)


def journal_of(parts: Sequence[BlockEvents], part: BlockEvents, exchange: Begun, device: Device) -> Journal:
    """All of an exchange, of all ranks' cores."""
    mine = [other for other in parts if other.number == part.number]
    height = max(other.corner[1] + other.shape[0] for other in mine)
    cells = np.zeros((len(exchange.cells), height, part.width))
    for other in mine:
        (x, y), (rows, columns) = other.corner, other.shape
        begun = next(each for each in other.exchanges if each.number == exchange.number)
        cells[:, y : y + rows, x : x + columns] = begun.cells.reshape(-1, rows, columns)
    return journal(part.width, height, cells.reshape(len(cells), -1), exchange.parts, device)
