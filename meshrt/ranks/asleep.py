"""Waiting for what all ranks take part in at the start and the end of a job, where no rank rings (bells.py)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm, Request

FIRST_PAUSE, LONGEST_PAUSE = 20e-6, 20e-3  # seconds between questions: an eighth of the wait so far, of these


def asleep(*requests: Request) -> None:
    """Wait for requests.

    Were it to ask without a pause, as the library's own waits do, a rank would take the core from those it waits for.
    """
    began = time.perf_counter()
    for request in requests:
        while not request.Test():
            time.sleep(min(max(FIRST_PAUSE, (time.perf_counter() - began) / 8), LONGEST_PAUSE))


def duplicates(comm: Intracomm, count: int) -> list[Intracomm]:
    """So many duplicates of a communicator, made at the same time. All of its ranks call it."""
    if comm.size == 1:
        return [comm.Dup() for _ in range(count)]
    made = [comm.Idup() for _ in range(count)]
    asleep(*(request for _, request in made))
    return [duplicate for duplicate, _ in made]
