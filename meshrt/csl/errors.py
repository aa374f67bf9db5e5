"""What is wrong with a CSL program, with file and line."""

from collections.abc import Iterable
from dataclasses import dataclass

from meshrt.errors import LimitError, RouteError, StallError, UsageError, nearest


@dataclass(frozen=True)
class SourceLocation:
    """Where something stands in the source."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class CslError(UsageError):
    """The program is not CSL, or not of the part that is here."""


class MemoryLimit(LimitError):
    """A core's memory is full, or an access leads out of it."""


class ColorLimit(LimitError):
    """A colour that a router does not have."""


class NoRoute(RouteError):
    """A router has no rule for a wavelet."""


class Deadlock(StallError):
    """Nothing can go on, and the host still waits."""


def wrong(at: SourceLocation, message: str) -> CslError:
    return CslError(f"{at}: {message}")


def unknown(at: SourceLocation, kind: str, name: str, names: Iterable[str]) -> CslError:
    return CslError(
        f"{at}: no {kind} {name!r}: {nearest(name, names, 'it is not in the part of CSL that is here (docs/csl.md)')}"
    )
