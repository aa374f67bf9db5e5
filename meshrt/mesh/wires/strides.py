"""A lane for the compiled core: all that its packets do between messages, as tables of steps (steps.py).

The steps are those of replay.py and fabric.py, in the same order. Made at a lane's first use.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshrt.mesh.clock import HOPS, STAGES, TIME
from meshrt.mesh.cores import Cores
from meshrt.mesh.wires import steps as kinds
from meshrt.mesh.wires.lane import HEADER, Lane, MessageBuffer, Run, RunTick
from meshrt.mesh.wires.schedule import BatchTick, Message
from meshrt.mesh.wires.steps import EVERYWHERE, Cells, Step, address, table_of


@dataclass(frozen=True, eq=False)
class Stretch:
    """Steps, and the tick whose messages are sent and received then."""

    steps: np.ndarray
    tick: RunTick | None


@dataclass(frozen=True, eq=False)
class Strides:
    """Tables of a lane. What they have the addresses of lives as long: the clock's arrays, buffers of the lane and the
    clock, and `arrays`.
    """

    stretches: list[Stretch]
    paths: np.ndarray  # Arrival.take_path
    late: np.ndarray  # does any core have to wait for what landed?
    takes_over: np.ndarray  # these go on from then, by the packets' paths
    places: np.ndarray  # where each core of the block has its packet in a landing, see `_places`
    arrays: list[np.ndarray]


def strides_of(block: Cores, lane: Lane) -> Strides:
    """Made once for a lane."""
    if not lane.strides:
        lane.strides.append(_strides(block, lane))
    strides: Strides = lane.strides[0]
    return strides


def _strides(block: Cores, lane: Lane) -> Strides:
    view, schedule, at = lane.view, lane.schedule, lane.schedule.delivered
    size = HEADER * schedule.count * view.count
    memory = np.empty(size, np.uint8)  # as a landing's, but never written to
    landed = view.new((3,), schedule.count, (), np.float64, memory)
    state, arrays = view.of(block.clock.state, 1), list[np.ndarray]()
    stretches, steps = list[Stretch](), list[Step]()
    for run in lane.runs:
        steps += _leave(run)
        for tick, moved in zip(run.batch.ticks, run.ticks, strict=True):
            steps += _move(block, run, tick)
            for message, buffer in zip(tick.sends, moved.sends, strict=True):
                steps += _load(lane, run, message, buffer, state)
            if moved.sends or moved.recvs:
                stretches.append(Stretch(table_of(steps, memory, arrays), moved))
                steps = []
            for message, buffer in zip(tick.recvs, moved.recvs, strict=True):
                steps.append(Step(kinds.COPY, [(run.time, message.slots), (buffer.time, EVERYWHERE)]))
            for slots, _, number in tick.deliveries:
                steps.append(Step(kinds.LAND, [(landed[TIME][run.lines], number), (run.time, slots)]))
    stretches.append(Stretch(table_of(steps, memory, arrays), None))
    cores: list[Cells] = [(state[row], at) for row in (TIME, HOPS, STAGES)]
    packets: list[Cells] = [(landed[row], EVERYWHERE) for row in (TIME, HOPS, STAGES)]
    paths = table_of(_paths(lane, landed, state), memory, arrays)
    late, takes_over = (
        table_of([Step(kind, cores + packets)], memory, arrays) for kind in (kinds.ANY_LATE, kinds.TAKE_OVER)
    )
    return Strides(stretches, paths, late, takes_over, _places(block, lane, landed[TIME], arrays), arrays)


def _leave(run: Run) -> Iterator[Step]:
    for slots, at in run.batch.sources:
        yield Step(kinds.LEAVE, [(run.time, slots), (run.cores, at), (run.ramp_out, at)])


def _move(block: Cores, run: Run, tick: BatchTick) -> Iterator[Step]:
    clock, view = block.clock, run.view
    for parents, copies in tick.branches:
        yield Step(kinds.COPY, [(run.time, copies), (run.time, parents)])
    for way, slots, at in tick.moves:
        links: list[Cells] = [(view.of(array[way]), at) for array in (clock.link_free, clock.asked_at, clock.idle)]
        late: list[Cells] = [] if clock.late is None else [(view.of(clock.late[way]), at)]
        yield Step(kinds.MOVE, [(run.time, slots), *links, *late])


def _load(lane: Lane, run: Run, message: Message, buffer: MessageBuffer, state: np.ndarray) -> Iterator[Step]:
    yield Step(kinds.COPY, [(buffer.time, EVERYWHERE), (run.time, message.slots)])
    for part in message.parts:
        source = state if part.message < 0 else lane.received[part.message].header
        for row in (HOPS, STAGES):
            yield Step(kinds.COPY, [(buffer.header[row], part.to), (source[row], part.source)])


def _paths(lane: Lane, landed: np.ndarray, state: np.ndarray) -> Iterator[Step]:
    for part in lane.schedule.parts:
        source = state if part.message < 0 else lane.received[part.message].header
        hops = np.atleast_2d(np.asarray(part.hops, np.float64))
        packets: list[tuple[Cells, Cells]] = [
            ((landed[row], part.delivered), (source[row], part.source)) for row in (HOPS, STAGES)
        ]
        yield Step(kinds.ADD, [*packets[0], (hops, EVERYWHERE)])
        yield Step(kinds.LAND, packets[1])


def _places(block: Cores, lane: Lane, landed: np.ndarray, arrays: list[np.ndarray]) -> np.ndarray:
    """As core.c has it: the addresses of tables of places by y and by x, and how far apart places are, int64 [5]."""
    view, (height, width) = lane.view, block.shape
    line, number = (np.full(size, -1) for size in (height if view.axis == "x" else width, view.length))
    if view.axis is not None:
        line[view.lines] = np.arange(view.count)
    number[lane.schedule.delivered] = np.arange(lane.schedule.count)
    arrays += [line, number]
    by_line, by_number = address(line), address(number)
    line_step, number_step = landed.strides
    if view.axis is None:
        return np.array([0, by_number, 0, number_step, width])
    if view.axis == "y":
        return np.array([by_number, by_line, number_step, line_step, 0])
    return np.array([by_line, by_number, line_step, number_step, 0])
