"""Cycles by kind of operation. See docs/csl.md for where each number is from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Marked (fit): found together on MeshGEMM's and MeshGEMV's `fit` rows at P = 80."""

    arithmetic: float = 1.0  # a scalar instruction
    divide: float = 60.0  # of f16 a routine of 42 instructions and its call (validation.md); of f32 as much: judgement
    load: float = 1.0  # of a variable that is in memory
    store: float = 1.0
    branch: float = 3.0  # compare, jump, and what the jump throws away
    call: float = 2.0
    load_dsr: float = 3.5  # (fit) the words of a descriptor, and the register
    start: float = 6.0  # of a vector operation on memory that the core waits for
    start_fabric: float = 14.3  # (fit) of one that waits for wavelets, or sends them
    start_async: float = 2.6  # (fit) of one that goes on by itself
    task: float = 1.0  # (fit) to take up a task
    map_start: float = 10.5  # (fit) of @map
    map_step: float = 2.0  # of @map, beside what the function does
    bank: float = 1.5  # a step of as many numbers as memory gives at once, where no rule is known: the mean (banks.py)
    hop: float = 2.04  # from router to router
    ramp: float = 9.8  # from a core's operation to the next core's, without the hops between
    queue: int = 14  # wavelets that wait at a core before its router holds back


COSTS = Costs()
LANES = 8  # numbers of 16 bits that a WSE-3's memory gives at once; of a WSE-2, machine/operations.py
