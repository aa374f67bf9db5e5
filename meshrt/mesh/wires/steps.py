"""What a lane does between its messages as tables for the compiled core: addresses and strides of its arrays.

A table is the bytes of int64 [steps, 3 + 6 * 5]: kind, size of the outer and of the inner loop, and for each array
where it begins, its two steps in bytes, and the addresses of the positions that the loops are to go to, 0 where they go
to all. What is put down in a landing has its distance from the landing's begin: each use of a lane may have another.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field
from struct import Struct
from typing import Any

import numpy as np

from meshrt.mesh.wires.lines import Index
from meshrt.records import dataclass

LEAVE, COPY, MOVE, LAND, PATH, ANY_LATE, TAKE_OVER, SPEND, SERVE, END = range(10)  # as in core.c
CELLS = 6
ROW = Struct(f"{3 + 5 * CELLS}q")
EVERYWHERE = slice(None)
Cells = tuple[np.ndarray, Index]  # an array [lines, length], and positions along its lines


@dataclass(frozen=True, eq=False)
class Step:
    """One loop over cells of several arrays, all of one shape."""

    kind: int
    cells: Sequence[Cells]


@dataclass(frozen=True, eq=False)
class Addresses:
    """Where arrays are in memory, each asked for once, and those in the memory `landing` by where in it they are.

    A table lives no longer than the addresses that it was made with: they keep the memory.
    """

    core: Any  # the compiled core, which finds them
    landing: int = 0
    size: int = 0
    entries: dict[int, tuple[Any, ...]] = field(default_factory=dict)  # by the id of what was asked for: `_ask`
    kept: list[np.ndarray] = field(default_factory=list)

    def of(self, array: np.ndarray) -> int:
        address: int = (self.entries.get(id(array)) or self._ask(array, array))[2]
        return address

    def of_positions(self, index: np.ndarray) -> int:
        entry = self.entries.get(id(index)) or self._ask(index, np.ascontiguousarray(index, np.int64))
        address: int = entry[2]
        return address

    def _ask(self, original: np.ndarray, array: np.ndarray) -> tuple[Any, ...]:
        """(What was asked for, the array, its address, sizes, steps); the id of an array that lives is no other's."""
        entry = self.entries[id(original)] = original, array, self.core.address(array), *array.shape, *array.strides
        return entry

    def table(self, steps: Iterable[Step]) -> bytes:
        """The table of steps; one over nothing has no row."""
        rows = (self._row(step) for step in steps)
        return b"".join(ROW.pack(*row) for row in rows if row)

    def close(self) -> None:
        """No more tables come: kept is the memory that is in them, without all views of it that were asked for. What
        stood for the landing is let go, which counts though nobody wrote to it.
        """
        owners = dict[int, np.ndarray]()
        for _, array, address, *_ in self.entries.values():
            if not 0 <= address - self.landing < self.size:
                while isinstance(array.base, np.ndarray):
                    array = array.base
                owners[id(array)] = array
        self.entries.clear()
        self.kept.extend(owners.values())

    def _row(self, step: Step) -> list[int]:
        row, by_line = [step.kind], False
        for array, index in step.cells:
            _, _, start, lines, length, line_step, along = self.entries.get(id(array)) or self._ask(array, array)
            count, at = length, 0
            if isinstance(index, np.ndarray):
                count, at = len(index), self.of_positions(index)
            elif index is not EVERYWHERE:
                first, stop, by = index.indices(length)
                count, start, along = len(range(first, stop, by)), start + first * along, along * by
            if len(row) == 1:
                if not lines * count:
                    return []
                by_line = count == 1 or (lines > 1 and abs(line_step) < abs(along))  # lines lie side by side
                row += (count, lines) if by_line else (lines, count)
            if 0 <= start - self.landing < self.size:
                start -= self.landing
            line_step = line_step if lines > 1 else 0
            along = along if count > 1 or at else 0
            row += (start, along, line_step, at, 0) if by_line else (start, line_step, along, 0, at)
        return row + [0] * (3 + 5 * CELLS - len(row))
