"""Products of a norm of one token in decode: the norm's sum of squares rides along with what it scales.

rms(x) W = ((x * norm) W) / sqrt(mean(x^2) + eps)

LayerNorm has an allreduce of its own before the product, and so have norms that no product follows.
"""

from math import prod

import numpy as np

from meshrt.mesh.block import Block
from meshrt.models.config import Config
from meshrt.programs.mesh.chunks import Chunks
from meshrt.programs.mesh.codes.packed import Tiles
from meshrt.programs.mesh.codes.whole import WholeCodes, largest, token_codes
from meshrt.programs.mesh.linear import Linear, along, shares
from meshrt.programs.mesh.meshgemm import zeros
from meshrt.programs.mesh.norms.moments import merged, moments, real_along
from meshrt.programs.mesh.regions import Region
from meshrt.programs.mesh.weights import MeshNorm


def normed_product(
    config: Config, region: Region, chunks: Chunks, x: np.ndarray, norm: MeshNorm, w: Tiles, fused: bool
) -> np.ndarray:
    """rms(x) W of E_y: [bh, bw, rows, Et] -> [bh, bw, columns, Nt], the same in every row; or LayerNorm.

    rms(x) W = ((x * norm) W) / sqrt(mean(x^2) + eps): the sum of squares is reduced along y in the same packets. A
    core's share of x[K_y] W[K_y, N_x] is summed up where they are.
    """
    block, sums = region.block, region.sums
    if norm.bias is not None:
        return np.asarray(sums.y(along(block, normed_alone(config, region, chunks, x, norm), w, False)))
    flat = x.reshape(*x.shape[:2], 1, -1)
    size = w.shape[3] * w.shape[-1]
    packet = zeros(block, "products and sum of squares", (size + 1,))
    packet[..., size:] = np.matmul(flat, flat.swapaxes(-1, -2))[..., 0]
    share = packet[..., :size].reshape(*x.shape[:2], w.shape[3], w.shape[-1])
    block.elementwise(x, 2)
    normed = block.memory.keep("normed activations", x * norm.weight.y.astype(np.float32)[:, :, :, 0])
    if not fused:
        squares = sums.y(block.memory.keep("sum of squares", packet[..., size:].copy()))
        normed *= inverse_rms(block, config, squares)[..., None]
    along(block, normed, w, False, share)
    del normed
    if not fused:
        block.elementwise(x)
        return np.asarray(sums.y(share))
    total = sums.y(packet)
    product = total[..., :size].reshape(share.shape)
    block.elementwise(product)
    product *= inverse_rms(block, config, total[..., size:])[..., None]
    return product


def normed_shares(
    config: Config, region: Region, chunks: Chunks, x: np.ndarray, norm: MeshNorm, w: Linear, fused: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """rms(x) W as `normed_product` has it; of whole numbers what is to be finished by the scale that comes with it.

    Whole numbers need the norm before they are rounded: the sum of squares and, `fused`, the largest magnitude of
    x * norm come in one allreduce of two numbers, and then the products in one of theirs.
    """
    block, sums = region.block, region.sums
    if norm.bias is not None:
        share, scales = shares(block, sums, normed_alone(config, region, chunks, x, norm), w)
        return np.asarray(sums.y(share)), scales
    if not isinstance(w.first, WholeCodes):
        return normed_product(config, region, chunks, x, norm, w.first, fused), None
    flat = x.reshape(*x.shape[:2], 1, -1)
    block.elementwise(x, 2)
    normed = block.memory.keep("normed activations", x * norm.weight.y.astype(np.float32)[:, :, :, 0])
    squares, most = np.matmul(flat, flat.swapaxes(-1, -2)), None
    if w.first.activations == "row" and fused:
        pair = np.concatenate([squares, largest(block, normed, (2, 3))], axis=-1)
        pair = sums.y(block.memory.keep("sum of squares and largest", pair), add_and_most)
        scale = inverse_rms(block, config, pair[..., :1])
        most = pair[..., 1:] * scale
    else:
        scale = inverse_rms(block, config, sums.y(block.memory.keep("sum of squares", squares)))
    normed *= scale
    block.elementwise(x)
    if w.first.activations == "row" and most is None:
        most = sums.y(largest(block, normed, (2, 3)), np.maximum)
    codes, scales = token_codes(block, normed, w.first, False, most)
    del normed
    share = along(block, codes, w.first, False)
    del codes
    return np.asarray(sums.y(share)), scales


def add_and_most(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Of pairs [.., 2], the sum of the first and the larger of the second."""
    return np.concatenate([left[..., :1] + right[..., :1], np.maximum(left[..., 1:], right[..., 1:])], axis=-1)


def normed_alone(config: Config, region: Region, chunks: Chunks, x: np.ndarray, norm: MeshNorm) -> np.ndarray:
    """RMSNorm or LayerNorm of E_y, [bh, bw, rows, Et]: an allreduce along y, of the sum of squares or of moments."""
    block, sums, weight = region.block, region.sums, norm.weight.y.astype(np.float32)[:, :, :, 0]
    if norm.bias is None:
        flat = x.reshape(*x.shape[:2], 1, -1)
        squares = block.memory.keep("sum of squares", np.matmul(flat, flat.swapaxes(-1, -2))[..., 0])
        block.elementwise(x, 3)
        scale = inverse_rms(block, config, sums.y(squares))
        return block.memory.keep("normed activations", x * scale[..., None] * weight)
    real = real_along(block, chunks, "y")[:, :, :, 0]
    _, mean, squares = np.moveaxis(sums.y(moments(block, x, real, (2, 3)), merged), -1, 0)  # [bh, bw]
    block.elementwise(x, 4)
    apart = (x - mean[..., None, None]) * inverse_rms(block, config, squares[..., None])[..., None]
    return block.memory.keep("normed activations", apart * weight + norm.bias.y.astype(np.float32)[:, :, :, 0])


def inverse_rms(block: Block, config: Config, squares: np.ndarray) -> np.ndarray:
    """1 / sqrt(mean(x^2) + eps) from the sum of squares."""
    block.scalar(roots=prod(squares.shape[2:]), divisions=prod(squares.shape[2:]))
    return np.asarray(1 / np.sqrt(squares / np.float32(config.hidden_size) + np.float32(config.eps)))


def normed_and_product(
    config: Config, region: Region, x: np.ndarray, norm: MeshNorm, w: np.ndarray, fused: bool
) -> tuple[np.ndarray, np.ndarray]:
    """rms(x), E_y, and rms(x) W of W [bh, bw, rows, 1, Et, n], whole at every column: [bh, bw, n] at all cores; of W
    [bh, bw, rows, columns, Et, nt] what each column of cores has of that, [bh, bw, columns * nt].

    One allreduce along y of so many numbers and one; not `fused`, two.
    """
    block, sums = region.block, region.sums
    size = w.shape[3] * w.shape[-1]
    packet = zeros(block, "products and sum of squares", (size + 1,))
    flat = x.reshape(*x.shape[:2], 1, -1)
    packet[..., size:] = np.matmul(flat, flat.swapaxes(-1, -2))[..., 0]
    block.elementwise(x, 2)
    normed = block.memory.keep("normed activations", x * norm.weight.y.astype(np.float32)[:, :, :, 0])
    if not fused:
        squares = sums.y(block.memory.keep("sum of squares", packet[..., size:].copy()))
        normed *= inverse_rms(block, config, squares)[..., None]
    along(block, normed, w, False, packet[..., :size].reshape(*x.shape[:2], w.shape[3], w.shape[-1]))
    block.elementwise(x)
    if not fused:
        return normed, np.asarray(sums.y(block.memory.keep("products", packet[..., :size].copy())))
    total = sums.y(packet)
    scale = inverse_rms(block, config, total[..., size:])
    normed *= scale[..., None]
    block.elementwise(total)
    return normed, block.memory.keep("products", total[..., :size] * scale)
