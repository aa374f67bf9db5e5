"""A lane for the compiled core: all that its packets do between messages, as tables of steps (steps.py).

The steps are those of replay.py and receiving.py, in the same order. Made at a lane's first use.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from struct import pack

import numpy as np

from meshrt.mesh.clock import HOPS, STAGES, TIME
from meshrt.mesh.cores import Cores
from meshrt.mesh.mesh import RAMP
from meshrt.mesh.wires import steps as kinds
from meshrt.mesh.wires.lane import HEADER, Lane, MessageBuffer, Run, RunTick
from meshrt.mesh.wires.lines import Index
from meshrt.mesh.wires.schedule import BatchTick, Message
from meshrt.mesh.wires.steps import EVERYWHERE, Addresses, Cells, Step
from meshrt.records import dataclass

Stretch = tuple[bytes, RunTick | None]  # steps, and the tick whose messages are sent and received then


@dataclass(frozen=True, eq=False)
class Strides:
    """Tables of a lane. What they have the addresses of lives as long: `addresses` has the arrays."""

    stretches: list[Stretch]
    serves: bytes  # the ramps are given out, for a transfer that is alone
    late: bytes  # does any core have to wait for what landed?
    paths: bytes  # Arrival.take_path
    takes_over: bytes  # those cores go on from then, by the packets' paths
    places: bytes  # where each core of the block has its packet in a landing, see `_places`
    addresses: Addresses

    @cached_property
    def waits(self) -> bytes:
        """All of that, for a transfer that is alone."""
        return self.serves + self.late + self.paths + self.takes_over

    @cached_property
    def at_once(self) -> list[Stretch]:
        """The stretches, and the same behind the last."""
        *before, (steps, tick) = self.stretches
        return [*before, (steps + self.waits, tick)]


def strides_of(block: Cores, lane: Lane) -> Strides:
    """Made once for all lanes of a schedule on a view whose headers are in the same places: tiles may differ."""
    if not lane.strides:
        ticks = [tick for run in lane.runs for tick in run.ticks if tick.sends or tick.recvs]
        messages = [message for tick in ticks for message in (*tick.sends, *tick.recvs)]
        key = Strides, lane.view, *(block.core.address(message.spec[0]) for message in messages)
        made: Strides | None = lane.schedule.cache.get(key)
        if made is None:
            made = lane.schedule.cache[key] = _strides(block, lane)
        else:
            stretches = zip((steps for steps, _ in made.stretches), [*ticks, None], strict=True)
            made = replace(made, stretches=list(stretches))
        lane.strides.append(made)
    strides: Strides = lane.strides[0]
    return strides


def ramps_of(block: Cores) -> bytes:
    """The ramps of the block as core.c has them, made once: where free, asked_at and idle are, and its sides."""
    tables, clock = block.clock.tables, block.clock
    if "ramps" not in tables:
        arrays = clock.ramp_in, clock.asked_at[RAMP], clock.idle[RAMP]
        cells = [number for array in arrays for number in (block.core.address(array), *array.strides)]
        tables["ramps"] = np.array([*cells, *block.shape]).tobytes()
    return tables["ramps"]


def _strides(block: Cores, lane: Lane) -> Strides:
    view, schedule, at = lane.view, lane.schedule, lane.schedule.delivered
    size = HEADER * schedule.count * view.count
    memory = np.empty(size, np.uint8)  # as a landing's, but never written to
    landed = list(view.new((3,), schedule.count, (), np.float64, memory))
    addresses = Addresses(block.core, block.core.address(memory), size)
    state = list(view.of(block.clock.state, 1))
    received = [list(buffer.header) for buffer in lane.received]
    stretches, steps = list[Stretch](), list[Step]()
    for run in lane.runs:
        steps += _leave(run)
        links = _links(block, run)
        times = landed[TIME][run.lines]
        for tick, moved in zip(run.batch.ticks, run.ticks, strict=True):
            steps += _move(run, tick, links)
            for message, buffer in zip(tick.sends, moved.sends, strict=True):
                steps += _load(run, message, buffer, state, received)
            if moved.sends or moved.recvs:
                stretches.append((addresses.table(steps), moved))
                steps = []
            for message, buffer in zip(tick.recvs, moved.recvs, strict=True):
                steps.append(Step(kinds.COPY, [(run.time, message.slots), (buffer.time, EVERYWHERE)]))
            for slots, _, number in tick.deliveries:
                steps.append(Step(kinds.LAND, [(times, number), (run.time, slots)]))
    stretches.append((addresses.table(steps), None))
    cores: list[Cells] = [(state[row], at) for row in (TIME, HOPS, STAGES)]
    packets: list[Cells] = [(landed[row], EVERYWHERE) for row in (TIME, HOPS, STAGES)]
    paths = addresses.table(_paths(lane, landed, state, received))
    late = addresses.table([Step(kinds.ANY_LATE, cores + packets)])
    takes_over = late and pack("q", kinds.TAKE_OVER) + late[8:]  # over the same cells
    ramps = [view.of(array) for array in (block.clock.ramp_in, block.clock.asked_at[RAMP], block.clock.idle[RAMP])]
    serves = addresses.table([Step(kinds.SERVE, [(landed[TIME], EVERYWHERE), *((ramp, at) for ramp in ramps)])])
    places = _places(block, lane, landed[TIME], addresses)
    addresses.close()
    return Strides(stretches, serves, late, paths, takes_over, places, addresses)


def _leave(run: Run) -> Iterator[Step]:
    for slots, at in run.batch.sources:
        yield Step(kinds.LEAVE, [(run.time, slots), (run.cores, at), (run.ramp_out, at)])


def _links(block: Cores, run: Run) -> dict[int, list[np.ndarray]]:
    """Of the links out of each port that is used: free, asked_at, idle, and what they take longer past defects."""
    clock, used = block.clock, {way for tick in run.batch.ticks for way, *_ in tick.moves}
    arrays = [clock.link_free, clock.asked_at, clock.idle, *([] if clock.late is None else [clock.late])]
    return {way: [run.view.of(array[way]) for array in arrays] for way in used}


def _move(run: Run, tick: BatchTick, links: dict[int, list[np.ndarray]]) -> Iterator[Step]:
    for parents, copies in tick.branches:
        yield Step(kinds.COPY, [(run.time, copies), (run.time, parents)])
    for way, slots, at in tick.moves:
        yield Step(kinds.MOVE, [(run.time, slots), *((link, at) for link in links[way])])


def _load(
    run: Run, message: Message, buffer: MessageBuffer, state: list[np.ndarray], received: list[list[np.ndarray]]
) -> Iterator[Step]:
    yield Step(kinds.COPY, [(buffer.time, EVERYWHERE), (run.time, message.slots)])
    for part in message.parts:
        source = state if part.message < 0 else received[part.message]
        for row in (HOPS, STAGES):
            yield Step(kinds.COPY, [(buffer.header[row], part.to), (source[row], part.source)])


def _paths(
    lane: Lane, landed: list[np.ndarray], state: list[np.ndarray], received: list[list[np.ndarray]]
) -> Iterator[Step]:
    for part in lane.schedule.parts:
        source = state if part.message < 0 else received[part.message]
        hops = np.atleast_2d(np.asarray(part.hops, np.float64))
        to, of = part.delivered, part.source
        cells: list[Cells] = [(landed[HOPS], to), (source[HOPS], of), (hops, EVERYWHERE)]
        yield Step(kinds.PATH, [*cells, (landed[STAGES], to), (source[STAGES], of)])


def _places(block: Cores, lane: Lane, landed: np.ndarray, addresses: Addresses) -> bytes:
    """As core.c has it: the addresses of tables of places by y and by x, and how far apart places are, int64 [5]."""
    view, (height, width) = lane.view, block.shape
    number = _numbered(block, view.length, lane.schedule.delivered)
    line = number if view.axis is None else _numbered(block, height if view.axis == "x" else width, view.lines)
    by_line, by_number = addresses.of(line), addresses.of(number)
    line_step, number_step = landed.strides
    if view.axis is None:
        places = [0, by_number, 0, number_step, width]
    elif view.axis == "y":
        places = [by_number, by_line, number_step, line_step, 0]
    else:
        places = [by_line, by_number, line_step, number_step, 0]
    return np.array(places).tobytes()


def _numbered(block: Cores, size: int, chosen: Index) -> np.ndarray:
    """The number of each of so many positions among the chosen ones, -1 for the others; one array for all that ask."""
    key = size, (chosen.start, chosen.stop, chosen.step) if isinstance(chosen, slice) else chosen.tobytes()
    numbers = block.clock.numbered.get(key)
    if numbers is None:
        numbers = block.clock.numbered[key] = np.full(size, -1)
        numbers[chosen] = np.arange(len(numbers[chosen]))
    return numbers
