"""Faults on purpose, to see what a job does about them: MESHRT_FAULT=KIND:RANK:WAIT[:SECONDS].

The rank meets the fault when it is about to wait for a message for the WAITth time, counted from 1: a transfer of the
mesh, a collective of a rank group, or control traffic. docs/failures.md has what follows.

    raise   an exception of the program
    memory  the host has no more memory
    kill    SIGKILL, as by the kernel or an operator
    exit    the process leaves without a word
    stop    SIGSTOP: it is there, and answers nothing
    sleep   it neither computes nor waits, for SECONDS (default: a day)
    delay   it is late by SECONDS (default 3), as on a slow network or node
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial

from meshrt.errors import UsageError
from meshrt.ranks.board import Board

NAME = "MESHRT_FAULT"
DAY = 86_400.0


def _raise(seconds: float) -> None:
    raise RuntimeError("a fault on purpose")


def _memory(seconds: float) -> None:
    raise MemoryError("a fault on purpose")


def _signal(number: int, seconds: float) -> None:
    os.kill(os.getpid(), number)


def _exit(seconds: float) -> None:
    os._exit(3)


KINDS: dict[str, tuple[Callable[[float], None], float]] = {
    "raise": (_raise, 0.0),
    "memory": (_memory, 0.0),
    "kill": (partial(_signal, signal.SIGKILL), 0.0),
    "exit": (_exit, 0.0),
    "stop": (partial(_signal, signal.SIGSTOP), 0.0),
    "sleep": (time.sleep, DAY),
    "delay": (time.sleep, 3.0),
}


def board_class(environ: Mapping[str, str] | None = None) -> type[Board]:
    """The board of a run, with the fault that the environment asks for. UsageError for one that cannot be read."""
    text = (os.environ if environ is None else environ).get(NAME)
    if text is None:
        return Board
    parts = text.split(":")
    try:
        act, seconds = KINDS[parts[0]]
        rank, wait = int(parts[1]), int(parts[2])
        seconds = float(parts[3]) if len(parts) > 3 else seconds
        if len(parts) > 4 or rank < 0 or wait < 1 or not 0 <= seconds <= DAY:
            raise ValueError
    except (KeyError, ValueError, IndexError):
        raise UsageError(
            f"{NAME} is {text!r}: give KIND:RANK:WAIT[:SECONDS] such as kill:1:40, KIND one of {', '.join(KINDS)}"
        ) from None

    class Faulty(Board):
        """A board whose rank meets the fault when it says that it waits."""

        def waiting(self, peer: int, awaited: bytes) -> None:
            super().waiting(peer, awaited)
            if self.rank == rank and self._waits == wait:
                self.moving()
                act(seconds)

    return Faulty
