"""What a lane does between its messages as tables for the compiled core: addresses and strides of its arrays.

A table is int64 [steps, 3 + 6 * 5]: kind, size of the outer and of the inner loop, and for each array where it begins,
its two steps in bytes, and the addresses of the positions that the loops are to go to, 0 where they go to all. What is
put down in a landing has its distance from the landing's begin: each use of a lane may have another.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meshrt.mesh.wires.lines import Index

LEAVE, COPY, MOVE, LAND, ADD, ANY_LATE, TAKE_OVER = range(7)  # as in core.c
CELLS = 6
EVERYWHERE = slice(None)
Cells = tuple[np.ndarray, Index]  # an array [lines, length], and positions along its lines


@dataclass(frozen=True, eq=False)
class Step:
    """One loop over cells of several arrays, all of one shape."""

    kind: int
    cells: Sequence[Cells]


def table_of(steps: Iterable[Step], landing: np.ndarray, arrays: list[np.ndarray]) -> np.ndarray:
    """The table of steps. Cells in the memory `landing` are told by where in it they are. What the others are in is
    appended to `arrays`, and has to live as long as the table.
    """
    rows = [row for step in steps for row in _rows(step, landing, arrays)]
    return np.array(rows, np.int64).reshape(len(rows), 3 + 5 * CELLS)


def _rows(step: Step, landing: np.ndarray, arrays: list[np.ndarray]) -> Iterator[list[int]]:
    """One row; none for a step over nothing."""
    found = []
    for array, index in step.cells:
        at = None if isinstance(index, slice) else np.ascontiguousarray(index, np.int64)
        part = array if at is not None else array[:, index]
        found.append((part, at, (part.shape[0], part.shape[1] if at is None else len(at))))
    lines, count = found[0][-1]
    if not lines * count:
        return
    first, landed = found[0][0], address(landing)
    by_line = count == 1 or (lines > 1 and abs(first.strides[0]) < abs(first.strides[1]))  # lines lie side by side
    row = [step.kind, *((count, lines) if by_line else (lines, count))]
    for part, at, shape in found:
        start = address(part)
        if 0 <= start - landed < landing.nbytes:
            start -= landed
        else:
            arrays.append(part)
        if at is not None:
            arrays.append(at)
        strides = [stride if size > 1 else 0 for stride, size in zip(part.strides, shape, strict=True)]
        if at is not None:
            strides[1] = part.strides[1]
        positions = [0, 0 if at is None else address(at)]
        row += [start, *(strides[::-1] if by_line else strides), *(positions[::-1] if by_line else positions)]
    yield row + [0] * (3 + 5 * CELLS - len(row))


def address(array: np.ndarray) -> int:
    """Where an array begins in memory."""
    return int(array.__array_interface__["data"][0])
