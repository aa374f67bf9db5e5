"""Tokens on their way to experts, alone: every row of cores sends its own to the rows that have their experts.

Experts lie one below the other, each on as many rows; an expert's tokens are dealt out over its rows in order. It is
what prefill of a mixture does along the columns (mesh/dispatch.py), with routing drawn from a seed, and back.
"""

from typing import Annotated, Any, Literal

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.options import AtLeast
from meshrt.programs.mesh.experts.dispatch import PieceMoves, carry
from meshrt.programs.routing import FORMS, make_routing

MESH = (16, 16)


def run(
    block: Block,
    *,
    dispatch: Annotated[Literal["multicast", "ring", "crossbar"], "how tokens get to experts"] = "ring",
    tokens: Annotated[int, "of each row of cores", AtLeast(1)] = 8,
    width: Annotated[int, "float32 numbers that a core has of a token", AtLeast(1)] = 8,
    experts: Annotated[int, "how many, on the rows of the mesh", AtLeast(1)] = 4,
    top: Annotated[int, "that a token takes", AtLeast(1)] = 2,
    routing: Annotated[str, FORMS] = "uniform",
    seed: Annotated[int, "of the routing", AtLeast(0)] = 0,
) -> dict[str, Any]:
    """Send tokens to the rows of their experts, and what these made of them back."""
    height = block.mesh.height
    if experts > height:
        raise UsageError(f"--experts {experts} on {height} rows of cores: give as many or fewer")
    if top > experts:
        raise UsageError(f"--top {top} of {experts} experts: give as many or fewer")
    chosen = make_routing(routing, 1, experts, top, seed).draw(0, 0, height * tokens)
    moves = places_of(chosen, experts, height, tokens)
    room = int(moves.to_place.max()) + 1
    tiles = block.tiles("tokens", (tokens, width), np.float32)
    tiles[...] = (block.y[:, None] * tokens + np.arange(tokens))[:, None, :, None]
    with block.phase("dispatch"):
        came = carry(block, dispatch, "y", tiles, moves, room)
    right = expected(moves, tokens, height, room)[block.y][:, None, :, None]
    wrong = int(block.payload and (came != right).any())
    to = PieceMoves(moves.to_core, moves.to_place, moves.core, moves.place * top + order_of(chosen) % top)
    with block.phase("combine"):
        back = carry(block, dispatch, "y", came, to, tokens * top)
    home = np.repeat(tiles, top, axis=2)
    wrong += int(block.payload and (back != home).any())
    return {"in_place": not block.control.allreduce(wrong), "fullest": room, "mean": tokens * top}


def order_of(chosen: np.ndarray) -> np.ndarray:
    """The (token, choice) pairs, numbered in the order of both, by expert."""
    return np.argsort(chosen.ravel(), kind="stable")


def places_of(chosen: np.ndarray, experts: int, height: int, tokens: int) -> PieceMoves:
    """Where each token goes, once for each of its experts, int [tokens of all rows, top]: by expert, then by token."""
    order = order_of(chosen)
    token, expert = order // chosen.shape[1], chosen.ravel()[order]
    first = np.searchsorted(expert, np.arange(experts))
    low, high = (np.arange(experts + step) * height // experts for step in (0, 1))
    row = low[expert] + (np.arange(len(order)) - first[expert]) % (high[1:] - low)[expert]
    by_row = np.argsort(row, kind="stable")
    place = np.empty_like(row)
    starts = np.searchsorted(row[by_row], np.arange(height))
    place[by_row] = np.arange(len(row)) - starts[row[by_row]]
    return PieceMoves(token // tokens, token % tokens, row, place)


def expected(moves: PieceMoves, tokens: int, height: int, room: int) -> np.ndarray:
    """The numbers at each place of each row, [H, room]: zero where no token comes."""
    numbers = np.zeros((height, room), np.float32)
    numbers[moves.to_core, moves.to_place] = moves.core * tokens + moves.place
    return numbers
