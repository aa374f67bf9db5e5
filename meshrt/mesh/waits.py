"""For whom each wait of a core was, and where its cycles went: arguments of a trace's events, all of a core at once."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshrt.mesh.criticalpath import Part
from meshrt.mesh.device import Device
from meshrt.mesh.past import UNIT
from meshrt.ranks.trace import Numbers

TOGETHER = 512  # events whose packets are looked up in one, fewer of blocks with more than so many numbers for these
NUMBERS = 1 << 22


class Waited(NamedTuple):
    """Of one core of a part, by the number of the event: whose packet it took over, y * width + x of the mesh (-1: none
    that is known), of how many hops (-1: those between the two), and when that asked for the ramp (nan: not known).
    """

    senders: np.ndarray
    hops: np.ndarray
    asked: np.ndarray


def waited(part: Part, cores: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Waited]:
    """Of those of the cores (x, y) of the mesh that the part has."""
    places = {(x, y): (y - part.corner[1]) * part.shape[1] + x - part.corner[0] for x, y in cores
              if 0 <= x - part.corner[0] < part.shape[1] and 0 <= y - part.corner[1] < part.shape[0]}  # fmt: skip
    here = np.array([*places.values()], np.int64)
    shape = len(here), len(part.events)
    senders, hops, asked = np.full(shape, -1, np.int64), np.full(shape, -1, np.int64), np.full(shape, np.nan)
    events = part.events
    waits = [number for number, signed in enumerate(events.stages) if signed is not None] if places else []
    chosen: dict[int, np.ndarray] = {}  # of `landed`, few, one of each kind of transfer: what is of these cores
    none = np.full((2, len(here)), -1)
    together = max(1, min(TOGETHER, NUMBERS // len(part.times)))
    for low in range(0, len(waits), together):
        at = waits[low : low + together]
        signed = b"".join([events.stages[number] or b"" for number in at])
        stages = np.frombuffer(signed).reshape(len(at), -1)[:, here]
        senders[:, at] = (np.rint((stages - np.floor(stages)) / UNIT) - 1).T
        landed = [events.landed[number] for number in at]
        for one in landed:
            if id(one) not in chosen:
                chosen[id(one)] = one[:, here] if isinstance(one, np.ndarray) else none
        lands = np.stack([chosen[id(one)] for one in landed], axis=-1)
        hops[:, at] = lands[0]
        asks = [np.zeros(0) if found is None else found for number in at for found in (events.asked[number],)]
        lengths = np.array([len(one) for one in asks])
        known = (lands[1] >= 0) & (lengths > 0)
        times = np.append(np.concatenate(asks), np.nan)
        asked[:, at] = times[np.where(known, lengths.cumsum() - lengths + lands[1], -1)]
    return {core: Waited(senders[row], hops[row], asked[row]) for row, core in enumerate(places)}


def waits(
    parts: Sequence[Part], known: Sequence[dict[tuple[int, int], Waited]], device: Device, site: str,
    core: tuple[int, int], ends: np.ndarray, numbers: Numbers,
) -> list[str]:  # fmt: skip
    """Of the waits of a core (x, y) that ended then, float64 [waits]: JSON that follows others; empty where for whom is
    not known. `known`: `waited` of each part.
    """
    found = [""] * len(ends)
    for part, here in zip(parts, known, strict=True):
        if part.site == site and core in here:
            for at, text in _of_part(parts, part, here[core], device, core, ends, numbers):
                found[at] = found[at] or text
    return found


def _of_part(
    parts: Sequence[Part], part: Part, known: Waited, device: Device, core: tuple[int, int], ends: np.ndarray,
    numbers: Numbers,
) -> "zip[tuple[int, str]]":  # fmt: skip
    """(which, text) of the waits that this part knows."""
    (x, y), corner = core, part.corner
    times = np.append(part.times[(y - corner[1]) * part.shape[1] + x - corner[0]], np.inf)
    event_of = times.searchsorted(ends)
    before = np.where(event_of > 0, times[event_of - 1], 0.0)
    senders = np.append(known.senders, -1)[event_of]
    chosen = np.flatnonzero((times[event_of] == ends) & (before != ends) & (senders >= 0))
    at, senders, before, time = event_of[chosen], senders[chosen], before[chosen], ends[chosen]
    v, u = np.divmod(senders, part.width)
    sent = np.array([part.events.sent[number] for number in at.tolist()], np.int64)
    left = _left(parts, part, senders, sent)
    hops, asked = known.hops[at], known.asked[at]
    hops = np.where(hops < 0, abs(x - u) + abs(y - v), hops)
    busy = np.array([part.busy.get(number, 0.0) for number in sent.tolist()])
    tail = np.minimum(busy, time - asked)
    on_the_way = hops * device.alpha
    links = np.maximum(0.0, asked - left - on_the_way)
    ways = ((senders << 32) + hops).tolist()
    from_whom = {way: f', "from": [{(way >> 32) % part.width}, {(way >> 32) // part.width}], "hops": {way & 0xFFFFFFFF}'
                 for way in set(ways)}  # fmt: skip
    columns = map(numbers.column, (on_the_way, links, time - asked - tail, tail, np.maximum(0.0, left - before)))
    rows = zip(map(from_whom.__getitem__, ways), map(repr, left.tolist()), *columns, strict=True)
    texts = [
        f'{way}, "left": {sent}, "on_the_way": {flown}, "links": {link}, "ramp": {ramp}, "tail": {tail}, "data": {data}'
        if ramp != "nan"
        else f'{way}, "left": {sent}, "data": {data}'
        for way, sent, flown, link, ramp, tail, data in rows
    ]
    return zip(chosen.tolist(), texts, strict=True)


def _left(parts: Sequence[Part], part: Part, senders: np.ndarray, sent: np.ndarray) -> np.ndarray:
    """The time of each core, of the mesh that a part is of, when it sent its packet of that transfer."""
    y, x = np.divmod(senders, part.width)
    left = np.zeros(len(senders))
    for other in parts:
        u, v = x - other.corner[0], y - other.corner[1]
        here = np.flatnonzero((u >= 0) & (u < other.shape[1]) & (v >= 0) & (v < other.shape[0]))
        if other.number == part.number and len(here):
            until = np.array(other.until)[np.minimum(sent[here], len(other.until) - 1)]
            times = other.times[v[here] * other.shape[1] + u[here], until - 1] if len(other.events) else 0.0
            left[here] = np.where(until > 0, times, 0.0)
    return left
