"""Kernels of the published code of NeuronMM (dinghongsong/NeuronMM), wherever in a checkout they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.studies.nki.case import BFLOAT16, ResultPairs, case, normal


def _inputs(rng: np.random.Generator, *shapes: tuple[int, int]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Matrices in bfloat16, as large as keeps sums of products near 1; the same in float64."""
    given = [normal(rng, *shape, dtype=BFLOAT16, scale=shape[0] ** -0.25) for shape in shapes]
    return given, [matrix.astype(np.float64) for matrix in given]


def _swiglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    result: np.ndarray = gate / (1 + np.exp(-gate)) * up
    return result


@case("", "fused_three_mm_XTUV", tolerance=2e-2)
def down(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    """X^T [M, K], U [M, r], V [r, N] to X U V [K, N]."""
    given, (x, u, v) = _inputs(rng, (1024, 256), (1024, 512), (512, 1024))
    blocks = {"M_tiles_in_block": 2, "r_tiles_in_block": 2, "K_tiles_in_block": 1, "N_tiles_in_block": 1}
    return [(kernel(*given, **blocks), x.T @ u @ v)]


@case("", "fused_mlp_up_T", "fused_mlp_up_T_new", tolerance=2e-2)
def up_and_gate(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    """X [K, M], and U [M, r], V [r, N] of gate and up, to (SiLU(X U V) * X U' V')^T [N, K]."""
    shapes = (256, 512), (512, 256), (256, 512), (512, 256), (256, 512)
    given, (x, u_gate, v_gate, u_up, v_up) = _inputs(rng, *shapes)
    blocks = {"M_tiles_in_block": 2, "r_tiles_in_block": 2, "K_tiles_in_block": 1, "N_tiles_in_block": 2}
    return [(kernel(*given, **blocks), _swiglu(x @ u_gate @ v_gate, x @ u_up @ v_up).T)]


@case("", "nki_matmul_fully_optimized_", "nki_matmul_tiled_basic", tolerance=1e-2)
def product(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    given, (a, b) = _inputs(rng, (1024, 256), (1024, 1024))
    return [(kernel(*given), a.T @ b)]


@case("", "XUV_matmul", tolerance=2e-2)
def whole(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    given, (x, u, v) = _inputs(rng, (256, 256), (256, 256), (256, 1024))
    return [(kernel(*given), x @ u @ v)]


@case("", "three_mm_unfused", tolerance=2e-2)
def unfused(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    """The published one takes the rows of what lies between anew, and does not transpose it: no X U V."""
    given, (x, u, v) = _inputs(rng, (256, 128), (256, 256), (256, 256))
    between = x.T @ u
    return [(kernel(*given), between.reshape(between.shape[::-1]).T @ v)]


@case("", "fused_three_mm_xuv_transpose_block", "fused_three_mm_xuv_transpose_block2", tolerance=2e-2)
def transposed(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    """X^T [K, M], U [K, N], V [N, D] to (X U V)^T [D, M]."""
    given, (x, u, v) = _inputs(rng, (256, 512), (256, 512), (512, 256))
    return [(kernel(*given), (x.T @ u @ v).T)]
