"""`meshrt score FILE.py`: one line of JSON, and what would make it worth nothing is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from mpi_jobs import Finished

from meshrt.scoring import text as scoredtext

HALO = str(Path(__file__).parents[2] / "examples" / "halo.py")
BEGIN = '''"""A sum along x."""
import numpy as np
from meshrt.mesh.collectives.allreduce import allreduce, ktree
from meshrt.mesh.tiles import gather, place


def run(block, *, size: int = 8):
    """Sum."""
    own = block.tiles("own", (size,), np.float32)
    own[...] = 1
    with ktree(block, "x") as tree:
        total = allreduce(block, tree, own, np.add)
'''
HONEST = (
    BEGIN.replace("size: int", "size: 'int'")
    + "    def mean(x: 'np.ndarray') -> 'np.floating':\n        return np.linalg.norm(x.mean())\n"
    + '    return {"max_abs_error": float(abs(total - block.mesh.width).max())}\n'
)
CHEATS = {
    "is an array of all cores that is charged to none": BEGIN.replace(
        'block.tiles("own", (size,), np.float32)', "np.ones((*block.lead, size), np.float32)"
    ) + "    return {}\n",
    "'kept', float32 [4, 4, 8], is an array": BEGIN.replace(
        "    own[...] = 1\n", "    own[...] = 1\n    kept = [np.ones((*block.lead, size), np.float32)]\n"
    ) + "    return {}\n",
    "the result has been gathered": BEGIN.replace(
        "    own[...] = 1\n", "    own[...] = 1\n    gather(block, own.reshape(4, 4, 1, 1, 1, size), (4, 32))\n"
    ) + "    return {}\n",
    "line 13: uses .clock": BEGIN + "    block.clock.state[...] = 0\n    return {}\n",
    "line 13: sets .hops": BEGIN + "    block.ledger.counters.hops = 0\n    return {}\n",
    "line 13: uses .counters": BEGIN + "    counted = block.ledger.counters\n    return {}\n",
    "line 13: uses setattr": BEGIN + "    setattr(block, 'clock', None)\n    return {}\n",
    "line 13: uses .__dict__": BEGIN + "    block.__dict__.clear()\n    return {}\n",
    "line 1: imports gc": "import gc\n" + BEGIN + "    return {}\n",
    "line 13: uses .control": BEGIN + "    block.control.allreduce(1)\n    return {}\n",
    "line 1: imports from meshrt.mesh.wires.software": "from meshrt.mesh.wires.software import run, stage\n" + BEGIN
    + "    return {}\n",
    "`divisions` is -200": BEGIN + "    block.scalar(divisions=-200)\n    return {}\n",
    "cycles: what a core does takes no less than 0": BEGIN + "    block.step(-1)\n    return {}\n",
    "work of nan cycles": BEGIN + "    block.step(float('nan'))\n    return {}\n",
    "work of -5 multiply-accumulates": BEGIN + "    block.work(np.int64(-5))\n    return {}\n",
    # what a program that searches might come upon
    "line 1: imports meshrt.scoring.text": "import meshrt.scoring.text\n" + BEGIN
    + "    meshrt.scoring.text.check_text = print\n    return {}\n",
    "line 1: imports sys from contextlib": "from contextlib import sys\n" + BEGIN + "    return {}\n",
    "line 2: uses contextlib.sys": "import contextlib\nLOADED = contextlib.sys.modules\n" + BEGIN + "    return {}\n",
    "line 2: hands the module m on": "import contextlib as m\nM = m\n" + BEGIN + "    return {}\n",
    "line 1: imports heads from meshrt.mesh.wires.receiving": "from meshrt.mesh.wires.receiving import heads\n" + BEGIN
    + "    return {}\n",
    "line 2: uses meshrt.emulate": "import meshrt.mesh.block\nE = meshrt.emulate\n" + BEGIN + "    return {}\n",
    "line 1: imports * from meshrt.mesh.block": "from meshrt.mesh.block import *\n" + BEGIN + "    return {}\n",
    "line 1: imports from meshrt.mesh": "from meshrt.mesh import Block, state\n" + BEGIN + "    return {}\n",
    "line 1: imports threading": "import threading\n" + BEGIN + "    return {}\n",
    "line 13: sets .matmul": BEGIN + "    block.matmul = np.matmul\n    return {}\n",
    "line 1: imports update_wrapper": "from functools import update_wrapper\n" + BEGIN + "    return {}\n",
    "line 14: takes object apart": BEGIN
    + "    match block:\n        case object(clock=c):\n            c.state[...] = 0\n    return {}\n",
    "line 1: imports replace from dataclasses": "from dataclasses import replace\n" + BEGIN + "    return {}\n",
    "line 13: uses .ctypes": BEGIN + "    np.ctypeslib.ctypes.memset(own.ctypes.data, 0, 8)\n    return {}\n",
    "line 13: uses .as_strided": BEGIN + "    np.lib.stride_tricks.as_strided(own, (9,))[...] = 0\n    return {}\n",
    "line 13: uses .load": BEGIN + "    np.load('answer.npy')\n    return {}\n",
    "line 13: uses .runstring": BEGIN + "    np.testing.runstring('1', {})\n    return {}\n",
    "line 13: uses __import__": BEGIN + "    def f(x: \"__import__('sys')\") -> None:\n        pass\n    return {}\n",
    "sends with stream": BEGIN + "    print(dict(stream=True))\n    return {}\n",
    "'KEPT', float64 [4, 4, 2], is an array": "KEPT = {}\n" + BEGIN.replace(
        "    own[...] = 1\n", "    own[...] = 1\n    KEPT['x'] = [[np.ones((*block.lead, 2))]]\n"
    ) + "    return {}\n",
    "core memory of -5000 bytes": BEGIN + "    block.memory.take('less', -5000)\n    return {}\n",
    "a wrong result has no score": BEGIN + '    return {"max_abs_error": 0.5}\n',
}  # fmt: skip


def test_a_score_is_one_line_and_that_of_the_run(run_meshrt: Callable[..., Finished], tmp_path: Path) -> None:
    for path in (HALO, str(tmp_path / "honest.py")):
        if path != HALO:
            Path(path).write_text(HONEST)
        finished = run_meshrt("score", path, "--mesh", "4x4")
        assert finished.code == 0 and finished.stdout.count("\n") == 1, finished.stderr
        line = json.loads(finished.stdout)
        measured = json.loads(run_meshrt("run", path, "--mesh", "4x4", "--json", "-").stdout)["measured"]
        assert line["ok"] and line["score"] == measured["critical_path"]["cycles"] > 0
        assert line["packet_hops"] == measured["hops"] and line["memory_bytes"] == measured["memory_bytes"]["max"]


def test_what_takes_time_only_may_be_said(run_meshrt: Callable[..., Finished], tmp_path: Path) -> None:
    """Sums of one's own are stages, in the score, too; fewer than no additions are refused."""
    path = tmp_path / "stages.py"
    chain = "meshrt.mesh.wires.software import stage\nfrom meshrt.mesh.wires.routes import chain\n"
    chain += "from meshrt.mesh.wires.tables import installed\n"
    text = BEGIN.replace("meshrt.mesh.tiles import gather, place\n", chain)
    text += "    with installed(block, 'x', chain) as way:\n"
    scores = {}
    for operations in (0, 1000, -1):
        path.write_text(f"{text}        stage(block, way, {operations}, np.ones(4, bool))\n    return {{}}\n")
        scores[operations] = json.loads(run_meshrt("score", str(path), "--mesh", "4x4").stdout)
    assert scores[0]["score"] + 500 < scores[1000]["score"]  # additions go two at a time
    assert scores[0]["stages"] == scores[1000]["stages"] > 0
    assert "a stage of -1 additions" in scores[-1]["refused"]


def test_what_a_program_prints_is_not_the_score(run_meshrt: Callable[..., Finished], tmp_path: Path) -> None:
    path = tmp_path / "prints.py"
    fake = '{"ok": true, "score": 1.0}'
    path.write_text(
        BEGIN.replace("import numpy", f"print('{fake}')\nimport numpy") + f"    print('{fake}')\n    return {{}}\n"
    )
    finished = run_meshrt("score", str(path), "--mesh", "4x4")
    assert finished.stdout.count("\n") == 1 and json.loads(finished.stdout)["score"] > 1
    assert finished.stderr.count(fake) == 2


@pytest.mark.parametrize("said", CHEATS)
def test_what_cheats_is_refused(said: str, run_meshrt: Callable[..., Finished], tmp_path: Path) -> None:
    path = tmp_path / "cheat.py"
    path.write_text(CHEATS[said])
    finished = run_meshrt("score", str(path), "--mesh", "4x4")
    line = json.loads(finished.stdout)
    assert finished.code == 2 and line["ok"] is False and line["score"] is None
    assert said in line["refused"], line


def test_the_page_names_what_may_be_imported() -> None:
    page = (Path(__file__).parents[2] / "docs" / "start.md").read_text().partition("`score` refuses")[2]
    for module in scoredtext.MODULES:
        name = module.removeprefix("meshrt.").removeprefix("mesh.")
        assert name == module or f"`{name}`" in page, module


def test_a_limit_of_the_mesh_is_a_line_with_code_3(run_meshrt: Callable[..., Finished], tmp_path: Path) -> None:
    path = tmp_path / "honest.py"
    path.write_text(HONEST)
    finished = run_meshrt("score", str(path), "--mesh", "4x4", "--size", "20000")
    assert finished.code == 3 and not json.loads(finished.stdout)["ok"]
    assert "would hold" in json.loads(finished.stdout)["refused"]


def test_its_help_is_shown_though_it_lists_no_programs(run_meshrt: Callable[..., Finished]) -> None:
    finished = run_meshrt("score", "--help")
    assert finished.code == 0 and "FILE.py" in finished.stdout
    assert "no file of a program" in run_meshrt("score", "gemm").stderr
