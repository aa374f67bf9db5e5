"""For whom each wait of a core was, and where its cycles went: arguments of a trace's events, all of a core at once."""

from collections.abc import Sequence
from struct import Struct

import numpy as np

from meshrt.mesh.criticalpath import Part
from meshrt.mesh.device import Device
from meshrt.mesh.past import UNIT
from meshrt.ranks.trace import Numbers

NUMBER = Struct("d")


def waits(
    parts: Sequence[Part], device: Device, site: str, core: tuple[int, int], ends: np.ndarray, numbers: Numbers
) -> list[str]:
    """Of the waits of a core (x, y) that ended then, float64 [waits]: JSON that follows others; empty where for whom is
    not known.
    """
    found = [""] * len(ends)
    for part in parts:
        x, y = core[0] - part.corner[0], core[1] - part.corner[1]
        if part.site == site and 0 <= x < part.shape[1] and 0 <= y < part.shape[0]:
            for at, text in _of_part(parts, part, device, y * part.shape[1] + x, ends, numbers):
                found[at] = found[at] or text
    return found


def _of_part(
    parts: Sequence[Part], part: Part, device: Device, core: int, ends: np.ndarray, numbers: Numbers
) -> list[tuple[int, str]]:
    """(which, text) of the waits that this part knows, of its core of that number."""
    times = np.append(part.times[core], np.inf)
    event_of = times.searchsorted(ends)
    before = np.where(event_of > 0, times[event_of - 1], 0.0)
    chosen = [
        at for at in np.flatnonzero((times[event_of] == ends) & (before != ends)).tolist()
        if part.events[event_of[at]].stages is not None
    ]  # fmt: skip
    events = [part.events[number] for number in event_of[chosen].tolist()]
    stages = np.array([NUMBER.unpack_from(event.stages or b"", 8 * core)[0] for event in events], float)
    senders = np.rint((stages - np.floor(stages)) / UNIT).astype(np.int64) - 1
    known = np.flatnonzero(senders >= 0)
    if not len(known):
        return []
    chosen, events = [chosen[at] for at in known], [events[at] for at in known]
    senders, before, time = senders[known], before[chosen], ends[chosen]
    (v, u), left = np.divmod(senders, part.width), _left(parts, part, senders, [event.sent for event in events])
    x, y = core % part.shape[1] + part.corner[0], core // part.shape[1] + part.corner[1]
    landed = {id(event.landed): event.landed for event in events}  # few: one of each kind of transfer
    lands = {at: (int(one[0, core]), int(one[1, core])) for at, one in landed.items() if isinstance(one, np.ndarray)}
    apart = (abs(x - u) + abs(y - v)).tolist()
    ways = [lands.get(id(event.landed), (far, -1)) for event, far in zip(events, apart, strict=True)]
    hops = np.array([hops for hops, _ in ways])
    asked = np.array([
        float("nan") if event.asked is None or packet < 0 else event.asked[packet]
        for event, (_, packet) in zip(events, ways, strict=True)
    ])  # fmt: skip
    busy = np.array([part.busy.get(event.sent, 0.0) for event in events])
    tail = np.minimum(busy, time - asked)
    on_the_way = hops * device.alpha
    links = np.maximum(0.0, asked - left - on_the_way)
    ways_on = list(zip(u.tolist(), v.tolist(), hops.tolist(), strict=True))
    from_whom = {way: f', "from": [{way[0]}, {way[1]}], "hops": {way[2]}' for way in set(ways_on)}
    columns = map(numbers.column, (on_the_way, links, time - asked - tail, tail, np.maximum(0.0, left - before)))
    rows = zip(map(from_whom.__getitem__, ways_on), map(repr, left.tolist()), *columns, strict=True)
    texts = [
        f'{way}, "left": {sent}, "on_the_way": {flown}, "links": {link}, "ramp": {ramp}, "tail": {tail}, "data": {data}'
        if ramp != "nan"
        else f'{way}, "left": {sent}, "data": {data}'
        for way, sent, flown, link, ramp, tail, data in rows
    ]
    return list(zip(chosen, texts, strict=True))


def _left(parts: Sequence[Part], part: Part, senders: np.ndarray, sent: list[int]) -> np.ndarray:
    """The time of each core, of the mesh that a part is of, when it sent its packet of that transfer."""
    y, x = np.divmod(senders, part.width)
    left = np.zeros(len(senders))
    for other in parts:
        u, v = x - other.corner[0], y - other.corner[1]
        here = np.flatnonzero((u >= 0) & (u < other.shape[1]) & (v >= 0) & (v < other.shape[0]))
        if other.number == part.number and len(here):
            until = np.array(other.until)[np.minimum(np.array(sent)[here], len(other.until) - 1)]
            times = other.times[v[here] * other.shape[1] + u[here], until - 1] if other.events else 0.0
            left[here] = np.where(until > 0, times, 0.0)
    return left
