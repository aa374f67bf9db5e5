"""Where a model's numbers lie on the mesh: each core's part of every matrix, read straight from the checkpoint.

Every dimension is cut into P = lcm(W, H) chunks, so that all matrices fit together on any mesh:

    E  embedding       P chunks of ceil(E / P)
    F  feed-forward    the same
    V  vocabulary      the same
    D  a head          chunks of rotary pairs (d, d + D/2), so that rotary embedding needs no neighbour

Heads either lie over the whole width, P chunks each, so that every core has a share of every head and any number of
heads runs on any mesh; or, where a head has too few pairs for that, they form groups side by side, each on columns of
its own, and products of heads stay inside a group (waferllm, section 4.4).

A chunk is written down as the numbers of its elements in the checkpoint, -1 for padding: one table [P, size] holds
cut, padding and order. Prefill's layout is W[K_y, N_x]: rows along y, columns along x.
"""

from contextlib import suppress
from dataclasses import dataclass
from math import lcm
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.mesh import Mesh
from meshrt.mesh.tiles import square
from meshrt.models.checkpoint import Checkpoint
from meshrt.models.config import Config


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
    inner: np.ndarray
    vocabulary: np.ndarray
    queries: np.ndarray  # [P, heads * Dt], each head as [first halves of its pairs, second halves]
    keys: np.ndarray  # [P, kv heads * Dt]

    @property
    def slots(self) -> int:
        """Places of a ring inside a group, P in all, at one core."""
        return self.sides // self.group_width


def cut_dimensions(block: Block, config: Config, groups: int | None = None) -> Chunks:
    """The chunks of every dimension of the model on this mesh. UsageError where the heads do not form such groups."""
    sides, _ = square(block.mesh)
    groups = best_groups(block.mesh, config) if groups is None else groups
    width = group_width(block.mesh, config, groups)
    heads, kv_heads = config.heads // groups, config.kv_heads // groups
    return Chunks(
        sides,
        groups,
        width,
        heads,
        kv_heads,
        sides // block.mesh.height,
        sides // block.mesh.width,
        plain(config.hidden_size, sides),
        plain(config.intermediate_size, sides),
        plain(config.vocab_size, sides),
        head_chunks(heads, config.head_dim, groups, width, sides),
        head_chunks(kv_heads, config.head_dim, groups, width, sides),
    )


def best_groups(mesh: Mesh, config: Config) -> int:
    """The number of head groups that leaves the least work to a core; the fewest of several that do."""
    work = {}
    for groups in range(1, config.kv_heads + 1):
        with suppress(UsageError):
            pairs = -(-config.head_dim // 2 // parts(mesh, groups, group_width(mesh, config, groups)))
            work[groups] = config.heads // groups * pairs
    return min(work, key=lambda groups: (work[groups], groups))


def parts(mesh: Mesh, groups: int, width: int) -> int:
    """Chunks that a head is cut into."""
    return lcm(mesh.width, mesh.height) if groups == 1 else width


def group_width(mesh: Mesh, config: Config, groups: int) -> int:
    """Columns of each of so many head groups: the most that divide the mesh's side. UsageError."""
    if groups == 1:
        return mesh.width
    if groups < 1 or config.kv_heads % groups:
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
    pair = plain(head_dim // 2, across)[:, None, None, :]
    half = np.array([0, head_dim // 2])[None, None, :, None]
    start = (np.arange(count) * head_dim)[None, :, None, None]
    table = np.where(pair >= 0, start + half + pair, -1).reshape(across, -1)
    first = np.repeat(np.arange(groups) * count * head_dim, across)[:, None]
    every = np.tile(table, (groups, 1))
    every = np.where(every >= 0, every + first, -1)
    return np.pad(every, ((0, sides - len(every)), (0, 0)), constant_values=-1)


@dataclass(frozen=True)
class Layer:
    """One layer's weights at every core, [bh, bw, rows, columns, *tile] with the tiles named beside.

    Vectors are kept along x for prefill and, where decode needs them, along y as well (E of a core's row).
    """

    norm_x: np.ndarray  # [bh, bw, 1, columns, Et]
    norm_y: np.ndarray  # [bh, bw, rows, 1, Et]
    qkv: np.ndarray  # [Et, (heads + 2 kv heads) Dt], heads being those of a group
    qkv_bias: np.ndarray | None  # [bh, bw, 1, columns, (heads + 2 kv heads) Dt]
    out: np.ndarray  # [heads Dt, Et]; for decode its tiles are moved across the diagonal
    out_bias_x: np.ndarray | None
    out_bias_y: np.ndarray | None
    mlp_norm_x: np.ndarray
    mlp_norm_y: np.ndarray
    up: np.ndarray  # [Et, 2 Ft]: gate, then up
    down: np.ndarray  # [Ft, Et]; moved as `out` is


@dataclass(frozen=True)
class Weights:
    """Layers of a model on a mesh, the embedding with the first and the head with the last of them.

    `table` and `head` are [Et, Vt] tiles, one array where the embeddings are tied.
    """

    table: np.ndarray | None
    head: np.ndarray | None
    norm_x: np.ndarray | None
    norm_y: np.ndarray | None
    layers: tuple[Layer, ...]


def load_weights(
    block: Block, config: Config, chunks: Chunks, checkpoint: Checkpoint | None, dtype: Any, layers: range,
    turned: bool = False,
) -> Weights:  # fmt: skip
    """Read this rank's part of every tensor of these layers into core memory, in the storage type. LimitError.

    The first layer comes with the embedding, the last one with the final norm and the head. Without a checkpoint
    (no payloads) everything is zero. `turned` is decode's layout, W_O and W_down being moved across the diagonal.
    """
    part = _Reader(block, chunks, checkpoint, np.dtype(dtype), turned)
    found = []
    for number in layers:
        found.append(_load_layer(part, config, f"model.layers.{number}"))
        block.console.progress("loading", number + 1, config.layers)
    first, last = layers.start == 0, layers.stop == config.layers
    table = head = None
    if first or (last and config.tie_word_embeddings):
        table = part.matrix([("model.embed_tokens.weight", chunks.vocabulary)], chunks.embedding)
    if last:
        tied = config.tie_word_embeddings
        head = table if tied else part.matrix([("lm_head.weight", chunks.vocabulary)], chunks.embedding)
    final = [("model.norm.weight", chunks.embedding)]
    return Weights(
        table, head, part.vector(final, "x") if last else None, part.vector(final, "y") if last else None, tuple(found)
    )


def _load_layer(part: "_Reader", config: Config, name: str) -> Layer:
    c = part.chunks
    attention, mlp = f"{name}.self_attn", f"{name}.mlp"
    qkv = [(f"{attention}.q_proj", c.queries), (f"{attention}.k_proj", c.keys), (f"{attention}.v_proj", c.keys)]
    norm, mlp_norm = f"{name}.input_layernorm.weight", f"{name}.post_attention_layernorm.weight"
    o_bias = f"{attention}.o_proj.bias"
    return Layer(
        part.vector([(norm, c.embedding)], "x"),
        part.vector([(norm, c.embedding)], "y"),
        part.matrix([(f"{tensor}.weight", out) for tensor, out in qkv], c.embedding),
        part.vector([(f"{tensor}.bias", out) for tensor, out in qkv], "x") if config.qkv_bias else None,
        part.matrix([(f"{attention}.o_proj.weight", c.embedding)], c.queries, part.turned),
        part.vector([(o_bias, c.embedding)], "x") if config.o_bias else None,
        part.vector([(o_bias, c.embedding)], "y") if config.o_bias else None,
        part.vector([(mlp_norm, c.embedding)], "x"),
        part.vector([(mlp_norm, c.embedding)], "y"),
        part.matrix([(f"{mlp}.{side}_proj.weight", c.inner) for side in ("gate", "up")], c.embedding),
        part.matrix([(f"{mlp}.down_proj.weight", c.embedding)], c.inner, part.turned),
    )


@dataclass(frozen=True)
class _Reader:
    block: Block
    chunks: Chunks
    checkpoint: Checkpoint | None
    dtype: np.dtype[Any]
    turned: bool

    def matrix(self, tensors: list[tuple[str, np.ndarray]], rows: np.ndarray, turned: bool = False) -> np.ndarray:
        """W[rows_y, columns_x] of tensors that the checkpoint has as [out, in]; several of them side by side.

        Turned, it is W[rows_x, columns_y]: the same tiles, at other cores.
        """
        size = sum(out.shape[1] for _, out in tensors)
        each = (self.chunks.rows, self.chunks.columns)
        tiles = self.block.tiles(tensors[0][0], (*each, rows.shape[1], size), self.dtype)
        if self.checkpoint is None:
            tiles[...] = 0
            return tiles
        low = 0
        for name, out in tensors:
            columns, down = (self._here(out, "y"), "x") if turned else (self._here(out, "x"), "y")
            whole = self._read(name, columns, self._here(rows, down))  # [columns, their sizes, rows, their sizes]
            bh, bw = self.block.shape
            along, across = ((bh, each[0]), (bw, each[1])) if turned else ((bw, each[1]), (bh, each[0]))
            by_core = whole.reshape(*along, out.shape[1], *across, rows.shape[1])
            order = (0, 3, 1, 4, 5, 2) if turned else (3, 0, 4, 1, 5, 2)
            tiles[..., low : low + out.shape[1]] = by_core.transpose(order)
            low += out.shape[1]
        return tiles

    def vector(self, tensors: list[tuple[str, np.ndarray]], axis: str) -> np.ndarray:
        """A vector cut along the axis, repeated along the other: [bh, bw, 1, columns, size] or [.., rows, 1, size]."""
        chunks, block = self.chunks, self.block
        each = (1, chunks.columns) if axis == "x" else (chunks.rows, 1)
        size = sum(table.shape[1] for _, table in tensors)
        tiles = block.tiles(f"{tensors[0][0]} along {axis}", (*each, size), self.dtype)
        if self.checkpoint is None:
            tiles[...] = 0
            return tiles
        parts = [self._read(name, self._here(table, axis)) for name, table in tensors]
        whole = np.concatenate(parts, axis=1).reshape(-1, max(each), size)  # by core of the line
        tiles[...] = whole[None, :, None] if axis == "x" else whole[:, None, :, None]
        return tiles

    def _here(self, table: np.ndarray, axis: str) -> np.ndarray:
        """The chunks of this rank's block along the axis."""
        mesh = self.block.mesh
        each = self.chunks.sides // mesh.length(axis)
        low = mesh.offset(axis) * each
        return table[low : low + mesh.block_length(axis) * each]

    def _read(self, name: str, *tables: np.ndarray) -> np.ndarray:
        """The elements of a tensor that the tables name, zero where they name none: [*table 1, *table 2]."""
        assert self.checkpoint is not None
        flat = [table.reshape(-1) for table in tables]
        there = [np.flatnonzero(index >= 0) for index in flat]
        found = self.checkpoint.read(name, *(index[at] for index, at in zip(flat, there, strict=True)))
        whole = np.zeros([len(index) for index in flat], self.dtype)
        whole[np.ix_(*there)] = found.astype(self.dtype)
        return whole.reshape([size for table in tables for size in table.shape])
