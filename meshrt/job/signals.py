"""Signals that end a run, heard also while the main thread is blocked inside the MPI library.

Python's own handlers run between bytecodes of the main thread only: a rank that waits in C would never see Ctrl-C, and
its launcher would wait with it. The interpreter's C handler writes the number of every signal to a pipe at once, which
a thread reads here.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def listen(act: Callable[[signal.Signals], object]) -> None:
    """Call `act(signal)` in a thread of its own when the first signal that ends a run comes. In the main thread."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for number in ENDING:
        signal.signal(number, _heard)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_read, args=(reader, act), name="meshrt-signals", daemon=True).start()


def _heard(number: int, frame: object) -> None:
    """For the main thread nothing changes; a signal without a handler would not reach the pipe."""


def _read(reader: int, act: Callable[[signal.Signals], object]) -> None:
    while number := os.read(reader, 1):
        if number[0] in ENDING:
            act(signal.Signals(number[0]))
            return


class Terminated(BaseException):
    """A signal that ends a run alone, where the interpreter's own KeyboardInterrupt does not stand for it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.exit_code = 128 + number


def raise_on_end() -> None:
    """Let SIGTERM and SIGHUP raise Terminated, so that what a run alone has begun is cleaned up."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _raise)


def _raise(number: int, frame: object) -> None:
    raise Terminated(number)
