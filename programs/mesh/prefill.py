"""LLaMA prefill: the whole prompt at once, everything cut both ways (waferllm, section 4.1 and Figure 3).

Activations are L_y E_x: tokens along y, embedding along x. Every product is a MeshGEMM; Q K^T is the transposed one, so
nothing is ever transposed on the mesh. The weights stay where they are and their copies move.

    X = table[ids]                 transposed GEMM against one-hot rows, of which only the ones are looked up
    each layer:
      q, k, v = rms(X) W_qkv       rotary embedding at each core
      S = q k^T                    transposed GEMM, all heads at once; softmax along x by K-tree allreduce
      X += (S v) W_O
      X += (silu(X' W_gate) * X' W_up) W_down,  X' = rms(X)
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.repeat import sampled
from meshrt.models.config import Config
from meshrt.models.family import family_of
from meshrt.models.rope import cos_sin
from meshrt.programs.mesh.activations import activated, cap
from meshrt.programs.mesh.cache import TokenCache
from meshrt.programs.mesh.chunks import Chunks
from meshrt.programs.mesh.crossings import cross_matrix
from meshrt.programs.mesh.linear import product
from meshrt.programs.mesh.meshgemm import zeros
from meshrt.programs.mesh.norms.heads import norm_heads
from meshrt.programs.mesh.norms.prefill import normed
from meshrt.programs.mesh.regions import Region, layers_timed, multiplying
from meshrt.programs.mesh.systems import Sums
from meshrt.programs.mesh.weights import MeshExperts
from meshrt.records import dataclass


@dataclass(frozen=True, eq=False)
class PromptCut:
    """Where the prompt's tokens and the rotary pairs of this block are.

    `rows` and `columns` are the positions of the tokens along y and, for scores, along x: [bh, 1, rows, 1, Lt, 1] and
    [1, bw, 1, P / w, 1, Lt] with w columns to a group of heads. `turns` has cosines and sines of each rotary embedding,
    [bh, bw, rows, columns, 1, Lt, pairs].
    """

    length: int
    chunk_length: int  # Lt
    rows: np.ndarray
    columns: np.ndarray
    turns: tuple[tuple[np.ndarray, np.ndarray], ...]


def prefill(
    regions: Sequence[Region], config: Config, chunks: Chunks, ids: np.ndarray, every: bool, sample: int | None = None,
    spent: list[float] | None = None, layers_only: bool = False,
) -> np.ndarray:  # fmt: skip
    """Run the prompt; its keys and values go into the caches, rows of cores holding their own tokens.

    Returns logits L_y V_x: float32 [bh, bw, rows, columns, Lt, Vt] on the last region's cores, or with `every` False
    only those of each row of tiles' token that stands where the prompt's last does, [.., 1, Vt]. With a `sample` and
    without payloads, only so many layers of a region are run, and the last of them is counted for the others. `spent`
    gets the cycles of each region's layers. With `layers_only`, by shape, there is no embedding before them and no head
    after them.
    """
    positions = cut_prompt(regions[0].block, config, chunks, len(ids))
    x = np.empty(0)
    for before, region in zip((None, *regions), regions, strict=False):
        block, weights = region.block, region.weights
        for table in (table for turn in positions.turns for table in turn):
            block.memory.keep("cosines and sines", table)
        if before is None and layers_only:
            x = zeros(
                block, "activations", (chunks.rows, chunks.columns, positions.chunk_length, chunks.embedding.shape[1])
            )
        elif before is None:
            with multiplying(region, chunks) as ready:
                x = embed(config, ready, chunks, ids, positions)
        else:
            x = cross_matrix(before.block, block, region.crossing, x, sample)
        if region.system == "published":
            x = block.memory.keep("activations", x.astype(region.cache.data.dtype))
        with layers_timed(block, spent):
            for number in sampled(block, len(weights.layers), sample):
                with multiplying(region, chunks) as ready:
                    x += attention(config, chunks, ready, number, x, positions)
                x += feed_forward(config, chunks, region, number, x, positions)
                block.elementwise(x, 2)
                block.console.progress("prefill", number + 1, len(weights.layers))
        if region is not regions[-1]:
            continue
        if layers_only:
            return zeros(block, "logits", (*x.shape[2:4], 1, chunks.vocabulary.shape[1]))
        assert weights.norm is not None and weights.head is not None
        x = normed(config, chunks, region, x, weights.norm)
        if not every:
            last = (len(ids) - 1) % positions.chunk_length
            x = block.memory.keep("normed activations", x[..., last : last + 1, :].copy())
        with multiplying(region, chunks) as ready:
            x = ready.products.gemm(x, weights.head)
        cap(block, x, config.logit_cap)
    return x


def cut_prompt(block: Block, config: Config, chunks: Chunks, length: int) -> PromptCut:
    """Cut the prompt into P chunks along y, and find the cosines of every core's tokens and pairs."""
    mesh, lt = block.mesh, -(-length // chunks.sides)
    bh, bw = block.lead
    token = np.arange(mesh.y0 * chunks.rows * lt, (mesh.y0 + bh) * chunks.rows * lt)
    chunk = (block.x % chunks.group_width)[:, None] * chunks.slots + np.arange(chunks.slots)
    columns = chunk[..., None] * lt + np.arange(lt)

    def by_core(table: np.ndarray) -> np.ndarray:
        split = table.reshape(bh, chunks.rows, lt, bw, chunks.columns, -1)
        return split.transpose(0, 3, 1, 4, 2, 5)[:, :, :, :, None]

    turns = tuple((by_core(cos), by_core(sin)) for cos, sin in pair_tables(block, config, chunks, token))
    rows = token.reshape(bh, 1, chunks.rows, 1, lt, 1)
    return PromptCut(length, lt, rows, columns.reshape(1, bw, 1, chunks.slots, 1, lt), turns)


def pair_tables(
    block: Block, config: Config, chunks: Chunks, positions: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray]]:
    """cos and sin for these positions and the rotary pairs of this block's columns, float32 [positions, pairs], of each
    rotary embedding of the model.
    """
    if not config.ropes:
        return []  # a head may have an odd number, and one without a pair
    pairs = chunks.queries.shape[1] // chunks.heads // 2
    start = block.mesh.x0 * chunks.columns
    number = chunks.queries[start : start + block.lead[1] * chunks.columns, :pairs].reshape(-1)
    pair = np.where(number >= 0, number % (config.head_dim // 2), -1)  # -1: padding, all zero
    tables = (cos_sin(config, positions, number) for number in range(len(config.ropes)))
    return [(cos[:, pair], sin[:, pair]) for cos, sin in tables]


def embed(config: Config, region: Region, chunks: Chunks, ids: np.ndarray, positions: PromptCut) -> np.ndarray:
    """X[L_y, E_x] = onehot[L_y, V_x] table[E_y, V_x]^T, and the same of positions where they are learned."""
    family, weights = family_of(config), region.weights
    assert weights.table is not None
    x = looked_up(region, chunks, ids, weights.table, positions)
    if family.embedding_scale != 1:
        x *= np.float32(family.embedding_scale)
        region.block.elementwise(x)
    if weights.positions is not None:
        numbers = np.arange(len(ids)) + family.position_offset
        x += looked_up(region, chunks, numbers, weights.positions, positions)
        region.block.elementwise(x)
    return x


def looked_up(
    region: Region, chunks: Chunks, ids: np.ndarray, table: np.ndarray, positions: PromptCut
) -> np.ndarray:  # fmt: skip
    """Rows of a table [E_y, V_x], L_y E_x: the table moves, and every core looks its tokens up in it."""
    block, size = region.block, table.shape[-1]
    padded = np.full(chunks.sides * positions.chunk_length, -1)
    padded[: len(ids)] = ids
    starts = (np.arange(block.mesh.width * chunks.columns) * size).reshape(block.mesh.width, chunks.columns)
    starts = starts[block.mesh.x0 : block.mesh.x0 + block.lead[1]]
    inside = padded[positions.rows[..., 0]] - starts[None, :, None, :, None]  # [bh, bw, rows, columns, Lt]
    inside = np.where((inside >= 0) & (inside < size), inside, -1).astype(np.int32)[..., None]
    ones = block.memory.keep("places of the ones of one-hot rows", inside)
    del inside

    def look_up(ones: np.ndarray, table: np.ndarray, total: np.ndarray) -> None:
        at = np.clip(ones, 0, table.shape[-1] - 1)  # by shape what was brought from another core is any number
        rows = np.take_along_axis(table.swapaxes(-1, -2), at, axis=-2).astype(np.float32)
        rows = np.where(ones >= 0, rows, np.float32(0))
        block.elementwise(rows)
        total += rows

    return region.products.gemm_t(ones, table, look_up)


def attention(
    config: Config, chunks: Chunks, region: Region, number: int, x: np.ndarray, positions: PromptCut
) -> np.ndarray:
    """Causal attention of all heads of a group at once: every core has a share of each of them."""
    block, layer, cache, products = region.block, region.weights.layers[number], region.cache, region.products
    keep, kv, group, length = block.memory.keep, chunks.kv_heads, config.group, positions.chunk_length
    ready = normed(config, chunks, region, x, layer.norm)
    qkv = product(block, products.gemm, ready, layer.qkv, region.sums.x)
    del ready
    if layer.qkv_bias is not None:
        qkv += layer.qkv_bias.astype(np.float32)[..., None, :]
        block.elementwise(qkv)
    q, k, v = split_heads(chunks, qkv)
    norm_heads(block, region.sums, config, layer.head_norms, q, k, v)
    q, k, v = (part.swapaxes(-2, -3) for part in (q, k, v))  # [.., heads, Lt, Dt]
    if positions.turns:
        q, k = (rotate(block, part, *positions.turns[layer.rope]) for part in (q, k))
    store(block, cache, number, k, v, positions)
    k, v = (keep("keys and values", np.array(part, cache.data.dtype, order="C")) for part in (k, v))
    q = keep("queries", q.reshape(*q.shape[:4], kv, group * length, q.shape[-1]) * np.float32(config.attention_scale))
    del qkv
    scores = products.heads_t(q, k)  # [.., kv, group * Lt, Lt]
    del q, k
    cap(block, scores, config.score_cap)
    softmax(block, region.sums, scores, group, positions, layer.window)
    mixed = products.heads(scores, v)
    del scores, v
    mixed = mixed.reshape(*mixed.shape[:4], chunks.heads, length, -1).swapaxes(-2, -3)
    mixed = keep("attention", np.ascontiguousarray(mixed).reshape(*mixed.shape[:5], -1))
    result = product(block, products.gemm, mixed, layer.out, region.sums.x)
    if layer.out_bias is not None:
        result += layer.out_bias.x.astype(np.float32)[..., None, :]
        block.elementwise(result)
    return result if layer.after_attention is None else normed(config, chunks, region, result, layer.after_attention)


def split_heads(chunks: Chunks, qkv: np.ndarray) -> tuple[np.ndarray, ...]:
    """[.., (heads + 2 kv) Dt] -> queries [.., heads, Dt], keys and values [.., kv, Dt]."""
    by_head = qkv.reshape(*qkv.shape[:-1], chunks.heads + 2 * chunks.kv_heads, -1)
    values = chunks.heads + chunks.kv_heads
    return by_head[..., : chunks.heads, :], by_head[..., chunks.heads : values, :], by_head[..., values:, :]


def rotate(block: Block, x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Rotary embedding of [.., Dt] with Dt = 2 * pairs, first halves before second halves; cos and sin end in pairs.

    A number more than pairs is left as it is.
    """
    pairs = x.shape[-1] // 2
    first, second, rest = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
    block.elementwise(x, 3)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def store(block: Block, cache: TokenCache, number: int, k: np.ndarray, v: np.ndarray, positions: PromptCut) -> None:
    """Keys and values of this layer, in the rows that computed them; the first layer counts the tokens."""
    if number == 0:
        row_tokens = positions.chunk_length * k.shape[2]
        cache.add(np.clip(positions.length - np.arange(block.mesh.height) * row_tokens, 0, row_tokens))
    for kind, part in ((0, k), (1, v)):
        # [bh, bw, rows, columns, kv, Lt, Dt] -> [bh, bw, rows * Lt, kv, columns * Dt]
        tokens = part.transpose(0, 1, 2, 5, 4, 3, 6)
        tokens = tokens.reshape(*tokens.shape[:2], -1, tokens.shape[4], tokens.shape[5] * tokens.shape[6])
        cache.data[:, :, : tokens.shape[2], number, kind] = tokens


def softmax(
    block: Block, sums: Sums, scores: np.ndarray, group: int, positions: PromptCut, window: int | None
) -> None:  # fmt: skip
    """Causal softmax of scores [.., kv, group * Lt, Lt] (L_y L_x), in place: maximum and sum are allreduces along x."""
    # [bh, bw, rows, columns, Lt, Lt]
    visible = (positions.columns <= positions.rows) & (positions.columns < positions.length)
    if window is not None:
        visible &= positions.columns > positions.rows - window
    visible = np.concatenate([visible] * group, axis=-2)[:, :, :, :, None]
    np.copyto(scores, np.float32(-np.inf), where=~visible)
    del visible  # a core compares the numbers of tokens
    greatest = sums.heads(block.memory.keep("greatest scores", scores.max(axis=(3, -1))), np.maximum)
    np.maximum(greatest, np.float32(-1e30), out=greatest)  # columns without a head have seen nothing
    scores -= greatest[:, :, :, None, ..., None]
    np.exp(scores, out=scores)
    block.elementwise(scores, 3)
    block.scalar(exponentials=prod(scores.shape[2:]))
    total = sums.heads(block.memory.keep("sums of weights", scores.sum(axis=-1).sum(axis=3)))
    block.elementwise(scores, 2)
    block.scalar(divisions=prod(total.shape[2:]))
    scores /= np.maximum(total, np.float32(1))[:, :, :, None, ..., None]  # the greatest weight is 1


def feed_forward(
    config: Config, chunks: Chunks, region: Region, number: int, x: np.ndarray, positions: PromptCut
) -> np.ndarray:
    """The MLP, or experts."""
    block, layer = region.block, region.weights.layers[number]
    inputs = normed(config, chunks, region, x, layer.mlp_norm)
    w = layer.mlp
    if isinstance(w, MeshExperts):
        from meshrt.programs.mesh.experts.prefill import experts_of_prompt  # 64 ranks import what few models need

        return experts_of_prompt(region, chunks, w, region.layers[number], inputs, positions.length)
    with multiplying(region, chunks) as ready:
        gate_up = product(block, ready.products.gemm, inputs, w.up, ready.sums.x)
        del inputs
        if w.up_bias:
            gate_up += np.concatenate(w.up_bias, axis=-1).astype(np.float32)[..., None, :]
            block.elementwise(gate_up)
        hidden = activated(block, gate_up, w.activation, w.gated)
        del gate_up
        result = product(block, ready.products.gemm, hidden, w.down, ready.sums.x)
    if w.down_bias is not None:
        result += w.down_bias.x.astype(np.float32)[..., None, :]
        block.elementwise(result)
    return result if layer.after_mlp is None else normed(config, chunks, region, result, layer.after_mlp)
