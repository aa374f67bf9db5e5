"""Where a model's numbers lie on the mesh: each core's part of every matrix, read straight from the checkpoint.

Prefill's layout is W[K_y, N_x]: rows along y, columns along x. In decode some matrices are turned, W[K_x, N_y]: the
same tiles, at other cores (linear.py says which).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meshrt.mesh.block import Block
from meshrt.models import matrix as forms
from meshrt.models.config import Config
from meshrt.models.family import Family, family_of
from meshrt.models.folders.checkpoint import Checkpoint
from meshrt.programs.mesh.chunks import Chunks, plain
from meshrt.programs.mesh.experts.grid import RegionGrid, whole
from meshrt.programs.mesh.linear import Linear
from meshrt.programs.mesh.reader import WeightReader
from meshrt.records import dataclass


@dataclass(frozen=True, eq=False)
class Vector:
    """Numbers of E at every core, along x for prefill and along y for decode."""

    x: np.ndarray  # [bh, bw, 1, columns, Et]
    y: np.ndarray  # [bh, bw, rows, 1, Et]


@dataclass(frozen=True, eq=False)
class MeshNorm:
    """RMSNorm, or with a bias LayerNorm."""

    weight: Vector
    bias: Vector | None


@dataclass(frozen=True, eq=False)
class MeshMlp:
    """An MLP's matrices at every core. In decode what is between them lies along x, or along y (linear.py)."""

    up: Linear  # E -> 2 F: gate, then up; F alone where there is no gate
    down: Linear  # F -> E
    up_bias: tuple[np.ndarray, ...] = ()  # of gate and up, [bh, bw, 1, columns, Ft]
    up_bias_y: tuple[np.ndarray, ...] = ()  # where decode has them so, [bh, bw, rows, 1, Ft]
    down_bias: Vector | None = None
    activation: forms.Activation = "silu"
    gated: bool = True


@dataclass(frozen=True, eq=False)
class MeshExperts:
    """A layer's experts at every core: number i in region i mod R of the grid, in round i // R of those there.

    The router's table, and the gate of the shared expert as its last column, is whole at every line of cores: [bh, bw,
    1, columns, Et, n] for prefill and [bh, bw, rows, 1, Et, n] for decode; or both are one matrix, cut as any other,
    [bh, bw, rows, columns, Et, nt]. The shared expert is cut over all cores.
    """

    router_x: np.ndarray
    router_y: np.ndarray
    rounds: tuple[MeshMlp, ...]
    shared: MeshMlp | None
    top: int
    renormalise: bool
    count: int
    logits: int  # n

    @property
    def router_cut(self) -> bool:
        return self.router_x is self.router_y


@dataclass(frozen=True, eq=False)
class MeshLayer:
    """One layer's weights at every core.

    Vectors, [bh, bw, rows, columns, size], are kept along x for prefill and, where decode needs them, along y as well
    (E of a core's row). `window` and `rope` are those of models/matrix.py.
    """

    norm: MeshNorm
    qkv: Linear  # E -> (heads + 2 kv heads) D, heads being those of a group
    qkv_bias: np.ndarray | None  # [bh, bw, 1, columns, (heads + 2 kv heads) Dt]
    out: Linear  # heads D -> E
    out_bias: Vector | None
    mlp_norm: MeshNorm
    mlp: MeshMlp | MeshExperts
    head_norms: np.ndarray | None  # [bh, bw, 1, columns, ..]: of queries, then keys; of one head, or of all
    after_attention: MeshNorm | None
    after_mlp: MeshNorm | None
    window: int | None
    rope: int

    def vectors(self) -> list[Vector | None]:
        """All there are of E."""
        mlp_bias = self.mlp.down_bias if isinstance(self.mlp, MeshMlp) else None
        norms = self.norm, self.mlp_norm, self.after_attention, self.after_mlp
        both = [vector for norm in norms if norm is not None for vector in (norm.weight, norm.bias)]
        return [*both, self.out_bias, mlp_bias]


@dataclass(frozen=True, eq=False)
class MeshWeights:
    """Layers of a model on a mesh, the embedding with the first and the head with the last of them.

    `table` and `head` are [Et, Vt] tiles, one array where the embeddings are tied; `positions` is a table as well.
    """

    table: np.ndarray | None
    positions: np.ndarray | None
    head: np.ndarray | None
    norm: MeshNorm | None
    layers: tuple[MeshLayer, ...]


NO_WEIGHTS = MeshWeights(None, None, None, None, ())


def load_weights(
    block: Block, config: Config, chunks: Chunks, checkpoint: Checkpoint | None, dtype: Any, layers: range,
    turned: bool = False, grid: RegionGrid | None = None, apart: bool = False, router_cut: bool = False,
    aligned: bool = False,
) -> MeshWeights:  # fmt: skip
    """Read this rank's part of every tensor of these layers into core memory, in the storage type. LimitError.

    The first layer comes with the embedding, the last one with the final norm and the head. Without a checkpoint
    (no payloads) everything is zero. `turned` is decode's layout. `grid` has
    the regions of experts: without one each expert lies over the whole mesh. `apart` and `aligned` are those of
    WeightReader. With `router_cut` routers' tables are cut over columns too.
    """
    on_all = whole(block.mesh)
    part, family = (
        WeightReader(block, chunks, checkpoint, np.dtype(dtype), turned, on_all, apart, aligned),
        family_of(config),
    )
    loaded = []
    for number in layers:
        loaded.append(_load_layer(part, family.layers[number], family, grid or on_all, router_cut))
        block.console.progress("loading", number + 1, config.layers)
    first, last = layers.start == 0, layers.stop == config.layers
    table = positions = head = None
    tied = family.head == family.embedding
    if first or (last and tied):
        table = part.matrix([([family.embedding], chunks.vocabulary)], chunks.embedding)
    if first and family.positions is not None:
        rows = plain(family.max_positions + family.position_offset, chunks.sides)
        positions = part.matrix([([family.positions], rows)], chunks.embedding)
    if last:
        head = table if tied else part.matrix([([family.head], chunks.vocabulary)], chunks.embedding)
    return MeshWeights(table, positions, head, _load_norm(part, family.norm, family) if last else None, tuple(loaded))


def _load_norm(part: WeightReader, name: str, family: Family) -> MeshNorm:
    return MeshNorm(
        _load_vector(part, name + ".weight"), _load_vector(part, name + ".bias") if family.layer_norm else None
    )


def _load_vector(part: WeightReader, name: str) -> Vector:
    tensor = [(name, part.chunks.embedding)]
    return Vector(part.vector(tensor, "x"), part.vector(tensor, "y"))


def _load_layer(
    part: WeightReader, layer: forms.Layer, family: Family, grid: RegionGrid, router_cut: bool
) -> MeshLayer:
    c = part.chunks
    heads = ([layer.q], c.queries), ([layer.k], c.keys), ([layer.v], c.keys)
    after = [
        None if name is None else _load_norm(part, name, family) for name in (layer.after_attention, layer.after_mlp)
    ]
    return MeshLayer(
        _load_norm(part, layer.attention_norm, family),
        part.linear(heads, c.embedding, (False, False)),
        part.vector([(matrix.name + ".bias", out) for (matrix,), out in heads], "x") if layer.q.bias else None,
        part.linear([([layer.o], c.embedding)], c.queries, (True, True)),
        _load_vector(part, layer.o.name + ".bias") if layer.o.bias else None,
        _load_norm(part, layer.mlp_norm, family),
        _load_mlp(part, [layer.mlp])
        if isinstance(layer.mlp, forms.Mlp)
        else _load_experts(part, layer.mlp, grid, router_cut),
        _load_head_norms(part, layer, family.head_dim),
        after[0],
        after[1],
        layer.window,
        layer.rope,
    )


def _load_mlp(part: WeightReader, mlps: Sequence[forms.Mlp]) -> MeshMlp:
    """One MLP, or one for each region of experts, all of one form."""
    like, sides = mlps[0], part.grid.sides
    embedding, inner = plain(like.down.columns, sides), plain(like.down.rows, sides)
    alternate = all(isinstance(matrix.form, forms.LowRank) for matrix in like.matrices())
    biases = [[(matrix.name + ".bias", inner)] for matrix in like.inner if matrix.bias]
    return MeshMlp(
        part.linear(
            [(same, inner) for same in zip(*(mlp.inner for mlp in mlps), strict=True)], embedding, (False, alternate)
        ),
        part.linear([([mlp.down for mlp in mlps], embedding)], inner, (not alternate, True)),
        tuple(part.vector(bias, "x") for bias in biases),
        tuple(part.vector(bias, "y") for bias in biases) if alternate else (),
        _load_vector(part, like.down.name + ".bias") if like.down.bias else None,
        like.activation,
        like.gate is not None,
    )


def _load_experts(part: WeightReader, layer: forms.Experts, grid: RegionGrid, router_cut: bool) -> MeshExperts:
    regions = replace(part, grid=grid)
    along_x, along_y = (
        (part.routing_cut(layer.routing),) * 2
        if router_cut
        else (part.routing(layer.routing, "x"), part.routing(layer.routing, "y"))
    )
    return MeshExperts(
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


def _load_head_norms(part: WeightReader, layer: forms.Layer, head_dim: int) -> np.ndarray | None:
    """Where a norm is over each head, a core has its part of one head, since it is that of all of them."""
    c, tensors = part.chunks, []
    for norm, table, heads in zip(layer.head_norms, (c.queries, c.keys), (c.heads, c.kv_heads), strict=False):
        if norm.size == head_dim:
            table = np.where(table >= 0, table % head_dim, -1)[:, : table.shape[1] // heads]
        tensors.append((norm.name + ".weight", table))
    return part.vector(tensors, "x") if tensors else None
