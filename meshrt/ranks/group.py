"""Groups of devices with a private memory each, and their collectives: rings, step by step, over real messages.

A rank hosts some of the members. Between members of one rank a step is a copy, at the edge of a rank an MPI message; in
what order numbers are added, and what is counted, does not depend on who hosts whom. Every member has a clock of its
own: a step ends when the receiver was ready and the sender's bytes are there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.ranks.control import Control

Arrays = list[np.ndarray]
Times = list[float]
_ZERO = bytes(16)


@dataclass(frozen=True)
class Link:
    """What connects a member to the next: bytes a second in one direction, and seconds that a byte is under way.

    `itemsize`: bytes that a number is on it, where arrays here have another; None: as the arrays have it.
    """

    bytes_per_second: float
    latency: float
    itemsize: int | None = None

    def nbytes(self, array: np.ndarray) -> int:
        """What an array is on this link."""
        return array.nbytes if self.itemsize is None else array.size * self.itemsize


@dataclass
class Traffic:
    """What one member did by collectives of one kind."""

    calls: int = 0
    bytes: int = 0  # that it sent


@dataclass
class Touched:
    """Bytes of a member's own memory that collectives read and wrote.

    As AWS Neuron's rings do ("Intra-node Collective Communications", Neuron SDK documentation): a chunk is read where
    it is and written to the next member; where it is added up, what arrived and the member's own are both read. The
    plans of meshrt/gpu/rings.py do not count it.
    """

    read: int = 0
    written: int = 0


@dataclass
class Group:
    """`size` members in a ring, of which this rank hosts `mine`.

    Collectives take and return a list with something for each hosted member: arrays, and clocks in seconds. `link`:
    what they go over, if not the group's. Without payload, arrays are shapes (strides of zero) and nothing but times
    crosses between ranks.
    """

    control: Control
    size: int
    link: Link
    payload: bool = True
    traffic: list[dict[str, Traffic]] = field(init=False)  # of each hosted member, by kind
    touched: list[Touched] = field(init=False)  # of each hosted member
    messages: int = 0  # of MPI that this rank sent, and their bytes
    message_bytes: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.control.size <= self.size:
            raise UsageError(f"{self.control.size} ranks for {self.size} members of a group: start {self.size} at most")
        self.traffic = [{} for _ in self.mine]
        self.touched = [Touched() for _ in self.mine]

    @property
    def mine(self) -> range:
        """The members that this rank hosts."""
        ranks, rank = self.control.size, self.control.rank
        return range(self.size * rank // ranks, self.size * (rank + 1) // ranks)

    def reduce_sum(self, parts: Arrays, times: Times, link: Link | None = None) -> tuple[Arrays, Times]:
        """The sum of all members' arrays, on every member: reduce-scatter and all-gather of size chunks.

        Chunks are of the flattened array, as even as they go. Chunk c is added up from member c + 1 on.
        """
        shape = parts[0].shape
        chunks = [np.array_split(self._flat(part), self.size) for part in parts]
        self._call("reduce_sum")
        times = self._scatter("reduce_sum", chunks, times, link)
        times = self._spread("reduce_sum", chunks, times, link)
        return [self._joined(own, 0).reshape(shape) for own in chunks], times

    def reduce_scatter(self, parts: Arrays, times: Times, axis: int) -> tuple[Arrays, Times]:
        """Member i gets part i, cut along an axis as evenly as it goes, of the sum of all members' arrays."""
        chunks = [np.array_split(part, self.size, axis) for part in parts]
        self._call("reduce_scatter")
        times = self._scatter("reduce_scatter", chunks, times)
        return [own[member] for own, member in zip(chunks, self.mine, strict=True)], times

    def all_gather(
        self, parts: Arrays, times: Times, axis: int, sizes: Sequence[int] | None = None, link: Link | None = None
    ) -> tuple[Arrays, Times]:
        """All members' arrays side by side along an axis, on every member. `sizes`: their lengths, if they differ."""
        chunks = []
        for part, member in zip(parts, self.mine, strict=True):
            shapes = [list(part.shape) for _ in range(self.size)]
            for shape, length in zip(shapes, sizes or [part.shape[axis]] * self.size, strict=True):
                shape[axis] = length
            own = [hollow(shape, part.dtype) for shape in shapes]  # of the others: to come
            own[member] = part
            chunks.append(own)
        self._call("all_gather")
        times = self._spread("all_gather", chunks, times, link)
        return [self._joined(own, axis) for own in chunks], times

    def broadcast(self, parts: Arrays, times: Times, root: int) -> tuple[Arrays, Times]:
        """The root's array on every member: `size` chunks that follow one another round the ring, up to the last."""
        if not 0 <= root < self.size:
            raise UsageError(f"root {root} is no member of a group of {self.size}")
        chunks = [np.array_split(self._flat(part), self.size) for part in parts]
        self._call("broadcast")
        behind = [(member - root) % self.size for member in self.mine]  # places behind the root
        for step in range(2 * self.size - 2):
            sent = [step - one if one < self.size - 1 and 0 <= step - one < self.size else None for one in behind]
            come = [step - one + 1 if one > 0 and 0 <= step - one + 1 < self.size else None for one in behind]
            times, arrived = self._step("broadcast", chunks, sent, come, times)
            for own, at, chunk in zip(chunks, come, arrived, strict=True):
                if at is not None:
                    own[at] = chunk
        return [self._joined(own, 0).reshape(parts[0].shape) for own in chunks], times

    # ---- rings

    def _scatter(self, kind: str, chunks: list[Arrays], times: Times, link: Link | None = None) -> Times:
        """Afterwards member i has the sum of all chunks i."""
        for step in range(self.size - 1):
            sent = [(member - 1 - step) % self.size for member in self.mine]
            come = [(member - 2 - step) % self.size for member in self.mine]
            times, arrived = self._step(kind, chunks, sent, come, times, link)
            for own, at, chunk, touched in zip(chunks, come, arrived, self.touched, strict=True):
                own[at] = chunk + own[at] if self.payload else own[at]
                touched.read += own[at].nbytes  # the member's own; what arrived is read when the sum is sent on
                if step == self.size - 2:  # or stays: then it is read now, and the sum written
                    touched.read += own[at].nbytes
                    touched.written += own[at].nbytes
        return times

    def _spread(self, kind: str, chunks: list[Arrays], times: Times, link: Link | None = None) -> Times:
        """Member i has chunk i; afterwards every member has all of them."""
        for step in range(self.size - 1):
            sent = [(member - step) % self.size for member in self.mine]
            come = [(member - 1 - step) % self.size for member in self.mine]
            times, arrived = self._step(kind, chunks, sent, come, times, link)
            for own, at, chunk in zip(chunks, come, arrived, strict=True):
                own[at] = chunk
        return times

    def _step(
        self, kind: str, chunks: list[Arrays], sent: Sequence[int | None], come: Sequence[int | None], times: Times,
        link: Link | None = None,
    ) -> tuple[Times, Arrays]:  # fmt: skip
        """Each hosted member sends a chunk to the next one of the ring, or none, and gets one from the one before."""
        link = link or self.link
        departures: list[tuple[float, np.ndarray | None]] = []
        own_ends = []
        for own, at, counted, touched, now in zip(chunks, sent, self.traffic, self.touched, times, strict=True):
            if at is None:
                departures.append((now, None))
            else:
                nbytes = link.nbytes(own[at])
                counted[kind].bytes += nbytes
                touched.read += own[at].nbytes
                now += nbytes / link.bytes_per_second
                departures.append((now + link.latency, own[at]))
            own_ends.append(now)
        first = self._cross(departures[-1], None if come[0] is None else chunks[0][come[0]])
        arrivals = [first, *departures[:-1]]
        for (_, chunk), touched in zip(arrivals, self.touched, strict=True):
            touched.written += 0 if chunk is None else chunk.nbytes
        after = [
            end if at is None else max(end, there) for end, at, (there, _) in zip(own_ends, come, arrivals, strict=True)
        ]
        none = np.empty(0)
        return after, [none if chunk is None else chunk for _, chunk in arrivals]

    def _cross(self, last: tuple[float, np.ndarray | None], like: np.ndarray | None) -> tuple[float, np.ndarray | None]:
        """What the last member here sends goes to the next rank; what the first one gets, shaped `like`, comes back."""
        if self.control.size == 1:
            return last
        when, chunk = last
        data = b"" if chunk is None or not self.payload else np.ascontiguousarray(chunk).tobytes()
        size = 0 if like is None or not self.payload else like.nbytes
        self.messages += 1
        self.message_bytes += 8 + len(data)
        found = self.control.pass_on(np.float64(when).tobytes() + data, 8 + size)
        there = float(np.frombuffer(found, np.float64, 1)[0])
        if like is None or not self.payload:
            return there, like
        return there, np.frombuffer(found, like.dtype, offset=8).reshape(like.shape)

    def _call(self, kind: str) -> None:
        for counted in self.traffic:
            counted.setdefault(kind, Traffic()).calls += 1

    def _flat(self, part: np.ndarray) -> np.ndarray:
        return part.reshape(-1) if self.payload else hollow((part.size,), part.dtype)

    def _joined(self, chunks: Arrays, axis: int) -> np.ndarray:
        if self.payload:
            return np.concatenate(chunks, axis)
        shape = list(chunks[0].shape)
        shape[axis] = sum(chunk.shape[axis] for chunk in chunks)
        return hollow(shape, chunks[0].dtype)


def hollow(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
    """A shape without numbers: one zero, read-only, with strides of zero."""
    return np.ndarray(shape, dtype, _ZERO, 0, (0,) * len(shape))
