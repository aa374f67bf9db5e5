"""Attention, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.studies.nki.case import ResultPairs, case, normal, softmax

STEPS = "attention_fwd_performance/attention_kernels.py"


def _attended(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, causal: bool) -> tuple[np.ndarray, np.ndarray]:
    """q, k, v [..., tokens, d]: probabilities and their product with v."""
    scores = scale * q @ np.swapaxes(k, -1, -2)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=np.bool_), scores, -np.inf)
    weights = softmax(scores)
    return weights, weights @ v


def _by_steps(kernel: Any, rng: np.random.Generator, tokens: int) -> ResultPairs:
    q, k, v = (normal(rng, 128, tokens, scale=0.3) for _ in range(3))
    return [(kernel(q, k, v), _attended(q.T, k.T, v.T, 1.0, False)[1])]


@case(STEPS, "attn_fwd_v1", "attn_fwd_v2", tolerance=1e-5)
def one_tile(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    return _by_steps(kernel, rng, 128)


@case(STEPS, *(f"attn_fwd_v{at}" for at in range(3, 7)), tolerance=1e-5)
def whole_numbers(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    return _by_steps(kernel, rng, 512)


@case(STEPS, "attn_fwd_v7", "attn_fwd_v8", "attn_fwd_v8a", "attn_fwd_v9", "attn_fwd_v10", "attn_fwd_v11",
      tolerance=1e-2)  # fmt: skip
def halves(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    return _by_steps(kernel, rng, 1024)


@case("sd_attention_nki_kernels.py", "fused_self_attn_for_SD_small_head_size", tolerance=1e-2)
def one_head(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    q, k, v = (normal(rng, 512, 64) for _ in range(3))
    return [(kernel(q, k, v), _attended(q, k, v, 0.125, False)[1])]


@case("reference/allocated_attention.py", "allocated_fused_self_attn_for_SD_small_head_size", tolerance=1e-2)
def allocated(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    d, tokens = 128, 4096
    q, k, v = normal(rng, 1, d, tokens), normal(rng, 1, d, tokens), normal(rng, 1, tokens, d)
    wanted = _attended(q.transpose(0, 2, 1), k.transpose(0, 2, 1), v, 0.125, False)[1]
    return [(kernel[1](q, k, v), wanted.transpose(0, 2, 1))]


@case("reference/attention.py", "fused_self_attn_for_SD_small_head_size", tolerance=1e-2)
def small_heads(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    d, tokens = 64, 1024
    q, k, v = normal(rng, 1, d, tokens), normal(rng, 1, tokens, d), normal(rng, 1, tokens, d)
    wanted = _attended(q.transpose(0, 2, 1), k, v, 0.125, False)[1]
    got = np.asarray(kernel[1](q, k, v))
    return [(got if got.shape == wanted.shape else got.transpose(0, 2, 1), wanted)]


@case("contributed/pipelined_attention.py", "flash_fwd", tolerance=1e-2)
def pipelined(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    """The file runs its kernel when it is imported, on 16,384 tokens, and has NumPy's answer: those are compared."""
    return [(module.o, np.asarray(module.o_std).astype(np.float64))]


FORWARD = ("transpose_p_local", "_flash_attention_core", "load_v_tile")


@case("reference/attention.py", "flash_fwd", tolerance=1e-2, parts=FORWARD)
def flash_forward(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    d, tokens = 128, 2048
    q, k, v = normal(rng, 1, 2, d, tokens), normal(rng, 1, 1, d, tokens), normal(rng, 1, 1, tokens, d)
    config = module.FlashConfig(seq_tile_size=1024, training=False, should_transpose_v=False)
    got = kernel[1, 1](q, k, v, None, use_causal_mask=True, mixed_precision=True, config=config)
    turned = q.transpose(0, 1, 3, 2), k.transpose(0, 1, 3, 2)
    return [(got, _attended(*turned, v, d**-0.5, True)[1])]


BACKWARD = ("load_dy_q", "store_dk_dv", "load_kv", "compute_rowsum", "_flash_attn_bwd_core")


@case("reference/attention.py", "flash_attn_bwd", tolerance=2e-2, parts=BACKWARD)
def flash_backward(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    """Of softmax(q k^T / sqrt d) v: dv = p^T dy, dp = dy v^T, ds = p (dp - sum(dp p)), dq = ds k, dk = ds^T q."""
    d, tokens = 128, 1024
    q, k, v, dy = (normal(rng, 1, 1, d, tokens) for _ in range(4))
    scale = d**-0.5
    rows = [x.transpose(0, 1, 3, 2).astype(np.float64) for x in (q, k, v, dy)]
    weights, out = _attended(rows[0], rows[1], rows[2], scale, True)
    scores = np.where(np.tri(tokens, dtype=np.bool_), scale * rows[0] @ rows[1].swapaxes(-1, -2), -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    lse = (top + np.log(np.exp(scores - top).sum(axis=-1, keepdims=True)))[..., 0]
    lse = lse.reshape(1, 1, tokens // 128, 128).transpose(0, 1, 3, 2).astype(np.float32)
    dp = rows[3] @ rows[2].swapaxes(-1, -2)
    ds = weights * (dp - (dp * weights).sum(axis=-1, keepdims=True))
    wanted = [scale * ds @ rows[1], scale * ds.swapaxes(-1, -2) @ rows[0], weights.swapaxes(-1, -2) @ rows[3]]
    o = out.transpose(0, 1, 3, 2).astype(np.float32)
    got = kernel[1, 1](q, k, v, o, dy, lse, None, use_causal_mask=True, mixed_precision=True)
    return [(have, want.transpose(0, 1, 3, 2)) for have, want in zip(got, wanted, strict=True)]


@case("reference/attention.py", "dropout_p_local", tolerance=1e-2)
def dropout(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    """As part of flash_fwd, which calls it in training; which elements go is the hardware's random numbers' choice."""
    q = normal(rng, 1, 1, 128, 1024)
    config = module.FlashConfig(seq_tile_size=1024, training=True, should_transpose_v=False)
    seed = np.zeros(1, np.int32)
    v = q.transpose(0, 1, 3, 2).copy()
    out, _ = module.flash_fwd[1, 1](q, q, v, seed, dropout_p=0.5, use_causal_mask=True, config=config)
    return [(out, np.full(out.shape, np.nan))]  # there is nothing to compare with


@case("flash_paged_attn_varlen/flash_attn_core.py", "transpose_p_local", tolerance=1e-2)
def transposed_tiles(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    """Tiles in SBUF are its arguments, so a kernel around it brings them there: blocks of 128 columns, each turned."""
    from meshrt.nki import jit
    from meshrt.nki import language as language_module

    nl: Any = language_module

    def around(p: Any) -> Any:
        tile = nl.load(p)
        turned = nl.ndarray((nl.par_dim(128), 1024), dtype=nl.float32)
        kernel.function(turned, tile, 128, 1024)
        out = nl.ndarray((128, 1024), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(out, turned)
        return out

    p = normal(rng, 128, 1024)
    return [(jit(around)(p), p.reshape(128, 8, 128).transpose(2, 1, 0).reshape(128, 1024))]
