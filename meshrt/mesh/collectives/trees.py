"""Trees of additions along lines: every core's tile is combined towards one root, software adding on the way.

On a device with `stream_adds`, combinations that go number by number (NumPy's own functions of two operands) are
streamed: a core passes on each word as it has combined it, and so does the root, whose broadcast begins with the first
word. Others, such as the merge of softmax parts, take a tile when all of it is in.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import field, replace
from math import prod
from typing import Any

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.collectives import treeplan
from meshrt.mesh.wires import fabric, software, sums
from meshrt.mesh.wires.lines import marked
from meshrt.mesh.wires.planning import check_chosen
from meshrt.mesh.wires.sumtables import Part, Table
from meshrt.mesh.wires.tables import Channel, check_installed, installed
from meshrt.records import dataclass

Combine = Callable[..., np.ndarray]


@dataclass(frozen=True, eq=False)
class Plan:
    """What a sum does, each time: transfers, and what software then does. Made once."""

    adding: tuple[Part, ...]
    spreading: tuple[Part, ...]
    tables: dict[bool, dict[int, Table | None]] = field(default_factory=dict)  # for the compiled core, of np.add or not


@dataclass(frozen=True, eq=False)
class Tree:
    """A K-tree or a pipeline along every line: at each step some cores send and others add; the root multicasts."""

    axis: str
    root: int
    groups: tuple[int, ...]  # in all phases but the last
    steps: tuple[tuple[Channel, np.ndarray, np.ndarray], ...]  # (routes, senders, receivers), bool [N]
    adders: np.ndarray  # bool [N]: who receives in any step
    spread: Channel
    within: np.ndarray | None = None  # bool [N]: only these cores of each line take part
    stores: Mapping[int, np.ndarray] = field(default_factory=dict)  # bool [N]: who waits for all of a sum after a step
    plans: dict[Any, Plan] = field(default_factory=dict)  # of parts of a sum, by kind of tile and lines

    def only(self, low: int, high: int) -> "Tree":
        """Of trees on several stretches, that of the cores low to high - 1."""
        within = (np.arange(len(self.adders)) >= low) & (np.arange(len(self.adders)) < high)
        steps = [(channel, senders & within, receivers & within) for channel, senders, receivers in self.steps]
        stores = {step: cores & within for step, cores in self.stores.items()}
        return replace(self, steps=tuple(steps), adders=self.adders & within, within=within, stores=stores, plans={})


@contextmanager
def installed_tree(block: Block, axis: str, tree: treeplan.TreeRoutes, stored: bool = False) -> Iterator[Tree]:
    """Install a tree along every line of the axis, two colours a phase and one to spread. LimitError.

    `stored`: the roots of a phase have all of their sums in memory before the next one begins, even where words could
    be passed on as they come.
    """
    n = block.mesh.length(axis)
    with ExitStack() as stack:
        steps, stores = [], {}
        for level in tree.levels:
            channel = stack.enter_context(installed(block, axis, level.routes))
            stops = {route.source: route.stops[0] for route in level.routes}
            for senders in level.steps:
                steps.append((channel, marked(n, senders), marked(n, (stops[core] for core in senders))))
            if stored:
                stores[len(steps) - 1] = marked(n, set(stops.values()) - set(stops))
        spread = stack.enter_context(installed(block, axis, tree.spread))
        adders = marked(n, (int(core) for _, _, receivers in steps for core in np.flatnonzero(receivers)))
        yield Tree(axis, tree.root, tree.groups, tuple(steps), adders, spread, stores=stores)


def reduce(block: Block, tree: Tree, tiles: np.ndarray, combine: Combine = np.add) -> np.ndarray:
    """Combine the tiles [bh, bw, *tile] of every line at its root; the other cores are left with partial ones."""
    partial = _combine(block, tree, block.memory.keep("sum", tiles.copy()), combine, None, _adding)
    if tree.steps and streams(block, combine):
        software.tail(block, tree.spread, partial, tree.adders)
    return partial


def reduce_and_spread(
    block: Block, tree: Tree, partial: np.ndarray, combine: Combine = np.add, lines: np.ndarray | None = None
) -> np.ndarray:
    """Combine tiles at every line's root, which sends the result both ways to all; in place."""
    return _combine(block, tree, partial, combine, lines, _adding_and_spreading)


def _combine(
    block: Block, tree: Tree, partial: np.ndarray, combine: Combine, lines: np.ndarray | None, part: Callable[..., Any]
) -> np.ndarray:  # fmt: skip
    """The steps of a reduction, in place. Where it streams, the adders' clocks have the time of the first word.

    A core adds to its own tile what comes in, word by word as it comes, or, where it does not stream, out of a buffer.
    """
    stream = streams(block, combine)
    plan = _planned(block, tree, partial, stream, lines, part)
    buffer = None if stream else ("incoming partial sum", prod(partial.shape[2:]) * partial.itemsize)
    with nullcontext() if buffer is None else block.memory.hold(*buffer):
        if _at_once(block, plan, partial, combine):
            return partial
        _follow(block, plan.adding, partial, combine)
    _follow(block, plan.spreading, partial, None)
    return partial


def _at_once(block: Block, plan: Plan, partial: np.ndarray, combine: Combine) -> bool:
    """Is all of it done by the compiled core? A table for that pays where it is used again."""
    tables = plan.tables.get(combine is np.add)
    if tables is None:
        plan.tables[combine is np.add] = {}
        return False
    return sums.add_up(block, plan.adding + plan.spreading, tables, partial, combine)


def _follow(block: Block, parts: Sequence[Part], partial: np.ndarray, combine: Combine | None) -> None:
    for channel, prepared, _, works in parts:
        fabric.transfer_again(block, channel, prepared, partial, combine)
        for work in works:
            software.do(block, work)


def _planned(
    block: Block, tree: Tree, partial: np.ndarray, stream: bool, lines: np.ndarray | None, part: Callable[..., Any]
) -> Plan:  # fmt: skip
    """That part of a sum of such tiles: made once, and again where a router's table was changed. RouteError."""
    if not block.timed:
        return Plan((), ((tree.spread, None, False, ()),))
    check_installed(tree.spread)
    check_chosen(block, tree.spread, tree.within, lines)
    kind = part, partial.shape, partial.dtype, stream, None if lines is None else lines.tobytes(), block.tables.epoch
    plan = tree.plans.get(kind)
    if plan is None:
        parts = [
            (*sent, tuple(work for work in works if work is not None))
            for *sent, works in part(block, tree, partial, stream, lines)
        ]
        adding = tuple(each for each in parts if each[2])
        plan = tree.plans[kind] = Plan(adding, tuple(each for each in parts if not each[2]))
    return plan


def _adding(
    block: Block, tree: Tree, partial: np.ndarray, stream: bool, lines: np.ndarray | None
) -> Iterator[tuple[Any, ...]]:  # fmt: skip
    """Towards the root: who adds what comes, and who then waits for the rest of it."""
    numbers, cycles = prod(partial.shape[2:]), software.streaming_cycles(block, partial)
    for at, (channel, senders, receivers) in enumerate(tree.steps):
        works = [software.staging(block, channel, numbers, receivers, lines, stream, partial.itemsize)]
        if stream and at in tree.stores:
            works.append(software.running(block, channel, cycles, tree.stores[at], lines))
        yield channel, fabric.prepare(block, channel, partial, senders, lines, stream), True, works


def _spreading(
    block: Block, tree: Tree, partial: np.ndarray, stream: bool, lines: np.ndarray | None
) -> Iterator[tuple[Any, ...]]:  # fmt: skip
    """From the root to all cores, which wait for the rest of what comes as a stream."""
    within = np.ones(tree.spread.length, bool) if tree.within is None else tree.within
    cycles = software.streaming_cycles(block, partial) if stream else 0.0
    waits = software.running(block, tree.spread, cycles, within, lines)
    yield tree.spread, fabric.prepare(block, tree.spread, partial, tree.within, lines, stream), False, (waits,)


def _adding_and_spreading(
    block: Block, tree: Tree, partial: np.ndarray, stream: bool, lines: np.ndarray | None
) -> Iterator[tuple[Any, ...]]:  # fmt: skip
    yield from _adding(block, tree, partial, stream, lines)
    if tree.steps:
        yield from _spreading(block, tree, partial, stream, lines)


def streams(block: Block, combine: Combine) -> bool:
    return block.device.stream_adds and isinstance(combine, np.ufunc)
