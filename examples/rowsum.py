"""rowsum.py: every row of cores adds up its tiles."""

from typing import Annotated

import numpy as np

from meshrt.mesh import Block, allreduce, ktree

MESH = (6, 4)  # unless --mesh says otherwise


def run(block: Block, *, size: Annotated[int, "numbers in a tile"] = 8) -> dict:
    """Add up one tile per core along every row."""
    x0, bw = block.mesh.x0, block.lead[1]  # this rank holds tiles of block.lead = bh x bw cores, from column x0 on
    tiles = block.tiles("tile", (size,), np.float32)  # [bh, bw, size] of core memory, full of NaN
    tiles[...] = np.arange(x0, x0 + bw)[None, :, None]  # every core holds its own x
    with ktree(block, "x", phases=2) as tree, block.phase("sum"):  # installs routes; frees them again
        total = allreduce(block, tree, tiles)
    return {"sum": float(total[0, 0, 0])}
