"""What one rank does in each round of an exchange along lines, as indices: planned once for packets of any size."""

from typing import TYPE_CHECKING

import numpy as np

from meshrt.mesh.exchange.itinerary import Round
from meshrt.mesh.exchange.legs import Legs
from meshrt.mesh.wires.lines import Index, as_index, as_slice
from meshrt.records import dataclass

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
    leaving: np.ndarray  # slots that leave the block
    leaving_tiles: np.ndarray
    entering: np.ndarray  # slots that come in over the edge at the other side
    entering_tiles: np.ndarray
    ends: Index  # slots that get to cores of this block
    end_cores: Index
    end_tiles: np.ndarray


@dataclass(frozen=True, eq=False)
class RankRound:
    """A round as this rank sees it."""

    hops: tuple[Hop, ...]
    peak_tiles: int
    peak_requests: int


def position_here(block: "Block", axis: str, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(is it in this block, position there) of positions on lines of the axis."""
    at = at - block.mesh.offset(axis)
    return (at >= 0) & (at < block.mesh.block_length(axis)), at


def round_here(block: "Block", axis: str, legs: Legs, turn: Round) -> RankRound:
    """This rank's part of a round."""
    hops: list[Hop] = []
    touched = np.ones(len(turn.legs), bool)
    touched[turn.fresh] = False
    for port, span in enumerate(turn.spans):
        seats = span.start + np.flatnonzero(turn.before[span] != len(legs.ends))
        seats = seats[turn.before[seats].argsort()]
        seats = seats[
            position_here(block, axis, turn.before[seats])[0] | position_here(block, axis, turn.after[seats])[0]
        ]
        packets = legs.packets[turn.legs[seats]]
        for part in even_parts(turn.before[seats], packets):
            inside, position = position_here(block, axis, turn.before[seats[part]])
            lands, end = position_here(block, axis, turn.after[seats[part]])
            slots, tiles = packets[part], legs.tiles[turn.legs[seats[part]]]
            over, comes = inside & ~lands, lands & ~inside
            hops.append(
                Hop(
                    port,
                    even(slots[inside]),
                    even(position[inside]),
                    tiles[inside],
                    touched[seats[part]][inside],
                    slots[over],
                    tiles[over],
                    slots[comes],
                    tiles[comes],
                    even(slots[lands]),
                    even(end[lands]),
                    tiles[lands],
                )
            )
    return RankRound(tuple(hops), *turn.held())


def even_parts(*positions: np.ndarray) -> list[slice]:
    """Cuts of lists of positions into few parts in which each list is evenly spaced; one part where there are many."""
    parts, low, count = [], 0, len(positions[0])
    if count > 1:
        steps = np.diff(np.stack(positions))
        while low < count:
            same = (steps[:, low:] == steps[:, low : low + 1]).all(axis=0)
            long = len(same) if same.all() else int(same.argmin())
            parts.append(slice(low, low + long + 1))
            low += long + 1
            if len(parts) * 16 > count + 64:
                return [slice(0, count)]
    return parts or [slice(0, count)][:count]


def even(positions: np.ndarray) -> Index:
    """A slice where the positions are evenly spaced, rising or falling; else themselves."""
    if len(positions) > 1 and positions[1] < positions[0] and (np.diff(positions) == positions[1] - positions[0]).all():
        return as_slice(range(int(positions[0]), int(positions[-1]) - 1, int(positions[1] - positions[0])))
    return as_index(positions)
