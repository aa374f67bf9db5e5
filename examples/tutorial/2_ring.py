"""2_ring.py: tiles go round a ring, by two patterns of routes."""

from typing import Annotated, Literal

import numpy as np

from meshrt.mesh import Block, installed, interleaved_ring, ring, transfer

MESH = (8, 1)
PATTERNS = {"plain": ring, "interleaved": interleaved_ring}


def run(
    block: Block,
    *,
    size: Annotated[int, "numbers in a tile"] = 16,
    pattern: Annotated[Literal["plain", "interleaved"], "who is next to whom"] = "plain",
) -> dict:
    """Shift tiles as often as there are cores in a row: each is at home again."""
    home = block.x[:, None]
    mine, came = (block.tiles(name, (size,), np.float32) for name in ("mine", "came in"))
    mine[...] = home
    with installed(block, "x", PATTERNS[pattern]) as way, block.phase("round"):
        for _ in range(block.mesh.width):
            transfer(block, way, mine, came)
            mine, came = came, mine
    wrong = int((mine != home).sum()) if block.payload else 0
    return {"wrong": block.control.allreduce(wrong)}
