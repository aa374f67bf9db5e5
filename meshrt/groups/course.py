"""A collective as steps of transfers (hierarchy.py), with every buffer, view and message fixed beforehand.

What rings.py is for rings of all members of a group, for any members and any ranks that host them: inside a rank a
transfer is a copy or an addition, between two of them an MPI message: the sender's time in its first eight bytes, and
the parts behind it. Links are of two levels, inside a node and between nodes. Without payload only times cross.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt.groups.hierarchy import MemberTransfer, Steps
from meshrt.groups.rings import Arrays, Link, Times, Touched
from meshrt.ranks.control import Control
from meshrt.records import dataclass

TAG = 9  # of messages; those of rings have 7
INSIDE, BETWEEN = 0, 1  # levels of links


@dataclass(frozen=True)
class Members:
    """Who takes part: the rank that hosts each, the node that each is in, the link of each level."""

    ranks: tuple[int, ...]
    nodes: tuple[int, ...]
    links: tuple[Link, Link]

    def level(self, transfer: MemberTransfer) -> int:
        return BETWEEN if self.nodes[transfer.source] != self.nodes[transfer.target] else INSIDE


@dataclass(slots=True)
class EdgeMessage:
    """One transfer over the edge of this rank: a persistent request, its buffer, its peer."""

    request: Any
    peer: int
    time: np.ndarray  # float64 [1]
    views: Arrays  # of the parts, in the buffer


@dataclass(slots=True)
class StepMoves:
    """One step as this rank has it. Members are places in the list of those that it hosts."""

    sends: list[tuple[int, float, float, int | EdgeMessage]]  # from, seconds, latency, to; or in which message
    packs: list[tuple[np.ndarray, np.ndarray]]  # to the buffers of messages
    receives: list[tuple[EdgeMessage, int]]
    applies: list[tuple[Callable[..., object], np.ndarray, np.ndarray]]  # kernel, target, source


class CollectiveCourse:
    """`steps` among `members`, ready to `run` again and again.

    `chunks`: of each hosted member the parts of its array, where numbers are and come to; `copies` (target, source) are
    made first. `sent` has the bytes that each hosted member sends in a run, `between` those of them between nodes,
    `handed` the parts.
    """

    def __init__(
        self, control: Control, kind: str, steps: Steps, members: Members, chunks: list[Arrays],
        copies: list[tuple[np.ndarray, np.ndarray]], payload: bool, wait: Callable[[Any], object],
    ) -> None:  # fmt: skip
        self.control, self.kind, self.payload, self.wait = control, kind, payload, wait
        self.members, self.chunks, self.copies = members, chunks, copies
        self.mine = {member: at for at, member in enumerate(
            number for number, rank in enumerate(members.ranks) if rank == control.rank
        )}  # fmt: skip
        self.sent, self.between, self.handed = ([0 for _ in chunks] for _ in range(3))
        self.touched = [Touched() for _ in chunks]
        self.messages = self.message_bytes = 0
        self._what = f"{control.name}: {kind}".encode()
        self._requests: list[Any] = []
        self.steps = [moves for step in steps if (moves := self._moves(step)) is not None]

    def _moves(self, step: Sequence[MemberTransfer]) -> StepMoves | None:
        """What this rank does in a step; None: nothing."""
        moves = StepMoves([], [], [], [])
        for transfer in step:
            source, target = (self.mine.get(member) for member in (transfer.source, transfer.target))
            message = None
            if (source is None) != (target is None):
                message = self._message(transfer, source is not None)
            if source is not None:
                level = self.members.level(transfer)
                link = self.members.links[level]
                nbytes = sum(link.nbytes(self.chunks[source][part]) for part in transfer.parts)
                self.sent[source] += nbytes
                self.between[source] += nbytes * level
                self.handed[source] += len(transfer.parts)
                to = target if message is None else message
                assert to is not None
                moves.sends.append((source, nbytes / link.bytes_per_second, link.latency, to))
                if message is not None and self.payload:
                    parts = (self.chunks[source][part] for part in transfer.parts)
                    moves.packs += zip(message.views, parts, strict=True)
            if target is None:
                continue
            if message is not None:
                moves.receives.append((message, target))
            if self.payload:
                kernel: Callable[..., object] = _add if transfer.adds else np.copyto
                for at, part in enumerate(transfer.parts):
                    # what has no source here has come by a message
                    come = self.chunks[source][part] if source is not None else message.views[at]  # type: ignore[union-attr]  # who has no source has a message
                    moves.applies.append((kernel, self.chunks[target][part], come))
        return moves if moves.sends or moves.receives else None

    def _message(self, transfer: MemberTransfer, goes: bool) -> EdgeMessage:
        own = self.chunks[self.mine[transfer.source if goes else transfer.target]]
        peer = self.members.ranks[transfer.target if goes else transfer.source]
        parts = [own[part] for part in transfer.parts] if self.payload else []
        buffer = np.empty(8 + sum(part.nbytes for part in parts), np.uint8)
        views, end = [], 8
        for part in parts:
            views.append(buffer[end : end + part.nbytes].view(part.dtype).reshape(part.shape))
            end += part.nbytes
        comm = self.control.comm
        request = comm.Send_init(buffer, peer, TAG) if goes else comm.Recv_init(buffer, peer, TAG)
        self._requests.append(request)
        if goes:
            self.messages += 1
            self.message_bytes += buffer.nbytes
        return EdgeMessage(request, peer, buffer[:8].view(np.float64), views)

    def run(self, times: Times) -> None:
        """Do it from these times on, one for each hosted member, which then are those at which it ends."""
        board = self.control.board
        for target, source in self.copies:
            np.copyto(target, source)
        for step in self.steps:
            arrivals: list[tuple[int, float]] = []
            for message, _ in step.receives:
                message.request.Start()
            for view, part in step.packs:
                np.copyto(view, part)
            under_way = []
            for at, seconds, latency, to in step.sends:
                times[at] += seconds
                if isinstance(to, int):
                    arrivals.append((to, times[at] + latency))
                else:
                    to.time[0] = times[at] + latency
                    to.request.Start()
                    under_way.append(to)
            for message, at in step.receives:
                board.waiting(message.peer, self._what)
                self.wait(message.request)
                arrivals.append((at, message.time.item()))
            for message in under_way:
                board.waiting(message.peer, self._what)
                self.wait(message.request)
            if step.receives or under_way:
                board.moving()
            for kernel, into, come in step.applies:
                kernel(into, come)
            for at, time in arrivals:
                times[at] = max(times[at], time)

    def close(self) -> None:
        """Free what MPI keeps for it."""
        for request in self._requests:
            request.Free()


def seconds_of(steps: Steps, members: Members, nbytes: Sequence[int]) -> float:
    """When the last member is done if all begin at 0: what a run would take, by the links' numbers. `nbytes` of each
    part."""
    times = [0.0 for _ in members.ranks]
    for step in steps:
        arrivals = []
        for transfer in step:
            link = members.links[members.level(transfer)]
            times[transfer.source] += sum(nbytes[part] for part in transfer.parts) / link.bytes_per_second
            arrivals.append((transfer.target, times[transfer.source] + link.latency))
        for member, time in arrivals:
            times[member] = max(times[member], time)
    return max(times)


def _add(target: np.ndarray, source: np.ndarray) -> None:
    np.add(source, target, target)
