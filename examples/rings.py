"""rings.py: C = A B as MeshGEMM has it; tiles of A go round the rows, those of B the columns, two hops at most."""

from typing import Annotated

import numpy as np

from meshrt.mesh import Block, align, gather, interleaved_rings, place, receive, square, start_shift

MESH = (6, 4)


def run(block: Block, *, m: Annotated[int, "A is m x k, B is k x n"] = 50, k: int = 70, n: int = 30) -> dict:
    """Multiply matrices of small whole numbers, and compare with NumPy in float64."""
    left, right = (np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    cut = square(block.mesh)  # as many rows of tiles as columns, on any mesh
    a, b = place(block, "A", left, cut=cut), place(block, "B", right, cut=cut)
    a_next, b_next = (block.tiles(f"{name} next", of.shape[2:], np.float32) for name, of in (("A", a), ("B", b)))
    c = block.tiles("C", (*a.shape[2:5], b.shape[5]), np.float32)
    c[...] = 0
    with interleaved_rings(block) as rings, block.phase("product"):
        align(block, rings, a, b)
        for _ in range(cut[0]):
            flights = start_shift(block, rings.x, a, a_next), start_shift(block, rings.y, b, b_next)
            block.matmul(a, b, c)  # while the next tiles are under way
            receive(block, *flights)
            a, a_next, b, b_next = a_next, a, b_next, b
    product = gather(block, c, (m, n))
    return {} if product is None else {"max_abs_error": float(abs(product - left.astype(float) @ right).max())}
