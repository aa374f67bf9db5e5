"""How many groups a K-tree has: those that are measured to be the fastest.

The allreduce of one tile is emulated on one line of that length, by headers alone and apart from the run, for a few
numbers of groups. Rank 0 does so for all. What is measured depends on nothing but the device and the sizes.
"""

from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from math import inf

import numpy as np

from meshrt.errors import LimitError
from meshrt.mesh.block import Block, make_block
from meshrt.mesh.collectives import treeplan
from meshrt.mesh.collectives.trees import installed_tree, reduce_and_spread
from meshrt.mesh.device import Device
from meshrt.ranks.alone import Alone
from meshrt.ranks.board import Board

LONG = 16  # cores; shorter lines keep the groups of `treeplan.ktree`, so that a small run starts without measuring
TRIES = 8  # trees to measure for each number that is to be chosen


def best_groups(block: Block, n: int, phases: int, nbytes: int) -> tuple[int, ...] | None:
    """Groups of all phases but the last for lines of n cores and tiles of nbytes; None: leave it to `treeplan.ktree`.

    All ranks call it together.
    """
    if n <= LONG or phases < 2:
        return None
    machine = replace(block.device, width=None, height=None, core_memory=None)
    if machine.route_entries is not None:
        room = machine.route_entries - int(block.tables.book.sum(axis=0).max())
        if room < 2 * phases + 1:  # what a tree may take; where there is more, it is all the same
            machine = replace(machine, route_entries=max(1, room))
    groups: tuple[int, ...] | None = block.control.bcast(
        _fastest(n, phases, nbytes, machine) if block.mesh.rank == 0 else None
    )
    return groups


@cache
def _fastest(n: int, phases: int, nbytes: int, device: Device) -> tuple[int, ...] | None:
    """Start from the groups of `treeplan.ktree` and change one number at a time while that makes it faster.

    Steps of a fourth come first, then steps of a sixteenth. None where no tree fits the routing tables.
    """
    best = treeplan.ktree(n, phases).groups
    cycles = {best: _measure(n, phases, best, nbytes, device)}
    part, better = 4, True
    while better and part <= 16:
        better = False
        for at, sign in product(range(len(best)), (1, -1)):
            count = best[at] + sign * max(1, round(best[at] / part))
            groups = (*best[:at], count, *best[at + 1 :])
            if not all(low > high for low, high in pairwise((n, *groups, 1))):
                continue  # a phase without groups to add up would be none
            if groups not in cycles and len(cycles) < TRIES * len(groups):
                cycles[groups] = _measure(n, phases, groups, nbytes, device)
            if cycles.get(groups, inf) < cycles[best]:
                best, better = groups, True
        if not better:
            part, better = 4 * part, True
    return best if cycles[best] < inf else None


def _measure(n: int, phases: int, groups: tuple[int, ...], nbytes: int, device: Device) -> float:
    """Cycles of one allreduce of a float32 tile; infinitely many where a routing table is too small."""
    block = make_block(Alone(), device, n, 1, Board.alone(), payload=False)
    try:
        with installed_tree(block, "x", treeplan.ktree(n, phases, groups)) as tree:
            reduce_and_spread(block, tree, np.zeros((1, 1, -(-nbytes // 4)), np.float32), np.add)
        return block.clock.last()[0]
    except LimitError:
        return inf
    finally:
        block.close()
