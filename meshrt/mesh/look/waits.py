"""For whom each wait of a core was, and where its cycles went: arguments of a trace's events, all of a core at once."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshrt.mesh.device import Device
from meshrt.mesh.look.criticalpath import BlockEvents
from meshrt.mesh.look.past import UNIT
from meshrt.reports.trace import Numbers

TOGETHER = 512  # events whose packets are looked up in one, fewer of blocks with more than so many numbers for these
NUMBERS = 1 << 22


class Waited(NamedTuple):
    """Of one core of a part, by the number of the event: whose packet it took over, y * width + x of the mesh (-1: none
    that is known), of how many hops (-1: those between the two), and when that asked for the ramp (nan: not known).
    """

    senders: np.ndarray
    hops: np.ndarray
    asked_at: np.ndarray


def waited(part: BlockEvents, cores: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Waited]:
    """Of those of the cores (x, y) of the mesh that the part has."""
    row_of = {(x, y): (y - part.corner[1]) * part.shape[1] + x - part.corner[0] for x, y in cores
              if 0 <= x - part.corner[0] < part.shape[1] and 0 <= y - part.corner[1] < part.shape[0]}  # fmt: skip
    indices = np.array([*row_of.values()], np.int64)
    shape = len(indices), len(part.events)
    senders, hops, asked_at = np.full(shape, -1, np.int64), np.full(shape, -1, np.int64), np.full(shape, np.nan)
    events = part.events
    waits = [number for number, signed in enumerate(events.stages) if signed is not None] if row_of else []
    chosen: dict[int, np.ndarray] = {}  # of `landed`, few, one of each kind of transfer: what is of these cores
    none = np.full((2, len(indices)), -1)
    together = max(1, min(TOGETHER, NUMBERS // len(part.times)))
    for low in range(0, len(waits), together):
        at = waits[low : low + together]
        signed = b"".join([events.stages[number] or b"" for number in at])
        stages = np.frombuffer(signed).reshape(len(at), -1)[:, indices]
        senders[:, at] = (np.rint((stages - np.floor(stages)) / UNIT) - 1).T
        landed = [events.landed[number] for number in at]
        for entry in landed:
            if id(entry) not in chosen:
                chosen[id(entry)] = entry[:, indices] if isinstance(entry, np.ndarray) else none
        lands = np.stack([chosen[id(entry)] for entry in landed], axis=-1)
        hops[:, at] = lands[0]
        asks = [np.zeros(0) if ask is None else ask for number in at for ask in (events.asked_at[number],)]
        lengths = np.array([len(ask) for ask in asks])
        is_known = (lands[1] >= 0) & (lengths > 0)
        times = np.append(np.concatenate(asks), np.nan)
        asked_at[:, at] = times[np.where(is_known, lengths.cumsum() - lengths + lands[1], -1)]
    return {core: Waited(senders[row], hops[row], asked_at[row]) for row, core in enumerate(row_of)}


def waits(
    parts: Sequence[BlockEvents], by_part: Sequence[dict[tuple[int, int], Waited]], device: Device, site: str,
    core: tuple[int, int], ends: np.ndarray, numbers: Numbers,
) -> list[str]:  # fmt: skip
    """Of the waits of a core (x, y) that ended then, float64 [waits]: JSON that follows others; empty where for whom is
    not known. `by_part`: `waited` of each part.
    """
    texts = [""] * len(ends)
    for part, by_core in zip(parts, by_part, strict=True):
        if part.site == site and core in by_core:
            for at, text in _of_part(parts, part, by_core[core], device, core, ends, numbers):
                texts[at] = texts[at] or text
    return texts


def _of_part(
    parts: Sequence[BlockEvents], part: BlockEvents, of_core: Waited, device: Device, core: tuple[int, int],
    ends: np.ndarray, numbers: Numbers,
) -> "zip[tuple[int, str]]":  # fmt: skip
    """(which, text) of the waits that this part knows."""
    (x, y), corner = core, part.corner
    times = np.append(part.times[(y - corner[1]) * part.shape[1] + x - corner[0]], np.inf)
    event_of = times.searchsorted(ends)
    before = np.where(event_of > 0, times[event_of - 1], 0.0)
    senders = np.append(of_core.senders, -1)[event_of]
    chosen = np.flatnonzero((times[event_of] == ends) & (before != ends) & (senders >= 0))
    at, senders, before, time = event_of[chosen], senders[chosen], before[chosen], ends[chosen]
    v, u = np.divmod(senders, part.width)
    sent = np.array([part.events.sent[number] for number in at.tolist()], np.int64)
    left = _left(parts, part, senders, sent)
    hops, asked_at = of_core.hops[at], of_core.asked_at[at]
    hops = np.where(hops < 0, abs(x - u) + abs(y - v), hops)
    busy = np.array([part.busy.get(number, 0.0) for number in sent.tolist()])
    tail = np.minimum(busy, time - asked_at)
    on_the_way = hops * device.alpha
    links = np.maximum(0.0, asked_at - left - on_the_way)
    ways = ((senders << 32) + hops).tolist()
    from_whom = {way: f', "from": [{(way >> 32) % part.width}, {(way >> 32) // part.width}], "hops": {way & 0xFFFFFFFF}'
                 for way in set(ways)}  # fmt: skip
    columns = map(numbers.column, (on_the_way, links, time - asked_at - tail, tail, np.maximum(0.0, left - before)))
    rows = zip(map(from_whom.__getitem__, ways), map(repr, left.tolist()), *columns, strict=True)
    texts = [
        f'{way}, "left": {sent}, "on_the_way": {flown}, "links": {link}, "ramp": {ramp}, "tail": {tail}, "data": {data}'
        if ramp != "nan"
        else f'{way}, "left": {sent}, "data": {data}'
        for way, sent, flown, link, ramp, tail, data in rows
    ]
    return zip(chosen.tolist(), texts, strict=True)


def _left(parts: Sequence[BlockEvents], part: BlockEvents, senders: np.ndarray, sent: np.ndarray) -> np.ndarray:
    """The time of each core, of the mesh that a part is of, when it sent its packet of that transfer."""
    y, x = np.divmod(senders, part.width)
    left = np.zeros(len(senders))
    for other in parts:
        u, v = x - other.corner[0], y - other.corner[1]
        inside = np.flatnonzero((u >= 0) & (u < other.shape[1]) & (v >= 0) & (v < other.shape[0]))
        if other.number == part.number and len(inside):
            until = np.array(other.until)[np.minimum(sent[inside], len(other.until) - 1)]
            times = other.times[v[inside] * other.shape[1] + u[inside], until - 1] if len(other.events) else 0.0
            left[inside] = np.where(until > 0, times, 0.0)
    return left
