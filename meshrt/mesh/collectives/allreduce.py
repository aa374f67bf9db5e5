"""Allreduce along lines: all cores of a line get the combination of their tiles, software adding on the way.

`with` installs the routes of a pattern on all lines of an axis, and leaving it frees them: `ktree`, `pipeline`, and
`ring` of scatter.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from operator import index
from typing import Any, Literal

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.collectives import treeplan
from meshrt.mesh.collectives.grouping import best_groups
from meshrt.mesh.collectives.scatter import ScatterRing, around, ring
from meshrt.mesh.collectives.trees import Combine, Tree, installed_tree, reduce_and_spread
from meshrt.mesh.wires import software

Pattern = Tree | ScatterRing


@contextmanager
def pattern(
    block: Block,
    kind: Literal["ktree", "pipeline", "ring"],
    axis: str,
    phases: int = 2,
    groups: int | tuple[int, ...] | None = None,
    nbytes: int = 64,
) -> Iterator[Pattern]:
    """Install the pattern of that name; phases, groups and nbytes are those of `ktree`, and of no meaning to others.

    UsageError for another name.
    """
    if kind not in ("ktree", "pipeline", "ring"):
        raise UsageError(f"a sum by {kind!r}: choose 'ktree', 'pipeline' or 'ring'")
    with (
        ktree(block, axis, phases, groups, nbytes)
        if kind == "ktree"
        else pipeline(block, axis)
        if kind == "pipeline"
        else ring(block, axis)
    ) as chosen:
        yield chosen


@contextmanager
def ktree(
    block: Block, axis: str, phases: int = 2, groups: int | tuple[int, ...] | None = None, nbytes: int = 64,
    stretches: tuple[int, int] | None = None, stored: bool = False,
) -> Iterator[Tree]:  # fmt: skip
    """Install the K-tree of treeplan.py along every line of the axis: two colours a phase, and one to spread.

    `stretches`, (count, cores): a tree on each of so many stretches of every line, side by side from its first core on.

    `stored` as in `installed_tree`.

    `groups`: their number in the first phase, or in each but the last. Without, a line of more than `LONG` cores gets
    those that are measured to be the fastest for tiles of `nbytes` (grouping.py). UsageError, LimitError.
    """
    copies, n = (1, block.mesh.length(axis)) if stretches is None else _stretches(stretches, block.mesh.length(axis))
    counts = best_groups(block, n, phases, nbytes) if groups is None else _counts(groups)
    plan = treeplan.ktree(n, phases, counts)
    plan = plan if stretches is None else treeplan.on_stretches(plan, copies)
    with installed_tree(block, axis, plan, stored) as tree:
        yield tree


def _stretches(stretches: Any, length: int) -> tuple[int, int]:
    """How many, and of how many cores each, as plain numbers. UsageError for what is none, or has no room on a line."""
    try:
        copies, n = map(index, stretches)
    except (TypeError, ValueError):
        copies = n = 0
    if min(copies, n) < 1 or copies * n > length:
        raise UsageError(
            f"stretches {stretches!r} of a line of {length} cores: give how many, and of how many cores each, from 1 on"
            f" and {length} in all at most, such as (1, {length})"
        )
    return copies, n


def _counts(groups: Any) -> tuple[int, ...]:
    """Numbers of groups, NumPy's as well and in any sequence, as plain ones. UsageError for what is none."""
    try:
        return tuple(map(index, (groups,) if isinstance(groups, Integral) else groups))
    except TypeError:
        raise UsageError(
            f"groups {groups!r} of a K-tree: give a whole number, or one for each phase but the last, such as (8, 2)"
        ) from None


@contextmanager
def pipeline(block: Block, axis: str) -> Iterator[Tree]:
    """Install a chain of additions to core 0 of every line, and its multicast: three colours (section 6.1)."""
    with installed_tree(block, axis, treeplan.pipeline(block.mesh.length(axis))) as tree:
        yield tree


def allreduce(
    block: Block,
    way: Pattern,
    tiles: np.ndarray,
    combine: Combine = np.add,
    lines: np.ndarray | None = None,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """All cores of a line get the combination of their tiles [bh, bw, *tile] (waferllm, section 6.2).

    `lines` (bool, over the whole mesh) chooses the lines of a tree; the others keep their tiles. The result is in
    `out`, which may be `tiles`, or in fresh core memory: LimitError. UsageError for tiles that are not those of all
    cores, lines of a ring, and in one's own program where `out` does not fit.

    Software sees to it: all cores are busy with that first. A tree reduces to its root, which sends the result both
    ways. A ring cuts tiles into chunks anywhere: it takes
    NumPy's functions of two operands, such as np.add and np.maximum, and refuses others with a UsageError.
    """
    block.check_lead(tiles)
    if isinstance(way, ScatterRing) and lines is not None:
        raise UsageError("`lines` are those of a tree, and a ring takes all: leave them away, or take a ktree")
    if block.audit is not None:
        block.audit.fits(tiles, out, combine)
    if out is None:
        out = block.empty("sum", tiles.shape[2:], tiles.dtype)
    _begin(block, way, lines)
    if isinstance(way, ScatterRing):
        return around(block, way, tiles, combine, out)
    if out is not tiles:
        np.copyto(out, tiles)
    return reduce_and_spread(block, way, out, combine, lines)


def _begin(block: Block, way: Pattern, lines: np.ndarray | None) -> None:
    """The software of an allreduce, at all cores that take part."""
    routes = way.channel if isinstance(way, ScatterRing) else way.spread
    within = way.within if isinstance(way, Tree) else None
    cycles = block.device.collective_cycles if routes.length > 1 else 0.0
    if lines is None and within is None:
        block.clock.software(cycles)
    else:
        software.run(block, routes, cycles, np.ones(routes.length, bool) if within is None else within, lines)
