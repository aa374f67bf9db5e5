"""examples/: each is small, comes to what NumPy does on any ranks, and its check would see it if it did not."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from measure import on_one_rank, run_report
from mpi_jobs import Finished
from runs import run_on_cores, run_on_gpus

FOLDER = Path(__file__).parents[2] / "examples"

# file: the mesh and the options, the result, and a change of the text that has to show in it.
ON_MESH: dict[str, tuple[tuple[int, int], dict[str, Any], dict[str, Any], tuple[str, str]]] = {
    "rowsum.py": ((6, 4), {"size": 100}, {"sum": 15.0}, ('ktree(block, "x"', 'ktree(block, "y"')),
    "halo.py": ((6, 5), {"size": 7, "steps": 9}, {"wrong": 0}, ('("x", -1, 1, -1)', '("x", -1, 2, -1)')),
    "transpose.py": ((5, 5), {"size": 7}, {"wrong": 0}, ("swapaxes(-1, -2)", "copy()")),
    "alltoall.py": ((4, 3), {"size": 5}, {"wrong": 0}, ("(number + step) %", "(number + 2 * step) %")),
    "stationary.py": (
        (3, 5),
        {"m": 11, "k": 13, "n": 7},
        {"max_abs_error": 0.0},
        ("keeps = block.x == row // share", "keeps = block.x == row"),
    ),
    "rings.py": ((3, 2), {"m": 11, "k": 13, "n": 7}, {"max_abs_error": 0.0}, ("range(cut[0])", "range(cut[0] - 1)")),
    "tutorial/1_shift.py": ((8, 1), {}, {"came in": 21.0}, ("chain) as", "chain, 2) as")),
    "tutorial/2_ring.py": (
        (8, 1),
        {"pattern": "interleaved"},
        {"wrong": 0},
        ("range(block.mesh.width)", "range(block.mesh.width - 1)"),
    ),
    "tutorial/3_overlap.py": ((8, 1), {"overlap": True}, {"in each place": 128.0}, ("= 1, 1, 0", "= 1, 2, 0")),
    "tutorial/4_memory.py": (
        (8, 1),
        {"size": 16, "fresh": True},
        {"tiles": 9},
        ("if fresh else []", "if fresh and kept else []"),
    ),
    "tutorial/5_sum.py": ((8, 1), {}, {"sum": 28.0}, ("combine=np.add", "combine=np.maximum")),
    "tutorial/6_allreduce.py": ((8, 1), {}, {"wrong": 0}, ("multicast, n - 1", "multicast, n - 2")),
    "tutorial/7_middle.py": ((8, 1), {}, {"wrong": 0}, ("range(half, 0, -1)", "range(half, 1, -1)")),
}
EXAMPLES = [*(name for name in ON_MESH if "/" not in name), "tiled.py", "zero.py"]


def report(comm: Any, name: str, payload: bool = True, file: Path | None = None) -> dict[str, Any]:
    mesh, options, _, _ = ON_MESH[name]
    whole = run_report(comm, str(file or FOLDER / name), mesh, "wse2", payload, **options)
    return {key: part for key, part in whole.items() if key not in ("program", "host")}


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("name", ON_MESH)
def test_a_program_comes_to_what_numpy_does_on_any_ranks(name: str, comm) -> None:
    together = report(comm, name)
    assert together["result"] == ON_MESH[name][2]
    assert together == on_one_rank(comm, lambda alone: report(alone, name))


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("name", ON_MESH)
def test_its_result_shows_a_fault_and_by_shape_it_counts_the_same(name: str, tmp_path: Path, comm) -> None:
    text, (part, instead) = (FOLDER / name).read_text(), ON_MESH[name][3]
    assert text.count(part) == 1
    (changed := tmp_path / Path(name).name).write_text(text.replace(part, instead))
    assert report(comm, name, file=changed)["result"] != ON_MESH[name][2]
    assert report(comm, name, payload=False)["measured"] == report(comm, name)["measured"]


@pytest.mark.mpi(ranks=[1])
def test_the_kernel_comes_to_what_numpy_does_and_shows_a_fault(tmp_path: Path, comm) -> None:
    text = (FOLDER / "tiled.py").read_text()
    assert run_on_cores(comm, str(FOLDER / "tiled.py"), size=200)["result"] == {"wrong": 0}
    assert run_on_cores(comm, str(FOLDER / "tiled.py"), payload=False, size=200)["result"] == {"wrong": None}
    (tmp_path / "tiled.py").write_text(text.replace("total += nisa", "total = nisa"))
    assert run_on_cores(comm, str(tmp_path / "tiled.py"), size=200)["result"]["wrong"] > 0


@pytest.mark.mpi(ranks=[1, 3])
def test_the_step_on_gpus_comes_to_what_numpy_does_and_shows_a_fault(mpi_tmp_path: Path, comm) -> None:
    def report_of(file: Path, where: Any = comm, **settings: Any) -> dict[str, Any]:
        report = run_on_gpus(where, str(file), **{"tp": 6, "node_size": 2} | settings)
        shared = where.bcast(report)
        return {key: part for key, part in shared.items() if key not in ("program", "host")}

    text = (FOLDER / "zero.py").read_text()
    for settings in ({}, {"collectives": "tree"}, {"collectives": "ring"}, {"node_size": None}):
        together = report_of(FOLDER / "zero.py", **settings)
        assert together["result"] == {"wrong": 0}
        assert together == on_one_rank(
            comm, lambda alone, settings=settings: report_of(FOLDER / "zero.py", alone, **settings)
        )
        assert report_of(FOLDER / "zero.py", payload=False, **settings)["measured"] == together["measured"]
    assert text.count("add(gpu, share,") == 1
    if comm.rank == 0:
        (mpi_tmp_path / "zero.py").write_text(text.replace("add(gpu, share,", "add(gpu, 2 * share,"))
    comm.Barrier()
    assert report_of(mpi_tmp_path / "zero.py")["result"]["wrong"] > 0


def test_every_example_is_tested_and_under_40_lines() -> None:
    assert {path.name for path in FOLDER.glob("*.py")} == {*EXAMPLES}
    for name in EXAMPLES:
        assert (FOLDER / name).read_text().count("\n") < 40, name


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_it_imports_is_what_the_list_says(name: str) -> None:
    """examples/README.md counts lines, modules of meshrt's and names from them, and says what they take of a block."""
    text = (FOLDER / name).read_text()
    of_block = {
        node.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "block"
    }
    imports = [
        (node.module, alias.name)
        for node in ast.parse(text).body
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("meshrt")
        for alias in node.names
    ]
    (row,) = (line for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith(f"| `{name}` "))
    lines, modules, names, shown, members = (cell.strip() for cell in row.split("|")[2:7])
    assert {member for member in members.split(", ") if member} == of_block
    assert (int(lines), int(modules), int(names)) == (text.count("\n"), len({m for m, _ in imports}), len(imports))
    assert sorted(shown.replace(";", ",").split(", ")) == sorted(name for _, name in imports)


def test_the_tutorial_has_eight_steps_under_40_lines() -> None:
    steps = sorted((FOLDER / "tutorial").glob("*.py"))
    of_mesh = [f"tutorial/{path.name}" for path in steps[:-1]]
    assert of_mesh == [name for name in ON_MESH if "/" in name] and steps[-1].name == "8_guard.py"
    assert all(path.read_text().count("\n") < 40 for path in steps)


SAYS_TO_A_FILE = """
import sys
from meshrt.ranks.launcher import launched_rank
sys.stdout = open(f"{sys.argv[1]}/{launched_rank()}", "w")
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_notebook_runs_and_as_a_script_says_the_same_on_every_rank(
    ranks: int, run_script: Callable[..., Finished], tmp_path: Path
) -> None:
    cells = json.loads((FOLDER / "tour.ipynb").read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells), "outputs are made where it is read"
    source = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    alone = run_script(source)
    assert alone.code == 0, alone.stderr
    lines = alone.stdout.splitlines()
    assert len(lines) == 6 + 1 + 1 + 3 and lines[6].startswith("core (0, 0): 'A' asks for 65536 bytes")
    assert [line.split()[:2] for line in lines[-3:]] == [["1", "32"], ["2", "8"], ["3", "6"]]
    # A limit that only some ranks break ends the run of several: that cell is for one process.
    quick = source.replace("m=1024", "m=16, k=16, n=16").replace("max_new_tokens=12", "max_new_tokens=3")
    shared = run_script(SAYS_TO_A_FILE + quick, str(tmp_path), ranks=ranks)
    assert shared.code == 0, shared.stderr
    for rank in range(ranks):
        said = (tmp_path / str(rank)).read_text().splitlines()
        assert said[:6] + said[7:] == [*lines[:6], *lines[8:]]
        assert said[6] and lines[7].startswith(said[6])
