"""`llama --on mesh|neuron|gpu` is one program: the same words, the same text; `lowrank` is that of GPUs."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrt
from meshrt.emulate import emulate
from meshrt.mesh.devicefile import find_device
from meshrt.options import Option
from meshrt.program import load_program
from meshrt.programs.generation.options import GenerationOptions
from meshrt.ranks.board import Board

SIZES: dict[str, dict[str, Any]] = {
    "mesh": {"mesh": (4, 4), "device": find_device("ideal")}, "neuron": {"cores": 2}, "gpu": {"tp": 2},
    "arm": {"cores": 2},
}  # fmt: skip
FLOATS = ("mesh", "neuron", "gpu")  # whose products are of the model's own numbers: those of Arm cores are W4A8
PROGRAMS = Path(__file__).parents[2] / "programs"
RUNS = [PROGRAMS / name for name in ("llama.py", "neuron/llama.py", "gpu/llama.py", "lowrank.py")]


def options_of(machine: str) -> dict[str, Option]:
    return {option.name: option for option in load_program("llama", machine).options}


def run(comm: Any, machine: str, name: str = "llama", **options: Any) -> Any:
    """The report at rank 0, None elsewhere."""
    given = {"prompt_ids": "1,2,3,4,5", "max_new_tokens": 8, "ignore_eos": True} | options
    return emulate(comm, Board.alone(), load_program(name, machine), given, **SIZES[machine])


@pytest.mark.parametrize("name", [field.name for field in fields(GenerationOptions)])
def test_a_word_is_the_same_option_on_every_machine(name: str) -> None:
    """Its help, default, range and kind."""
    first, *others = (options_of(machine)[name] for machine in SIZES)
    assert all(other == first for other in others)


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "drawn", [{}, {"temperature": 0.9, "top_k": 30, "top_p": 0.85, "seed": 11}], ids=["greedy", "drawn"]
)
def test_every_machine_writes_the_same(comm: Any, drawn: dict[str, Any], tmp_path: Path) -> None:
    """Token by token; the logits but for the order of float32 sums.

    Of two layers 30 tokens are alike, and 0.9 of them would be 27: the last bit would say whether the 28th is one.
    """
    folder, reports, rows = Path(comm.bcast(str(tmp_path))), {}, {}
    for machine in FLOATS:
        path = folder / f"{machine}.npy"
        reports[machine] = run(comm, machine, dtype="float32", logits=str(path), layers=2, **drawn)
        rows[machine] = np.load(path) if comm.rank == 0 else None
    if comm.rank == 0:
        said = [
            {key: report["result"][key] for key in ("prompt_ids", "token_ids", "stopped")}
            for report in reports.values()
        ]
        assert said[0] == said[1] == said[2] and len(said[0]["token_ids"]) == 8
        assert rows["mesh"].shape == (5 + 8 - 1, 512)
        for other in ("neuron", "gpu"):
            np.testing.assert_allclose(rows[other], rows["mesh"], atol=1e-3)


@pytest.mark.parametrize("on", ["mesh", "neuron", "gpu", "arm"])
def test_a_group_may_be_a_row_and_bits_a_number_on_every_machine(on: str) -> None:
    arguments: dict[str, Any] = {"payload": False, "layers": 1, "prompt_tokens": 2, "max_new_tokens": 1}
    report = meshrt.run("llama-tiny", on=on, bits=4, group="row", **arguments)
    assert report.arguments["group"] == "row" and str(report.arguments["bits"]) == "4"
    finer = meshrt.run("llama-tiny", on=on, bits=4, group=32, **arguments)
    assert finer["memory_bytes.max"] > report["memory_bytes.max"]  # of their scales


@pytest.mark.parametrize(("program", "options"), [("llama", {"layers": 1}), ("linear", {})])
def test_zero_is_a_row_on_arm_cores_as_well(program: str, options: dict[str, Any]) -> None:
    word, zero = (meshrt.run(program, on="arm", payload=False, group=group, **options) for group in ("row", 0))
    assert word.measured == zero.measured


def test_by_shape_there_is_no_text_and_tokens_are_alike() -> None:
    """On every machine."""
    results = {}
    for machine in SIZES:
        options: dict[str, Any] = {"prompt": "One day", "max_new_tokens": 3, "layers": 2}
        result = meshrt.run("llama-tiny", on=machine, payload=False, **options, **SIZES[machine]).result
        results[machine] = {key: result[key] for key in ("prompt_ids", "token_ids", "text", "stopped")}
    assert results["mesh"]["token_ids"] == [0, 0, 0] and results["mesh"]["text"] is None
    assert all(result == results["mesh"] for result in results.values())


@pytest.mark.mpi(ranks=[1])
def test_a_draw_counts_what_the_likeliest_does(comm: Any) -> None:
    """Logits leave the GPUs for it, which is not counted: no machine is said to draw."""
    greedy, drawn = (run(comm, "gpu", **more) for more in ({}, {"temperature": 0.9, "seed": 3}))
    assert greedy["result"]["token_ids"] != drawn["result"]["token_ids"]
    assert (greedy["measured"], greedy["phases"]) == (drawn["measured"], drawn["phases"])


@pytest.mark.mpi(ranks=[1])
def test_lowrank_is_llama_on_gpus(comm: Any) -> None:
    of_llama, of_lowrank = run(comm, "gpu"), run(comm, "gpu", "lowrank")
    assert [of_lowrank[key] for key in ("measured", "phases", "device")] == [
        of_llama[key] for key in ("measured", "phases", "device")
    ]
    same = of_llama["result"].keys() & of_lowrank["result"].keys()
    assert {"token_ids", "text", "ttft_seconds", "plans"} < same
    assert {key: of_llama["result"][key] for key in same} == {key: of_lowrank["result"][key] for key in same}
    assert of_llama["result"]["tpot_seconds"] == of_lowrank["result"]["itl_seconds"]


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.relative_to(PROGRAMS).as_posix())
def test_what_runs_a_program_is_read_at_a_glance(path: Path) -> None:
    (run,) = (
        node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef) and node.name == "run"
    )
    assert run.end_lineno is not None
    assert run.end_lineno - run.body[0].lineno < 60
