"""Ranks that outnumber the cores of their node are forked from one process that has imported for all of them.

Each rank would import the same modules, on cores that they share: for small works that is half of what a job takes. So
the first process of a node to come starts a server, which imports what the command wants and then forks a child for
each process that the launcher has started there. The child is the rank: it has that process's descriptors, environment
and folder. The process itself stands in for it with the launcher (shepherd.py); if it ends, Linux kills the child.

The server has no threads and has not started MPI, so that a fork of it is a whole process. Nothing depends on it: where
it is not known which processes are of one job, where their environments differ, or where the server fails, each imports
for itself. MESHRT_FORKSERVER=none does without it.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import marshal
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

from meshrt.ranks import launcher
from meshrt.ranks.start import shepherd

PATIENCE = 60.0  # seconds without another rank, after which the server waits for no more
LINGER = 2.0  # the same, where no child lives
LOOK = 0.1  # seconds between looks for children that have ended, while others are still to come
MOST_FILES = 250  # descriptors of a process that can be handed over: what Linux sends at once
# What differs from rank to rank, and is read by no module that is imported.
_OF_A_RANK = ("PMI", "OMPI_", "PRTE_", "HYDRA", "HYDI_", "MPI_", "SLURM_", "PALS_", "FLUX_", "_=", launcher.STARTER)


class Server:
    """The process that forks: the door that ranks come to, how many will, and what they have in their environment.

    `door` is the descriptor of a socket.
    """

    def __init__(self, door: int, ranks: int) -> None:
        self.door, self.ranks, self.environment = socket.socket(fileno=door), ranks, _shared(os.environ)
        self.lines: dict[int, socket.socket] = {}  # of children that live, to those that stand in for them

    def serve(self) -> None:
        """Fork a child for each rank, and wait for all of them. Returns in the children alone."""
        gc.freeze()  # pages that nobody writes to are shared
        self.door.settimeout(LOOK)
        came, last = 0, time.monotonic()
        # Some may be of another program, and never come.
        while came < self.ranks and time.monotonic() < last + (PATIENCE if self.lines or not came else LINGER):
            while self.lines and self._told(os.WNOHANG):
                pass
            try:
                line, _ = self.door.accept()
            except TimeoutError:
                continue
            request = read(line) if launcher.caller(line)[1] == os.getuid() else None
            if request is None:
                line.close()
                continue
            came, last = came + 1, time.monotonic()
            if _shared(request.environment) != self.environment:
                request.close()
                line.close()
                continue
            try:
                child = os.fork()
            except OSError:  # no more processes: whoever asks tries by itself
                request.close()
                line.close()
                continue
            if not child:
                for other in (self.door, *self.lines.values()):
                    other.close()
                request.become(line)
                return
            request.close()
            self.lines[child] = line
            with suppress(OSError):  # it has gone, and so has the child
                line.sendall(shepherd.CHILD.pack(os.getpid(), child))
        self.door.close()
        while self.lines:
            self._told(0)
        os._exit(0)

    def _told(self, flags: int) -> bool:
        """Tell of the next child that has ended. Whether there was one."""
        child, status = os.waitpid(-1, flags)
        if child:
            with self.lines.pop(child) as line, suppress(OSError):
                line.sendall(shepherd.STATUS.pack(status))
        return bool(child)


class Started:
    """The process that a launcher has started, as it says of itself, and its descriptors by their numbers."""

    def __init__(self, body: bytes, received: list[int]) -> None:
        self.arguments, self.environment, self.folder, self.mask, self.cores, numbers = marshal.loads(body)
        self.files: dict[int, int] = dict(zip(numbers, received, strict=True))

    def close(self) -> None:
        for file in self.files.values():
            os.close(file)

    def become(self, line: socket.socket) -> None:
        """Be that process, as far as a program can tell, until it is gone."""
        beyond = max(self.files, default=2) + 1
        files = {number: fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, beyond) for number, file in self.files.items()}
        handle = fcntl.fcntl(line, fcntl.F_DUPFD_CLOEXEC, beyond)
        line.close()
        self.close()
        for number, file in files.items():
            os.dup2(file, number)
            os.close(file)
        _end_with(handle)
        os.setsid()  # as MPICH's launcher has its children
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        os.umask(self.mask)
        os.sched_setaffinity(0, self.cores)
        sys.argv[:] = self.arguments


def end() -> None:
    """End a rank that was forked and went well, without the end of the interpreter: it would write to nearly every page
    that the ranks share, and give back what the system takes anyway. Returns where there is a reader that has gone."""
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError):  # Python's own end tells of it
        return
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()
    import ctypes

    ctypes.PyDLL(None).exit(0)  # of C: MPICH takes leave of its launcher there


def _end_with(handle: int) -> None:
    """Have Linux kill this process when the other end of its line is closed, as it is when that process ends."""
    fcntl.fcntl(handle, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(handle, 0)
    if poll.poll(0):  # it was closed before
        os._exit(128 + signal.SIGKILL)


def read(line: socket.socket) -> Started | None:
    """What a process says of itself; None where it has ended meanwhile."""
    line.settimeout(PATIENCE)
    files: list[int] = []
    try:
        head, files, _, _ = socket.recv_fds(line, shepherd.LENGTH.size, MOST_FILES)
        request = Started(shepherd.whole(line, shepherd.LENGTH.unpack(head)[0]), files)
    except (OSError, struct.error, ValueError):
        for file in files:
            os.close(file)
        return None
    line.settimeout(None)
    return request


def _shared(environment: Mapping[str, str]) -> dict[str, str]:
    """What all ranks have to have alike: anything of this may be read by what is imported."""
    return {name: value for name, value in environment.items() if not f"{name}=".startswith(_OF_A_RANK)}
