"""Mean and spread of numbers that are cut over the cores of a line, for LayerNorm: one allreduce of three numbers.

Each core has how many numbers there are, their mean, and the sum of squares around it; two of these make one
("Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979). Sums of squares alone would lose
all digits where the mean is far from zero.
"""

from math import prod

import numpy as np

from meshrt.mesh.block import Block
from meshrt.programs.mesh.chunks import Chunks


def real_along(block: Block, chunks: Chunks, axis: str) -> np.ndarray:
    """Which numbers of E are no padding: bool [1, bw, 1, columns, Et] along x, or [bh, 1, rows, 1, Et] along y."""
    low = block.mesh.offset(axis)
    each, lead = (chunks.columns, block.lead[1]) if axis == "x" else (chunks.rows, block.lead[0])
    real = (chunks.embedding[low * each : (low + lead) * each] >= 0).reshape(lead, each, -1)
    return real[None, :, None] if axis == "x" else real[:, None, :, None]


def moments(block: Block, x: np.ndarray, real: np.ndarray, axes: tuple[int, int]) -> np.ndarray:
    """Of the numbers at a core along these axes: [.., (how many, mean, squares around it)]."""
    shape = np.broadcast_shapes(x.shape, real.shape)
    count = np.broadcast_to(real, shape).sum(axis=axes, dtype=np.float32)
    mean = x.sum(axis=axes, dtype=np.float32) / np.maximum(count, np.float32(1))
    apart = np.where(real, x - np.expand_dims(mean, axes), np.float32(0))
    block.elementwise(x, 3)
    block.scalar(divisions=prod(mean.shape[2:]))
    triples = np.stack([count, mean, np.square(apart).sum(axis=axes, dtype=np.float32)], axis=-1)
    return block.memory.keep("mean and squares", triples)


def merged(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The moments of all numbers from those of two parts of them, [.., 3] each."""
    (m, a, p), (n, b, q) = (np.moveaxis(part, -1, 0) for part in (left, right))
    count, apart = m + n, b - a
    share = n / np.maximum(count, np.float32(1))
    return np.stack([count, a + apart * share, p + q + apart * apart * m * share], axis=-1)
