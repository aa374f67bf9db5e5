"""Beats between the sentinels of a job's nodes: a node from which no more come is out of reach.

A beat is a datagram: the job's key, the node's number, and its verdict, 0 while the job goes on. Every node beats with
the first two, and those with all others, so that most have little to do however large the job is. The lowest node that
a node hears, or its own, speaks for it: it says who is out of reach, and its verdict ends the ranks of all who hear it.
A node that is cut off hears nobody, speaks for itself, and so ends its own ranks. Only a node that was heard before is
missed: where nothing but MPI is let through between nodes, nothing is judged.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import astuple, replace
from typing import TYPE_CHECKING

from meshrt.records import dataclass

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from meshrt.ranks.board import Board

SPEAKERS = 2  # nodes that all others beat with
FIRST = 1.0  # seconds that the first beats have to arrive
LEFT = 255  # the verdict of a node whose ranks are gone: it is not missed
_BEAT = struct.Struct("!16sIB")  # key, node, verdict
_OF_INTERFACE = 0x8915  # Linux: ioctl(SIOCGIFADDR)


@dataclass(frozen=True)
class JobNode:
    """A node of the job: its host's name, its ranks, and the addresses at which its sentinel may be reached."""

    name: str
    ranks: tuple[int, ...]
    ways: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Circle:
    """The nodes of a job, by number, as far as node `own` has to do with them; `key` tells the job from others."""

    key: str
    own: int
    nodes: Mapping[int, JobNode]
    heard: tuple[int, ...] = ()  # those whose beats get through

    def dumped(self) -> bytes:
        """For another process, which `loaded` reads."""
        nodes = [[number, *astuple(node)] for number, node in self.nodes.items()]
        return json.dumps([self.key, self.own, nodes, self.heard]).encode()


def loaded(text: bytes) -> Circle:
    """What `dumped` gave."""
    key, own, nodes, heard = json.loads(text)
    return Circle(
        key, own,
        {number: JobNode(name, tuple(ranks), tuple(map(tuple, ways))) for number, name, ranks, ways in nodes},
        tuple(heard),
    )  # fmt: skip


def meet(comm: Intracomm, board: Board) -> tuple[socket.socket, Circle] | None:
    """Where the sentinel of this node hears the others, and who they are. Collective over `comm`.

    None on one node, on all ranks but the first of each node, and where there is no sentinel.
    """
    if len(board.ranks) == comm.size:
        return None
    ear = opened() if board.door >= 0 else None
    own_node = JobNode(socket.gethostname(), board.ranks, ways(ear) if ear else ()) if board.leads else None
    introductions = comm.allgather((os.urandom(16).hex() if comm.rank == 0 else "", own_node))
    hearing = None
    if ear is not None and own_node is not None:
        # In the order of their first ranks.
        nodes = dict(enumerate(node for _, node in introductions if node is not None))
        own = next(number for number, node in nodes.items() if node.ranks == own_node.ranks)
        partners = {number: nodes[number] for number in peers(own, len(nodes)) if nodes[number].ways}
        hearing = Hearing(ear, Circle(introductions[0][0], own, partners))
        hearing.beat(0)
    comm.Barrier()
    return None if hearing is None else (hearing.ear, replace(hearing.circle, heard=_first(hearing)))


def _first(hearing: Hearing) -> tuple[int, ...]:
    """The nodes whose first beat arrives: all have sent it, and where it is let through it is soon here."""
    end = time.monotonic() + FIRST
    hearing.hear(0)
    while len(hearing.silent) < len(hearing.circle.nodes) and time.monotonic() < end:
        time.sleep(0.01)
        hearing.hear(0)
    return tuple(hearing.silent)


def peers(node: int, count: int) -> Iterator[int]:
    """The nodes that a node beats with."""
    return (number for number in range(count) if number != node and min(number, node) < SPEAKERS)


def opened(address: str = "") -> socket.socket:
    """A socket for beats, at all addresses of this host or at one."""
    ear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ear.bind((address, 0))
    ear.setblocking(False)
    with suppress(OSError):
        ear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)  # of a large job, as far as the system permits
    return ear


def ways(ear: socket.socket) -> tuple[tuple[str, int], ...]:
    """The addresses of this host's interfaces, each with the socket's port: which of them others reach is seen then."""
    addresses = []
    for _, name in socket.if_nameindex():
        with suppress(OSError):  # it has none
            reply = fcntl.ioctl(ear, _OF_INTERFACE, struct.pack("256s", name.encode()))
            addresses.append(socket.inet_ntoa(reply[20:24]))
    return tuple((address, ear.getsockname()[1]) for address in addresses if not address.startswith("127."))


class Hearing:
    """For how long each node has been silent, in seconds in which this process ran: a sleep of the machine is none."""

    def __init__(self, ear: socket.socket, circle: Circle) -> None:
        self.ear = ear
        self.circle = circle
        self.silent = dict.fromkeys(circle.heard, 0.0)  # of the nodes that were heard
        self.left: set[int] = set()
        self.since = time.monotonic()

    def beat(self, verdict: int) -> None:
        """Say that this node is there, and what it has to say, at all addresses of its peers."""
        packet = _BEAT.pack(bytes.fromhex(self.circle.key), self.circle.own, verdict)
        for node in self.circle.nodes.values():
            for way in node.ways:
                with suppress(OSError):  # as when the link is down
                    self.ear.sendto(packet, way)

    def hear(self, longest: float) -> int:
        """The verdict of another node that ends the job, 0: none. `longest` bounds the seconds since the last look."""
        now = time.monotonic()
        passed, self.since = min(now - self.since, longest), now
        self.silent = {number: seconds + passed for number, seconds in self.silent.items()}
        verdict = 0
        for number, code in self._beats():
            if code == LEFT:
                self.left.add(number)
            self.silent[number] = 0.0
            verdict = verdict or code % LEFT
        for number in self.left:
            self.silent.pop(number, None)
        return verdict

    def missed(self, limit: float, size: int) -> str | None:
        """Who of `size` ranks is out of reach, once a node has been so for `limit` seconds and no lower one speaks."""
        longest = max(self.silent.values(), default=0.0)
        if longest < limit or any(number < self.circle.own and self.silent[number] < limit for number in self.silent):
            return None
        # Those that went with it have been heard a beat later.
        lost = [self.circle.nodes[number] for number in sorted(self.silent) if self.silent[number] >= limit / 2]
        return out_of_reach(lost, size, longest)

    def _beats(self) -> Iterator[tuple[int, int]]:
        """(node, verdict) of each beat that has come since the last look."""
        with suppress(OSError):  # BlockingIOError: no more
            while True:
                packet = self.ear.recv(64)
                if len(packet) == _BEAT.size:
                    key, number, code = _BEAT.unpack(packet)
                    if key.hex() == self.circle.key and number in self.circle.nodes:
                        yield number, code


def out_of_reach(nodes: list[JobNode], size: int, seconds: float) -> str:
    """The message for nodes that have been silent for so long."""
    named = ", ".join(f"{node.name} with {spelled(node.ranks)}" for node in nodes[:8])
    more = f" and {len(nodes) - 8} more" if len(nodes) > 8 else ""
    return (
        f"meshrt: error: out of reach: {named}{more}, of {size} ranks: nothing was heard from there for"
        f" {seconds:.0f} s, so the link or the node is down; a run with --checkpoint can go on with --resume;"
        " MESHRT_WATCHDOG_SECONDS sets the limit"
    )


def spelled(ranks: tuple[int, ...]) -> str:
    """(2,) -> "rank 2", (2, 3, 4) -> "ranks 2 to 4", (0, 2) -> "ranks 0, 2"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return "ranks " + ", ".join(map(str, ranks[:8])) + " ..." * (len(ranks) > 8)
