"""The start of MPI, which waits for ever where a rank is lost or a node out of reach, and before any sentinel.

The library's start holds the interpreter, so that only the system can end a rank that is in it: with its launcher, and
on several nodes by an alarm, of which a process beside rank 0 says why.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

if __name__ == "__main__":  # alone, without site-packages, as the sentinel
    sys.path.insert(0, os.path.abspath(f"{__file__}/../../../.."))

from meshrt.ranks import host, launcher
from meshrt.ranks.failing import watchdog

if TYPE_CHECKING:
    import subprocess

NAME = "MESHRT_START_SECONDS"


def limit(environ: Mapping[str, str] | None = None) -> float:
    """Seconds that the ranks have to find each other: 60 and a quarter for each, or what MESHRT_START_SECONDS says.

    0: no limit, as on one node. Raises UsageError for anything but a number >= 0.
    """
    env = os.environ if environ is None else environ
    ranks = launcher.launched_size(env)
    if launcher.ranks_on_node(env) >= ranks:
        return 0.0
    return watchdog.seconds_of(NAME, env, 60.0 + ranks / 4)


def begin() -> subprocess.Popen[bytes] | None:
    """Before MPI is started: end this process with its launcher, and with SIGALRM unless `end` is called in time."""
    seconds = limit()
    if _by_main_thread():
        host.end_with_parent(signal.SIGKILL)
    if not seconds:
        return None
    signal.setitimer(signal.ITIMER_REAL, seconds)
    if launcher.launched_rank():
        return None
    import subprocess  # only rank 0 of a job on several nodes needs it

    deadline = time.monotonic() + seconds - min(1.0, seconds / 4)
    argv = [sys.executable, "-I", "-S", __file__, str(deadline), str(seconds), str(launcher.launched_size())]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def _by_main_thread() -> bool:
    """Whether the launcher's main thread started this rank: any other may end before the launcher does."""
    parent = os.getppid()
    with suppress(OSError), open(f"/proc/{parent}/task/{parent}/children") as file:
        return launcher.launched() and str(os.getpid()) in file.read().split()
    return False


def end(teller: subprocess.Popen[bytes] | None) -> None:
    """The ranks have found each other."""
    host.end_with_parent(0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    if teller is not None:
        teller.communicate()


def tell(deadline: str, seconds: str, ranks: str) -> None:
    """The process: a message just before the alarm, unless its standard input ends before, as rank 0 does."""
    if not select.select([0], [], [], max(0.0, float(deadline) - time.monotonic()))[0]:
        text = (
            f"meshrt: error: {ranks} ranks have not found each other within {float(seconds):.0f} s: a host is out of"
            f" reach, or MPI cannot start there; {NAME} sets the limit\n"
        )
        os.write(2, text.encode())


if __name__ == "__main__":
    tell(*sys.argv[1:])
