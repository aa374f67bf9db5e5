"""A program's functions as the compiled machine has them: words, values, operations, vectors, registers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshrt.csl.language.image import Image
from meshrt.csl.machine.operations import Options, VectorOperation
from meshrt.csl.machine.vectors import Dsr, Fab, Mem

KINDS = ("word", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "f32", "i8", "u8", "nothing", "vector", "register")
KIND = {name: at for at, name in enumerate(KINDS)}
TYPES = (int, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32, np.int8, np.uint8)
KIND_OF = {of: at for at, of in enumerate(TYPES)}
SHORT = {np.dtype(of).str[1:]: at for at, of in enumerate(TYPES) if 0 < at < 9} | {"": -1}
# What operations do, as native/machine.h numbers it, by the stem of their names; and two that are named otherwise.
WHAT = ("mov", "neg", "abs", "add", "sub", "mul", "max", "min", "mac", "and", "or", "xor", "sll", "slr", "sar", "widen",
        "narrow")  # fmt: skip
CONVERSIONS = {"fh2s": "widen", "fs2h": "narrow"}
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
    numbers: dict[Any, int] = field(default_factory=dict)  # (image, name) -> function; and of all other things
    unwritten: list[tuple[Image, str, int]] = field(default_factory=list)  # functions

    def function(self, image: Image, name: str) -> int:
        """Its number; it is written later, if it is not yet. Missing."""
        key = (id(image), name)
        if key not in self.numbers:
            if name not in image.sources:
                raise Missing
            self.numbers[key] = len(self.functions)
            self.functions.append((0, 0, 0))
            self.unwritten.append((image, name, self.numbers[key]))
        return self.numbers[key]

    def register(self, dsr: Dsr) -> int:
        """Its number: from 0 on, whatever theirs are in the source."""
        return self.registers.setdefault((dsr.kind, dsr.index), len(self.registers))

    def option(self, options: Options) -> int:
        """The number of what an operation says beside its operands."""
        return self._once(self.options, option_row(options))

    def operation(self, of: VectorOperation) -> int:
        """Its number. ValueError for one that the machine does not have."""
        plain = of.name.rstrip("0123456789")  # fmovs: a letter, what it does, and of which type; or sll16
        stem = CONVERSIONS.get(of.name, of.name[1:4] if plain == of.name else plain)
        takes = KIND_OF[of.dtype if of.takes is None else of.takes]
        return self._once(self.operations, (WHAT.index(stem), KIND_OF[of.dtype], takes, of.inputs, of.lanes, of.narrow))

    def constant(self, value: Any, image: Image) -> int:
        """Its number. Missing."""
        row = self.row(value, image)
        key = ("constant", row.tobytes())
        if key not in self.numbers:
            self.numbers[key] = len(self.constants)
            self.constants.append(row)
        return self.numbers[key]

    def row(self, value: Any, image: Image) -> Any:
        """A value as the machine holds it. Missing."""
        row = np.zeros(VALUE, np.int64)
        if value is None:
            row[0] = KIND["nothing"]
        elif isinstance(value, bool | int):
            if not -(1 << 63) <= value < 1 << 63:
                raise Missing
            row[1] = int(value)
        elif isinstance(value, float):  # cycles
            row[1:2].view(np.float64)[0] = value
        elif isinstance(value, np.generic) and type(value) in KIND_OF:
            row[0] = KIND_OF[type(value)]
            if isinstance(value, np.floating):
                row[1:2].view(np.float64)[0] = value
            else:
                row[1:2].view(np.uint64)[0] = int(value) & ((1 << 64) - 1)
        elif isinstance(value, Dsr):
            row[:2] = KIND["register"], self.register(value)
        elif isinstance(value, Mem | Fab):
            row[0] = KIND["vector"]
            row[1:].view(np.int32)[:15] = self._vector(value, image)
        else:
            raise Missing
        return row

    def _vector(self, vector: Mem | Fab, image: Image) -> list[int]:
        """The 15 numbers of `Vector` in native/machine.h, in its order. Missing."""
        if isinstance(vector, Mem):
            if len(vector.extents) > AXES or vector.index_offset:
                raise Missing
            more = [0] * (AXES - len(vector.extents))
            begin = [0, vector.nbytes, vector.base, len(vector.extents)]
            return [*begin, *vector.extents, *more, *vector.strides, *more, SHORT[vector.dtype], -1, -1]
        if vector.control or vector.advance_switch or vector.index_offset or vector.on_control is not None:
            raise Missing
        key = ("fabric", id(image), id(vector))
        if key not in self.numbers:
            self.numbers[key] = len(self.fabrics)
            self.fabrics.append(vector)
        queues = image.inputs if vector.inward else image.outputs
        color = queues.get(vector.queue, vector.color) if vector.queue is not None else vector.color
        color = -1 if color is None else int(color)
        return [1, 0, self.numbers[key], 1, int(vector.extent), 0, 0, 0, 0, 0, 0, 0, vector.simd,
                color if vector.inward else -1, -1 if vector.inward else color]  # fmt: skip

    def _once(self, table: list[tuple[int, ...]], row: tuple[int, ...]) -> int:
        key = (id(table), row)
        if key not in self.numbers:
            self.numbers[key] = len(table)
            table.append(row)
        return self.numbers[key]


def option_row(options: Options) -> tuple[int, ...]:
    """(asynchronous?, task to activate, task to unblock, is the register's address kept?); -1: no such task."""
    return (int(options.is_async), -1 if options.activate is None else options.activate,
            -1 if options.unblock is None else options.unblock, int(options.save_address))  # fmt: skip
