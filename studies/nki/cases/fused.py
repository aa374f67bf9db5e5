"""Several things in one kernel: state space models, norms with products or quantisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.studies.nki.case import BFLOAT16, ResultPairs, case, normal


@case("mamba_nki_kernels.py", "mamba_v1", "mamba_v2", "mamba_v3")
def mamba(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    batch, channels, tokens, states = 1, 256, 512, 4
    delta, u = (np.abs(normal(rng, batch, channels, tokens, scale=0.3)) for _ in range(2))
    decay = -np.abs(normal(rng, channels, states))
    into, out_of = normal(rng, batch, states, tokens), normal(rng, batch, states, tokens)
    y = np.zeros((batch, channels, states))
    wanted = np.empty((batch, channels, tokens))
    for at in range(tokens):
        step = delta[:, :, at, None]
        y = np.exp(step * decay) * y + step * u[:, :, at, None] * into[:, None, :, at]
        wanted[:, :, at] = (y * out_of[:, None, :, at]).sum(axis=-1)
    return [(kernel(delta, u, decay, into, out_of), wanted)]


@case("reference/allocated_fused_linear.py", "allocated_fused_rms_norm_qkv", tolerance=2e-2)
def norm_and_product(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    hidden, weights = rng.random((1, 512, 1024)), rng.random((1024, 384))
    normed = hidden / np.sqrt((hidden**2).mean(axis=-1, keepdims=True))
    return [(kernel(hidden.astype(BFLOAT16), weights.astype(BFLOAT16)), normed @ weights)]


def _quantised(hidden: np.ndarray, gain: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Rows normed and scaled to the range of 8-bit floats, 240, and what gives them back."""
    x = hidden.astype(np.float64)
    if gain is not None:
        x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * gain.astype(np.float64)
    back = np.abs(x).max(axis=-1, keepdims=True) / 240
    return x, back


REFERENCE_PARTS = (
    "_load_input_tensor_tile", "_store_tensor_tile_and_dequant_scales", "_rms_normalize_tile", "_quantize_tile",
    "_rmsnorm_quant_single_core_kernel", "_rmsnorm_quant_sharded_kernel", "rmsnorm_quant_constants.py:build_constants",
)  # fmt: skip


@case("reference/rmsnorm_quant/rmsnorm_quant.py", "rmsnorm_quant_kernel", tolerance=0.05, parts=REFERENCE_PARTS)
def norm_and_quantise(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    """[rows, n] to [rows, n + 4] of 8-bit floats: the numbers, then the four bytes of each row's float32 scale."""
    hidden, gain = normal(rng, 200, 1024, dtype=BFLOAT16), normal(rng, 1024, dtype=BFLOAT16)
    arguments = module.RmsNormQuantKernelArgs(lower_bound=0.0, norm_type=module.NormType.RMS_NORM, eps=1e-6)
    return [
        pair for got in (kernel(hidden, gain, arguments), kernel[2](hidden, gain, arguments))
        for pair in _given_back(np.asarray(got), *_quantised(hidden, gain))
    ]  # fmt: skip


def _given_back(got: np.ndarray, x: np.ndarray, back: np.ndarray) -> ResultPairs:
    count = x.shape[-1]
    scales = np.ascontiguousarray(got[..., count:]).view(np.uint8).view(np.float32)
    return [(got[..., :count].astype(np.float64) * scales, x), (scales, back)]


TEAM = "neuron-team-kernels/rmsnorm_quant.py"


@case(TEAM, "compatible_rmsnorm_quant", tolerance=0.05,
      parts=("rmsnorm_group", "quantize_group", "rmsnorm_quant", "shard_rmsnorm_quant"))  # fmt: skip
def team_norm_and_quantise(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    """As above, [1, rows, n], on one program and shared out over two, with the norm and without."""
    hidden, gain = normal(rng, 1, 300, 768, dtype=BFLOAT16), normal(rng, 768, dtype=BFLOAT16)
    pairs = []
    for launch in (kernel, kernel[2]):
        for name, used in (("RMSNormQuant", gain), ("QuantOnly", None)):
            pairs += _given_back(np.asarray(launch(hidden, gain, 0.0, name)), *_quantised(hidden, used))
    return pairs
