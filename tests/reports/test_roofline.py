"""`meshrt roofline`: bounds by hand, and that no program on any machine takes less than its bounds."""

from __future__ import annotations

import copy
import csv
import json
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from graph_folders import lay_graph

import meshrt
from meshrt.commands import roofline as command_file
from meshrt.errors import UsageError
from meshrt.machine import machines
from meshrt.program import load_program, packaged_programs
from meshrt.reports.ceilings import Ceilings, Level
from meshrt.reports.report import Report
from meshrt.reports.roofline import BoundError, RooflinePart, parts_of
from meshrt.studies.pictures.roofline import roofs, sketch

TINY = {"model": "llama-tiny", "prompt_ids": "1,2,3,4,5", "max_new_tokens": 3, "ignore_eos": True}
SHAPE = {"payload": False, "layers": 1, "prompt_tokens": 8, "max_new_tokens": 2}
MESH = [
    *(("gemm", {"algorithm": name, "mesh": "6x6", "m": 20, "k": 25, "n": 28}) for name in ("meshgemm", "cannon")),
    *(("gemm", {"algorithm": name, "mesh": "6x6", "m": 20, "k": 25, "n": 28}) for name in ("summa", "allgather")),
    ("gemm", {"mesh": "4x6", "m": 30, "k": 17, "n": 23, "dtype": "float16", "transpose_b": True}),
    ("gemm", {"mesh": "1x1", "m": 30, "k": 17, "n": 64}),
    ("gemm", {"mesh": "8x8", "m": 64, "k": 64, "n": 64, "dtype": "bfloat16", "payload": False}),
    ("gemm", {"mesh": "8x8", "m": 16, "k": 16, "n": 16, "device": "ideal"}),
    *(("gemv", {"allreduce": name, "mesh": "8x8", "k": 72, "n": 40}) for name in ("ktree", "pipeline", "ring")),
    ("gemv", {"mesh": "8x8", "k": 64, "n": 64, "dtype": "float16", "groups": "4", "axis": "x"}),
    ("published", {"mesh": "6x6", "m": 12, "k": 25, "n": 28}),
    ("published", {"mesh": "8x8", "kernel": "meshgemv", "k": 72, "n": 40, "device": "wormhole"}),
    ("gemm", {"mesh": "4x4", "m": 128, "k": 64, "n": 64, "dtype": "bfloat16", "device": "wormhole", "payload": False}),
    *(("kvcache", {"mesh": "4x8", "tokens": 13, "policy": name}) for name in ("shift", "concat", "roundrobin")),
    *(("allreduce", {"mesh": "16x4", "size": 9, "algorithm": name}) for name in ("ktree", "pipeline", "ring")),
    ("allreduce", {"mesh": "4x4", "size": 4000}),
    *(("shift", {"mesh": "8x8", "tile": 12, "pattern": name}) for name in ("interleaved", "cannon")),
    ("shift", {"mesh": "8x8", "tile": 40, "axis": "both", "multiply": True, "payload": False}),
    *(("dispatch", {"mesh": "6x6", "payload": payload}) for payload in (True, False)),
    ("llama", {**TINY, "mesh": "8x8"}),
    ("llama", {**TINY, "mesh": "8x8", "dtype": "float16"}),
    ("llama", {**TINY, "mesh": "8x8", "regions": 2}),
    ("llama", {**TINY, "mesh": "8x8", "decode_mesh": "4x8", "device": "ideal"}),
    ("llama", {**TINY, "mesh": "8x8", "head_groups": 2, "allreduces": "published"}),
    ("llama", {**TINY, "mesh": "8x8", "system": "t10"}),
    ("llama", {**TINY, "mesh": "8x8", "system": "ladder", "payload": False}),
    ("llama", {**TINY, "mesh": "8x8", "payload": False, "layers_run": 2}),
    ("llama", {**TINY, "mesh": "8x8", "payload": False, "defects": "0.02"}),
    ("llama", {"model": "mixtral-tiny", "prompt_ids": "1,2,3", "max_new_tokens": 2, "mesh": "8x8", "device": "ideal"}),
    ("llama", {"model": "llama3.2-1b", "mesh": "16x16", "device": "ideal", **SHAPE}),
    ("llama", {"model": "qwen2-72b", "bits": 4, "mesh": "16x16", "device": "ideal", **SHAPE}),
]  # fmt: skip
MESH.append(("graph", {"mesh": "3x2", "sizes": "S=5"}))
XUV = {"m": 256, "k": 256, "r": 64, "n": 384, "cores": 4}
NEURON = [
    *(("xuv", {"kernel": name, **XUV}) for name in ("sequential", "naive", "fused", "mlp", "upgate")),
    ("xuv", {"kernel": "dense", "m": 200, "k": 256, "n": 300, "cores": 3}),
    ("xuv", {"kernel": "fused", **XUV, "cores": 1, "dtype": "float32", "payload": False}),
    *(("llama", {**TINY, "cores": cores}) for cores in (1, 4)),
    ("llama", {**TINY, "model": "llama3.2-1b", "layers": 1, "payload": False, "cores": 32}),
    ("llama", {**TINY, "cores": 2, "dtype": "float32"}),
    ("llama", {"model": "llama3.2-1b", "cores": 4, **SHAPE}),
]
GPU = [
    *(("lowrank", {**TINY, "tp": 4, "scheme": name}) for name in ("base", "deinfer")),
    *(("lowrank", {**TINY, "tp": 4, "scheme": name, "static": True}) for name in ("base", "deinfer")),
    ("lowrank", {**TINY, "tp": 2, "link": "pcie"}),
    ("serve", {"tp": 4, "requests": 4, "prompt_tokens": "5", "output_tokens": "3"}),
    ("llama", {**TINY, "tp": 4, "static": True}),
    ("llama", {**TINY, "tp": 1, "device": "a6000"}),
    ("llama", {"model": "mixtral-tiny", "prompt_ids": "1,2,3", "max_new_tokens": 2, "tp": 2}),
    ("llama", {"model": "llama3-8b", "bits": 4, "tp": 8, **SHAPE}),
]  # fmt: skip
ARM = [
    ("linear", {"m": 23, "k": 100, "n": 70, "device": "phone", "split": "steal"}),
    ("linear", {"m": 1, "k": 512, "n": 384, "cores": 1}),
    ("linear", {"m": 20, "k": 256, "n": 128, "tile": "12x8", "spill": True, "payload": False}),
    *(("llama", {**TINY, "bits": "4", "flash": flash}) for flash in (0, 1, 4)),
    ("llama", {**TINY, "bits": "4", "device": "phone", "attention": "concat", "kv": "int8", "flash": 2}),
]  # fmt: skip
ARM.append(("graph", {"sizes": "S=5"}))
RUNS = [(on, *run) for on, runs in (("mesh", MESH), ("neuron", NEURON), ("gpu", GPU), ("arm", ARM)) for run in runs]


@pytest.fixture(scope="module")
def gemm() -> Report:
    return meshrt.run("gemm", mesh="8x8", m=256, k=256, n=256, payload=False)


def say(*arguments: Any, code: int = 0) -> Result:
    done = CliRunner().invoke(command_file.command, [str(word) for word in arguments])
    exit_code = getattr(done.exception, "exit_code", done.exit_code)
    assert exit_code == code, done.output
    return done


@pytest.mark.sample(8)
@pytest.mark.parametrize(("on", "name", "options"), RUNS, ids=lambda value: value if isinstance(value, str) else "")
def test_nothing_takes_less_than_its_bounds(on: str, name: str, options: dict[str, Any], tmp_path: Path) -> None:
    if name == "graph":
        options = options | {"model": str(lay_graph(tmp_path / "graph", 40))}
    holds(meshrt.run(name, on=on, **options))


def holds(report: Report) -> None:
    parts = parts_of(report, "run")
    assert [part.name for part in parts] == [*report.phases, "total"]
    for part in parts:
        part.check("run")
        assert 0 <= part.share <= 1 + 1e-9
    if parts[-1].seconds:  # a cache that no token moves in takes none
        assert parts[-1].bound[1] > 0


@pytest.mark.parametrize("options", [
    {"model": "llama-tiny", "scheme": "dense", "tp": 2, "dp": 16, "link": "pcie", **SHAPE, "prompt_tokens": None},
    {"model": "llama3-70b", "scheme": "dense", "tp": 64, "node_size": 8, **SHAPE, "prompt_tokens": None, "context": 8},
    {"model": "llama3-8b", "tp": 4, "node_size": 1, "link": "pcie", "link_rate": 1e8, **SHAPE},
])  # fmt: skip
def test_groups_of_gpus_and_nodes_have_bounds_of_their_own(options: dict[str, Any], tmp_path: Path) -> None:
    """Latencies are those of one group, and over nodes of fewer steps than a flat ring's; the network has bytes."""
    if "dp" in options:
        (tmp_path / "prompts").write_text(16 * "Once\n")
        options = options | {"prompts": tmp_path / "prompts"}
    holds(meshrt.run("llama", on="gpu", **options))


def test_every_program_of_every_machine_is_looked_at() -> None:
    def runs(name: str, on: str) -> bool:
        with suppress(UsageError):
            return bool(load_program(name, on))
        return False

    programs = {(on, name) for name in packaged_programs() for on in machines() if runs(name, on)}
    assert programs == {(on, name) for on, name, _ in RUNS}


def test_bounds_of_a_gemm_by_hand(gemm: Report) -> None:
    """256^3 on 8 x 8: a core computes 8 x 32^3 products, one a cycle, in vectors of 32 that cost a cycle each."""
    (whole,) = parts_of(gemm, "gemm")
    cycles = gemm["critical_path.cycles"]
    ceilings = whole.ceilings
    assert ceilings.operations == 2 * 256**3
    assert ceilings.peak == pytest.approx(2 * 64 * 1.1e9 / 1.5, rel=1e-9)  # a chunk takes 1.5 cycles in the mean
    assert ceilings.bounds["compute"] * 1.1e9 == pytest.approx(1.5 * 256**3 / 64, rel=1e-9)
    assert ceilings.bounds["links"] * 1.1e9 == pytest.approx(gemm["link_bytes.max"] / 4, rel=1e-9)
    path = gemm["critical_path.hops"] + 5 * gemm["critical_path.stages"]
    assert ceilings.bounds["latency"] * 1.1e9 == pytest.approx(path, rel=1e-9)
    assert whole.bound[0] == "compute" and whole.share == pytest.approx(1.5 * 256**3 / 64 / cycles, rel=1e-9)
    assert whole.attained == pytest.approx(2 * 256**3 / (cycles / 1.1e9), rel=1e-9)
    links, ramps = ceilings.levels
    assert (links.nbytes, links.rate) == (gemm["link_bytes.total"], 4 * 8 * 7 * 4 * 1.1e9)
    assert (ramps.nbytes, ramps.rate) == (2 * gemm["messages"] * 4 * 32 * 32, 2 * 64 * 4 * 1.1e9)  # tiles of 32 x 32


def test_16_bit_numbers_have_a_peak_of_their_own() -> None:
    whole = parts_of(meshrt.run("gemm", mesh="8x8", m=64, k=64, n=64, dtype="float16", payload=False), "gemm")[-1]
    assert whole.ceilings.peak == pytest.approx(2 * 64 * 4 * 1.1e9 / 1.875, rel=1e-9)


def test_arms_peak_is_that_of_its_instructions() -> None:
    whole = parts_of(meshrt.run("linear", m=20, k=512, n=384, payload=False), "linear")[-1]
    assert whole.ceilings.peak == pytest.approx(2816e9, rel=1e-9)  # of smmla: arm.md has the sum


def test_a_run_that_took_less_is_an_error_of_ours(gemm: Report, tmp_path: Path) -> None:
    data = copy.deepcopy(dict(gemm.data))
    data["measured"]["critical_path"]["seconds"] *= 0.9
    path = tmp_path / "fast.json"
    path.write_text(json.dumps(data))
    done = say(path, "--json", tmp_path / "out.json", code=1)
    assert isinstance(done.exception, BoundError) and "compute alone takes" in str(done.exception)
    assert json.loads((tmp_path / "out.json").read_text())["runs"][0]["parts"][0]["share"] > 1  # all is told first


def test_several_reports_as_table_json_and_pictures(gemm: Report, tmp_path: Path) -> None:
    gemm.write(str(tmp_path / "a.json"))
    meshrt.run("llama", on="neuron", **TINY, payload=False).write(str(tmp_path / "b.json"))
    done = say(tmp_path / "a.json", tmp_path / "b.json", "--picture", "--json", tmp_path / "roofs.json")
    assert "gemm on wse2" in done.output and "llama on trn1" in done.output
    assert (
        "bound by" in done.output
        and "roofs: 1 links; 2 ramps" in done.output
        and "a prefill; b decode; c total" in done.output
    )
    document = json.loads((tmp_path / "roofs.json").read_text())
    assert [(run["machine"], len(run["parts"])) for run in document["runs"]] == [("mesh", 1), ("neuron", 3)]
    for part in document["runs"][1]["parts"]:
        assert part["bound_seconds"] == max(part["bounds"].values()) == part["share"] * part["seconds"]
    assert json.loads(say(tmp_path / "a.json", "--json", "-").output)["runs"][0]["parts"][0]["bound_by"] == "compute"


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_a_plot_is_the_same_file_twice(gemm: Report, tmp_path: Path, kind: str) -> None:
    gemm.write(str(tmp_path / "a.json"))
    drawn = []
    for name in ("one", "two"):
        say(tmp_path / "a.json", "-q", "--plot", tmp_path / f"{name}.{kind}")
        drawn.append((tmp_path / f"{name}.{kind}").read_bytes())
    assert drawn[0] == drawn[1] and drawn[0][:4] == {"png": b"\x89PNG", "svg": b"<?xm"}[kind]


def test_a_sketch_has_its_points_under_its_roof() -> None:
    """One part on the slope, of half its bytes' rate, and one under the peak."""
    levels = [Level("HBM", "hbm_bytes.total", nbytes, 1e9, nbytes / 1e9) for nbytes in (10**9, 10**6)]
    slope = RooflinePart("slope", 2.0, Ceilings("flops", 10**8, 1e11, (levels[0],)))
    flat = RooflinePart("flat", 0.01, Ceilings("flops", 10**8 * 4, 1e11, (levels[1],)))
    (roof,) = roofs([slope, flat])
    assert (roof.at(0.1), roof.at(1e6)) == (1e8, 1e11)
    assert roof.points == (("slope", 0.1, 5e7), ("flat", 400.0, 4e10))
    lines = sketch([slope, flat]).splitlines()[1:19]
    rows = {letter: next(at for at, line in enumerate(lines) if letter in line[10:]) for letter in "ab"}
    peak = next(at for at, line in enumerate(lines) if "---" in line)
    assert peak < rows["b"] < rows["a"]


def test_without_limits_there_is_no_roof() -> None:
    part = RooflinePart("total", 1.0, Ceilings("macs", 10, inf, (Level("links", "link_bytes.total", 5, inf, 0.0),)))
    assert roofs([part]) == [] and sketch([part]).startswith("no roof")
    assert part.json()["peak"] is None and part.json()["levels"][0]["bytes_per_second"] is None
    assert part.share == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot be read as a report"),
        ("[]", "is no report of schema 1"),
        ('{"schema": 1, "machine": "abacus"}', "is no report of schema 1"),
        ('{"schema": 1, "machine": ["mesh"]}', "is no report of schema 1"),
        ('{"schema": 1, "machine": "mesh"}', "no whole report: its 'program' is missing"),
        ('{"schema": 1, "machine": "gpu", "phases": [], "measured": 3, "device": {}, "mesh": []}', "no whole report"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    assert says in str(say(path, code=2).exception)


@pytest.mark.parametrize("key", ["kinds", "device", "phases", "measured", "mesh", "program"])
@pytest.mark.parametrize("value", [None, 3, [], {}, "x", [1], {"name": []}])
def test_a_damaged_report_is_refused_with_a_line(gemm: Report, tmp_path: Path, key: str, value: Any) -> None:
    """Or it is told, where what is wrong with it is not asked for."""
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**gemm.data, key: value}))
    done = CliRunner().invoke(command_file.command, [str(path), "--picture"])
    assert done.exit_code == 0 or isinstance(done.exception, UsageError), done.exception


def test_a_phase_without_what_another_has(tmp_path: Path) -> None:
    """Weights come from flash in one phase only."""
    report = meshrt.run("llama", on="arm", **TINY, bits="4", flash=1, payload=False)
    data = copy.deepcopy(dict(report.data))
    data["phases"][0]["flash_bytes"] = 0
    parts = parts_of(Report(data), "llama")
    assert [part.ceilings.levels[-1].nbytes > 0 for part in parts] == [False, True, True]
    assert len({len(part.ceilings.levels) for part in parts}) == 1


def test_a_row_for_each_phase_of_each_run_as_csv(gemm: Report, tmp_path: Path) -> None:
    """The same numbers as --json has, with a column for each level and bound of any machine."""
    gemm.write(str(tmp_path / "a.json"))
    meshrt.run("linear", m=3, payload=False).write(str(tmp_path / "b.json"))
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    done = CliRunner().invoke(
        command_file.command, [*files, "--quiet", "--csv", str(tmp_path / "t.csv"), "--json", str(tmp_path / "t.json")]
    )
    assert done.exit_code == 0, done.exception
    with open(tmp_path / "t.csv") as stream:
        rows = [*csv.DictReader(stream)]
    runs = json.loads((tmp_path / "t.json").read_text())["runs"]
    parts = [(run, part) for run in runs for part in run["parts"]]
    assert len(rows) == len(parts) == 4
    for line, (run, part) in zip(rows, parts, strict=True):
        assert (line["machine"], line["part"]) == (run["machine"], part["name"])
        assert float(line["seconds"]) == part["seconds"] and line["bound_by"] == part["bound_by"]
        for level in part["levels"]:
            assert line[f"{level['name']}: bytes"] == str(level["bytes"])
        for name, seconds in part["bounds"].items():
            assert float(line[f"at least {name}"]) == seconds
    assert rows[0]["L2: bytes"] == "" and rows[-1]["links: bytes"] == ""
    assert "there is no folder" in str(say(files[0], "--csv", tmp_path / "no" / "x", code=2).exception)


def test_what_cannot_be_written_or_drawn_is_found_out_first(gemm: Report, tmp_path: Path) -> None:
    gemm.write(str(tmp_path / "a.json"))
    assert ".png or .svg" in str(say(tmp_path / "a.json", "--plot", tmp_path / "roof.gif", code=2).exception)
    assert "there is no folder" in str(say(tmp_path / "a.json", "--json", tmp_path / "no" / "x", code=2).exception)
    assert "cannot be read" in str(say(tmp_path / "none.json", code=2).exception)
