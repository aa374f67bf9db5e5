"""What a rank posts and waits for on MPI in the course of a run, written down as it happens."""

from array import array
from pathlib import Path
from typing import Any

from meshrt.studies.bench.bare import BROADCAST, DUPLICATE, GATHER, RECEIVE, SEND, SUM, WAIT


class RecordedComm:
    """A communicator that notes in `events` (bare.py) what goes over it, and over those that are made of it."""

    def __init__(self, comm: Any, events: "array[int]", counts: list[int] | None = None, number: int = 0) -> None:
        self.comm, self.events, self.number = comm, events, number
        self.counts = [0, 1] if counts is None else counts  # what was posted on any, and communicators

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    def Dup(self) -> "RecordedComm":
        return self._duplicate(self.comm.Dup())

    def Idup(self) -> tuple["RecordedComm", Any]:
        duplicate, request = self.comm.Idup()
        return self._duplicate(duplicate), request

    def _duplicate(self, comm: Any) -> "RecordedComm":
        self.events.extend((DUPLICATE, self.number, 0, 0, 0))
        number = self.counts[1]
        self.counts[1] += 1
        return RecordedComm(comm, self.events, self.counts, number)

    def Isend(self, buffer: Any, dest: int, tag: int = 0) -> "NotedRequest":
        return self._posted(SEND, buffer, self.comm.Isend(buffer, dest, tag), dest, tag)

    def Irecv(self, buffer: Any, source: int, tag: int = 0) -> "NotedRequest":
        return self._posted(RECEIVE, buffer, self.comm.Irecv(buffer, source, tag), source, tag)

    def Ibcast(self, buffer: Any) -> "NotedRequest":
        return self._posted(BROADCAST, buffer, self.comm.Ibcast(buffer))

    def Igather(self, buffer: Any, gathered: Any) -> "NotedRequest":
        return self._posted(GATHER, buffer, self.comm.Igather(buffer, gathered))

    def Iallreduce(self, buffer: Any, total: Any, *op: Any) -> "NotedRequest":
        return self._posted(SUM, buffer, self.comm.Iallreduce(buffer, total, *op))

    def _posted(self, kind: int, buffer: Any, request: Any, other: int = 0, tag: int = 0) -> "NotedRequest":
        nbytes = memoryview(buffer[0] if isinstance(buffer, list) else buffer).nbytes
        self.events.extend((kind, self.number, other, nbytes, tag))
        self.counts[0] += 1
        return NotedRequest(request, self.events, self.counts[0] - 1)


class NotedRequest:
    """A request that notes when its rank has waited for it."""

    def __init__(self, request: Any, events: "array[int]", number: int) -> None:
        self.request, self.events, self.number = request, events, number

    def Test(self) -> bool:
        is_over = bool(self.request.Test())
        if is_over:
            self._over()
        return is_over

    def Wait(self) -> None:
        self.request.Wait()
        self._over()

    def _over(self) -> None:
        if self.number >= 0:
            self.events.extend((WAIT, 0, self.number, 0, 0))
            self.number = -1


class Recorder:
    """A rank's messages: `through` is for the communicator of its run, `write` for afterwards."""

    def __init__(self) -> None:
        self.events, self.rank = array("q"), 0

    def through(self, comm: Any) -> RecordedComm:
        self.rank = comm.rank
        return RecordedComm(comm, self.events)

    def write(self, folder: str) -> None:
        Path(folder, str(self.rank)).write_bytes(self.events.tobytes())
