"""Where a model's numbers lie on the mesh: each core's part of every matrix, read straight from the checkpoint.

Prefill's layout is W[K_y, N_x]: rows along y, columns along x. In decode some matrices are turned, W[K_x, N_y]: the
same tiles, at other cores (linear.py says which).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt.mesh.block import Block
from meshrt.models import matrix as forms
from meshrt.models.checkpoint import Checkpoint
from meshrt.models.config import Config
from meshrt.models.family import family_of
from meshrt.programs.mesh.chunks import Chunks, plain
from meshrt.programs.mesh.linear import Linear, Part


@dataclass(frozen=True, eq=False)
class Mlp:
    """An MLP's matrices at every core."""

    up: Linear  # E -> 2 F: gate, then up
    down: Linear  # F -> E


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer's weights at every core.

    Vectors, [bh, bw, rows, columns, size], are kept along x for prefill and, where decode needs them, along y as well
    (E of a core's row).
    """

    norm_x: np.ndarray  # [bh, bw, 1, columns, Et]
    norm_y: np.ndarray  # [bh, bw, rows, 1, Et]
    qkv: Linear  # E -> (heads + 2 kv heads) D, heads being those of a group
    qkv_bias: np.ndarray | None  # [bh, bw, 1, columns, (heads + 2 kv heads) Dt]
    out: Linear  # heads D -> E
    out_bias_x: np.ndarray | None
    out_bias_y: np.ndarray | None
    mlp_norm_x: np.ndarray
    mlp_norm_y: np.ndarray
    mlp: Mlp
    head_norms: np.ndarray | None  # [bh, bw, 1, columns, ..]: of queries, then keys; of one head, or of all


@dataclass(frozen=True, eq=False)
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
    (no payloads) everything is zero. `turned` is decode's layout.
    """
    part, family = _Reader(block, chunks, checkpoint, np.dtype(dtype), turned), family_of(config)
    loaded = []
    for number in layers:
        loaded.append(_load_layer(part, family.layers[number], family.head_dim))
        block.console.progress("loading", number + 1, config.layers)
    first, last = layers.start == 0, layers.stop == config.layers
    table = head = None
    tied = family.head == family.embedding
    if first or (last and tied):
        table = part.matrix([(family.embedding, chunks.vocabulary)], chunks.embedding)
    if last:
        head = table if tied else part.matrix([(family.head, chunks.vocabulary)], chunks.embedding)
    final = [(family.norm + ".weight", chunks.embedding)]
    return Weights(
        table, head, part.vector(final, "x") if last else None, part.vector(final, "y") if last else None, tuple(loaded)
    )


def _load_layer(part: "_Reader", layer: forms.Layer, head_dim: int) -> Layer:
    c = part.chunks
    heads = (layer.q, c.queries), (layer.k, c.keys), (layer.v, c.keys)
    norm, mlp_norm = [(layer.attention_norm + ".weight", c.embedding)], [(layer.mlp_norm + ".weight", c.embedding)]
    out_bias = [(layer.o.name + ".bias", c.embedding)]
    return Layer(
        part.vector(norm, "x"),
        part.vector(norm, "y"),
        part.linear(heads, c.embedding, (False, False)),
        part.vector([(matrix.name + ".bias", out) for matrix, out in heads], "x") if layer.q.bias else None,
        part.linear([(layer.o, c.embedding)], c.queries, (True, True)),
        part.vector(out_bias, "x") if layer.o.bias else None,
        part.vector(out_bias, "y") if layer.o.bias else None,
        part.vector(mlp_norm, "x"),
        part.vector(mlp_norm, "y"),
        _load_mlp(part, layer.dense_mlp),
        _load_head_norms(part, layer, head_dim),
    )


def _load_mlp(part: "_Reader", mlp: forms.Mlp) -> Mlp:
    c, inner = part.chunks, plain(mlp.down.rows, part.chunks.sides)
    alternate = all(isinstance(matrix.form, forms.LowRank) for matrix in mlp.matrices())
    return Mlp(
        part.linear([(matrix, inner) for matrix in mlp.inner], c.embedding, (False, alternate)),
        part.linear([(mlp.down, c.embedding)], inner, (not alternate, True)),
    )


def _load_head_norms(part: "_Reader", layer: forms.Layer, head_dim: int) -> np.ndarray | None:
    """Where a norm is over each head, a core has its part of one head, since it is that of all of them."""
    c, tensors = part.chunks, []
    for norm, table, heads in zip(layer.head_norms, (c.queries, c.keys), (c.heads, c.kv_heads), strict=False):
        if norm.size == head_dim:
            table = np.where(table >= 0, table % head_dim, -1)[:, : table.shape[1] // heads]
        tensors.append((norm.name + ".weight", table))
    return part.vector(tensors, "x") if tensors else None


@dataclass(frozen=True, eq=False)
class _Reader:
    block: Block
    chunks: Chunks
    checkpoint: Checkpoint | None
    dtype: np.dtype[Any]
    turned: bool

    def linear(
        self, matrices: Sequence[tuple[forms.Matrix, np.ndarray]], rows: np.ndarray, turned: tuple[bool, bool]
    ) -> Linear:
        """Matrices with an input of these rows, each with its columns; `turned` is that of Linear."""
        first, parts = [], []
        for matrix, columns in matrices:
            if isinstance(matrix.form, forms.LowRank):
                (u, v), between = matrix.factors(), plain(matrix.form.rank, self.chunks.sides)
                first.append((u.name, between))
                second = self.matrix([(v.name, columns)], between, self.turned and turned[1])
                parts.append(Part(between.shape[1], matrix.form.rank, second))
            else:
                first.append((matrix.name, columns))
                parts.append(Part(columns.shape[1]))
        return Linear(self.matrix(first, rows, self.turned and turned[0]), tuple(parts), turned)

    def matrix(self, names: list[tuple[str, np.ndarray]], rows: np.ndarray, turned: bool = False) -> np.ndarray:
        """W[rows_y, columns_x] of matrices that the checkpoint has as [out, in]; several of them side by side.

        Turned, it is W[rows_x, columns_y]: the same tiles, at other cores.
        """
        tensors = [(name + ".weight", out) for name, out in names]
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
        filled = [np.flatnonzero(index >= 0) for index in flat]
        numbers = self.checkpoint.read(name, *(index[at] for index, at in zip(flat, filled, strict=True)))
        whole = np.zeros([len(index) for index in flat], self.dtype)
        whole[np.ix_(*filled)] = numbers.astype(self.dtype)
        return whole.reshape([size for table in tables for size in table.shape])
