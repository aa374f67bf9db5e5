"""The script for qsub, read back. ci/two-hosts runs it with a node file, but without PBS."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from batch_scripts import HOSTILE, directives, executed, spy

from meshrt.errors import UsageError
from meshrt.launch import pbs
from meshrt.launch.batch import BatchJob
from meshrt.launch.local import Mpirun

HYDRA = Mpirun("/opt/mpi/mpirun", "MPICH 5.0.2")
MESHRT = [sys.executable, "-P", "-m", "meshrt.cli"]


def batch(**options: Any) -> BatchJob:
    return BatchJob(**{"ranks": 8, "runs": (("run", "gemm"),)} | options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["-l select=8:ncpus=1:mpiprocs=1", "-j oe"]),
        ({"nodes": 4}, ["-l select=4:ncpus=2:mpiprocs=2", "-l place=scatter", "-j oe"]),
        (
            {"nodes": 3, "memory": 100},
            ["-l select=2:ncpus=3:mpiprocs=3:mem=100mb+1:ncpus=2:mpiprocs=2:mem=100mb", "-l place=scatter", "-j oe"],
        ),
        ({"nodes": 2, "cores_per_node": 2}, ["-l select=2:ncpus=2:mpiprocs=4", "-l place=scatter", "-j oe"]),
        (
            {"time": 60, "partition": "q1", "account": "a1", "output": "out"},
            ["-l select=8:ncpus=1:mpiprocs=1", "-l walltime=0:01:00", "-j oe", "-q q1", "-A a1", "-o out"],
        ),
        ({"runs": (("a",), ("b",))}, ["-l select=8:ncpus=1:mpiprocs=1", "-j oe", "-J 0-1"]),
    ],
)
def test_directives(options: dict[str, Any], expected: list[str]) -> None:
    assert directives(pbs.script(batch(**options), HYDRA), "#PBS") == ["-N meshrt", *expected]


@pytest.mark.parametrize(
    ("library", "options"),
    [
        ("MPICH 5.0.2", ["-f", "/spool/node file"]),
        ("Open MPI 5.0.11", ["--map-by", "slot", "--bind-to", "none", "--hostfile", "/spool/node file"]),
    ],
)
def test_mpirun_starts_the_ranks_where_the_job_was_handed_in(library: str, options: list[str], tmp_path: Path) -> None:
    mpirun = Mpirun(str(spy(tmp_path / "my mpi" / "mpirun")), library)
    home = tmp_path / "with a space"
    home.mkdir()
    script = pbs.script(batch(), mpirun)
    _, where, threads, argv = executed(script, tmp_path, PBS_O_WORKDIR=str(home), PBS_NODEFILE="/spool/node file")
    assert argv == ["-n", "8", *options, *MESHRT, "run", "gemm"]
    assert (where, threads) == (str(home), "1")


def test_hostile_arguments_of_an_array(tmp_path: Path) -> None:
    mpirun = Mpirun(str(spy(tmp_path / "bin" / "mpirun")), "MPICH 5.0.2")
    script = pbs.script(batch(runs=(("plain",), HOSTILE)), mpirun)
    *_, argv = executed(
        script, tmp_path, PBS_ARRAY_INDEX="1", PBS_O_WORKDIR=str(tmp_path / "work"), PBS_NODEFILE="nodes"
    )
    assert argv[-len(HOSTILE) :] == list(HOSTILE)
    assert "-J 0-1" in directives(script, "#PBS") and "-q x" not in directives(script, "#PBS")


def test_runs_that_would_write_one_file() -> None:
    runs = (("a",), ("b",))
    with pytest.raises(UsageError, match="put \\^array_index\\^"):
        pbs.script(batch(runs=runs, output="out"), HYDRA)
    assert "-o out.^array_index^" in directives(pbs.script(batch(runs=runs, output="out.^array_index^"), HYDRA), "#PBS")
