"""All-to-all of members that ranks host: a part from each to each, of any size, in rounds.

Where all are joined, in round s member i sends to i + s what is for that one. Where links join neighbours only, a part
for i + s is handed on s times: in round s every member sends on to the next what member i - s + 1 began with and what
has to go that far or farther. Between members of one rank a round is a look-up, at the edge of a rank an MPI message:
the sender's time in its first eight bytes, and the parts behind it. Nothing is sent for parts that are empty. Without
payload nothing but times crosses.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt.groups.rings import Link, Times
from meshrt.ranks.control import Control
from meshrt.records import dataclass

TAG = 16  # and the sender: of messages; those of rings have 7
PairTable = Sequence[Sequence[int]]  # [from][to]
HeldParts = dict[tuple[int, int], np.ndarray | None]  # bytes of parts, by from and to; None: without payload


@dataclass(frozen=True)
class Exchange:
    """One all-to-all: how many bytes each part has on the links (`counted`) and in messages here (`real`)."""

    control: Control
    mine: range
    size: int
    counted: PairTable
    real: PairTable
    neighbours: bool
    wait: Callable[[Any], object]
    at_once: bool = False  # a member sends all that it has, and waits then; else it waits in each round

    def parts(self, member: int, step: int) -> tuple[int, list[tuple[int, int]]]:
        """To whom a member sends in a round, and which parts that are not empty."""
        if not self.neighbours:
            to = (member + step) % self.size
            parts = [(member, to)]
        else:
            to, first = (member + 1) % self.size, (member - step + 1) % self.size
            parts = [(first, (first + far) % self.size) for far in range(step, self.size)]
        return to, [(source, target) for source, target in parts if self.counted[source][target]]

    def source(self, member: int, step: int) -> int:
        return (member - (1 if self.neighbours else step)) % self.size

    def run(self, held: list[HeldParts], times: Times, links: Sequence[Link]) -> "Sent":
        """All rounds. `held` has each hosted member's own parts, in the end those for it too; `times` becomes when."""
        count, sent = len(self.mine), Sent([0] * len(self.mine), [0] * len(self.mine))
        leaves = [*times] if self.at_once else times  # when each has sent what it could
        for step in range(1, self.size):
            arrivals: list[float | None] = [None] * count
            going, coming = [], []
            for at, member in enumerate(self.mine):
                source = self.source(member, step)
                parts = self.parts(source, step)[1]
                if parts and source not in self.mine:
                    room = np.empty(8 + self._length(parts), np.uint8)
                    coming.append((at, source, parts, room, self._receive(room, source)))
            leaving = []
            for at, member in enumerate(self.mine):
                to, parts = self.parts(member, step)
                if not parts:
                    continue
                nbytes = sum(self.counted[source][target] for source, target in parts)
                leaves[at] += nbytes / links[at].bytes_per_second
                sent.bytes[at] += nbytes
                sent.hops[at] += len(parts)
                arrival = leaves[at] + links[at].latency
                if to in self.mine:
                    leaving.append((to - self.mine.start, parts, arrival, held[at]))
                else:
                    message = self._message(held[at], parts, arrival)
                    going.append((self._send(message, member, to), message))
                    sent.messages += 1
                    sent.message_bytes += message.nbytes
            for target, parts, arrival, box in leaving:
                arrivals[target] = arrival
                held[target] |= {part: box[part] for part in parts}
            for at, source, parts, room, request in coming:
                self._await(request, source)
                arrivals[at] = float(room[:8].view(np.float64)[0])
                held[at] |= self._opened(room[8:], parts)
            for request, _ in going:
                self.wait(request)
            for at, time in enumerate(arrivals):
                if time is not None:
                    times[at] = max(times[at], time)
        times[:] = map(max, times, leaves)
        return sent

    def _length(self, parts: Sequence[tuple[int, int]]) -> int:
        return sum(self.real[source][target] for source, target in parts)

    def _message(self, held: HeldParts, parts: Sequence[tuple[int, int]], arrival: float) -> np.ndarray:
        time = np.array([arrival]).view(np.uint8)
        return np.concatenate([time, *(content for part in parts if (content := held[part]) is not None)])

    def _opened(self, message: np.ndarray, parts: Sequence[tuple[int, int]]) -> HeldParts:
        begin, opened = 0, {}
        for source, target in parts:
            end = begin + self.real[source][target]
            opened[source, target] = message[begin:end] if end > begin else None
            begin = end
        return opened

    def _send(self, message: np.ndarray, member: int, to: int) -> Any:
        return self.control.comm.Isend(message, self.control.host_of(to, self.size), TAG + member)

    def _receive(self, room: np.ndarray, source: int) -> Any:
        return self.control.comm.Irecv(room, self.control.host_of(source, self.size), TAG + source)

    def _await(self, request: Any, source: int) -> None:
        self.control.board.waiting(self.control.host_of(source, self.size), f"{self.control.name}: all_to_all".encode())
        self.wait(request)
        self.control.board.moving()


@dataclass
class Sent:
    """What hosted members sent, bytes on links and parts, those handed on included; and the messages of the rank."""

    bytes: list[int]
    hops: list[int]
    messages: int = 0
    message_bytes: int = 0
