"""C = A B, or A B^T, on the mesh: MeshGEMM, and what it is measured against (waferllm, sections 5 and 7.2).

    meshgemm   tiles go round interleaved rings: two hops at most (programs/mesh/meshgemm.py)
    cannon     the same loop on plain rings: the last tile of a line goes N - 1 hops back to the first core
    summa      at every step a column of A and a row of B are broadcast (programs/mesh/baselines/summa.py)
    allgather  all of a row's A and a column's B come first, then one product

On a W x H mesh all of them cut A, B and C into lcm(W, H) tiles along either axis, one a core where it is square.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from time import perf_counter, process_time
from typing import Annotated, Any, Literal

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.collectives.allreduce import ktree
from meshrt.mesh.collectives.broadcast import spreads
from meshrt.mesh.collectives.rings import interleaved_rings, plain_rings
from meshrt.mesh.tiles import gather, place, square
from meshrt.options import AtLeast
from meshrt.programs.mesh.baselines.summa import allgather_gemm, summa
from meshrt.programs.mesh.meshgemm import meshgemm, meshgemm_t, meshgemm_t_by_tree
from meshrt.programs.storage import storage_type
from meshrt.ranks import hostmemory

MESH = (8, 8)
ROWS = 512  # of a product, whose true values are there at a time
PIECE = 2**16  # numbers that are drawn at a time, where nobody wants them


def run(
    block: Block,
    *,
    algorithm: Annotated[
        Literal["meshgemm", "cannon", "summa", "allgather"], "how the product is computed"
    ] = "meshgemm",
    m: Annotated[int, "rows of A and C", AtLeast(1)] = 256,
    k: Annotated[int, "columns of A", AtLeast(1)] = 256,
    n: Annotated[int, "columns of C", AtLeast(1)] = 256,
    transpose_b: Annotated[bool, "compute A B^T, with B given as N x K"] = False,
    reduce: Annotated[Literal["ring", "ktree"], "how A B^T is summed: on the way round a ring, or by a tree"] = "ring",
    segment: Annotated[
        int | None,
        "summa, allgather: cores that a route reaches, then software relays  [default: as the tables allow]",
        AtLeast(1),
    ] = None,
    steps_run: Annotated[
        int | None,
        "run so many steps of the loop, count the last for the others; summa: so many stretches of either half, each of"
        " two to three segments' steps; --payload none",
        AtLeast(1),
    ] = None,
    lockstep: Annotated[bool, "all cores begin every step together, as after a barrier that costs nothing"] = False,
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], "storage of A and B; sums are float32"] = "float32",
    seed: Annotated[int, "of the random numbers in A and B", AtLeast(0)] = 0,
    times: Annotated[int, "how often; the host's time of all is in the report", AtLeast(1)] = 1,
) -> dict[str, Any]:
    """Multiply two random matrices, and compare the result with NumPy in float64."""
    check_options(algorithm, transpose_b, reduce, segment, lockstep, steps_run)
    if steps_run is not None and block.payload:
        raise UsageError("--steps-run leaves numbers out: add --payload none")
    shape_a, shape_b = (m, k), (n, k) if transpose_b else (k, n)
    whole_a, whole_b = random_matrices(seed, shape_a, shape_b, dtype)
    cut, storage = square(block.mesh), storage_type(dtype)
    a = place(block, "A", lambda rows, columns: whole_a()[rows, columns], shape_a, cut, storage)
    b = place(block, "B", lambda rows, columns: whole_b()[rows, columns], shape_b, cut, storage)
    begin, spent = perf_counter(), process_time()
    with product_of(block, algorithm, transpose_b, reduce, segment, lockstep, steps_run, times == 1) as multiply:
        for _ in range(times):
            c = multiply(a, b)
    block.notes["product_seconds"] = perf_counter() - begin
    block.notes["product_cpu_seconds"] = block.control.allreduce(process_time() - spent)
    if not block.payload:
        return {}
    product = gather(block, c, (m, n))
    del a, b, c  # the comparison takes room of its own
    hostmemory.give_back()
    return compare(block, product, whole_a, (lambda: whole_b().T) if transpose_b else whole_b)


def check_options(
    algorithm: str, transpose_b: bool, reduce: str, segment: int | None, lockstep: bool, steps_run: int | None
) -> None:
    """UsageError for options that an algorithm has no use for."""
    if reduce == "ktree" and not transpose_b:
        raise UsageError("--reduce ktree is a way to compute A B^T: add --transpose-b")
    if transpose_b and algorithm != "meshgemm":
        raise UsageError(f"--algorithm {algorithm} computes A B only: leave out --transpose-b, or take meshgemm")
    if segment is not None and algorithm not in ("summa", "allgather"):
        raise UsageError(f"--segment {segment} is for --algorithm summa and allgather: {algorithm} broadcasts nothing")
    if lockstep and (transpose_b or algorithm == "allgather"):
        raise UsageError("--lockstep is for the steps of A B by meshgemm, cannon or summa")
    if steps_run is not None and (algorithm == "allgather" or reduce == "ktree"):
        raise UsageError(
            "--steps-run is for the loops of meshgemm, cannon and summa, not for allgather or --reduce ktree"
        )


TilesProduct = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of tiles of A and B


@contextmanager
def product_of(
    block: Block, algorithm: str, transpose_b: bool, reduce: str, segment: int | None, lockstep: bool,
    steps_run: int | None, once: bool,
) -> Iterator[TilesProduct]:  # fmt: skip
    """The product by that algorithm, with its routes installed. `once`: it is asked for one time only."""
    if algorithm in ("summa", "allgather"):
        with spreads(block, segment) as (along_x, along_y):
            if algorithm == "summa":
                yield lambda a, b: summa(block, along_x, along_y, a, b, lockstep, steps_run)
            else:
                yield lambda a, b: allgather_gemm(block, along_x, along_y, a, b)
        return
    with (interleaved_rings if algorithm == "meshgemm" else plain_rings)(block) as rings:
        if not transpose_b:
            yield lambda a, b: meshgemm(block, rings, a, b, lockstep, sample=steps_run, once=once)
        elif reduce == "ring":
            yield lambda a, b: meshgemm_t(block, rings, a, b, sample=steps_run)
        else:
            with ktree(block, "x") as tree:
                yield lambda a, b: meshgemm_t_by_tree(block, rings, tree, a, b)


def random_matrices(
    seed: int, a: tuple[int, int], b: tuple[int, int], dtype: str
) -> tuple[Callable[[], np.ndarray], Callable[[], np.ndarray]]:
    """Two matrices of standard normal numbers in a storage type, the same on every rank and each time.

    Each is made whenever it is asked for, so that nobody has to keep them, and a core which has no room for its tiles
    refuses them before.
    """
    storage = storage_type(dtype)

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        item_bytes = 4 if storage == np.float32 else 4 + storage.itemsize  # float32 first
        hostmemory.require(f"random numbers for a matrix of {shape[0]} x {shape[1]}", item_bytes * prod(shape))
        return rng.standard_normal(shape, np.float32).astype(storage, copy=False)

    def matrix_a() -> np.ndarray:
        return draw(np.random.default_rng(seed), a)

    def matrix_b() -> np.ndarray:
        rng = np.random.default_rng(seed)
        for low in range(0, prod(a), PIECE):  # the numbers of A come first
            rng.standard_normal(min(PIECE, prod(a) - low), np.float32)
        return draw(rng, b)

    return matrix_a, matrix_b


def compare(
    block: Block, product: np.ndarray | None, a: Callable[[], np.ndarray], b: Callable[[], np.ndarray]
) -> dict[str, Any]:  # fmt: skip
    """Errors against NumPy in float64, on every rank: the largest, and the largest over the largest true value."""
    errors = None
    if product is not None:
        true_b = b().astype(np.float64)  # before A is there: it takes the most room
        worst, largest = _errors(product, a(), true_b)
        errors = {"max_abs_error": worst, "max_rel_error": worst / (largest or 1.0)}
    result: dict[str, Any] = block.control.bcast(errors)
    return result


def _errors(product: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """(largest error, largest true value) of a product; b in float64. Some rows at a time: float64 takes much room."""
    worst, largest = [], []
    for low in range(0, len(a), ROWS):
        rows = slice(low, low + ROWS)
        expected = a[rows].astype(np.float64) @ b
        largest.append(abs(max(expected.max(), -expected.min())))
        np.subtract(product[rows], expected, out=expected)
        worst.append(np.abs(expected, out=expected).max())
    return float(np.max(worst)), float(np.max(largest))
