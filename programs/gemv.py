"""y = x B on the mesh: a product at every core, and a K-tree allreduce of the partial sums (waferllm, section 6).

    x is cut along one axis and replicated along the other; B[K, N] has its rows cut along the axis of x
    each core     y_sub = x_sub B_sub
    K phases      groups of cores reduce y_sub to their middle one, then the groups' roots do, ...
    the root      sends y_sub back to all, so that y is replicated along the axis that was summed over

Routes per core: two colours for each phase, one for the way back.
"""

from typing import Annotated, Any, Literal

import numpy as np

from meshrt.allreduce import Tree, ktree
from meshrt.allreduce import allreduce as tree_allreduce
from meshrt.block import Block
from meshrt.errors import UsageError
from meshrt.programs.gemm import compare, random_matrices
from meshrt.tiles import gather_parts, place

MESH = (8, 8)


def run(
    block: Block,
    *,
    allreduce: Annotated[Literal["ktree"], "how partial sums are added"] = "ktree",
    phases: Annotated[int, "K: phases of the tree"] = 2,
    groups: Annotated[int | None, "groups in the first phase  [default: near N^((K-1)/K)]"] = None,
    axis: Annotated[Literal["x", "y"], "axis that the rows of B are cut along and sums are taken over"] = "y",
    k: Annotated[int, "length of x, rows of B"] = 256,
    n: Annotated[int, "columns of B, length of y"] = 256,
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], "storage of x and B; sums are float32"] = "float32",
    seed: Annotated[int, "of the random numbers in x and B"] = 0,
) -> dict[str, Any]:
    """Multiply a random vector and matrix, and compare the result with NumPy in float64."""
    for name, size in (("k", k), ("n", n)):
        if size < 1:
            raise UsageError(f"--{name} is {size}; sizes start at 1")
    vector, matrix = random_matrices(seed, (1, k), (k, n), dtype)
    mesh = block.mesh
    if axis == "y":  # B[K_y, N_x], x[K^x_y]
        cut, parts = (mesh.height, mesh.width), mesh.height
        b = place(block, "B", lambda rows, columns: matrix[rows, columns], (k, n), cut, matrix.dtype)[:, :, 0, 0]
    else:  # B[K_x, N_y], held as its transpose so that the rows of a tile are along y
        cut, parts = (mesh.height, mesh.width), mesh.width
        b = place(block, "B", lambda rows, columns: matrix.T[rows, columns], (n, k), cut, matrix.dtype)[:, :, 0, 0]
        b = b.swapaxes(-1, -2)
    x = place_vector(block, vector[0], axis, parts)
    with ktree(block, axis, phases, groups) as tree, block.memory.hold("y", 4 * b.shape[-1]):
        y = gemv(block, tree, x, b)
    if not block.payload:
        return {}
    found = gather_parts(block, y, (mesh.height, mesh.width, y.shape[-1]))
    whole = None
    if found is not None:
        whole = (found[:, 0] if axis == "x" else found[0]).reshape(1, -1)[:, :n]
    return compare(block, whole, vector, matrix)


def gemv(block: Block, tree: Tree, x: np.ndarray, b: np.ndarray) -> np.ndarray:
    """x: [bh, bw, Kt], b: [bh, bw, Kt, Nt] -> y: float32 [bh, bw, Nt], summed along the tree's axis."""
    return tree_allreduce(block, tree, block.matmul(x[:, :, None], b)[:, :, 0])


def place_vector(block: Block, vector: np.ndarray, axis: str, parts: int) -> np.ndarray:
    """A vector cut along the axis and replicated along the other: [bh, bw, Kt], zero where padded."""
    size = -(-len(vector) // parts)
    tiles = block.tiles("x", (size,), vector.dtype)
    padded = np.zeros(parts * size, vector.dtype)
    padded[: len(vector)] = vector
    low = block.mesh.offset(axis)
    own = padded.reshape(parts, size)[low : low + block.lead[1 if axis == "x" else 0]]
    tiles[...] = own[None] if axis == "x" else own[:, None]
    return tiles
