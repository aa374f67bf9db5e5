"""A shepherd: the process that a launcher started, where a child of a fork server is the rank (forkserver.py).

It hands over all that it is, sleeps, passes signals on, and ends as the child ends, so that its launcher sees the rank.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import socket
import struct
import time
from contextlib import suppress

from meshrt.ranks import launcher

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
GRACE = 1.0  # seconds that a child has to end by itself once its launcher has gone
LENGTH, CHILD, STATUS = struct.Struct("I"), struct.Struct("2i"), struct.Struct("i")  # of a request; of what is answered


class Signals:
    """Signals are kept until there is somebody to pass them on to."""

    def __init__(self) -> None:
        self.child = 0
        self.kept: list[int] = []
        self.before = {number: signal.signal(number, self.come) for number in PASSED_ON}

    def come(self, number: int, frame: object) -> None:
        if not self.child:
            self.kept.append(number)
            return
        with suppress(ProcessLookupError):
            os.kill(self.child, number)

    def pass_on(self, child: int) -> None:
        self.child = child
        for kept in self.kept:
            self.come(kept, None)

    def give_back(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        for kept in self.kept:
            signal.raise_signal(kept)


def hand_over(line: socket.socket, arguments: list[str], signals: Signals, starts: int) -> None:
    """Have the server at the other end of `line` fork the rank, and end as it ends. Returns where the server does not.

    The process that has started the server, as `starts`, waits for it after a run without a fault: so whoever measures
    what a command takes is told of the ranks as well.
    """
    files = open_files({line.fileno()})
    environment = {**os.environ, launcher.STARTER: str(os.getppid())}
    request = (arguments, environment, os.getcwd(), _mask(), sorted(os.sched_getaffinity(0)), files)
    body = marshal.dumps(request)
    try:
        socket.send_fds(line, [LENGTH.pack(len(body))], files)
        line.sendall(body)
        server, child = CHILD.unpack(whole(line, CHILD.size))
    except OSError:
        return
    signals.pass_on(child)
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in files:  # whoever reads of them is to see the child's end
        os.dup2(nothing, file)
    code = os.waitstatus_to_exitcode(_end_of(child, line, [server, os.getppid()]))
    for number in PASSED_ON:
        signal.signal(number, signal.SIG_DFL)
    if starts and not code:
        os.waitpid(starts, 0)
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has left its own
        os.kill(os.getpid(), -code)
    os._exit(code)


def _end_of(child: int, line: socket.socket, others: list[int]) -> int:
    """How the child ends, as the server is told. Where the server or the launcher ends before, it is killed."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    for process in others:
        with suppress(OSError):  # outside of this container
            poll.register(os.pidfd_open(process), select.POLLIN)
    ready = [handle for handle, _ in poll.poll()]
    if line.fileno() not in ready:
        time.sleep(GRACE)
        line.setblocking(False)
    try:
        return int(STATUS.unpack(whole(line, STATUS.size))[0])
    except OSError:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        return signal.SIGKILL


def whole(line: socket.socket, size: int) -> bytes:
    """So many bytes. OSError where the other end is closed before."""
    parts = bytearray()
    while len(parts) < size:
        part = line.recv(size - len(parts))
        if not part:
            raise ConnectionError("the other end is closed")
        parts += part
    return bytes(parts)


def open_files(but: set[int]) -> list[int]:
    """The descriptors of this process, except those."""
    files = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the listing's own is closed by now
            os.fstat(int(name))
            files.append(int(name))
    return sorted({*files} - but)


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
