"""The file that shows what ran when on Arm cores."""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gpu_runs import Alone

from meshrt.arm.device import find_arm_device
from meshrt.arm.soc import Soc
from meshrt.emulate import emulate
from meshrt.program import load_program
from meshrt.ranks.board import Board
from meshrt.ranks.control import Control

GIVEN: dict[str, Any] = {
    "model": "llama-tiny",
    "prompt_ids": "1,2,3",
    "max_new_tokens": 2,
    "ignore_eos": True,
    "flash": 3,
}


@pytest.mark.mpi(ranks=[1, 2])
def test_a_trace_tells_what_every_core_does_all_the_time(tmp_path: Path, comm: Any) -> None:
    folder = Path(comm.bcast(str(tmp_path)))
    program = load_program("llama", "arm")
    report = emulate(comm, Board.alone(), program, GIVEN, cores=3, trace=str(folder / "trace.json"))
    off = emulate(comm, Board.alone(), program, GIVEN, cores=3)
    if comm.rank:
        return
    assert report["measured"] == off["measured"] and report["phases"] == off["phases"]
    lanes: dict[tuple[int, str], list[tuple[float, float, str]]] = defaultdict(list)
    for event in json.loads((folder / "trace.json").read_text())["traceEvents"]:
        lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
    measured = report["measured"]
    spent: dict[str, float] = defaultdict(float)
    for core in range(3):
        work = sorted(lanes[core, "work"])
        assert work[0][0] == 0 and work[-1][1] == pytest.approx(1e6 * measured["critical_path"]["seconds"])
        assert all(after[0] == pytest.approx(before[1], abs=1e-6) for before, after in pairwise(work)), "no gap"
        for begin, end, name in work:
            spent[name] += end - begin
        phases: dict[str, float] = defaultdict(float)
        for begin, end, name in lanes[core, "phases"]:
            phases[name] += end - begin
        assert phases == pytest.approx(
            {phase["name"]: 1e6 * phase["critical_path"]["seconds"] for phase in report["phases"]}
        )
    assert spent["computes"] == pytest.approx(1e6 * measured["compute_seconds"])
    assert spent["waits for other cores"] == pytest.approx(1e6 * measured["idle_seconds"])
    assert spent["waits for flash"] == pytest.approx(3e6 * measured["flash_wait_seconds"])


def test_a_phase_that_an_exception_ends_has_what_was_done_in_it() -> None:
    """A program catches it and goes on."""
    soc = Soc(find_arm_device("n2x8"), 2, Control(Alone(), Board.alone(), "test"), payload=False)
    for name in ("ended", "next"):
        with suppress(ValueError), soc.phase(name, tokens=3):
            soc.system["seconds"] += 0.5
            if name == "ended":
                raise ValueError
    assert [(phase.tokens, phase.system["seconds"]) for phase in soc.phases.values()] == [(3, 0.5), (3, 0.5)]
