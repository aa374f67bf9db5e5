"""What one rank does in each round of an exchange along lines, as indices: planned once for packets of any size."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from meshrt.mesh.exchange.itinerary import Round
from meshrt.mesh.exchange.legs import Legs
from meshrt.mesh.wires.lines import Index, as_index, as_slice

if TYPE_CHECKING:
    from meshrt.mesh.block import Block


@dataclass(frozen=True, eq=False)
class Hop:
    """What happens at one port of this rank's cores in one round; slots are packets' numbers."""

    port: int
    slots: Index  # that leave cores of this block
    cores: Index  # which
    tiles: np.ndarray  # bool: do they carry tiles?
    touched: np.ndarray  # bool: are they sent on?
    out: np.ndarray  # slots that leave the block
    out_tiles: np.ndarray
    come: np.ndarray  # slots that come in over the edge at the other side
    come_tiles: np.ndarray
    ends: Index  # slots that get to cores of this block
    end_cores: Index
    end_tiles: np.ndarray


@dataclass(frozen=True, eq=False)
class Step:
    """A round as this rank sees it."""

    hops: tuple[Hop, ...]
    peak_tiles: int
    peak_requests: int


def place_here(block: "Block", axis: str, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(is it in this block, place there) of positions on lines of the axis."""
    at = at - block.mesh.offset(axis)
    return (at >= 0) & (at < block.mesh.block_length(axis)), at


def steps_here(block: "Block", axis: str, legs: Legs, one: Round) -> Step:
    """This rank's part of a round."""
    found: list[Hop] = []
    touched = np.ones(len(one.legs), bool)
    touched[one.fresh] = False
    for port, lane in enumerate(one.lanes):
        seats = lane.start + np.flatnonzero(one.before[lane] != len(legs.ends))
        seats = seats[one.before[seats].argsort()]
        seats = seats[place_here(block, axis, one.before[seats])[0] | place_here(block, axis, one.after[seats])[0]]
        packets = legs.packets[one.legs[seats]]
        for part in even_parts(one.before[seats], packets):
            inside, place = place_here(block, axis, one.before[seats[part]])
            lands, end = place_here(block, axis, one.after[seats[part]])
            here, tiles = packets[part], legs.tiles[one.legs[seats[part]]]
            over, come = inside & ~lands, lands & ~inside
            found.append(
                Hop(
                    port,
                    even(here[inside]),
                    even(place[inside]),
                    tiles[inside],
                    touched[seats[part]][inside],
                    here[over],
                    tiles[over],
                    here[come],
                    tiles[come],
                    even(here[lands]),
                    even(end[lands]),
                    tiles[lands],
                )
            )
    return Step(tuple(found), *one.held())


def even_parts(*places: np.ndarray) -> list[slice]:
    """Cuts of lists of places into few parts in which each list is evenly spaced; one part where there are many."""
    found, low, count = [], 0, len(places[0])
    if count > 1:
        steps = np.diff(np.stack(places))
        while low < count:
            same = (steps[:, low:] == steps[:, low : low + 1]).all(axis=0)
            long = len(same) if same.all() else int(same.argmin())
            found.append(slice(low, low + long + 1))
            low += long + 1
            if len(found) * 16 > count + 64:
                return [slice(0, count)]
    return found or [slice(0, count)][:count]


def even(places: np.ndarray) -> Index:
    """A slice where the places are evenly spaced, rising or falling; else themselves."""
    if len(places) > 1 and places[1] < places[0] and (np.diff(places) == places[1] - places[0]).all():
        return as_slice(range(int(places[0]), int(places[-1]) - 1, int(places[1] - places[0])))
    return as_index(places)
