"""A communicator of one rank that no launcher started. It needs no MPI library, and starts without the time of one."""

from __future__ import annotations

from typing import Any

from meshrt.records import dataclass


@dataclass(frozen=True)
class Alone:
    """What programs and the runtime ask of a communicator besides messages to others, which there are none of."""

    rank: int = 0
    size: int = 1

    def Dup(self) -> Alone:
        return self

    def Free(self) -> None:
        """It holds nothing."""

    def Barrier(self) -> None:
        """There is nobody to wait for."""

    def bcast(self, value: Any, root: int = 0) -> Any:
        return value

    def gather(self, value: Any, root: int = 0) -> list[Any]:
        return [value]

    def allgather(self, value: Any) -> list[Any]:
        return [value]
