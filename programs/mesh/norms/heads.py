"""Norms of queries and keys before they are turned, and a bound on queries, keys and values: OLMoE's and Qwen3-MoE's.

Every head is cut over columns of cores, so that a sum of squares is one over these columns: a layer with such norms
takes one allreduce along x more, in prefill and in decode, of a number for each head or, where a norm is over all
heads, of one for the queries and one for the keys.
"""

from math import prod

import numpy as np

from meshrt.mesh.block import Block
from meshrt.models.config import Config
from meshrt.programs.mesh.systems import Sums


def norm_heads(
    block: Block, sums: Sums, config: Config, norms: np.ndarray | None, q: np.ndarray, k: np.ndarray, v: np.ndarray
) -> None:  # fmt: skip
    """Norm and bound queries, keys and values in place: [bh, bw, columns, heads, Dt], in prefill with the rows of tiles
    before the columns and the tokens of a tile after them. `norms` are those of weights.Layer.
    """
    if norms is not None:
        _norm(block, sums, config, norms.astype(np.float32), q, k)
    if config.clip_qkv is not None:
        for part in (q, k, v):
            np.clip(part, -config.clip_qkv, config.clip_qkv, out=part)
            block.elementwise(part)


def _norm(block: Block, sums: Sums, config: Config, norms: np.ndarray, q: np.ndarray, k: np.ndarray) -> None:
    columns, of_all = q.ndim // 2, config.qk_norm == "all"  # axis 2 of 5, or 3 of 7
    squares = []  # [.., heads], or [.., 1]
    for part in (q, k):
        by_head = np.square(part).sum(axis=-1).sum(axis=columns)
        squares.append(by_head.sum(axis=-1, keepdims=True) if of_all else by_head)
        block.elementwise(part)
    packet = block.memory.keep("sums of squares of heads", np.concatenate(squares, axis=-1))
    totals = np.split((sums.x if of_all else sums.heads)(packet), [squares[0].shape[-1]], axis=-1)
    size = q[..., 0].shape[-1] * q.shape[-1] if of_all else q.shape[-1]  # numbers of a core that belong to queries
    weights = np.split(norms[:, :, 0] if q.ndim == 5 else norms[..., None, :], [size], axis=-1)
    for part, total, weight, heads in zip((q, k), totals, weights, (config.heads, config.kv_heads), strict=True):
        count = np.float32(config.head_dim * (heads if of_all else 1))
        scale = 1 / np.sqrt(total / count + np.float32(config.eps))
        part *= np.expand_dims(scale, columns)[..., None]
        part *= weight.reshape(*weight.shape[:-1], -1, part.shape[-1])
        block.scalar(roots=prod(total.shape[2:]), divisions=prod(total.shape[2:]))
        block.elementwise(part, 2)
