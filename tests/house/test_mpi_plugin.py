"""mpi_plugin.py itself: what becomes of tests that fail, hang or die on one of their ranks."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mpi4py import MPI
from mpi_jobs import Finished, child_environment, nested_pytest, run_ranks, until
from mpi_parent import time_limit

WAITS = """
import os, time

def wait_for_ever(comm, in_mpi=False):
    \"""Asleep, or in MPI on rank 0 alone: it turns round there, and takes what others leave of a core.\"""
    os.nice(19)
    comm.recv() if comm.rank == 0 and in_mpi else time.sleep(3600)
"""

CASES = f"""
import os, signal
import mpi_plugin, pytest
{WAITS}
mpi_plugin.STUCK_SECONDS = 0.5  # rank 0 turns round in MPI for as long

@pytest.mark.mpi(ranks=[1, 3])
def test_good(comm, mpi_ranks):
    assert comm.allreduce(1) == mpi_ranks

@pytest.mark.mpi(ranks=[3])
def test_one_fails_others_wait(comm):
    comm.Barrier()  # all have begun: on a busy machine that may take longer than a rank that failed waits
    assert comm.rank != 1, "only one"
    wait_for_ever(comm, in_mpi=True)

@pytest.mark.mpi(ranks=[3])
def test_one_fails_others_pass(comm):
    assert comm.rank != 2

@pytest.mark.mpi(ranks=[3])
def test_hangs(comm):
    wait_for_ever(comm)

@pytest.mark.mpi(ranks=[3])
def test_draws_ranks(comm):
    from hypothesis import Phase, given, settings, strategies as st
    from measure import on_first

    @settings(derandomize=True, deadline=None, database=None, phases=[Phase.generate, Phase.shrink])
    @given(st.integers(1, 3), st.integers(0, 1000))
    def check(ranks, number):
        def work(part):
            assert part.rank == 0 or number < 21, f"{{number}} of {{ranks}}"
        on_first(comm, ranks, work)

    check()

@pytest.mark.mpi(ranks=[3])
def test_skips(comm):
    pytest.skip("not here")

@pytest.mark.mpi(ranks=[3])
def test_good_after_all(comm):
    assert comm.allgather(comm.rank) == [0, 1, 2]

@pytest.mark.mpi(ranks=[3])
def test_dies(comm):
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.Barrier()

def test_serial(module):
    pass

@pytest.fixture(scope="module")
def module():
    yield

@pytest.mark.mpi(ranks=[1])
def test_last_of_its_file(comm):
    pass
"""


def run_pytest(directory: Path, *options: str, ranks: int = 1, all_plugins: bool = False) -> Finished:
    """pytest with the plugin alone, in a folder with tests."""
    argv = [sys.executable, "-m", "pytest", "-p", "mpi_plugin", "-p", "no:cacheprovider", *options]
    return run_ranks(argv, ranks, nested_pytest(all_plugins), 90, directory)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a plain pytest says of CASES."""
    directory = tmp_path_factory.mktemp("nested")
    (directory / "test_cases.py").write_text(CASES)
    (directory / "test_more.py").write_text("def test_in_the_next_file(): pass")
    (directory / "pytest.ini").write_text("[pytest]\nmpi_timeout = 8\n")
    done = run_pytest(directory, "-v", "-rA")
    assert done.code == 1, done.stdout + done.stderr
    return done.stdout


def _section(output: str, test: str) -> str:
    """The part of pytest's output that tells of a failed test."""
    match = re.search(rf"_ {re.escape(test)} _.*?(?=\n_{{5}}|\n={{5}})", output, re.DOTALL)
    assert match, f"{test} is not among the failures of\n{output}"
    return match[0]


def test_every_test_is_reported_once(output: str) -> None:
    assert "5 failed, 6 passed, 1 skipped" in output


def test_failed_rank_is_named_and_the_stuck_ones_are_ended(output: str) -> None:
    section = _section(output, "test_one_fails_others_wait[ranks=3]")
    assert "only one" in section
    assert "failed on rank 1 of 3" in section
    assert re.search(r"ranks \[0, 2\] were stuck", section)


def test_failed_rank_is_named_when_the_others_pass(output: str) -> None:
    section = _section(output, "test_one_fails_others_pass[ranks=3]")
    assert "failed on rank 2 of 3" in section


def test_drawn_ranks_fail_together_and_the_least_example_is_shown(output: str) -> None:
    """Rank 0 passes, and rank 2 has nothing to do: yet all go on to the same examples, and end."""
    section = _section(output, "test_draws_ranks[ranks=3]")
    assert "21 of 2" in section
    assert "failed on rank 0, 1, 2 of 3" in section


def test_hang_is_ended_and_shows_where(output: str) -> None:
    section = _section(output, "test_hangs[ranks=3]")
    assert re.search(r"after \d+ s without progress; in this test were ranks \[0, 1, 2\]", section)
    assert "in test_hangs" in section


@pytest.mark.parametrize(("whole", "seconds"), [(False, 8.0), (True, 40.0)])
def test_with_all_a_test_may_take_longer(whole: bool, seconds: float) -> None:
    """Some take a minute of a processor, and a machine may have other work."""
    config: Any = SimpleNamespace(getini={"mpi_timeout": "8"}.get, getoption=lambda name, default: whole)
    assert time_limit(config) == seconds


def test_death_is_reported(output: str) -> None:
    assert "the MPI job of 3 ranks ended with exit code" in _section(output, "test_dies[ranks=3]")


@pytest.mark.mpi(ranks=[1, 2])
def test_comm_is_not_the_world(comm: MPI.Intracomm, mpi_ranks: int) -> None:
    assert comm.size == mpi_ranks
    # With other numbers of ranks beside this one in the job, the world is larger.
    of_the_world = MPI.CONGRUENT if MPI.COMM_WORLD.size == mpi_ranks else MPI.UNEQUAL
    assert MPI.Comm.Compare(comm, MPI.COMM_WORLD) == of_the_world


WAYS = """
import pytest
from pathlib import Path

def ran(name, comm=None):
    rank, size = (comm.rank, comm.size) if comm else ("", 1)
    with open(f"ran-{rank}.txt", "a") as file:
        print(name, size, file=file)

@pytest.mark.mpi(min_size=2)
def test_least(comm, mpi_tmp_path):
    assert comm.allgather(str(mpi_tmp_path)) == [str(mpi_tmp_path)] * comm.size
    ran("least", comm)

@pytest.mark.mpi(ranks=[1, 3])
def test_chosen(comm):
    ran("chosen", comm)

def test_unmarked():
    ran("unmarked")
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A folder with WAYS."""
    (tmp_path / "test_ways.py").write_text(WAYS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmpi_timeout = 20\n")
    return tmp_path


def what_ran(suite: Path) -> Counter[str]:
    """How many processes ran which test, with how many ranks."""
    return Counter(line for path in suite.glob("ran-*.txt") for line in path.read_text().splitlines())


def test_plain_pytest_starts_the_ranks_of_every_marker_and_skips_none(suite: Path) -> None:
    done = run_pytest(suite)
    assert done.code == 0 and "4 passed" in done.stdout and "skipped" not in done.stdout, done.stdout
    assert what_ran(suite) == {"least 2": 2, "chosen 1": 1, "chosen 3": 3, "unmarked 1": 1}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("ranks", "summary", "ran"),
    [
        (1, "2 passed, 2 skipped", {"chosen 1": 1, "unmarked 1": 1}),
        (3, "3 passed, 1 skipped", {"least 3": 3, "chosen 3": 3, "unmarked 1": 3}),
    ],
)
def test_pytest_under_mpirun_runs_what_fits_on_its_ranks(ranks: int, summary: str, ran: dict[str, int], suite: Path):
    done = run_pytest(suite, "--with-mpi", ranks=ranks, all_plugins=True)  # as a user has them
    assert done.code == 0 and done.stdout.count(summary) == ranks, done.stdout + done.stderr
    assert what_ran(suite) == ran


def test_under_mpirun_a_rank_that_fails_ends_those_that_wait_for_it(tmp_path: Path) -> None:
    (tmp_path / "test_cases.py").write_text(CASES)
    done = run_pytest(tmp_path, "--with-mpi", "-k", "others_wait", ranks=3)
    assert done.code > 0, "ended by itself, not by this test's time limit"


HANGS = """
import os, pathlib, time, pytest
@pytest.mark.mpi(ranks=[2])
def test_hangs(comm):
    pathlib.Path(f"{comm.rank}.pid").write_text(f"{os.getpid()}")
    while True:
        comm.iprobe()
        time.sleep(0.01)
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_ranks_end_with_a_pytest_that_is_ended(workers: int, tmp_path: Path) -> None:
    """SIGTERM is what `timeout` sends, and CI services: ranks went on for ever."""
    (tmp_path / "test_hangs.py").write_text(HANGS)
    argv = [sys.executable, "-m", "pytest", "-p", "mpi_plugin", "-p", "no:cacheprovider", "-n", str(workers)]
    environment = child_environment() | nested_pytest()
    with subprocess.Popen(argv, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) as process:
        pids = [tmp_path / f"{rank}.pid" for rank in range(2)]
        assert until(lambda: all(path.exists() and path.read_text() for path in pids), 90)
        process.terminate()
        assert process.wait(90) == pytest.ExitCode.INTERRUPTED
    assert until(lambda: not any(Path("/proc", path.read_text()).exists() for path in pids), 90)


def test_ranks_that_are_not_told_so_are_refused(suite: Path) -> None:
    done = run_pytest(suite, ranks=2)
    assert done.code != 0 and "this is one of 2 ranks: add --with-mpi" in done.stdout + done.stderr
    assert not what_ran(suite)


SHARED = f"""
import os
import pytest
{WAITS}

def shares(comm, mpi_ranks, mpi_tmp_path):
    assert comm.size == mpi_ranks and comm.allgather(comm.rank) == list(range(mpi_ranks))
    assert comm.allgather(str(mpi_tmp_path)) == [str(mpi_tmp_path)] * mpi_ranks
    with open("ran.txt", "a") as file:
        print(mpi_ranks, os.environ.get("PMI_SIZE") or os.environ["OMPI_COMM_WORLD_SIZE"], file=file)

@pytest.mark.mpi(ranks=[2])
def test_two(comm, mpi_ranks, mpi_tmp_path):
    shares(comm, mpi_ranks, mpi_tmp_path)

@pytest.mark.mpi(ranks=[3])
def test_three(comm, mpi_ranks, mpi_tmp_path):
    shares(comm, mpi_ranks, mpi_tmp_path)

@pytest.mark.mpi(ranks=[4])
def test_four(comm, mpi_ranks, mpi_tmp_path):
    shares(comm, mpi_ranks, mpi_tmp_path)

@pytest.mark.mpi(ranks=[3])
def test_fails(comm):
    assert comm.rank != 1, "only one"
    wait_for_ever(comm)
"""


@pytest.mark.parametrize("options", [(), pytest.param(("--all",), marks=pytest.mark.all)], ids=str)
def test_numbers_of_ranks_share_a_job_but_not_with_all(options: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "test_shared.py").write_text(SHARED)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmpi_timeout = 20\n")
    done = run_pytest(tmp_path, "-p", "tiers", *options)
    assert done.code == 1 and "1 failed, 3 passed" in done.stdout, done.stdout
    assert "failed on rank 1 of 3" in _section(done.stdout, "test_fails[ranks=3]")
    ran = Counter(tuple(map(int, line.split())) for line in (tmp_path / "ran.txt").read_text().splitlines())
    # After test_fails, what is left runs in a job of its own.
    assert ran == {(ranks, ranks if options or ranks == 2 else 4): ranks for ranks in (2, 3, 4)}
