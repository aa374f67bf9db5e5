"""The script for sbatch, read back. ci/slurm runs it on a real Slurm."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from batch_scripts import HOSTILE, directives, executed, spy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples

from meshrt.errors import UsageError
from meshrt.launch import slurm
from meshrt.launch.batch import BatchJob

MPICH, OPEN_MPI = "MPICH 5.0.2", "Open MPI 5.0.11"
MESHRT = [sys.executable, "-P", "-m", "meshrt.cli"]


def batch(**options: Any) -> BatchJob:
    return BatchJob(**{"ranks": 8, "runs": (("run", "gemm"),)} | options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["--ntasks=8", "--output=meshrt-%j.out"]),
        ({"nodes": 4}, ["--nodes=4", "--ntasks=8", "--output=meshrt-%j.out"]),
        ({"ranks_per_node": 3}, ["--nodes=3", "--ntasks=8", "--ntasks-per-node=3", "--output=meshrt-%j.out"]),
        (
            {"nodes": 2, "memory": 2048, "time": 5400, "partition": "long", "account": "a1", "output": "o/%j"},
            ["--nodes=2", "--ntasks=8", "--mem=2048M", "--time=1:30:00", "--partition=long", "--account=a1",
             "--output=o/%j"],
        ),
        # More ranks than cores: the cores are asked for, and srun starts more tasks than that.
        ({"nodes": 2, "cores_per_node": 2}, ["--nodes=2", "--ntasks-per-node=2", "--output=meshrt-%j.out"]),
        (
            {"runs": (("a",), ("b",), ("c",))},
            ["--ntasks=8", "--output=meshrt-%A_%a.out", "--array=0-2"],
        ),
    ],
)  # fmt: skip
def test_directives(options: dict[str, Any], expected: list[str]) -> None:
    assert directives(slurm.script(batch(**options), MPICH), "#SBATCH") == ["--job-name=meshrt", *expected]


@pytest.mark.parametrize(
    ("library", "interface"), [(MPICH, "pmi2"), (OPEN_MPI, "pmix"), ("Intel(R) MPI Library 2021", "pmi2")]
)
@pytest.mark.parametrize(
    ("options", "more"),
    [({}, []), ({"nodes": 3, "cores_per_node": 2}, ["--ntasks-per-node=3", "--overcommit"])],
)
def test_srun_starts_the_ranks(library: str, interface: str, options: Any, more: list[str], tmp_path: Path) -> None:
    spy(tmp_path / "bin" / "srun")
    path, _, threads, argv = executed(slurm.script(batch(**options), library), tmp_path)
    assert argv == [f"--mpi={interface}", "--kill-on-bad-exit=1", "--ntasks=8", *more, *MESHRT, "run", "gemm"]
    assert path.split(":")[0] == str(Path(sys.executable).parent)
    assert threads == "1"


def test_each_task_of_an_array_has_its_run(tmp_path: Path) -> None:
    spy(tmp_path / "bin" / "srun")
    runs = tuple(("run", "gemm", "--m", str(m), "--json", f"it's {m}.json") for m in range(11))
    script = slurm.script(batch(runs=runs), MPICH)
    for at, run in enumerate(runs):
        assert executed(script, tmp_path, SLURM_ARRAY_TASK_ID=str(at))[-1][-len(run) :] == list(run)


def test_hostile_arguments_arrive_as_they_are(tmp_path: Path) -> None:
    spy(tmp_path / "bin" / "srun")
    script = slurm.script(batch(runs=(HOSTILE,)), MPICH)
    assert executed(script, tmp_path)[-1][-len(HOSTILE) :] == list(HOSTILE)
    assert directives(script, "#SBATCH") == directives(slurm.script(batch(), MPICH), "#SBATCH")


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1))
def test_any_arguments_arrive_as_they_are(arguments: list[str], tmp_path: Path) -> None:
    spy(tmp_path / "bin" / "srun")
    _, _, _, argv = executed(slurm.script(batch(runs=(tuple(arguments),)), MPICH), tmp_path)
    assert argv[-len(arguments) :] == arguments


def test_refused() -> None:
    with pytest.raises(UsageError, match="zero byte"):
        slurm.script(batch(runs=(("a\0b",),)), MPICH)
    with pytest.raises(UsageError, match="2 runs would all write out: put %a"):
        slurm.script(batch(runs=(("a",), ("b",)), output="out"), MPICH)
