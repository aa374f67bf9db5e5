"""All hops of a transfer at once: where no head has to wait for a link, each is where it is alpha a hop later.

Most transfers on small blocks are such: when their heads would ask for each link is compared with when it is free, all
in one, and only where one of them has to wait is the transfer moved tick by tick (replay.py), with the same result.
"""

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from meshrt.mesh.clock import LINK_FREE
from meshrt.mesh.cores import Cores
from meshrt.mesh.wires import order
from meshrt.mesh.wires.lines import Positions, View, as_index
from meshrt.records import dataclass

if TYPE_CHECKING:
    from meshrt.mesh.wires.schedule import Schedule

ROOM = 4096  # heads, of all routers that they come to: for more the arrays are large, and views of them faster


@dataclass(frozen=True, eq=False)
class Glide:
    """The heads of a lane at all routers that they come to. Positions are in flat arrays; int64."""

    starts: Positions  # times at which the packets leave their cores
    heads: np.ndarray  # [hops + 1, lines, packets]: when each is at a router, after so many hops
    rows: list[tuple[np.ndarray, np.ndarray]]  # (heads before a hop, after it)
    flat: np.ndarray  # all heads
    asks: np.ndarray  # positions in `flat` of those that ask for links
    links: np.ndarray  # positions of these links in the clock's cells: when they are free
    seen: np.ndarray  # and in its `asked_at` and `idle`
    ends: np.ndarray  # [lines, cores that get packets]: positions in `flat`


def glide_of(block: Cores, schedule: "Schedule", view: View, time: np.ndarray) -> Glide | None:
    """For the only batch of a schedule, all lines of a view; None where its packets go to other ranks, meet, are very
    many, or pass defects. `time`: that of its headers.
    """
    (batch,) = schedule.batches
    sources = np.concatenate([np.arange(batch.slots)[slots] for slots, _ in batch.sources] or [np.zeros(0, np.int64)])
    hops = max((tick.number for tick in batch.ticks), default=0)
    shape = hops + 1, view.count, len(sources)
    size = block.shape[0] * block.shape[1]
    if batch.messages or block.clock.late is not None or shape[0] * shape[1] * shape[2] > ROOM:
        return None
    index = np.arange(shape[0] * shape[1] * shape[2]).reshape(shape)
    core = view.of(np.arange(size).reshape(block.shape))
    root = np.zeros(batch.slots, np.int64)  # number of the packet that each slot is of
    root[sources] = np.arange(len(sources))
    asks, ways, cores = [], [], []
    ends = np.zeros((view.count, schedule.count), np.int64)
    for tick in batch.ticks:
        for parents, copies in tick.branches:
            root[copies] = root[parents]
        for port, slots, at in tick.moves:
            asks.append(index[tick.number - 1][:, root[slots]].ravel())
            cores.append(core[:, at].ravel())
            ways.append(np.full(cores[-1].size, port))
        for slots, _, number in tick.deliveries:
            ends[:, number] = index[tick.number][:, root[slots]]
    if not asks:
        return None
    way, at = np.concatenate(ways), np.concatenate(cores)
    if len(at) > ROOM or np.bincount(way * size + at).max() > 1:
        return None
    heads = np.empty(shape)
    rows = list(pairwise(heads))
    links = (LINK_FREE + way) * block.clock.cells.shape[1] + at
    starts = Positions(time, as_index(sources))
    return Glide(starts, heads, rows, heads.reshape(-1), np.concatenate(asks), links, way * size + at, ends)


def glide(block: Cores, prepared: Glide, busy: float, watch: bool, landed: np.ndarray) -> bool:
    """Move the packets, that have left their cores, to where they are delivered: `landed` are their times there. False,
    and nothing is changed, where a head has to wait. `busy` and `watch` are those of a `Passage` (heads.py).
    """
    alpha, clock = block.device.alpha, block.clock
    prepared.heads[0] = prepared.starts.get()
    for before, after in prepared.rows:
        np.add(before, alpha, out=after)
    if busy:
        asks, cells = prepared.flat[prepared.asks], clock.cells.reshape(-1)
        free = cells[prepared.links]
        if order.some(free > asks):
            return False
        cells[prepared.links] = asks + busy
        if watch:
            clock.asked_at.reshape(-1)[prepared.seen] = asks
            clock.idle.reshape(-1)[prepared.seen] = free
    landed[...] = prepared.flat[prepared.ends]
    return True
