"""Why a rank gives up: an exception as exit code and words for the user."""

from __future__ import annotations

import errno
import sys
import zlib
from collections.abc import Callable
from typing import Any

from meshrt.errors import StallError, UsageError
from meshrt.ranks import hostmemory
from meshrt.ranks.failing import signals
from meshrt.records import dataclass

INTERRUPTED = 130
LONGEST = 1000  # characters of a message about wrong input, which may quote any of it
BROKEN_PIPE = 141  # what a shell says of a command that SIGPIPE ended
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # a stream that takes no more; files' errors have names
UNWRITTEN = "unwritten"  # the kind of a failure to print


@dataclass(frozen=True)
class Failure:
    """Why a rank gives up. `text` is for the user, empty where nothing is to be said; `trace` is for a bug report.

    `advice` is made by who reports, when the text is printed: it may take seconds.
    """

    code: int
    kind: str
    text: str
    trace: str = ""
    advice: Callable[[], str] | None = None

    @property
    def key(self) -> int:
        """Equal on ranks with the same error."""
        return zlib.crc32(f"{self.code} {self.kind} {self.text}".encode())


def describe(error: BaseException) -> Failure:
    """What to tell the user about `error`, and the exit code. Unknown exceptions come with their traceback."""
    kind = type(error).__name__
    code = getattr(error, "exit_code", None)
    if isinstance(code, int):
        # click words its errors in format_message()
        words = getattr(error, "format_message", None)
        text = str(words() if words else error)
        text = one_line(text) if code == UsageError.exit_code else text
        return Failure(code, kind, text, advice=getattr(error, "advice", None))
    if isinstance(error, SystemExit):
        if isinstance(error.__context__, BrokenPipeError):  # rich ends on it, with code 1
            return Failure(BROKEN_PIPE, kind, "")
        if error.code is None or isinstance(error.code, int):
            return Failure(error.code or 0, kind, "")
        return Failure(1, kind, str(error.code))
    if isinstance(error, KeyboardInterrupt):
        return Failure(INTERRUPTED, kind, "interrupted")
    if isinstance(error, BrokenPipeError):
        return Failure(BROKEN_PIPE, kind, "")
    if isinstance(error, OSError) and error.errno in FULL and error.filename is None:
        return Failure(UsageError.exit_code, UNWRITTEN, f"standard output cannot be written: {error.strerror}")
    if isinstance(error, MemoryError):
        detail = f" ({error})" if str(error) else ""
        has = hostmemory.gib(hostmemory.total())
        return Failure(
            UsageError.exit_code, kind,
            f"this machine has too little memory, {has}{detail}: use fewer ranks or a smaller problem",
        )  # fmt: skip
    if _truncated(error):
        return Failure(
            StallError.exit_code, kind,
            "a message is not as long as what is waited for: ranks have to make the same transfers of the same tiles in"
            " the same order",
        )  # fmt: skip
    if isinstance(error, signals.Terminated):
        return Failure(error.exit_code, kind, str(error))
    import traceback  # most runs end without one

    trace = "".join(traceback.format_exception(error))
    return Failure(1, kind, f"{kind}: {error}".rstrip(": "), trace)


def _truncated(error: BaseException) -> bool:
    """Is it what the MPI library says of ranks whose programs have diverged?"""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    return mpi is not None and isinstance(error, mpi.Exception) and error.Get_error_class() == mpi.ERR_TRUNCATE


def one_line(text: str) -> str:
    """What can be printed, with the middle left out of what is long: input may have any characters in any number."""
    shown = "".join(map(_printable, text.strip()))
    if len(shown) <= LONGEST:
        return shown
    omitted = len(shown) - LONGEST
    return f"{shown[: LONGEST // 2]} [{omitted} characters left out] {shown[-LONGEST // 2 :]}"


def _printable(char: str) -> str:
    return char if char.isprintable() else " " if char.isspace() else char.encode("unicode_escape").decode()


def message(failure: Failure, where: str) -> str:
    """What is printed; `where`, a rank."""
    if failure.trace:
        return f"{failure.trace}meshrt: error{where}: {failure.text}\nmeshrt: this is a bug of the program or of meshrt"
    return f"meshrt: error{where}: {failure.text}"
