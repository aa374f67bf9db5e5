"""The transfers of a sum along lines as one table for the compiled core (sums.c): at ranks of one core, or by shape.

By shape, where no message goes to another rank, lines are done strip by strip (stripsums.py). With one core a rank a
sum is a few numbers and many messages, and what Python does between these is most of its time.

What fabric.transfer_again and software.do would do, step by step, is found once and put into rows, messages included.
The core goes through the rows; it comes back where a message is not there yet, and where tiles are combined by another
function than np.add. Where anybody looks on, fabric.py does it all itself.
"""

from functools import partial as with_given
from typing import Any

import numpy as np

from meshrt.mesh.cores import Cores
from meshrt.mesh.wires import order
from meshrt.mesh.wires.going import go, line_of
from meshrt.mesh.wires.lines import Index, View
from meshrt.mesh.wires.stripsums import strips_of
from meshrt.mesh.wires.sumtables import Part, Table, table_of

MANY = 64  # states of links, and tables of a sum, that are kept
NEVER = 0  # the id of nothing: a sum that has that among its tables is for others to do


def add_up(
    block: Cores, parts: tuple[Part, ...], tables: dict[int, Table | None], partial: np.ndarray, combine: Any
) -> bool:  # fmt: skip
    """Do these transfers of `partial`, in place, and what software then does. False, and nothing is done, where that is
    for others to do. `tables` keeps what is found, by the id of how it finds the links. It is counted in tally.settle.
    """
    clock, line = block.clock, line_of(block)
    if line is None or clock.coming or clock.under_way or clock.heads or clock.seen is not None:
        return False
    many = block.hosted > 1
    if clock.links is not None or clock.messages is not None or not (many or partial.flags.c_contiguous):
        return False
    begin = clock.users = order.fixed(clock.users, line.states)
    table = tables.get(id(begin))
    if table is None:
        if NEVER in tables:
            return False
        for kept in (tables, line.states):
            if len(kept) >= MANY:
                kept.clear()
        table = (
            strips_of(block, begin, line.states, line.strips, parts, partial)
            if many
            else table_of(block, begin, line.states, parts, partial, combine)
        )
        tables[NEVER if table is None else id(begin)] = table
        if table is None:
            return False
    block.begin()
    tile = 0 if many else block.core.address(partial)
    go(block, line, table.rows, tile, tile, combine=with_given(_combine, combine, partial))
    if many:
        partial[...] = 1  # as fabric.send
    clock.users = table.end
    block.summed[table] = block.summed.get(table, 0) + 1
    return True


def _combine(combine: Any, partial: np.ndarray, view: View, to: Index, tiles: np.ndarray, source: Index) -> None:
    """delivery.deliver, by a function that the compiled core does not have."""
    target = view.of(partial)
    target[:, to] = combine(target[:, to], tiles[:, source])
