"""Attention of prompts and of new tokens at once, over a paged cache of keys and values."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from meshrt.studies.nki.case import BFLOAT16, ResultPairs, case, normal, softmax

TOKENS, CONTEXTS, PROMPTS = (50, 60, 1, 1), (100, 70, 130, 40), 2  # of each request; the first two are prompts
PADDED, D, HEADS, BLOCK, Q_TILE, KV_TILE = 128, 128, 2, 32, 32, 1024


def _starts(lengths: np.ndarray, padded: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, int]:
    """Where each sequence begins and ends, and how long all are."""
    ends = np.cumsum(lengths if padded is None else padded, dtype=np.int32)
    starts = np.concatenate((np.zeros(1, np.int32), ends[:-1]))
    return starts, starts + lengths, int(ends[-1])


def _tiles(tokens: Any, contexts: Any, first: int, table: np.ndarray, decode: bool) -> dict[str, Any]:
    """What the checkout's own planner makes of some requests; `first`: of their tokens."""
    planner: Any = importlib.import_module("execution_planner")
    planner._get_seq_start_end = _starts  # what NumPy 1 made of int32 is int64 in NumPy 2, and it asks for int32
    lengths = np.int32(tokens), np.int32(contexts)
    plan = planner.VarlenAttentionPlanner(*lengths, 1 if decode else Q_TILE, KV_TILE, BLOCK).generate_plan()
    blocks = np.concatenate([row[: -(-context // BLOCK)] for row, context in zip(table, contexts, strict=True)])
    per_tile = KV_TILE // BLOCK
    blocks = np.pad(blocks, (0, -len(blocks) % per_tile)).astype(np.int32)
    update, last = plan.build_tile_update_indices(max_num_q_tiles=4)
    return {
        "tile_q_indices": plan.build_tile_q_indices(skip_value=0 if decode else 10 * PADDED) + np.int32(first),
        "tile_block_tables": plan.build_tile_block_tables(blocks, skip_value=0),
        "tile_masks": plan.build_tile_masks(decode_kq_matmul=decode).astype(np.uint8),
        "num_dynamic_loop_steps": np.full((1, 1), plan.num_real_tiles, np.int32),
        "last_tile_indices": last.reshape(-1, 1).astype(np.int32),
        "q_update_pred": update.reshape(-1, 1).astype(np.uint8),
    }


@case("flash_paged_attn_varlen/varlen_attention_kernel.py", "flash_paged_attention_varlen", tolerance=2e-2)
def paged(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    cache = [normal(rng, 64, 1, BLOCK, D, dtype=BFLOAT16, scale=0.5) for _ in range(2)]
    table = rng.permutation(np.arange(1, 41)).reshape(4, 10)
    q, k, v = (normal(rng, *shape, dtype=BFLOAT16) for shape in ((HEADS, PADDED, D), (PADDED, D), (PADDED, D)))
    mask, wanted, begin = np.zeros((PADDED, PADDED), np.uint8), np.zeros((1, HEADS, sum(TOKENS), D)), 0
    for request, (tokens, context) in enumerate(zip(TOKENS, CONTEXTS, strict=True)):
        own = slice(begin, begin + tokens)
        mask[own, own] = np.tri(tokens)
        past = [part[table[request], 0].reshape(-1, D)[:context] for part in cache]
        keys, values = (
            np.concatenate([old, new[own]]).astype(np.float64) for old, new in zip(past, (k, v), strict=True)
        )
        scores = q[:, own].astype(np.float64) @ keys.T * D**-0.5
        scores = np.where(np.tri(tokens, context + tokens, context, dtype=np.bool_), scores, -np.inf)
        wanted[0, :, own] = softmax(scores) @ values
        begin += tokens
    first = sum(TOKENS[:PROMPTS])
    prompts = _tiles(TOKENS[:PROMPTS], CONTEXTS[:PROMPTS], 0, table[:PROMPTS], False)
    others = _tiles(TOKENS[PROMPTS:], CONTEXTS[PROMPTS:], first, table[PROMPTS:], True)
    got = kernel[1, 1](
        query=q[None], key=k.T[None, None].copy(), value=v[None, None], key_cache=cache[0], value_cache=cache[1],
        active_mask=mask, mixed_precision=True, **{f"prefill_{key}": value for key, value in prompts.items()},
        **{f"decode_{key}": value for key, value in others.items()},
    )  # fmt: skip
    return [(got[:, :, : sum(TOKENS)], wanted)]
