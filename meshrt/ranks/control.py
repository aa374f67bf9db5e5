"""Control traffic: loading, gathering, agreeing. Not of the machine, so not counted; announced to the sentinel.

Nothing here blocks in the MPI library: where ranks share cores, one that waits there keeps the core from the others
(host.waiter). A value goes pickled, in a message of one size for all; only what is longer takes a second one.
"""

import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from functools import partial
from typing import Any

import numpy as np

from meshrt.ranks.bells import no_bells
from meshrt.ranks.board import Board
from meshrt.ranks.host import waiter
from meshrt.records import dataclass

FIRST = 512  # bytes of the first message of a value
LENGTH = 8  # of them for how long the value is
REST = 4  # tag of the second message to the rank that gathers; ports, 0 to 3, are those of values that are swapped
COUNT = 5  # of a sum on its way


def largest(errors: Iterable[float]) -> float:
    """The largest of some errors; NaN where one of them is, which Python's max passes over unless it comes first."""
    return float(np.max(list(errors)))


@dataclass(frozen=True, eq=False)
class Control:
    """A communicator of all ranks on which every wait is noted on the board. `name` says what for.

    `wait` is for an MPI request, and may be told from which rank and how many bytes; who sends rings the receiver.
    """

    comm: Any
    board: Board
    name: str
    wait: Callable[..., object] = field(default_factory=waiter)
    ring: Callable[[int], None] = no_bells

    @property
    def size(self) -> int:
        return int(self.comm.size)

    @property
    def rank(self) -> int:
        return int(self.comm.rank)

    def hosted(self, count: int) -> range:
        """Of `count` members of a machine, those that this rank hosts: as many as others, or one more."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def host_of(self, member: int, count: int) -> int:
        """The rank that hosts a member of so many."""
        return ((member + 1) * self.size - 1) // count

    def bcast(self, value: Any) -> Any:
        """Rank 0's value, on all ranks."""
        if self.size == 1:
            return self._noted("broadcast", lambda: self.comm.bcast(value))
        return self._noted("broadcast", lambda: self._bcast(value))

    def _bcast(self, value: Any) -> Any:
        pickled = b"" if self.rank else pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        first = _first(pickled)
        self.wait(self.comm.Ibcast(first))
        if (length := _length(first)) > FIRST - LENGTH:
            rest = bytearray(length) if self.rank else pickled
            self.wait(self.comm.Ibcast(rest))
            return pickle.loads(rest)
        return pickle.loads(first[LENGTH:])

    def gather(self, value: Any) -> list[Any] | None:
        """All ranks' values at rank 0, None elsewhere."""
        work = self.comm.gather if self.size == 1 else self._gather
        values: list[Any] | None = self._noted("gather", lambda: work(value))
        return values

    def _gather(self, value: Any) -> list[Any] | None:
        pickled = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        firsts = None if self.rank else bytearray(FIRST * self.size)
        self.wait(self.comm.Igather(_first(pickled), firsts))
        if firsts is None:
            if len(pickled) > FIRST - LENGTH:
                self._send(pickled, 0, REST)
            return None
        others = (memoryview(firsts)[at : at + FIRST] for at in range(FIRST, len(firsts), FIRST))
        return [pickle.loads(pickled), *(self._whole(first, rank, REST) for rank, first in enumerate(others, 1))]

    def _whole(self, first: "bytearray | memoryview", rank: int, tag: int) -> Any:
        """The value of which the first message is here."""
        if (length := _length(first)) <= FIRST - LENGTH:
            return pickle.loads(first[LENGTH:])
        rest = bytearray(length)
        self.wait(self.comm.Irecv(rest, rank, tag), rank, length)
        return pickle.loads(rest)

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
        self._noted("count", lambda: self._add_up(sums))
        added: list[int] = sums.tolist()
        return added

    def _add_up(self, sums: np.ndarray) -> None:
        """Up a binomial tree to rank 0, and down again: in MPI's own sum no rank would be woken when it is its turn."""
        lowest = self.rank & -self.rank or self.size  # the ranks below are this one and a smaller power of two
        below = [self.rank + (1 << bit) for bit in range((lowest - 1).bit_length())]
        below = [rank for rank in below if rank < self.size]
        part = np.empty_like(sums)
        for rank in below:
            self.wait(self.comm.Irecv(part, rank, COUNT), rank, part.nbytes)
            sums += part
        if self.rank:
            above = self.rank - lowest
            self._send(sums, above, COUNT)
            self.wait(self.comm.Irecv(sums, above, COUNT), above, sums.nbytes)
        for rank in reversed(below):
            self._send(sums, rank, COUNT)

    def _send(self, message: Any, rank: int, tag: int) -> None:
        request = self.comm.Isend(message, rank, tag)
        self.ring(rank)
        self.wait(request)

    def least(self, value: float) -> float:
        """The smallest of all ranks' numbers, without pickling."""
        if self.size == 1:
            return value
        from mpi4py import MPI

        smallest = np.array([value])
        self._noted("least", lambda: self.wait(self.comm.Iallreduce(smallest.copy(), smallest, MPI.MIN)))
        return float(smallest[0])

    def swap(self, neighbours: Sequence[tuple[int, int, int]], values: Sequence[Any]) -> list[Any]:
        """Give each neighbour a value, and take its: (rank, tag of what goes there, tag of what comes) for each."""
        firsts = [bytearray(FIRST) for _ in neighbours]
        requests = [self.comm.Irecv(first, rank, tag) for (rank, _, tag), first in zip(neighbours, firsts, strict=True)]
        sent = []
        for (rank, tag, _), value in zip(neighbours, values, strict=True):
            pickled = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
            sent.append(self.comm.Isend(_first(pickled), rank, tag))
            self.ring(rank)
            if len(pickled) > FIRST - LENGTH:
                sent.append(self.comm.Isend(pickled, rank, tag))
                self.ring(rank)
        arrived = []
        for (rank, _, tag), request, first in zip(neighbours, requests, firsts, strict=True):
            self._noted("message", partial(self.wait, request, rank, FIRST), rank)
            arrived.append(self._whole(first, rank, tag))
        for request in sent:
            self.wait(request)
        return arrived

    def _noted(self, operation: str, work: Callable[[], Any], peer: int = -1) -> Any:
        self.board.waiting(peer, f"{self.name}: {operation}".encode())
        result = work()
        self.board.moving()
        return result


def _first(pickled: bytes) -> bytearray:
    """The first message of a value: how many bytes it has, and these where they fit."""
    message = bytearray(FIRST)
    message[:LENGTH] = len(pickled).to_bytes(LENGTH, "little")
    if len(pickled) <= FIRST - LENGTH:
        message[LENGTH : LENGTH + len(pickled)] = pickled
    return message


def _length(first: "bytearray | memoryview") -> int:
    return int.from_bytes(first[:LENGTH], "little")
