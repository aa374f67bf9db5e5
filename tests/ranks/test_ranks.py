"""The same result for any number of ranks: every count, every cycle and every output bit; and the same every time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from generations import same_as_on_one_rank
from measure import measured, numbered, on_one_rank, own, run_report, whole
from runs import new_block

from meshrt.mesh.collectives.broadcast import spreads, start_allgather
from meshrt.mesh.device import Device
from meshrt.mesh.wires import fabric, receiving, routes
from meshrt.mesh.wires.tables import installed
from meshrt.models.catalogue import find_model

RANKS = [1, 2, 3, 4, 6, 9, 16]
PROMPT = "12,7,300,45,9"
# Every part of the machine costs time, none of it a round number of the others.
SLOW = Device(name="slow", alpha=1.5, beta=7.0, link_bytes_per_cycle=3.0, macs_per_cycle=2.0, call_cycles=11.0)
CASES: dict[str, tuple[str, tuple[int, int], dict[str, Any]]] = {
    "gemm": ("gemm", (7, 5), {"m": 11, "k": 40, "n": 9}),
    "gemm on a square": ("gemm", (5, 5), {"m": 11, "k": 40, "n": 9}),
    "gemm transposed": ("gemm", (6, 4), {"m": 11, "k": 40, "n": 9, "transpose_b": True}),
    "gemm in bfloat16": ("gemm", (4, 4), {"m": 20, "k": 33, "n": 18, "dtype": "bfloat16"}),
    "gemv along y": ("gemv", (7, 5), {"k": 100, "n": 41}),
    "gemv along x": ("gemv", (7, 5), {"k": 100, "n": 41, "axis": "x", "phases": 3}),
    "kvcache": ("kvcache", (4, 7), {"tokens": 23, "head_dim": 6, "heads": 2, "layers": 1}),
}


def without_host(report: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in report.items() if key != "host"}


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("case", CASES)
def test_a_programs_report_is_that_of_one_rank(case: str, comm):
    name, mesh, options = CASES[case]

    def run(ranks: Any) -> dict[str, Any]:
        return without_host(run_report(ranks, name, mesh, SLOW, **options))

    first, second, alone = run(comm), run(comm), on_one_rank(comm, run)
    assert first == alone
    assert first == second
    assert alone["measured"]["critical_path"]["cycles"] > 0


def mixed_traffic(comm: Any) -> tuple[bytes, bytes, dict[str, Any]]:
    """Lines, paths with turns and relayed packets under way at once: tiles, clocks and counts."""
    block = new_block(comm, (7, 5), SLOW)
    tiles = own(block, numbered(7, 5, 4) / 3)
    turns = [
        (*((x, 2) for x in range(7)),),
        (*((3, y) for y in range(4)), *((x, 3) for x in range(4, 7))),
        ((6, 0), (5, 0), (5, 1), (5, 2), (5, 3)),
        ((0, 1), (1, 1), (2, 1), (3, 1), (3, 2), (4, 2), (5, 2), (5, 1)),
    ]
    with (
        installed(block, "x", routes.ring(7)) as ring,
        installed(block, "y", routes.interleaved_ring(5)) as other,
        installed(block, None, turns) as paths,
        spreads(block, longest=3) as (every, _),
    ):
        flights = [fabric.send(block, channel, tiles) for channel in (paths, ring, other, paths)]
        block.clock.compute(13)
        for flight in flights:
            receiving.receive(block, flight)
        gathered = receiving.receive(block, start_allgather(block, every, tiles))
    arrived = whole(block, gathered).tobytes() + b"".join(whole(block, flight.tiles).tobytes() for flight in flights)
    clocks = whole(block, block.clock.state.transpose(1, 2, 0)).tobytes()
    report = measured(block)
    del report["host"]
    return arrived, clocks, report


@pytest.mark.mpi(ranks=RANKS)
def test_tiles_clocks_and_counts_of_any_traffic_are_those_of_one_rank(comm):
    together, alone = mixed_traffic(comm), on_one_rank(comm, mixed_traffic)
    assert together[2] == alone[2]
    assert together[0] == alone[0]
    assert together[1] == alone[1], "every core's time and path"


@pytest.mark.mpi(ranks=RANKS)
def test_a_models_logits_are_those_of_one_rank_to_the_bit(comm, tmp_path: Path):
    folder = Path(comm.bcast(str(tmp_path)))
    tiny = find_model("llama-tiny")
    report, _ = same_as_on_one_rank(comm, tiny, (8, 8), folder, "wse2", prompt_ids=PROMPT, max_new_tokens=4, layers=2)
    assert len(report["result"]["token_ids"]) == 4


def load(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text())
    return report


@pytest.fixture(scope="module")
def one_rank_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """`one_rank_run(run_meshrt, mesh)`: standard output and report of the command below on one rank; runs it once."""
    path = tmp_path_factory.mktemp("one") / "report.json"
    runs: dict[tuple[str, ...], tuple[str, dict[str, Any]]] = {}

    def run(run_meshrt: Callable[..., Any], mesh: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
        if mesh not in runs:
            code, out, err, _ = run_meshrt(*COMMAND, *mesh, "--json", str(path))
            assert code == 0, err
            runs[mesh] = out, load(path)
        return runs[mesh]

    return run


COMMAND = ("run", "llama-tiny", "--prompt", "The little dog", "--max-new-tokens", "4")
LARGE, SMALL = ("--mesh", "8x8"), ("--mesh", "4x1", "--device", "ideal")


@pytest.mark.parametrize(
    ("mesh", "ranks"), [(SMALL, 4), *(pytest.param(LARGE, ranks, marks=pytest.mark.all) for ranks in (2, 64))]
)
def test_the_command_gives_the_same_text_and_report(
    mesh: tuple[str, ...], ranks: int, run_meshrt, one_rank_run, tmp_path: Path
):
    """Where every core is a rank of its own, the packets at the MPI calls are the hops."""
    one_out, one_report = one_rank_run(run_meshrt, mesh)
    reports = []
    for name in ("a.json", "b.json") if ranks == 2 else ("a.json",):
        code, out, err, _ = run_meshrt(*COMMAND, *mesh, "--json", str(tmp_path / name), ranks=ranks, timeout=300)
        assert code == 0, err
        assert out.split("\n")[0] == one_out.split("\n")[0], "the text"
        reports.append(load(tmp_path / name))
    for report in reports:
        assert without_host(report) == without_host(one_report)
        assert report["host"]["ranks"] == ranks
    packets = reports[0]["host"]["packets"]
    assert packets == one_report["measured"]["hops"] if ranks > 2 else 0 < packets < one_report["measured"]["hops"]
    assert one_report["host"]["packets"] == 0
