"""Starts a run again that was lost - killed, short of a rank or a host, or without progress - from its checkpoint.

`meshrt launch --restarts` does so, and in a batch script, around the system's own launcher:
    python -m meshrt.launch.restarts N LAUNCHER... meshrt run ... --checkpoint DIR --resume
The line that tells of a restart is on standard error.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import FrameType

from meshrt.errors import UsageError
from meshrt.launch.job import Job
from meshrt.ranks import host

# What would come again: done, an error of the program, wrong usage, a machine's limit, no MPI; and what was asked for:
# SIGHUP, SIGINT, a reader that has gone, SIGTERM.
FINAL = frozenset({0, 1, 2, 3, 4, 129, 130, 141, 143})
PAUSE = 6.0  # seconds after which nothing of a lost run is left: its sentinels kill what is there after 5
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Start:
    """A launcher's command and environment; `where`, in words, is for the line that tells of a restart."""

    argv: Sequence[str]
    environ: Mapping[str, str]
    where: str


def check(job: Job) -> None:
    """UsageError for a run that keeps no state, and would begin at the beginning."""
    if job.arguments[:1] != ("run",) or not _given(job, "--checkpoint"):
        raise UsageError(
            "--restarts goes on from a checkpoint, and this run keeps none: add --checkpoint DIR, and --every K for how"
            " often, to a run of a program that has them, such as llama"
        )


def resumed(job: Job) -> Job:
    """The run that goes on from its checkpoint, or begins where there is none yet."""
    return job if _given(job, "--resume") else replace(job, arguments=(*job.arguments, "--resume"))


def _given(job: Job, option: str) -> bool:
    return any(word == option or word.startswith(f"{option}=") for word in job.arguments)


def module() -> list[str]:
    """The command of a batch script; restarts, launcher and meshrt's own command follow."""
    return [sys.executable, "-P", "-m", "meshrt.launch.restarts"]


def supervise(restarts: int, plan: Callable[[int], Start]) -> int:
    """Run `plan(0)`, and while it is lost `plan(1)` and so on, up to `restarts` times; the last one's exit code."""
    code = _finished(plan(0))
    for attempt in range(1, restarts + 1):
        if code in FINAL:
            break
        try:
            time.sleep(PAUSE)
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        start = plan(attempt)
        tell(f"meshrt: the run was lost (exit code {code}): restart {attempt} of {restarts}, {start.where}")
        code = _finished(start)
    return code


def _finished(start: Start) -> int:
    """The exit code of a launcher, as a shell words it, which is told of the signals that end this process.

    It is a process group of its own, or it would hear Ctrl-C twice; and it ends when this process is killed.
    """
    heard: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        launcher.send_signal(number)

    # Blocked until there is a launcher to pass them on to.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    before = {number: signal.signal(number, pass_on) for number in ENDING}
    try:
        launcher = subprocess.Popen(
            start.argv, env=start.environ, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=_ready
        )
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        code = _ended(launcher)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        for number, handler in before.items():
            signal.signal(number, handler)
    if heard:
        return 128 + heard[0]
    return code if code >= 0 else 128 - code


def _ended(launcher: subprocess.Popen[bytes]) -> int:
    """Its exit code, when it has one.

    A signal is passed on by this thread when it runs: one that comes just before it begins to wait, or to another
    thread, does not wake it. So it wakes by itself, 20 times a second.
    """
    while True:
        with suppress(subprocess.TimeoutExpired):
            return launcher.wait(60)


def _ready() -> None:
    """In the launcher's process, before it is one."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    host.end_with_parent(signal.SIGTERM)


def tell(text: str) -> None:
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def main(restarts: str, *argv: str) -> int:
    """A batch script's part: the same command again, which has --resume."""
    return supervise(int(restarts), lambda attempt: Start(argv, os.environ, "from the last checkpoint"))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
