"""Signals that end a run, heard also while the main thread is blocked inside the MPI library.

Python's own handlers run between bytecodes of the main thread only: a rank that waits in C would never see Ctrl-C, and
its launcher would wait with it. The interpreter's C handler writes the number of every signal to a pipe at once, which
a thread reads here. The same thread hears of the end of the process that started this rank, its launcher's part on this
node: a rank whose launcher is gone, and perhaps its sentinel with it, would wait for ever for others, or go on beside
the run that is started in its place.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from meshrt.ranks import host, launcher

Handler = Callable[[int, FrameType | None], object]
PATIENCE = 0.2  # seconds that the main thread has to hear for itself; Open MPI's mpirun kills in 0.25
AGAIN = 0.001  # seconds until a signal that was dropped comes again: the object is freed by then
ORPHANED = 137  # as if killed with its launcher; there is nobody left to tell
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def listen(act: Callable[[signal.Signals], object], handler: Handler | None = None) -> None:
    """Call `act(signal)` in a thread of its own when a signal comes that ends a run. In the main thread.

    The main thread has its `handler` called as well, when it gets to its next bytecode. The last call holds. A rank
    ends when the launcher that started it has gone.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    threading.Thread(target=_read, args=(reader, _starter(), act), name="meshrt-signals", daemon=True).start()
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if before >= 0:
        os.close(before)  # which ends the thread that read from it
    for number in ENDING:
        signal.signal(number, handler or _heard)


def _heard(number: int, frame: object) -> None:
    """For the main thread nothing changes; a signal without a handler would not reach the pipe."""


def _starter() -> int:
    """A descriptor that can be read once the process that started this rank is gone.

    -1 without a launcher, and where the system does not tell: not Linux, or that process is outside of this container.
    The death signal that Linux knows (prctl) is that of a thread, and launchers start ranks from threads that end.
    """
    if sys.platform != "linux" or not launcher.launched():
        return -1
    try:
        return os.pidfd_open(launcher.starter())
    except OSError:
        return -1


def _read(reader: int, starter: int, act: Callable[[signal.Signals], object]) -> None:
    poll = select.poll()
    for handle in {reader, starter} - {-1}:
        poll.register(handle, select.POLLIN)
    while True:
        ready = [handle for handle, _ in poll.poll()]
        if starter in ready:
            time.sleep(PATIENCE)  # what ended it may have told this process, too
            os._exit(ORPHANED)
        number = os.read(reader, 1)
        if not number:
            break
        if number[0] in ENDING:
            act(signal.Signals(number[0]))
    for handle in {reader, starter} - {-1}:
        os.close(handle)


def forget() -> None:
    """These signals end this process at once, without a word."""
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)


class Terminated(BaseException):
    """A signal that ends a run alone, where the interpreter's own KeyboardInterrupt does not stand for it."""

    def __init__(self, number: int) -> None:
        super().__init__(said(number))
        self.exit_code = 128 + number


def said(number: int) -> str:
    """What is told of a run that a signal ends, once this can be heard.

    Open MPI's mpirun sends SIGTERM at Ctrl-C too, passes on nothing of what ranks say from then, and kills them soon.
    """
    if number == signal.SIGTERM and "PRTE_LAUNCHED" in os.environ:
        host.speak_past_launcher()
        return "interrupted, or ended by SIGTERM: mpirun does not tell which"
    return "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"


def end(number: int, frame: object = None) -> None:
    """End this process now. Of several ranks that do, the first tells."""
    if launcher.launched_rank() == 0:
        with suppress(OSError):  # who would read it may be gone
            os.write(2, f"meshrt: error: {said(number)}\n".encode())
    os._exit(128 + number)


def raise_on_end() -> None:
    """Let these signals raise KeyboardInterrupt or Terminated, so that what a run alone has begun is cleaned up.

    Where the main thread does not get to that within PATIENCE, since it is inside one long call of NumPy's, the process
    ends all the same, with the same line and code. Python drops what is raised while an object is being freed, and what
    the hook raises that it calls then; it is raised again once both are over.
    """
    raised, previous_hook = threading.Event(), sys.unraisablehook

    def stop(number: int, frame: FrameType | None) -> None:
        raised.set()
        if within(frame):
            again(number)
        else:
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)

    def within(frame: FrameType | None) -> bool:
        while frame is not None and frame.f_code is not dropped.__code__:
            frame = frame.f_back
        return frame is not None

    def again(number: int) -> None:
        threading.Timer(AGAIN, signal.raise_signal, [number]).start()

    def act(number: signal.Signals) -> None:
        if not raised.wait(PATIENCE):
            end(number)
        raised.clear()

    def dropped(unraisable: sys.UnraisableHookArgs) -> None:
        if isinstance(error := unraisable.exc_value, (KeyboardInterrupt, Terminated)):
            again(signal.SIGINT if isinstance(error, KeyboardInterrupt) else error.exit_code - 128)
        else:
            previous_hook(unraisable)

    listen(act, stop)
    sys.unraisablehook = dropped
