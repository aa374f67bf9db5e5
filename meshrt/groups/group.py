"""Groups of devices with a private memory each, and their collectives, by rings of real messages (rings.py).

In what order numbers are added, and what is counted, does not depend on which rank hosts whom. Every member has a clock
of its own: a step ends when the receiver was ready and the sender's bytes are there.
"""

from collections.abc import Callable, Sequence
from dataclasses import field
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.groups.pairs import Exchange, HeldParts, PairTable
from meshrt.groups.rings import Arrays, Link, RingCollective, Times, Touched
from meshrt.ranks.control import Control
from meshrt.ranks.host import waiter
from meshrt.records import dataclass

if TYPE_CHECKING:
    from meshrt.groups.course import CollectiveCourse

_ZERO = bytes(16)
EVERY = slice(None)


@dataclass
class Traffic:
    """What one member did by collectives of one kind."""

    calls: int = 0
    bytes: int = 0  # that it sent
    between: int = 0  # of these, to other nodes


@dataclass
class Group:
    """`size` members in a ring, of which this rank hosts `mine`.

    Collectives take and return a list with something for each hosted member: arrays, and clocks in seconds. `link`:
    what they go over, if not the group's. Without payload, arrays are shapes (strides of zero) and nothing but times
    crosses between ranks. Each is a ring that is planned and run once; `sum_ring` and `gather_ring` plan one that can
    be run (`go_round`) as often as its numbers change.
    """

    control: Control
    size: int
    link: Link
    payload: bool = True
    traffic: list[dict[str, Traffic]] = field(init=False)  # of each hosted member, by kind
    touched: list[Touched] = field(init=False)  # of each hosted member
    messages: int = 0  # of MPI that this rank sent, and their bytes
    message_bytes: int = 0
    wait: Callable[[Any], object] = field(init=False)  # for an MPI request

    def __post_init__(self) -> None:
        if not 1 <= self.control.size <= self.size:
            raise UsageError(f"{self.control.size} ranks for {self.size} members of a group: start {self.size} at most")
        self.traffic = [{} for _ in self.mine]
        self.touched = [Touched() for _ in self.mine]
        self.wait = waiter() if self.control.size > 1 else _nothing_to_wait_for

    @property
    def mine(self) -> range:
        """The members that this rank hosts."""
        return self.control.hosted(self.size)

    def owner(self, member: int) -> int:
        """The rank that hosts a member."""
        return self.control.host_of(member, self.size)

    def reduce_sum(self, parts: Arrays, times: Times, link: Link | None = None) -> tuple[Arrays, Times]:
        """The sum of all members' arrays, on every member: reduce-scatter and all-gather of size chunks.

        Chunks are of the flattened array, as even as they go. Chunk c is added up from member c + 1 on.
        """
        outs = [self.new(part.shape, part.dtype) for part in parts]
        return outs, self._once(self.sum_ring(parts, outs, link), times)

    def mesh_sum(self, parts: Arrays, times: Times, link: Link) -> tuple[Arrays, Times]:
        """The same where each member reaches all others at once: a chunk to each, whose sum goes to all.

        Each sends all its chunks before it waits: two latencies of `link`, whatever the size of the group. Chunks are
        added up in float32 in the order of the members, then rounded.
        """
        dtype, shape, ends, links = parts[0].dtype, parts[0].shape, list(times), [link for _ in parts]
        whole, more = divmod(parts[0].size, self.size)
        sizes = [whole + (member < more) for member in range(self.size)]  # as `_cut` has them
        flat = [part.reshape(-1) if self.payload else hollow((part.size,), dtype) for part in parts]
        arrived = [self.new((self.size * sizes[member],), dtype) for member in self.mine]
        to_each = [sizes for _ in sizes]
        self.all_to_all(_each(flat), _each(arrived), to_each, dtype.itemsize, ends, links, at_once=True)
        sums = [self._added(chunks) for chunks in arrived]
        copies = [np.concatenate([own] * self.size) if self.payload else own for own in sums]
        outs = [self.new((sum(sizes),), dtype) for _ in parts]
        of_each = [[size] * self.size for size in sizes]
        self.all_to_all(_each(copies), _each(outs), of_each, dtype.itemsize, ends, links, at_once=True)
        for touched, member in zip(self.touched, self.mine, strict=True):
            touched.read += self.size * sizes[member] * dtype.itemsize  # to add it up
            touched.written += sizes[member] * dtype.itemsize
        return [out.reshape(shape) if self.payload else self.new(shape, dtype) for out in outs], ends

    def _added(self, chunks: np.ndarray) -> np.ndarray:
        """[size x n] -> [n]: what all members have sent, added up in their order."""
        if not self.payload:
            return hollow((chunks.size // self.size,), chunks.dtype)
        total = np.zeros(chunks.size // self.size, np.float32)
        for chunk in chunks.reshape(self.size, -1):
            total += chunk.astype(np.float32)
        return total.astype(chunks.dtype)

    def sum_ring(self, parts: Arrays, outs: Arrays, link: Link | None = None) -> RingCollective:
        """The same from `parts` to `outs`, to be run again and again."""
        ring = self._ring("reduce_sum", link, [self._cut(out) for out in outs], zip(outs, parts, strict=True))
        self._scatter(ring)
        self._spread(ring)
        return ring

    def reduce_scatter(self, parts: Arrays, times: Times, axis: int) -> tuple[Arrays, Times]:
        """Member i gets part i, cut along an axis as evenly as it goes, of the sum of all members' arrays."""
        wholes = [self.new(part.shape, part.dtype) for part in parts]
        chunks = [np.array_split(whole, self.size, axis) for whole in wholes]
        ring = self._ring("reduce_scatter", None, chunks, zip(wholes, parts, strict=True))
        self._scatter(ring)
        return [chunk[member] for chunk, member in zip(chunks, self.mine, strict=True)], self._once(ring, times)

    def all_gather(
        self, parts: Arrays, times: Times, axis: int, sizes: Sequence[int] | None = None, link: Link | None = None
    ) -> tuple[Arrays, Times]:
        """All members' arrays side by side along an axis, on every member. `sizes`: their lengths, if they differ."""
        sizes = sizes or [parts[0].shape[axis]] * self.size
        outs = []
        for part in parts:
            shape = list(part.shape)
            shape[axis] = sum(sizes)
            outs.append(self.new(shape, part.dtype))
        return outs, self._once(self.gather_ring(parts, outs, axis, sizes, link), times)

    def gather_ring(
        self, parts: Arrays, outs: Arrays, axis: int, sizes: Sequence[int], link: Link | None = None
    ) -> RingCollective:
        """The same from `parts` to `outs`, to be run again and again."""
        chunks = [np.split(out, np.cumsum(sizes)[:-1], axis) for out in outs]
        own_chunks = [chunk[member] for chunk, member in zip(chunks, self.mine, strict=True)]
        ring = self._ring("all_gather", link, chunks, zip(own_chunks, parts, strict=True))
        self._spread(ring)
        return ring

    def broadcast(self, parts: Arrays, times: Times, root: int) -> tuple[Arrays, Times]:
        """The root's array on every member: `size` chunks that follow one another round the ring, up to the last."""
        if not 0 <= root < self.size:
            raise UsageError(f"root {root} is no member of a group of {self.size}")
        outs = [self.new(part.shape, part.dtype) for part in parts]
        ring = self._ring("broadcast", None, [self._cut(out) for out in outs], zip(outs, parts, strict=True))
        lags = [(member - root) % self.size for member in self.mine]  # members behind the root
        for step in range(2 * self.size - 2):
            sent = [step - lag if lag < self.size - 1 and 0 <= step - lag < self.size else None for lag in lags]
            received = [step - lag + 1 if lag > 0 and 0 <= step - lag + 1 < self.size else None for lag in lags]
            ring.step(sent, received)
        return outs, self._once(ring, times)

    def all_to_all(
        self, parts: Sequence[Arrays], outs: Sequence[Arrays], rows: PairTable, row_bytes: int, times: Times,
        links: Sequence[Link], neighbours: bool = False, at_once: bool = False,
    ) -> list[int]:  # fmt: skip
        """To each member its rows of every member's arrays: `rows` [from][to] of them, each `row_bytes` on a link.

        A hosted member's `parts` are arrays with as many rows, in order of those whom they are for; its `outs` get the
        rows for it, in order of those from whom they are. The times become those at which it ends; `links` is what each
        member sends over. Returns the parts that each sent, handed on ones included, `neighbours` being joined alone.
        `at_once`: members do not wait for what comes before they have sent all.
        """
        row = sum(array.itemsize * prod(array.shape[1:]) for array in parts[0]) if self.payload else 0
        counted, real = ([[count * each for count in line] for line in rows] for each in (row_bytes, row))
        exchange = Exchange(self.control, self.mine, self.size, counted, real, neighbours, self.wait, at_once)
        held = [self.parcels(arrays, member, rows) for arrays, member in zip(parts, self.mine, strict=True)]
        sent = exchange.run(held, times, links)
        for at, member in enumerate(self.mine):
            self.unpack(held[at], outs[at], member, rows)
            kind = self.traffic[at].setdefault("all_to_all", Traffic())
            kind.calls += 1
            kind.bytes += sent.bytes[at]
            self.touched[at].read += sent.bytes[at]
            self.touched[at].written += sum(line[member] for line in counted) - counted[member][member]
        self.messages += sent.messages
        self.message_bytes += sent.message_bytes
        return sent.hops

    def parcels(self, arrays: Arrays, member: int, rows: PairTable) -> HeldParts:
        """The bytes of a member's parts, by from and to."""
        ends = [*accumulate(rows[member])]
        return {
            (member, to): np.concatenate([
                np.ascontiguousarray(array[end - rows[member][to] : end]).view(np.uint8).reshape(-1) for array in arrays
            ]) if self.payload else None
            for to, end in enumerate(ends)
        }  # fmt: skip

    def unpack(self, held: HeldParts, outs: Arrays, member: int, rows: PairTable) -> None:
        """What is for a member, in order of those from whom it is, to its arrays."""
        end = 0
        for source, line in enumerate(rows):
            begin, end, at = end, end + line[member], 0
            part = held.get((source, member))
            if part is None:
                continue
            for out in outs:
                target = out[begin:end]
                target[...] = part[at : at + target.nbytes].view(out.dtype).reshape(target.shape)
                at += target.nbytes

    def go_round(self, ring: "RingCollective | CollectiveCourse", times: Times, among: slice = EVERY) -> None:
        """Run a ring that was planned here, and count what it does; the times become those at which it ends.

        `among`: those of the hosted members that it is of.
        """
        for counted, sent, between in zip(self.traffic[among], ring.sent, ring.between, strict=True):
            kind = counted.get(ring.kind) or counted.setdefault(ring.kind, Traffic())
            kind.calls += 1
            kind.bytes += sent
            kind.between += between
        for touched, more in zip(self.touched[among], ring.touched, strict=True):
            touched.read += more.read
            touched.written += more.written
        self.messages += ring.messages
        self.message_bytes += ring.message_bytes
        ring.run(times)

    # ---- planning

    def _ring(self, kind: str, link: Link | None, chunks: list[Arrays], copies: Any) -> RingCollective:
        first_copies = [*copies] if self.payload else []
        return RingCollective(
            self.control, kind, self.size, link or self.link, self.payload, chunks, first_copies, self.wait
        )

    def _once(self, ring: RingCollective, times: Times) -> Times:
        ends = list(times)
        self.go_round(ring, ends)
        ring.close()
        return ends

    def _scatter(self, ring: RingCollective) -> None:
        """Afterwards member i has the sum of all chunks i."""
        for step in range(self.size - 1):
            sent = [(member - 1 - step) % self.size for member in self.mine]
            ring.step(sent, [(chunk - 1) % self.size for chunk in sent], adds=True, stays=step == self.size - 2)

    def _spread(self, ring: RingCollective) -> None:
        """Member i has chunk i; afterwards every member has all of them."""
        for step in range(self.size - 1):
            sent = [(member - step) % self.size for member in self.mine]
            ring.step(sent, [(chunk - 1) % self.size for chunk in sent])

    def new(self, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
        """An array, or its shape alone."""
        return np.empty(shape, dtype) if self.payload else hollow(shape, dtype)

    def _cut(self, whole: np.ndarray) -> Arrays:
        """As many chunks of the flattened array as there are members, as even as NumPy's `array_split` has them."""
        flat = whole.reshape(-1) if self.payload else hollow((whole.size,), whole.dtype)
        length, longer = divmod(flat.size, self.size)
        ends = [at * length + min(at, longer) for at in range(self.size + 1)]
        return [flat[begin:end] for begin, end in pairwise(ends)]


def _each(arrays: Arrays) -> list[Arrays]:
    """One array of each member, as `all_to_all` takes several."""
    return [[array] for array in arrays]


def _nothing_to_wait_for(_: Any) -> None:
    """One rank sends itself nothing."""


def hollow(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
    """A shape without numbers: one zero, read-only, with strides of zero."""
    return np.ndarray(shape, dtype, _ZERO, 0, (0,) * len(shape))
