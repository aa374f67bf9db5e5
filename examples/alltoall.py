"""alltoall.py: a personalised all-to-all; every core has a tile of its own for every other core."""

from typing import Annotated

import numpy as np

from meshrt.mesh import Block, crossbar, gather, take

MESH = (4, 4)


def run(block: Block, *, size: Annotated[int, "numbers in a tile"] = 8) -> dict:
    """Send all tiles, one for each core in a step, and count the numbers that are not where NumPy has them."""
    cores = block.mesh.width * block.mesh.height
    number = block.y[:, None] * block.mesh.width + block.x  # [bh, bw]
    every = np.random.default_rng(0).random((cores, cores, size), np.float32)  # [from, to, size]
    outgoing = block.tiles("outgoing", (cores, size), np.float32)  # [bh, bw, to, size]
    incoming = block.tiles("incoming", (cores, size), np.float32)  # [bh, bw, from, size]
    outgoing[...] = every[number]
    y, x = np.indices(number.shape)
    with crossbar(block) as bar, block.phase("all to all"):
        for step in range(cores):  # every core sends to the one that is `step` numbers on, and so gets one tile
            leaves = outgoing[y, x, (number + step) % cores]
            incoming[y, x, (number - step) % cores] = take(block, bar, (np.arange(cores) - step) % cores, leaves)
    whole = gather(block, incoming)  # [H, W, from, size]
    return {} if whole is None else {"wrong": int((whole.reshape(cores, cores, size) != every.swapaxes(0, 1)).sum())}
