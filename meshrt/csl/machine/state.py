"""The state of a wafer's cores as arrays for the compiled machine (native/module.c), and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from meshrt.csl.costs import COSTS
from meshrt.csl.machine.lowered import KIND, TYPES, VALUE, Missing, option_row
from meshrt.csl.machine.lowering import write
from meshrt.csl.machine.operations import Options
from meshrt.csl.machine.trains import CausalChain
from meshrt.csl.machine.vectors import Dsr, Fab, Mem

TASKS, COLORS, FIELDS, ARGUMENTS = 128, 32, 22, 4  # as machine.h has them
RUN, POLL = 0, 1


class WaferState:
    """What a run begins with and ends with, as arrays."""

    def __init__(self, of: Any, wafer: Any):
        self.of, lowered, cores = of, of.lowered, of.cores
        count = len(cores)
        self.fields = np.zeros((count, FIELDS), np.int64)
        self.times = np.array([(core.t, core.counted_from, core.waited) for core in cores])
        self.blocked = np.zeros((count, TASKS), np.uint8)
        self.ready = np.full((count, TASKS), -1.0)
        self.sent = np.zeros((count, COLORS))
        for at, core in enumerate(cores):
            self._core(at, core)
        self.events = np.array(
            [self._event(event) for event in sorted(wafer.heap, key=lambda event: event[:5])], np.float64
        )
        write(lowered)
        for core in cores:
            for kind, index in core.dsrs:
                lowered.register(Dsr(kind, index))
        registers = max(1, len(lowered.registers))
        self.objects = np.zeros((count, of.objects, VALUE), np.int64)
        self.objects[..., 0] = KIND["nothing"]
        self.registers = np.zeros((count, registers, VALUE), np.int64)
        self.registers[..., 0] = KIND["nothing"]
        self.held = np.full((count, registers, 4), -1, np.int64)
        for at, core in enumerate(cores):
            for number, value in enumerate(core.o):
                self.objects[at, number] = of.row(value, core.image)
            for (kind, index), (value, how) in core.dsrs.items():
                register = lowered.registers[kind, index]
                self.registers[at, register] = of.row(value, core.image)
                self.held[at, register] = option_row(how)
        self.before = self.objects.copy(), self.registers.copy(), self.held.copy()
        # cores, bytes, objects, registers, bytes ever written to; events, wavelets, hops, longest path, time; ranks
        self.counts = np.array(
            [count, wafer.memory.shape[1], of.objects, registers, of.touched, 0, 0, 0, 0, 0, of.ranks], np.int64
        )
        self.exchange = np.zeros((8, 2), np.int64)

    def _core(self, at: int, core: Any) -> None:
        command = -1
        arguments: tuple[Any, ...] = ()
        if len(core.commands) > 1 or core.mapping:
            raise Missing
        if core.commands:
            function, arguments = core.commands[0]
            command = self.of.lowered.function(core.image, function.__name__)
            if len(arguments) > ARGUMENTS:
                raise Missing
        self.fields[at, :14] = (core.number, core.x, core.y, self.of.image[id(core.image)], core.open, core.operations,
                                core.taken, core.tasks_run, core.conflicts, core.scheduled, *core.chain, command,
                                len(arguments))  # fmt: skip
        for number, argument in enumerate(arguments):
            self.fields[at, 14 + 2 * number : 16 + 2 * number] = self.of.lowered.row(argument, core.image)[:2]
        for task in core.blocked:
            self.blocked[at, task] = 1
        for task, since in core.ready.items():
            self.ready[at, task] = since
        for color, until in core.sent.items():
            self.sent[at, color] = until

    def _event(self, event: Any) -> tuple[float, int, int]:
        time, number, by, _, _, do, _ = event
        core = do.__self__
        name = do.__name__
        if name not in ("run", "poll") or number != by:
            raise Missing
        return time, self.of.number[id(core)], RUN if name == "run" else POLL

    def native(self, number: int, core: int, count: int) -> bool:
        """A function of a library: its arguments and its result are in `exchange`. False where it cannot be called."""
        given = []
        for kind, bits in self.exchange[:count]:
            if kind >= len(TYPES):
                return False
            value = self._real(bits) if KIND["f16"] <= kind <= KIND["f32"] else int(bits)
            given.append(TYPES[int(kind)](value))
        lowered = self.of.lowered
        try:
            self.exchange[0] = lowered.row(lowered.natives[number](*given), self.of.cores[core].image)[:2]
        except (Missing, TypeError, ValueError, ArithmeticError):
            return False
        return True

    @staticmethod
    def _real(bits: Any) -> float:
        return float(np.int64(bits).view(np.float64))

    def arrays(self, wafer: Any) -> list[Any]:
        """In the order of native/module.c."""
        of = self.of.lowered
        constants = np.array(of.constants, np.int64) if of.constants else np.zeros((1, VALUE), np.int64)
        widths = (of.operations, 6), (of.options, 4), (of.functions, 3), (of.maps, 8)
        tables = [np.array([*rows, [0] * width], np.int64) for rows, width in widths]
        costs = [COSTS.ramp, COSTS.hop, COSTS.start, COSTS.start_fabric, COSTS.start_async, COSTS.map_start,
                 COSTS.map_step, COSTS.bank, COSTS.task, COSTS.queue]  # fmt: skip
        return [
            np.array(of.code, np.int32), constants, *tables, self.of.image_rows, np.array(costs, np.float64),
            self.fields, self.times, self.blocked, self.ready, self.sent, self.objects, self.registers, self.held,
            self.of.paths, self.of.ends, self.events, *self.of.others, wafer.memory, self.counts, self.exchange,
        ]  # fmt: skip

    def give_back(self, wafer: Any) -> None:
        """Everything to the cores."""
        cores, names = self.of.cores, {at: key for key, at in self.of.lowered.registers.items()}
        fields, times = self.fields.tolist(), self.times.tolist()
        for at, core in enumerate(cores):
            is_open, core.operations, core.taken, core.tasks_run, core.conflicts = fields[at][4:9]
            scheduled, hops, stages = fields[at][9:12]
            core.chain = CausalChain(hops, stages)
            core.open, core.scheduled = bool(is_open), bool(scheduled)
            core.t, core.counted_from, core.waited = times[at]
            core.causes.clear()
            core.commands.clear()
            core.ready.clear()
            core.sent.clear()
            core.flying.clear()
            core.blocked = set()
        for at, task in np.argwhere(self.blocked).tolist():
            cores[at].blocked.add(task)
        for at, task in np.argwhere(self.ready >= 0).tolist():
            cores[at].ready[task] = float(self.ready[at, task])
        for at, color in np.argwhere(self.sent > 0).tolist():
            cores[at].sent[color] = float(self.sent[at, color])
        objects, registers, held = self.before
        for at, number in np.argwhere((objects != self.objects).any(-1)).tolist():
            cores[at].o[number] = self._vector(self.objects[at, number])
        changed = (registers != self.registers).any(-1) | (held != self.held).any(-1)
        for at, register in np.argwhere(changed).tolist():
            cores[at].dsrs[names[register]] = (
                self._vector(self.registers[at, register]),
                options(self.held[at, register]),
            )
        wafer.heap.clear()
        wafer.rooms.clear()  # all is at rest: nothing is asked for, and nothing waits
        wafer.now = self._real(self.counts[9])
        counters = wafer.counters
        counters.events += int(self.counts[5])
        counters.wavelets += int(self.counts[6])
        counters.hops += int(self.counts[7])
        counters.most_hops = max(counters.most_hops, int(self.counts[8]))

    def _vector(self, row: Any) -> Mem | Fab:
        numbers = row[1:].view(np.int32).tolist()
        if numbers[0]:
            fabric: Fab = self.of.lowered.fabrics[numbers[2]]
            return fabric if fabric.extent == numbers[4] else replace(fabric, extent=numbers[4])
        axes, short = numbers[3], np.dtype(TYPES[numbers[12]]).str[1:]
        return Mem(numbers[2], numbers[1], tuple(numbers[4 : 4 + axes]), tuple(numbers[8 : 8 + axes]), short)


def options(row: Any) -> Options:
    is_async, activate, unblock, save = (int(number) for number in row)
    return Options(
        bool(is_async), None if activate < 0 else activate, None if unblock < 0 else unblock, None, bool(save)
    )
