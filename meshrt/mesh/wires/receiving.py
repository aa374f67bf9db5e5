"""Cores wait for what was sent: each core's clock goes to the arrival of its packet, and takes over that packet's path.

A ramp is given out when a core waits (ramps.py), and heads that had to wait for each other are moved before (heads.py).
"""

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np

from meshrt.mesh.cores import Cores
from meshrt.mesh.wires import heads, ramps
from meshrt.mesh.wires.lane import Lane
from meshrt.mesh.wires.planning import check_chosen
from meshrt.mesh.wires.replay import Arrival
from meshrt.mesh.wires.strides import strides_of
from meshrt.mesh.wires.tables import Channel
from meshrt.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, eq=False)
class Flight:
    """A transfer under way: what it brings is in `tiles` on the host, but no core has waited for it yet. What `moves`
    do is put there when they have.
    """

    tiles: np.ndarray
    arrivals: list[Arrival]
    moves: "list[Callable[[], None]]" = field(default_factory=list)


def receive(block: Cores, flight: Flight, *others: Flight) -> np.ndarray:
    """Wait for the packets: each core's clock goes to the arrival, if that is later; then for those of the other
    flights, one after the other. Returns the tiles of the first.
    """
    receive_all(block, (flight, *others))
    return flight.tiles


def receive_all(block: Cores, flights: Sequence[Flight]) -> None:
    """As `receive`, of any number of flights."""
    heads.resolve(block)
    arrivals = [arrival for flight in flights for arrival in flight.arrivals if not arrival.over]
    asked_at = None if block.clock.seen is None else [_asked(arrival) for arrival in arrivals]
    ramps.serve_all(block, arrivals)
    for at, arrival in enumerate(arrivals):
        _wait_all(block, arrival)
        arrival.end()
        if asked_at is not None:
            looked(block, arrival.sent, arrival.number, arrival.lane, asked_at[at])
    for flight in flights:
        while flight.moves:
            flight.moves.pop(0)()


def looked(block: Cores, sent: int, number: int, lane: Lane, asked_at: np.ndarray | None) -> None:
    """Cores have waited for the packets of a lane: whoever looks is told, and for which transfer, by its numbers."""
    clock = block.clock
    if clock.messages is not None:
        clock.messages.wait(number, lane)
    clock.seen(f"waits for {lane.schedule.note}", sent, asked_at, _landed(block, lane))  # type: ignore[misc]  # is there


def _asked(arrival: Arrival) -> np.ndarray | None:
    """When the packets of an arrival asked for the ramps of their cores; None where some have their ramps already."""
    return arrival.landing.time.flatten() if arrival.served is None else None


def _landed(block: Cores, lane: Lane) -> np.ndarray:
    """Of a lane's packets by receiver, int32 [2, cores of the block]: hops, and the number of the packet in `_asked`;
    0 and -1 where none comes. Made once.
    """
    if not lane.landed:
        hops, number = np.zeros(block.shape, np.int32), np.full(block.shape, -1, np.int32)
        landed = np.zeros((lane.view.count, lane.schedule.count), np.int32)
        for part in lane.schedule.parts:
            landed[:, part.delivered] = part.hops
        lane.view.of(hops)[:, lane.schedule.delivered] = landed
        lane.view.of(number)[:, lane.schedule.delivered] = np.arange(landed.size).reshape(landed.shape)
        lane.landed.append(np.stack([hops.ravel(), number.ravel()]))
    return lane.landed[0]


def _wait_all(block: Cores, arrival: Arrival) -> None:
    """All cores that get a packet wait for it."""
    if block.core is None:
        _wait(block, arrival, arrival.landing.time > arrival.lane.time.get())
        return
    strides, landing = strides_of(block, arrival.lane), arrival.landing.address
    if block.core.replay(strides.late, landing, 0.0, 0.0, False) is not None:
        block.clock.path_changes()
        arrival.take_path()
        block.core.replay(strides.takes_over, landing, 0.0, 0.0, False)


def _wait(block: Cores, arrival: Arrival, late: np.ndarray) -> None:
    """Those cores that are marked take over the time and the path of the packets that they waited for."""
    waiting = np.count_nonzero(late)
    if not waiting:
        return
    block.clock.path_changes()
    arrival.take_path()
    lane, landing = arrival.lane, arrival.landing
    if waiting == late.size:
        lane.state.put(landing.header)
        return
    state = lane.state.get()
    np.copyto(state, landing.header, where=late)
    lane.state.put(state)


def receive_at(block: Cores, channel: Channel, flight: Flight, positions: np.ndarray) -> None:
    """Only the cores at these positions (bool) of the channel's lines wait for the packets; the others do so later."""
    assert channel.axis is not None
    check_chosen(block, channel, positions, None, "positions")
    low = block.mesh.offset(channel.axis)
    heads.resolve(block)
    for arrival in flight.arrivals:
        lane = arrival.lane
        cores = np.arange(lane.view.length)[lane.schedule.delivered]
        if lane.view.axis is None:  # the block as one line
            cores = cores % block.mesh.block_width if channel.axis == "x" else cores // block.mesh.block_width
        if not arrival.over:
            ramps.serve(block, arrival, positions[low + cores])
            _wait(block, arrival, positions[low + cores] & (arrival.landing.time > lane.time.get()))
            if block.clock.messages is not None:
                block.clock.messages.wait(arrival.number, lane, positions[low + cores])
            if block.clock.seen is not None:
                block.clock.seen(f"waits for {lane.schedule.note}", arrival.sent, landed=_landed(block, lane))
