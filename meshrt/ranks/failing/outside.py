"""Ranks of a script that raise, or come to their end, outside of a run: others may wait for them in one, for ever.

A rank that raises ends all of them, from the moment when meshrt is imported. One that ends without an error may do so
as long as none needs it: it leaves a name that ranks of its node look for while they wait to begin a run, a socket of
Linux's own that leaves no file.
"""

from __future__ import annotations

import _socket  # as in launcher.py
import atexit
import os
import sys

from meshrt.ranks import launcher

TYPE_CHECKING = False  # of typing, without it: with `import meshrt` this is read by processes that are to start fast
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from types import TracebackType

    Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]

PAUSE = 0.5  # seconds between two looks for ranks that have left
_NAME = "meshrt-{}-{}"


def watch() -> None:
    """Let what nobody catches end all ranks, and a rank that ends be seen. Nothing where there is one alone."""
    if launcher.launched_size() > 1:
        sys.excepthook = hook(sys.excepthook, os.getpid())
        atexit.register(_leave, os.getpid())


def hook(before: Hook, process: int) -> Hook:
    """A hook for errors that nobody catches: the one before it, which prints the traceback, and the end of the job.

    Not of a process that this one forks, nor where somebody types: they can go on.
    """

    def end_all(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if os.getpid() == process and not (sys.flags.interactive or hasattr(sys, "ps1")):
            from meshrt.ranks.failing import failure  # of those that fail

            failure.end_outside(error)

    return end_all


def _leave(process: int) -> None:
    """At the end of a rank: MPI's end waits for the others, which may wait for this one."""
    mpi = sys.modules.get("mpi4py.MPI")
    job = launcher.job(os.environ)
    if os.getpid() == process and mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() and job:
        take(_NAME.format(job, f"left-{launcher.launched_rank()}"))


def take(name: str) -> bool:
    """Have that name, until this process ends. False where another has it."""
    own = _socket.socket(_socket.AF_UNIX)
    try:
        own.bind(f"\0{name}")
    except OSError:
        own.close()
        return False
    own.detach()  # nothing closes it: MPI's end comes after that of all objects
    return True


def left(job: str) -> str:
    """Which rank of a job on this node has come to its end, in words; nothing where none has.

    A rank that MPI's end keeps has the name. MPICH's keeps none that had little to do with others, and then its
    launcher has fewer processes than it started.
    """
    beginning = "@" + _NAME.format(job, "left-")
    try:
        with open("/proc/net/unix") as lines:
            names = [line.split()[-1] for line in lines if beginning in line]
    except OSError:
        return ""
    if names:
        return f"rank {min(int(name.removeprefix(beginning)) for name in names)}"
    process = job.removeprefix("process-")
    gone = process.isdigit() and 0 < _children(process) < launcher.ranks_on_node()
    return "another rank" if gone else ""


def _children(process: str) -> int:
    """How many processes it has started that have not ended; 0 where the system does not tell."""
    count = 0
    try:
        for task in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{task}/children") as file:
                count += sum(map(_lives, file.read().split()))
    except OSError:
        return 0
    return count


def _lives(process: str) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Meeting:
    """While this rank waits for all others to make the same call: with another at its end for as long as the watchdog's
    limit, the job ends. Of those of its node, and on Linux. UsageError for what is no limit.
    """

    def __init__(self, call: str) -> None:
        self._over: threading.Event | None = None
        job = launcher.job(os.environ)
        if launcher.launched_size() == 1 or not job:
            return
        import threading

        from meshrt.ranks.failing import watchdog

        if seconds := watchdog.limit():
            self._over = threading.Event()
            arguments = self._over, job, seconds, call
            threading.Thread(target=_look, args=arguments, name="meshrt-meeting", daemon=True).start()

    def over(self) -> None:
        """All have come."""
        if self._over is not None:
            self._over.set()


def _look(over: threading.Event, job: str, seconds: float, call: str) -> None:
    """End the job unless it is over before a rank has been at its end for so long."""
    import time

    since = None
    while not over.wait(min(PAUSE, seconds / 4)):
        gone, now = left(job), time.monotonic()
        since = (since or now) if gone else None
        if since is not None and now - since >= seconds:
            break
    else:
        return
    from meshrt.errors import StallError
    from meshrt.ranks.failing import failure

    if not take(_NAME.format(job, "told")):
        time.sleep(10)  # the one that has the name ends this rank
    failure.end_outside(
        StallError(
            f"it waits for all ranks in {call}, and {gone} has come to its end without that: every rank has to"
            " make the same calls; MESHRT_WATCHDOG_SECONDS sets the limit"
        )
    )
