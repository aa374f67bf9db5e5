"""Bells: a rank that waits for a message sleeps until the rank that sends it says that it is there.

Without them it would have to wake up again and again to ask MPI, and where many ranks share a core, each time takes the
core from the rank that it waits for. A bell is a word in memory that the ranks of a node share (board.py), and the
system wakes who sleeps by it (bells.c: Linux's futex). Messages go over MPI all the same, and a bell decides nothing:
who sleeps wakes up by itself, too, and asks.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import field
from typing import Any

from meshrt.ranks.board import Board
from meshrt.records import dataclass


@dataclass(frozen=True, eq=False)
class Bells:
    """The bells of the ranks of a node, as `rank` has them. `core` is the compiled core."""

    core: Any
    own: int  # address of this rank's bell
    others: dict[int, int]  # and of those of all ranks of the node, by rank
    memory: memoryview  # what they are in
    taken: array[int] = field(default_factory=lambda: array("q", (0,)))  # one: messages that rang and were waited for

    def ring(self, rank: int) -> None:
        """A message for that rank has been posted. Nothing happens for a rank of another node."""
        bell = self.others.get(rank)
        if bell is not None:
            self.core.ring(bell)

    def heard(self) -> int:
        """How often this rank's bell was rung: `listen` wants to know that from before what was asked last."""
        count: int = self.core.heard(self.own)
        return count

    def listen(self, heard: int, seconds: float) -> None:
        """Sleep until the bell is rung again, so long at most."""
        self.core.listen(self.own, heard, seconds)


def hang_up(board: Board, core: Any) -> Bells | None:
    """The bells of a board's ranks; None for one rank alone, without the compiled core, and where it has no futex."""
    if core is None or sys.platform != "linux" or len(board.ranks) == 1:
        return None
    memory = board.bells
    size, begin = memory.nbytes // len(board.ranks), core.address(memory)
    bells = {rank: begin + size * number for number, rank in enumerate(board.ranks)}
    return Bells(core, bells[board.rank], bells, memory)


def no_bells(rank: int) -> None:
    """What `ring` is where there are none."""
