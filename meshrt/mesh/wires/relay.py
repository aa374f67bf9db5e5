"""Routes that found no room in the tables: their packets go core by core, and software at each core sends them on.

A core sends one packet a round in either direction: the one it relays, if there is one, else its own. A packet that is
under way is therefore never held up, and a core holds at most two of others: the one that leaves, one that comes in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.mesh.wires import fabric
from meshrt.mesh.wires.routes import Route
from meshrt.mesh.wires.tables import Channel

if TYPE_CHECKING:
    from meshrt.mesh.block import Block


@dataclass(frozen=True)
class Round:
    """Who sends on a lane in one round, bool [N] each: their own tile or one they relay; and who keeps what comes."""

    own: np.ndarray
    relays: np.ndarray
    keeps: np.ndarray


def rounds(routes: Sequence[Route], n: int, step: int) -> list[Round]:
    """The rounds in which all packets that go one way (step 1 or -1) reach the ends of their routes."""
    waiting = [route for route in routes if (route.high if step > 0 else route.low) != route.source]
    under_way: list[tuple[int, Route]] = []  # (core, route)
    found = []
    while waiting or under_way:
        busy = {core for core, _ in under_way}
        starts = [route for route in waiting if route.source not in busy]
        starts = list({route.source: route for route in reversed(starts)}.values())  # one a core, the first
        waiting = [route for route in waiting if route not in starts]
        marks = np.zeros((3, n), bool)
        marks[0, [route.source for route in starts]] = True
        marks[1, [core for core, _ in under_way]] = True
        moved = [(core + step, route) for core, route in under_way + [(route.source, route) for route in starts]]
        marks[2, [core for core, route in moved if core in route.stops]] = True
        under_way = [(core, route) for core, route in moved if core != (route.high if step > 0 else route.low)]
        found.append(Round(*marks))
    return found


def send(
    block: "Block", channel: Channel, tiles: np.ndarray, out: np.ndarray,
    positions: np.ndarray | None, lines: np.ndarray | None, combine: Any,
) -> None:  # fmt: skip
    """Take the channel's relayed packets to where they are delivered, into `out`; cores wait for what they relay."""
    relay, axis = channel.relay, channel.axis
    assert relay is not None and axis is not None
    n = channel.length
    routes = [route for route in relay.routes if positions is None or positions[route.source]]
    low, length = block.mesh.offset(axis), block.mesh.block_length(axis)
    along = (1, -1) if axis == "x" else (-1, 1)
    tail = (1,) * (tiles.ndim - 2)

    def here(marks: np.ndarray) -> np.ndarray:  # as a mask for tiles
        return marks[low : low + length].reshape(*along, *tail)

    chosen: Any = True
    if lines is not None:
        across = block.mesh.offset("y" if axis == "x" else "x")
        count = block.shape[0 if axis == "x" else 1]
        chosen = lines[across : across + count].reshape(*along[::-1], *tail)
    for step, lane in relay.lanes:
        held = tiles
        for one in rounds(routes, n, step):
            packet = np.where(here(one.own), tiles, held) if block.payload else tiles  # each leaves from where it lies
            fabric.stage(block, lane, 0, one.relays, lines)
            held = fabric.transfer(block, lane, packet, positions=one.own | one.relays, lines=lines)
            if block.payload:
                arrived = held if combine is None else combine(out, held)
                np.copyto(out, arrived, where=here(one.keeps) & chosen)
