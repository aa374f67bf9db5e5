"""Reduce and allreduce along lines: every core's tile is combined with those of its line, software adding on the way.

`with` installs the routes of a pattern on all lines of an axis, and leaving it frees them.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod

import numpy as np

from meshrt import fabric, routes
from meshrt.block import Block
from meshrt.tables import Channel, installed


@dataclass(frozen=True, eq=False)
class Tree:
    """A K-tree along every line: at each step some cores send and others add; `spread` is the root's multicast."""

    axis: str
    root: int
    steps: tuple[tuple[Channel, np.ndarray, np.ndarray], ...]  # (routes, senders, receivers), bool [N]
    spread: Channel


@contextmanager
def ktree(block: Block, axis: str, phases: int = 2, groups: int | None = None) -> Iterator[Tree]:
    """Install the K-tree of `routes.ktree` along every line of the axis: two colours a phase, and one to spread."""
    n = block.mesh.length(axis)
    tree = routes.ktree(n, phases, groups)
    with ExitStack() as stack:
        steps = []
        for level in tree.levels:
            channel = stack.enter_context(installed(block.tables, axis, level.routes))
            stops = {route.source: route.stops[0] for route in level.routes}
            for senders in level.steps:
                steps.append((channel, _marks(n, senders), _marks(n, (stops[core] for core in senders))))
        spread = stack.enter_context(installed(block.tables, axis, routes.multicast(n, tree.root)))
        yield Tree(axis, tree.root, tuple(steps), spread)


def _marks(n: int, cores: Iterable[int]) -> np.ndarray:
    marks = np.zeros(n, bool)
    marks[list(cores)] = True
    return marks


def reduce(block: Block, tree: Tree, tiles: np.ndarray, combine: Callable[..., np.ndarray] = np.add) -> np.ndarray:
    """Combine the tiles [bh, bw, *tile] of every line at its root; the other cores are left with partial ones."""
    partial = tiles.copy()
    numbers = prod(tiles.shape[2:])
    with block.memory.hold("incoming partial sum", numbers * tiles.itemsize):
        for channel, senders, receivers in tree.steps:
            fabric.transfer(block, channel, partial, partial, positions=senders, combine=combine)
            fabric.stage(block, channel, numbers, receivers)
    return partial


def allreduce(block: Block, tree: Tree, tiles: np.ndarray, combine: Callable[..., np.ndarray] = np.add) -> np.ndarray:
    """K-tree allreduce (waferllm, section 6.2): reduce to the root, which then sends the result both ways."""
    partial = reduce(block, tree, tiles, combine)
    return fabric.transfer(block, tree.spread, partial, partial)
