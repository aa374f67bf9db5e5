"""Rows for the compiled core (sums.c): what transfers do at a core alone on its rank, step by step, messages included.

Each row is a step of fabric.py, replay.py, order.py, receiving.py or software.py, in their order, with the addresses of
all that it reads and writes.
"""

from collections.abc import Iterable
from dataclasses import field
from struct import Struct
from typing import Any

import numpy as np

from meshrt.mesh.cores import Cores
from meshrt.mesh.wires.heads import Passage
from meshrt.mesh.wires.lane import HEADER, Lane, MessageBuffer
from meshrt.mesh.wires.lines import Index
from meshrt.mesh.wires.strides import Stretch
from meshrt.records import dataclass

STEPS, COPY_TILE, SEND, RECEIVE, SENT, ADD, COMBINE, KEEP, END = range(9)  # as in sums.c
OWN_TO, OWN_FROM = 1, 2  # as there
ROW = Struct("8q4d")  # kind, to, from, count, rank, tag, request, bell; busy, alpha, taking, tail


@dataclass(frozen=True, eq=False)
class Rows:
    """A table of them."""

    memory: bytes
    address: int
    count: int
    posted: int  # messages
    stops: dict[int, tuple[Any, ...]]  # rows at which Python may have to go on, with what it needs there
    kept: list[Any]  # memory that the rows have the addresses of


@dataclass(eq=False)
class Making:
    """A table in the making, for such tiles."""

    block: Cores
    tile: int  # bytes
    rows: list[bytes] = field(default_factory=list)
    stops: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)

    def row(self, kind: int, *numbers: float) -> None:
        self.rows.append(ROW.pack(kind, *numbers, *(0,) * (11 - len(numbers))))

    def at(self, array: Any) -> int:
        """Where it is in memory, which is kept."""
        self.kept.append(array)
        address: int = self.block.core.address(array)
        return address

    def done(self) -> Rows:
        """The table."""
        memory, posted = b"".join(self.rows), sum(ROW.unpack(row)[0] == SEND for row in self.rows)
        return Rows(memory, self.at(memory), len(self.rows), posted, self.stops, self.kept)


def go_along(making: Making, lane: Lane, stretches: Iterable[Stretch], landing: int, passage: Passage) -> list[int]:
    """replay._replay_compiled: the ticks of a lane with their messages. `landing`: an address, 0: it is told each time.

    Returns the addresses of the requests of what is sent.
    """
    pace = passage.busy, making.block.device.alpha, passage.taking, passage.tail
    sent = list[int]()
    for steps, tick in stretches:
        if steps:
            making.row(STEPS, landing, making.at(steps), len(steps), 0, passage.watch, 0, 0, *pace)
        for message in () if tick is None else tick.sends:
            sent.append(_send(making, lane, message))
        for message in () if tick is None else tick.recvs:
            _receive(making, lane, message)
    return sent


def wait_for(making: Making, sent: list[int]) -> None:
    """For messages that were sent."""
    for request in sent:
        making.stops[len(making.rows)] = SENT, request
        making.row(SENT, 0, 0, 0, 0, 0, request)


def numbers_of(index: Index, count: int) -> list[int]:
    """Of so many positions those that the index chooses."""
    numbers: list[int] = np.arange(count)[index].tolist()
    return numbers


def packets_of(message: MessageBuffer) -> int:
    """How many there are in a message, of one line."""
    count: int = message.header.shape[2]
    return count


def tile_of(making: Making, message: MessageBuffer, number: int) -> int:
    """Where that packet's tile is."""
    return making.at(message.spec[0]) + HEADER * packets_of(message) + making.tile * number


def _request(making: Making) -> int:
    return making.at(np.zeros(1, np.int64))


def _send(making: Making, lane: Lane, message: MessageBuffer) -> int:
    for part in message.parts:
        own = part.message < 0
        sources = numbers_of(part.source, 1 if own else packets_of(lane.received[part.message]))
        for to, source in zip(numbers_of(part.to, packets_of(message)), sources, strict=True):
            of = 0 if own else tile_of(making, lane.received[part.message], source)
            making.row(COPY_TILE, tile_of(making, message, to), of, making.tile, 0, OWN_FROM if own else 0)
    data, request = message.spec[0], _request(making)
    making.row(SEND, 0, making.at(data), data.nbytes, message.rank, lane.schedule.tag, request, _bell(making, message))
    return request


def _receive(making: Making, lane: Lane, message: MessageBuffer) -> None:
    data, request = message.spec[0], _request(making)
    making.stops[len(making.rows)] = RECEIVE, request, message.rank, data.nbytes, making.block.watch, message.note
    bell = _bell(making, message)
    making.row(RECEIVE, making.at(data), 0, data.nbytes, message.rank, lane.schedule.tag, request, bell)


def _bell(making: Making, message: MessageBuffer) -> int:
    bells = making.block.bells
    return 0 if bells is None else bells.others.get(message.rank, 0)
