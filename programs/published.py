"""WaferLLM's published kernels as they are, timed as they were: many runs in a row (programs/mesh/published/).

They differ from `gemm` and `gemv` in little things that cost cycles. `meshrt validate` runs them by shape beside what
they took on a real WSE-3; this runs one of any size, on any device, with numbers.
"""

from functools import cache
from typing import Annotated, Any, Literal

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.collectives.allreduce import ktree
from meshrt.mesh.collectives.rings import interleaved_rings
from meshrt.mesh.tiles import gather, gather_parts, place, square
from meshrt.options import AtLeast
from meshrt.programs.gemm import compare, random_matrices
from meshrt.programs.gemv import place_vector
from meshrt.programs.mesh.published.kernels import aligned, published_meshgemm, published_meshgemv, steady
from meshrt.programs.storage import storage_type

MESH = (8, 8)


def run(
    block: Block,
    *,
    kernel: Annotated[Literal["meshgemm", "meshgemv"], "which one: [M, N] = [M, K] x [K, N], or M = 1"] = "meshgemm",
    m: Annotated[int | None, "meshgemm: rows of A and C  [default: 256]", AtLeast(1)] = None,
    k: Annotated[int, "columns of A, rows of B", AtLeast(1)] = 256,
    n: Annotated[int, "columns of B and C", AtLeast(1)] = 256,
    groups: Annotated[int | None, "meshgemv: of the first phase of its sums  [default: 2]", AtLeast(1)] = None,
    times: Annotated[int, "how often, after once that is not timed", AtLeast(1)] = 1,
    dtype: Annotated[
        Literal["float16", "bfloat16", "float32"], "storage of matrices, and of a GEMV's sums"
    ] = "float16",
    seed: Annotated[int, "of the random numbers", AtLeast(0)] = 0,
) -> dict[str, Any]:
    """Mean cycles of a core and one run, and the result against NumPy in float64."""
    if kernel == "meshgemm" and groups is not None:
        raise UsageError("--groups are those of meshgemv's sums: leave them out with --kernel meshgemm")
    if kernel == "meshgemv" and m is not None:
        raise UsageError("--m: meshgemv has one row; leave it out, or take --kernel meshgemm")
    if kernel == "meshgemm":
        return _meshgemm(block, 256 if m is None else m, k, n, times, dtype, seed)
    return _meshgemv(block, k, n, 2 if groups is None else groups, times, dtype, seed)


def _meshgemm(block: Block, m: int, k: int, n: int, times: int, dtype: str, seed: int) -> dict[str, Any]:
    side = block.mesh.width
    if side != block.mesh.height:
        raise UsageError(f"mesh {side}x{block.mesh.height}: the published meshgemm is for as many columns as rows")
    whole_a, whole_b = random_matrices(seed, (m, k), (k, n), dtype)
    cut, storage, padded = square(block.mesh), storage_type(dtype), (-(-k // side) * side, -(-n // side) * side)
    with interleaved_rings(block) as rings:

        @cache
        def turned() -> np.ndarray:
            matrix = np.zeros(padded, storage)
            matrix[:k, :n] = whole_b()
            return aligned(matrix, rings.columns)

        a = place(block, "A", lambda rows, columns: whole_a()[rows, columns], (m, k), cut, storage)
        b = place(block, "B", lambda rows, columns: turned()[rows, columns], padded, cut, storage)
        results: list[np.ndarray] = []

        def once() -> None:
            results[:] = []  # a core has room for one
            results.append(published_meshgemm(block, rings, a, b))

        cycles = {"cycles_mean": steady(block, once, times)}
    if not block.payload:
        return cycles
    return cycles | compare(block, gather(block, results[0], (m, n)), whole_a, whole_b)


def _meshgemv(block: Block, k: int, n: int, groups: int, times: int, dtype: str, seed: int) -> dict[str, Any]:
    mesh, storage = block.mesh, storage_type(dtype)
    vector, matrix = random_matrices(seed, (1, k), (k, n), dtype)
    b = place(block, "B", lambda rows, columns: matrix()[rows, columns], (k, n), dtype=storage)
    x = place_vector(block, lambda: vector()[0], k, "y", mesh.height, storage)
    results: list[np.ndarray] = []

    def once() -> None:
        results[:] = []
        results.append(published_meshgemv(block, tree, x, b))

    with ktree(block, "y", 2, groups, stored=True) as tree:
        cycles = {"cycles_mean": steady(block, once, times)}
    if not block.payload:
        return cycles
    gathered = gather_parts(block, results[0], (mesh.height, mesh.width, results[0].shape[-1]))
    row = None if gathered is None else gathered[0].astype(np.float32).reshape(1, -1)[:, :n]
    return cycles | compare(block, row, vector, matrix)
