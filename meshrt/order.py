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
    late = asked > asks
    if late.any():
        return _give_late(block, asks, busy, free, asked, idle, np.nonzero(late))
    start: np.ndarray = np.maximum(asks, free)
    np.copyto(idle, free)
    np.copyto(asked, asks)
    np.add(start, busy, out=free)
    return start


def _give_late(
    block: "Block", asks: np.ndarray, busy: float | np.ndarray, free: np.ndarray, asked: np.ndarray, idle: np.ndarray,
    late: tuple[np.ndarray, ...],
) -> np.ndarray:  # fmt: skip
    """As `give`, where some links were given before to heads that ask later than now."""
    ask, until, low, high = asks[late], free[late], idle[late], asked[late]
    each = busy[late] if isinstance(busy, np.ndarray) else busy
    begin = np.maximum(ask, low)
    inside = begin + each <= high
    wait = np.where(inside, begin, until) - ask
    held_up = ~(inside & (ask >= low))
    counters = block.counters
    counters.out_of_order += int(np.count_nonzero(held_up))
    counters.longest_wait = max(counters.longest_wait, float(wait[held_up].max(initial=0.0)))
    start: np.ndarray = np.maximum(asks, free)
    start[late] = np.where(inside, begin, until)
    np.copyto(idle, free)
    np.copyto(asked, asks)
    np.add(start, busy, out=free)
    idle[late], asked[late] = np.where(inside, begin + each, until), high
    free[late] = np.where(inside, until, until + each)
    return start
