"""Norms of a prompt's tokens, L_y E_x: what they take of a token is an allreduce along x."""

from math import prod

import numpy as np

from meshrt.models.config import Config
from meshrt.programs.mesh.chunks import Chunks
from meshrt.programs.mesh.norms.moments import merged, moments, real_along
from meshrt.programs.mesh.regions import Region
from meshrt.programs.mesh.weights import MeshNorm


def normed(config: Config, chunks: Chunks, region: Region, x: np.ndarray, norm: MeshNorm) -> np.ndarray:
    """RMSNorm or LayerNorm of [bh, bw, rows, columns, Lt, Et]."""
    block = region.block
    if norm.bias is None:
        return rms_norm(config, region, x, norm.weight.x)
    real = real_along(block, chunks, "x")[..., None, :]
    _, mean, squares = np.moveaxis(region.sums.x(moments(block, x, real, (3, 5)), merged), -1, 0)  # [bh, bw, rows, Lt]
    scale = 1 / np.sqrt(squares / np.float32(config.hidden_size) + np.float32(config.eps))
    block.scalar(roots=prod(scale.shape[2:]), divisions=prod(scale.shape[2:]))
    block.elementwise(x, 4)
    y = (x - mean[:, :, :, None, :, None]) * scale[:, :, :, None, :, None]
    y *= norm.weight.x.astype(np.float32)[..., None, :]
    y += norm.bias.x.astype(np.float32)[..., None, :]
    return block.memory.keep("normed activations", y)


def rms_norm(config: Config, region: Region, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The sum of squares of a token is an allreduce along x. `weight` is a vector along x, as it is stored."""
    block = region.block
    squares = np.matmul(x[..., None, :], x[..., :, None])[..., 0, 0].sum(axis=3, dtype=np.float32)  # [bh, bw, rows, Lt]
    block.elementwise(x)
    total = region.sums.x(block.memory.keep("sums of squares", squares))
    scale = 1 / np.sqrt(total / np.float32(config.hidden_size) + np.float32(config.eps))
    block.scalar(roots=prod(total.shape[2:]), divisions=prod(total.shape[2:]))
    block.elementwise(x, 2)
    y = x * scale[:, :, :, None, :, None]
    y *= weight.astype(np.float32)[..., None, :]
    return block.memory.keep("normed activations", y)
