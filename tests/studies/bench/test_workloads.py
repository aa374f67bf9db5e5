"""`meshrt bench workloads|scaling|profile`: the runs are the work they say they are. How fast is no test."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from math import isqrt
from pathlib import Path
from typing import Any

import pytest

import meshrt
from meshrt.commands.figures import host
from meshrt.errors import UsageError
from meshrt.launch import bench
from meshrt.launch.bench import Timing
from meshrt.studies.bench import hosttime, scaling, workloads

Run = Callable[..., Any]


@pytest.fixture
def timed(run_meshrt: Run, tmp_path: Path) -> workloads.Timed:
    """What `meshrt bench` gives to the studies: starts ranks, returns seconds and the report."""

    def run(ranks: int, arguments: tuple[str, ...]) -> Timing:
        path = tmp_path / "report.json"
        code, out, err, seconds = run_meshrt(*arguments, "--quiet", "--json", str(path), ranks=ranks)
        assert (code, out, err) == (0, "", "")
        return Timing(seconds, seconds / 2, json.loads(path.read_text()))

    return run


def expected(name: str, cores: int) -> tuple[int, int]:
    """(messages, hops) of a work."""
    side = isqrt(cores)
    if name == "W3":  # rows of 64: a chunk from every core at each of 2 x 63 steps, ten times
        return 10 * 126 * cores, 10 * 126 * 2 * 63 * cores // 64
    if name == "W5":  # the loop's shifts of all lines, and side^2 // 4 of one line to align A, as many for B
        shifts = 2 * (side - 1) * side + 2 * (side * side // 4)
        return 256 // side * shifts * side, 256 // side * shifts * 2 * (side - 1)
    return 400 * 2 * cores, 400 * 2 * side * 2 * (side - 1)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("ranks", "only"), [(1, ()), (2, ("W2", "W3"))])
def test_a_work_sends_as_many_messages_as_it_is_known_for(ranks: int, only: tuple[str, ...], timed: workloads.Timed):
    figures = workloads.measure(timed, only, cores=(64,), ranks=(ranks,))
    assert [figure.work for figure in figures] == list(only or [work.name for work in workloads.WORKS])
    for figure in figures:
        assert (figure.messages, figure.hops) == expected(figure.work, 64)
        assert 0 < figure.seconds < figure.wall_seconds
        assert 0 < figure.loop_cpu_seconds < ranks * figure.wall_seconds
        assert figure.rss_bytes > ranks * 10e6
        assert (figure.cores, figure.ranks) == (64, ranks)


def made(work: str, cores: int, ranks: int, messages: int, seconds: float) -> workloads.WorkloadFigure:
    spent = 2 * seconds  # of processors
    return workloads.WorkloadFigure(
        work, cores, ranks, messages, 2 * messages, seconds, spent, seconds + 1, 0.75, 3 * 2**20
    )


def columns(line: str) -> list[str]:
    """The cells of a printed line, which two spaces at least keep apart."""
    return re.split(r"\s{2,}", line.rstrip())


def test_figures_are_printed_beside_those_of_others(capsys: pytest.CaptureFixture[str]):
    figures = [made("W1", 64, 1, 51200, 0.1), made("W1", 64, 2, 51200, 0.2), made("W1", 256, 1, 204800, 0.1)]
    workloads.print_figures(figures)
    out = capsys.readouterr().out
    assert "W1: Cannon's shift" in out and "W2" not in out.split("Other tools")[0]
    assert "512 k" in out and "0.75" in out and "2.0 M" in out and "3.0 MiB" in out
    ratios = {words[1]: words[2:4] for words in map(columns, out.splitlines()) if words[0].startswith("slowest")}
    # By the clock 256,000 on two ranks, against 132,000 of a Python loop at 64; one rank's 2,048,000 against the same.
    # Of processor time half of that, against LogGOPSim's 1,500,000: it was measured in nothing else.
    assert ratios == {"of messages / s": ["1.9", "15.5"], "of messages / CPU s": ["0.1", "0.7"]}
    heads = next(columns(line) for line in out.splitlines() if " 64 cores" in line)
    assert heads == ["figure", "unit", "64 cores", "256 cores", "source"]
    document = workloads.as_json(figures)
    assert set(document) == {"schema", "figures", "others"}
    assert document["figures"][0]["messages"] == 51200
    assert document["figures"][0]["loop_cpu_seconds"] == 0.2
    assert {"work", "tool", "rates", "source", "unit"} == set(document["others"][0])
    assert {other["unit"] for other in document["others"]} == {"messages / s", "messages / CPU s"}


@pytest.mark.parametrize(
    ("options", "words"),
    [({"only": ("W9",)}, "there is no such work"), ({"cores": (100,)}, "--cores 100"), ({"cores": (128,)}, "square")],
)
def test_what_is_no_work_is_refused(options: dict[str, Any], words: str):
    with pytest.raises(UsageError, match=words):
        workloads.measure(lambda *_: Timing(0.0, 0.0, {}), **options)


def test_a_run_that_fails_ends_a_measurement_with_its_code(run_meshrt: Run):
    code, out, err, _ = run_meshrt("bench", "scaling", "--side", "4", "--edge", "20", "--ranks", "5")
    assert (code, out) == (2, "")
    assert "5 ranks do not tile a 4 x 4 mesh" in err and err.endswith("the run ended with code 2: see above\n")


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.all)])
def test_a_scaling_curve_has_a_point_for_each_mesh(
    ranks: int, timed: workloads.Timed, capsys: pytest.CaptureFixture[str]
):
    points = scaling.measure(timed, sides=(2, 5), ranks=(ranks,), edge=20)
    assert [point.mesh for point in points] == [(2, 2), (5, 5)]
    for point in points:
        assert point.max_rel_error < 1e-6 and point.messages > 0
        assert set(point.shares) == set(hosttime.KINDS)
        assert sum(point.shares.values()) == pytest.approx(1)
        assert point.shares["planning"] > 0 and (ranks == 1 or point.shares["MPI"] > 0)
    scaling.print_points(points)
    out = capsys.readouterr().out
    assert out.startswith("MeshGEMM 20^3, real numbers\n")
    assert [line.split()[:2] for line in out.splitlines()[2:4]] == [[str(ranks), "4"], [str(ranks), "25"]]
    assert scaling.as_json(points)["points"][1]["mesh"] == (5, 5)


@pytest.mark.sample(1)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_profile_prints_where_rank_0_spent_its_time(ranks: int, run_meshrt: Run):
    code, out, err, _ = run_meshrt("bench", "profile", "run", "gemm", "--m", "16", "--quiet", ranks=ranks)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["kind", *hosttime.KINDS]


def test_a_profile_ends_as_what_it_ran(run_meshrt: Run):
    code, _, err, _ = run_meshrt("bench", "profile", "run", "gemm", "--core-memory", "1")
    assert code == 3 and "the limit is 1" in err


def test_what_the_kinds_of_time_are_told_by_is_there():
    """A function that was renamed would silently count for something else."""
    for place, names, kind in hosttime.RULES:
        path = Path(meshrt.__file__).parent / place
        assert kind in hosttime.KINDS
        assert path.is_dir() if place.endswith("/") else path.is_file()
        tree = ast.parse(path.read_text() if path.is_file() else "")
        assert (names or set()) <= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, place


@pytest.mark.parametrize("folder", ["wires", "collectives", "exchange"])
def test_what_moves_packets_is_no_others_time(folder: str):
    for path in (Path(meshrt.__file__).parent / "mesh" / folder).glob("*.py"):
        assert hosttime.kind((str(path), 1, "any")) != "other", path.name


def test_the_time_of_others_code_counts_for_its_callers():
    matmul = ("/x/meshrt/mesh/computing.py", 1, "matmul")
    replay = ("/x/meshrt/mesh/wires/fabric.py", 2, "_replay")
    helper, leaf = ("/y/numpy/h.py", 3, "helper"), ("~", 0, "<built-in leaf>")
    stats = {
        matmul: (1, 1, 5.0, 6.0, {}),
        replay: (1, 1, 2.0, 6.0, {}),
        helper: (2, 2, 0.0, 4.0, {matmul: (1, 1, 0.0, 1.0), replay: (1, 1, 0.0, 3.0)}),
        leaf: (9, 9, 4.5, 4.5, {helper: (8, 8, 4.0, 4.0), replay: (1, 1, 0.5, 0.5)}),
        ("~", 0, "<method 'Isend' of 'mpi4py.MPI.Comm' objects>"): (1, 1, 0.25, 0.25, {replay: (1, 1, 0.25, 0.25)}),
        ("/y/other.py", 4, "alone"): (1, 1, 0.125, 0.125, {}),
    }
    seconds = hosttime.by_kind(stats)
    assert seconds["products"] == pytest.approx(5.0 + 1.0)  # a quarter of the helper's leaf
    assert seconds["headers"] == pytest.approx(2.0 + 3.0 + 0.5)
    assert (seconds["MPI"], seconds["other"]) == (0.25, 0.125)
    assert sum(seconds.values()) == pytest.approx(sum(entry[2] for entry in stats.values()))


@pytest.mark.parametrize(
    ("file", "name", "kind"),
    [
        ("mesh/products.py", "product", "products"),
        ("ranks/bells.py", "listen", "MPI"),
        ("ranks/board.py", "waiting", "MPI"),
        ("ranks/board.py", "landed", "other"),
        ("mesh/wires/sends.py", "send", "headers"),
        ("mesh/wires/sends.py", "rows_of", "planning"),
        ("mesh/wires/routes.py", "any", "planning"),
        ("mesh/wires/routes.py", "<module>", "other"),
    ],
)
def test_functions_count_for_what_they_are_for(file: str, name: str, kind: str):
    assert hosttime.kind((f"/x/meshrt/{file}", 1, name)) == kind


def test_the_speed_of_the_host_is_shown_beside_the_goals_that_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """As docs/speed.md has them; where it has none, none."""
    report = {"host": dict.fromkeys(("startup_cpu_seconds", "rss_bytes", "shift_seconds", "copy_seconds"), 0.25)}
    monkeypatch.setattr(bench, "timed", lambda *_: Timing(8.0, 8.0, report))
    monkeypatch.setattr(bench, "cpu_seconds", lambda _: 0.125)
    monkeypatch.setattr(bench.subprocess, "run", lambda *_, **__: None)
    goals = {line.work: line.goal for line in bench.measure() if line.goal is not None}
    assert goals == {"start-up of a rank, median": 0.18, "MeshGEMM 2048^3 on 720 x 720, 2 ranks": 11}
    host.main([], standalone_mode=False)
    out = capsys.readouterr().out
    assert "| work | measured | goal | baseline | ratio to it |" in out and "docs/speed.md" in out
    assert re.search(r"^\| MeshGEMM [^|]*\| 8 s \| 11 s \|", out, re.MULTILINE)
    assert re.search(r"^\| llama-tiny[^|]*\| 8 s \|  *\|", out, re.MULTILINE)
