"""Rings of members that ranks host: collectives step by step, with every buffer, view and message fixed beforehand.

Between members of one rank a step is a copy or an addition, at the edge of a rank an MPI message: the sender's time in
its first eight bytes, and a chunk behind it. Without payload chunks are shapes, and nothing but times crosses.
"""

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from meshrt.ranks.control import Control
from meshrt.records import dataclass

Arrays = list[np.ndarray]
Times = list[float]
TAG = 7  # of a ring's messages; those of `Control` have 0


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
class Touched:
    """Bytes of a member's own memory that collectives read and wrote.

    As AWS Neuron's rings do ("Intra-node Collective Communications", Neuron SDK documentation): a chunk is read where
    it is and written to the next member; where it is added up, what arrived and the member's own are both read.
    """

    read: int = 0
    written: int = 0


@dataclass(slots=True)
class Edge:
    """The messages of one step between this rank and its neighbours: persistent requests, views of their buffers."""

    send: Any
    receive: Any
    time_sent: np.ndarray  # float64 [1]
    sent: np.ndarray  # the chunk in the message
    chunk: np.ndarray | None  # where it is taken from
    time: np.ndarray
    received: np.ndarray


@dataclass(slots=True)
class RingStep:
    """One step for all hosted members. `moves` has (kernel, target, source) inside this rank."""

    seconds: list[float]  # that each member sends for
    comes: list[bool]  # to whom of them a chunk comes
    moves: list[tuple[Callable[..., object], np.ndarray, np.ndarray]]
    edge: Edge | None
    arrival: tuple[Callable[..., object], np.ndarray] | None  # kernel and target of what comes over the edge
    even: float | None  # that all members send for, where a chunk comes to each of them from this rank


@dataclass
class RingCollective:
    """One collective among `size` members, of which this rank hosts some, ready to `run` again and again.

    `chunks` of each hosted member are where its numbers are and where they come to; `copies` (target, source) are made
    first. What one run sends and touches is in `sent`, `touched` and `message_bytes`.
    """

    control: Control
    kind: str
    size: int
    link: Link
    payload: bool
    chunks: list[Arrays]
    copies: list[tuple[np.ndarray, np.ndarray]]
    wait: Callable[[Any], object]  # for an MPI request
    steps: list[RingStep] = field(default_factory=list)
    sent: list[int] = field(init=False)  # bytes on the link, by member
    between: list[int] = field(init=False)  # of these, between nodes: none
    touched: list[Touched] = field(init=False)
    messages: int = 0  # of MPI that this rank sends, and their bytes
    message_bytes: int = 0

    def __post_init__(self) -> None:
        self.sent, self.between = ([0 for _ in self.chunks] for _ in range(2))
        self.touched = [Touched() for _ in self.chunks]
        self._peer = (self.control.rank - 1) % self.control.size
        self._what = f"{self.control.name}: {self.kind}".encode()
        self._nbytes = [chunk.nbytes for chunk in self.chunks[0]]  # alike at all members
        self._on_link = [self.link.nbytes(chunk) for chunk in self.chunks[0]]
        self._seconds = [nbytes / self.link.bytes_per_second for nbytes in self._on_link]

    def step(
        self, sent: Sequence[int | None], received: Sequence[int | None], adds: bool = False, stays: bool = False
    ) -> None:
        """Plan a step: each member sends a chunk to the next, or none, and gets or `adds` one from the one before.

        `stays`: what is added up is not sent on.
        """
        chunks, move = self.chunks, _add if adds else np.copyto
        seconds: list[float] = []
        comes: list[bool] = []
        moves: list[tuple[Callable[..., object], np.ndarray, np.ndarray]] = []
        alone = self.control.size == 1
        # Of a sum, what arrived is read when it is sent on; or it stays: then it is read now, and written.
        reads, writes = adds + stays, 1 + stays
        for at, (out, into) in enumerate(zip(sent, received, strict=True)):
            touched = self.touched[at]
            if out is None:
                seconds.append(0.0)
            else:
                self.sent[at] += self._on_link[out]
                touched.read += self._nbytes[out]
                seconds.append(self._seconds[out])
            comes.append(into is not None)
            if into is not None:
                touched.read += self._nbytes[into] * reads
                touched.written += self._nbytes[into] * writes
                if self.payload and (at or alone):
                    moves.append((move, chunks[at][into], chunks[at - 1][into]))
        first, edge = received[0], None
        if not alone:
            edge = self._edge(
                None if sent[-1] is None else chunks[-1][sent[-1]], None if first is None else chunks[0][first]
            )
        arrival = None if edge is None or first is None or not self.payload else (move, chunks[0][first])
        even = seconds[0] if alone and all(comes) and seconds.count(seconds[0]) == len(seconds) else None
        self.steps.append(RingStep(seconds, comes, moves, edge, arrival, even))

    def _edge(self, chunk: np.ndarray | None, target: np.ndarray | None) -> Edge:
        control, none = self.control, np.empty(0, np.uint8)
        outgoing, incoming = ((none if array is None or not self.payload else array) for array in (chunk, target))
        out, back = np.empty(8 + outgoing.nbytes, np.uint8), np.empty(8 + incoming.nbytes, np.uint8)
        self.messages += 1
        self.message_bytes += out.nbytes
        return Edge(
            control.comm.Send_init(out, (control.rank + 1) % control.size, TAG),
            control.comm.Recv_init(back, self._peer, TAG),
            out[:8].view(np.float64),
            out[8:].view(outgoing.dtype).reshape(outgoing.shape),
            None if outgoing is none else outgoing,
            back[:8].view(np.float64),
            back[8:].view(incoming.dtype).reshape(incoming.shape),
        )

    def run(self, times: Times) -> None:
        """Do it from these times on, one for each hosted member, which then are those at which it ends."""
        latency, board = self.link.latency, self.control.board
        for target, source in self.copies:
            np.copyto(target, source)
        alike = bool(times) and times.count(times[0]) == len(times)  # they stay so while steps are even
        for step in self.steps:
            if alike and step.even is not None:
                for kernel, target, source in step.moves:
                    kernel(target, source)
                times[:] = [times[0] + step.even + latency] * len(times)
                continue
            alike = False
            edge = step.edge
            for at, seconds in enumerate(step.seconds):
                times[at] += seconds
            last = times[-1] + latency
            if edge is not None:
                edge.time_sent[0] = last
                if edge.chunk is not None:
                    np.copyto(edge.sent, edge.chunk)
                edge.receive.Start()
                edge.send.Start()
            for kernel, target, source in step.moves:
                kernel(target, source)
            if edge is not None:
                board.waiting(self._peer, self._what)
                self.wait(edge.receive)
                self.wait(edge.send)
                board.moving()
                if step.arrival is not None:
                    kernel, target = step.arrival
                    kernel(target, edge.received)
                last = edge.time.item()
            for at in range(len(times) - 1, 0, -1):
                if step.comes[at]:
                    times[at] = max(times[at], times[at - 1] + latency)
            if step.comes[0]:
                times[0] = max(times[0], last)

    def close(self) -> None:
        """Free what MPI keeps for it."""
        for step in self.steps:
            if step.edge is not None:
                step.edge.send.Free()
                step.edge.receive.Free()


def _add(target: np.ndarray, source: np.ndarray) -> None:
    np.add(source, target, target)
