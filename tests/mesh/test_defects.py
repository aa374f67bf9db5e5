"""Defects of the wafer: the mesh that is laid around them gives the same numbers, and its longer ways are counted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measure import measured, whole
from tiers import examples

from meshrt.emulate import emulate
from meshrt.errors import LimitError, UsageError
from meshrt.mesh.block import make_block
from meshrt.mesh.clock import TIME
from meshrt.mesh.defects import draw, embed, kill_link, make_wafer, no_defects, shortest
from meshrt.mesh.device import Device
from meshrt.mesh.devicefile import find_device
from meshrt.mesh.mesh import EAST, SOUTH, STEP
from meshrt.mesh.wires import fabric
from meshrt.mesh.wires.tables import installed
from meshrt.program import load_program
from meshrt.ranks.board import Board


def run(comm: Any, program: str, mesh: tuple[int, int], dead: str | None, spares: str = "4x4", **options: Any) -> Any:
    """The report of a run on a wafer of which so much is `dead`, or on a whole one."""
    wafer = None if dead is None else lambda width, height: make_wafer(dead, spares, 1, width, height)
    device = find_device("wse2", core_memory=1 << 20)
    return emulate(comm, Board.alone(), load_program(program), options, mesh=mesh, device=device, wafer=wafer)


@settings(max_examples=examples(60))
@given(
    st.integers(1, 9), st.integers(1, 9), st.integers(0, 4), st.integers(0, 4), st.floats(0, 0.3), st.integers(0, 99)
)
def test_a_mesh_keeps_its_neighbours(width: int, height: int, columns: int, rows: int, rate: float, seed: int) -> None:
    """Every link of the mesh is a way through healthy routers and links of the wafer, there and back; cores differ."""
    defects = draw(width + columns, height + rows, rate, seed)
    try:
        wafer = embed(defects, width, height)
        paths = wafer.paths
    except LimitError:
        return
    assert len({tuple(core) for core in wafer.coordinates.reshape(-1, 2)}) == width * height
    assert not any(defects.cores[y, x] for x, y in wafer.coordinates.reshape(-1, 2))
    assert len(paths) == 2 * ((width - 1) * height + width * (height - 1))
    for (x, y, port), way in paths.items():
        at = tuple(wafer.coordinates[y, x])
        for from_x, from_y, out in way:
            assert (from_x, from_y) == at and defects.passable(from_x, from_y, out)
            at = from_x + STEP[out][0], from_y + STEP[out][1]
        assert at == tuple(wafer.coordinates[y + STEP[port][1], x + STEP[port][0]])
        # No way is shorter than the distance on the wafer, and a way round something dead is longer by an even number.
        start = wafer.coordinates[y, x]
        distance = abs(at[0] - start[0]) + abs(at[1] - start[1])
        assert len(way) >= distance and (len(way) - distance) % 2 == 0


def test_a_whole_wafer_is_taken_as_it_is() -> None:
    wafer = embed(no_defects(5, 4), 4, 3)
    assert (wafer.lengths == 1).all()
    assert wafer.coordinates[2, 3].tolist() == [3, 2]


def test_a_dead_link_is_gone_round_by_three_hops() -> None:
    defects = no_defects(3, 3)
    kill_link(defects, 0, 1, EAST)
    assert len(shortest(defects, (0, 1), (1, 1)) or ()) == 3
    assert len(shortest(defects, (1, 1), (0, 1)) or ()) == 3
    assert len(shortest(defects, (0, 0), (1, 0)) or ()) == 1


def test_a_dead_core_shifts_its_row() -> None:
    """Row 1 of 4 x 2 loses core (1, 1): its cores 1.. move east by one. By hand, on a wafer of 5 x 2."""
    defects = no_defects(5, 2)
    defects.cores[1, 1] = True
    wafer = embed(defects, 4, 2)
    assert wafer.coordinates[1, :, 0].tolist() == [0, 2, 3, 4]
    assert wafer.lengths[EAST, 1].tolist() == [4, 1, 1, 1]  # (0,1) to (2,1) by way of row 0; the last has no link
    assert wafer.lengths[SOUTH, 0].tolist() == [1, 2, 2, 2]


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("dead", ["0.02", "0.05"])
def test_the_same_product_over_longer_ways(dead: str, comm: Any) -> None:
    given = {"m": 50, "k": 70, "n": 60}
    healthy = run(comm, "gemm", (8, 8), None, **given)
    broken = run(comm, "gemm", (8, 8), dead, **given)
    if comm.rank:
        return
    assert broken["result"] == healthy["result"]
    whole, detoured = healthy["measured"], broken["measured"]
    assert whole["hops"] == detoured["hops"] and whole["link_bytes"] == detoured["link_bytes"]
    assert detoured["wafer"]["hops"] > whole["hops"]
    assert detoured["critical_path"]["cycles"] > whole["critical_path"]["cycles"]
    assert broken["wafer"]["longest_link"] > 1


@pytest.mark.mpi(ranks=[1, 2])
def test_hops_and_bytes_on_the_wafer_are_counted_by_hand(tmp_path: Path, comm: Any) -> None:
    """One shift of the interleaved ring 0 2 4 5 3 1 of 6: over the link between 0 and 1 go 0 -> 2 and 1 -> 0.

    With that link of row 1 dead, both take three hops instead of one. The way round is by row 0, whose own link between
    0 and 1 carries one packet each way, so that two are on the busiest.
    """
    file = Path(comm.bcast(str(tmp_path))) / "dead.json"
    if comm.rank == 0:
        file.write_text(json.dumps({"links": [[0, 1, "east"]]}))
    comm.Barrier()
    report = run(comm, "shift", (6, 2), str(file), pattern="interleaved", axis="x", steps=1, tile=4)
    if comm.rank:
        return
    hops, wafer = report["measured"]["hops"], report["measured"]["wafer"]
    assert hops == 2 * (2 + 2 + 1 + 2 + 2 + 1)
    assert wafer["hops"] == hops + 4
    packet = 4 * 4 * 4
    assert wafer["link_bytes"] == {"total": wafer["hops"] * packet, "max": 2 * packet}


@pytest.mark.mpi(ranks=[1, 2])
def test_packets_that_meet_at_a_longer_way_take_it_one_after_the_other(comm: Any) -> None:
    """Both go from core (1, 1) to core (2, 1), which is three hops of the wafer, and each a hop more on its own."""
    defects = no_defects(4, 2)
    kill_link(defects, 1, 1, EAST)
    alpha, busy = 2.0, 8.0
    device = Device(name="slow links", alpha=alpha, link_bytes_per_cycle=4.0)
    block = make_block(comm, device, 4, 2, Board.alone(), wafer=embed(defects, 4, 2))
    paths = [tuple((x, 1) for x in range(low, low + 3)) for low in (0, 1)]
    with installed(block, None, paths) as channel:
        fabric.transfer(block, channel, np.zeros((*block.shape, 8), np.float32))
    # That from core (1, 1) has the link first, and keeps it for as long as one between neighbours.
    assert whole(block, block.clock.state[TIME])[1].tolist() == [0, 0, busy + 3 * alpha + busy, 4 * alpha + busy]
    report = measured(block)
    assert (report["hops"], report["wafer"]["hops"]) == (4, 8)


@pytest.mark.mpi(ranks=[2, 4])
def test_ranks_change_nothing(comm: Any) -> None:
    from mpi4py import MPI

    several = run(comm, "llama", (6, 6), "0.08", model="llama-tiny", layers=2, max_new_tokens=3)
    if comm.rank == 0:
        alone = run(MPI.COMM_SELF, "llama", (6, 6), "0.08", model="llama-tiny", layers=2, max_new_tokens=3)
        for report in (several, alone):
            report.pop("host")
        assert json.dumps(several) == json.dumps(alone)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.all
def test_five_percent_of_a_large_mesh_give_the_same_logits(tmp_path: Path, comm: Any) -> None:
    runs = []
    for at, dead in enumerate((None, "0.05")):
        file = tmp_path / f"{at}.npy"
        report = run(comm, "llama", (32, 32), dead, model="llama-tiny", max_new_tokens=2, logits=str(file))
        runs.append((np.load(file), report))
    (healthy, whole), (broken, detoured) = runs
    assert (healthy == broken).all()
    assert detoured["measured"]["hops"] == whole["measured"]["hops"] < detoured["measured"]["wafer"]["hops"]


def test_a_file_says_what_is_dead(tmp_path: Path) -> None:
    file = tmp_path / "dead.json"
    file.write_text(json.dumps({"cores": [[1, 1]], "links": [[0, 0, "east"], [2, 1, "north"]]}))
    wafer = make_wafer(str(file), "1x1", 0, 3, 2)
    assert wafer.facts() == {"size": [4, 3], "dead_cores": 1, "dead_links": 2, "longest_link": int(wafer.lengths.max())}


@pytest.mark.parametrize(
    "text, problem",
    [
        ("{", "cannot be read"),
        ("[]", "expected"),
        ('{"rows": []}', "expected"),
        ('{"cores": 3}', "no list"),
        ('{"cores": [[1]]}', "not of the form"),
        ('{"cores": [[1, true]]}', "not of the form"),
        ('{"cores": [[9, 0]]}', r"core \(9, 0\) is not on the wafer of 5 x 5"),
        ('{"links": [[0, 0, "up"]]}', "'up' is no direction"),
        ('{"links": [[4, 0, "east"]]}', r"core \(4, 0\) has no link to the east on the wafer of 5 x 5"),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_a_bad_file_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "dead.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=problem):
        make_wafer(str(file), "1x1", 0, 4, 4)


@pytest.mark.parametrize("rate", ["-0.1", "1", "nan"])
def test_a_rate_is_a_share(rate: str) -> None:
    with pytest.raises(UsageError, match="a rate is at least 0 and less than 1"):
        make_wafer(rate, None, 0, 4, 4)


def test_what_cannot_be_laid_is_refused() -> None:
    defects = no_defects(4, 4)
    defects.cores[:, 0] = True
    with pytest.raises(LimitError, match="0 of the 4 rows of the wafer have 4 healthy cores of 4"):
        embed(defects, 4, 4)
    cut = no_defects(2, 2)
    kill_link(cut, 0, 0, EAST)
    kill_link(cut, 0, 1, EAST)
    with pytest.raises(LimitError, match=r"cores \(0, 0\) and \(1, 0\) of the mesh cannot reach each other"):
        _ = embed(cut, 2, 2).lengths


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_in_which_nothing_moves_is_reported(ranks: int, run_meshrt: Callable[..., Any]) -> None:
    """A column of one core has nobody to add up with: no link has carried a byte, on the wafer neither."""
    arguments = ("gemv", "--k", "5", "--n", "4", "--mesh", "4x1", "--defects", "0.1", "--json", "-")
    finished = run_meshrt("run", *arguments, ranks=ranks)
    assert finished.code == 0, finished.stderr
    wafer = json.loads(finished.stdout)["measured"]["wafer"]
    assert wafer == {"hops": 0, "link_bytes": {"total": 0, "max": 0}}
