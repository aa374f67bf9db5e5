"""1_shift.py: every core of a row gives its tile to the next one."""

from typing import Annotated

import numpy as np

from meshrt.mesh import Block, chain, installed, transfer

MESH = (8, 1)  # unless --mesh says otherwise


def run(block: Block, *, size: Annotated[int, "numbers in a tile"] = 16) -> dict:
    """Shift tiles one core to the east, and add up what came in."""
    mine = block.tiles("mine", (size,), np.float32)  # [rows, columns of cores, size], full of NaN
    mine[...] = block.x[:, None]  # every core holds its own x
    came = block.tiles("came in", (size,), np.float32)
    came[...] = 0  # the first core gets nothing, and keeps this
    with installed(block, "x", chain) as way, block.phase("shift"):
        transfer(block, way, mine, came)
    return {"came in": block.control.allreduce(float(came[..., 0].sum()))}
