"""The board: shared memory on which the ranks of one node say what they wait for, finished or failed with.

Its readers are the sentinel, which looks for ranks that are gone or wait for ever, and the failure handling, which
elects the rank that reports.
Writing is in the path of every receive and costs about half a microsecond; nobody locks, since each rank writes its own
record only and the readers act on records that have not changed for a while.
"""

from __future__ import annotations

import enum
import fcntl
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshrt.ranks.asleep import asleep
from meshrt.ranks.nodes import file_of_node, of_this_node
from meshrt.records import dataclass

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


class State(enum.IntEnum):
    """What a rank is doing. A fresh board is all zero: every rank is moving."""

    MOVING = 0
    WAITING = 1
    FINISHED = 2
    FAILED = 3


_HEADER = 64  # bytes. The first: 1 once the report is claimed; the second: the verdict. The rest keeps records aligned
_RECORD = struct.Struct("<iiQd56s")  # state, peer, key, since, what
_PROGRESS, _PROGRESS_AT = struct.Struct("<Qd"), 8  # key and since in a record, and where they begin
_OWNER = struct.Struct("<i76s")  # process, cores; of each rank, behind all records
_BELL = 64  # bytes of a rank's bell (bells.py), at the end: a cache line, which nobody else writes to
_WAITING = int(State.WAITING)  # a plain integer packs faster than the enum


@dataclass(frozen=True)
class Record:
    """One rank's entry. `since` is in seconds of time.monotonic(), which all processes of a node share."""

    rank: int
    state: State
    peer: int  # the rank waited for; -1: all of them
    key: int  # while waiting: grows with every wait, or with packets' progress; failed: the same for the same error
    since: float
    awaited: str


@dataclass(frozen=True)
class Owner:
    """Whose a record is: the rank's process, and the cores that it hosts, in words."""

    process: int
    cores: str


def _door(path: str) -> int:
    """Where the ranks of the node reach the sentinel, by a name of Linux's own that leaves no file; -1 elsewhere."""
    if sys.platform != "linux":
        return -1
    import socket  # a rank alone needs none

    door = socket.socket(socket.AF_UNIX)
    try:
        door.bind("\0" + path)
        door.listen(4096)
        return door.detach()
    except OSError:
        door.close()
        return -1


def _line_to(path: str) -> int:
    """A line to the sentinel, on which nothing is said: its end is the end of this process. -1 without a door."""
    import socket

    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect("\0" + path)
        return line.detach()
    except OSError:
        line.close()
        return -1


def _size(ranks: int) -> int:
    return _bells(ranks) + _BELL * ranks


def _bells(ranks: int) -> int:
    """Where the bells begin."""
    end = _HEADER + (_RECORD.size + _OWNER.size) * ranks
    return end + -end % _BELL


class Board:
    """The records of `ranks`, all on this node, of a job of `size` ranks; `rank` is the writer's own."""

    def __init__(self, memory: mmap.mmap, file: int, ranks: Sequence[int], rank: int, size: int) -> None:
        self.ranks = tuple(ranks)
        self.rank = rank
        self.size = size
        self._memory = memory
        self._file = file  # descriptor for the lock of claim(), -1 when there is nobody to lock out
        self._offset = _HEADER + _RECORD.size * self.ranks.index(rank)
        self._waits = 0
        self._steps = 0  # of packets under way
        self._flight: tuple[int, float] | None = None  # key and time of the last of these, while there are any
        self._lock = threading.Lock()
        self.line = self.door = -1  # sockets, which the system closes when this process ends, however it does

    @property
    def file(self) -> int:
        """The descriptor that another process of the node reads the board from."""
        return self._file

    @classmethod
    def alone(cls) -> Board:
        """The board of a job of one rank: the same calls, shared with nobody."""
        return cls(mmap.mmap(-1, _size(1)), -1, (0,), 0, 1)

    @classmethod
    def opened(cls, file: int, ranks: Sequence[int], size: int) -> Board:
        """The board behind a descriptor, for a process that is none of its ranks."""
        return cls(mmap.mmap(file, 0), file, ranks, ranks[0], size)

    @classmethod
    def shared(cls, comm: Intracomm) -> Board:
        """The board that the ranks of `comm` on this node share. Collective over `comm`.

        Raises OSError where neither /dev/shm nor the directory for temporary files can be written.
        """
        if comm.size == 1:
            return cls.alone()
        node, ranks = of_this_node(comm)
        file, path = file_of_node(node, _size(node.size))
        memory = mmap.mmap(file, 0)
        board = cls(memory, file, ranks, comm.rank, comm.size)
        board.owned_by(os.getpid())
        board.door = _door(path) if node.rank == 0 else -1
        asleep(node.Ibarrier())
        if node.rank == 0:
            os.unlink(path)  # all have it open, so whatever happens from here on leaves no file behind
        board.line = _line_to(path)
        if node is not comm:
            node.Free()
        return board

    @property
    def leads(self) -> bool:
        """Whether this rank is the first of its node, the one that starts the sentinel."""
        return self.rank == self.ranks[0]

    def waiting(self, peer: int, awaited: bytes) -> None:
        """Call before a blocking receive from rank `peer` (-1: from all). `awaited` is cut at 56 bytes."""
        self._waits += 1
        key, since = self._flight or (self._waits, time.monotonic())
        _RECORD.pack_into(self._memory, self._offset, _WAITING, peer, key, since, awaited)

    def moving(self) -> None:
        """Call when the receive is done."""
        if self._flight is None:
            self._memory[self._offset] = 0

    def under_way(self) -> None:
        """Packets are under way, or have got on. Until `landed`, messages alone are no progress: the next call is."""
        self._steps += 1
        self._flight = self._steps << 32, time.monotonic()  # no number of waits gets there
        _PROGRESS.pack_into(self._memory, self._offset + _PROGRESS_AT, *self._flight)

    def landed(self) -> None:
        """No packet is under way any more."""
        self._flight = None
        self.moving()

    @property
    def bells(self) -> memoryview:
        """Of the ranks of this node, in their order: `_BELL` bytes each."""
        return memoryview(self._memory)[_bells(len(self.ranks)) :]

    def owned_by(self, process: int, cores: str = "") -> None:
        """This rank's process, and its cores in at most 76 bytes."""
        at = _HEADER + _RECORD.size * len(self.ranks) + _OWNER.size * self.ranks.index(self.rank)
        _OWNER.pack_into(self._memory, at, process, cores.encode())

    def finished(self) -> None:
        """This rank has no more to do."""
        self._write(State.FINISHED, 0, b"")

    def failed(self, key: int) -> None:
        """This rank has given up; ranks with the same error write the same 64-bit `key`. What it waited for stays."""
        awaited = self.records()[self.ranks.index(self.rank)].awaited
        self._write(State.FAILED, key, awaited.encode())

    def records(self) -> list[Record]:
        """A copy of all records of this node, in the order of the ranks."""
        copy = self._memory[_HEADER : _HEADER + _RECORD.size * len(self.ranks)]
        return [
            Record(rank, State(state), peer, key, since, awaited.rstrip(b"\0").decode(errors="replace"))
            for rank, (state, peer, key, since, awaited) in zip(self.ranks, _RECORD.iter_unpack(copy), strict=True)
        ]

    def owners(self) -> list[Owner]:
        """Of all records, in the order of the ranks."""
        begin = _HEADER + _RECORD.size * len(self.ranks)
        entries = _OWNER.iter_unpack(self._memory[begin : begin + _OWNER.size * len(self.ranks)])
        return [Owner(process, cores.rstrip(b"\0").decode(errors="replace")) for process, cores in entries]

    @property
    def verdict(self) -> int:
        """The exit code that a rank ends the job with when it is asked to end, 0 while there is none."""
        return self._memory[1]

    @verdict.setter
    def verdict(self, code: int) -> None:
        self._memory[1] = code

    def claim(self) -> bool:
        """True for exactly one caller on this node: the process that reports why the job ends."""
        with self._lock:  # the file's lock tells processes apart, but not the threads of one
            if self._file >= 0:
                fcntl.lockf(self._file, fcntl.LOCK_EX)
            first = self._memory[0] == 0
            self._memory[0] = 1
            if self._file >= 0:
                fcntl.lockf(self._file, fcntl.LOCK_UN)
        return first

    def claimed(self) -> bool:
        """Whether some rank of this node reports already."""
        return self._memory[0] != 0

    def _write(self, state: State, key: int, awaited: bytes) -> None:
        _RECORD.pack_into(self._memory, self._offset, state, -1, key, time.monotonic(), awaited)
