"""Sums, norms, softmax, rotation, transposition."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.studies.nki.case import ResultPairs, case, normal, softmax


@case("tensor_addition_nki_kernels.py", "nki_tensor_add_kernel_", tolerance=1e-3)
def tensor_addition(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    a, b = normal(rng, 256, 1024, dtype=np.float16), normal(rng, 256, 1024, dtype=np.float16)
    return [(kernel[2, 2](a, b) if "spmd" in module.__file__ else module.nki_tensor_add(a, b), a + b)]


@case("reference/tutorial.py", "add_kernel_nx8x128x512")
def addition_of_blocks(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    a, b = normal(rng, 2, 8, 128, 512), normal(rng, 2, 8, 128, 512)
    return [(kernel[2](a, b, a.size), a + b)]


@case("softmax_nki_kernels.py", "nki_softmax_kernel")
def softmax_of_rows(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    a = normal(rng, 300, 1280)
    return [(kernel(a), softmax(a))]


@case("rmsnorm_nki_kernels.py", "nki_rmsnorm_kernel")
def rms_norm(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    a, gain = normal(rng, 250, 512), normal(rng, 512)
    return [(kernel(a, gain), a / np.sqrt((a.astype(np.float64) ** 2).mean(axis=1, keepdims=True)) * gain)]


@case("layernorm_nki_kernel.py", "nki_layernorm_kernel_v1", "nki_layernorm_kernel_v2")
def layer_norm(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    a, gain, shift = normal(rng, 300, 1100), normal(rng, 1100), normal(rng, 1100)
    centred = a - a.mean(axis=1, keepdims=True)
    wanted = centred / np.sqrt(a.var(axis=1, keepdims=True) + 1e-5) * gain + shift
    return [(kernel(a, 1e-5, gain, shift), wanted)]


@case("transpose2d_nki_kernels.py", "tensor_transpose2D_kernel_")
def transposition(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    a = rng.integers(-128, 127, (100, 3 * 40)).astype(np.int8)
    return [(kernel(a, (3, 40)), a.reshape(100, 3, 40).transpose(0, 2, 1).reshape(100, -1))]


@case("rotary_nki_kernels.py", "nki_apply_rotary_embedding", parts=("_nki_apply_rotary_embedding_core",))
def rotation(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    q, k = normal(rng, 2, 3, 200, 64), normal(rng, 2, 3, 200, 64)
    cos, sin = normal(rng, 2, 200, 64), normal(rng, 2, 200, 64)

    def turned(x: np.ndarray) -> np.ndarray:
        half = np.concatenate([-x[..., 32:], x[..., :32]], axis=-1)
        result: np.ndarray = x * cos[:, None] + half * sin[:, None]
        return result

    return [(kernel[2, 3](q, k, cos, sin), np.stack([turned(q), turned(k)]))]


@case("neuron-team-kernels/transpose.py", "tiled_dve_transpose_10")
def last_two_axes(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    a = normal(rng, 150, 20, 30)
    return [(kernel(a, permutation=(0, 2, 1)), a.transpose(0, 2, 1))]


@case("neuron-team-kernels/transpose.py", "tiled_dve_transpose_210")
def first_and_last_axes(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    a = normal(rng, 150, 7, 6, 9)
    return [(kernel(a), a.transpose(0, 3, 2, 1))]
