"""stationary.py: C = A B with A left where it is; tiles of B go down the columns, and sums along the rows."""

from typing import Annotated

import numpy as np

from meshrt.mesh import Block, allreduce, gather, installed, ktree, multicast, place, transfer

MESH = (6, 4)


def run(block: Block, *, m: Annotated[int, "A is m x k, B is k x n"] = 50, k: int = 70, n: int = 30) -> dict:
    """Multiply matrices of small whole numbers, and compare with NumPy in float64."""
    height, width = block.mesh.height, block.mesh.width
    left, right = (np.random.default_rng(0).integers(-3, 4, cut).astype(np.float32) for cut in ((m, k), (k, n)))
    a = place(block, "A", left)
    b = place(block, "B", right.T)
    panel = block.tiles("tile of B", b.shape[2:], np.float32)
    share = -(-height // width)  # tiles of C at a core: it has as many columns of tiles as there are rows of cores
    c = block.tiles("C", (1, share, a.shape[2], b.shape[2]), np.float32)
    c[...] = 0
    with ktree(block, "x") as tree, block.phase("product"):
        for row in range(height):
            panel[block.y == row] = b[block.y == row]  # a multicast brings it to all others
            with installed(block, "y", multicast, row) as down:
                transfer(block, down, b, panel)
            total = block.matmul(a, panel.swapaxes(-1, -2))
            allreduce(block, tree, total, out=total)
            keeps = block.x == row // share
            c[:, keeps, 0, row % share] = total[:, keeps]
    product = gather(block, c, (m, n))
    return {} if product is None else {"max_abs_error": float(abs(product - left.astype(float) @ right).max())}
