"""Collectives of a plan: the rings of meshrt/ranks/group.py step by step, with every buffer, view and request fixed.

The same chunks go the same ways in the same order, so bits, counts and times are those of the group. At the edge of a
rank there are two persistent requests for each step (MPI_Send_init, MPI_Recv_init): a message has the sender's time in
its first eight bytes and a chunk behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt.ranks.group import Group, Link, Traffic
from meshrt.ranks.host import waiter

TAG = 7  # of persistent messages; those of the group have 0


@dataclass(slots=True)
class Edge:
    """The messages of one step between this rank and its neighbours."""

    send: Any
    receive: Any
    sent_time: np.ndarray  # float64 [1], a view of the message
    sent: np.ndarray  # the chunk in the message
    chunk: np.ndarray  # where it is taken from
    time: np.ndarray
    received: np.ndarray
    nbytes: int


@dataclass(slots=True)
class Step:
    """One step of a ring for all hosted members. `moves` has (kernel, target, source) inside this rank."""

    moves: list[tuple[Callable[..., object], np.ndarray, np.ndarray]]
    nbytes: list[int]  # that each member sends
    seconds: list[float]  # on the link
    edge: Edge | None
    target: np.ndarray  # of what comes over the edge
    adds: bool


class Ring:
    """One collective, ready to `run` again and again from `parts` to `outs`."""

    def __init__(
        self, group: Group, kind: str, parts: list[np.ndarray], outs: list[np.ndarray], sizes: Sequence[int],
        link: Link,
    ) -> None:  # fmt: skip
        self.group, self.kind, self.parts, self.outs, self.sizes, self.link = group, kind, parts, outs, sizes, link
        self.steps: list[Step] = []
        self.copies: list[tuple[np.ndarray, np.ndarray]] = []
        self.times = [0.0 for _ in parts]  # of the members here
        control = group.control
        self.board, self.peer = control.board, (control.rank - 1) % control.size
        self.what = f"{control.name}: {kind}".encode()
        self.wait: Any = waiter() if control.size > 1 else None
        self._plan()

    def run(self) -> None:
        """Do it from `times` on, which then are those at which it ends; counted as the group's collectives are."""
        for counted in self.group.traffic:
            counted.setdefault(self.kind, Traffic()).calls += 1
        for target, source in self.copies:
            np.copyto(target, source)
        for step in self.steps:
            self._run(step)

    def close(self) -> None:
        for step in self.steps:
            if step.edge is not None:
                step.edge.send.Free()
                step.edge.receive.Free()

    def _run(self, step: Step) -> None:
        times, traffic, latency, edge = self.times, self.group.traffic, self.link.latency, step.edge
        for at, nbytes in enumerate(step.nbytes):
            traffic[at][self.kind].bytes += nbytes
            times[at] += step.seconds[at]
        last = times[-1] + latency
        if edge is not None:
            edge.sent_time[0] = last
            np.copyto(edge.sent, edge.chunk)
            edge.receive.Start()
            edge.send.Start()
            self.group.messages += 1
            self.group.message_bytes += edge.nbytes
        for kernel, target, source in step.moves:
            kernel(target, source)
        if edge is not None:
            self.board.waiting(self.peer, self.what)
            self.wait(edge.receive)
            self.wait(edge.send)
            self.board.moving()
            _move(step.adds)(step.target, edge.received)
            last = edge.time.item()
        for at in range(len(times) - 1, 0, -1):
            times[at] = max(times[at], times[at - 1] + latency)
        times[0] = max(times[0], last)

    # ---- planning

    def _plan(self) -> None:
        count, mine = self.group.size, self.group.mine
        chunks: list[list[np.ndarray]]
        if self.kind == "all_gather":
            ends = np.cumsum(self.sizes)
            chunks = [
                [out[..., end - size : end] for size, end in zip(self.sizes, ends, strict=True)] for out in self.outs
            ]
            self.copies = [(own[member], part) for own, part, member in zip(chunks, self.parts, mine, strict=True)]
        else:
            chunks = [np.array_split(out.reshape(-1), count) for out in self.outs]
            self.copies = [*zip(self.outs, self.parts, strict=True)]
            for step in range(count - 1):
                self._step(chunks, [(member - 1 - step) % count for member in mine], True)
        for step in range(count - 1):
            self._step(chunks, [(member - step) % count for member in mine], False)

    def _step(self, chunks: list[list[np.ndarray]], sent: list[int], adds: bool) -> None:
        """Member i sends chunk sent[i] to the next, and gets from the one before the chunk below."""
        count, link = self.group.size, self.link
        come = [(one - 1) % count for one in sent]
        nbytes = [link.nbytes(own[at]) for own, at in zip(chunks, sent, strict=True)]
        moves = [(_move(adds), chunks[at][come[at]], chunks[at - 1][come[at]]) for at in range(1, len(chunks))]
        target, edge = chunks[0][come[0]], None
        if self.group.control.size == 1:
            moves.append((_move(adds), target, chunks[-1][come[0]]))
        else:
            edge = self._edge(chunks[-1][sent[-1]], target)
        self.steps.append(Step(moves, nbytes, [one / link.bytes_per_second for one in nbytes], edge, target, adds))

    def _edge(self, chunk: np.ndarray, target: np.ndarray) -> Edge:
        control = self.group.control
        out, back = np.empty(8 + chunk.nbytes, np.uint8), np.empty(8 + target.nbytes, np.uint8)
        return Edge(
            send=control.comm.Send_init(out, (control.rank + 1) % control.size, TAG),
            receive=control.comm.Recv_init(back, self.peer, TAG),
            sent_time=out[:8].view(np.float64),
            sent=out[8:].view(chunk.dtype).reshape(chunk.shape),
            chunk=chunk,
            time=back[:8].view(np.float64),
            received=back[8:].view(target.dtype).reshape(target.shape),
            nbytes=out.nbytes,
        )


def _move(adds: bool) -> Callable[..., object]:
    return _add if adds else np.copyto


def _add(target: np.ndarray, source: np.ndarray) -> None:
    np.add(source, target, target)
