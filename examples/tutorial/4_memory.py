"""4_memory.py: what core memory holds, and what happens when it is too little."""

from typing import Annotated

import numpy as np

from meshrt.mesh import Block, installed, interleaved_ring, transfer

MESH = (8, 1)


def run(
    block: Block,
    *,
    size: Annotated[int, "rows and columns of a tile"] = 64,
    fresh: Annotated[bool, "let each tile come into fresh memory"] = False,
) -> dict:
    """Shift tiles round a ring: into a second buffer, or into memory that is taken for each that comes."""
    mine = block.tiles("mine", (size, size), np.float32)
    mine[...] = 1
    second = None if fresh else block.tiles("second buffer", (size, size), np.float32)
    kept = []
    with installed(block, "x", interleaved_ring) as way, block.phase("round"):
        for _ in range(block.mesh.width):
            came = transfer(block, way, mine, second)  # without a place for it, it gets core memory of its own
            mine, second = came, None if fresh else mine
            kept += [came] if fresh else []  # whoever refers to it, it lives
    return {"tiles": 1 + len(kept) + (second is not None)}
