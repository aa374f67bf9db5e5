"""Cycles by kind of operation. See docs/csl.md for where each number is from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    arithmetic: float = 1.0  # a scalar operation
    load: float = 1.0  # of a variable that is in memory
    store: float = 1.0
    branch: float = 2.0
    call: float = 4.0
    load_dsr: float = 2.0
    start: float = 6.0  # of a vector operation that the core waits for
    start_async: float = 6.0
    task: float = 6.0  # to take up a task
    map_step: float = 2.0
    hop: float = 1.0  # from router to router
    ramp: float = 2.0  # from a core to its router, and from a router to its core
    queue: int = 14  # wavelets that wait at a core before its router holds back


COSTS = Costs()
