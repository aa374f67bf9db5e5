"""The published kernels: right to NumPy at sizes that fit nowhere, in a steady state, the same on any ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from measure import measured, on_one_rank, run_report
from runs import new_block

from meshrt.errors import UsageError
from meshrt.mesh.collectives.allreduce import ktree
from meshrt.mesh.presets import WSE3
from meshrt.mesh.wires.routes import ring_place
from meshrt.programs.mesh.published.kernels import aligned, published_meshgemv, steady

SIDES = [1, 2, 3, 5, 6]
SIZES = [(13, 7, 9), (1, 1, 1), (5, 31, 12)]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("side", [1, 2, 3, 5])
@pytest.mark.parametrize("size", SIZES[:2])
def test_meshgemm_is_right_however_often(side: int, size: tuple[int, int, int], comm: Any) -> None:
    is_right(comm, side, size)


@pytest.mark.mpi(ranks=[2, 4])
@pytest.mark.parametrize("side", [2, 6])
@pytest.mark.parametrize("size", SIZES[1:])
def test_meshgemm_is_right_on_several_ranks(side: int, size: tuple[int, int, int], comm: Any) -> None:
    is_right(comm, side, size)


def is_right(comm: Any, side: int, size: tuple[int, int, int]) -> None:
    m, k, n = size
    options: dict[str, Any] = {"m": m, "k": k, "n": n, "times": 2, "dtype": "float32"}
    report = run_report(comm, "published", (side, side), WSE3, **options)
    assert report["result"]["max_rel_error"] < 1e-5
    by_shape = run_report(comm, "published", (side, side), WSE3, payload=False, **options)
    assert by_shape["result"]["cycles_mean"] == report["result"]["cycles_mean"]
    assert by_shape["measured"] == report["measured"]


@pytest.mark.mpi(ranks=[1, 2, 4])
@pytest.mark.parametrize("groups", [1, 3, 8])
@pytest.mark.parametrize("size", [(7, 9), (31, 12)])
def test_meshgemv_is_right_however_often(groups: int, size: tuple[int, int], comm: Any) -> None:
    k, n = size
    options: dict[str, Any] = {"kernel": "meshgemv", "k": k, "n": n, "groups": groups, "times": 2, "dtype": "float32"}
    report = run_report(comm, "published", (4, 8), WSE3, **options)
    assert report["result"]["max_rel_error"] < 1e-5
    by_shape = run_report(comm, "published", (4, 8), WSE3, payload=False, **options)
    assert by_shape["result"]["cycles_mean"] == report["result"]["cycles_mean"]
    assert by_shape["measured"] == report["measured"]


@pytest.mark.mpi(ranks=[1])
def test_meshgemv_sums_in_half_precision(comm: Any) -> None:
    options: dict[str, Any] = {"kernel": "meshgemv", "k": 64, "n": 8, "groups": 2}
    half = run_report(comm, "published", (4, 8), WSE3, **options)
    assert 1e-5 < half["result"]["max_rel_error"] < 1e-2
    assert half["measured"]["link_bytes"]["total"] == 2 * 4 * (6 + 4 + 7) * 4  # two runs, columns, hops, bytes


@pytest.mark.mpi(ranks=[1, 4])
def test_a_run_of_many_takes_as_long_as_one(comm: Any) -> None:
    """After the first: the state is steady, and the mean of any number is the same."""
    for options in ({"m": 24, "k": 12, "n": 18}, {"kernel": "meshgemv", "k": 24, "n": 12, "groups": 3}):
        cycles = {
            times: run_report(comm, "published", (6, 6), WSE3, payload=False, times=times, **options)["result"]
            for times in (1, 5)
        }
        assert cycles[1] == cycles[5]


@pytest.mark.mpi(ranks=[1, 4])
def test_mean_cycles_do_not_depend_on_the_ranks(comm: Any) -> None:
    def once(other: Any) -> Any:
        report = run_report(other, "published", (8, 8), WSE3, m=17, k=25, n=9, times=3)
        del report["host"]
        return report

    assert once(comm) == on_one_rank(comm, once)


@pytest.mark.parametrize("side", SIDES)
def test_aligned_tiles_stand_as_far_on_as_their_column(side: int) -> None:
    """On the ring along y, of the tiles of a column, counted from the core's own place."""
    places = tuple(ring_place(side))
    matrix = np.arange(side * 2 * side * 3).reshape(2 * side, 3 * side)
    turned = aligned(matrix, places)
    for y in range(side):
        for x in range(side):
            row = places.index((places[y] + places[x]) % side)
            expected = matrix[2 * row : 2 * row + 2, 3 * x : 3 * x + 3]
            assert (turned[2 * y : 2 * y + 2, 3 * x : 3 * x + 3] == expected).all()


@pytest.mark.mpi(ranks=[1])
def test_a_stored_sum_waits_for_its_words_at_each_root(comm: Any) -> None:
    """Stored, a long tile costs its words once for each of three transfers; less where words stream through."""
    spent = {}
    for stored in (False, True):
        for words in (1, 6):  # so few that the arms of a group do not meet at its root
            block = new_block(comm, (1, 16), WSE3, payload=False)
            with ktree(block, "y", 2, 4, stored=stored) as tree:
                x, b = block.tiles("x", (1,), np.float16), block.tiles("B", (1, 2 * words), np.float16)
                spent[stored, words] = steady(
                    block, lambda t=tree, x=x, b=b, on=block: published_meshgemv(on, t, x, b), 1
                )
            measured(block)
    product = 1.5 * (2 * 5) / 8
    assert 5 + product <= spent[False, 6] - spent[False, 1] < 3 * 5 + product
    assert spent[True, 6] - spent[True, 1] == 3 * 5 + product


@pytest.mark.mpi(ranks=[1])
def test_meshes_that_it_is_not_for_are_refused(comm: Any) -> None:
    with pytest.raises(UsageError, match="mesh 4x6: the published meshgemm is for as many columns as rows"):
        run_report(comm, "published", (4, 6), WSE3)
