"""Maps of NeuronCores, GPUs and Arm cores: what they add up to, and the same file on any number of ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from mpi4py import MPI

from meshrt.cli import cli
from meshrt.commands.show import WHAT as OFFERED
from meshrt.emulate import emulate
from meshrt.errors import UsageError
from meshrt.program import load_program
from meshrt.ranks.board import Board
from meshrt.studies.pictures.maps import SHOWN, picture, read_maps, there

BY_SHAPE = {"prompt_tokens": 4}
RUNS: dict[str, tuple[str, bool, dict[str, Any], dict[str, Any]]] = {
    "gpu": ("gpu", True, {}, {"tp": 4}),
    "neuron": ("neuron", True, {}, {"cores": 4}),
    "arm": ("arm", True, {}, {"cores": 4}),
    "gpu, static": ("gpu", True, {}, {"tp": 4, "static": True}),
    "gpu, groups": ("gpu", True, {}, {"tp": 2, "pp": 2}),
    "gpu, layers": ("gpu", False, {**BY_SHAPE, "layers_run": 2}, {"tp": 4}),
    "arm, layers": ("arm", False, {**BY_SHAPE, "layers_run": 2}, {"cores": 4}),
}


def run(comm: Any, name: str, path: Path) -> Any:
    machine, payload, options, settings = RUNS[name]
    options = {"model": "llama-tiny", "max_new_tokens": 3, **options}
    program = load_program("llama", machine)
    return emulate(comm, Board.alone(), program, options, payload=payload, **settings, maps=str(path))


def counter(measured: Any, name: str) -> Any:
    for key in name.split("."):
        measured = measured[key]
    return measured


@pytest.mark.mpi(ranks=[1, 2, 4])
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.all if "," in name else ()) for name in RUNS])
def test_maps_add_up_to_the_report_and_are_the_same_on_any_number_of_ranks(comm: Any, name: str, tmp_path: Path):
    path = tmp_path / "run.npz"
    report = run(comm, name, path)
    if report is None:
        return
    parts = {"total": report["measured"]}
    parts |= {} if report["machine"] == "arm" else {phase["name"]: phase for phase in report["phases"]}
    maps = read_maps(str(path))
    assert [*maps.about["parts"]] == [*parts] and maps.about["mesh"] == [4, 1]
    checked = 0
    for part, measured in parts.items():
        assert maps.about["parts"][part]["seconds"] == measured["critical_path"]["seconds"]
        for which, facts in maps.about["maps"].items():
            if (part, which) != ("total", "memory") and f"{part}/{which}" not in maps.arrays:
                assert which == "memory", "peaks of GPUs are of the whole run"
                continue
            values = maps.array(part, which)
            assert values.shape == (1, 4)
            for rule in filter(None, facts["adds_up_to"].split(", ")):
                how, _, to = rule.partition(" ")
                total = sum(values[0].tolist()) if how == "sum" else max(values[0].tolist())
                assert total == counter(measured, to), (part, which, rule)
                checked += 1
    assert checked >= 5
    if "idle" in maps.about["maps"]:
        idle = 1 - maps.array("total", "busy") / report["measured"]["critical_path"]["seconds"]
        assert (maps.array("total", "idle") == idle).all() and 0 < idle.min() < 1
    if comm.size > 1:
        run(MPI.COMM_SELF, name, tmp_path / "alone.npz")
        assert path.read_bytes() == (tmp_path / "alone.npz").read_bytes()


def test_each_device_has_a_link_that_differs_with_its_part(tmp_path: Path) -> None:
    """Two pipelines' ends: a stage that gets tokens from the one before, and hands none on, sends less."""
    run(MPI.COMM_SELF, "gpu, groups", tmp_path / "run.npz")
    sent = read_maps(str(tmp_path / "run.npz")).array("total", "link_bytes")[0]
    assert sent[0] == sent[1] > sent[2] == sent[3] > 0


def test_a_picture_of_devices_names_them(tmp_path: Path) -> None:
    run(MPI.COMM_SELF, "gpu", tmp_path / "run.npz")
    maps = read_maps(str(tmp_path / "run.npz"))
    assert picture(maps, "links").at(3) == "GPU 3"
    assert "macs" not in there(maps) and "memory" in there(maps) and "memory" not in there(maps, "decode")
    for which, part, says in (
        ("macs", "total", "no macs by GPU in the whole run: there are links, memory"),
        ("memory", "decode", "no memory by GPU in decode"),
        ("pairs", "total", "who sent to whom is kept on the mesh"),
        ("links", "decod", "no phase 'decod': did you mean decode"),
    ):
        with pytest.raises(UsageError, match=says.replace("?", r"\?")):
            picture(maps, which, part)
    for which in there(maps):
        result = CliRunner().invoke(cli, ["show", str(tmp_path / "run.npz"), "--what", which], env={"COLUMNS": "60"})
        assert result.exit_code == 0 and "at GPU " in result.output, result.output
        assert max(map(len, result.output.splitlines())) <= 60
    assert {*OFFERED} == {*SHOWN}
    assert json.loads(str(np.load(tmp_path / "run.npz")["about"]))["one"] == "GPU"
