"""A shepherd: the process that a launcher started, where a child of a fork server is the rank (forkserver.py).

It hands over all that it is, sleeps, passes signals on, and ends as the child ends, so that its launcher sees the rank.
As many of them start as there are ranks, so that this module and the launcher's import nothing that is slow to import:
the interpreter's own modules for sockets and signals, without those of the library, take 2 ms, and with them 15.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what signal gives names of enum to
import _socket
import errno
import marshal
import os
import select
import struct
import sys
import time

from meshrt.ranks import launcher

NAME = "MESHRT_FORKSERVER"
PATIENCE = 60.0  # seconds that a process tries to come to a server
AGAIN = 0.01  # seconds until another try where a door is there but not yet open
PASSED_ON = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT, _signal.SIGUSR1, _signal.SIGUSR2)
GRACE = 1.0  # seconds that a child has to end by itself once its launcher has gone
LENGTH, CHILD, STATUS = struct.Struct("I"), struct.Struct("2i"), struct.Struct("i")  # of a request; of what is answered


def enter() -> tuple[int, int] | None:
    """In the process that is to be the server: its door, the descriptor of a socket, and how many ranks will come.

    None where a process is its own rank.

    Does not return in a process that stands in for a child of the server's.
    """
    ranks, job = launcher.ranks_on_node(), launcher.job(os.environ)
    observed = sys.getprofile() is not None or sys.gettrace() is not None
    if not job or observed or os.environ.get(NAME) == "none" or ranks <= launcher.cores():
        return None
    kind = repr((sys.executable, __file__, sys.flags, sys.warnoptions)).encode()
    number = int.from_bytes(kind, "big") % (2**61 - 1)  # a checksum; zlib, which has others, takes 4 ms to import
    name, starts = f"\0meshrt-fork-{job}-{os.getuid()}-{number:x}", 0
    signals, until = Signals(), time.monotonic() + PATIENCE
    while time.monotonic() < until:
        line = _socket.socket(_socket.AF_UNIX)
        error = line.connect_ex(name)
        if not error and launcher.caller(line)[1] == os.getuid():
            hand_over(line, sys.argv, signals, starts)
        line.close()
        if error != errno.ECONNREFUSED:  # there is a server, but none for this process
            break
        door = _socket.socket(_socket.AF_UNIX)
        try:
            door.bind(name)
        except OSError:  # somebody came before
            door.close()
            time.sleep(AGAIN)
            continue
        door.listen(ranks)
        try:
            starts = os.fork()
        except OSError:  # no more processes
            door.close()
            break
        if not starts:
            _leave(door.fileno())
            return door.detach(), ranks
        door.close()
    signals.give_back()
    return None


class Signals:
    """Signals are kept until there is somebody to pass them on to."""

    def __init__(self) -> None:
        self.child = 0
        self.kept: list[int] = []
        self.before = {number: _signal.signal(number, self.come) for number in PASSED_ON}

    def come(self, number: int, frame: object) -> None:
        if self.child:
            kill(self.child, number)
        else:
            self.kept.append(number)

    def pass_on(self, child: int) -> None:
        self.child = child
        for kept in self.kept:
            self.come(kept, None)

    def give_back(self) -> None:
        for number, handler in self.before.items():
            _signal.signal(number, handler)
        for kept in self.kept:
            _signal.raise_signal(kept)


def hand_over(line: _socket.socket, arguments: list[str], signals: Signals, starts: int) -> None:
    """Have the server at the other end of `line` fork the rank, and end as it ends. Returns where the server does not.

    The process that has started the server, as `starts`, waits for it after a run without a fault: so whoever measures
    what a command takes is told of the ranks as well.
    """
    files = open_files({line.fileno()})
    environment = {**os.environ, launcher.STARTER: str(os.getppid())}
    request = (arguments, environment, os.getcwd(), mask(), sorted(os.sched_getaffinity(0)), files)
    body = marshal.dumps(request)
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack(f"{len(files)}i", *files))
    try:
        line.sendmsg([LENGTH.pack(len(body))], [rights])
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
        _signal.signal(number, _signal.SIG_DFL)
    if starts and not code:
        os.waitpid(starts, 0)
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has left its own
        os.kill(os.getpid(), -code)
    os._exit(code)


def _end_of(child: int, line: _socket.socket, others: list[int]) -> int:
    """How the child ends, as the server is told. Where the server or the launcher ends before, it is killed."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    for process in others:
        try:
            poll.register(os.pidfd_open(process), select.POLLIN)
        except OSError:  # outside of this container
            continue
    ready = [handle for handle, _ in poll.poll()]
    if line.fileno() not in ready:
        time.sleep(GRACE)
        line.setblocking(False)
    try:
        return int(STATUS.unpack(whole(line, STATUS.size))[0])
    except OSError:
        kill(child, _signal.SIGKILL)
        return int(_signal.SIGKILL)


def kill(process: int, number: int) -> None:
    """Send it a signal, if it is still there."""
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return


def whole(line: _socket.socket, size: int) -> bytes:
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
    files = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
        except OSError:  # the listing's own is closed by now
            continue
        files.add(int(name))
    return sorted(files - but)


def mask() -> int:
    """The file mode creation mask of this process."""
    bits = os.umask(0)
    os.umask(bits)
    return bits


def _leave(door: int) -> None:
    """Have nothing but the door of the process that this one was forked from: nobody is to wait for more output."""
    for number in PASSED_ON:
        _signal.signal(number, _signal.default_int_handler if number == _signal.SIGINT else _signal.SIG_DFL)
    os.setsid()
    for file in open_files({door}):
        if file > 2:
            os.close(file)
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1, 2):
        os.dup2(nothing, file)
    os.close(nothing)
