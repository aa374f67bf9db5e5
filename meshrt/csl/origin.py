"""Where in the source a core is, and errors that say so."""

from __future__ import annotations

import sys
from typing import Any

from meshrt.csl.errors import CslError, MemoryLimit


def where() -> Any:
    """(function, line of its Python) that runs now, None outside of any."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<f"):
            return frame.f_code.co_name, frame.f_lineno
        frame = frame.f_back
    return None


def location(core: Any, at: Any) -> str:
    """The source's line, and the core."""
    if at is None:
        return f"core ({core.x}, {core.y})"
    name, line = at
    return f"{core.image.lines[name][line - 1]}: core ({core.x}, {core.y})"


def failed(core: Any, message: str, kind: Any = CslError) -> Any:
    """An error where the core is now."""
    return kind(f"{location(core, where())}: {message}")


def failed_at(core: Any, error: BaseException) -> Any:
    """An error that Python had in the program, with where it is there."""
    at, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith("<f"):
            at = (trace.tb_frame.f_code.co_name, trace.tb_lineno)
        trace = trace.tb_next
    if isinstance(error, IndexError):
        return MemoryLimit(f"{location(core, at)}: an access leads out of a core's {core.nbytes:,} bytes: {error}")
    if isinstance(error, RecursionError):
        limit = sys.getrecursionlimit()
        return CslError(f"{location(core, at)}: functions call each other {limit} deep, which is the limit: use a loop")
    return CslError(f"{location(core, at)}: {error}")
