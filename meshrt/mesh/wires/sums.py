"""The transfers of a sum along lines as one table for the compiled core, at a rank of one core (sums.c).

With one core a rank a sum is a few numbers and many messages, and what Python does between these is most of its time.
What fabric.transfer_again and software.do would do, step by step, is found once and put into rows, messages included.
The core goes through the rows; it comes back where a message is not there yet, and where tiles are combined by another
function than np.add. Where anybody looks on, fabric.py does it all itself.
"""

import ctypes
from dataclasses import field
from typing import Any

import numpy as np

from meshrt.mesh.cores import Cores
from meshrt.mesh.wires import order
from meshrt.mesh.wires.sumtables import COMBINE, Part, Table, table_of
from meshrt.ranks.board import Board
from meshrt.ranks.host import outnumbered
from meshrt.records import dataclass

ERROR, PACKETS, LONGEST = 8, 9, 10  # of a line's numbers
MANY = 64  # states of links, and tables of a sum, that are kept


@dataclass(frozen=True, eq=False)
class Line:
    """What all tables of a block share: MPI's functions and handles, bells, and room for what is told of a sum."""

    numbers: np.ndarray  # int64 [11], as in sums.c
    address: int
    kept: Any  # memory that it has the address of
    states: dict[Any, order.Fixed] = field(default_factory=dict)  # of links, each once


class Posted:
    """A request of the compiled core's, to be waited for."""

    __slots__ = ("core", "line", "request")

    def __init__(self, core: Any, line: int, request: int) -> None:
        self.core, self.line, self.request = core, line, request

    def Test(self) -> bool:
        return bool(self.core.is_there(self.line, self.request))


def line_of(block: Cores) -> Line | None:
    """Made once for a block; None where its sums are not made so."""
    if block.core is None or block.hosted > 1 or block.control.size == 1:
        return None
    from mpi4py import MPI

    if block.mapped or not (block.payload and block.timed):
        return None
    if type(block.comm) is not MPI.Intracomm or type(block.watch) is not Board:  # a run is recorded, or has a fault
        return None
    try:
        library = ctypes.CDLL(MPI.__file__)
        calls = [getattr(library, name) for name in ("MPI_Isend", "MPI_Irecv", "MPI_Test")]
        handles = [MPI._handleof(block.comm), MPI._handleof(MPI.BYTE)]
    except (OSError, AttributeError):
        return None
    functions = [ctypes.cast(function, ctypes.c_void_p).value for function in calls]
    own, taken = (0, np.zeros(1, np.int64)) if block.bells is None else (block.bells.own, block.bells.taken)
    outcome = 0, 0, 0
    numbers = np.array([*functions, *handles, own, block.core.address(taken), outnumbered(), *outcome], np.uint64)
    return Line(numbers.view(np.int64), block.core.address(numbers), taken)


def add_up(
    block: Cores, parts: tuple[Part, ...], tables: list[Table | None], partial: np.ndarray, combine: Any
) -> bool:  # fmt: skip
    """Do these transfers of `partial`, in place, and what software then does. False, and nothing is done, where that is
    for others to do. `tables` keeps what is found.
    """
    clock = block.clock
    if not clock.sums:
        clock.sums.append(line_of(block))
    line: Line | None = clock.sums[0]
    if line is None or clock.coming or clock.under_way or clock.heads or clock.seen is not None:
        return False
    if clock.links is not None or clock.messages is not None or not partial.flags.c_contiguous:
        return False
    begin = clock.users = order.fixed(clock.users, line.states)
    for table in tables:
        if table is None:
            return False
        if table.begin is begin:
            break
    else:
        for kept in (tables, line.states):
            if len(kept) >= MANY:
                kept.clear()
        table = table_of(block, begin, line.states, parts, partial, combine)
        tables.append(table)
        if table is None:
            return False
    block.begin()
    at, tile, go = 0, block.core.address(partial), block.core.transfers
    while (at := go(line.address, table.address, table.count, at, tile)) < table.count:
        _go_on(block, line, table, at, partial, combine)
        at += 1
    clock.users = table.end
    _count(block, line, table)
    return True


def _go_on(block: Cores, line: Line, table: Table, at: int, partial: np.ndarray, combine: Any) -> None:
    """Do what the core leaves to Python in a row: a message is not there yet, or tiles are to be combined."""
    if not line.numbers[ERROR]:
        kind, *facts = table.stops[at]
        if kind == COMBINE:
            view, to, tiles, source = facts
            target = view.of(partial)
            target[:, to] = combine(target[:, to], tiles[:, source])
            return
        request, *awaited = facts
        block.wait(Posted(block.core, line.address, request), *awaited)
    if line.numbers[ERROR]:
        from mpi4py import MPI

        raise MPI.Exception(int(line.numbers[ERROR]))


def _count(block: Cores, line: Line, table: Table) -> None:
    """As fabric._send and software.do, for all transfers at once."""
    counters, host, traffic, numbers = block.ledger.counters, block.ledger.host, block.traffic, table.counted
    counters.messages += numbers.messages
    counters.hops += numbers.hops
    counters.wafer_hops += numbers.wafer_hops
    counters.stages += numbers.stages
    counters.adds += numbers.adds
    counters.operand_bytes += numbers.operand_bytes
    if numbers.max_hops > counters.max_hops:
        counters.max_hops = numbers.max_hops
    host.messages += table.host.messages
    host.packets += table.host.packets
    host.bytes += table.host.bytes
    for key, nbytes in table.traffic.items():
        traffic[key] = traffic.get(key, 0) + nbytes
    if line.numbers[PACKETS]:
        order.count(block, int(line.numbers[PACKETS]), float(line.numbers[LONGEST:].view(np.float64)[0]))
        line.numbers[PACKETS:] = 0
