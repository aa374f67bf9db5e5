"""transpose.py: the transpose of a matrix; the tile of core (x, y) goes along its row, then a column, to (y, x)."""

from typing import Annotated

import numpy as np

from meshrt.mesh import Block, UsageError, gather, installed, place, transfer

MESH = (4, 4)


def path(x: int, y: int) -> list[tuple[int, int]]:
    """From core (x, y) along its row to the diagonal, and from there along the column to core (y, x)."""
    step = 1 if x < y else -1
    return [*((at, y) for at in range(x, y, step)), *((y, at) for at in range(y, x - step, -step))]


def run(block: Block, *, size: Annotated[int, "rows and columns of a tile"] = 16) -> dict:
    """Transpose a matrix on a square mesh, and count the numbers that are not where NumPy has them."""
    n = block.mesh.width
    if block.mesh.height != n:
        raise UsageError(f"mesh {n}x{block.mesh.height} is not square: the tile of core (x, y) goes to core (y, x)")
    matrix = np.random.default_rng(0).random((n * size, n * size), np.float32)
    tiles = place(block, "A", matrix)
    transposed = block.tiles("A transposed", tiles.shape[2:], np.float32)
    transposed[...] = tiles  # the diagonal stays
    paths = [path(x, y) for x in range(n) for y in range(n) if x != y]
    with installed(block, None, paths) as ways, block.phase("transpose"):
        transfer(block, ways, tiles, transposed)
    whole = gather(block, transposed.swapaxes(-1, -2), matrix.shape)
    return {} if whole is None else {"wrong": int((whole != matrix.T).sum())}
