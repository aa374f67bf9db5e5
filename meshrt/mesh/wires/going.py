"""The compiled core goes through rows (rows.py); Python goes on where a message is not there yet."""

from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Any

import numpy as np

from meshrt.mesh.cores import Cores
from meshrt.mesh.wires import order
from meshrt.mesh.wires.requests import Posted, mpi_of
from meshrt.mesh.wires.rows import COMBINE, Rows
from meshrt.ranks.host import outnumbered
from meshrt.records import dataclass

ERROR, PACKETS, LONGEST = 8, 9, 10  # of a line's numbers


@dataclass(frozen=True, eq=False)
class Line:
    """What all tables of a block share: MPI's functions and handles, bells, and room for what is told of the last."""

    numbers: np.ndarray  # int64 [11], as in sums.c
    address: int
    kept: Any  # memory that it has the address of
    states: dict[Any, order.Fixed] = field(default_factory=dict)  # of links, each once
    strips: dict[Any, Any] = field(default_factory=dict)  # of lines, each once: see stripsums.py


def line_of(block: Cores) -> Line | None:
    """Made once for a block; None where what it does is not put into rows."""
    kept = block.clock.sums
    if not kept:
        kept.append(_line(block))
    line: Line | None = kept[0]
    return line


def _line(block: Cores) -> Line | None:
    if block.core is None or block.mapped or not block.timed:
        return None
    if block.hosted > 1 and not block.payload:  # without messages: see stripsums.py
        numbers = np.zeros(11, np.int64)
        return Line(numbers, block.core.address(numbers), None)
    if block.hosted > 1 or block.control.size == 1 or not block.payload:
        return None
    calls = mpi_of(block)
    if calls is None:
        return None
    functions, handles = calls
    own, taken = (0, np.zeros(1, np.int64)) if block.bells is None else (block.bells.own, block.bells.taken)
    outcome = 0, 0, 0
    numbers = np.array([*functions, *handles, own, block.core.address(taken), outnumbered(), *outcome], np.uint64)
    return Line(numbers.view(np.int64), block.core.address(numbers), taken)


def go(
    block: Cores, line: Line, rows: Rows, to: int, own: int, landing: int = 0,
    combine: Callable[..., None] | None = None,
) -> None:  # fmt: skip
    """Through all of them. `to` and `own`: where tiles are in memory, that which arrives and that which leaves.

    `landing`: where headers are put down, if the rows do not say it. `combine` is told what a row COMBINE stops with.
    """
    at, transfers = 0, block.core.transfers
    while (at := transfers(line.address, rows.address, rows.count, at, to, own, landing)) < rows.count:
        if not line.numbers[ERROR]:
            kind, *facts = rows.stops[at]
            if kind == COMBINE:
                assert combine is not None
                combine(*facts)
            else:
                request, *awaited = facts
                block.wait(Posted(partial(block.core.is_there, line.address, request)), *awaited)
        if line.numbers[ERROR]:
            from mpi4py import MPI

            raise MPI.Exception(int(line.numbers[ERROR]))
        at += 1
    if line.numbers[PACKETS]:
        order.count(block, int(line.numbers[PACKETS]), float(line.numbers[LONGEST:].view(np.float64)[0]))
        line.numbers[PACKETS:] = 0
