"""How long a kernel takes on a GPU, beside `kernel_seconds`: products by tiles, kernels of a row a block, others.

What a kernel waits for runs at the same time: its start, its arithmetic on the SMs, its bytes of memory. Where one of
them is much longer than the others they hide behind it; where they are alike they do not quite (`together`). All
numbers are the device's (device.py) or a kernel's, below; docs/lowrank.md has how they were found and how they hold.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from meshrt.gpu.device import GpuDevice

ProductShape = tuple[int, int, int]  # of a product [m, k] @ [k, n]

# What kernels of matrix products there are: rows and columns of the result that a block of threads computes, and the
# parts that the inner dimension is cut into, which have to be added up afterwards (split-K). Those of cuBLAS and
# CUTLASS for 16-bit numbers.
TILES = ((16, 64), (16, 128), (32, 64), (32, 128), (64, 64), (64, 128), (128, 64), (64, 256), (256, 64), (128, 128),
         (128, 256), (256, 128))  # fmt: skip
SPLITS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
INNER = 32  # of the inner dimension that a block takes at a time
SHORTEST = 128  # part of it that is worth a block of its own

_ROWS, _COLUMNS, _PARTS = np.array([(*tile, parts) for tile in TILES for parts in SPLITS], float).T


class RowKernel(NamedTuple):
    """A kernel with a block of threads for each row: SM cycles of a number where SMs are full, and of one where a block
    is alone and waits for its own memory; of a block. `again`: what cycles are multiplied by where what it reads
    twice no longer lies in the L2 cache."""

    cycles: float
    alone: float
    block: float
    again: float = 1.0


# vLLM's kernels, found by studies/validate/gpufit.py on the rows of A100, A40 and H100 that are for fitting. Cycles
# are an A100's.
BLOCK = 369.0
NORM = RowKernel(0.674, 1.23, BLOCK, 1.36)
ROTATE = RowKernel(0.584, 0.932, BLOCK)
ACTIVATE = RowKernel(0.777, 0.853, BLOCK)


def together(*seconds: Any) -> Any:
    """Of what runs at the same time: no less than the longest, and a quarter more where two are equal."""
    cubes = 0.0
    for each in seconds:
        cubes += each * each * each
    return cubes ** (1 / 3)


def plain_seconds(device: GpuDevice, flops: float, nbytes: float) -> Any:
    """Of a kernel of which nothing is known but this: a sum of arrays, a copy, attention."""
    return together(
        device.start_seconds, flops / (device.flops * device.flops_share),
        nbytes / (device.memory_bytes_per_second * device.memory_share),
    )  # fmt: skip


def rows_seconds(device: GpuDevice, kernel: RowKernel, rows: Any, width: Any, nbytes: Any) -> Any:
    """Of one with a block for each of `rows`, which have `width` numbers. SMs with most of the blocks are the last."""
    again = np.where(nbytes > device.l2_bytes, kernel.again, 1.0)
    busy = np.ceil(rows / device.sms) * (kernel.block + width * kernel.cycles * again) / device.sm_rate
    return together(
        device.start_seconds, busy / device.hertz, width * kernel.alone / device.hertz,
        nbytes / (device.memory_bytes_per_second * device.memory_share),
    )  # fmt: skip


@lru_cache(1 << 14)
def products_seconds(device: GpuDevice, shapes: Sequence[ProductShape], itemsize: int) -> float:
    """Of one kernel that computes these products, with the tile and the split of the inner dimension that suit best."""
    whole = [shape for shape in shapes if 0 not in shape]
    if not whole:
        return device.start_seconds
    return float(ways(device, np.array(whole, float).T[:, :, None], itemsize).min())


def ways(device: GpuDevice, shapes: np.ndarray, itemsize: int) -> np.ndarray:
    """Seconds by tile and split, [.., ways], of one kernel for all products; `shapes` float [3, .., products, 1].

    A tile takes what the tensor cores need for it, or what it takes to bring its operands from the L2 cache; the SM
    with the most tiles is the last, and has ceil(tiles / SMs) of them: waves. Memory gives so much to each SM that is
    busy, and no more than it has.
    """
    m, k, n = shapes
    tiles = np.ceil(m / _ROWS) * np.ceil(n / _COLUMNS) * _PARTS
    inner = np.ceil(k / _PARTS / INNER) * INNER
    arithmetic = 2 * _ROWS * _COLUMNS * inner * (device.sms / (device.flops * device.flops_share))
    tile_seconds = np.maximum(arithmetic, (_ROWS + _COLUMNS) * inner * (itemsize / device.sm_l2_bytes_per_second))
    count = tiles.sum(-2)
    busy = np.maximum(np.ceil(count / device.sms) * ((tiles * tile_seconds).sum(-2) / count), tile_seconds.max(-2))
    whole = device.memory_bytes_per_second * device.memory_share
    rate = np.minimum(np.minimum(count, device.sms) * device.sm_memory_bytes_per_second, whole)
    seconds = device.product_seconds + together(busy, itemsize * (m * k + k * n + m * n).sum(-2) / rate)
    sums = np.where(_PARTS > 1, device.split_seconds + 4 * _PARTS * (m * n).sum(-2) / whole, 0.0)
    allowed = (_PARTS == 1) | (inner.min(-2) >= SHORTEST)
    return np.where(allowed, seconds + sums, np.inf)
