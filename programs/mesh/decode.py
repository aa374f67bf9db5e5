"""LLaMA decode: one token at a time, activations replicated along one axis and cut along the other (waferllm,
section 4.2 and Figure 4). Each product ends in a K-tree allreduce along the axis that its rows were cut on, so that the
axes alternate and nothing is ever transposed:

    E_y --W_qkv--> y: heads_x --scores--> x: tokens_y --softmax, V--> y: heads_x --W_O--> x: E_y
    E_y --W_up---> y: F_x     --W_down--> x: E_y

That is six allreduces a layer. The published code takes ten, and so do we where that is asked for: else the norm's sum
of squares rides along with the product that it scales, and maximum, sum and output of the softmax are merged in one
reduction. Matrices in two factors take more (linear.py).

W_O and W_down have their rows along x here; placement.py moves them there after prefill.
"""

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from meshrt.mesh.repeat import sampled
from meshrt.models.config import Config
from meshrt.programs.mesh.activations import activated, cap
from meshrt.programs.mesh.cache import Seen, TokenCache, append, place_of_new, seen_by_newest
from meshrt.programs.mesh.chunks import Chunks
from meshrt.programs.mesh.climb import balance
from meshrt.programs.mesh.crossings import cross_vector
from meshrt.programs.mesh.linear import loaded, second, shares
from meshrt.programs.mesh.meshgemm import zeros
from meshrt.programs.mesh.norms.decode import normed_alone, normed_and_product, normed_product, normed_shares
from meshrt.programs.mesh.norms.heads import norm_heads
from meshrt.programs.mesh.prefill import pair_tables, rotate, split_heads
from meshrt.programs.mesh.regions import Region, layers_timed
from meshrt.programs.mesh.systems import Sums
from meshrt.programs.mesh.weights import MeshExperts

EMPTY = np.float32(-1e30)  # the greatest score of no token: finite, so that two rows without any merge to nothing


def decode(
    regions: Sequence[Region], config: Config, chunks: Chunks, token: int, position: int, fused: bool = True,
    sample: int | None = None, spent: list[float] | None = None, layers_only: bool = False,
    layer: Callable[..., np.ndarray] | None = None,
) -> np.ndarray:  # fmt: skip
    """One step: the logits after `token` at `position`, V_x on the last region's cores: float32 [bh, bw, columns, Vt],
    the same in every row.

    `fused` takes six allreduces a layer, else ten as published. `sample`, `spent` and `layers_only` are those of
    `prefill`. `layer` runs in place of a layer as it is here (published/decode.py).
    """
    block = regions[0].block
    turns = [
        tuple(table.reshape(1, block.lead[1], chunks.columns, 1, -1) for table in turn)
        for turn in pair_tables(block, config, chunks, np.array([position]))
    ]
    x = np.empty(0)
    for before, region in zip((None, *regions), regions, strict=False):
        block, cache, weights = region.block, region.cache, region.weights
        for table in (table for turn in turns for table in turn):
            block.memory.keep("cosines and sines", table)
        if before is None and layers_only:
            x = zeros(block, "activations", (chunks.rows, chunks.embedding.shape[1]), cache.data.dtype)
        elif before is None:
            x = embed(config, region, chunks, token, position)
        else:
            x = cross_vector(before.block, block, region.crossing, region.sums, x)
        append(cache, np.full((*block.lead, *cache.data.shape[3:]), np.nan, cache.data.dtype))
        with layers_timed(block, spent):
            for number in sampled(block, len(weights.layers), sample):
                if layer is not None:
                    x = layer(config, chunks, region, number, x, turns)
                    continue
                x += attention(config, chunks, region, number, x, turns, fused)
                x += feed_forward(config, chunks, region, number, x, fused, position)
                block.elementwise(x, 2)
        balance(cache)
        if layers_only:
            x = zeros(block, "logits", (chunks.columns, chunks.vocabulary.shape[1]))
        elif region is regions[-1]:
            assert weights.norm is not None and weights.head is not None
            x = normed_product(config, region, chunks, x, weights.norm, weights.head, fused)
            cap(block, x, config.logit_cap)
    return x


def embed(config: Config, region: Region, chunks: Chunks, token: int, position: int) -> np.ndarray:
    """E_y of a token, [bh, bw, rows, Et]: the column of cores that has it gives it to all, by an allreduce along x.

    Where positions are learned, that of the position comes with it.
    """
    block, weights = region.block, region.weights
    assert weights.table is not None
    x = zeros(block, "activations", (chunks.rows, chunks.embedding.shape[1]))

    def add(table: np.ndarray, row: int, scale: float) -> None:
        chunk, element = divmod(row, table.shape[-1])
        core, column = divmod(chunk, chunks.columns)
        if block.mesh.x0 <= core < block.mesh.x0 + block.lead[1]:
            at = core - block.mesh.x0
            x[:, at] += table[:, at, :, column, :, element].astype(np.float32) * np.float32(scale)

    add(weights.table, token, config.embedding_scale)
    if weights.positions is not None:
        add(weights.positions, position + config.position_offset, 1)
    if config.embedding_scale != 1 or weights.positions is not None:
        block.elementwise(x)
    return region.sums.x(x)


def attention(
    config: Config, chunks: Chunks, region: Region, number: int, x: np.ndarray,
    turns: Sequence[tuple[np.ndarray, ...]], fused: bool,
) -> np.ndarray:  # fmt: skip
    """Attention of one token: its key and value join the south row's, then every row looks at the tokens it holds."""
    layer = region.weights.layers[number]
    values = attend(config, chunks, region, number, x, turns, fused)
    block, sums = region.block, region.sums
    loaded(sums, layer.out)
    share, scale = shares(block, sums, values, layer.out)
    del values
    out = second(block, sums, layer.out, sums.x(share), scale)
    if layer.out_bias is not None:
        out += layer.out_bias.y.astype(np.float32)[:, :, :, 0]
        block.elementwise(out)
    return out if layer.after_attention is None else normed_alone(config, region, chunks, out, layer.after_attention)


def attend(
    config: Config, chunks: Chunks, region: Region, number: int, x: np.ndarray,
    turns: Sequence[tuple[np.ndarray, ...]], fused: bool,
) -> np.ndarray:  # fmt: skip
    """softmax(q K^T) V of all tokens: heads_x, [bh, bw, columns, heads * Dt]."""
    block, layer, cache, sums = region.block, region.weights.layers[number], region.cache, region.sums
    keep, kv, group = block.memory.keep, chunks.kv_heads, config.group
    loaded(sums, layer.qkv)
    qkv = second(block, sums, layer.qkv, *normed_shares(config, region, chunks, x, layer.norm, layer.qkv, fused))
    if layer.qkv_bias is not None:
        qkv += layer.qkv_bias.astype(np.float32)[:, :, 0]
        block.elementwise(qkv)
    columns = qkv.shape[2]
    q, k, v = split_heads(chunks, qkv)  # [bh, bw, columns, heads, Dt]
    norm_heads(block, sums, config, layer.head_norms, q, k, v)
    if turns:
        q, k = (rotate(block, part, *turns[layer.rope]) for part in (q, k))
    remember(cache, number, k, v)
    q = keep("queries", by_head(q).reshape(*q.shape[:2], kv, group, -1) * np.float32(config.attention_scale))
    del qkv, k, v
    seen = seen_by_newest(cache, layer.window)
    holds = (np.arange(seen.most) < seen.here(cache, seen.counts)[: block.lead[0], None])[:, None, None, None]
    work = chunks.heads * q.shape[-1] * seen.here(cache, seen.counts)[:, None]
    scores = np.matmul(q, remembered(cache, number, 0, seen, holds).swapaxes(-1, -2))  # [.., kv, group, tokens]
    block.work(work)
    scores = sum_scores(cache, seen.counts, sums, keep("scores", scores))
    cap(block, scores, config.score_cap)
    np.copyto(scores, EMPTY, where=~holds)
    top = keep("greatest scores", scores.max(axis=-1, keepdims=True))
    if not fused:
        top = sums.y(top, np.maximum)
    np.exp(scores - top, out=scores)
    np.copyto(scores, 0, where=~holds)
    block.elementwise(scores, 3)
    block.scalar(exponentials=prod(scores.shape[2:]))
    mixed = keep("mixed values", np.matmul(scores, remembered(cache, number, 1, seen, holds)))
    total = keep("sums of weights", scores.sum(axis=-1, keepdims=True))
    block.work(work)
    del q, scores
    if fused:
        parts = keep("softmax of a row's tokens", np.concatenate([mixed, total, top], axis=-1))
        del mixed, total, top
        parts = sums.y(parts, merge_softmax)
        mixed, total = parts[..., :-2], parts[..., -2:-1]  # [bh, bw, kv, group, columns * Dt]
    else:
        mixed, total = sums.y(mixed), sums.y(total)
    mixed /= total
    block.scalar(divisions=prod(total.shape[2:]))
    block.elementwise(mixed)
    by_column = mixed.reshape(*mixed.shape[:2], chunks.heads, columns, -1).swapaxes(2, 3)
    return keep("attention", np.ascontiguousarray(by_column).reshape(*by_column.shape[:3], -1))


def remembered(cache: TokenCache, number: int, kind: int, seen: Seen, holds: np.ndarray) -> np.ndarray:
    """A layer's keys (0) or values (1) as a product takes them, zero where a row has none: [bh, bw, kv, tokens, Dt].

    `holds`, bool [bh, 1, 1, 1, tokens]. A core reads them from the cache, number by number; the copy in float32 is the
    host's.
    """
    data = cache.data[:, :, :, number, kind]
    if seen.first.any():
        places = seen.here(cache, seen.first)[: len(data), None] + np.arange(seen.most)
        data = np.take_along_axis(data, np.minimum(places, data.shape[2] - 1)[:, None, :, None, None], axis=2)
    stored = data[:, :, : seen.most].swapaxes(2, 3).astype(np.float32)
    return np.where(holds[..., 0, :, None], stored, np.float32(0))


def feed_forward(
    config: Config, chunks: Chunks, region: Region, number: int, x: np.ndarray, fused: bool, position: int
) -> np.ndarray:
    """The MLP: E_y -> F_x -> E_y, or E_y -> F_y -> E_y where all of it is in factors; or experts."""
    block, sums, layer = region.block, region.sums, region.weights.layers[number]
    w = layer.mlp
    if isinstance(w, MeshExperts):
        from meshrt.programs.mesh.experts.decode import experts_of_token
        from meshrt.programs.mesh.experts.gate import choose_for_token, timed

        with timed(region, "decode", "gate"):
            normed, logits = normed_and_product(config, region, x, layer.mlp_norm, w.router_y, fused)
            choice = choose_for_token(region, w, region.layers[number], logits, position)
        return experts_of_token(region, w, choice, normed, config.hidden_size)
    loaded(sums, w.up)
    first, scale = normed_shares(config, region, chunks, x, layer.mlp_norm, w.up, fused)
    gate_up = second(block, sums, w.up, first, scale)
    del first
    if w.up_bias_y:
        gate_up += np.concatenate([bias[:, :, :, 0] for bias in w.up_bias_y], axis=-1).astype(np.float32)
        block.elementwise(gate_up)
    elif w.up_bias:
        gate_up += np.concatenate([bias[:, :, 0] for bias in w.up_bias], axis=-1).astype(np.float32)
        block.elementwise(gate_up)
    hidden = activated(block, gate_up, w.activation, w.gated)
    del gate_up
    loaded(sums, w.down)
    share, scale = shares(block, sums, hidden, w.down)
    del hidden
    out = second(block, sums, w.down, (sums.x if w.down.turned[0] else sums.y)(share), scale)
    if w.down_bias is not None:
        out += w.down_bias.y.astype(np.float32)[:, :, :, 0]
        block.elementwise(out)
    return out if layer.after_mlp is None else normed_alone(config, region, chunks, out, layer.after_mlp)


def sum_scores(cache: TokenCache, counts: np.ndarray, sums: Sums, scores: np.ndarray) -> np.ndarray:
    """The sums of scores [bh, bw, kv, group, tokens] along x, of as many as each row has. A row sends as many as the
    fullest that it goes with.

    All rows go together where they have as many, or one more; else the south row, which new tokens fill, goes apart.
    """
    south = np.arange(len(counts)) == len(counts) - 1
    if not sums.by_rows or np.ptp(counts) <= 1 or not (~south).any():
        return sums.heads(scores)
    for rows in (south, ~south):
        fullest = int(counts[rows].max())
        if fullest:
            part = cache.block.memory.keep("scores of some rows", scores[..., :fullest].copy())
            part = sums.heads(part, lines=rows)
            block_rows = rows[cache.rows] if cache.block.payload else slice(None)
            scores[block_rows, ..., :fullest] = part[block_rows]
    return scores


def merge_softmax(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Join two rows' shares of softmax(s) V, each [.., sum of e^(s - top) v, sum of e^(s - top), top]."""
    top = np.maximum(left[..., -1:], right[..., -1:])
    joined = left[..., :-1] * np.exp(left[..., -1:] - top) + right[..., :-1] * np.exp(right[..., -1:] - top)
    return np.concatenate([joined, top], axis=-1)


def by_head(part: np.ndarray) -> np.ndarray:
    """[bh, bw, columns, heads, Dt] -> [bh, bw, heads, columns * Dt], the order in which the cache has them."""
    return part.swapaxes(2, 3).reshape(*part.shape[:2], part.shape[3], -1)


def remember(cache: TokenCache, number: int, k: np.ndarray, v: np.ndarray) -> None:
    """Write this layer's key and value at the place that `append` made in the row that keeps the token."""
    place = place_of_new(cache)
    if cache.block.payload and place is not None:
        for kind, part in ((0, k), (1, v)):
            cache.data[place[0], :, place[1], number, kind] = by_head(part)[place[0]]
