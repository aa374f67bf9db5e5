"""Ranks that meet before MPI starts: all wait for the last, and nobody waits for ever."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from mpi4py import MPI

from meshrt.ranks import launcher
from meshrt.ranks.start import muster


def meetings(count: int, ranks: int, before: Callable[[int], None] = lambda number: None) -> list[tuple[bool, float]]:
    """(did it meet the others, when did it go on) of so many of a job of `ranks`."""
    environ = {"PMIX_NAMESPACE": f"test-{os.getpid()}-{time.monotonic_ns()}"}

    def meeting(number: int) -> tuple[bool, float]:
        before(number)
        return muster.meet(ranks, environ), time.monotonic()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(meeting, range(count)))


def test_all_go_on_when_the_last_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muster, "PATIENCE", 60.0)
    came: list[float] = []

    def last_comes_late(number: int) -> None:
        if number == 3:
            time.sleep(0.3)
            came.append(time.monotonic())

    outcomes = meetings(4, 4, last_comes_late)
    assert [met for met, _ in outcomes] == [True] * 4
    assert min(went for _, went in outcomes) >= came[0]


def test_who_waits_in_vain_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muster, "PATIENCE", 0.2)
    assert [met for met, _ in meetings(3, 4)] == [False] * 3


def test_jobs_that_nobody_can_tell_apart_do_not_meet() -> None:
    assert not muster.meet(2, {})
    assert not muster.meet(2, {"PMI_FD": "none"})
    assert not muster.meet(2, {"PMI_FD": "99999"})


def test_steps_of_a_slurm_job_are_apart() -> None:
    first, second = ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": step} for step in "01")
    assert launcher.job(first) != launcher.job(second) != ""


@pytest.mark.mpi(ranks=[3])
def test_a_launcher_tells_its_ranks_which_job_they_are_of(comm: MPI.Intracomm) -> None:
    jobs = comm.allgather(launcher.job(os.environ))
    assert len(set(jobs)) == 1 and jobs[0]
