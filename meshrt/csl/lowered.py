"""A program's functions as the compiled machine has them: words, values, operations, vectors, registers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshrt.csl.image import Image
from meshrt.csl.operations import Operation, Options
from meshrt.csl.vectors import Dsr, Fab, Mem

KINDS = ("word", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "f32", "i8", "u8", "nothing", "vector", "register")
KIND = {name: at for at, name in enumerate(KINDS)}
TYPES = (int, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32, np.int8, np.uint8)
KIND_OF = {of: at for at, of in enumerate(TYPES)}
SHORT = {np.dtype(of).str[1:]: at for at, of in enumerate(TYPES) if 0 < at < 9} | {"": -1}
WHAT = ("mov", "neg", "abs", "add", "sub", "mul", "max", "min", "mac", "and", "or", "xor", "sll", "slr", "sar")
AXES = 4
VALUE = 9  # of a value: int64 numbers; the first is its kind


class Missing(Exception):
    """Not understood."""


@dataclass
class Lowered:
    """All functions of a program that its tasks and its host begin."""

    code: list[int] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)  # rows of VALUE numbers
    operations: list[tuple[int, ...]] = field(default_factory=list)
    options: list[tuple[int, ...]] = field(default_factory=list)
    functions: list[tuple[int, int, int]] = field(default_factory=list)  # where it begins, arguments, locals
    maps: list[tuple[int, ...]] = field(default_factory=list)
    natives: list[Any] = field(default_factory=list)
    fabrics: list[Fab] = field(default_factory=list)
    registers: dict[tuple[str, int], int] = field(default_factory=dict)
    known: dict[Any, int] = field(default_factory=dict)  # (image, name) -> function; and of all other things
    asked: list[tuple[Image, str, int]] = field(default_factory=list)  # functions that are not yet written

    def function(self, image: Image, name: str) -> int:
        key = (id(image), name)
        if key not in self.known:
            if name not in image.sources:
                raise Missing
            self.known[key] = len(self.functions)
            self.functions.append((0, 0, 0))
            self.asked.append((image, name, self.known[key]))
        return self.known[key]

    def register(self, dsr: Dsr) -> int:
        return self.registers.setdefault((dsr.kind, dsr.index), len(self.registers))

    def option(self, options: Options) -> int:
        return self._once(self.options, option_row(options))

    def operation(self, of: Operation) -> int:
        if of.name in ("fh2s", "fs2h"):
            what = 15 if of.name == "fh2s" else 16
        else:
            plain = of.name.rstrip("0123456789")
            what = WHAT.index(of.name[1:4] if plain == of.name else plain)
        takes = KIND_OF[of.dtype if of.takes is None else of.takes]
        return self._once(self.operations, (what, KIND_OF[of.dtype], takes, of.inputs, of.lanes, of.narrow))

    def constant(self, value: Any, image: Image) -> int:
        row = self.row(value, image)
        key = ("constant", row.tobytes())
        if key not in self.known:
            self.known[key] = len(self.constants)
            self.constants.append(row)
        return self.known[key]

    def row(self, value: Any, image: Image) -> Any:
        """A value as the machine holds it. Missing."""
        row = np.zeros(VALUE, np.int64)
        if value is None:
            row[0] = KIND["nothing"]
        elif isinstance(value, bool | int):
            row[1] = int(value)
        elif isinstance(value, float):  # cycles
            row[1:2].view(np.float64)[0] = value
        elif isinstance(value, np.generic) and type(value) in KIND_OF:
            row[0] = KIND_OF[type(value)]
            if isinstance(value, np.floating):
                row[1:2].view(np.float64)[0] = value
            else:
                row[1] = int(value)
        elif isinstance(value, Dsr):
            row[:2] = KIND["register"], self.register(value)
        elif isinstance(value, Mem | Fab):
            row[0] = KIND["vector"]
            row[1:].view(np.int32)[:15] = self._vector(value, image)
        else:
            raise Missing
        return row

    def _vector(self, one: Mem | Fab, image: Image) -> list[int]:
        if isinstance(one, Mem):
            if len(one.extents) > AXES or one.index_offset:
                raise Missing
            more = [0] * (AXES - len(one.extents))
            begin = [0, one.nbytes, one.base, len(one.extents)]
            return [*begin, *one.extents, *more, *one.strides, *more, SHORT[one.dtype], -1, -1]
        if one.control or one.advance_switch or one.index_offset or one.on_control is not None:
            raise Missing
        key = ("fabric", id(image), id(one))
        if key not in self.known:
            self.known[key] = len(self.fabrics)
            self.fabrics.append(one)
        queues = image.inputs if one.inward else image.outputs
        color = queues.get(one.queue, one.color) if one.queue is not None else one.color
        color = -1 if color is None else int(color)
        return [1, 0, self.known[key], 1, int(one.extent), 0, 0, 0, 0, 0, 0, 0, one.simd,
                color if one.inward else -1, -1 if one.inward else color]  # fmt: skip

    def _once(self, table: list[tuple[int, ...]], row: tuple[int, ...]) -> int:
        key = (id(table), row)
        if key not in self.known:
            self.known[key] = len(table)
            table.append(row)
        return self.known[key]


def option_row(one: Options) -> tuple[int, ...]:
    return (int(one.is_async), -1 if one.activate is None else one.activate, -1 if one.unblock is None else one.unblock,
            int(one.save_address))  # fmt: skip
