"""Cycles by kind of operation. See docs/csl.md for where each number is from."""

from __future__ import annotations

from dataclasses import dataclass

SCALAR = 1.58  # all scalar operations share this one factor, found on one row: MeshGEMV, P 80, 2 groups, tiles 1 x 1


@dataclass(frozen=True)
class Costs:
    arithmetic: float = SCALAR  # a scalar operation
    load: float = SCALAR  # of a variable that is in memory
    store: float = SCALAR
    branch: float = 2 * SCALAR
    call: float = 4 * SCALAR
    load_dsr: float = 2 * SCALAR
    start: float = 6.0  # of a vector operation that the core waits for
    start_async: float = 6.0
    task: float = 6.0  # to take up a task
    map_step: float = 2.0
    hop: float = 2.04  # from router to router
    ramp: float = 9.8  # from a core's operation to the next core's, without the hops between
    queue: int = 14  # wavelets that wait at a core before its router holds back


COSTS = Costs()
