"""halo.py: a grid cut into tiles; before each step every core gets the edges of its four neighbours' tiles."""

from contextlib import ExitStack
from typing import Annotated

import numpy as np

from meshrt.mesh import Block, chain, gather, installed, place, receive, send

MESH = (4, 4)


def run(block: Block, *, size: Annotated[int, "rows and columns of a tile"] = 16, steps: int = 10) -> dict:
    """Take the mean of every cell's neighbours, again and again, with zeros around the grid; compare with NumPy."""
    shape = block.mesh.height * size, block.mesh.width * size
    grid = np.pad(np.random.default_rng(0).random(shape, np.float32), 1)
    whole = grid[1:-1, 1:-1]
    tiles = block.tiles("tiles with edges", (size + 2, size + 2), np.float32)
    tiles[...] = 0  # at the border of the mesh nothing comes in, and the zeros stay
    inside = tiles[..., 1:-1, 1:-1]
    inside[...] = place(block, "grid", whole)
    with ExitStack() as stack, block.phase("steps"):
        edges = []
        for axis, step, leaves, comes in (("x", 1, -2, 0), ("x", -1, 1, -1), ("y", 1, -2, 0), ("y", -1, 1, -1)):
            way = stack.enter_context(installed(block, axis, chain, step))
            lines = tiles[:, :, 1:-1] if axis == "x" else tiles[..., 1:-1].swapaxes(2, 3)
            edges.append((way, lines[..., leaves], lines[..., comes]))
        for _ in range(steps):
            receive(block, *[send(block, *edge) for edge in edges])  # all four are under way at once
            for a in (tiles, grid):
                a[..., 1:-1, 1:-1] = (a[..., 1:-1, :-2] + a[..., 1:-1, 2:] + a[..., :-2, 1:-1] + a[..., 2:, 1:-1]) / 4
            block.elementwise(inside, calls=4)
    result = gather(block, inside, shape)
    return {} if result is None else {"wrong": int((result != whole).sum())}
