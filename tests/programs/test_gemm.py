"""MeshGEMM: right for any sizes and meshes, two hops at most, a constant number of routes, double buffers counted."""

from __future__ import annotations

from math import lcm
from typing import Any

import numpy as np
import pytest
from measure import measured, run_report
from runs import new_block

from meshrt.mesh.block import Block
from meshrt.mesh.collectives.rings import interleaved_rings
from meshrt.mesh.tiles import gather, place, square
from meshrt.mesh.wires.fabric import Prepared
from meshrt.programs.gemm import PIECE, ROWS, compare, random_matrices
from meshrt.programs.mesh.meshgemm import meshgemm, meshgemm_t

RANKS = [1, 2, 3, 4, 6, 9, 16]
MESHES = [(1, 1), (2, 2), (3, 3), (4, 2), (3, 5), (8, 8), (1, 7), (6, 4)]
SIZES = [(13, 7, 9), (1, 1, 1), (5, 31, 2), (24, 24, 24)]


def multiply(block: Block, a: np.ndarray, b: np.ndarray, transpose: bool) -> np.ndarray:
    """A B, or A B^T, by the mesh, on every rank."""
    cut = square(block.mesh)
    tiles = [
        place(block, name, lambda rows, columns, whole=whole: whole[rows, columns], whole.shape, cut, whole.dtype)
        for name, whole in (("A", a), ("B", b))
    ]
    with interleaved_rings(block) as rings:
        c = (meshgemm_t if transpose else meshgemm)(block, rings, *tiles)
    product: np.ndarray = block.control.bcast(gather(block, c, (len(a), b.shape[0 if transpose else 1])))
    return product


def assert_product(product: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """Within what K additions in float32 can lose, number by number, of the product in float64."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    assert product.dtype == np.float32
    assert (np.abs(product - a @ b) <= (a.shape[1] + 1) * 2.0**-24 * (np.abs(a) @ np.abs(b))).all()


# ---------------------------------------------------------------------------------------------------------- results


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(20)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_the_product_is_numpys(mesh: tuple[int, int], sizes: tuple[int, int, int], transpose: bool, comm):
    m, k, n = sizes
    a, b = (draw() for draw in random_matrices(1, (m, k), (n, k) if transpose else (k, n), "float32"))
    product = multiply(new_block(comm, mesh), a, b, transpose)
    assert_product(product, a, b.T if transpose else b)


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("mesh", [(5, 5), (4, 6)], ids=str)
def test_the_product_is_numpys_on_any_number_of_ranks(mesh: tuple[int, int], transpose: bool, comm):
    a, b = (draw() for draw in random_matrices(2, (11, 14), (9, 14) if transpose else (14, 9), "float32"))
    assert_product(multiply(new_block(comm, mesh), a, b, transpose), a, b.T if transpose else b)


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("mesh", [(1, 4), (4, 4), (3, 5), (4, 2)], ids=str)
def test_sums_by_the_tree_are_right_and_take_a_stage_an_addition(mesh: tuple[int, int], comm):
    options = {"m": 11, "k": 14, "n": 9, "transpose_b": True}
    tree = run_report(comm, "gemm", mesh, "wse2", reduce="ktree", **options)
    ring = run_report(comm, "gemm", mesh, "wse2", **options)
    assert tree["result"]["max_rel_error"] < 1e-6
    # Each of lcm(W, H) steps ends in a tree on every row of cores: W - 1 additions.
    assert tree["measured"]["stages"] == lcm(*mesh) * mesh[1] * (mesh[0] - 1)
    assert ring["measured"]["stages"] == 0


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_types_are_stored_and_summed_in_float32(dtype: str, transpose: bool, comm):
    a, b = (draw() for draw in random_matrices(3, (10, 33), (7, 33) if transpose else (33, 7), dtype))
    block = new_block(comm, (3, 3))
    assert_product(multiply(block, a, b, transpose), a, b.T if transpose else b)
    # Two bytes a number: the tiles that move round the rings are 4 x 11 of A and 11 x 3 of B, or 4 x 3 sums of C.
    report = measured(block)
    shifts = 3 * 3 // 4 + 3 * 2  # of lines: aligning and in the loop
    moved = 11 * 3 * 2 + (4 * 3 * 4 if transpose else 4 * 11 * 2)
    assert report["link_bytes"]["total"] == shifts * 2 * 2 * moved


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("transpose", [False, True])
def test_the_program_reports_its_error_against_float64(transpose: bool, comm):
    options = {"m": 20, "k": 30, "n": 10, "transpose_b": transpose, "seed": 5}
    result = run_report(comm, "gemm", (3, 3), **options)["result"]
    a, b = (draw() for draw in random_matrices(5, (20, 30), (10, 30) if transpose else (30, 10), "float32"))
    product = multiply(new_block(comm, (3, 3)), a, b, transpose)
    exact = a.astype(np.float64) @ (b.T if transpose else b).astype(np.float64)
    worst = np.abs(product - exact).max()
    assert result == {"max_abs_error": worst, "max_rel_error": worst / np.abs(exact).max()}
    assert 0 < worst < 1e-4


# ---------------------------------------------------------------------------------------------------------- counts


def expected_counts(width: int, height: int) -> dict[str, int]:
    """Hops and messages of A (or of the sums of A B^T) along x and of B along y, worked out on paper.

    There are P = lcm(W, H) places on a ring. Aligning moves the r-th line of tiles by its place the short way: over all
    lines, the sum of min(p, P - p) over p < P, which is P^2 // 4 shifts of one line. The loop shifts all lines of
    cores, P - 1 times. A shift of a line of N cores takes 2 (N - 1) hops in all: with one place a core, N tiles go
    round; with several, one tile each way over each of N - 1 links.
    """
    places = lcm(width, height)
    counts = {"hops": 0, "messages": 0}
    for n, lines in ((width, height), (height, width)):
        shifts = places**2 // 4 + (places - 1) * lines
        counts["hops"] += shifts * 2 * (n - 1)
        counts["messages"] += shifts * (2 * (n - 1) if places > n or n == 1 else n)
    return counts


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(20)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("mesh", [*((n, n) for n in range(1, 17)), (4, 2), (2, 6), (3, 5), (1, 7)], ids=str)
def test_hops_and_messages_are_those_of_the_rings(mesh: tuple[int, int], transpose: bool, comm):
    width, height = mesh
    places = lcm(width, height)
    report = run_report(comm, "gemm", mesh, m=1, k=2 * places, n=3 * places, transpose_b=transpose)["measured"]
    expected = expected_counts(width, height)
    assert {key: report[key] for key in expected} == expected
    assert report["max_hops"] == max(min(n - 1, 2 if n == places else 1) for n in mesh)
    assert report["stages"] == 0
    # Every core multiplies P pairs of its (P / W) (P / H) tiles of 1 x 2 and 2 x 3: padded rows are multiplied too.
    assert report["macs"] == places**3 * 1 * 2 * 3


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("n", [33, 64])
def test_no_tile_moves_more_than_two_hops_on_a_long_line(n: int, comm):
    report = run_report(comm, "gemm", (n, n), m=n, k=n, n=n)
    assert report["measured"]["max_hops"] == 2
    assert report["measured"]["hops"] == expected_counts(n, n)["hops"]
    assert report["result"]["max_rel_error"] < 1e-6
    # Aligning A takes N - 1 shifts one after the other, B as many, the loop too; each has two hops at most.
    assert report["measured"]["critical_path"]["hops"] <= 2 * 3 * (n - 1)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("transpose", [False, True])
def test_route_entries_do_not_grow_with_the_line(transpose: bool, comm):
    entries = {
        n: run_report(comm, "gemm", (n, n), m=n, k=n, n=n, transpose_b=transpose)["measured"]["route_entries"]["max"]
        for n in (5, 6, 9, 16, 24)
    }
    assert set(entries.values()) == {12}  # three for each direction of a ring, both ways, both axes


# ---------------------------------------------------------------------------------------------------------- memory


def bytes_of(*shape: int) -> int:
    return int(np.prod(shape)) * 4


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("mesh", [(2, 2), (4, 4), (4, 6)], ids=str)
def test_memory_holds_both_operands_three_times_and_the_sums(mesh: tuple[int, int], transpose: bool, comm):
    """A, B at home; what moves twice more, the tile in use and the one coming in; and C. Padding takes its part."""
    width, height = mesh
    places = lcm(width, height)
    m, k, n = 13, 25, 10
    mt, kt, nt = (-(-size // places) for size in (m, k, n))
    each = (places // width) * (places // height)
    a, b, c = (each * bytes_of(*tile) for tile in ((mt, kt), (kt, nt), (mt, nt)))
    report: dict[str, Any] = run_report(comm, "gemm", mesh, m=m, k=k, n=n, transpose_b=transpose)
    expected = a + b + (2 * b + 2 * c if transpose else 2 * (a + b) + c)
    assert report["measured"]["memory_bytes"]["max"] == expected


def test_random_matrices_are_drawn_one_after_the_other_each_time() -> None:
    """Nobody keeps them: B alone is what it is after A, also where A has more numbers than are drawn at a time."""
    sizes = (3, PIECE), (5, 7)
    a, b = random_matrices(4, *sizes, "float32")
    numbers = np.random.default_rng(4)
    expected = [numbers.standard_normal(shape, np.float32) for shape in sizes]
    for _ in range(2):
        np.testing.assert_array_equal(b(), expected[1])
        np.testing.assert_array_equal(a(), expected[0])


@pytest.mark.mpi(ranks=[1, 4])
def test_plans_that_are_used_once_are_not_kept(comm):
    """Each step of aligning has lines of its own; what is the same on any line stays, and so do results and times."""
    whole, results = np.random.default_rng(0).standard_normal((17, 17), np.float32), []
    for once in (False, True):
        block = new_block(comm, (6, 6), "wse2")
        cut = square(block.mesh)
        a, b = (place(block, name, lambda *part: whole[part], whole.shape, cut, np.float32) for name in "AB")
        with interleaved_rings(block) as rings:
            c = meshgemm(block, rings, a, b, once=once)
            channels = [channel for ring in (rings.back_x, rings.back_y) for channel, _ in ring.channels]
            kept = [entry for channel in channels for entry in channel.cache.values() if isinstance(entry, Prepared)]
            assert not kept if once else len(kept) > 1
        results.append((c.tobytes(), block.clock.state.tobytes(), measured(block)["hops"]))
    assert results[0] == results[1]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("row", [0, ROWS - 1, ROWS, ROWS + 2])
def test_a_wrong_number_is_found_in_any_row(row: int, comm) -> None:
    """Errors are looked for in some rows at a time."""
    block = new_block(comm, (1, 1))
    a, b = (matrix() for matrix in random_matrices(2, (ROWS + 3, 6), (6, 4), "float32"))
    expected = a.astype(np.float64) @ b.astype(np.float64)
    product = expected.copy()
    product[row, 1] += 1000
    errors = compare(block, product, lambda: a, lambda: b)
    worst, largest = float(np.abs(product - expected).max()), float(np.abs(expected).max())
    assert errors == {"max_abs_error": worst, "max_rel_error": worst / largest}
    product[row, 1] = np.nan
    assert np.isnan(compare(block, product, lambda: a, lambda: b)["max_abs_error"])
