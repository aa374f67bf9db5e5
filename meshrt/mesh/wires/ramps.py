"""The ramps that packets are delivered by: given out to the head that asks first, when a core has to know.

Which of two heads asks first for the ramp of a core is known when both transfers have been started, and that can be in
either order. So ramps are given out as late as can be: when a core waits for a packet, its ramp goes to that packet and
to all before it that asked no later; of those that asked together, to that of the transfer that was started first.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.mesh.cores import Cores
from meshrt.mesh.mesh import RAMP
from meshrt.mesh.wires import heads, order, together
from meshrt.mesh.wires.lines import Index
from meshrt.mesh.wires.strides import ramps_of, strides_of

if TYPE_CHECKING:
    from meshrt.mesh.wires.replay import Arrival

FEW = 8  # a transfer that at most one core in so many waits for is looked at there alone


def serve_all(block: Cores, arrivals: "list[Arrival]") -> None:
    """As `serve` for one after the other: where a core waits for all that comes, it gets all in the order of asking."""
    coming = block.clock.coming
    if block.core is not None and _serve_block(block, arrivals):
        return
    if len(arrivals) > 1 and arrivals == coming:
        if together.serve(block, arrivals):
            coming.clear()
            return
        if len(coming) == 2 and _alike(block, *coming):
            _serve_both(block, coming)
            return
    for arrival in arrivals:
        serve(block, arrival)


def _serve_block(block: Cores, arrivals: "list[Arrival]") -> bool:
    """The same by the compiled core, where all that comes is waited for. False, and nothing is done, elsewhere."""
    waiting = [arrival for arrival in arrivals if not arrival.is_served]
    if waiting != block.clock.coming or any(arrival.served is not None for arrival in waiting):
        return False
    if waiting:
        packets = list[Any]()
        for arrival in waiting:
            packets += strides_of(block, arrival.lane).places, arrival.landing.address, *arrival.passage.pace
            arrival.is_served = True
        if counted := block.core.serve(ramps_of(block), *packets):
            order.count(block, *counted)
        block.clock.coming.clear()
    return True


def serve(block: Cores, arrival: "Arrival", chosen: np.ndarray | None = None) -> None:
    """Turn asks into arrivals: `arrival.landing.time` is then when cores have what they wait for.

    `chosen` (bool, what `landing.time` broadcasts with) are the cores that wait; None: all that get a packet.
    """
    coming = block.clock.coming
    if arrival.is_served:
        return
    if len(coming) > 1:
        y, x = _early(block, arrival, chosen)
        if len(y):
            _serve_in_turn(block, arrival, y, x)
    _serve_alone(block, arrival, chosen)
    if arrival.is_served:
        coming.remove(arrival)


def _alike(block: Cores, first: "Arrival", second: "Arrival") -> bool:
    """Do both transfers bring every core a packet, of the same size?"""
    return (
        first.served is second.served is None
        and first.passage.taking == second.passage.taking
        and first.passage.tail == second.passage.tail
        and first.landing.time.size == second.landing.time.size == block.shape[0] * block.shape[1]
    )


def _serve_both(block: Cores, coming: "list[Arrival]") -> None:
    """Every core gets a packet of each of two transfers: the one that asks first is served first."""
    first, second = (_asks(block, arrival) for arrival in coming)
    ramps = block.clock.ramp_in, block.clock.asked_at[RAMP], block.clock.idle[RAMP]
    passage, swapped = coming[0].passage, second < first
    soon, late = np.minimum(first, second), np.maximum(first, second)
    for times in (soon, late):
        order.give(block, times, passage.taking, *ramps)
        np.add(times, passage.tail, out=times)
    first[...], second[...] = np.where(swapped, late, soon), np.where(swapped, soon, late)
    for arrival in coming:
        arrival.is_served = True
    coming.clear()


def _early(block: Cores, arrival: "Arrival", chosen: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The cores (y, x) that wait for the packet and have others that ask before it."""
    coming, at, ramp_in = block.clock.coming, _few(block, arrival, chosen), block.clock.ramp_in
    if at is None:
        own_asks = _asks(block, arrival, chosen)
    else:
        own_asks, ramp_in = _asks_at(block, arrival, *at), ramp_in[at]
    early, before, all_asks, near = np.zeros(own_asks.shape, bool), True, list[np.ndarray](), coming
    if at is not None:
        near = _near(coming, *at)
    for other in near:
        if other is arrival:
            before = False
            continue
        asks = _asks(block, other) if at is None else _asks_at(block, other, *at)
        all_asks.append(asks)
        early |= asks <= own_asks if before else asks < own_asks
    # What comes and goes while the ramp is idle can be served later, if it is alone at its core.
    if np.count_nonzero(early) and np.count_nonzero(alone := early & _alone(early, all_asks)):
        others = (other for other in near if other is not arrival)
        for asks, other in zip(all_asks, others, strict=True):
            early &= ~(alone & (asks + other.passage.taking <= own_asks) & (asks >= ramp_in))
    early &= np.isfinite(own_asks)
    return np.nonzero(early) if at is None else (at[0][early], at[1][early])  # type: ignore[return-value]  # two arrays


def _alone(cores: np.ndarray, asks: list[np.ndarray]) -> "bool | np.ndarray":
    """At which of these cores one packet is still to come, of transfers that ask at these times. Core by core: how many
    transfers are under way to a block depends on how large it is.
    """
    if len(asks) == 1:
        return True
    count = np.zeros(cores.shape, np.int32)
    for number, each in enumerate(asks):
        count += each < np.inf
        if number % 4 == 1 and not np.count_nonzero(cores & (count < 2)):
            return False
    return np.asarray(count == 1)


def settle(block: Cores) -> None:
    """Give the ramps to all that is under way, waited for or not. All ranks call it together."""
    heads.resolve(block)
    serve_all(block, list(block.clock.coming))


def _serve_alone(block: Cores, arrival: "Arrival", chosen: np.ndarray | None) -> None:
    """The packets of one transfer that nobody else's come before."""
    time, unserved = arrival.landing.time, None if arrival.served is None else ~arrival.served
    if chosen is not None:
        unserved = np.full(time.shape, chosen) if unserved is None else chosen & unserved
    ramps = [ramp.get() for ramp in arrival.lane.ramps]
    taking, tail = arrival.passage.taking, arrival.passage.tail
    if unserved is None:
        order.give(block, time, taking, *ramps)
        if tail:
            np.add(time, tail, out=time)
        if arrival.lane.ramps[0].view is not None:
            arrival.is_served = True
            return
    elif 2 * np.count_nonzero(unserved) < unserved.size:
        at = np.nonzero(unserved)
        chosen_ramps = [ramp[at] for ramp in ramps]
        times = time[at]
        order.give(block, times, taking, *chosen_ramps)
        time[at] = times + tail
        for ramp, new in zip(ramps, chosen_ramps, strict=True):
            ramp[at] = new
    else:  # it is less work to serve all, and to put back what those have that are not to be
        skipped = np.nonzero(~unserved)
        before = [array[skipped] for array in (time, *ramps)]
        time[skipped] = ramps[0][skipped]
        order.give(block, time, taking, *ramps)
        np.add(time, tail, out=time)
        for array, was in zip((time, *ramps), before, strict=True):
            array[skipped] = was
    for lane_ramp, new in zip(arrival.lane.ramps, ramps, strict=True):
        lane_ramp.put(new)
    if unserved is not None:
        arrival.served = unserved if arrival.served is None else arrival.served | unserved
    arrival.is_served = unserved is None or bool(arrival.served is not None and arrival.served.all())


def _serve_in_turn(block: Cores, arrival: "Arrival", y: np.ndarray, x: np.ndarray) -> None:
    """At these cores of the block others ask before the packet: all that do so are served, then it is."""
    coming = block.clock.coming
    arrays = block.clock.ramp_in, block.clock.asked_at[RAMP], block.clock.idle[RAMP]
    ramps = [array[y, x] for array in arrays]
    if len(coming) == 2:
        for candidate in sorted(coming, key=lambda candidate: candidate is arrival):
            times = _asks_at(block, candidate, y, x)
            order.give(block, times, candidate.passage.taking, *ramps)
            _land(candidate, block.shape[1], y, x, times)
    else:
        candidates = _near(coming, y, x)
        asks = np.stack([_asks_at(block, candidate, y, x) for candidate in candidates])
        keeps = np.array([candidate.passage.taking for candidate in candidates])
        starts = np.full(asks.shape, np.nan)
        waiting = np.arange(len(y))  # cores at which the packet's turn has not come
        for numbers in np.argsort(asks, axis=0, kind="stable"):  # as they were started where they ask together
            numbers = numbers[waiting]
            chosen_ramps = [ramp[waiting] for ramp in ramps]
            times = asks[numbers, waiting]
            order.give(block, times, keeps[numbers], *chosen_ramps)
            starts[numbers, waiting] = times
            for ramp, new in zip(ramps, chosen_ramps, strict=True):
                ramp[waiting] = new
            waiting = waiting[numbers != candidates.index(arrival)]
            if not len(waiting):
                break
        for candidate, start in zip(candidates, starts, strict=True):
            served = ~np.isnan(start)
            if np.count_nonzero(served):
                _land(candidate, block.shape[1], y[served], x[served], start[served])
    for array, new in zip(arrays, ramps, strict=True):
        array[y, x] = new


def _land(arrival: "Arrival", width: int, y: np.ndarray, x: np.ndarray, starts: np.ndarray) -> None:
    """Packets for these cores of the block, `width` cores wide, have been given their ramps."""
    view, time, at = arrival.lane.view, arrival.landing.time, arrival.lane.schedule.delivered
    if view.axis is None:
        line, position = np.zeros(len(y), np.int64), y * width + x
    else:
        line, position = (y, x) if view.axis == "x" else (x, y)
        lines = range(*view.lines.indices(int(line.max(initial=0)) + 1))
        line = (line - lines.start) // lines.step
    position = np.searchsorted(at, position) if isinstance(at, np.ndarray) else (position - at.start) // at.step
    time[line, position] = starts + arrival.passage.tail
    if arrival.served is None:
        arrival.served = np.zeros(time.shape, bool)
    arrival.served[line, position] = True


def _asks(block: Cores, arrival: "Arrival", chosen: np.ndarray | None = None) -> np.ndarray:
    """When the packets of a transfer that are not served yet ask for the ramps, [bh, bw]; inf where there is none."""
    time, view = arrival.landing.time, arrival.lane.view
    if arrival.served is None and chosen is None and time.size == block.shape[0] * block.shape[1]:
        return time.swapaxes(0, 1) if view.axis == "y" else time.reshape(block.shape)  # a packet for every core
    asks = np.full(block.shape, np.inf)
    unserved = True if arrival.served is None else ~arrival.served
    times = np.where(unserved if chosen is None else unserved & chosen, time, np.inf)
    view.of(asks)[:, arrival.lane.schedule.delivered] = times
    return asks


def _few(block: Cores, arrival: "Arrival", chosen: np.ndarray | None) -> tuple[np.ndarray, np.ndarray] | None:
    """The cores (y, x) that wait for the packets of a transfer, or `chosen` ones of these; None where they are many.

    Where every core of a segment is sent a packet, and few relay it, all cores would be looked at for these.
    """
    time, view, delivered = arrival.landing.time, arrival.lane.view, arrival.lane.schedule.delivered
    waits = np.broadcast_to(True if chosen is None else chosen, time.shape)
    if FEW * (time.size if chosen is None else np.count_nonzero(waits)) > block.shape[0] * block.shape[1]:
        return None
    line, at = np.nonzero(waits if arrival.served is None else waits & ~arrival.served)
    position = np.arange(view.length)[delivered][at]
    if view.axis is None:
        return position // block.shape[1], position % block.shape[1]
    line = np.arange(block.shape[view.axis == "y"])[view.lines][line]
    return (line, position) if view.axis == "x" else (position, line)


def _near(coming: "list[Arrival]", y: np.ndarray, x: np.ndarray) -> "list[Arrival]":
    """Those of the transfers that may bring something to these cores of the block."""
    if not len(y):
        return []
    spans = {"y": (int(y.min()), int(y.max())), "x": (int(x.min()), int(x.max()))}
    near = []
    for arrival in coming:
        axis, delivered = arrival.lane.view.axis, arrival.lane.schedule.delivered
        if axis is not None and isinstance(delivered, slice):
            low, high = spans[axis]
            if delivered.start > high or delivered.stop <= low:
                continue
        near.append(arrival)
    return near


def _asks_at(block: Cores, arrival: "Arrival", y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """As `_asks`, at these cores of the block alone."""
    if FEW * len(y) > block.shape[0] * block.shape[1]:
        return np.asarray(_asks(block, arrival)[y, x])
    view, time, asks = arrival.lane.view, arrival.landing.time, np.full(len(y), np.inf)
    position = y * block.shape[1] + x if view.axis is None else x if view.axis == "x" else y
    within, at = _numbers(view.length, arrival.lane.schedule.delivered, position)
    if not len(within):
        return asks
    line = np.zeros(len(within), np.int64)
    if view.axis is not None:
        on, line = _numbers(block.shape[view.axis == "y"], view.lines, (y if view.axis == "x" else x)[within])
        within, at = within[on], at[on]
    times = time[line, at]
    asks[within] = times if arrival.served is None else np.where(arrival.served[line, at], np.inf, times)
    return asks


def _numbers(n: int, chosen: Index, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which of these places, of n, are among the chosen ones, and what number they have among these."""
    if isinstance(chosen, slice) and (chosen.step or 1) == 1:
        low, high, _ = chosen.indices(n)
        within = np.flatnonzero((places >= low) & (places < high))
        return within, places[within] - low
    numbers = np.full(n, -1)
    numbers[chosen] = np.arange(len(numbers[chosen]))
    within = np.flatnonzero(numbers[places] >= 0)
    return within, numbers[places[within]]
