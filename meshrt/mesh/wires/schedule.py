"""Schedules: what a rank does in a transfer, tick by tick.

Slots number the packets of a batch: a place for the header of each. Where no two packets of a transfer ever meet at a
link or a ramp, their order does not matter: they are then replayed a batch after the other, so that the headers of a
large block stay in the processor's cache through all ticks.
"""

from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np

from meshrt.mesh.wires.inplace import in_order
from meshrt.mesh.wires.lines import Index, positions
from meshrt.records import dataclass

BATCH = 64 * 1024  # packets whose headers, and the clocks and links that they meet, fit a processor's cache


@dataclass(frozen=True, eq=False)
class PayloadMove:
    """Packets that are delivered, or put into a message, at `to`; from `source`: positions in this rank's tiles
    (message -1) or in a message received. `delivered` numbers them among all that are delivered here, after so many
    `hops`.
    """

    to: Index
    message: int
    source: Index
    delivered: Index = field(default_factory=lambda: slice(0, 0))
    hops: int | np.ndarray = 0


@dataclass(frozen=True, eq=False)
class Message:
    """One MPI message: `count` packets a line, their header slots, and for a send where the payloads are from."""

    port: int
    rank: int
    slots: Index
    count: int
    parts: tuple[PayloadMove, ...] = ()


@dataclass(frozen=True, eq=False)
class BatchTick:
    """One tick of a batch, ready to be replayed."""

    number: int
    branches: tuple[tuple[Index, Index], ...]  # (parents' slots, copies' slots)
    moves: tuple[tuple[int, Index, Index], ...]  # (port out, slots, cores)
    all_move: bool  # every slot is moved, once
    sends: tuple[Message, ...]
    recvs: tuple[Message, ...]
    deliveries: tuple[tuple[Index, Index, Index], ...]  # (slots, cores, their numbers among all that get any)


@dataclass(frozen=True, eq=False)
class PacketBatch:
    """Packets that are replayed together."""

    slots: int
    sources: tuple[tuple[Index, Index], ...]  # (slots, cores), one packet a core in each
    ticks: tuple[BatchTick, ...]
    messages: bool  # some come from, or go to, other ranks

    @property
    def under_way(self) -> int:
        """Packets a line that move in a tick, on average."""
        moves = sum(len(range(*slots.indices(self.slots))) if isinstance(slots, slice) else len(slots)
                    for tick in self.ticks for _, slots, _ in tick.moves)  # fmt: skip
        return -(-moves // max(1, len(self.ticks)))


@dataclass(frozen=True, eq=False)
class Schedule:
    """What this rank does in one transfer, on each of its lines."""

    whole_block: bool
    batches: tuple[PacketBatch, ...]
    sent: int  # packets a line that cores of this rank send
    hops: int  # moves a line of packets out of routers of this rank
    longest: int  # hops of the longest packet that is delivered here
    delivered: Index  # the cores that get packets
    count: int  # how many they are
    parts: tuple[PayloadMove, ...]  # what is delivered here
    crossings: tuple[tuple[int, Index, int | np.ndarray], ...]  # (port out, cores, packets that leave each by it)
    departures: tuple[tuple[Index, int | np.ndarray], ...]  # (cores, packets that each sends)
    meets: bool  # somewhere on the mesh two of its packets leave a router by the same port
    tag: int  # of its messages: ranks whose programs diverge wait for each other, and are found out
    note: str  # what it is, for a rank that says what it waits for
    origins: np.ndarray | None  # where on its line the packet of each is from; core y * W + x if whole block. For maps
    courses: tuple[tuple[int, np.ndarray, np.ndarray, int], ...] = ()  # (port, cores, from where, hops). For traces
    slot_origins: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # of one batch. For traces
    cache: dict[Any, Any] = field(default_factory=dict)  # message buffers

    @property
    def idle(self) -> bool:
        """Nothing passes this rank."""
        return not self.batches

    @cached_property
    def strided(self) -> bool:
        """Is what is delivered here a few strided copies, into evenly spaced places?"""
        return len(self.parts) < 8 and all(isinstance(part.to, slice) for part in self.parts)

    @cached_property
    def moves(self) -> bytes:
        """Of what comes from this rank's tiles and is to be where these are: int64 [moves, 2], see `in_order`."""
        sources: dict[int, int] = {}
        for part in self.parts:
            if part.message < 0:
                sources.update(zip(positions(part.to), positions(part.source), strict=True))
        return np.array(in_order(sources), np.int64).tobytes()
