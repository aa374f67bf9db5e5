"""T10's and Ladder's products and sums: NumPy's numbers on any mesh, and what not knowing the mesh costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from measure import measured, numbered, own, whole
from random_models import BASE, random_checkpoint
from runs import NETWORK, new_block

import meshrt
from meshrt.mesh.block import Block
from meshrt.mesh.collectives.allreduce import allreduce, ktree
from meshrt.mesh.collectives.rings import interleaved_rings
from meshrt.mesh.device import Device
from meshrt.mesh.exchange.exchange import crossbar
from meshrt.mesh.presets import WSE2
from meshrt.mesh.tiles import gather, place, square
from meshrt.programs.gemm import random_matrices
from meshrt.programs.mesh.baselines import inferred, ladder, ladderinferred, t10
from meshrt.programs.mesh.baselines.groups import Groups, whole_line
from meshrt.programs.mesh.meshgemm import meshgemm

SLOW = Device(name="slow", alpha=1.5, beta=7.0, link_bytes_per_cycle=4.0, macs_per_cycle=2.0, call_cycles=11.0)
SYSTEMS = [t10, inferred, ladder, ladderinferred]
SUMS = [t10.allreduce, ladder.allreduce, ladder.allreduce_by_all]
ALL_SUMS = [*SUMS, inferred.allreduce, ladderinferred.allreduce]
MESHES = [(1, 1), (2, 2), (3, 3), (4, 2), (3, 5), (8, 8), (1, 7)]


def name(value: Any) -> str:
    return value.__name__.rpartition(".")[2] if isinstance(value, ModuleType) else str(value)


def called(function: Callable[..., Any]) -> str:
    return f"{function.__module__.rpartition('.')[2]} {function.__name__}"


def operands(block: Block, m: int, k: int, n: int, transpose: bool) -> tuple[np.ndarray, ...]:
    """A and B, whole and as tiles."""
    a, b = (draw() for draw in random_matrices(1, (m, k), (n, k) if transpose else (k, n), "float32"))
    cut = square(block.mesh)
    tiles = (place(block, which, lambda r, c, matrix=matrix: matrix[r, c], matrix.shape, cut, matrix.dtype)
             for which, matrix in (("A", a), ("B", b)))  # fmt: skip
    return a, b, *tiles


def assert_close(product: np.ndarray, exact: np.ndarray) -> None:
    assert np.abs(product - exact).max() <= 1e-5 * np.abs(exact).max()


def multiply(block: Block, system: Any, sizes: tuple[int, int, int], transpose: bool) -> np.ndarray:
    """Multiply on the mesh; check the product where there are numbers."""
    m, k, n = sizes
    a, b, *tiles = operands(block, m, k, n, transpose)
    with crossbar(block) as bar:
        c = (system.gemm_t if transpose else system.gemm)(block, bar, *tiles)
    if block.payload:
        product = block.control.bcast(gather(block, c, (m, n)))
        assert_close(product, a.astype(float) @ (b.T if transpose else b).astype(float))
        assert c.dtype == np.float32
    return c


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(14)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("system", SYSTEMS, ids=name)
def test_the_product_is_numpys(system: Any, mesh: tuple[int, int], transpose: bool, comm):
    block = new_block(comm, mesh)
    multiply(block, system, (13, 7, 9), transpose)
    assert measured(block)["route_entries"]["max"] <= 8


@pytest.mark.mpi(ranks=[2, 6, 9])
@pytest.mark.sample(4)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("system", SYSTEMS, ids=name)
def test_counts_do_not_depend_on_ranks_or_payloads(system: Any, transpose: bool, comm):
    from mpi4py import MPI

    mesh = (3, 3) if comm.size == 9 else (4, 3)  # one tile a core, and several
    reports = []
    for where, payload in ((comm, True), (comm, False), (MPI.COMM_SELF, True)):
        block = new_block(where, mesh, SLOW, payload)
        multiply(block, system, (5, 12, 7), transpose)
        reports.append(measured(block))
        del reports[-1]["host"]
    assert reports[0] == reports[1] == reports[2]


def in_groups(block: Block, system: Any, groups: Groups, transpose: bool) -> None:
    """Q K^T or S V of heads in groups, two heads a core, on a square mesh; columns beyond the groups have none."""
    n, (mt, dt) = block.mesh.width, (2, 3)
    slots = n // groups.width
    rng = np.random.default_rng(4)
    used = groups.width * groups.count
    q, k = (rng.standard_normal((n, n, 1, 1, 2, mt, dt)).astype(np.float32) for _ in range(2))  # [y, x, ..]
    scores = rng.standard_normal((n, n, 1, slots, 2, mt, mt)).astype(np.float32)
    with crossbar(block) as bar:
        if transpose:
            product = whole(block, system.gemm_t(block, bar, own(block, q), own(block, k), groups=groups))
        else:
            product = whole(block, system.gemm(block, bar, own(block, scores), own(block, k), groups=groups))
    for first in range(0, used, groups.width):
        columns = slice(first, first + groups.width)
        # [heads, rows of all cores, columns of the group]
        left, right = (
            x[:, columns, 0, 0].transpose(2, 0, 3, 1, 4).reshape(2, n * mt, -1).astype(float) for x in (q, k)
        )
        part = scores[:, columns, 0].transpose(3, 0, 4, 1, 2, 5).reshape(2, n * mt, n * mt).astype(float)
        exact = left @ right.swapaxes(1, 2) if transpose else part @ right
        got = product[:, columns, 0].transpose(3, 0, 4, 1, 2, 5).reshape(exact.shape)
        assert_close(got, exact)


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("groups", [Groups(3, 2), Groups(2, 2)], ids=str)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("system", SYSTEMS, ids=name)
def test_heads_multiply_inside_their_group(system: Any, transpose: bool, groups: Groups, comm):
    in_groups(new_block(comm, (6, 6)), system, groups, transpose)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("system", SYSTEMS, ids=name)
def test_another_product_of_tiles_can_stand_in(system: Any, comm):
    block = new_block(comm, (3, 3))
    a, b, *tiles = operands(block, 6, 3, 6, transpose=True)
    with crossbar(block) as bar:

        def twice(left: np.ndarray, right: np.ndarray, total: np.ndarray) -> None:
            total += 2 * np.matmul(left, right.swapaxes(-1, -2))

        c = system.gemm_t(block, bar, *tiles, twice)
    assert_close(gather(block, c, (6, 6)), 2 * a.astype(float) @ b.T.astype(float))


# ------------------------------------------------------------------------------------------------------------- sums


def larger_and_sum(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """A combination that is not a number-by-number function of NumPy's."""
    return np.concatenate([np.maximum(first[..., :1], second[..., :1]), first[..., 1:] + second[..., 1:]], axis=-1)


@pytest.mark.mpi(ranks=[1, 3])
@pytest.mark.sample(15)
@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize("mesh", [(1, 3), (4, 3), (7, 5)], ids=str)
@pytest.mark.parametrize("add", ALL_SUMS, ids=called)
def test_all_cores_of_a_line_get_its_sum(add: Any, mesh: tuple[int, int], axis: str, comm):
    tiles = np.random.default_rng(5).standard_normal((mesh[1], mesh[0], 4)).astype(np.float32)
    across = 1 if axis == "x" else 0
    for combine in (np.add, larger_and_sum):
        reports = []
        for payload in (True, False):
            block = new_block(comm, mesh, SLOW, payload)
            own_tiles = own(block, tiles) if payload else np.empty((1, 1, 4), np.float32)
            with crossbar(block) as bar:
                sums = add(block, bar, axis, own_tiles, combine)
            if payload:
                total = whole(block, sums)
                exact = tiles.astype(float).sum(axis=across, keepdims=True)
                if combine is not np.add:
                    exact[..., 0] = tiles[..., 0].max(axis=across, keepdims=True)
                assert_close(total, np.broadcast_to(exact, tiles.shape))
                assert (total == total.take([0], axis=across)).all()  # the same to the bit on a line
            reports.append(measured(block))
            del reports[-1]["host"]
        assert reports[0] == reports[1]


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize("add", ALL_SUMS, ids=called)
def test_sums_inside_groups_leave_the_others_alone(add: Any, comm):
    tiles = numbered(7, 2, 3)
    block = new_block(comm, (7, 2), SLOW)
    with crossbar(block) as bar:
        total = whole(block, add(block, bar, "x", own(block, tiles), groups=Groups(3, 2)))
    for first in (0, 3):
        exact = tiles[:, first : first + 3].sum(axis=1, keepdims=True)
        assert np.array_equal(total[:, first : first + 3], np.broadcast_to(exact, (2, 3, 3)))
    measured(block)


# ------------------------------------------------------------------------------------------------------------ costs


def cost(comm: Any, n: int, work: Callable[[Block], object]) -> dict[str, Any]:
    block = new_block(comm, (n, n), NETWORK, payload=False)
    work(block)
    counted = measured(block)
    del counted["host"]
    return counted


def shapes(n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.empty((1, 1, 1, 1, 4, 4), np.float32), np.empty((1, 1, 1, 1, 4, 4), np.float32)


def by_crossbar(system: Any, n: int, **options: Any) -> Callable[[Block], object]:
    def work(block: Block) -> None:
        with crossbar(block) as bar:
            system.gemm(block, bar, *shapes(n), **options)

    return work


def by_rings(n: int) -> Callable[[Block], object]:
    def work(block: Block) -> None:
        with interleaved_rings(block) as rings:
            meshgemm(block, rings, *shapes(n))

    return work


@pytest.mark.mpi(ranks=[1])
def test_a_step_of_t10_takes_as_long_as_to_fetch_from_the_other_end_of_the_line(comm):
    """N - 1 steps, each with a request of N - 1 hops and a tile of as many, by software at every core between."""
    for n in (8, 16):
        path = cost(comm, n, by_crossbar(t10, n))["critical_path"]
        request, tile = 1 + 2 + 5, 1 + 16 + 5  # alpha, bytes at 4 a cycle, beta
        assert path["cycles"] >= (n - 1) * ((n - 1) * (request + tile) - 5)
        assert path["stages"] >= (n - 1) * (2 * n - 3)
    mesh = cost(comm, 16, by_rings(16))["critical_path"]
    assert path["cycles"] > 3 * mesh["cycles"]


@pytest.mark.mpi(ranks=[1, 4])
def test_t10_without_requests_is_bounded_by_meshgemm_and_gives_the_same(comm):
    block = new_block(comm, (4, 6))
    _, _, *tiles = operands(block, 5, 12, 7, False)
    with crossbar(block) as bar:
        fetched_tiles, pushed_tiles = (
            t10.gemm(block, bar, *tiles, move=partial(t10.shift, asks=asks)) for asks in (True, False)
        )
    assert np.array_equal(fetched_tiles, pushed_tiles)
    measured(block)
    mesh, pushed, fetched = (
        cost(comm, 16, work)["critical_path"]["cycles"]
        for work in (by_rings(16), by_crossbar(t10, 16, move=partial(t10.shift, asks=False)), by_crossbar(t10, 16))
    )
    assert mesh < pushed < fetched / 2


@pytest.mark.mpi(ranks=[1])
def test_ladder_pays_for_its_requests_and_hot_spots_on_top(comm):
    of_t10, of_ladder = (cost(comm, 24, by_crossbar(system, 24))["critical_path"]["cycles"] for system in (t10, ladder))
    assert of_ladder > of_t10


@pytest.mark.mpi(ranks=[1])
def test_sums_cost_more_than_a_tree_and_more_with_every_core_loading_all(comm):
    def tree(block: Block) -> None:
        with ktree(block, "x") as way:
            allreduce(block, way, np.empty((1, 1, 8), np.float32))

    def cores(add: Any) -> Callable[[Block], object]:
        def work(block: Block) -> None:
            with crossbar(block) as bar:
                add(block, bar, "x", np.empty((1, 1, 8), np.float32))

        return work

    times = [cost(comm, 32, work)["critical_path"]["cycles"] for work in (tree, *map(cores, SUMS))]
    assert times == sorted(times)
    assert times[3] > 4 * times[2] > 8 * times[1] > 16 * times[0]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("system", SYSTEMS, ids=name)
def test_a_sample_of_the_steps_is_close_to_all_of_them(system: Any, comm):
    every, sampled = (cost(comm, 24, by_crossbar(system, 24, sample=sample)) for sample in (None, 6))
    assert sampled["macs"] == every["macs"]
    assert sampled["critical_path"]["cycles"] == pytest.approx(every["critical_path"]["cycles"], rel=0.1)
    for part in ("hops", "stages"):
        assert sampled[part] == pytest.approx(every[part], rel=0.05)


# ------------------------------------------------------------------------------------------- as inferred from tables


@pytest.mark.mpi(ranks=[1, 3])
@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize("n", [3, 9])
def test_a_shift_as_inferred_hands_one_tile_over_the_whole_line(n: int, axis: str, comm):
    """Taken in by every core between, a number a cycle, and sent on by a task, a number a wavelet."""
    block = new_block(comm, (n, 3) if axis == "x" else (3, n), NETWORK)
    height, width = block.mesh.height, block.mesh.width
    tiles = np.arange(height * width * 6, dtype=np.float16).reshape(height, width, 1, 1, 2, 3)
    moving = own(block, tiles)
    with crossbar(block) as bar:
        inferred.shift(block, bar, whole_line(block, "x"), [(axis, moving)])
    assert np.array_equal(whole(block, moving), np.roll(tiles, -1, 1 if axis == "x" else 0))
    counted, numbers = measured(block), 6
    way = (n - 1) * (NETWORK.alpha + numbers) + (n - 2) * (inferred.TASK + numbers)
    # The first relay's ramp is busy with the other tile for as long as `numbers` take.
    assert counted["critical_path"]["cycles"] == way + numbers
    assert (counted["hops"], counted["stages"]) == (2 * 3 * (n - 1), 3 * (n - 2))
    assert counted["link_bytes"]["total"] == 4 * numbers * counted["hops"]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize("shapes", [((3, 2), (3, 2)), ((3, 2), (5, 7)), ((9, 7), (2, 2))], ids=str)
def test_lines_along_both_axes_are_under_way_at_the_same_time_as_inferred(shapes: Any, comm):
    """What the longer take, and few hops more, on lines of any length: a core does one thing at a time."""
    n, times, most = 48, [], max(prod(shape) for shape in shapes)
    for moving in ([("x", shapes[0])], [("y", shapes[1])], [("x", shapes[0]), ("y", shapes[1])]):
        block = new_block(comm, (n, n), NETWORK, payload=False)
        with crossbar(block) as bar:
            tiles = [(axis, np.empty((1, 1, 1, 1, *shape), np.float16)) for axis, shape in moving]
            inferred.shift(block, bar, whole_line(block), tiles)
        times.append(measured(block)["critical_path"]["cycles"])
    hop = NETWORK.alpha + inferred.TASK + 2 * most
    assert max(times[:2]) <= times[2] <= max(times[:2]) + 7 * hop


@pytest.mark.mpi(ranks=[1, 3])
@pytest.mark.parametrize("n", [2, 3, 9])
def test_a_sum_as_inferred_goes_to_the_first_core_and_back(n: int, comm):
    block = new_block(comm, (n, 3), WSE2)
    with crossbar(block) as bar:
        inferred.allreduce(block, bar, "x", own(block, np.ones((3, n, 4), np.float32)))
    onward, back = (n - 1) * (1 + 5), (n - 1) + (n - 2) * 2 * 5
    counted = measured(block)
    assert counted["critical_path"]["cycles"] == WSE2.collective_cycles + onward + back + 4
    assert counted["hops"] == 2 * 3 * (n - 1)
    assert counted["stages"] == 3 * (n - 1 + 2 * (n - 2))
    assert counted["adds"] == 3 * (n - 1) * 4


def over_a_line(n: int, numbers: int) -> float:
    """A hop, the words, and a task that takes them in, for every core but the first."""
    return (n - 1) * (NETWORK.alpha + numbers + inferred.TASK + numbers)


@pytest.mark.mpi(ranks=[1, 3])
@pytest.mark.parametrize("n", [3, 9])
def test_ladder_as_inferred_asks_and_answers_along_both_axes_for_every_operand(n: int, comm):
    block = new_block(comm, (n, n), NETWORK)
    tiles = np.arange(n * n * 6, dtype=np.float16).reshape(n, n, 1, 1, 2, 3)
    a, b = own(block, tiles), own(block, tiles)
    with crossbar(block) as bar:
        ladderinferred.load(block, bar, whole_line(block), [("x", a), ("y", b)])
    assert np.array_equal(whole(block, a), np.roll(tiles, -1, 1))
    assert np.array_equal(whole(block, b), np.roll(tiles, -1, 0))
    counted, numbers = measured(block), 6
    home = (n - 1) * (NETWORK.alpha + numbers) + (n - 2) * (inferred.TASK + numbers)  # of a tile, see above
    last = 2 * (3 * over_a_line(n, 1) + home)
    assert last <= counted["critical_path"]["cycles"] <= last + 2 * numbers  # the first relay's ramp is busy as well
    assert counted["hops"] == 2 * n * (3 * (n - 1) + 2 * (n - 1))
    assert counted["stages"] == 2 * n * (3 * (n - 1) + n - 2)


@pytest.mark.mpi(ranks=[1, 3])
@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize("n", [2, 3, 9])
def test_a_sum_of_ladder_as_inferred_is_four_relays(n: int, axis: str, comm):
    block = new_block(comm, (n, 3) if axis == "x" else (3, n), WSE2)
    shape = (3, n, 4) if axis == "x" else (n, 3, 4)
    with crossbar(block) as bar:
        total = ladderinferred.allreduce(block, bar, axis, own(block, np.ones(shape, np.float32)))
    assert np.array_equal(whole(block, total), np.full(shape, n, np.float32))
    counted = measured(block)
    hop = WSE2.alpha + inferred.TASK
    assert counted["critical_path"]["cycles"] == WSE2.collective_cycles + (n - 1) * (4 * hop + 2 * 2 + 2 * 8)
    assert (counted["hops"], counted["stages"]) == (4 * 3 * (n - 1), 4 * 3 * (n - 1))
    assert counted["adds"] == 3 * (n - 1) * 4


@pytest.mark.mpi(ranks=[1, 3])
def test_ladder_as_inferred_loads_every_weight_over_a_third_of_a_line_and_back(comm):
    """One after the other; two are run and the second is counted for the others."""
    n, weights = 9, (2, 5)
    block = new_block(comm, (n, 3), WSE2)
    with crossbar(block) as bar:
        ladderinferred.load_weights(block, bar, own(block, np.zeros((3, n, *weights), np.float32)))
    counted = measured(block)
    assert counted["hops"] == 10 * 2 * 3 * 3 * (n - 1)
    assert counted["critical_path"]["cycles"] == 10 * 2 * 3 * (WSE2.alpha + 1)
    assert counted["stages"] == 0
    block = new_block(comm, (n, 3), WSE2)
    with crossbar(block) as bar:
        for _ in range(10):
            ladderinferred.load_one(block, bar, block.empty("weight", (1,), np.float32))
    every = measured(block)
    assert [counted[part] for part in ("critical_path", "hops")] == [every[part] for part in ("critical_path", "hops")]


@pytest.mark.parametrize("system", ["ladder", "t10"])
def test_a_core_may_have_one_row_of_the_embedding(system: str, tmp_path: Path) -> None:
    """By shape, too, where what another core gives stands for no number."""
    folder = random_checkpoint(BASE | {"vocab_size": 8, "num_hidden_layers": 1}, tmp_path / "few", 1)
    options: dict[str, Any] = {"model": folder, "system": system, "prompt_ids": "1,7,0", "max_new_tokens": 1}
    full, shapes = (
        meshrt.run("llama", mesh=(3, 4), payload=payload, core_memory=1 << 20, **options) for payload in (True, False)
    )
    assert full.data["measured"] == shapes.data["measured"]
