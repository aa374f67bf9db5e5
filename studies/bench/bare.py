"""A run's messages once more, in bare mpi4py: `python -m meshrt.studies.bench.bare FOLDER`, as many ranks as recorded.

What a rank posts and waits for is what it did in the run, in that order, with as many bytes (messages.py); the way to
wait is the run's. Nothing is computed, and no other module of meshrt is loaded. Rank 0 writes `seconds`: of the slowest
rank, from when all are there.
"""

from __future__ import annotations

import sys
from array import array
from pathlib import Path
from time import perf_counter
from typing import Any

from meshrt.ranks import host

SEND, RECEIVE, BROADCAST, GATHER, SUM, DUPLICATE, WAIT = range(7)  # what a rank does
FIELDS = 5  # what, number of the communicator, the other rank (of WAIT: number of what was posted), bytes, tag


def main(folder: str) -> None:
    """One rank."""
    host.prepare_environment()
    comm = host.connect()
    from mpi4py import MPI

    events = array("q")
    events.frombytes(Path(folder, str(comm.rank)).read_bytes())
    wait = host.waiter()
    wait(comm.Ibarrier())
    began = perf_counter()
    replay(comm, events, wait)
    slowest = array("d", [perf_counter() - began])
    wait(comm.Iallreduce(MPI.IN_PLACE, slowest, MPI.MAX))
    if comm.rank == 0:
        Path(folder, "seconds").write_text(str(slowest[0]))


def replay(comm: Any, events: array[int], wait: Any) -> None:
    """Do again what a rank did."""
    comms, posted = [comm], list[Any]()
    rows = iter(events)
    for kind, at, other, nbytes, tag in zip(rows, rows, rows, rows, rows, strict=True):
        if kind == WAIT:
            wait(posted[other][0])
            posted[other] = None
            continue
        used = comms[at]
        if kind == DUPLICATE:
            comms.append(used.Dup())
            continue
        numbers = bytearray(nbytes)
        if kind == SEND:
            request = used.Isend(numbers, other, tag)
        elif kind == RECEIVE:
            request = used.Irecv(numbers, other, tag)
        elif kind == BROADCAST:
            request = used.Ibcast(numbers)
        elif kind == GATHER:
            gathered = None if used.rank else bytearray(nbytes * used.size)
            posted.append((used.Igather(numbers, gathered), numbers, gathered))
            continue
        else:
            total = bytearray(nbytes)
            posted.append((used.Iallreduce(numbers, total), numbers, total))
            continue
        posted.append((request, numbers))


if __name__ == "__main__":
    main(*sys.argv[1:])
