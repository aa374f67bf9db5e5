"""<collectives_2d>: collectives along a row or a column, from the public page; colours, routes and order are our own.

Data go along the line from neighbour to neighbour, away from the root or toward it. A core sends on the colour of its
own parity, so that it may pass on while it receives. A core opens its router's entry when it comes to the collective;
what comes before waits at the neighbour.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshrt.csl import origin
from meshrt.csl.costs import COSTS
from meshrt.csl.errors import SourceLocation
from meshrt.csl.language.conversions import code, coerce
from meshrt.csl.language.scope import Scope
from meshrt.csl.language.tilebuiltins import task_number
from meshrt.csl.language.types import STRUCT, TYPES, U16, VOID
from meshrt.csl.language.values import Library, Val
from meshrt.csl.libraries.system import native
from meshrt.csl.machine.operations import OPERATIONS, Options
from meshrt.csl.machine.pending import PendingOperation, compute, note
from meshrt.csl.machine.router import EAST, NORTH, RAMP, SOUTH, WEST, RouterEntry
from meshrt.csl.machine.trains import CausalChain
from meshrt.csl.machine.vectors import Fab, Mem

ANY = (frozenset(range(5)), frozenset[int]())  # a position that is never taken up: others wait for it
LineStep = tuple[str, Any, tuple[Any, ...]]


def params(program: Any, given: dict[str, Val], image: Any) -> Library:
    def get_params(scope: Scope, arguments: list[Val], line: int) -> Val:
        ids = arguments[2].value
        parts = {}
        for at, axis in enumerate(("x", "y")):
            if f"{axis}_colors" not in ids:
                continue
            colors = ids[f"{axis}_colors"].value
            part = {"axis": Val(U16, at), "even": colors["0"], "odd": colors["1"]}
            parts[axis] = Val(STRUCT, part)
        return Val(STRUCT, parts)

    return Library("<collectives_2d/params>", {"get_params": native("get_params", get_params)})


def pe(program: Any, given: dict[str, Val], image: Any) -> Library:
    dim = given["dim_params"].value
    axis = int(dim["axis"].value)
    colors = (int(dim["even"].value), int(dim["odd"].value))
    location = SourceLocation("<collectives_2d>", 0)
    for color in colors:
        image.colors.append((color, RouterEntry([(frozenset(), frozenset()), ANY], location=location), location))
    count = program.size[axis]

    def collective(name: str, kinds: tuple[str, ...]) -> Val:
        def call(scope: Scope, arguments: list[Val], line: int) -> Val:
            if len(arguments) != len(kinds) + 1:
                raise scope.wrong(line, f"{name} takes {len(kinds) + 1} arguments, here are {len(arguments)}")
            if scope.writer is None:
                raise scope.wrong(line, f"{name} is done in the run, not before it")
            numbers = [
                argument if kind == "pointer" else coerce(argument, TYPES["u16"], scope, line)
                for argument, kind in zip(arguments, kinds, strict=False)
            ]
            scope.spend(COSTS.call)
            scope.image.space[f"collective_{name}"] = STEPS[name]
            scope.image.space["collective"] = begin
            callback = code(task_number(arguments[-1], scope, line), scope)
            texts = ", ".join(f"int({code(number, scope)})" for number in numbers)
            line_of = f"LinePosition(c, {axis}, {colors}, {count})"
            scope.image.space["LinePosition"] = LinePosition
            return Val(VOID, code=f"collective(c, collective_{name}({line_of}, {texts}), {callback})")

        return native(name, call)

    return Library("<collectives_2d/pe>", {
        "init": native("init", lambda scope, arguments, line: Val(VOID)),
        "pe_id": Val(U16, code=f"u16(c.{'xy'[axis]})"),
        "broadcast": collective("broadcast", ("number", "pointer", "number")),
        "scatter": collective("scatter", ("number", "pointer", "pointer", "number")),
        "gather": collective("gather", ("number", "pointer", "pointer", "number")),
        "reduce_fadds": collective("reduce_fadds", ("number", "pointer", "pointer", "number")),
    })  # fmt: skip


class LinePosition:
    """A core's place on its line. Up is toward larger numbers."""

    def __init__(self, core: Any, axis: int, colors: tuple[int, int], count: int):
        self.core, self.count = core, count
        self.me = core.y if axis else core.x
        self.up, self.down = ((EAST, WEST), (SOUTH, NORTH))[axis]
        self.out, self.into = colors[self.me % 2], colors[1 - self.me % 2]

    def to(self, *ports: int) -> None:
        self.core.wafer.set_route(self.core, self.out, frozenset([RAMP]), frozenset(ports))

    def of(self, port: int) -> None:
        self.core.wafer.set_route(self.core, self.into, frozenset([port]), frozenset([RAMP]))

    def sending(self, extent: int) -> Fab:
        return Fab(False, self.out, None, extent)

    def receiving(self, extent: int) -> Fab:
        return Fab(True, self.into, None, extent)

    def outward(self, root: int) -> tuple[int, int, int]:
        """Beyond the root: the port to it, the port on, how many are behind."""
        if self.me > root:
            return self.down, self.up, self.count - 1 - self.me
        return self.up, self.down, self.me


def _words(address: int, count: int, dtype: str = "u4") -> Mem:
    return Mem(address, 4, (count,), (1,), dtype)


def broadcast(line: LinePosition, root: int, buffer: int, count: int) -> Iterator[LineStep]:
    data = _words(buffer, count)
    if line.me == root:
        ports = [port for port, has_cores in ((line.up, root < line.count - 1), (line.down, root > 0)) if has_cores]
        if ports:
            line.to(*ports)
            yield "mov32", line.sending(count), (data,)
        return
    back, on, behind = line.outward(root)
    line.of(back)
    yield "mov32", data, (line.receiving(count),)
    if behind:
        line.to(on)
        yield "mov32", line.sending(count), (data,)


def scatter(line: LinePosition, root: int, send: int, recv: int, count: int) -> Iterator[LineStep]:
    if line.me == root:
        yield "mov32", _words(recv, count), (_words(send + 4 * root * count, count),)
        for port, cores in ((line.up, range(root + 1, line.count)), (line.down, range(root - 1, -1, -1))):
            if cores:
                line.to(port)
            for core in cores:
                yield "mov32", line.sending(count), (_words(send + 4 * core * count, count),)
        return
    back, on, behind = line.outward(root)
    line.of(back)
    yield "mov32", _words(recv, count), (line.receiving(count),)
    if behind:
        line.to(on)
        yield "mov32", line.sending(behind * count), (line.receiving(behind * count),)


def gather(line: LinePosition, root: int, send: int, recv: int, count: int) -> Iterator[LineStep]:
    if line.me == root:
        yield "mov32", _words(recv + 4 * root * count, count), (_words(send, count),)
        for port, cores in ((line.up, range(root + 1, line.count)), (line.down, range(root - 1, -1, -1))):
            if cores:
                line.of(port)
            for core in cores:
                yield "mov32", _words(recv + 4 * core * count, count), (line.receiving(count),)
        return
    back, on, behind = line.outward(root)
    line.to(back)
    yield "mov32", line.sending(count), (_words(send, count),)
    if behind:
        line.of(on)
        yield "mov32", line.sending(behind * count), (line.receiving(behind * count),)


def reduce_fadds(line: LinePosition, root: int, send: int, recv: int, count: int) -> Iterator[LineStep]:
    mine = _words(send, count, "f4")
    if line.me == root:
        total = _words(recv, count, "f4")
        yield "fmovs", total, (mine,)
        for port, has_cores in ((line.up, root < line.count - 1), (line.down, root > 0)):
            if has_cores:
                line.of(port)
                yield "fadds", total, (total, line.receiving(count))
        return
    back, on, behind = line.outward(root)
    line.to(back)
    if behind:
        line.of(on)
        yield "fadds", line.sending(count), (mine, line.receiving(count))
    else:
        yield "fmovs", line.sending(count), (mine,)


STEPS = {"broadcast": broadcast, "scatter": scatter, "gather": gather, "reduce_fadds": reduce_fadds}


def begin(core: Any, steps: Iterator[LineStep], callback: int) -> None:
    """Take the steps one after the other, beside the core's task; then activate the callback."""
    where = origin.where()

    def go_on(time: float, chain: CausalChain) -> None:
        for name, target, sources in steps:
            total = next(
                operand.extent for operand in (target, *sources) if not isinstance(operand, Fab) or operand.extent
            )
            pending = PendingOperation(
                OPERATIONS[name], target, sources, Options(True), total, time + COSTS.start_async, where
            )
            if isinstance(target, Mem) and not any(isinstance(operand, Fab) for operand in sources):
                compute(core, pending.of, target, sources, 0, total)
                time = pending.time + total / pending.of.lanes
                continue
            pending.then, pending.chain = go_on, chain
            core.pending.append(pending)
            note(core, pending)
            core.advance(pending)
            return
        core.effect(time, (callback, None, chain))

    go_on(core.t, core.chain)
