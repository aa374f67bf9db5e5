"""y = x B on the mesh: a product at every core, and an allreduce of the partial sums (waferllm, section 6).

x is cut along one axis and replicated along the other; B[K, N] has its rows cut along the axis of x
each core     y_sub = x_sub B_sub
allreduce     y_sub is summed along the axis and replicated along it
  ktree       in K phases groups of cores reduce y_sub to their middle one, then the groups' roots do, ...; the last
              root sends it back to all. Routes per core: two colours for each phase, one for the way back
  pipeline    every core adds to what comes from one end and passes it on; the other end sends it back to all
  ring        N chunks of y_sub go round, summed up on the way, and then round again to all
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np

from meshrt import whole
from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.collectives.allreduce import Pattern, pattern
from meshrt.mesh.collectives.allreduce import allreduce as add_up
from meshrt.mesh.collectives.treeplan import MOST_PHASES
from meshrt.mesh.collectives.trees import Tree
from meshrt.mesh.tiles import gather_parts, place
from meshrt.options import AtLeast, AtMost, Listed
from meshrt.programs.gemm import compare, random_matrices
from meshrt.programs.storage import storage_type

MESH = (8, 8)


def run(
    block: Block,
    *,
    allreduce: Annotated[Literal["ktree", "pipeline", "ring"], "how partial sums are added"] = "ktree",
    phases: Annotated[int | None, "K: phases of the tree  [default: 2]", AtLeast(1), AtMost(MOST_PHASES)] = None,
    groups: Annotated[
        str | None, "groups in its phases but the last, as 24 or 24,5  [default: measured]", Listed()
    ] = None,
    axis: Annotated[Literal["x", "y"], "axis that the rows of B are cut along and sums are taken over"] = "y",
    k: Annotated[int, "length of x, rows of B", AtLeast(1)] = 256,
    n: Annotated[int, "columns of B, length of y", AtLeast(1)] = 256,
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], "storage of x and B; sums are float32"] = "float32",
    seed: Annotated[int, "of the random numbers in x and B", AtLeast(0)] = 0,
) -> dict[str, Any]:
    """Multiply a random vector and matrix, and compare the result with NumPy in float64."""
    if allreduce != "ktree" and (phases, groups) != (None, None):
        raise UsageError(f"--phases and --groups are numbers of a K-tree: leave them out with --allreduce {allreduce}")
    counts = None if groups is None else whole_numbers(groups)
    vector, matrix = random_matrices(seed, (1, k), (k, n), dtype)
    mesh, storage = block.mesh, storage_type(dtype)
    if axis == "y":  # B[K_y, N_x], x[K^x_y]
        b = place(block, "B", lambda rows, columns: matrix()[rows, columns], (k, n), dtype=storage)
    else:  # B[K_x, N_y], held as its transpose so that the rows of a tile are along y
        b = place(block, "B", lambda rows, columns: matrix().T[rows, columns], (n, k), dtype=storage).swapaxes(-1, -2)
    x = place_vector(block, lambda: vector()[0], k, axis, mesh.length(axis), storage)
    with pattern(block, allreduce, axis, 2 if phases is None else phases, counts, 4 * b.shape[-1]) as way:
        y = gemv(block, way, x, b)
    chosen = {"groups": list(way.groups)} if isinstance(way, Tree) and allreduce == "ktree" else {}
    if not block.payload:
        return chosen
    gathered = gather_parts(block, y, (mesh.height, mesh.width, y.shape[-1]))
    row = None
    if gathered is not None:
        row = (gathered[:, 0] if axis == "x" else gathered[0]).reshape(1, -1)[:, :n]
    return chosen | compare(block, row, vector, matrix)


def whole_numbers(text: str) -> tuple[int, ...]:
    """'24,5' -> (24, 5). UsageError."""
    try:
        return tuple(whole.whole_numbers(text))
    except ValueError:
        raise UsageError(f"--groups {text}: give whole numbers with commas between them, such as 24 or 24,5") from None


def gemv(block: Block, way: Pattern, x: np.ndarray, b: np.ndarray) -> np.ndarray:
    """x: [bh, bw, Kt], b: [bh, bw, Kt, Nt] -> y: float32 [bh, bw, Nt], summed along the axis of the allreduce."""
    y = block.matmul(x[:, :, None], b)[:, :, 0]
    return add_up(block, way, y, out=y)


def place_vector(
    block: Block, read: Callable[[], np.ndarray], length: int, axis: str, parts: int, dtype: np.dtype[Any]
) -> np.ndarray:
    """A vector cut along the axis and replicated along the other: [bh, bw, Kt], zero where padded. LimitError."""
    size = -(-length // parts)
    tiles = block.tiles("x", (size,), dtype)
    if not block.payload:
        tiles[...] = 0
        return tiles
    padded = np.zeros(parts * size, dtype)
    padded[:length] = read()
    low = block.mesh.offset(axis)
    pieces = padded.reshape(parts, size)[low : low + block.shape[1 if axis == "x" else 0]]
    tiles[...] = pieces[None] if axis == "x" else pieces[:, None]
    return tiles
