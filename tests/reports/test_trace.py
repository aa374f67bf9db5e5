"""The file that shows what ran when on GPUs."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from meshrt.emulate import emulate
from meshrt.program import load_program
from meshrt.ranks.board import Board

GIVEN: dict[str, dict[str, Any]] = {
    "eager": {"prompt_ids": "1,2,3,4,5", "max_new_tokens": 4, "ignore_eos": True},
    "static": {"prompt_ids": "1,2,3,4,5", "max_new_tokens": 4, "ignore_eos": True, "@static": True},
    "experts by shape": {
        "model": "mixtral-8x7b", "layers": 1, "prompt_tokens": 9, "max_new_tokens": 2, "experts": "alltoall",
        "@payload": False,
    },
}  # fmt: skip
TP = 4


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize("name", GIVEN)
def test_a_trace_has_every_kernel_collective_and_phase_once(name: str, tmp_path: Path, comm: Any) -> None:
    file = Path(comm.bcast(str(tmp_path))) / "trace.json"
    given = dict(GIVEN[name])
    settings = {key[1:]: given.pop(key) for key in [*given] if key.startswith("@")}
    report = emulate(comm, Board.alone(), load_program("llama", "gpu"), given, tp=TP, trace=str(file), **settings)
    if comm.rank:
        return
    lanes: dict[tuple[int, str], list[tuple[float, float, str]]] = defaultdict(list)
    for event in json.loads(file.read_text())["traceEvents"]:
        assert event["ph"] == "X"
        lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
    measured = report["measured"]
    assert {gpu for gpu, _ in lanes} == set(range(TP)) and {lane for _, lane in lanes} == {
        "kernels", "collectives", "phases"
    }  # fmt: skip
    assert max(len(lanes[gpu, "kernels"]) for gpu in range(TP)) == measured["launches"]
    for lane, seconds in (("kernels", "compute_seconds"), ("collectives", "collective_seconds")):
        spent = [sum(end - begin for begin, end, _ in lanes[gpu, lane]) for gpu in range(TP)]
        assert max(spent) == pytest.approx(1e6 * measured[seconds])
    for gpu in range(TP):
        work = sorted(lanes[gpu, "kernels"] + lanes[gpu, "collectives"])
        assert all(after[0] >= before[1] - 1e-6 for before, after in pairwise(work)), "one after the other"
        kinds = Counter(kind for *_, kind in lanes[gpu, "collectives"])
        assert kinds == {kind: counted["calls"] for kind, counted in measured["collectives"].items()}
        assert all(kind for *_, kind in lanes[gpu, "kernels"])
        phases: dict[str, float] = defaultdict(float)
        for begin, end, kind in lanes[gpu, "phases"]:
            phases[kind] += end - begin
        assert {phase["name"]: 1e6 * phase["critical_path"]["seconds"] for phase in report["phases"]} == pytest.approx(
            phases
        )
    last = max(end for line in lanes.values() for _, end, _ in line)
    assert last == pytest.approx(1e6 * measured["critical_path"]["seconds"])


@pytest.mark.mpi(ranks=[1])
def test_who_keeps_a_trace_counts_the_same(tmp_path: Path, comm: Any) -> None:
    reports = [
        emulate(comm, Board.alone(), load_program("llama", "gpu"), GIVEN["eager"], tp=2, static=True, **more)
        for more in ({}, {"trace": str(tmp_path / "trace.json")})
    ]
    for report in reports:
        report.pop("host")
    assert reports[0] == reports[1]
