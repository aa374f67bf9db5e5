"""A layer of WaferLLM's published decode program (MeshInfra/WaferLLM, decode.csl), as it ran: `--as-published`.

One head, one token; ten allreduces, one after the other. A product is one `@map` of an instruction for each number of
its left side, vectors of 16-bit numbers take the SIMD width of these, and what is no vector instruction is scalar code,
a number at a time. Before a vector instruction its
operands are set up (@set_dsd_base_addr, @set_dsd_length, @increment_dsd_offset, @load_to_dsr): `DESCRIPTORS` says how
often that is done beside what each `@map` has, and six of them are what a product's loop takes (`loop_cycles`: one base
address, three loads of registers and two offsets).

    rms(x)      y; 2 divisions and a root         exp        a polynomial each
    Q, K, V     y, in one                         W_O        x
    scores      x                                 rms(z)     y
    maximum     y                                 up, gate   y, in one
    sum, S V    y, y; a division                  W_down     x

The published loop of silu goes over as many numbers as a core has of the embedding, where there are more of the gate:
here all are computed, and as many are charged as the program takes.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from meshrt.mesh.block import Block
from meshrt.models.config import Config
from meshrt.programs.mesh.cache import seen_by_newest
from meshrt.programs.mesh.chunks import Chunks
from meshrt.programs.mesh.decode import EMPTY, by_head, remember, remembered
from meshrt.programs.mesh.linear import Linear
from meshrt.programs.mesh.meshgemm import zeros
from meshrt.programs.mesh.prefill import rotate, split_heads
from meshrt.programs.mesh.regions import Region
from meshrt.programs.mesh.weights import MeshMlp

# By part of a layer, as often as decode.csl has it; what is cleared, or given to an instruction as it is, is one more.
DESCRIPTORS = {
    "norm": 13, "qkv": 20, "rotary": 46, "scores": 8, "softmax": 15, "values": 6, "out": 6, "sum": 3, "up": 13,
    "gate": 3, "down": 6,
}  # fmt: skip


def set_up(block: Block, *parts: str) -> None:
    """Set up the operands of these parts."""
    block.clock.software(sum(DESCRIPTORS[part] for part in parts) * block.device.loop_cycles / 6)


def published_layer(
    config: Config, chunks: Chunks, region: Region, number: int, x: np.ndarray,
    turns: Sequence[tuple[np.ndarray, ...]],
) -> np.ndarray:  # fmt: skip
    """x after the layer: E_y, [bh, bw, 1, Et], in the type of storage, as all that is added up."""
    block, layer, sums = region.block, region.weights.layers[number], region.sums
    assert isinstance(layer.mlp, MeshMlp)
    normed = norm(config, region, x, layer.norm.weight.y)
    set_up(block, "qkv")
    q, k, v = split_heads(chunks, sums.y(products(block, normed, layer.qkv)))
    set_up(block, "rotary", "scores")
    q, k = (rotate(block, part, *turns[layer.rope]).astype(x.dtype) for part in (q, k))
    remember(region.cache, number, k, v)
    mixed = sums.y(attend(config, region, number, by_head(q)[:, :, :, None]))
    set_up(block, "out")
    z = x + sums.x(products(block, mixed.reshape(*mixed.shape[:2], 1, -1), layer.out))
    set_up(block, "sum")
    block.elementwise(x)
    normed = norm(config, region, z, layer.mlp_norm.weight.y)
    set_up(block, "up")
    gate, up = np.split(sums.y(products(block, normed, layer.mlp.up)), 2, axis=-1)
    hidden = gate / (1 + np.exp(-gate)) * up
    looped = min(x.shape[-1], gate.shape[-1])
    block.scalar(divisions=looped, exponentials=looped)
    set_up(block, "gate", "down", "sum")
    block.elementwise(gate)
    block.elementwise(x)
    return np.asarray(z + sums.x(products(block, hidden, layer.mlp.down)))


def norm(config: Config, region: Region, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """rms(x) * weight: squares, their sum, then x * weight, and that times 1 / sqrt(sum / n + eps)."""
    block = region.block
    set_up(block, "norm")
    squares = region.sums.y(block.memory.keep("sum of squares", (x * x).sum(axis=-1, keepdims=True)))
    scale = 1 / np.sqrt(squares / x.dtype.type(config.hidden_size) + x.dtype.type(config.eps))
    block.elementwise(x, 2)
    block.elementwise(x, 2, operands=1)  # added up, and times a number
    block.scalar(divisions=2, roots=1)
    return block.memory.keep("normed activations", x * weight[:, :, :, 0].astype(x.dtype) * scale)


def products(block: Block, x: np.ndarray, w: Linear) -> np.ndarray:
    """Each core's shares of x W, one matrix of `w` after the other: [bh, bw, 1, Kt] -> [bh, bw, 1, all Nt]."""
    shares = [product(block, x[:, :, :, None, None], tiles) for tiles in w.split(np.asarray(w.first))]
    return block.memory.keep("products side by side", np.concatenate(shares, axis=-1)[:, :, 0, 0])


def product(block: Block, x: np.ndarray, tiles: np.ndarray) -> np.ndarray:
    """[.., 1, Kt] times [.., Kt, Nt] into a cleared [.., 1, Nt]."""
    total = zeros(block, "product", (*tiles.shape[2:-2], 1, tiles.shape[-1]), x.dtype)
    block.elementwise(total, operands=0)
    return block.matmul(x, tiles.astype(x.dtype, copy=False), total)


def attend(config: Config, region: Region, number: int, q: np.ndarray) -> np.ndarray:
    """Each row's share of softmax(q K^T) V: [bh, bw, 1, 1, Dt] -> [bh, bw, 1, 1, Dt]."""
    block, cache, sums = region.block, region.cache, region.sums
    seen = seen_by_newest(cache, None)  # all rows compute as many as the fullest has
    holds = (np.arange(seen.most) < seen.here(cache, seen.counts)[: block.lead[0], None])[:, None, None, None]
    keys, values = (remembered(cache, number, kind, seen, holds).astype(q.dtype) for kind in (0, 1))
    scores = sums.x(product(block, q, keys.swapaxes(-1, -2))) * q.dtype.type(config.attention_scale)
    np.copyto(scores, EMPTY.astype(q.dtype), where=~holds)
    top = sums.y(block.memory.keep("greatest scores", scores.max(axis=-1, keepdims=True)), np.maximum)
    weights = block.memory.keep("weights of tokens", np.where(holds, np.exp(scores - top), q.dtype.type(0)))
    total = sums.y(block.memory.keep("sums of weights", weights.sum(axis=-1, keepdims=True)))
    weights /= total
    set_up(block, "softmax", "values")
    # Scaled, maximum, less the maximum, added up, divided by the sum.
    block.elementwise(weights, 5, operands=1)
    block.scalar(exponentials=prod(weights.shape[2:]), divisions=1)
    return product(block, weights, values)
