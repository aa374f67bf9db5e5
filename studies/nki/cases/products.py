"""Products of matrices."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from meshrt.studies.nki.case import BFLOAT16, ResultPairs, case, normal

FILE = "matrix_multiplication_nki_kernels.py"


def _product(kernel: Any, rng: np.random.Generator, k: int, m: int, n: int, **options: int) -> ResultPairs:
    a, b = normal(rng, k, m, dtype=BFLOAT16), normal(rng, k, n, dtype=BFLOAT16)
    return [(kernel(a, b, **options), a.astype(np.float32).T @ b.astype(np.float32))]


@case(FILE, "nki_matmul_basic_", tolerance=5e-3)
def basic(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    return _product(kernel, rng, 128, 64, 512)


@case(FILE, "nki_matmul_tiled_", "nki_matmul_hoist_load_", "nki_matmul_block_free_dimension_", tolerance=5e-3)
def tiled(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    return _product(kernel, rng, 1024, 512, 1024)


@case(FILE, "nki_matmul_fully_optimized_", tolerance=8e-3)
def optimised(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    return _product(kernel, rng, 1024, 2048, 1024)


@case("contributed/matmul.py", "matmul", tolerance=8e-3)
def contributed(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    a, b = normal(rng, 512, 1024, dtype=BFLOAT16), normal(rng, 1024, 512, dtype=BFLOAT16)
    return [(kernel(a, b), a.astype(np.float32) @ b.astype(np.float32))]


@case("reference/double_row_matmul.py", "quantized_double_row_matmul", tolerance=0.04)
def double_row(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    """lhs in bfloat16, quantised by the kernel; rhs as 8-bit floats, a scale for each column, rows of tiles paired."""
    m, k, n = 512, 2048, 1024
    lhs, rhs = rng.random((m, k)), rng.random((k, n))
    scale = np.abs(rhs).max(axis=0, keepdims=True) / 240
    tiles = (rhs / scale).reshape(k // 256, 2, 128, n // 512, 512)
    paired = tiles.transpose(0, 2, 3, 1, 4).reshape(k // 2, 2 * n).astype(ml_dtypes.float8_e4m3)
    scales = np.broadcast_to(scale, (128, n)).astype(BFLOAT16)
    return [(kernel(lhs.astype(BFLOAT16), paired, scales, 2, 2, 16), lhs @ rhs)]


@case("mxfp-matmul/mx_kernels.py", "kernel_offline_quantized_mx_matmul", "kernel_on_device_quantize_matmul_mx",
      "kernel_copy_strided_quantize_matmul_mx")  # fmt: skip
def of_mx_formats(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    """They ask for a device that has these formats, and is not there: the launch says so."""
    return [(kernel(*(normal(rng, 128, 128) for _ in range(5))), np.full(1, np.nan))]
