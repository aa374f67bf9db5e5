"""What a sender knows of the room at a core: what is known there, by as much later as a wavelet's hops between take.

So nothing that a core does is known at another before a wavelet could be there, and cores' events that are less than a
hop apart may run in any order, or on several ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

START = float("-inf")


@dataclass(slots=True, eq=False)
class WaveletRoom:
    """Of a core and colour. `free`: (since when, wavelets asked for less those that wait); `growths`: when it grew."""

    free: list[tuple[float, int]] = field(default_factory=lambda: [(START, 0)])
    growths: list[float] = field(default_factory=list)
    waiters: list[tuple[Any, float, float]] = field(default_factory=list)  # core, since when, how much later it knows

    def known(self, now: float, later: float) -> int:
        """What is known at a time at a core that is so many cycles away."""
        for since, free in reversed(self.free):
            if since + later <= now:
                return free
        return self.free[0][1]

    def note(self, now: float, free: int, time: float) -> list[tuple[Any, float]]:
        """What is free from now on. Where that is more, as a core finds at a time: who looks again, and when."""
        grows = free > self.free[-1][1]
        self.free.append((now, free))
        if not grows:
            return []
        if self.growths:
            time = max(time, self.growths[-1])
        self.growths.append(time)
        due = [(core, time + later) for core, since, later in self.waiters if time + later > since]
        self.waiters = [waiter for waiter in self.waiters if time + waiter[2] <= waiter[1]]
        return due

    def wait(self, core: Any, now: float, later: float) -> float | None:
        """When a core that found no room is to look again; None: it is told."""
        growth = len(self.growths)
        while growth and self.growths[growth - 1] + later > now:
            growth -= 1
        if growth < len(self.growths):
            return self.growths[growth] + later
        self.waiters.append((core, now, later))
        return None

    def forget(self) -> None:
        """The host has seen all cores at rest: everything is known everywhere."""
        self.free = [(START, self.free[-1][1])]
        self.growths.clear()
        self.waiters = [waiter for waiter in self.waiters if waiter[0].pending]
