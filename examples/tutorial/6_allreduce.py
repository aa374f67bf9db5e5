"""6_allreduce.py: the sum of a row for all of its cores: a chain of sums, and one packet that all take a copy of."""

from typing import Annotated

import numpy as np

from meshrt.mesh import Block, chain, installed, multicast, stage, transfer

MESH = (8, 1)


def run(block: Block, *, size: Annotated[int, "numbers in a tile"] = 16) -> dict:
    """Sum up to the east, and send the sum back."""
    n = block.mesh.width
    total = block.tiles("total", (size,), np.float32)
    total[...] = block.x[:, None]
    with (
        installed(block, "x", chain) as east,
        installed(block, "x", multicast, n - 1) as back,
        block.phase("allreduce"),
    ):
        for core in range(n - 1):
            transfer(block, east, total, total, positions=np.arange(n) == core, combine=np.add)
            stage(block, east, size, np.arange(n) == core + 1)
        transfer(block, back, total, total)
    wrong = int((total != n * (n - 1) / 2).sum()) if block.payload else 0
    return {"wrong": block.control.allreduce(wrong)}
