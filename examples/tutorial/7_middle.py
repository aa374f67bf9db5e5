"""7_middle.py: a collective of one's own. Both halves of a row add up towards the middle, which sends to all."""

from typing import Annotated

import numpy as np

from meshrt.mesh import Block, Route, installed, multicast, stage, transfer

MESH = (8, 1)


def middle(block: Block, tiles: np.ndarray) -> np.ndarray:
    """Sum the tiles [rows, columns of cores, *tile] of every row at all of its cores, in place."""
    n, at = block.mesh.width, np.arange(block.mesh.width)
    half = n // 2
    inwards = [Route(core, (core + (1 if core < half else -1),)) for core in range(n) if core != half]
    with installed(block, "x", inwards) as way, installed(block, "x", multicast, half) as out:
        for step in range(half, 0, -1):  # the two cores that are `step` away from the middle send inwards
            for side in (-1, 1) if half + step < n else (-1,):  # in turn: a core takes one tile in a transfer
                transfer(block, way, tiles, tiles, positions=at == half + side * step, combine=np.add)
                stage(block, way, int(np.prod(tiles.shape[2:])), at == half + side * (step - 1))
        transfer(block, out, tiles, tiles)
    return tiles


def run(block: Block, *, size: Annotated[int, "numbers in a tile"] = 16) -> dict:
    """Sum up rows."""
    n = block.mesh.width
    total = block.tiles("total", (size,), np.float32)
    total[...] = block.x[:, None]
    with block.phase("allreduce"):
        middle(block, total)
    return {"wrong": block.control.allreduce(int((total != n * (n - 1) / 2).sum()) if block.payload else 0)}
