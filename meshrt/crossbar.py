"""A crossbar that is none: any core gets the tile of any other, by software that hands packets on from core to core.

A mesh's tables have no room for routes between arbitrary pairs. So there is one lane of single hops in each direction,
eight route entries a core whatever the mesh, and a program at every core that takes each packet in, looks at where it
is to go, and sends it on: along x, then along y, a stage a core. That is what a system pays which was built for cores
that are all equally far from each other. The order of the hops is that of meshrt/itinerary.py.

A hop is a message of its own, as for relayed routes: it waits for the ramp and for the link, and a core that sends a
packet on waits until all of it is in.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.errors import RouteError, UsageError
from meshrt.itinerary import hops, itinerary
from meshrt.porter import Porter, Step, Transfer, steps_here
from meshrt.routes import chain
from meshrt.scouts import scout
from meshrt.tables import Channel, installed

if TYPE_CHECKING:
    from meshrt.block import Block

KEEP = 1 << 21  # hops of an itinerary that is kept for the next time; longer ones are found again


@dataclass(frozen=True, eq=False)
class Crossbar:
    """Installed lanes of single hops along both axes, and the itineraries that were used on them."""

    lanes: tuple[Channel, ...]
    cache: dict[object, Any] = field(default_factory=dict)


@contextmanager
def crossbar(block: "Block") -> Iterator[Crossbar]:
    """Install the lanes: eight route entries a core, one to send and one to receive in each direction. LimitError."""
    if block.wafer is not None:
        raise UsageError("transfers as over a crossbar know no --defects: leave them away, or take another system")
    with ExitStack() as stack:
        yield Crossbar(
            tuple(
                stack.enter_context(installed(block.tables, axis, chain(block.mesh.length(axis), step)))
                for axis in "xy"
                for step in (1, -1)
            )
        )


def exchange(block: "Block", bar: Crossbar, *transfers: Transfer) -> list[np.ndarray]:
    """Carry out the transfers, all at once: what every core has then, [bh, bw, *tile] each. All ranks call it together.

    The cores are busy until it is over. What they hold for others meanwhile is counted as core memory. LimitError.
    """
    _check(block, bar)
    flights = [Porter(block, one, number) for number, one in enumerate(transfers)]
    tag = bar.lanes[0].number % 32768
    try:
        for steps in zip_longest(*(_steps(block, bar, one) for one in transfers)):
            pending: list[Any] = []
            together = [(flight, step) for flight, step in zip(flights, steps, strict=True) if step is not None]
            for flight, step in together:
                flight.reserve(step)
                for hop in step.hops:
                    flight.leave(hop)
                    flight.send(hop, tag, pending)
            for flight, step in together:
                for hop in step.hops:
                    flight.take(hop, tag)
                    flight.arrive(hop)
            for request in pending:
                block.wait(request)
    finally:
        for flight in flights:
            block.memory.free(flight.name)
    return [flight.land() for flight in flights]


def _check(block: "Block", bar: Crossbar) -> None:
    """Scouts walk the lanes at their first use, and again once an entry was changed. RouteError."""
    if bar.cache.get("epoch") == block.tables.epoch:
        return
    for lane in bar.lanes:
        trace = scout(block, lane)
        strayed = len(trace.ticks) > 2 and any(tick.moves or tick.recvs for tick in trace.ticks[2:])
        if block.scouts.total(int(strayed)):
            raise RouteError(f"a lane of single hops along {lane.axis} leads further than to the next core")
    bar.cache["epoch"] = block.tables.epoch


def _steps(block: "Block", bar: Crossbar, transfer: Transfer) -> Iterator[Step]:
    """The rounds of a transfer on this rank: kept ones, or found while they are followed."""
    axis, mesh = transfer.axis, block.mesh
    owners = np.asarray(transfer.owners, np.int64)
    width = mesh.width if axis is None else mesh.length("x") if axis == "x" else 1
    height = mesh.height if axis is None else 1 if axis == "x" else mesh.length("y")
    if owners.shape != (width * height,):
        raise ValueError(f"owners of shape {owners.shape} for {width * height} cores")
    key = axis, owners.tobytes(), transfer.asks
    if key in bar.cache:
        return iter(bar.cache[key])
    found = (steps_here(block, axis, width, one) for one in itinerary(width, height, owners, transfer.asks))
    if hops(width, owners, transfer.asks) > KEEP:
        return found
    bar.cache[key] = list(found)
    return iter(bar.cache[key])
