"""A rank does not outlive the launcher that started it, not even where nobody else is left to end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mpi_jobs import find_mpirun

from meshrt.launch import local

CHECKOUT = Path(__file__).parents[2]
SOON = 30.0  # seconds, of which it takes less than one on a quiet machine
ALONE, SECOND = {"PMI_RANK": "0", "PMI_SIZE": "1"}, {"PMI_RANK": "1", "PMI_SIZE": "3"}
# Elsewhere a rank cannot hear of it (ranks/signals.py, `_starter`), so there is nothing to test.
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the end of a parent is told by Linux only")

# A launcher that tells its rank's number once the rank is where it should be; a thread that starts it ends then.
STARTER = """
import subprocess, sys, threading, time
def start():
    rank = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
    rank.stdout.readline()
    print(rank.pid, flush=True)
{}
time.sleep(600)
"""
BY_MAIN, BY_THREAD = STARTER.format("start()"), STARTER.format("threading.Thread(target=start).start()")
RUNNING = """
import time
from meshrt.ranks.failing import signals
signals.listen(print)
print(flush=True)
time.sleep(600)
"""
STARTING = """
import ctypes
from meshrt.ranks.failing import signals
from meshrt.ranks.start import mpi as starting
signals.listen(print)
starting.begin()
print(flush=True)
ctypes.PyDLL(None).sleep(600)  # as the MPI library's start does, which holds the interpreter
"""
GUARDED = """
import os, sys, time
from pathlib import Path
from meshrt.ranks import host
host.prepare_environment()
from meshrt.ranks.failing.failure import run_guarded

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
    while (alive := [process for process in processes if lives(process)]) and time.monotonic() < end:
        time.sleep(0.02)
    return alive


def children(process: int) -> list[int]:
    pids: list[int] = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended since
            pids += map(int, path.read_text().split())
    return pids


@pytest.fixture
def doomed() -> Iterator[list[int]]:
    """Processes that no test may leave."""
    processes: list[int] = []
    yield processes
    for process in filter(lives, processes):
        os.kill(process, signal.SIGKILL)


@pytest.fixture
def started(doomed: list[int]) -> Iterator[Callable[..., tuple[subprocess.Popen[str], int]]]:
    """`started(launcher, rank, environ)`: the launcher and the number of the rank's process."""
    launchers: list[subprocess.Popen[str]] = []

    def start(launcher: str, rank: str, environ: dict[str, str]) -> tuple[subprocess.Popen[str], int]:
        env = local.without_launcher(os.environ) | environ | {"PYTHONPATH": str(CHECKOUT)}
        argv = [sys.executable, "-c", launcher, rank]
        launchers.append(subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True))
        stdout = launchers[-1].stdout
        assert stdout is not None
        doomed.append(int(stdout.readline()))
        return launchers[-1], doomed[-1]

    yield start
    for launcher in launchers:
        launcher.kill()
        launcher.communicate()


@pytest.mark.parametrize("place", [ALONE, SECOND])
@pytest.mark.parametrize("rank", [RUNNING, STARTING])
def test_a_rank_ends_with_its_launcher(place: dict[str, str], rank: str, started: Any) -> None:
    launcher, process = started(BY_MAIN, rank, place)
    assert left([process], 1.0) == [process]
    launcher.kill()
    assert left([process], SOON) == []


@pytest.mark.parametrize("rank", [RUNNING, STARTING])
def test_what_no_launcher_started_goes_on(rank: str, started: Any) -> None:
    """It may have been left running on purpose."""
    launcher, process = started(BY_MAIN, rank, {})
    launcher.kill()
    assert left([process], 1.5) == [process]


@pytest.mark.parametrize("rank", [RUNNING, STARTING])
def test_a_thread_of_the_launcher_that_ends_is_not_the_launcher(rank: str, started: Any) -> None:
    assert left([process := started(BY_THREAD, rank, SECOND)[1]], 1.5) == [process]


@pytest.mark.parametrize("terminated", [False, True])
@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_whose_launcher_and_sentinel_are_killed_at_once(
    ranks: int, terminated: bool, tmp_path: Path, doomed: list[int]
) -> None:
    """Also where one was told to end just before (`terminated`), and what it then says is read by nobody.

    The last one: of Hydra's pipes to the others, those that it started later hold the ends that are read as well.
    """
    mpirun = find_mpirun()
    env = local.local_environment(mpirun) | {"PYTHONPATH": str(CHECKOUT)}
    argv = [*local.mpirun_argv(ranks, mpirun), sys.executable, "-c", GUARDED]
    with subprocess.Popen(argv, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as launcher:
        doomed.append(launcher.pid)
        files = [tmp_path / f"rank-{rank}" for rank in range(ranks)]
        end = time.monotonic() + 120
        while not all(file.exists() for file in files):
            assert time.monotonic() < end and launcher.poll() is None
            time.sleep(0.02)
        pairs = [tuple(map(int, file.read_text().split())) for file in files]
        processes = [process for process, _ in pairs]
        doomed += processes
        others = {launcher.pid, *(parent for _, parent in pairs), *children(processes[0])}
        assert len(children(processes[0])) == (ranks > 1), "the sentinel"
        if terminated:
            os.kill(processes[-1], signal.SIGTERM)
            time.sleep(0.1)  # less than it waits for a word of the sentinel's
        for process in others:
            with suppress(ProcessLookupError):  # one rank alone ends at once
                os.kill(process, signal.SIGKILL)
    assert left(processes, SOON) == []
