"""The rows (rows.py) of a sum on a block of many cores, by shape: strip of lines after strip, each from the first
transfer to the last.

Lines have nothing to do with each other. Those of a strip have their clocks and links in a processor's own cache until
all of the sum is done, where a transfer over all lines would bring them in anew.
"""

from collections.abc import Iterator
from dataclasses import field
from typing import Any

import numpy as np

from meshrt.mesh.clock import STAGES, TIME
from meshrt.mesh.cores import Cores
from meshrt.mesh.wires import order, rows, steps
from meshrt.mesh.wires.fabric import Prepared
from meshrt.mesh.wires.heads import Passage
from meshrt.mesh.wires.lane import HEADER, lane_of
from meshrt.mesh.wires.lines import View
from meshrt.mesh.wires.schedule import Schedule
from meshrt.mesh.wires.software import Work
from meshrt.mesh.wires.steps import EVERYWHERE, Addresses, Step
from meshrt.mesh.wires.strides import strides_of
from meshrt.mesh.wires.sumtables import Part, Summing, Table, count_work
from meshrt.mesh.wires.tables import Channel
from meshrt.records import dataclass

CACHED = 4 << 20  # bytes of clocks and links that a strip has at most, if it has more than a line
CORE = 19 * 8  # bytes of a core's clocks and links


@dataclass(eq=False)
class SumTransfer:
    """What a transfer and the software behind it do on any strip."""

    begins: list[tuple[int, list[Any]]] = field(default_factory=list)  # to links: kind of step, cells as in `_cells`
    moves: tuple[Schedule, Passage] | None = None
    works: tuple[Work, ...] = ()


@dataclass(eq=False)
class StripSums(Summing):
    """A sum's table in the making."""

    transfers: list[SumTransfer] = field(default_factory=list)
    lasted: dict[int, tuple[np.ndarray, float]] = field(default_factory=dict)  # uses that begin here: (room, how long)
    befores: list[np.ndarray] = field(default_factory=list)  # arrays [lines, links] of when links were free before


def strips_of(
    block: Cores, begin: order.Fixed, states: dict[Any, order.Fixed], strips: dict[Any, Any], parts: tuple[Part, ...],
    partial: np.ndarray,
) -> Table | None:  # fmt: skip
    """As sumtables.table_of; None where lines differ from transfer to transfer, or a message goes to another rank.
    `strips` has those of before.
    """
    making = StripSums(block, partial.nbytes, users=order.thawed(begin))
    views = [view for _, prepared, _, _ in parts if prepared is not None for view in prepared.views]
    views += [view for *_, works in parts for work in works for view in work.chosen.views]
    if not views or not all(_alike(view, views[0]) for view in views):
        return None
    for channel, prepared, _, works in parts:
        if prepared is None or not _transfer(making, channel, prepared, partial, views[0]):
            return None
        making.transfers[-1].works = works
        for work in works:
            count_work(making, work)
    cut = strips.setdefault(_name(views[0]), views[0].strips(_lines(views[0])))
    _write(making, views[0], cut, partial)
    end = order.fixed(making.users, states)
    return Table(begin, end, making.done(), making.counted, making.host, making.traffic)


def _alike(view: View, other: View) -> bool:
    return _name(view) == _name(other)


def _name(view: View) -> tuple[Any, ...]:
    return view.axis, view.lines.start, view.lines.stop, view.lines.step, view.count, view.length


def _lines(view: View) -> int:
    """Of a strip. Lines along y lie side by side: all of them at once are as near as they can be."""
    return view.count if view.axis != "x" else max(1, CACHED // (CORE * view.length))


def _transfer(making: StripSums, channel: Channel, prepared: Prepared, partial: np.ndarray, view: View) -> bool:
    """One more of them; False where it is more than rows can do."""
    schedule, passage, transfer = prepared.schedule, prepared.unwatched, SumTransfer()
    making.transfers.append(transfer)
    if len(prepared.views) != 1 or any(batch.messages for batch in schedule.batches):
        return False
    if passage.busy:
        if schedule.meets or schedule.whole_block or channel.axis is None or not prepared.apart:
            return False
        begins = _begin_use(making, channel, prepared, view)
        if begins is None:
            return False
        watched, transfer.begins = begins
        passage = prepared.watched if watched else passage
    if schedule.idle:
        return True
    transfer.moves = schedule, passage
    lane = lane_of(making.block, schedule, prepared.views[0], partial.shape[2:], partial.dtype)
    counted, use = making.counted, (schedule, prepared.views[0])
    counted.messages += schedule.sent * view.count
    counted.hops += schedule.hops * view.count
    counted.wafer_hops += lane.wafer_hops
    counted.max_hops = max(counted.max_hops, schedule.longest)
    making.traffic[use] = making.traffic.get(use, 0) + prepared.nbytes
    return True


def _begin_use(
    making: StripSums, channel: Channel, prepared: Prepared, view: View
) -> tuple[bool, list[tuple[int, list[Any]]]] | None:
    """order.begin_use, as it will be each time: are heads watched, and what is done to links. None where others were on
    the links of other lines.
    """
    users, begins = making.users, list[tuple[int, list[Any]]]()
    clock, unseen = making.block.clock, users.get(channel)
    if unseen is not None:
        use = id(prepared.schedule), id(prepared.views)
        now = None if unseen else order.before_use(making.block, prepared.schedule, prepared.views)
        room, before = order.rooms(channel, use, now)
        making.lasted[id(room)] = room, prepared.unwatched.busy
        for (way, cores, _), kept in zip(prepared.schedule.crossings, before or (), strict=False):
            begins.append((steps.COPY, [kept, (clock.link_free[way], cores)]))
            making.befores.append(kept)
        unseen[use] = prepared.schedule, prepared.views, room, before
        return False, begins
    for other in order.give_way(users, channel):
        ended = users.pop(other)
        for schedule, views, busy, before in ended.values():
            if len(views) != 1 or not _alike(views[0], view):
                return None
            since = None if before is None or len(ended) > 1 else before
            for number, (way, cores, _) in enumerate(schedule.crossings):
                links = [(array[way], cores) for array in (clock.asked_at, clock.link_free, clock.idle)]
                _, length = making.lasted.get(id(busy), (None, busy))
                begins.append((steps.END, [*links, length, *([] if since is None else [since[number]])]))
                making.befores += [] if since is None else [since[number]]
    if prepared.whole:
        users[channel] = {}
    return True, begins


def _write(making: StripSums, view: View, strips: list[tuple[slice, View]], partial: np.ndarray) -> None:
    """The rows of all strips. Those of as many lines as the first are its rows, with other addresses."""
    sizes = [transfer.moves[0].count for transfer in making.transfers if transfer.moves is not None]
    landing = making.at(np.empty(HEADER * max(sizes, default=0) * strips[0][1].count, np.uint8))
    snapshots = dict[int, np.ndarray]()
    for transfer in making.transfers:  # how long uses of before took, which this sum may write over
        for kind, cells in transfer.begins:
            if kind == steps.END and isinstance(cells[3], np.ndarray) and id(cells[3]) not in snapshots:
                snapshots[id(cells[3])] = np.empty(1)
                making.row(rows.KEEP, making.at(snapshots[id(cells[3])]), making.at(cells[3]))
    first = [*_rows(making, *strips[0], partial, snapshots)]
    steps_on = [_by_line(making, view, table) for table, *_ in first]
    for number, (chosen, strip) in enumerate(strips):
        its, lines = first, number * strips[0][1].count
        if strip.count < strips[0][1].count:
            its, lines = [*_rows(making, chosen, strip, partial, snapshots)], 0
        for (table, watch, *pace), step in zip(its, steps_on, strict=True):
            moved = (table + lines * step).tobytes()
            making.row(rows.STEPS, landing, making.at(moved), len(moved), 0, watch, 0, 0, *pace)
    for room, busy in making.lasted.values():
        making.row(rows.KEEP, making.at(room), making.at(np.full(1, busy)))


def _by_line(making: StripSums, view: View, table: np.ndarray) -> np.ndarray:
    """By how much the numbers of a table are larger for each line that a strip begins later."""
    clock, step = making.block.clock, np.zeros_like(table)
    of_block = [clock.cells, clock.asked_at, clock.idle, *([] if clock.late is None else [clock.late])]
    by_line = view.of(clock.state[TIME]).strides[0]
    arrays = [(array, by_line) for array in of_block] + [(array, array.strides[0]) for array in making.befores]
    begins, by = table[:, 3::5], step[:, 3::5]  # of each of a step's arrays
    for array, distance in arrays:
        low, high = (making.block.core.address(part) for part in (array.reshape(-1)[:1], array.reshape(-1)[-1:]))
        by[(begins >= low) & (begins <= high)] = distance
    return step


def _rows(
    making: StripSums, chosen: slice, strip: View, partial: np.ndarray, snapshots: dict[int, np.ndarray]
) -> Iterator[tuple[Any, ...]]:  # fmt: skip
    """Of a strip: (table of steps, whether heads are watched, busy, alpha, taking, tail)."""
    block, state = making.block, strip.of(making.block.clock.state, 1)
    for transfer in making.transfers:
        addresses = Addresses(block.core)
        begins = [Step(kind, [*_cells(cells, chosen, strip, snapshots)]) for kind, cells in transfer.begins]
        yield _table(addresses.table(begins)), 0, 0.0, 0.0, 0.0, 0.0
        if transfer.moves is not None:
            schedule, passage = transfer.moves
            lane = lane_of(block, schedule, strip, partial.shape[2:], partial.dtype)
            making.kept.append(lane)
            ((table, _),) = strides_of(block, lane).at_once
            yield _table(table), passage.watch, passage.busy, block.device.alpha, passage.taking, passage.tail
        for work in transfer.works:
            spent = Step(steps.SPEND, [(state[TIME], work.chosen.at), (state[STAGES], work.chosen.at)])
            yield _table(addresses.table([spent])), 0, work.cycles, float(work.stages), 0.0, 0.0
        addresses.close()
        making.kept.append(addresses)


def _table(table: bytes) -> np.ndarray:
    return np.frombuffer(table, np.int64).reshape(-1, steps.ROW.size // 8)


def _cells(cells: list[Any], chosen: slice, strip: View, snapshots: dict[int, np.ndarray]) -> Iterator[steps.Cells]:
    """On the lines of a strip: arrays of the block with positions; arrays of all lines; numbers, the same for all."""
    shape = (0, 0)
    for cell in cells:
        if isinstance(cell, tuple):
            array, index = cell
            yield strip.of(array), index
            shape = strip.count, len(np.arange(strip.length)[index])
        elif isinstance(cell, np.ndarray) and id(cell) not in snapshots:
            yield cell[chosen], EVERYWHERE
        else:
            number = snapshots[id(cell)] if isinstance(cell, np.ndarray) else np.full(1, cell)
            yield np.broadcast_to(number, shape), EVERYWHERE
