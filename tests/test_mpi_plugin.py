"""mpi_plugin.py itself: what becomes of tests that fail, hang or die on one of their ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mpi4py import MPI

CASES = """
import os, signal, time
import pytest

@pytest.mark.mpi(ranks=[1, 3])
def test_good(comm, mpi_ranks):
    assert comm.allreduce(1) == mpi_ranks

@pytest.mark.mpi(ranks=[3])
def test_one_fails_others_wait(comm):
    assert comm.rank != 1, "only one"
    comm.Barrier()

@pytest.mark.mpi(ranks=[3])
def test_one_fails_others_pass(comm):
    assert comm.rank != 2

@pytest.mark.mpi(ranks=[3])
def test_hangs(comm):
    comm.recv(source=(comm.rank + 1) % comm.size)

@pytest.mark.mpi(ranks=[3])
def test_dies(comm):
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.Barrier()

@pytest.mark.mpi(ranks=[3])
def test_skips(comm):
    pytest.skip("not here")

@pytest.mark.mpi(ranks=[3])
def test_good_after_all(comm):
    assert comm.allgather(comm.rank) == [0, 1, 2]

def test_serial(module):
    pass

@pytest.fixture(scope="module")
def module():
    yield

@pytest.mark.mpi(ranks=[1])
def test_last_of_its_file(comm):
    pass
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a plain pytest says of CASES."""
    directory = tmp_path_factory.mktemp("nested")
    (directory / "test_cases.py").write_text(CASES)
    (directory / "test_more.py").write_text("def test_in_the_next_file(): pass")
    (directory / "pytest.ini").write_text("[pytest]\nmpi_timeout = 4\n")
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    argv = [sys.executable, "-m", "pytest", "-v", "-rA", "-p", "mpi_plugin", "-p", "no:cacheprovider"]
    env = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(argv, cwd=directory, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def _section(output: str, test: str) -> str:
    """The part of pytest's output that tells of a failed test."""
    match = re.search(rf"_ {re.escape(test)} _.*?(?=\n_{{5}}|\n={{5}})", output, re.DOTALL)
    assert match, f"{test} is not among the failures of\n{output}"
    return match[0]


def test_every_test_is_reported_once(output: str) -> None:
    assert "4 failed, 6 passed, 1 skipped" in output


def test_failed_rank_is_named_and_the_stuck_ones_are_ended(output: str) -> None:
    section = _section(output, "test_one_fails_others_wait[ranks=3]")
    assert "only one" in section
    assert "failed on rank 1 of 3" in section
    assert re.search(r"ranks \[0, 2\] were stuck", section)


def test_failed_rank_is_named_when_the_others_pass(output: str) -> None:
    section = _section(output, "test_one_fails_others_pass[ranks=3]")
    assert "failed on rank 2 of 3" in section


def test_hang_is_ended_and_shows_where(output: str) -> None:
    section = _section(output, "test_hangs[ranks=3]")
    assert "4 s without progress; in this test were ranks [0, 1, 2]" in section
    assert "in test_hangs" in section


def test_death_is_reported(output: str) -> None:
    assert "the MPI job of 3 ranks ended with exit code" in _section(output, "test_dies[ranks=3]")


@pytest.mark.mpi(ranks=[1, 2])
def test_comm_is_not_the_world(comm: MPI.Intracomm, mpi_ranks: int) -> None:
    assert comm.size == mpi_ranks
    assert MPI.Comm.Compare(comm, MPI.COMM_WORLD) == MPI.CONGRUENT
