"""The rows (rows.py) of a sum: what its transfers do at a core alone on its rank, step by step."""

from collections.abc import Iterator
from dataclasses import field
from typing import Any

import numpy as np

from meshrt.mesh.cores import Cores
from meshrt.mesh.meter import Counters, HostCounters
from meshrt.mesh.wires import order, rows
from meshrt.mesh.wires.fabric import Prepared
from meshrt.mesh.wires.lane import KEPT, lane_of, new_landing
from meshrt.mesh.wires.lines import View
from meshrt.mesh.wires.rows import Making, Rows
from meshrt.mesh.wires.schedule import Schedule
from meshrt.mesh.wires.software import Work
from meshrt.mesh.wires.strides import strides_of
from meshrt.mesh.wires.tables import Channel
from meshrt.records import dataclass

# A transfer, whether what it brings is combined, and what software then does
Part = tuple[Channel, Prepared | None, bool, tuple[Work, ...]]

ADDED = {np.dtype(np.float32): 4, np.dtype(np.float64): 8}  # bytes of the numbers that the core adds up


@dataclass(frozen=True, eq=False)
class Table:
    """A sum that finds the links as `begin` says, and leaves them as `end`."""

    begin: order.Fixed
    end: order.Fixed
    rows: Rows
    counted: Counters  # what it adds to those of the block
    host: HostCounters
    traffic: dict[tuple[Schedule, View], int]


@dataclass(eq=False)
class Summing(Making):
    """A sum's table in the making."""

    users: order.Users = field(default_factory=dict)  # who is on links, as the transfers so far have left it
    counted: Counters = field(default_factory=Counters)
    host: HostCounters = field(default_factory=HostCounters)
    traffic: dict[tuple[Schedule, View], int] = field(default_factory=dict)


def table_of(
    block: Cores, begin: order.Fixed, states: dict[Any, order.Fixed], parts: tuple[Part, ...], partial: np.ndarray,
    combine: Any,
) -> Table | None:  # fmt: skip
    """That finds links as `begin` says; None where a transfer is more than rows can do. `states` as in order.fixed."""
    making = Summing(block, partial.nbytes, users=order.thawed(begin))
    adds = ADDED.get(partial.dtype, 0) if combine is np.add else 0
    for channel, prepared, combines, works in parts:
        if prepared is None or not _transfer(making, channel, prepared, partial, combines, adds):
            return None
        for work in works:
            _spend(making, work)
    end = order.fixed(making.users, states)
    return Table(begin, end, making.done(), making.counted, making.host, making.traffic)


def _spend(making: Summing, work: Work) -> None:
    """software.do"""
    table = work.chosen.table
    making.row(rows.STEPS, 0, making.at(table), len(table), 0, 0, 0, 0, work.cycles, float(work.stages))
    count_work(making, work)


def count_work(making: Summing, work: Work) -> None:
    """What it adds to the counters."""
    if work.stages:
        touched = work.operations * work.chosen.count
        making.counted.stages += work.chosen.count
        making.counted.adds += touched
        making.counted.operand_bytes += touched * work.operand_bytes


def _transfer(
    making: Summing, channel: Channel, prepared: Prepared, partial: np.ndarray, combines: bool, adds: int
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
    landing = new_landing(block, lane)
    if landing.memory.nbytes > KEPT or any(part.message < 0 for part in schedule.parts):
        return False
    making.kept += [lane, landing]
    sent = rows.go_along(making, lane, strides_of(block, lane).at_once, landing.address, passage)
    for part in schedule.parts:
        packets = lane.received[part.message]
        if combines and not adds:
            making.stops[len(making.rows)] = rows.COMBINE, view, part.to, packets.tiles, part.source
            making.row(rows.COMBINE)
            continue
        for number in rows.numbers_of(part.source, rows.packets_of(packets)):
            at = rows.tile_of(making, packets, number)
            if combines:
                making.row(rows.ADD, 0, at, making.tile // adds, 0, adds)
            else:
                making.row(rows.COPY_TILE, 0, at, making.tile, 0, rows.OWN_TO)
    rows.wait_for(making, sent)
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


def _begin_use(making: Summing, channel: Channel, prepared: Prepared) -> bool:
    """order.begin_use, as it will be each time; the rows are of what it does to links."""
    block, users = making.block, making.users
    unseen = users.get(channel)
    if unseen is not None:
        use = id(prepared.schedule), id(prepared.views)
        now = None if unseen else order.before_use(block, prepared.schedule, prepared.views)
        length, before = order.rooms(channel, use, now)
        making.row(rows.KEEP, making.at(length), making.at(np.full(1, prepared.unwatched.busy)))
        for (_, free, _), kept in zip(_cells(making, prepared.schedule, prepared.views), before or (), strict=False):
            if free:
                making.row(rows.KEEP, making.at(kept), free)
        unseen[use] = prepared.schedule, prepared.views, length, before
        return False
    for other in order.give_way(users, channel):
        ended = users.pop(other)
        for schedule, views, busy, before in ended.values():
            since = None if before is None or len(ended) > 1 else before
            for number, (asked_at, free, idle) in enumerate(_cells(making, schedule, views)):
                if free:
                    at = 0 if since is None else making.at(since[number])
                    making.row(rows.END, asked_at, free, making.at(busy), 0, 0, idle, at)
    if prepared.whole:
        users[channel] = {}
    return True


def _cells(making: Summing, schedule: Any, views: Any) -> Iterator[tuple[int, int, int]]:
    """Of each of order._links: where asked_at, free and idle are, 0 where this core has no such link."""
    clock = making.block.clock
    for view in views:
        for way, cores, _ in schedule.crossings:
            crossed = len(rows.numbers_of(cores, view.length))
            arrays = clock.asked_at[way], clock.link_free[way], clock.idle[way]
            asked_at, free, idle = (making.at(array) if crossed else 0 for array in arrays)
            yield asked_at, free, idle
