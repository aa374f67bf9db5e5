"""Causal self-attention of the heads that a NeuronCore has, over keys and values in its HBM.

The cache keeps K transposed, [D, S] for each key and value head, so that a step of decode reads it as it is multiplied;
V is [S, D]. T tokens, S tokens so far, G query heads for one key and value head, D head size.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from meshrt.neuron import isa as nisa
from meshrt.neuron import language as nl
from meshrt.neuron.core import NeuronCore
from meshrt.neuron.tile import Tile, as_tile
from meshrt.programs.neuron.blocks import F, P, spans, width


@dataclass(frozen=True)
class Heads:
    """The heads of one NeuronCore: `kv` heads of keys and values, `group` query heads for each, of size `dim`."""

    kv: int
    group: int
    dim: int

    @property
    def queries(self) -> int:
        return self.kv * self.group


@dataclass(frozen=True)
class LayerCache:
    """Keys [D, room] and values [room, D] of a layer, a tensor of HBM for each key and value head."""

    keys: tuple[Tile, ...]
    values: tuple[Tile, ...]


def new_cache(core: NeuronCore, heads: Heads, room: int, dtype: np.dtype[Any]) -> LayerCache:
    """Room for so many tokens."""
    return LayerCache(
        tuple(nl.ndarray((heads.dim, room), dtype, buffer=core.hbm) for _ in range(heads.kv)),
        tuple(nl.ndarray((room, heads.dim), dtype, buffer=core.hbm) for _ in range(heads.kv)),
    )


def attention(qkv: Tile, heads: Heads, cache: LayerCache, cos: Tile, sin: Tile, identity: Tile, position: int) -> Tile:
    """qkv [T, (queries + 2 kv) D] of tokens `position`.. -> [T, queries D] in HBM; keys and values join the cache.

    cos, sin: tensors [positions, D / 2] of HBM.
    """
    q_t = rotate_and_keep(qkv, heads, cache, cos, sin, identity, position)
    tokens = qkv.shape[0]
    out: Tile = nl.ndarray((tokens, heads.queries * heads.dim), qkv.dtype, buffer=qkv.core.hbm)
    rows_of_head = out.reshape(tokens * heads.queries, heads.dim) if tokens == 1 else None
    for g in range(heads.kv):
        keys = as_tile(nl.load(cache.keys[g][:, 0 : position + tokens]))
        values = [as_tile(nl.load(cache.values[g][part])) for part in spans(position + tokens, P)]
        if rows_of_head is not None:  # one token: all query heads of the group are the rows of one tile
            mixed = attend(as_tile(nl.load(q_t[g])), keys, values, position, 0, identity)
            nl.store(rows_of_head[g * heads.group : (g + 1) * heads.group], mixed)
            continue
        for head in range(heads.group):
            columns = slice((g * heads.group + head) * heads.dim, (g * heads.group + head + 1) * heads.dim)
            for rows in spans(tokens, P):
                queries = as_tile(nl.load(q_t[g][:, head * tokens + rows.start : head * tokens + rows.stop]))
                mixed = attend(queries, keys, values, position + rows.start, 1, identity)
                nl.store(out[rows, columns], mixed)
    return out


def rotate_and_keep(
    qkv: Tile, heads: Heads, cache: LayerCache, cos: Tile, sin: Tile, identity: Tile, position: int
) -> list[Tile]:
    """Rotary embedding; keys and values to the cache; the queries transposed, [D, G T] in HBM for each kv head."""
    core, tokens, dim = qkv.core, qkv.shape[0], heads.dim
    half, turned = dim // 2, heads.queries + heads.kv
    by_head = qkv.reshape(tokens, turned + heads.kv, dim)
    q_t = [nl.ndarray((dim, heads.group * tokens), qkv.dtype, buffer=core.hbm) for _ in range(heads.kv)]
    for rows in spans(tokens, P):
        at, shape = slice(position + rows.start, position + rows.stop), (width(rows), turned, half)
        x = as_tile(nl.load(by_head[rows, 0:turned]))
        c, s = (
            as_tile(nl.load(table.reshape(table.shape[0], 1, half)[at])).broadcast_to(shape) for table in (cos, sin)
        )
        low, high = x[:, :, 0:half], x[:, :, half:dim]
        y = nl.ndarray((nl.par_dim(width(rows)), turned, dim), qkv.dtype, buffer=core.sbuf)
        y[:, :, 0:half] = nisa.tensor_tensor(times(low, c), times(high, s), nl.subtract)
        y[:, :, half:dim] = nisa.tensor_tensor(times(high, c), times(low, s), nl.add)
        for head in range(turned):
            corner = as_tile(nisa.nc_transpose(y[:, head, :], identity))
            turned_tile = as_tile(nisa.tensor_copy(corner, dtype=qkv.dtype))
            if head < heads.queries:
                g, of_group = divmod(head, heads.group)
                start = of_group * tokens
                nl.store(q_t[g][:, start + rows.start : start + rows.stop], turned_tile)
            else:
                nl.store(cache.keys[head - heads.queries][:, at], turned_tile)
        v = as_tile(nl.load(by_head[rows, turned:]))
        for g in range(heads.kv):
            nl.store(cache.values[g][at], v[:, g, :])
    return q_t


def times(x: Tile, factor: Tile) -> Tile:
    return as_tile(nisa.tensor_tensor(x, factor, nl.multiply, dtype=nl.float32))


def attend(queries: Tile, keys: Tile, values: list[Tile], first: int, step: int, identity: Tile) -> Tile:
    """Softmax(q k^T / sqrt(D)) v: queries [D, rows], keys [D, S], values [S, D] in tiles -> [rows, D] in SBUF.

    Row i is at position first + i * step and sees the keys up to there.
    """
    core, (dim, rows) = queries.core, queries.shape
    seen = first + (rows - 1) * step + 1
    scores: Tile = nl.ndarray((nl.par_dim(rows), seen), nl.float32, buffer=core.sbuf)
    for part in spans(seen, F):
        product = as_tile(nisa.nc_matmul(queries, keys[:, part]))
        scores[:, part] = nisa.activation(nl.copy, product, scale=1 / sqrt(dim))
    if step:
        hidden = slice(first, seen)  # the square below whose diagonal tokens see each other
        below = np.tri(rows, dtype=np.bool_)
        scores[:, hidden] = nisa.affine_select(below, scores[:, hidden], -np.inf)
    highest = nisa.tensor_reduce(nl.maximum, scores)
    lowered = as_tile(nisa.tensor_scalar(highest, nl.multiply, -1.0))
    weights = as_tile(nisa.activation(nl.exp, scores, bias=lowered))
    share = as_tile(nisa.reciprocal(nisa.tensor_reduce(nl.add, weights)))
    total: Tile = nl.zeros((nl.par_dim(rows), dim), nl.float32, buffer=core.psum)
    for part, v in zip(spans(seen, P), values, strict=False):  # later values are not seen
        narrow = nisa.tensor_copy(weights[:, part], dtype=v.dtype)
        column = nisa.tensor_copy(as_tile(nisa.nc_transpose(narrow, identity)), dtype=v.dtype)
        total[...] += nisa.nc_matmul(column, v[0 : width(part)])
    return as_tile(nisa.tensor_scalar(total, nl.multiply, share, dtype=queries.dtype))
