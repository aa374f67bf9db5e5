"""Control traffic: loading, gathering, agreeing. Not of the machine, so not counted; announced to the sentinel."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt.ranks.board import Board


def largest(errors: Iterable[float]) -> float:
    """The largest of some errors; NaN where one of them is, which Python's max passes over unless it comes first."""
    return float(np.max(list(errors)))


@dataclass(frozen=True, eq=False)
class Control:
    """A communicator of all ranks on which every wait is noted on the board. `name` says what for."""

    comm: Any
    board: Board
    name: str

    @property
    def size(self) -> int:
        return int(self.comm.size)

    @property
    def rank(self) -> int:
        return int(self.comm.rank)

    def bcast(self, value: Any) -> Any:
        """Rank 0's value, on all ranks."""
        return self._noted("broadcast", lambda: self.comm.bcast(value))

    def gather(self, value: Any) -> list[Any] | None:
        """All ranks' values at rank 0, None elsewhere."""
        values: list[Any] | None = self._noted("gather", lambda: self.comm.gather(value))
        return values

    def allreduce(self, value: Any, op: Callable[[list[Any]], Any] = sum) -> Any:
        """What `op` makes of all ranks' values, such as sum or max.

        Not by mpi4py's allreduce: its first call on a communicator waits with the interpreter locked, and the thread
        that hears signals could not end the rank.
        """
        values = self.gather(value)
        return self.bcast(None if values is None else op(values))

    def total(self, count: int) -> int:
        """The sum of a whole number over all ranks, without pickling."""
        return self.totals(count)[0]

    def totals(self, *counts: int) -> list[int]:
        """The sums of several whole numbers, in one message."""
        if self.size == 1:
            return list(counts)
        sums = np.array(counts, np.int64)
        self._noted("count", lambda: self.comm.Allreduce(sums.copy(), sums))
        return sums.tolist()  # type: ignore[no-any-return]

    def least(self, value: float) -> float:
        """The smallest of all ranks' numbers, without pickling."""
        from mpi4py import MPI

        smallest = np.array([value])
        self._noted("least", lambda: self.comm.Allreduce(smallest.copy(), smallest, MPI.MIN))
        return float(smallest[0])

    def isend(self, value: Any, rank: int, tag: int) -> Any:
        return self.comm.isend(value, rank, tag=tag)

    def recv(self, rank: int, tag: int) -> Any:
        return self._noted("message", lambda: self.comm.recv(source=rank, tag=tag), rank)

    def _noted(self, operation: str, work: Callable[[], Any], peer: int = -1) -> Any:
        self.board.waiting(peer, f"{self.name}: {operation}".encode())
        result = work()
        self.board.moving()
        return result
