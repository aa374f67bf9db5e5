"""GEMV: right with every allreduce, and for a K-tree of any K and groups, with the stages and hops of the tree."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from measure import measured, own, run_report, whole
from runs import new_block

from meshrt.errors import UsageError
from meshrt.mesh.collectives.allreduce import ktree
from meshrt.mesh.device import Device
from meshrt.programs.gemm import random_matrices
from meshrt.programs.gemv import gemv

RANKS = [1, 2, 3, 4, 6, 9, 16]
MESH = (7, 5)
BAD_GROUPS = [{"groups": groups} for groups in ("0", "6", "2,1", "2;1", "", "two")]


def tree_hops(n: int, phases: int, groups: int | None = None) -> int:
    """Hops of a reduction on a line of n cores, worked out from what a K-tree is.

    Neighbouring members form groups as even as can be, and in each of them packets come in from both ends to the
    middle, so that a group's hops are the distance from its first member to its last. The middles go on to the next
    phase. A phase with r phases to go leaves about m^((r-1)/r) of m members.
    """
    members, hops = list(range(n)), 0
    for to_go in range(phases, 0, -1):
        m = len(members)
        first = to_go == phases and groups is not None and to_go > 1
        count = groups if first and groups is not None else max(1, round(m ** ((to_go - 1) / to_go)))
        parts = [members[low:high] for low, high in pairwise([m * at // count for at in range(count + 1)])]
        hops += sum(part[-1] - part[0] for part in parts)
        members = [part[len(part) // 2] for part in parts]
    return hops


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("phases", [1, 2, 3])
@pytest.mark.parametrize("axis", ["x", "y"])
def test_the_program_is_numpys_product_with_the_trees_counts(axis: str, phases: int, comm):
    n, lines = MESH if axis == "x" else MESH[::-1]
    report = run_report(comm, "gemv", MESH, axis=axis, phases=phases, k=45, n=31)
    assert report["result"]["max_rel_error"] < 1e-6
    counted = report["measured"]
    assert counted["stages"] == lines * (n - 1), "every core but one sends its sum, which is added once"
    assert counted["hops"] == lines * (tree_hops(n, phases) + n - 1), "there and, by multicast, back"
    assert counted["messages"] == lines * n
    kt, nt = -(-45 // n), -(-31 // lines)
    assert counted["macs"] == n * lines * kt * nt
    assert counted["memory_bytes"]["max"] == 4 * (kt * nt + kt + nt + nt), "B, x, y, and the sum that comes in"
    assert counted["route_entries"]["max"] <= 2 * phases + 1


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(6)
@pytest.mark.parametrize("groups", range(1, 12))
def test_any_number_of_groups_will_do(groups: int, comm):
    for phases in (2, 3):
        report = run_report(comm, "gemv", (2, 11), phases=phases, groups=str(groups), k=23, n=5)
        assert report["result"]["max_rel_error"] < 1e-6
        assert report["measured"]["hops"] == 2 * (tree_hops(11, phases, groups) + 10)
        assert report["measured"]["stages"] == 2 * 10


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(("n", "groups"), [(4, 2), (9, 3), (12, 4), (15, 3), (16, 4), (36, 6), (64, 8)])
def test_the_critical_path_has_a_stage_for_every_core_on_the_longer_arm(n: int, groups: int, comm):
    """m members come in over arms of m // 2 and (m - 1) // 2: m / 2 additions one after the other, rounded up."""
    stages_count = Device(name="test", alpha=1.0, beta=1000.0)
    path = run_report(comm, "gemv", (1, n), stages_count, groups=str(groups), k=n, n=1)["measured"]["critical_path"]
    assert path["stages"] == -(-(n // groups) // 2) + -(-groups // 2)
    flat = run_report(comm, "gemv", (1, n), stages_count, phases=1, k=n, n=1)["measured"]["critical_path"]
    assert flat["stages"] == -(-n // 2)


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("axis", ["x", "y"])
def test_the_result_is_replicated_along_the_axis_of_the_sum(axis: str, comm):
    block = new_block(comm, MESH)
    n, lines = MESH if axis == "x" else MESH[::-1]
    vector, matrix = (draw() for draw in random_matrices(4, (1, 3 * n), (3 * n, 2 * lines), "float32"))
    # Core (line, position) holds rows 3 position.. of B and columns 2 line.. of it, and its part of x.
    b = matrix.reshape(n, 3, lines, 2).transpose(2, 0, 1, 3)
    x = np.broadcast_to(vector.reshape(n, 3), (lines, n, 3))
    if axis == "y":
        b, x = b.swapaxes(0, 1), x.swapaxes(0, 1)
    with ktree(block, axis) as tree:
        y = whole(block, gemv(block, tree, own(block, x), own(block, b)))
    y = y if axis == "x" else y.swapaxes(0, 1)  # [lines, n, 2]
    assert (y == y[:, :1]).all()
    exact = (vector.astype(np.float64) @ matrix.astype(np.float64)).reshape(lines, 2)
    assert np.abs(y[:, 0] - exact).max() < 1e-5
    assert measured(block)["stages"] == lines * (n - 1)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("mesh", [(1, 1), (1, 6), (6, 1), (2, 2), (8, 8)], ids=str)
@pytest.mark.parametrize(("k", "n"), [(1, 1), (3, 50), (50, 3), (64, 64)])
def test_sizes_that_do_not_divide_are_padded(mesh: tuple[int, int], k: int, n: int, comm):
    for axis in "xy":
        report = run_report(comm, "gemv", mesh, axis=axis, k=k, n=n)
        assert report["result"]["max_rel_error"] < 1e-6


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_types_are_summed_in_float32(dtype: str, comm):
    report = run_report(comm, "gemv", (3, 4), dtype=dtype, k=100, n=30)
    assert report["result"]["max_rel_error"] < 1e-6
    assert report["measured"]["memory_bytes"]["max"] == 2 * (25 * 10 + 25) + 4 * (10 + 10)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(
    "options", [{"phases": 0}, *BAD_GROUPS, {"k": 0}, {"n": -1}, {"allreduce": "ring", "phases": 2}], ids=str
)
def test_what_makes_no_sense_is_refused(options: dict, comm):
    with pytest.raises(UsageError):
        run_report(comm, "gemv", MESH, **options)


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("allreduce", ["pipeline", "ring"])
@pytest.mark.parametrize("axis", ["x", "y"])
def test_the_baselines_are_numpys_product_too(allreduce: str, axis: str, comm):
    for mesh in (MESH, (4, 9), (1, 16), (16, 1)):
        if comm.size > 1 and mesh != MESH:
            continue
        report = run_report(comm, "gemv", mesh, "wse2", allreduce=allreduce, axis=axis, k=45, n=31)
        assert report["result"]["max_rel_error"] < 1e-6
        assert report["measured"]["route_entries"]["max"] <= 3


@pytest.mark.mpi(ranks=[1])
def test_groups_of_each_phase_are_taken_and_told(comm):
    report = run_report(comm, "gemv", (2, 30), phases=3, groups="8,3", k=60, n=5)
    assert report["result"]["groups"] == [8, 3]
    assert report["result"]["max_rel_error"] < 1e-6
    measured_ones = run_report(comm, "gemv", (2, 30), "wse2", phases=3, k=60, n=5)["result"]["groups"]
    assert 30 > measured_ones[0] > measured_ones[1] > 1
