"""A crossbar that is none: any core gets the tile of any other, by software that hands packets on from core to core.

A mesh's tables have no room for routes between arbitrary pairs. So there is one lane of single hops in each direction,
eight route entries a core whatever the mesh, and a program at every core that takes each packet in, looks at where it
is to go, and sends it on: along x, then along y, a stage a core. That is what a system pays which was built for cores
that are all equally far from each other. The order of the hops is that of itinerary.py.

A hop is a message of its own, as for relayed routes: it waits for the ramp and for the link, and a core that sends a
packet on waits until all of it is in.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.errors import RouteError, UsageError
from meshrt.mesh.exchange.convoy import Convoy
from meshrt.mesh.exchange.legs import REQUEST_BYTES, Transfer
from meshrt.mesh.exchange.marching import MarchingConvoy, MarchingPorter
from meshrt.mesh.exchange.onward import go_on
from meshrt.mesh.exchange.porter import Porter
from meshrt.mesh.exchange.strips import MarchingStrips, parts
from meshrt.mesh.mesh import EAST, NORTH, PORT_NAMES, SOUTH, WEST
from meshrt.mesh.wires import ramps
from meshrt.mesh.wires.routers import core_at
from meshrt.mesh.wires.routes import chain
from meshrt.mesh.wires.scouts import scouted
from meshrt.mesh.wires.tables import Channel, installed
from meshrt.options import in_short
from meshrt.records import dataclass

if TYPE_CHECKING:
    from meshrt.mesh.block import Block


@dataclass(frozen=True, eq=False)
class Crossbar:
    """Installed lanes of single hops along both axes, and the itineraries that were used on them."""

    channels: tuple[Channel, ...]
    cache: dict[object, Any] = field(default_factory=dict)


@contextmanager
def crossbar(block: "Block") -> Iterator[Crossbar]:
    """Install the lanes: eight route entries a core, one to send and one to receive in each direction. LimitError."""
    if block.wafer is not None:
        raise UsageError("transfers as over a crossbar know no --defects: leave them away, or take another system")
    with ExitStack() as stack:
        yield Crossbar(
            tuple(stack.enter_context(installed(block, axis, chain, step)) for axis in "xy" for step in (1, -1))
        )


def exchange(block: "Block", bar: Crossbar, *transfers: Transfer) -> list[np.ndarray]:
    """Carry out the transfers, all at once: what every core has then, [bh, bw, *tile] each. All ranks call it together.

    The cores are busy until it is over. What they hold for others meanwhile is counted as core memory. LimitError,
    UsageError for tiles that are not those of all cores and for owners that are no cores, RouteError as `_check`.
    """
    for transfer in transfers:
        block.check_lead(transfer.tiles)
        _check_owners(block, transfer)
    block.begin()
    _check(block, bar)
    ramps.settle(block)
    if block.ledger.timeline is not None:
        block.ledger.timeline.exchanges(block.clock, transfers)
    if block.clock.messages is not None:
        block.clock.messages.exchange(transfers)
    flights: list[Any] = []
    tag, under_way = bar.channels[0].number % 32768, 0
    try:
        for number, transfer in enumerate(transfers):
            flights.append(_flight(block, transfer, number, len(transfers)))
        for turns in zip_longest(*(flight.rounds(bar.cache) for flight in flights)):
            pending: list[Any] = []
            together = [(flight, turn) for flight, turn in zip(flights, turns, strict=True) if turn is not None]
            for flight, turn in together:
                flight.depart(turn, tag, pending)
            for flight, turn in together:
                flight.arrive(turn, tag)
            for request in pending:
                block.wait(request)
            if len(together) != under_way:
                under_way = len(together)
                go_on(block, [flight for flight, _ in together], tag)
    finally:
        for flight in flights:
            block.memory.free(flight.name)
    landed = [flight.land() for flight in flights]
    if block.mapped:
        from meshrt.mesh.look.pairs import carried  # most runs have no maps

        for flight in flights:
            carried(block.pairs[1], block.mesh, flight.transfer, flight.nbytes, REQUEST_BYTES)
    if block.clock.seen is not None:
        block.clock.seen("hands packets on to any core, and waits for its own")
    return landed


def take(block: "Block", bar: Crossbar, owners: np.ndarray, tiles: np.ndarray) -> np.ndarray:
    """The tile of its owner for every core, [bh, bw, *tile], sent by the owner: one transfer. All ranks call it.

    `owners`: of each core, by number y * W + x, that of the core whose tile it gets, int [W * H]; as with NumPy's
    `take` one may be there more often, or not at all. LimitError, UsageError, RouteError as `exchange`.
    """
    if block.audit is not None:
        block.audit.takes(owners, block.mesh.width * block.mesh.height)
    (taken,) = exchange(block, bar, Transfer(None, owners, tiles))
    return taken


def _check_owners(block: "Block", transfer: Transfer) -> None:
    """UsageError for owners that are not whole numbers of cores, one for each: what moves tiles looks no more."""
    axis, mesh = transfer.axis, block.mesh
    if axis not in ("x", "y", None):
        raise UsageError(f"a transfer along axis {axis!r}: lines are 'x' and 'y', and None is any core to any")
    count = mesh.width * mesh.height if axis is None else mesh.length(axis)
    owners = np.asarray(transfer.owners)
    if owners.dtype.kind not in "iu" or owners.shape != (count,) or owners.min() < 0 or owners.max() >= count:
        numbers = "cores, by number y * W + x" if axis is None else f"positions of a line along {axis}"
        raise UsageError(
            f"owners {in_short(transfer.owners)}: for each of the {count} {numbers}, that of the core whose tile it"
            f" gets is wanted, int [{count}] of 0 to {count - 1}"
        )


def _flight(block: "Block", transfer: Transfer, number: int, together: int) -> Any:
    """What carries out a transfer, one of so many."""
    if block.core is None:
        return (Porter if transfer.axis else Convoy)(block, transfer, number)
    if transfer.axis:
        return MarchingPorter(block, transfer, number)
    groups = parts(np.asarray(transfer.owners), block.mesh.width, block.mesh.height)
    if groups:
        return MarchingStrips(block, transfer, number, groups, together == 1)
    return MarchingConvoy(block, transfer, number)


def _check(block: "Block", bar: Crossbar) -> None:
    """Scouts walk the lanes at their first use, and again once an entry was changed: what they do is what is counted.

    RouteError where a router does anything but send its core's packet to the next core of its lane, which takes it out.
    """
    epoch = block.tables.epoch
    if bar.cache.get("epoch") == epoch and all(channel.cache.get("epoch") == epoch for channel in bar.channels):
        return
    for channel, port in zip(bar.channels, (EAST, WEST, SOUTH, NORTH), strict=True):
        trace = scouted(block, channel)
        for number, tick in enumerate(trace.ticks):
            for way, slots, cores in tick.moves:
                if number > 1 or way != port:
                    source = int(trace.pos[slots[0]])
                    colour = channel.colours[channel.sources == source][0]
                    raise RouteError(
                        f"core {core_at(block, channel, trace.whole_block, int(cores[0]))} sends a packet of colour"
                        f" {colour} {PORT_NAMES[way]}: on this lane of single hops packets go"
                        f" {PORT_NAMES[port]}, and are taken out at the next core"
                    )
    bar.cache["epoch"] = epoch
