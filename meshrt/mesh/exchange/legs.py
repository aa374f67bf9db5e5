"""Transfers between any cores, and the ways of their packets: along x first, then along y.

A way is cut into straight legs. With requests, a packet first goes from the core that wants a tile to its owner, and
comes back with it.
"""

import numpy as np

from meshrt.mesh.mesh import EAST, NORTH, SOUTH, WEST
from meshrt.records import dataclass

REQUEST_BYTES = 8  # the number of the core that asks, and of what it asks for
TILE, REQUEST = 1, 1 << 32  # what a core holds for others, as one number: tiles below, requests above


@dataclass(frozen=True)
class Transfer:
    """Every core gets the tile of its owner; one that names itself keeps its own, and takes no part.

    `owners`: along an axis, the position of each position's owner on every line, int [N]; without one, the core number
    y * W + x of each core's, int [W * H]. With `asks` cores have to ask their owners, with REQUEST_BYTES each; else the
    owners know. tiles: [bh, bw, *tile].
    """

    axis: str | None
    owners: np.ndarray
    tiles: np.ndarray
    asks: bool = False


@dataclass(frozen=True, eq=False)
class Legs:
    """The legs of all packets, those of a packet in order and then its end; packets in the order of their readers.

    `packets`: the core that gets the tile. `doors`: port * cores + core where the leg begins, -1 for an end. `first`:
    the packet's first? `tiles`: does it carry the tile, or ask for it? `passes`: what it is to a core that holds it on
    the leg; `begins` and `stops`: what that is more than before the leg, and what it is more after it. `ends`: the
    number of each core's packet's end, -1 where there is no packet.
    """

    packets: np.ndarray
    doors: np.ndarray
    lengths: np.ndarray
    first: np.ndarray
    tiles: np.ndarray
    passes: np.ndarray
    begins: np.ndarray
    stops: np.ndarray
    ends: np.ndarray


def ways(width: int, height: int, owners: np.ndarray, asks: bool) -> Legs:
    """The legs by which every core of a width x height grid gets the tile of its owner; its own needs no packet.

    With `asks` a packet first goes from the core to the owner, and comes back with the tile. ValueError.
    """
    cores = width * height
    if owners.shape != (cores,):
        raise ValueError(f"owners of shape {owners.shape} for {cores} cores")
    readers = np.flatnonzero(owners != np.arange(cores))
    owner = owners[readers]
    doors, lengths, kinds = [], [], []
    for start, end, tile in ((readers, owner, False), (owner, readers, True))[not asks :]:
        (y, x), (to_y, to_x) = np.divmod(start, width), np.divmod(end, width)
        doors += [np.where(to_x > x, EAST, WEST) * cores + start]
        doors += [np.where(to_y > y, SOUTH, NORTH) * cores + y * width + to_x]
        lengths += [np.abs(to_x - x), np.abs(to_y - y)]
        kinds += [tile, tile]
    doors.append(np.full(len(readers), -1))
    lengths.append(np.ones(len(readers), np.int64))  # so that it is not dropped
    kinds.append(True)
    length = np.stack(lengths, axis=1)
    goes = length > 0
    number = goes.sum(axis=1).cumsum() - 1
    first = np.zeros(number.max(initial=-1) + 1, bool)
    first[np.concatenate([[0], number[:-1] + 1])[: len(readers)]] = True
    tiles = np.broadcast_to(kinds, goes.shape)[goes]
    answers = tiles & ~np.concatenate([[True], tiles[:-1]])  # a tile that is still at its owner's counts as a request
    passes = np.where(tiles, TILE, REQUEST)
    waits = np.where(first, 0, np.where(answers, REQUEST, passes))
    ends = np.full(cores, -1)
    ends[readers] = number
    door = np.stack(doors, axis=1)[goes]
    waits[door < 0] = 0
    packets = np.repeat(readers, goes.sum(axis=1))
    return Legs(
        packets, door, length[goes], first, tiles, passes, passes - waits, np.append(waits[1:], 0) - passes, ends
    )


def hops(legs: Legs) -> int:
    """How many hops there are: what it takes to keep an itinerary."""
    return int(legs.lengths[legs.doors >= 0].sum())
