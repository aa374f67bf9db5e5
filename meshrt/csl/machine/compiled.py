"""A wafer's events in the compiled machine (native/), with the same bits as in Python, which is the definition.

The state goes over as arrays and comes back when nothing happens any more. Where the machine gives up (something is not
there, or is wrong), memory is put back and Python runs from the same state: it says what is wrong.
MESHRT_CORE=numpy does without.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from meshrt.csl.costs import LANES
from meshrt.csl.errors import NoRoute
from meshrt.csl.machine.banks import RULED
from meshrt.csl.machine.lowered import KIND, KIND_OF, VALUE, Lowered, Missing
from meshrt.csl.machine.lowering import write
from meshrt.csl.machine.router import RAMP
from meshrt.csl.machine.state import COLORS, TASKS, WaferState
from meshrt.csl.machine.vectors import Dsr
from meshrt.mesh.wires.core import chosen

try:
    from meshrt.csl import _machine
except ImportError:
    _machine = None  # type: ignore[assignment]  # it was not built


def machine_of(wafer: Any) -> CompiledMachine | None:
    """The machine for a wafer, None where Python is to run it. UsageError."""
    if _machine is None or chosen() is None or wafer.random is not None:
        return None
    for (_, _, color), entry in wafer.routes.items():
        if len(entry.positions) > 1 or entry.filter is not None or entry.changes or entry.torn or color >= COLORS:
            return None
    images = list({id(image): image for _, image in sorted(wafer.program.tiles.items())}.values())
    for image in images:
        numbers = {*image.tasks, *image.active, *image.blocked}
        if image.fifos or image.from_host or image.to_host or image.teardown or max(numbers, default=0) >= TASKS:
            return None
        if "control" in image.kinds.values() or max(image.inputs.values(), default=0) >= COLORS:
            return None
    return CompiledMachine(wafer, images)


class CompiledMachine:
    """A program's functions as the machine has them, and where its wavelets go."""

    def __init__(self, wafer: Any, images: list[Any]):
        self.lowered = Lowered()
        self.cores = list(wafer.cores.values())
        self.number = {id(core): at for at, core in enumerate(self.cores)}
        self.image = {id(image): at for at, image in enumerate(images)}
        self.objects = max(len(image.objects) for image in images) or 1
        self.touched = max(image.used for image in images)
        self.rows: dict[Any, Any] = {}  # (image, value) -> as the machine has it, and the value, which keeps its id
        self.image_rows = np.array([self._image(wafer, image) for image in images], np.int64)
        write(self.lowered)
        block = wafer.block
        read = [] if block is None else [key for key, ranks in block.readers.items() if block.comm.rank in ranks]
        owners = {core.number: getattr(core, "rank", 0) for core in wafer.coded.values()}
        self.far = [(key, owners[key[0]]) for key in read]
        self.paths, self.ends = self._paths(wafer)
        self.block = wafer.block
        self.ranks = self.block.comm.size if self.block is not None and self.block.apart else 0
        self.others = self._others(wafer)

    def _others(self, wafer: Any) -> list[Any]:
        """[core, colour, rank] of rooms elsewhere that cores here send to; the number here of every core, or -1;
        [core, colour, ranks, where they begin] of rooms here that others read; [rank, the room's number there].
        """
        number_here = np.full(len(wafer.coded), -1, np.int64)
        for at, core in enumerate(self.cores):
            number_here[core.number] = at
        rooms: list[list[int]] = []
        readers: list[list[int]] = []
        numbers = [0] * self.ranks
        for (core, color), ranks in ({} if self.block is None else self.block.readers).items():
            if number_here[core] >= 0:
                rooms.append([int(number_here[core]), color, len(ranks), len(readers)])
                readers += [[rank, numbers[rank]] for rank in ranks]
            for rank in ranks:
                numbers[rank] += 1
        far = [[core, color, rank] for (core, color), rank in self.far]
        return [
            np.array(rows, np.int64).reshape(-1, columns) if columns else number_here
            for rows, columns in ((far, 3), (None, 0), (rooms, 4), (readers, 2))
        ]

    def _image(self, wafer: Any, image: Any) -> list[int]:
        tasks, data, kinds = [-1] * TASKS, [-1] * COLORS, [[-1] * 3 for _ in range(TASKS)]
        for number in image.tasks:
            _, python, dtypes = wafer.task(image, number)
            tasks[number] = self.lowered.function(image, python.__name__)
            for at, dtype in enumerate(dtypes[:3]):
                kinds[number][at] = KIND_OF[dtype.type]
        for number, kind in image.kinds.items():
            if kind == "data":
                data[number if image.arch == "wse2" else image.inputs.get(number, number)] = number
        for kind, index in image.dsrs:
            self.lowered.register(Dsr(kind, index))
        return [*tasks, LANES, image.arch in RULED, *data, *(kind for row in kinds for kind in row)]

    def _paths(self, wafer: Any) -> tuple[Any, Any]:
        """[core, colour, routers, hops, ends, where these begin] of what a core may send on; the ends."""
        paths: list[list[int]] = []
        ends: list[int] = []
        far = {key: at for at, (key, _) in enumerate(self.far)}
        for (x, y, color), entry in wafer.routes.items():
            core = wafer.cores.get((x, y))
            if core is None or RAMP not in entry.rx:
                continue
            try:
                path = wafer.path(x, y, color)
            except NoRoute:
                continue  # Python says so, if it is used
            if path.held is None:
                paths.append([self.number[id(core)], color, len(path.routers), path.hops, len(path.cores), len(ends)])
                for end, hops, end_color in path.cores:
                    exact = wafer.routes[end.x, end.y, end_color].exact
                    ends += [self.number.get(id(end), -1), hops, end_color, int(exact),
                             far.get((end.number, end_color), 0)]  # fmt: skip
        return np.array(paths, np.int64).reshape(-1, 6), np.array([*ends, 0], np.int64)

    def row(self, value: Any, image: Any) -> Any:
        """A value as the machine has it; as nothing what it does not know."""
        key = (id(image), id(value))
        entry = self.rows.get(key)
        if entry is None:
            try:
                row = self.lowered.row(value, image)
            except Missing:
                row = np.zeros(VALUE, np.int64)
                row[0] = KIND["nothing"]
            entry = self.rows[key] = (row, value)
        return entry[0]

    def settle(self, wafer: Any) -> bool:
        """Go on until nothing happens any more; False, and nothing has happened, where Python has to do it."""
        state = None
        if not any(core.running or core.pending or any(core.arrived.values()) for core in self.cores):
            with suppress(Missing, KeyError):
                state = WaferState(self, wafer)
        if not self._agree(state is not None):
            return False
        assert state is not None
        kept = wafer.memory[:, : self.touched].copy()
        exchange = None if self.block is None else self.block.exchange
        done = self._agree(_machine.settle(state.native, exchange, *state.arrays(wafer)))
        touched = int(state.counts[4])
        if done:
            state.give_back(wafer)
            self.touched = touched
            return True
        wafer.memory[:, : self.touched] = kept
        wafer.memory[:, self.touched : touched] = 0
        return False

    def _agree(self, holds: Any) -> bool:
        return bool(holds) if self.block is None else self.block.agree(holds)
