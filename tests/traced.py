"""What the cores of a run do, written down for the reference fabric: sends, waits, work, stages and meetings.

One rank hosts all cores. Time that passes at a core between two calls of the fabric is work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from reference_fabric import Core, Routers

from meshrt.mesh import clock
from meshrt.mesh.block import Block
from meshrt.mesh.clock import TIME
from meshrt.mesh.wires import fabric, receiving, software
from meshrt.mesh.wires.routers import line_indices
from meshrt.mesh.wires.tables import Channel

Source = tuple[np.ndarray, int]  # a source's cores as a mask, and its colour


class Trace:
    """Operations by core, and the arrivals that the run itself found, by flight."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.todo: dict[Core, list[tuple[Any, ...]]] = {(x, y): [] for y, x in np.ndindex(*block.shape)}
        self.before = block.clock.state[TIME].copy()
        self.flights = 0
        self.meetings = 0
        self.tables: dict[Any, Routers] = {}
        self.ends: dict[int, np.ndarray] = {}  # bool [bh, bw]: who gets a packet of the flight

    def work(self) -> None:
        """Enter what the cores have done since the last call."""
        now = self.block.clock.state[TIME]
        for y, x in np.argwhere(now != self.before):
            self.todo[int(x), int(y)].append(("work", float(now[y, x] - self.before[y, x])))
        self.before = now.copy()

    def each(self, mask: np.ndarray, *operation: Any) -> None:
        for y, x in np.argwhere(mask):
            self.todo[int(x), int(y)].append(operation)

    def seen(self) -> None:
        """What has happened to the clocks is no work."""
        self.before = self.block.clock.state[TIME].copy()

    def routers(self) -> Routers:
        """The tables as they are now."""
        tables = self.block.tables
        key = tables.enters.tobytes(), tables.leaves.tobytes()
        if key not in self.tables:
            made: Routers = {core: {} for core in self.todo}
            for colour, y, x in np.argwhere(tables.enters):
                enters, leaves = (
                    frozenset(port for port in range(5) if table[colour, y, x] >> port & 1)
                    for table in (tables.enters, tables.leaves)
                )
                made[int(x), int(y)][int(colour)] = enters, leaves
            self.tables[key] = made
        return self.tables[key]

    def cores(self, channel: Channel, positions: np.ndarray | None, lines: np.ndarray | None) -> Iterator[Source]:
        """For each source of the channel that is chosen: (its cores as a mask, colour)."""
        for source, colour in zip(channel.sources.tolist(), channel.colours.tolist(), strict=True):
            if positions is None or positions[source]:
                yield self.mask(channel, np.arange(channel.length) == source, lines), colour

    def mask(self, channel: Channel, positions: np.ndarray, lines: np.ndarray | None) -> np.ndarray:
        """These positions of the channel's lines, as bool [bh, bw]."""
        if channel.axis is None:
            return positions.reshape(self.block.shape)
        on = np.zeros(self.block.shape[0 if channel.axis == "x" else 1], bool)
        on[line_indices(self.block, channel)] = True
        if lines is not None:
            on &= lines
        return on[:, None] & positions if channel.axis == "x" else positions[:, None] & on


@contextmanager
def traced(block: Block) -> Iterator[Trace]:
    """Write down what the block's cores do inside."""
    trace = Trace(block)
    prepare, start, receive_all, receive_at = fabric.prepare, fabric._start, receiving.receive_all, receiving.receive_at
    meet, replay, do = clock.Clock.meet, fabric.replay, software.do
    kept: dict[int, tuple[Any, ...]] = {}  # of what is prepared: (itself, sources, bytes, cycles of a ramp, stream)
    numbers: dict[int, tuple[int, Any]] = {}  # of a flight's arrivals

    def prepare_(
        block: Block, channel: Channel, tiles: np.ndarray, positions: Any = None, lines: Any = None,
        stream: bool = False,
    ) -> fabric.Prepared:  # fmt: skip
        prepared = prepare(block, channel, tiles, positions, lines, stream)
        nbytes = int(np.prod(tiles.shape[2:], dtype=int)) * tiles.itemsize
        busy = block.device.busy_cycles(nbytes)
        keep = software.streaming_cycles(block, tiles) if stream else busy
        kept[id(prepared)] = prepared, list(trace.cores(channel, positions, lines)), nbytes, keep, stream
        return prepared

    def start_(block: Block, channel: Channel, prepared: fabric.Prepared, *rest: Any) -> Any:
        trace.work()
        trace.flights += 1
        _, sources, nbytes, keep, stream = kept[id(prepared)]
        for mask, colour in sources:
            trace.each(mask, "send", trace.flights, colour, nbytes, trace.routers(), keep, stream)
        arrivals = start(block, channel, prepared, *rest)
        for arrival in arrivals:
            numbers[id(arrival)] = trace.flights, arrival
        return arrivals

    def replay_(block: Block, lane: Any, *rest: Any) -> Any:
        result = replay(block, lane, *rest)
        if result[0] is None and lane.schedule.count:  # the cores have waited at once
            trace.each(ends(lane), "wait", trace.flights)
            trace.seen()
        return result

    def ends(lane: Any) -> np.ndarray:
        mask = np.zeros(block.shape, bool)
        cells = lane.view.of(mask)
        cells[:, lane.schedule.delivered] = True
        return mask

    def receive_all_(block: Block, flights: tuple[receiving.Flight, ...]) -> None:
        trace.work()
        for flight in flights:
            for arrival in flight.arrivals:
                trace.each(ends(arrival.lane), "wait", numbers[id(arrival)][0])
        receive_all(block, flights)
        trace.seen()

    def receive_at_(block: Block, channel: Channel, flight: receiving.Flight, positions: np.ndarray) -> None:
        trace.work()
        mask = trace.mask(channel, positions, np.ones(max(block.shape), bool)[: len_across(block, channel)])
        for arrival in flight.arrivals:
            trace.each(ends(arrival.lane) & mask, "wait", numbers[id(arrival)][0])
        receive_at(block, channel, flight, positions)
        trace.seen()

    def do_(block: Block, work: software.Work) -> None:
        if not work.stages:  # what passes is seen as work
            do(block, work)
            return
        trace.work()
        mask = np.zeros(block.shape, bool)
        for view in work.chosen.views:
            view.of(mask)[:, work.chosen.at] = True
        trace.each(mask, "stage", work.cycles)
        do(block, work)
        trace.seen()

    def meet_(self: clock.Clock, time: float, hops: int, stages: int) -> None:
        trace.work()
        trace.meetings += 1
        trace.each(np.ones(block.shape, bool), "meet", trace.meetings)
        meet(self, time, hops, stages)
        trace.seen()

    with (
        patch.object(fabric, "prepare", prepare_),
        patch.object(fabric, "_start", start_),
        patch.object(fabric, "replay", replay_),
        patch.object(receiving, "receive_all", receive_all_),
        patch.object(receiving, "receive_at", receive_at_),
        patch.object(software, "do", do_),
        patch.object(clock.Clock, "meet", meet_),
    ):
        yield trace
        trace.work()


def len_across(block: Block, channel: Channel) -> int:
    """Lines of the block across the channel's axis."""
    return block.shape[0 if channel.axis == "x" else 1]
