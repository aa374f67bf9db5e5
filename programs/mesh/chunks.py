"""How the dimensions of a model are cut over the mesh.

Every dimension is cut into P = lcm(W, H) chunks, so that all matrices fit together on any mesh:

    E  embedding       P chunks of ceil(E / P)
    F  feed-forward    the same
    V  vocabulary      the same
    r  between factors the same
    D  a head          chunks of rotary pairs (d, d + D/2), so that rotary embedding needs no neighbour; a head of odd
                       size, which has none, has one number without a second

Heads either lie over the whole width, P chunks each, so that every core has a share of every head and any number of
heads runs on any mesh; or, where a head has too few pairs for that, they form groups side by side, each on columns of
its own, and products of heads stay inside a group (waferllm, section 4.4).

A chunk is written down as the numbers of its elements in the checkpoint, -1 for padding: one table [P, size] holds
cut, padding and order.
"""

from collections.abc import Sequence
from contextlib import suppress
from math import lcm

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.mesh import Mesh
from meshrt.mesh.tiles import square
from meshrt.models.config import Config
from meshrt.records import dataclass


@dataclass(frozen=True)
class Chunks:
    """The tables of a model's dimensions on a mesh, and the sizes of one chunk."""

    sides: int  # P
    groups: int  # of heads, side by side
    group_width: int  # columns of cores of one group; those that remain at the east end have no head
    heads: int  # query heads of a group
    kv_heads: int
    rows: int  # chunks along y at one core, P / H
    columns: int  # along x, P / W
    embedding: np.ndarray
    vocabulary: np.ndarray
    queries: np.ndarray  # [P, heads * Dt], each head as [first halves of its pairs, second halves]
    keys: np.ndarray  # [P, kv heads * Dt]

    @property
    def slots(self) -> int:
        """Places of a ring inside a group, P in all, at one core."""
        return self.sides // self.group_width


def cut_dimensions(block: Block, config: Config, groups: int | None = None, in_pairs: bool = True) -> Chunks:
    """The chunks of every dimension of the model on this mesh. UsageError where the heads do not form such groups.

    `in_pairs` False: a chunk of a head may have an odd number, which is in no rotary pair there.
    """
    sides, _ = square(block.mesh)
    groups = best_groups((block.mesh,), config) if groups is None else groups
    width = group_width(block.mesh, config, groups)
    heads, kv_heads = config.heads // groups, config.kv_heads // groups
    queries, keys = (head_chunks(count, config.head_dim, groups, width, sides) for count in (heads, kv_heads))
    if not in_pairs and -(-config.head_dim // sides) % 2:
        assert config.heads == 1
        queries = keys = plain(config.head_dim, sides)
    return Chunks(
        sides,
        groups,
        width,
        heads,
        kv_heads,
        sides // block.mesh.height,
        sides // block.mesh.width,
        plain(config.hidden_size, sides),
        plain(config.vocab_size, sides),
        queries,
        keys,
    )


def best_groups(meshes: Sequence[Mesh], config: Config) -> int:
    """The number of head groups that leaves the least work to a core of the first of these meshes, of those that all of
    them can have; the fewest of several that do.
    """
    work = {}
    for groups in range(1, config.kv_heads + 1):
        with suppress(UsageError):
            width, *_ = [group_width(mesh, config, groups) for mesh in meshes]
            pairs = -(-config.head_dim // 2 // parts(meshes[0], groups, width))
            work[groups] = config.heads // groups * pairs
    return min(work, key=lambda groups: (work[groups], groups))


def parts(mesh: Mesh, groups: int, width: int) -> int:
    """Chunks that a head is cut into."""
    return lcm(mesh.width, mesh.height) if groups == 1 else width


def group_width(mesh: Mesh, config: Config, groups: int) -> int:
    """Columns of each of so many head groups: the most that divide the mesh's side. UsageError."""
    if groups == 1:
        return mesh.width
    if config.kv_heads % groups:
        raise UsageError(f"{groups} head groups do not divide the model's {config.kv_heads} key and value heads")
    if mesh.width != mesh.height:
        raise UsageError(f"{groups} head groups need a square mesh, not {mesh.width} x {mesh.height}: leave it at 1")
    if groups > mesh.width:
        raise UsageError(f"{groups} head groups are more than the mesh's {mesh.width} columns")
    return next(width for width in range(mesh.width // groups, 0, -1) if mesh.width % width == 0)


def plain(size: int, sides: int) -> np.ndarray:
    """A dimension in order: [sides, ceil(size / sides)]."""
    table = np.arange(sides * -(-size // sides)).reshape(sides, -1)
    return np.where(table < size, table, -1)


def head_chunks(count: int, head_dim: int, groups: int, width: int, sides: int) -> np.ndarray:
    """A dimension of several heads, each cut by rotary pairs: [sides, count * 2 * pairs of a chunk].

    `count` heads to a group. One group spreads over all chunks; several have `width` chunks each, one a column.
    """
    across = sides if groups == 1 else width
    pairs = -(-head_dim // 2)
    pair = plain(pairs, across)[:, None, None, :]
    place = pair + np.array([0, pairs])[None, None, :, None]
    start = (np.arange(count) * head_dim)[None, :, None, None]
    table = np.where((pair >= 0) & (place < head_dim), start + place, -1).reshape(across, -1)
    offset = np.repeat(np.arange(groups) * count * head_dim, across)[:, None]
    tables = np.tile(table, (groups, 1))
    tables = np.where(tables >= 0, tables + offset, -1)
    return np.pad(tables, ((0, sides - len(tables)), (0, 0)), constant_values=-1)
