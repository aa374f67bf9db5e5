"""The way of every packet of an exchange between any cores, hop by hop and round by round, before any is sent.

Packets go along x first, then along y, one core a round, and software at each core sends them on. In a round a core
sends one packet by each port: the one that passes straight through, if there is one, else the one that has waited
longest, of those its own. So a line never queues, and a core that packets turn at holds what its two ports do not take.
The map is known to all cores beforehand, so every rank finds the same rounds without a message.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshrt.mesh import EAST, NORTH, SOUTH, STEP, WEST

AHEAD = np.array(STEP, np.int32).T  # (dx, dy) of a hop out of each port


@dataclass(frozen=True)
class Round:
    """The hops of one round, a place of the arrays for each: who moves, from which core (y * width + x), by which port.

    A packet's number is that of the core that gets the tile. `tiles`: does it carry one, or ask for one? `touched`: is
    it sent on, or answered, rather than sent first? The peaks are the most tiles of others, and requests, at one core.
    """

    packets: np.ndarray
    cores: np.ndarray
    ports: np.ndarray
    tiles: np.ndarray
    touched: np.ndarray
    peak_tiles: int
    peak_requests: int


def itinerary(width: int, height: int, owners: np.ndarray, asks: bool) -> Iterator[Round]:
    """The rounds in which every core of a width x height grid gets the tile of its owner; its own needs no packet.

    With `asks` a packet first goes from the core to the owner, and comes back with the tile.
    """
    reader = np.arange(width * height)
    reader = reader[owners != reader]
    places = np.stack([owners, np.arange(len(owners))])  # [to ask: the owner, to bring: the reader]
    start, end = (places[1], places[0]) if asks else (places[0], places[1])
    at = np.stack(np.divmod(start, width)[::-1]).astype(np.int32)  # [x or y, packet]
    to = np.stack(np.divmod(end, width)[::-1]).astype(np.int32)
    tiles, touched = np.full(len(owners), not asks), np.zeros(len(owners), bool)
    straight = np.full(
        len(owners), -1, np.int8
    )  # the port that a packet which has just come in would go straight on by
    claims = np.empty(4 * width * height, np.int64)
    waiting = reader  # those that have been longest where they are come first
    while len(waiting):
        (x, y), (to_x, to_y) = at[:, waiting], to[:, waiting]
        ports = np.where(to_x != x, np.where(to_x > x, EAST, WEST), np.where(to_y > y, SOUTH, NORTH))
        cores = y.astype(np.int64) * width + x
        door = cores * 4 + ports
        claims[door[::-1]] = waiting[::-1]  # of several that claim a place the last one written stays: the first here
        through = straight[waiting] == ports
        claims[door[through]] = waiting[through]
        go = claims[door] == waiting
        moved, by, left = waiting[go], ports[go], cores[go]
        hop = (moved, left, by, tiles[moved], touched[moved])
        straight[waiting] = -1
        at[:, moved] += AHEAD[:, by]
        straight[moved], touched[moved] = by, True
        there = (at[:, moved] == to[:, moved]).all(axis=0)
        asked = moved[there & ~tiles[moved]]  # has found the owner, and goes back with the tile
        to[:, asked] = np.stack(np.divmod(asked, width)[::-1])
        straight[asked] = -1
        on_way = moved[~(there & tiles[moved])]
        tiles[asked] = True
        waiting = np.concatenate([waiting[~go], on_way])
        yield Round(*hop, *_held(width, owners, at, tiles, touched, waiting, asks))


def _held(
    width: int, owners: np.ndarray, at: np.ndarray, tiles: np.ndarray, touched: np.ndarray, waiting: np.ndarray,
    asks: bool,
) -> tuple[int, int]:  # fmt: skip
    """The most tiles of other cores, and the most requests, that one core holds now."""
    foreign = waiting[touched[waiting]]
    core = at[1, foreign].astype(np.int64) * width + at[0, foreign]
    brings = tiles[foreign] & (core != owners[foreign])
    held = int(np.bincount(core[brings], minlength=1).max())
    return held, int(np.bincount(core[~brings], minlength=1).max()) if asks else 0


def hops(width: int, owners: np.ndarray, asks: bool) -> int:
    """How many hops an itinerary has: what it takes to keep one."""
    (y, x), (to_y, to_x) = np.divmod(np.arange(len(owners)), width), np.divmod(owners, width)
    return int((np.abs(x - to_x) + np.abs(y - to_y)).sum()) * (2 if asks else 1)
