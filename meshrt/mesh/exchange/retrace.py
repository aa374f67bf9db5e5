"""An exchange gone through again, hop by hop, from the clocks that it began with: what led to each core's last time.

For a run that is traced. The hops are those of itinerary.py, and times those of convoy.py and porter.py: each is one
sum or one maximum of the same numbers in the same order, so they end with the same bits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import zip_longest
from typing import Any

import numpy as np

from meshrt.mesh.clock import LINK_FREE, RAMP_IN, RAMP_OUT, TIME
from meshrt.mesh.device import Device
from meshrt.mesh.exchange.itinerary import Itinerary
from meshrt.mesh.exchange.legs import REQUEST_BYTES, Transfer, ways
from meshrt.records import dataclass


@dataclass(frozen=True, eq=False)
class Begun:
    """An exchange: its number among the transfers of a run, the clock's cells [9, cores] before it, its transfers.

    `parts`: (axis, owners, asks, bytes of a tile) of each.
    """

    number: int
    cells: np.ndarray
    parts: Sequence[tuple[str | None, np.ndarray, bool, int]]


@dataclass(frozen=True, eq=False)
class TimedHop:
    """A packet that software of core `source` sent at `ready`, and that had its link at `left`, as core number `core`.

    It came to the end of the link at `asked_at`, and was in at `came`. `behind`: what the core did before.
    """

    source: int
    core: int
    port: int
    nbytes: int
    busy: float
    ready: float
    left: float
    asked_at: float
    came: float
    behind: "Did | None"


@dataclass(frozen=True, eq=False)
class Did:
    """The clock of a core went on: from `begin` to `after` software worked on a packet.

    Before that it waited for the packet of a `hop`, or, where that is None, it went on from what it did before.
    """

    begin: float
    after: float
    hop: TimedHop | None
    before: "Did | None"


@dataclass(eq=False)
class Journal:
    """All hops in their order, and what each core did last, None: nothing."""

    hops: list[TimedHop] = field(default_factory=list)
    last: dict[int, Did] = field(default_factory=dict)


def begun(number: int, cells: np.ndarray, transfers: Sequence[Transfer]) -> Begun:
    """What has to be kept when an exchange begins."""
    parts = [
        (
            transfer.axis,
            np.asarray(transfer.owners),
            transfer.asks,
            int(np.prod(transfer.tiles.shape[2:], dtype=int)) * transfer.tiles.itemsize,
        )
        for transfer in transfers
    ]
    return Begun(number, cells[:, :-1].copy(), parts)


def journal(width: int, height: int, cells: np.ndarray, parts: Sequence[Any], device: Device) -> Journal:
    """Of a whole mesh of width x height cores; `cells` and `parts` as in `Begun`."""
    walk = _Walk(cells.tolist(), device)
    flights = [_Flight(walk, number, width, height, *part) for number, part in enumerate(parts)]
    for turns in zip_longest(*(flight.rounds() for flight in flights)):
        together = [(flight, turn) for flight, turn in zip(flights, turns, strict=True) if turn is not None]
        moved = [(flight, [flight.leave(*hop) for hop in turn]) for flight, turn in together]
        for flight, hops in moved:
            for hop in hops:
                flight.come(*hop)
    for flight in flights:
        flight.land()
    return walk.found


class _Walk:
    """Clocks of all cores, and what is found."""

    def __init__(self, cells: list[list[float]], device: Device) -> None:
        self.cells, self.device, self.found = cells, device, Journal()

    def goes_on(self, core: int, software: float, packet: TimedHop | None) -> float:
        """A core has a packet, and its software works on it: its time then."""
        now, before = self.cells[TIME][core], self.found.last.get(core)
        waits = packet is not None and packet.came > now
        start = packet.came if packet is not None and waits else now
        after = start + software
        if waits or software:
            self.found.last[core] = Did(start, after, packet if waits else None, before)
            self.cells[TIME][core] = after
        return after


class _Flight:
    """One transfer; along an axis, packets of a line are those of all others."""

    def __init__(
        self, walk: _Walk, number: int, width: int, height: int, axis: str | None, owners: np.ndarray, asks: bool,
        nbytes: int,
    ) -> None:  # fmt: skip
        self.walk, self.axis, self.size = walk, axis, (width, height)
        grid = {"x": (width, 1), "y": (1, height)}.get(axis or "", (width, height))
        self.legs, self.grid = ways(*grid, owners, asks), grid
        self.lines = range({"x": height, "y": width}.get(axis or "", 1))
        self.sizes = REQUEST_BYTES, nbytes
        self.busy = [walk.device.busy_cycles(size) for size in self.sizes]
        self.came: dict[tuple[int, int], TimedHop] = {}  # the last hop of each packet, by line

    def rounds(self) -> Iterator[list[tuple[int, int, int, int, bool, bool]]]:
        """The hops of each round: (port, core, the next, packet, bears a tile, software had it), in their order."""
        legs, nobody = self.legs, self.grid[0] * self.grid[1]
        for turn in Itinerary(*self.grid, legs):
            fresh = {*turn.fresh.tolist()}
            yield [
                (port, core, to, int(legs.packets[leg]), bool(legs.tiles[leg]), seat not in fresh)
                for port, span in enumerate(turn.spans)
                for seat, core, to, leg in zip(
                    range(span.start, span.stop), turn.before[span].tolist(), turn.after[span].tolist(),
                    turn.legs[span].tolist(), strict=True,
                )
                if core != nobody
            ]  # fmt: skip

    def _core(self, at: int, line: int) -> int:
        """A core of the transfer's own grid as one of the mesh."""
        return line * self.size[0] + at if self.axis == "x" else at * self.size[0] + line if self.axis == "y" else at

    def leave(self, port: int, at: int, to: int, packet: int, tile: bool, touched: bool) -> Any:
        """Packets of all lines leave a core by a port: those of `come`."""
        cells, device, busy = self.walk.cells, self.walk.device, self.busy[tile]
        moved = []
        for line in self.lines:
            core, had = self._core(at, line), self.came.get((packet, line))
            ready = self.walk.goes_on(core, device.beta if touched else 0.0, had)
            left = ready
            if any(self.busy):
                left = max(ready, cells[RAMP_OUT][core], cells[LINK_FREE + port][core])
                cells[RAMP_OUT][core] = cells[LINK_FREE + port][core] = left + busy
            moved.append((line, core, self._core(to, line), ready, left, self.walk.found.last.get(core)))
        return moved, port, packet, tile

    def come(self, moved: list[Any], port: int, packet: int, tile: bool) -> None:
        """They get to the next core, by its ramp."""
        cells, alpha, busy = self.walk.cells, self.walk.device.alpha, self.busy[tile]
        for line, core, to, ready, left, behind in moved:
            asked_at = came = left + alpha
            if any(self.busy):
                cells[RAMP_IN][to] = came = max(asked_at, cells[RAMP_IN][to]) + busy
            hop = TimedHop(core, to, port, self.sizes[tile], busy, ready, left, asked_at, came, behind)
            self.came[packet, line] = hop
            self.walk.found.hops.append(hop)

    def land(self) -> None:
        """The cores wait for their tiles."""
        for (packet, line), hop in self.came.items():
            assert hop.core == self._core(packet, line)
            self.walk.goes_on(hop.core, 0.0, hop)
