"""Causal self-attention of the heads that a NeuronCore has, over keys and values in its HBM.

The cache keeps K transposed, [D, S] for each key and value head, so that a step of decode reads it as it is multiplied;
V is [S, D]. T tokens, S tokens so far, G query heads for one key and value head, D head size.
"""

from typing import Any

import numpy as np

from meshrt.neuron import isa as nisa
from meshrt.neuron import language as nl
from meshrt.neuron.core import NeuronCore
from meshrt.neuron.tile import Tile, as_tile
from meshrt.programs.neuron.blocks import F, P, spans, sum_of_products, width
from meshrt.programs.neuron.norm import cap_tile, constant, on_all_partitions
from meshrt.records import dataclass


@dataclass(frozen=True)
class CoreHeads:
    """The heads of one NeuronCore: `kv` heads of keys and values, `group` query heads for each, of size `dim`."""

    kv: int
    group: int
    dim: int

    @property
    def queries(self) -> int:
        return self.kv * self.group


@dataclass(frozen=True)
class NeuronLayerCache:
    """Keys [D, room] and values [room, D] of a layer, a tensor of HBM for each key and value head."""

    keys: tuple[Tile, ...]
    values: tuple[Tile, ...]


@dataclass(frozen=True)
class NeuronScores:
    """What becomes of q k^T: times `scale`, bent by a `cap`, and with a `window` seen for so many tokens only."""

    scale: float
    cap: float | None = None
    window: int | None = None


@dataclass(frozen=True)
class HeadNorms:
    """Weights [1, D] of the norms of each head of queries and keys."""

    weights: tuple[Tile, ...]
    eps: float


def new_cache(core: NeuronCore, heads: CoreHeads, room: int, dtype: np.dtype[Any]) -> NeuronLayerCache:
    """Room for so many tokens."""
    return NeuronLayerCache(
        tuple(nl.ndarray((heads.dim, room), dtype, buffer=core.hbm) for _ in range(heads.kv)),
        tuple(nl.ndarray((room, heads.dim), dtype, buffer=core.hbm) for _ in range(heads.kv)),
    )


def attention(
    qkv: Tile, heads: CoreHeads, cache: NeuronLayerCache, turn: tuple[Tile, Tile] | None, norms: HeadNorms | None,
    scores: NeuronScores, identity: Tile, position: int,
) -> Tile:  # fmt: skip
    """qkv [T, (queries + 2 kv) D] of tokens `position`.. -> [T, queries D] in HBM; keys and values join the cache.

    `turn`: cosines and sines [positions, D / 2] in HBM; None where positions are learned. Of the cache is read what a
    token sees.
    """
    q_t = rotate_and_keep(qkv, heads, cache, turn, norms, identity, position)
    tokens = qkv.shape[0]
    begin = 0 if scores.window is None else max(0, position + 1 - scores.window)
    held = slice(begin, position + tokens)
    out: Tile = nl.ndarray((tokens, heads.queries * heads.dim), qkv.dtype, buffer=qkv.core.hbm)
    rows_of_head = out.reshape(tokens * heads.queries, heads.dim) if tokens == 1 else None
    for g in range(heads.kv):
        keys = [as_tile(nl.load(cache.keys[g][part, held])) for part in spans(heads.dim, P)]
        values = [as_tile(nl.load(cache.values[g][part])) for part in spans(held, P)]
        if rows_of_head is not None:  # one token: all query heads of the group are the rows of one tile
            queries = [as_tile(nl.load(q_t[g][part])) for part in spans(heads.dim, P)]
            mixed = attend(queries, keys, values, begin, position, 0, scores, identity)
            nl.store(rows_of_head[g * heads.group : (g + 1) * heads.group], mixed)
            continue
        for head in range(heads.group):
            columns = slice((g * heads.group + head) * heads.dim, (g * heads.group + head + 1) * heads.dim)
            for rows in spans(tokens, P):
                own = slice(head * tokens + rows.start, head * tokens + rows.stop)
                queries = [as_tile(nl.load(q_t[g][part, own])) for part in spans(heads.dim, P)]
                mixed = attend(queries, keys, values, begin, position + rows.start, 1, scores, identity)
                nl.store(out[rows, columns], mixed)
    return out


def rotate_and_keep(
    qkv: Tile, heads: CoreHeads, cache: NeuronLayerCache, turn: tuple[Tile, Tile] | None, norms: HeadNorms | None,
    identity: Tile, position: int,
) -> list[Tile]:  # fmt: skip
    """Norms of heads; rotary embedding; keys and values to the cache; the queries transposed, [D, G T] in HBM for each
    kv head.
    """
    core, tokens, dim = qkv.core, qkv.shape[0], heads.dim
    turned = heads.queries + heads.kv
    scales = [] if norms is None else [on_all_partitions(weight) for weight in norms.weights]
    epsilon = None if norms is None else constant(core, norms.eps)
    by_head = qkv.reshape(tokens, turned + heads.kv, dim)
    q_t = [nl.ndarray((dim, heads.group * tokens), qkv.dtype, buffer=core.hbm) for _ in range(heads.kv)]
    for rows in spans(tokens, P):
        at = slice(position + rows.start, position + rows.stop)
        y = as_tile(nl.load(by_head[rows, 0:turned]))
        if epsilon is not None:
            norm_heads(y[:, 0 : heads.queries], scales[0], epsilon)
            norm_heads(y[:, heads.queries :], scales[1], epsilon)
        if turn is not None:
            y = rotated(y, turn, at)
        for head in range(turned):
            for part in spans(dim, P):
                corner = as_tile(nisa.nc_transpose(y[:, head, part], identity))
                turned_tile = as_tile(nisa.tensor_copy(corner, dtype=qkv.dtype))
                if head < heads.queries:
                    g, of_group = divmod(head, heads.group)
                    start = of_group * tokens
                    nl.store(q_t[g][part, start + rows.start : start + rows.stop], turned_tile)
                else:
                    nl.store(cache.keys[head - heads.queries][part, at], turned_tile)
        v = as_tile(nl.load(by_head[rows, turned:]))
        for g in range(heads.kv):
            nl.store(cache.values[g][at], v[:, g, :])
    return q_t


def rotated(x: Tile, turn: tuple[Tile, Tile], at: slice) -> Tile:
    """Rotary embedding of x [rows, heads, D] in SBUF, whose rows are at these positions."""
    rows, heads, dim = x.shape
    half = dim // 2
    c, s = (
        as_tile(nl.load(table.reshape(table.shape[0], 1, half)[at])).broadcast_to((rows, heads, half)) for table in turn
    )
    low, high = x[:, :, 0:half], x[:, :, half:dim]
    y: Tile = nl.ndarray((nl.par_dim(rows), heads, dim), x.dtype, buffer=x.core.sbuf)
    y[:, :, 0:half] = nisa.tensor_tensor(times(low, c), times(high, s), nl.subtract)
    y[:, :, half:dim] = nisa.tensor_tensor(times(high, c), times(low, s), nl.add)
    return y


def norm_heads(x: Tile, scale: Tile, epsilon: Tile) -> None:
    """RMSNorm of each head of x [rows, heads, D] in SBUF, in place; scale [128, D], epsilon [128, 1]."""
    rows, _, dim = x.shape
    squares = as_tile(nisa.activation(nl.square, x, dtype=nl.float32))
    total = nisa.tensor_reduce(nl.add, squares, axis=-1)
    inverse = as_tile(nisa.activation(nl.rsqrt, total, scale=1 / dim, bias=epsilon[0:rows]))
    straight = nisa.tensor_tensor(x, inverse[:, :, None].broadcast_to(x.shape), nl.multiply, dtype=nl.float32)
    x[...] = nisa.tensor_tensor(straight, scale[0:rows, None].broadcast_to(x.shape), nl.multiply, dtype=x.dtype)


def times(x: Tile, factor: Tile) -> Tile:
    return as_tile(nisa.tensor_tensor(x, factor, nl.multiply, dtype=nl.float32))


def attend(
    queries: list[Tile], keys: list[Tile], values: list[Tile], begin: int, first: int, step: int, scores: NeuronScores,
    identity: Tile,
) -> Tile:  # fmt: skip
    """Softmax(q k^T scale) v: queries [D, rows], keys [D, S], values [S, D], all in tiles -> [rows, D] in SBUF.

    Keys and values are those of positions `begin` and later. Row i is at position first + i * step and sees the keys up
    to there, in a window the last of them; tiles of values that no row sees are left out.
    """
    core, dtype, rows, dim = queries[0].core, queries[0].dtype, queries[0].shape[1], values[0].shape[1]
    end = first + (rows - 1) * step + 1
    skipped = 0 if scores.window is None else max(0, first + 1 - scores.window - begin) // P
    begin, values = begin + skipped * P, values[skipped:]
    seen = end - begin
    logits: Tile = nl.ndarray((nl.par_dim(rows), seen), nl.float32, buffer=core.sbuf)
    for part in spans(seen, F):
        product = sum_of_products(queries, keys, slice(skipped * P + part.start, skipped * P + part.stop))
        if scores.cap is None:
            logits[:, part] = nisa.activation(nl.copy, product, scale=scores.scale)
        else:
            logits[:, part] = cap_tile(product, scores.cap, scores.scale, nl.float32)
    if step:
        hidden = slice(first - begin, seen)  # the square below whose diagonal tokens see each other
        below = np.tri(rows, dtype=np.bool_)
        logits[:, hidden] = nisa.affine_select(below, logits[:, hidden], -np.inf)
    if scores.window is not None and end - scores.window > begin:
        old = slice(0, end - scores.window - begin)  # what the last row does not see, nor the first of these all rows
        row, column = np.arange(rows)[:, None], np.arange(old.stop)
        inside = begin + column > first + row * step - scores.window
        logits[:, old] = nisa.affine_select(inside, logits[:, old], -np.inf)
    highest = nisa.tensor_reduce(nl.maximum, logits)
    lowered = as_tile(nisa.tensor_scalar(highest, nl.multiply, -1.0))
    weights = as_tile(nisa.activation(nl.exp, logits, bias=lowered))
    share = as_tile(nisa.reciprocal(nisa.tensor_reduce(nl.add, weights)))
    total: Tile = nl.zeros((nl.par_dim(rows), dim), nl.float32, buffer=core.psum)
    for part, v in zip(spans(seen, P), values, strict=False):  # later values are not seen
        narrow = nisa.tensor_copy(weights[:, part], dtype=v.dtype)
        turned = nisa.tensor_copy(as_tile(nisa.nc_transpose(narrow, identity)), dtype=v.dtype)
        total[...] += nisa.nc_matmul(turned, v[0 : width(part)])
    return as_tile(nisa.tensor_scalar(total, nl.multiply, share, dtype=dtype))
