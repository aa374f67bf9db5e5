"""5_sum.py: the sum of a row, from core to core; software at a core adds, and that is a stage."""

from typing import Annotated

import numpy as np

from meshrt.mesh import Block, chain, installed, stage, transfer

MESH = (8, 1)


def run(block: Block, *, size: Annotated[int, "numbers in a tile"] = 16) -> dict:
    """Every core adds its tile to what comes from the west, and passes it on: the last one has the sum."""
    n = block.mesh.width
    total = block.tiles("total", (size,), np.float32)
    total[...] = block.x[:, None]
    with installed(block, "x", chain) as way, block.phase("sum"):
        for core in range(n - 1):
            transfer(block, way, total, total, positions=np.arange(n) == core, combine=np.add)
            stage(block, way, size, np.arange(n) == core + 1)  # `size` additions, and the software's own time
    return {"sum": block.control.allreduce(float(total[..., 0].max()), max)} if block.payload else {}
