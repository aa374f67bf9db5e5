"""Where a model's numbers lie on the mesh: each core's part of every matrix, read straight from the checkpoint.

Prefill's layout is W[K_y, N_x]: rows along y, columns along x. In decode some matrices are turned, W[K_x, N_y]: the
same tiles, at other cores (linear.py says which).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshrt.mesh.block import Block
from meshrt.models import matrix as forms
from meshrt.models.checkpoint import Checkpoint
from meshrt.models.config import Config
from meshrt.models.family import family_of
from meshrt.programs.mesh.chunks import Chunks, plain
from meshrt.programs.mesh.grid import Grid, whole
from meshrt.programs.mesh.linear import Linear
from meshrt.programs.mesh.reader import Reader


@dataclass(frozen=True, eq=False)
class Mlp:
    """An MLP's matrices at every core."""

    up: Linear  # E -> 2 F: gate, then up
    down: Linear  # F -> E


@dataclass(frozen=True, eq=False)
class Experts:
    """A layer's experts at every core: number i in region i mod R of the grid, in round i // R of those there.

    The router's table, and the gate of the shared expert as its last column, is whole at every line of cores: [bh, bw,
    1, columns, Et, n] for prefill and [bh, bw, rows, 1, Et, n] for decode; or both are one matrix, cut as any other,
    [bh, bw, rows, columns, Et, nt]. The shared expert is cut over all cores.
    """

    router_x: np.ndarray
    router_y: np.ndarray
    rounds: tuple[Mlp, ...]
    shared: Mlp | None
    top: int
    renormalise: bool
    count: int
    logits: int  # n

    @property
    def router_cut(self) -> bool:
        return self.router_x is self.router_y


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
    mlp: Mlp | Experts
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
    turned: bool = False, grid: Grid | None = None, apart: bool = False, router_cut: bool = False,
) -> Weights:  # fmt: skip
    """Read this rank's part of every tensor of these layers into core memory, in the storage type. LimitError.

    The first layer comes with the embedding, the last one with the final norm and the head. Without a checkpoint
    (no payloads) everything is zero. `turned` is decode's layout. `grid` has
    the regions of experts: without one each expert lies over the whole mesh. `apart` is that of Reader. With
    `router_cut` routers' tables are cut over columns too.
    """
    on_all = whole(block.mesh)
    part, family = Reader(block, chunks, checkpoint, np.dtype(dtype), turned, on_all, apart), family_of(config)
    loaded = []
    for number in layers:
        loaded.append(_load_layer(part, family.layers[number], family.head_dim, grid or on_all, router_cut))
        block.console.progress("loading", number + 1, config.layers)
    first, last = layers.start == 0, layers.stop == config.layers
    table = head = None
    tied = family.head == family.embedding
    if first or (last and tied):
        table = part.matrix([([family.embedding], chunks.vocabulary)], chunks.embedding)
    if last:
        head = table if tied else part.matrix([([family.head], chunks.vocabulary)], chunks.embedding)
    final = [(family.norm + ".weight", chunks.embedding)]
    return Weights(
        table, head, part.vector(final, "x") if last else None, part.vector(final, "y") if last else None, tuple(loaded)
    )


def _load_layer(part: Reader, layer: forms.Layer, head_dim: int, grid: Grid, router_cut: bool) -> Layer:
    c = part.chunks
    heads = ([layer.q], c.queries), ([layer.k], c.keys), ([layer.v], c.keys)
    norm, mlp_norm = [(layer.attention_norm + ".weight", c.embedding)], [(layer.mlp_norm + ".weight", c.embedding)]
    out_bias = [(layer.o.name + ".bias", c.embedding)]
    return Layer(
        part.vector(norm, "x"),
        part.vector(norm, "y"),
        part.linear(heads, c.embedding, (False, False)),
        part.vector([(matrix.name + ".bias", out) for (matrix,), out in heads], "x") if layer.q.bias else None,
        part.linear([([layer.o], c.embedding)], c.queries, (True, True)),
        part.vector(out_bias, "x") if layer.o.bias else None,
        part.vector(out_bias, "y") if layer.o.bias else None,
        part.vector(mlp_norm, "x"),
        part.vector(mlp_norm, "y"),
        _load_mlp(part, [layer.mlp])
        if isinstance(layer.mlp, forms.Mlp)
        else _load_experts(part, layer.mlp, grid, router_cut),
        _load_head_norms(part, layer, head_dim),
    )


def _load_mlp(part: Reader, mlps: Sequence[forms.Mlp]) -> Mlp:
    """One MLP, or one for each region of experts, all of one form."""
    like, sides = mlps[0], part.grid.sides
    embedding, inner = plain(like.down.columns, sides), plain(like.down.rows, sides)
    alternate = all(isinstance(matrix.form, forms.LowRank) for matrix in like.matrices())
    return Mlp(
        part.linear(
            [(same, inner) for same in zip(*(mlp.inner for mlp in mlps), strict=True)], embedding, (False, alternate)
        ),
        part.linear([([mlp.down for mlp in mlps], embedding)], inner, (not alternate, True)),
    )


def _load_experts(part: Reader, layer: forms.Experts, grid: Grid, router_cut: bool) -> Experts:
    regions = replace(part, grid=grid)
    along_x, along_y = (
        (part.routing_cut(layer.routing),) * 2
        if router_cut
        else (part.routing(layer.routing, "x"), part.routing(layer.routing, "y"))
    )
    return Experts(
        along_x,
        along_y,
        tuple(
            _load_mlp(regions, layer.experts[low : low + grid.count])
            for low in range(0, len(layer.experts), grid.count)
        ),
        None if layer.shared is None else _load_mlp(part, [layer.shared]),
        layer.top,
        layer.renormalise,
        len(layer.experts),
        sum(matrix.columns for matrix in layer.routing),
    )


def _load_head_norms(part: Reader, layer: forms.Layer, head_dim: int) -> np.ndarray | None:
    """Where a norm is over each head, a core has its part of one head, since it is that of all of them."""
    c, tensors = part.chunks, []
    for norm, table, heads in zip(layer.head_norms, (c.queries, c.keys), (c.heads, c.kv_heads), strict=False):
        if norm.size == head_dim:
            table = np.where(table >= 0, table % head_dim, -1)[:, : table.shape[1] // heads]
        tensors.append((norm.name + ".weight", table))
    return part.vector(tensors, "x") if tensors else None
