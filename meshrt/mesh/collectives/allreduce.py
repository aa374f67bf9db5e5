"""Reduce and allreduce along lines: every core's tile is combined with those of its line, software adding on the way.

`with` installs the routes of a pattern on all lines of an axis, and leaving it frees them: `ktree`, `pipeline`, `ring`.

On a device with `stream_adds`, combinations that go number by number (NumPy's own functions of two operands) are
streamed: a core passes on each word as it has combined it, and so does the root, whose broadcast begins with the first
word. Others, such as the merge of softmax parts, take a tile when all of it is in.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.collectives.grouping import best_groups
from meshrt.mesh.wires import fabric, routes
from meshrt.mesh.wires.tables import Channel, installed

Combine = Callable[..., np.ndarray]


@dataclass(frozen=True, eq=False)
class Tree:
    """A K-tree or a pipeline along every line: at each step some cores send and others add; the root multicasts."""

    axis: str
    root: int
    groups: tuple[int, ...]  # in all phases but the last
    steps: tuple[tuple[Channel, np.ndarray, np.ndarray], ...]  # (routes, senders, receivers), bool [N]
    adders: np.ndarray  # bool [N]: who receives in any step
    spread: Channel


@dataclass(frozen=True, eq=False)
class ScatterRing:
    """An interleaved ring along every line on which tiles go round in N chunks."""

    axis: str
    channel: Channel
    place: np.ndarray  # int [N], of every core on the ring
    buffers: dict[Any, np.ndarray] = field(default_factory=dict)  # chunks of the last allreduce; its shape and type


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
    """Install the pattern of that name; phases, groups and nbytes are those of `ktree`, and of no meaning to others."""
    with (
        ktree(block, axis, phases, groups, nbytes)
        if kind == "ktree"
        else pipeline(block, axis)
        if kind == "pipeline"
        else ring(block, axis)
    ) as made:
        yield made


@contextmanager
def ktree(
    block: Block, axis: str, phases: int = 2, groups: int | tuple[int, ...] | None = None, nbytes: int = 64
) -> Iterator[Tree]:
    """Install the K-tree of `routes.ktree` along every line of the axis: two colours a phase, and one to spread.

    `groups`: their number in the first phase, or in each but the last. Without, a line of more than `LONG` cores gets
    those that are measured to be the fastest for tiles of `nbytes` (grouping.py). UsageError, LimitError.
    """
    n = block.mesh.length(axis)
    if groups is None:
        groups = best_groups(block, n, phases, nbytes)
    with _tree(block, axis, routes.ktree(n, phases, groups)) as tree:
        yield tree


@contextmanager
def pipeline(block: Block, axis: str) -> Iterator[Tree]:
    """Install a chain of additions to core 0 of every line, and its multicast: three colours (section 6.1)."""
    with _tree(block, axis, routes.pipeline(block.mesh.length(axis))) as tree:
        yield tree


@contextmanager
def ring(block: Block, axis: str) -> Iterator[ScatterRing]:
    """Install an interleaved ring along every line of the axis: three colours (waferllm, section 6.1).

    On an open line a ring comes back, by two hops at every step or by N - 1 at one: either way a chunk that goes round
    takes 2 N hops, and each link carries one chunk a step in both directions, so that a second ring would gain nothing.
    """
    n = block.mesh.length(axis)
    with installed(block.tables, axis, routes.interleaved_ring(n)) as channel:
        yield ScatterRing(axis, channel, np.array(routes.ring_place(n)))


@contextmanager
def _tree(block: Block, axis: str, tree: routes.Tree) -> Iterator[Tree]:
    with ExitStack() as stack:
        steps = []
        for level in tree.levels:
            channel = stack.enter_context(installed(block.tables, axis, level.routes))
            stops = {route.source: route.stops[0] for route in level.routes}
            for senders in level.steps:
                steps.append((channel, _marks(tree.n, senders), _marks(tree.n, (stops[core] for core in senders))))
        spread = stack.enter_context(installed(block.tables, axis, routes.multicast(tree.n, tree.root)))
        adders = _marks(tree.n, (int(core) for _, _, receivers in steps for core in np.flatnonzero(receivers)))
        yield Tree(axis, tree.root, tree.groups, tuple(steps), adders, spread)


def _marks(n: int, cores: Iterable[int]) -> np.ndarray:
    marks = np.zeros(n, bool)
    marks[list(cores)] = True
    return marks


# ------------------------------------------------------------------------------------------------------------ trees


def reduce(block: Block, tree: Tree, tiles: np.ndarray, combine: Combine = np.add) -> np.ndarray:
    """Combine the tiles [bh, bw, *tile] of every line at its root; the other cores are left with partial ones."""
    partial = _combine(block, tree, block.memory.keep("sum", tiles.copy()), combine, None)
    if tree.steps and _streams(block, combine):
        fabric.tail(block, tree.spread, partial, tree.adders)
    return partial


def _combine(block: Block, tree: Tree, partial: np.ndarray, combine: Combine, lines: np.ndarray | None) -> np.ndarray:
    """The steps of a reduction, in place. Where it streams, the adders' clocks have the time of the first word.

    A core adds to its own tile what comes in, word by word as it comes, or, where it does not stream, out of a buffer.
    """
    stream = _streams(block, combine)
    numbers = prod(partial.shape[2:])
    with block.memory.hold("incoming partial sum", 0 if stream else numbers * partial.itemsize):
        for channel, senders, receivers in tree.steps:
            fabric.transfer(
                block, channel, partial, partial, positions=senders, lines=lines, combine=combine, stream=stream
            )
            fabric.stage(block, channel, 0 if stream else numbers, receivers, lines)
    return partial


def _streams(block: Block, combine: Combine) -> bool:
    return block.device.stream_adds and isinstance(combine, np.ufunc)


# -------------------------------------------------------------------------------------------------------- allreduce


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
    `out`, which may be `tiles`, or in fresh core memory: LimitError.

    A tree reduces to its root, which sends the result both ways. A ring cuts tiles into chunks anywhere: it takes
    NumPy's functions of two operands, such as np.add and np.maximum, and refuses others with a UsageError.
    """
    block.check_lead(tiles)
    if out is None:
        out = block.empty("sum", tiles.shape[2:], tiles.dtype)
    if isinstance(way, ScatterRing):
        assert lines is None, "a ring takes all lines"
        return _around(block, way, tiles, combine, out)
    if out is not tiles:
        np.copyto(out, tiles)
    partial = _combine(block, way, out, combine, lines)
    if not way.steps:
        return partial
    stream = _streams(block, combine)
    fabric.transfer(block, way.spread, partial, partial, lines=lines, stream=stream)
    if stream:
        fabric.tail(block, way.spread, partial, np.ones(way.spread.length, bool), lines)
    return partial


def _around(block: Block, way: ScatterRing, tiles: np.ndarray, combine: Combine, out: np.ndarray) -> np.ndarray:
    """Reduce-scatter, then allgather: 2 (N - 1) steps, in which every core sends one chunk to the next on the ring.

    At step s core p passes on chunk p - s, to which those before it have added; after N - 1 steps it has all of chunk
    p + 1, and in as many steps more all cores have all chunks. A tile that N does not divide is padded.

    In a core, chunks are in their places in `out`, but for the padding, and beside them is the one that comes in, if it
    has to be whole before it is added. The host keeps them apart, in an order that lets all cores send from one place.
    """
    if not isinstance(combine, np.ufunc):
        raise UsageError(
            f"a ring allreduce cuts tiles into chunks, which {getattr(combine, '__name__', combine)} may not allow:"
            " use a K-tree or a pipeline, or a NumPy function of two operands"
        )
    n = way.channel.length
    if n == 1:
        np.copyto(out, tiles)
        return out
    stream, numbers = _streams(block, combine), prod(tiles.shape[2:])
    size = -(-numbers // n)
    lead = tiles.shape[:2]
    whole = tiles.reshape(*lead, numbers)
    if n * size != numbers:
        whole = np.concatenate([whole, np.zeros((*lead, n * size - numbers), tiles.dtype)], axis=2)
    whole = whole.reshape(*lead, n, size)
    rows, columns = np.arange(lead[0])[:, None], np.arange(lead[1])
    low = block.mesh.offset(way.axis)
    place = way.place[low : low + lead[1 if way.axis == "x" else 0]]
    place = place if way.axis == "x" else place[:, None]
    kind = (n, *lead, size), tiles.dtype
    if kind not in way.buffers:  # fresh memory can cost the host more than all the rest
        way.buffers.clear()
        way.buffers[kind] = np.empty(*kind)
    chunks = way.buffers[kind]  # at s, chunk p - s of core p: all send from one place
    for back in range(n):
        chunks[back] = whole[rows, columns, (place - back) % n]
    everyone = np.ones(n, bool)
    with block.memory.hold("ring chunks", (n * size - numbers + (0 if stream else size)) * tiles.itemsize):
        for step in range(n - 1):
            fabric.transfer(block, way.channel, chunks[step], chunks[step + 1], combine=combine, stream=stream)
            fabric.stage(block, way.channel, 0 if stream else size, everyone)
        for step in range(n - 1):
            if step:  # what came in the step before is passed on
                fabric.stage(block, way.channel, 0, everyone)
            fabric.transfer(block, way.channel, chunks[step - 1], chunks[step], stream=stream)
        if stream:
            fabric.tail(block, way.channel, chunks[0], everyone)
    direct = n * size == numbers and out.flags.c_contiguous
    result = out.reshape(*lead, n, size) if direct else np.empty((*lead, n, size), tiles.dtype)
    for back in range(n):
        result[rows, columns, (place - back) % n] = chunks[back]
    if not direct:
        out[...] = result.reshape(*lead, n * size)[:, :, :numbers].reshape(tiles.shape)
    return out
