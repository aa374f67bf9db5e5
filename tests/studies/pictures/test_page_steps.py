"""The critical path step by step and the timeline in short, on a page: they add up to the run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_show import read_page

from meshrt.emulate import emulate
from meshrt.program import load_program
from meshrt.ranks.alone import Alone
from meshrt.ranks.board import Board
from meshrt.studies.pictures.page import PageRun, write_page
from meshrt.studies.pictures.steppage import kinds_of_path, steps_of, timeline_of
from meshrt.studies.pictures.traces import ALONE, ShownStep, Span, covered, read_trace, reasons, rows_of_path, shares

TINY = {"model": "llama-tiny", "layers": 1, "prompt_ids": "1,2,3", "max_new_tokens": 2, "ignore_eos": True}


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r">([\d,.]+)<", text)]


@pytest.mark.mpi(ranks=[1, 2])
def test_the_steps_on_a_page_add_up_to_the_run_on_any_ranks(tmp_path: Path, comm: Any) -> None:
    folder, program = Path(comm.bcast(str(tmp_path))), load_program("llama")
    settings: dict[str, Any] = {"mesh": "6x4", "core_memory": 200_000}
    report = emulate(comm, Board.alone(), program, TINY, trace=str(folder / "a.json"), **settings)
    if comm.rank:
        return
    alone = emulate(Alone(), Board.alone(), program, TINY, trace=str(folder / "b.json"), **settings)
    assert report is not None and alone is not None
    pages = []
    for run, name in ((report, "a.json"), (alone, "b.json")):
        run["host"] = alone["host"]
        pages.append(write_page([PageRun(run, trace=read_trace(str(folder / name)))]))
    assert pages[0] == pages[1]
    trace = read_trace(str(folder / "a.json"))
    assert trace is not None
    cycles = report["measured"]["critical_path"]["cycles"]
    rows = [numbers(row) for row in steps_of(report, trace).split("<tr>")[2:]]
    assert 10 < len(rows) <= 2 * ALONE + 1 < len(trace.path)
    assert rows[0][0] == 0 and all(
        row[0] + row[1] == pytest.approx(after[0], abs=2e-3) for row, after in pairwise(rows)
    )
    assert sum(row[1] for row in rows) == pytest.approx(cycles, abs=1e-3 * len(rows))
    kinds = kinds_of_path(report, trace)
    assert kinds is not None
    totals = [float(cell.replace(",", "")) for cell in kinds[1][-1][1:]]
    assert totals == pytest.approx([*(p["critical_path"]["cycles"] for p in report["phases"]), cycles], abs=1e-3)
    names, by_track = shares(trace, cycles)
    assert names == [*dict.fromkeys(phase["name"] for phase in report["phases"]), "total"]
    assert np.sum([*by_track.values()], axis=0) == pytest.approx(1)


def test_a_long_path_keeps_to_its_rows_and_loses_nothing() -> None:
    rng = np.random.default_rng(5)
    ends = np.cumsum(rng.integers(1, 9, 500)).tolist()
    path = [ShownStep("computes", begin, end, {"core": [0, 0]}) for begin, end in pairwise([0, *ends])]
    for phases in (
        [],
        [Span("one", 0, ends[99]), Span("two", ends[99], ends[-1])],
        [Span("p", e, e + 1) for e in ends],
    ):
        rows = rows_of_path(path, phases)
        assert len(rows) <= 2 * ALONE + 1
        assert [step for row in rows for step in row.steps] == path
        alone = [row.end - row.begin for row in rows if len(row.steps) == 1]
        assert len(alone) >= ALONE
        if not phases:
            assert sorted(alone)[-ALONE:] == sorted(step.end - step.begin for step in path)[-ALONE:]


def test_a_wait_is_made_of_what_was_while_it_lasted() -> None:
    wait = {"data": 0.0, "on_the_way": 1.0, "links": 4.0, "ramp": 0.0, "tail": 6.0}
    assert [*reasons(ShownStep("waits for route set 1 along x", 10, 18, wait))] == [
        ("waits: rest of the packet", 12, 18), ("waits: busy links", 10, 12)
    ]  # fmt: skip
    early = {"data": 2.0, "on_the_way": 1.0, "links": 0.0, "ramp": 3.0, "tail": 6.0}
    assert [*reasons(ShownStep("waits for route set 1 along x", 0, 13, early))] == [
        ("waits: rest of the packet", 7, 13), ("waits: busy ramp", 4, 7), ("waits: packet on its way", 3, 4),
        ("waits: packet not yet sent", 1, 3), ("waits: for a packet", 0, 1),
    ]  # fmt: skip
    assert [*reasons(ShownStep("computes", 0, 3, wait))] == [("computes", 0, 3)]


def test_engines_side_by_side_have_their_own_shares(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    events = [(0, "tensor", 0, 4), (0, "vector", 2, 4), (1, "tensor", 0, 2), (0, "phases", 0, 4), (0, "phases", 4, 6)]
    events += [(1, "phases", 0, 4), (1, "phases", 4, 6), (1, "link 3", 0, 9)]
    named = [{"name": "matmul" if lane != "phases" else "total" if begin else "at 0", "ph": "X", "pid": device,
              "tid": lane, "ts": begin, "dur": spent} for device, lane, begin, spent in events]  # fmt: skip
    file.write_text(json.dumps({"traceEvents": named}))
    trace = read_trace(str(file))
    assert trace is not None and covered(trace.tracks[0]) == 6
    names, by_track = shares(trace, 10.0)
    assert names == ["at 0", "total 2", "total"]
    assert by_track == {
        "tensor": [6 / 8, 0, 6 / 20], "vector": [2 / 8, 2 / 12, 4 / 20],
        "none of them": [pytest.approx(2 / 8), pytest.approx(10 / 12), pytest.approx(12 / 20)],
    }  # fmt: skip
    file.write_text('{"traceEvents": [], "displayTimeUnit": "ns"}')
    empty = read_trace(str(file))
    assert empty is not None and not empty.tracks
    assert timeline_of({}, empty) == ("There is nothing on its timeline.", None)
    assert read_trace("/dev/null") is None
    file.write_text('a table\n{"traceEvents": [{"name": ')
    assert read_trace(str(file)) is None


def test_cores_of_several_meshes_are_told_with_theirs(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    options = {**TINY, "decode_mesh": "4x4", "layers": 1}
    settings: dict[str, Any] = {"mesh": "6x4", "core_memory": 300_000, "trace": str(file)}
    report = emulate(Alone(), Board.alone(), load_program("llama"), options, **settings)
    assert report is not None
    text = steps_of(report, read_trace(str(file)))
    assert ") of 6 x 4<" in text and ") of decode 4 x 4<" in text
    assert "a part of the run alone" in steps_of({**report, "runs": []}, read_trace(str(file)))
    note, table = timeline_of({**report, "runs": []}, read_trace(str(file)))
    assert "the last of several runs" in note and table is None


@pytest.mark.parametrize(
    ("machine", "row"),
    [("gpu", "matmul"), ("arm", "fork and join"), ("neuron", "dma load")],
)
def test_other_machines_have_a_timeline_and_no_steps(machine: str, row: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    report = emulate(Alone(), Board.alone(), load_program("llama", machine), TINY, trace=str(file))
    assert report is not None
    trace = read_trace(str(file))
    assert "on the mesh alone" in steps_of(report, trace)
    words, table = timeline_of(report, trace)
    assert table is not None and row in [cells[0] for cells in table[1]]
    assert table[0][-1] == "total" and ("no phases" in words) == (machine == "neuron")
    for column in range(1, len(table[0])):
        whole = sum(float(cells[column].rstrip("%")) for cells in table[1])
        assert machine == "neuron" or whole == pytest.approx(100, abs=0.05 * (len(table[1]) + 1))


def test_a_page_of_a_traced_run_has_the_steps_and_one_of_a_report_says_how(tmp_path: Path) -> None:
    def meshrt(*words: object) -> None:
        subprocess.run([sys.executable, "-m", "meshrt", *map(str, words)], check=True, timeout=100)

    run, page = tmp_path / "run.json", tmp_path / "page.html"
    words = ["run", "gemv", "--k", "40", "--n", "24", "--mesh", "6x4", "--payload", "none", "--quiet"]
    meshrt(*words, "--trace", tmp_path / "trace.json", "--json", run, "--html", page)
    text = read_page(page).text
    assert "Step by step" in text and "the mean of the 6 of the trace" in text and "--trace FILE" not in text
    meshrt(*words, "--trace", "/dev/null", "--html", page)
    assert "run it again with --trace FILE and --html FILE" in read_page(page).text
    meshrt("html", run, "--to", page)
    assert "Step by step" not in read_page(page).text
    assert read_page(page).text.count("run it again with --trace FILE and --html FILE") == 2
