"""What a launcher starts."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from meshrt.errors import UsageError


@dataclass(frozen=True)
class Job:
    """`ranks` processes that each run `meshrt` with `arguments`, such as ("run", "llama-tiny")."""

    ranks: int
    arguments: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise UsageError(f"{self.ranks} ranks: give at least 1")


def meshrt() -> list[str]:
    """The command `meshrt` of this Python, by its path: hosts that share the file system have it there, too.

    -P: no module comes from the folder that the job is started in, which may be somebody's model.
    """
    return [sys.executable, "-P", "-m", "meshrt.cli"]
