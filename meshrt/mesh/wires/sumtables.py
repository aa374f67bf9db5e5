"""The rows of a sum's table (sums.py): what the transfers of a sum do at a core alone on its rank, step by step.

Each row is a step of fabric.py, replay.py, order.py or software.py, in their order, with the addresses of all that it
reads and writes.
"""

from collections.abc import Iterator
from dataclasses import field
from struct import Struct
from typing import Any

import numpy as np

from meshrt.mesh.cores import Cores
from meshrt.mesh.meter import Counters, HostCounters
from meshrt.mesh.wires import order
from meshrt.mesh.wires.fabric import Prepared
from meshrt.mesh.wires.lane import HEADER, KEPT, Lane, MessageBuffer, lane_of, new_landing
from meshrt.mesh.wires.lines import Index, View
from meshrt.mesh.wires.schedule import Schedule
from meshrt.mesh.wires.software import Work
from meshrt.mesh.wires.strides import strides_of
from meshrt.mesh.wires.tables import Channel
from meshrt.records import dataclass

# A transfer, whether what it brings is combined, and what software then does
Part = tuple[Channel, Prepared | None, bool, tuple[Work, ...]]

STEPS, COPY_TILE, SEND, RECEIVE, SENT, ADD, COMBINE, KEEP, END = range(9)  # as in sums.c
OWN_TO, OWN_FROM = 1, 2  # as there
ROW = Struct("8q4d")  # kind, to, from, count, rank, tag, request, bell; busy, alpha, taking, tail
ADDED = {np.dtype(np.float32): 4, np.dtype(np.float64): 8}  # bytes of the numbers that the core adds up


@dataclass(frozen=True, eq=False)
class Table:
    """A sum that finds the links as `begin` says, and leaves them as `end`."""

    begin: order.Fixed
    end: order.Fixed
    rows: bytes
    address: int
    count: int
    stops: dict[int, tuple[Any, ...]]  # rows at which Python may have to go on, with what it needs there
    counted: Counters  # what it adds to those of the block
    host: HostCounters
    traffic: dict[tuple[Schedule, View], int]
    kept: list[Any]  # memory that the rows have the addresses of


@dataclass(eq=False)
class Making:
    """A table in the making."""

    block: Cores
    users: order.Users  # who is on links, as the transfers so far have left it
    tile: int  # bytes
    rows: list[bytes] = field(default_factory=list)
    stops: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)
    counted: Counters = field(default_factory=Counters)
    host: HostCounters = field(default_factory=HostCounters)
    traffic: dict[tuple[Schedule, View], int] = field(default_factory=dict)

    def row(self, kind: int, *numbers: float) -> None:
        self.rows.append(ROW.pack(kind, *numbers, *(0,) * (11 - len(numbers))))

    def at(self, array: Any) -> int:
        """Where it is in memory, which is kept."""
        self.kept.append(array)
        address: int = self.block.core.address(array)
        return address


def table_of(
    block: Cores, begin: order.Fixed, states: dict[Any, order.Fixed], parts: tuple[Part, ...], partial: np.ndarray,
    combine: Any,
) -> Table | None:  # fmt: skip
    """That finds links as `begin` says; None where a transfer is more than rows can do. `states` as in order.fixed."""
    making = Making(block, order.thawed(begin), partial.nbytes)
    adds = ADDED.get(partial.dtype, 0) if combine is np.add else 0
    for channel, prepared, combines, works in parts:
        if prepared is None or not _transfer(making, channel, prepared, partial, combines, adds):
            return None
        for work in works:
            _spend(making, work)
    rows, end = b"".join(making.rows), order.fixed(making.users, states)
    return Table(
        begin, end, rows, making.at(rows), len(making.rows), making.stops, making.counted, making.host, making.traffic,
        making.kept,
    )  # fmt: skip


def _spend(making: Making, work: Work) -> None:
    """software.do"""
    table, touched = work.chosen.table, work.operations * work.chosen.count
    making.row(STEPS, 0, making.at(table), len(table), 0, 0, 0, 0, work.cycles, float(work.stages))
    if work.stages:
        making.counted.stages += work.chosen.count
        making.counted.adds += touched
        making.counted.operand_bytes += 4 * touched * work.operands


def _transfer(
    making: Making, channel: Channel, prepared: Prepared, partial: np.ndarray, combines: bool, adds: int
) -> bool:  # fmt: skip
    """The rows of fabric.transfer_again; False where it is more than rows can do."""
    block, schedule, passage = making.block, prepared.schedule, prepared.unwatched
    if passage.busy:
        if schedule.meets or schedule.whole_block or channel.axis is None or not prepared.apart:
            return False
        if _begin_use(making, channel, prepared):
            passage = prepared.watched
    if schedule.idle or not prepared.views:
        return True
    (view,) = prepared.views  # a core is on one line
    lane = prepared.lanes.get(view)
    if lane is None:
        lane = prepared.lanes[view] = lane_of(block, schedule, view, partial.shape[2:], partial.dtype)
    landing, sent = new_landing(block, lane), list[int]()
    if landing.memory.nbytes > KEPT or any(part.message < 0 for part in schedule.parts):
        return False
    making.kept += [lane, landing]
    pace = passage.busy, block.device.alpha, passage.taking, passage.tail
    for steps, tick in strides_of(block, lane).at_once:
        if steps:
            making.row(STEPS, landing.address, making.at(steps), len(steps), 0, passage.watch, 0, 0, *pace)
        for message in () if tick is None else tick.sends:
            sent.append(_send(making, lane, message))
        for message in () if tick is None else tick.recvs:
            _receive(making, lane, message)
    for part in schedule.parts:
        packets = lane.received[part.message]
        if combines and not adds:
            making.stops[len(making.rows)] = COMBINE, view, part.to, packets.tiles, part.source
            making.row(COMBINE)
            continue
        for number in _numbers(part.source, _count(packets)):
            at = _tile(making, packets, number)
            if combines:
                making.row(ADD, 0, at, making.tile // adds, 0, adds)
            else:
                making.row(COPY_TILE, 0, at, making.tile, 0, OWN_TO)
    for request in sent:
        making.stops[len(making.rows)] = SENT, request
        making.row(SENT, 0, 0, 0, 0, 0, request)
    counted, host, use = making.counted, making.host, (schedule, view)
    counted.messages += schedule.sent
    counted.hops += schedule.hops
    counted.wafer_hops += lane.wafer_hops
    counted.max_hops = max(counted.max_hops, schedule.longest)
    making.traffic[use] = making.traffic.get(use, 0) + prepared.nbytes
    if sent:
        host.messages += len(sent)
        host.packets += lane.packets
        host.bytes += lane.bytes
    return True


def _numbers(index: Index, count: int) -> list[int]:
    numbers: list[int] = np.arange(count)[index].tolist()
    return numbers


def _count(message: MessageBuffer) -> int:
    """Packets in a message, of one line."""
    count: int = message.header.shape[2]
    return count


def _tile(making: Making, message: MessageBuffer, number: int) -> int:
    """Where that packet's tile is."""
    return making.at(message.spec[0]) + HEADER * _count(message) + making.tile * number


def _request(making: Making) -> int:
    return making.at(np.zeros(1, np.int64))


def _send(making: Making, lane: Lane, message: MessageBuffer) -> int:
    for part in message.parts:
        own = part.message < 0
        sources = _numbers(part.source, 1 if own else _count(lane.received[part.message]))
        for to, source in zip(_numbers(part.to, _count(message)), sources, strict=True):
            of = 0 if own else _tile(making, lane.received[part.message], source)
            making.row(COPY_TILE, _tile(making, message, to), of, making.tile, 0, OWN_FROM if own else 0)
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


def _begin_use(making: Making, channel: Channel, prepared: Prepared) -> bool:
    """order.begin_use, as it will be each time; the rows are of what it does to links."""
    block, users = making.block, making.users
    unseen = users.get(channel)
    if unseen is not None:
        use = id(prepared.schedule), id(prepared.views)
        now = None if unseen else order.before_use(block, prepared.schedule, prepared.views)
        length, before = order.rooms(channel, use, now)
        making.row(KEEP, making.at(length), making.at(np.full(1, prepared.unwatched.busy)))
        for (_, free, _), kept in zip(_cells(making, prepared.schedule, prepared.views), before or (), strict=False):
            if free:
                making.row(KEEP, making.at(kept), free)
        unseen[use] = prepared.schedule, prepared.views, length, before
        return False
    for other in order.give_way(users, channel):
        ended = users.pop(other)
        for schedule, views, busy, before in ended.values():
            since = None if before is None or len(ended) > 1 else before
            for number, (asked_at, free, idle) in enumerate(_cells(making, schedule, views)):
                if free:
                    at = 0 if since is None else making.at(since[number])
                    making.row(END, asked_at, free, making.at(busy), 0, 0, idle, at)
    users[channel] = {}
    return True


def _cells(making: Making, schedule: Any, views: Any) -> Iterator[tuple[int, int, int]]:
    """Of each of order._links: where asked_at, free and idle are, 0 where this core has no such link."""
    clock = making.block.clock
    for view in views:
        for way, cores, _ in schedule.crossings:
            crossed = len(_numbers(cores, view.length))
            arrays = clock.asked_at[way], clock.link_free[way], clock.idle[way]
            asked_at, free, idle = (making.at(array) if crossed else 0 for array in arrays)
            yield asked_at, free, idle
