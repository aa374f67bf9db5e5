"""The ramps that packets are delivered by: given out to the head that asks first, when a core has to know.

Which of two heads asks first for the ramp of a core is known when both transfers have been started, and that can be in
either order. So ramps are given out as late as can be: when a core waits for a packet, its ramp goes to that packet and
to all before it that asked no later; of those that asked together, to that of the transfer that was started first.
"""

from typing import TYPE_CHECKING

import numpy as np

from meshrt import heads, order
from meshrt.mesh import RAMP

if TYPE_CHECKING:
    from meshrt.block import Block
    from meshrt.replay import Arrival


def serve(block: "Block", arrival: "Arrival", chosen: np.ndarray | None = None) -> None:
    """Turn asks into arrivals: `arrival.landing.time` is then when cores have what they wait for.

    `chosen` (bool, what `landing.time` broadcasts with) are the cores that wait; None: all that get a packet.
    """
    if arrival.is_served:
        return
    others = [one for one in block.clock.coming if one is not arrival]
    if others:
        before = block.clock.coming.index(arrival)
        mine = _asks(block, arrival, chosen)
        early = np.zeros(block.shape, bool)
        for place, other in enumerate(others):
            asks = _asks(block, other)
            first = (np.less_equal if place < before else np.less)(asks, mine)
            if len(others) == 1 and first.any():  # what comes and goes while the ramp is idle can be served later
                first &= (asks + other.taking > mine) | (asks < block.clock.ramp_in)
            early |= first
        if early.any():
            early &= np.isfinite(mine)
            if early.any():
                _serve_in_turn(block, arrival, early)
    _serve_alone(block, arrival, chosen)
    if arrival.is_served:
        block.clock.coming.remove(arrival)


def settle(block: "Block") -> None:
    """Give the ramps to all that is under way, waited for or not. All ranks call it together."""
    heads.resolve(block)
    while block.clock.coming:
        serve(block, block.clock.coming[0])


def _serve_alone(block: "Block", arrival: "Arrival", chosen: np.ndarray | None) -> None:
    """The packets of one transfer that nobody else's come before."""
    time, left = arrival.landing.time, None if arrival.served is None else ~arrival.served
    if chosen is not None:
        left = np.broadcast_to(chosen, time.shape) if left is None else chosen & left
    ramps = [one.get() for one in arrival.lane.ramps]
    tail = 0.0 if arrival.stream else arrival.busy
    if left is None:
        np.add(order.give(block, time, arrival.taking, *ramps), tail, out=time)
    elif 2 * np.count_nonzero(left) < left.size:
        some = np.nonzero(left)
        here = [one[some] for one in ramps]
        time[some] = order.give(block, time[some], arrival.taking, *here) + tail
        for one, new in zip(ramps, here, strict=True):
            one[some] = new
    else:  # it is less work to serve all, and to put back what those have that are not to be
        others = np.nonzero(~left)
        kept = [one[others] for one in (time, *ramps)]
        time[others] = ramps[0][others]
        np.add(order.give(block, time, arrival.taking, *ramps), tail, out=time)
        for one, was in zip((time, *ramps), kept, strict=True):
            one[others] = was
    for place, new in zip(arrival.lane.ramps, ramps, strict=True):
        place.put(new)
    if left is not None:
        _mark(arrival, left)
    arrival.is_served = left is None or bool(arrival.served is not None and arrival.served.all())


def _serve_in_turn(block: "Block", arrival: "Arrival", early: np.ndarray) -> None:
    """At the cores [bh, bw] that are marked others ask before the packet: all that do so are served, then it is."""
    coming = block.clock.coming
    y, x = np.nonzero(early)
    asks = np.stack([_asks(block, one)[y, x] for one in coming])
    turns = np.argsort(asks, axis=0, kind="stable")  # in the order in which they were started where they ask together
    target = coming.index(arrival)
    keeps = np.array([one.taking for one in coming])
    tails = np.array([0.0 if one.stream else one.busy for one in coming])
    every = block.clock.ramp_in, block.clock.asked[RAMP], block.clock.idle[RAMP]
    ramps = [one[y, x] for one in every]
    ends = np.full(asks.shape, np.nan)
    left = np.arange(len(y))  # cores at which the packet's turn has not come
    for who in turns:
        who = who[left]
        here = [one[left] for one in ramps]
        ends[who, left] = order.give(block, asks[who, left], keeps[who], *here) + tails[who]
        for one, new in zip(ramps, here, strict=True):
            one[left] = new
        left = left[who != target]
    for one, new in zip(every, ramps, strict=True):
        one[y, x] = new
    for arrived, end in zip(coming, ends, strict=True):
        found = np.full(block.shape, np.nan)
        found[y, x] = end
        end = arrived.lane.view.of(found)[:, arrived.lane.plan.delivered]
        served = ~np.isnan(end)
        np.copyto(arrived.landing.time, end, where=served)
        _mark(arrived, served)


def _mark(arrival: "Arrival", served: np.ndarray) -> None:
    """These packets have been given their ramps."""
    arrival.served = served if arrival.served is None else arrival.served | served


def _asks(block: "Block", arrival: "Arrival", chosen: np.ndarray | None = None) -> np.ndarray:
    """When the packets of a transfer that are not served yet ask for the ramps, [bh, bw]; inf where there is none."""
    time, view = arrival.landing.time, arrival.lane.view
    if arrival.served is None and chosen is None and time.size == block.shape[0] * block.shape[1]:
        return time.swapaxes(0, 1) if view.axis == "y" else time.reshape(block.shape)  # a packet for every core
    found = np.full(block.shape, np.inf)
    left = True if arrival.served is None else ~arrival.served
    here = np.where(left if chosen is None else left & chosen, time, np.inf)
    view.of(found)[:, arrival.lane.plan.delivered] = here
    return found
