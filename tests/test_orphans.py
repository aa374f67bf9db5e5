"""A rank does not outlive the launcher that started it, not even where nobody else is left to end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mpi_jobs import find_mpirun

from meshrt.launch import local

CHECKOUT = Path(__file__).parents[1]
SOON = 5.0  # seconds
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the end of a parent is told by Linux only")

STARTER = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", sys.argv[1]]).pid, flush=True)
time.sleep(60)
"""
ALONE = "import time; from meshrt.job import signals; signals.listen(print); time.sleep(60)"
GUARDED = """
import os, sys, time
from pathlib import Path
from meshrt import host
host.prepare_environment()
from meshrt.job.failure import run_guarded

def work(comm, board):
    Path(f"rank-{comm.rank}.new").write_text(f"{os.getpid()} {os.getppid()}")
    os.rename(f"rank-{comm.rank}.new", f"rank-{comm.rank}")
    while True:
        time.sleep(1)

sys.exit(run_guarded(work))
"""


def lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def left(processes: list[int], seconds: float) -> list[int]:
    """Those that still live after so long; sooner where none does."""
    end = time.monotonic() + seconds
    while (there := [process for process in processes if lives(process)]) and time.monotonic() < end:
        time.sleep(0.02)
    return there


def children(process: int) -> list[int]:
    return [int(one) for path in Path(f"/proc/{process}/task").glob("*/children") for one in path.read_text().split()]


@pytest.fixture
def doomed() -> Iterator[list[int]]:
    """Processes that no test may leave."""
    processes: list[int] = []
    yield processes
    for process in filter(lives, processes):
        os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize(
    ("place", "ends"),
    [({"PMI_RANK": "0", "PMI_SIZE": "1"}, True), ({"PMI_RANK": "1", "PMI_SIZE": "3"}, True), ({}, False)],
)
def test_a_rank_ends_with_what_started_it(place: dict[str, str], ends: bool, doomed: list[int]) -> None:
    """And what no launcher started does not: it may have been left running on purpose."""
    env = local.without_launcher(os.environ) | place | {"PYTHONPATH": str(CHECKOUT)}
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, ALONE], env=env, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        rank = int(starter.stdout.readline())
        doomed.append(rank)
        assert left([rank], 1.0) == [rank]
        starter.kill()
    assert left([rank], SOON if ends else 1.5) == ([] if ends else [rank])


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_whose_launcher_and_sentinel_are_killed_at_once(ranks: int, tmp_path: Path, doomed: list[int]) -> None:
    mpirun = find_mpirun()
    env = local.local_environment(mpirun) | {"PYTHONPATH": str(CHECKOUT)}
    argv = [*local.mpirun_argv(ranks, mpirun), sys.executable, "-c", GUARDED]
    with subprocess.Popen(argv, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as launcher:
        doomed.append(launcher.pid)
        files = [tmp_path / f"rank-{rank}" for rank in range(ranks)]
        end = time.monotonic() + 30
        while not all(file.exists() for file in files):
            assert time.monotonic() < end and launcher.poll() is None
            time.sleep(0.02)
        found = [tuple(map(int, file.read_text().split())) for file in files]
        processes = [process for process, _ in found]
        doomed += processes
        others = {launcher.pid, *(parent for _, parent in found), *children(processes[0])}
        assert len(children(processes[0])) == (ranks > 1), "the sentinel"
        for process in others:
            os.kill(process, signal.SIGKILL)
    assert left(processes, SOON) == []
