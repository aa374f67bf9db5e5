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

LEAVE, COPY, MOVE, LAND, ADD, ANY_LATE, TAKE_OVER, SPEND, SERVE = range(9)  # as in core.c
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

    A table lives no longer than the addresses that it was made with: they keep the arrays.
    """

    core: Any  # the compiled core, which finds them
    landing: int = 0
    size: int = 0
    known: dict[int, tuple[Any, np.ndarray, int]] = field(default_factory=dict)  # by the id of what was asked for

    def of(self, array: np.ndarray) -> int:
        found = self.known.get(id(array))
        if found is None:
            found = self.known[id(array)] = array, array, self.core.address(array)
        return found[-1]

    def of_positions(self, index: np.ndarray) -> int:
        found = self.known.get(id(index))
        if found is None:
            positions = np.ascontiguousarray(index, np.int64)
            found = self.known[id(index)] = index, positions, self.core.address(positions)
        return found[-1]

    def table(self, steps: Iterable[Step]) -> bytes:
        """The table of steps; one over nothing has no row."""
        rows = (self._row(step) for step in steps)
        return b"".join(ROW.pack(*row) for row in rows if row)

    def close(self) -> None:
        """No more tables come: what stood for the landing is let go, which counts though nobody wrote to it."""
        for key, (*_, address) in list(self.known.items()):
            if 0 <= address - self.landing < self.size:
                del self.known[key]

    def _row(self, step: Step) -> list[int]:
        row, by_line = [step.kind], False
        for array, index in step.cells:
            start, at = self.of(array), 0
            (lines, length), (line_step, along) = array.shape, array.strides
            if isinstance(index, slice):
                span = range(length)[index]
                count, start, along = len(span), start + span.start * along, along * span.step
            else:
                count, at = len(index), self.of_positions(index)
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
