"""rowsum.py: every row of cores adds up its tiles."""

from typing import Annotated

import numpy as np

from meshrt.mesh import Block, allreduce, ktree

MESH = (6, 4)  # unless --mesh says otherwise


def run(block: Block, *, size: Annotated[int, "numbers in a tile"] = 8) -> dict:
    """Add up one tile per core along every row."""
    tiles = block.tiles("tile", (size,), np.float32)  # [bh, bw, size] of this rank's bh x bw cores, full of NaN
    tiles[...] = block.x[:, None]  # every core holds its own x
    with ktree(block, "x", phases=2) as tree, block.phase("sum"):  # installs routes; frees them again
        total = allreduce(block, tree, tiles)
    return {"sum": float(total[0, 0, 0])}
