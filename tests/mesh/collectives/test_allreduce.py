"""Every allreduce against NumPy on lines of many lengths, and what it costs in packets, stages, entries and cycles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from measure import measured, numbered, on_one_rank, own, run_report, whole
from runs import new_block

from meshrt.errors import LimitError, UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.collectives import treeplan
from meshrt.mesh.collectives.allreduce import allreduce, ktree, pattern, pipeline
from meshrt.mesh.collectives.grouping import LONG, best_groups
from meshrt.mesh.collectives.scatter import ring
from meshrt.mesh.collectives.trees import reduce
from meshrt.mesh.device import Device
from meshrt.mesh.presets import WSE2

RANKS = [1, 2, 3, 4, 6, 9]
WAYS: dict[str, dict[str, Any]] = {
    "pipeline": {"kind": "pipeline"},
    "ring": {"kind": "ring"},
    "K = 1": {"kind": "ktree", "phases": 1},
    "K = 2": {"kind": "ktree", "phases": 2},
    "K = 3": {"kind": "ktree", "phases": 3},
    "K = 5": {"kind": "ktree", "phases": 5},
}
SLOW = Device(name="slow", alpha=1.5, beta=7.0, link_bytes_per_cycle=3.0, macs_per_cycle=0.5, call_cycles=11.0)
STAGES = Device(name="stages", alpha=1.0, beta=1e6)  # so slow in software that the critical path has most stages


def added(block: Block, way: dict[str, Any], axis: str, tiles: np.ndarray, combine: Any = np.add) -> np.ndarray:
    """The allreduce of the tiles of all cores, [H, W, *tile], on every rank."""
    with pattern(block, axis=axis, **way) as made:
        return whole(block, allreduce(block, made, own(block, tiles), combine))


def line_report(way: dict[str, Any], n: int, comm: Any, words: int = 1, device: Any = STAGES) -> dict[str, Any]:
    """What an allreduce of one tile on one line costs."""
    block = new_block(comm, (n, 1), device, payload=False)
    with pattern(block, axis="x", **way) as made:
        allreduce(block, made, np.zeros((1, 1, words), np.float32))
    return measured(block)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("groups", [np.int64(4), [4, 2], np.array([4, 2]), (np.int32(4), 2)], ids=repr)
def test_numbers_of_groups_may_be_numpys_and_in_any_sequence(groups: Any, comm) -> None:
    block = new_block(comm, (9, 1))
    with ktree(block, "x", 3, groups) as made, ktree(block, "x", 3, 4 if np.ndim(groups) == 0 else (4, 2)) as plain:
        assert made.groups == plain.groups and made.groups[0] == 4


# ---------------------------------------------------------------------------------------------------- right results


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(9)
@pytest.mark.parametrize("n", [40, *range(1, 18)])
@pytest.mark.parametrize("way", WAYS)
def test_a_line_of_any_length_gets_the_sum(way: str, n: int, comm):
    for axis, mesh, device in (("x", (n, 3), "ideal"), ("y", (2, n), "wse2")):
        block = new_block(comm, mesh, device)
        tiles = numbered(*mesh, 2, 3)  # whole numbers: sums are exact in any order
        expected = np.broadcast_to(tiles.sum(axis="yx".index(axis), keepdims=True), tiles.shape)
        assert (added(block, WAYS[way], axis, tiles) == expected).all()
        block.close()


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("way", ["pipeline", "ring", "K = 2", "K = 3"])
@pytest.mark.parametrize("axis", ["x", "y"])
def test_ranks_agree_with_numpy_and_with_one_rank(way: str, axis: str, comm):
    mesh = (11, 9)
    tiles = np.random.default_rng(1).standard_normal((9, 11, 5)).astype(np.float32)

    def on(ranks: Any) -> Any:
        block = new_block(ranks, mesh, "wse2")
        sums = added(block, WAYS[way], axis, tiles)
        report = measured(block)
        del report["host"]
        return sums, report

    sums, report = on(comm)
    alone, alone_report = on_one_rank(comm, on)
    assert np.abs(sums - tiles.sum(axis="yx".index(axis), keepdims=True, dtype=np.float64)).max() < 1e-5
    assert sums.tobytes() == alone.tobytes()
    assert report == alone_report


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("way", WAYS)
def test_the_largest_of_tiles_of_any_shape(way: str, comm):
    for shape in ((1,), (4,), (7,), (3, 5), (2, 2, 9)):  # on 7 cores: chunks with and without padding
        block = new_block(comm, (7, 5), "wse2")
        tiles = -1 - np.random.default_rng(2).random((5, 7, *shape)).astype(np.float32)
        largest = added(block, WAYS[way], "x", tiles, np.maximum)
        assert (largest == np.broadcast_to(tiles.max(axis=1, keepdims=True), tiles.shape)).all()
        measured(block)


def best_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Pairs (value, id), [.., 2]: the larger value; a function that cannot be cut into numbers."""
    return np.where(a[..., :1] >= b[..., :1], a, b)


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("way", [way for way in WAYS if way != "ring"])
def test_trees_merge_what_hangs_together(way: str, comm):
    block = new_block(comm, (7, 5), "wse2")
    values = np.random.default_rng(3).standard_normal((5, 7)).astype(np.float32)
    pairs = np.stack([values, np.broadcast_to(np.arange(7, dtype=np.float32), (5, 7))], axis=-1)
    best = added(block, WAYS[way], "x", pairs, best_of)
    assert (best[..., 1] == values.argmax(axis=1)[:, None]).all()


@pytest.mark.mpi(ranks=[1])
def test_a_ring_refuses_to_cut_what_hangs_together(comm):
    block = new_block(comm, (7, 5))
    with ring(block, "x") as made, pytest.raises(UsageError, match="best_of"):
        allreduce(block, made, np.zeros((5, 7, 2), np.float32), best_of)


@pytest.mark.mpi(ranks=[1])
def test_the_order_of_additions_does_not_depend_on_streaming(comm):
    tiles = np.random.default_rng(4).standard_normal((5, 13, 6)).astype(np.float32)
    for way in WAYS.values():
        sums = [added(new_block(comm, (13, 5), device), way, "x", tiles) for device in ("ideal", "wse2")]
        assert sums[0].tobytes() == sums[1].tobytes()


@pytest.mark.mpi(ranks=[1, 4])
def test_a_reduction_by_pipeline_ends_at_core_0(comm):
    block = new_block(comm, (7, 5), "wse2")
    tiles = numbered(7, 5, 2)
    with pipeline(block, "y") as made:
        sums = whole(block, reduce(block, made, own(block, tiles)))
    assert (sums[0] == tiles.sum(axis=0)).all()


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("way", WAYS)
def test_counts_and_cycles_are_the_same_without_payloads(way: str, comm):
    for device in (WSE2, SLOW):
        full, none = (
            run_report(comm, "gemv", (6, 16), device, payload, k=90, n=71, **as_options(WAYS[way]))
            for payload in (True, False)
        )
        assert none["measured"] == full["measured"]


def as_options(way: dict[str, Any]) -> dict[str, Any]:
    return {"allreduce": way["kind"], **{key: value for key, value in way.items() if key != "kind"}}


# ------------------------------------------------------------------------------------------------------- what it costs


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("n", [2, 3, 8, 17, 64])
def test_the_pipeline_has_a_stage_for_every_core_but_one(n: int, comm):
    line = line_report(WAYS["pipeline"], n, comm)
    assert (line["messages"], line["hops"], line["stages"]) == (n, 2 * (n - 1), n - 1)
    assert line["max_hops"] == n - 1, "the broadcast"
    assert line["critical_path"]["stages"] == n - 1
    assert line["critical_path"]["hops"] == 2 * (n - 1)
    assert line["route_entries"]["max"] == min(n, 3), "constant: in, out and the broadcast"


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("n", [2, 3, 8, 17, 64])
def test_the_ring_goes_round_twice(n: int, comm):
    """2 (N - 1) steps; at the last, chunks are not passed on. A step's packets cross each link once either way."""
    line = line_report(WAYS["ring"], n, comm, words=3 * n)
    assert line["messages"] == 2 * n * (n - 1)
    assert line["hops"] == 2 * (n - 1) * 2 * (n - 1)
    assert line["stages"] == n * (2 * n - 3)
    assert line["max_hops"] == min(2, n - 1)
    assert line["critical_path"]["stages"] == 2 * n - 3
    assert line["link_bytes"]["max"] == 2 * (n - 1) * 3 * 4, "a chunk of 3 words at each step"
    assert line["route_entries"]["max"] == min(n, 3), "constant"


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(("n", "phases"), [(64, 1), (64, 2), (64, 3), (64, 6), (144, 2), (216, 3), (256, 4), (625, 4)])
def test_the_tree_has_half_a_group_of_stages_in_each_phase(n: int, phases: int, comm):
    """Equal groups of N^(1/K) members come in from both ends: K/2 N^(1/K) stages (waferllm, section 6.1)."""
    size = round(n ** (1 / phases))
    groups = tuple(size**to_go for to_go in range(phases - 1, 0, -1))
    line = line_report({"kind": "ktree", "phases": phases, "groups": groups}, n, comm)
    assert line["critical_path"]["stages"] == phases * -(-size // 2)
    assert line["stages"] == n - 1
    assert phases + 1 <= line["route_entries"]["max"] <= 2 * phases + 1


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("lengths", [(16, 64), pytest.param((16, 64, 256), marks=pytest.mark.all)], ids=str)
def test_stages_grow_with_n_for_the_baselines_and_with_its_root_for_the_tree(lengths: tuple[int, ...], comm):
    stages = {
        way: [line_report(WAYS[way], n, comm)["critical_path"]["stages"] for n in lengths]
        for way in ("pipeline", "ring", "K = 2", "K = 3")
    }
    assert stages["pipeline"] == [n - 1 for n in lengths]
    assert stages["ring"] == [2 * (n - 1) - 1 for n in lengths]
    assert all(after <= 2 * before + 1 for before, after in zip(stages["K = 2"], stages["K = 2"][1:], strict=False))
    assert all(after <= 1.6 * before + 2 for before, after in zip(stages["K = 3"], stages["K = 3"][1:], strict=False))


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("words", [1, 6, 40])
def test_beside_the_sum_a_core_that_cannot_stream_holds_what_comes_in(words: int, comm):
    for way in WAYS.values():
        chunk = -(-words // 7)
        block = new_block(comm, (7, 1))
        added(block, way, "x", numbered(7, 1, words))
        held = 7 * chunk - words + chunk if way["kind"] == "ring" else words
        assert measured(block)["memory_bytes"]["max"] == 4 * (words + held)
        block = new_block(comm, (7, 1), "wse2")
        added(block, way, "x", numbered(7, 1, words))
        padding = 7 * chunk - words if way["kind"] == "ring" else 0
        assert measured(block)["memory_bytes"]["max"] == 4 * (words + padding)


# -------------------------------------------------------------------------------------------------- measured groups


@pytest.mark.mpi(ranks=[1, 4])
def test_groups_are_measured_apart_from_the_run_and_are_faster(comm):
    def took(groups: Any, nbytes: int) -> float:
        way = {"kind": "ktree", "phases": 3, "groups": groups, "nbytes": nbytes}
        cycles: float = line_report(way, 100, comm, nbytes // 4, WSE2)["critical_path"]["cycles"]
        return cycles

    for nbytes in (4, 400):
        block = new_block(comm, (100, 4), WSE2)
        chosen = best_groups(block, 100, 3, nbytes)
        assert chosen is not None and 100 > chosen[0] > chosen[1] > 1
        assert comm.allgather(chosen) == [chosen] * comm.size
        assert block.tables.peak == 0 and block.clock.last() == (0.0, 0, 0)
        report = measured(block)
        assert (report["messages"], report["hops"], report["critical_path"]["cycles"]) == (0, 0, 0)
        usual = took(treeplan.ktree(100, 3).groups, nbytes)
        assert took(chosen, nbytes) < usual if nbytes == 4 else took(chosen, nbytes) <= usual
        assert took(None, nbytes) == took(chosen, nbytes)


@pytest.mark.mpi(ranks=[1])
def test_groups_fit_what_room_the_tables_have(comm):
    block = new_block(comm, (40, 1), "wse2", route_entries=8)
    with ktree(block, "x", 1), ktree(block, "x", 2) as made:  # 3 of 8 are taken, 5 are left
        assert 40 > made.groups[0] > 1
        assert best_groups(block, 40, 2, 64) is None, "nothing fits: `ktree` is to say so"
        with pytest.raises(LimitError, match="route entries"), ktree(block, "x", 2):
            pass


@pytest.mark.mpi(ranks=[1])
def test_short_lines_are_not_measured(comm):
    block = new_block(comm, (LONG, LONG), "wse2")
    block.control = None  # type: ignore[assignment]  # what is measured is told to all ranks
    assert best_groups(block, LONG, 2, 64) is None
    assert best_groups(block, LONG, 1, 64) is None
