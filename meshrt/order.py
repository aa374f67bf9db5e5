"""Is a link given to the head that asks first? Where transfers follow each other in a program, that is not certain.

A transfer is replayed when the program starts it. If a later one has a head that asked for a link before one of the
earlier transfer did, it goes before that where the link was idle for long enough; else it waits, where on the machine
the other would have. Such heads are counted: `out_of_order`, and the longest of their waits. A run that counts none is
exact to the cycle.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from meshrt.block import Block
    from meshrt.schedule import Schedule
    from meshrt.views import View


@dataclass(frozen=True, eq=False)
class User:
    """The transfer that was last on the links along an axis."""

    plan: "Schedule"
    views: "tuple[View, ...]"
    busy: float
    unseen: bool  # it was there more than once, and the last time nobody wrote down when it asked


def begin_use(block: "Block", axes: str, plan: "Schedule", views: "tuple[View, ...]", busy: float) -> bool:
    """A transfer begins: must its heads be checked at links along these axes? All ranks find the same.

    Not where the same transfer was the last one there: what comes from the same cores the same way stays in order.
    """
    users = block.clock.users
    if all(
        (user := users.get(axis)) is not None and user.plan is plan and user.views is views and user.busy == busy
        for axis in axes
    ):
        for axis in axes:
            users[axis] = User(plan, views, busy, True)
        return False
    end_of_use(block, axes)
    for axis in axes:
        users[axis] = User(plan, views, busy, False)
    return True


def end_of_use(block: "Block", axes: str = "xy") -> None:
    """Others come: what was not written down when heads asked for links is when they got them."""
    clock = block.clock
    for axis in axes:
        user = clock.users.pop(axis, None)
        if user is not None and user.unseen:
            for view in user.views:
                for way, cores, _ in user.plan.crossings:
                    asked, free = view.of(clock.asked[way]), view.of(clock.link_free[way])
                    asked[:, cores] = np.maximum(asked[:, cores], free[:, cores] - user.busy)


def give(
    block: "Block", asks: np.ndarray, busy: float | np.ndarray, free: np.ndarray, asked: np.ndarray, idle: np.ndarray
) -> np.ndarray:
    """Heads ask for links, each of them for another: when they get them. The links' arrays are brought up to date.

    `free`: when the links are free; `asked`: when the heads asked that they were last given to; `idle`: from when on
    they were idle before that, until then. A head that asked in that time, and is over before its end, goes then.
    """
    waits = free > asks
    if not waits.any():
        np.copyto(idle, free)
        np.copyto(asked, asks)
        np.add(asks, busy, out=free)
        return asks  # the array itself: most are given what they ask for
    some = np.nonzero(waits)
    ask, until, low, high = asks[some], free[some], idle[some], asked[some]
    each = busy[some] if isinstance(busy, np.ndarray) else busy
    begin = np.maximum(ask, low)
    inside = begin + each <= high
    late = (high > ask) & ~(inside & (ask >= low))
    begin = np.where(inside, begin, until)
    number = int(np.count_nonzero(late))
    if number:
        counters = block.counters
        counters.out_of_order += number
        counters.longest_wait = max(counters.longest_wait, float((begin - ask)[late].max()))
    start = asks.copy()
    start[some] = begin
    np.copyto(idle, free)
    np.copyto(asked, asks)
    np.add(start, busy, out=free)
    idle[some] = np.where(inside, begin + each, until)
    asked[some] = np.maximum(high, ask)
    free[some] = np.where(inside, until, begin + each)
    return start
