"""A LLaMA forward pass on NeuronCores: kernels in a row, with a sum over the cores after attention and after the MLP.

The MLP of a compressed model is NeuronMM's Algorithm 3, that of a dense one the public product, as in its comparison.
Other matrices in factors are two products each: no product of factors is ever made.
Over several cores it is cut as by Megatron: heads and columns of the MLP, whose partial results are added.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt.models.checkpoint import Checkpoint
from meshrt.models.config import Config
from meshrt.neuron import language as nl
from meshrt.neuron.core import NeuronCore
from meshrt.neuron.cores import Cores
from meshrt.neuron.tile import Tile
from meshrt.programs.neuron.attention import Heads, LayerCache, attention, new_cache
from meshrt.programs.neuron.blocks import transposed
from meshrt.programs.neuron.dense import BASELINE, matmul
from meshrt.programs.neuron.fused import FUSED, fused
from meshrt.programs.neuron.linear import Matrix, beside, linear
from meshrt.programs.neuron.mlp import svd_mlp
from meshrt.programs.neuron.norm import add, rms_norm, silu_times
from meshrt.programs.neuron.weights import Layer, Weights, place_weights, share_heads


@dataclass(frozen=True)
class Share:
    """What one core has of a model that is running."""

    core: NeuronCore
    heads: Heads
    weights: Weights
    caches: tuple[LayerCache, ...]
    identity: Tile


def place_model(cores: Cores, config: Config, checkpoint: Checkpoint | None, dtype: Any, room: int) -> list[Share]:
    """The model on the cores of this rank, with room for so many tokens in the cache."""
    heads = share_heads(config, cores.count)
    return [
        Share(
            core,
            heads,
            place_weights(core, config, checkpoint, dtype, cores.count, room),
            tuple(new_cache(core, heads, room, dtype) for _ in range(config.layers)),
            nl.shared_identity(core, dtype),
        )
        for core in cores.mine
    ]


def forward(cores: Cores, shares: Sequence[Share], config: Config, ids: Sequence[int], position: int, rows: int) -> Any:
    """Tokens `ids` at `position`..: the logits of the last `rows` of them, float32 [rows, vocabulary], on every rank.

    None without payload.
    """
    eps = config.rms_norm_eps
    xs = [embed(share, ids) for share in shares]
    for i in range(config.layers):
        parts = []
        for share, x in zip(shares, xs, strict=True):
            layer = share.weights.layers[i]
            qkv = beside(rms_norm(x, layer.attention_norm, eps), layer.qkv, layer.qkv_bias)
            cos, sin = share.weights.cos, share.weights.sin
            heads = attention(qkv, share.heads, share.caches[i], cos, sin, share.identity, position)
            parts.append(linear(heads, layer.o, layer.o_bias))
        xs = [add(x, total) for x, total in zip(xs, cores.all_reduce(parts), strict=True)]
        parts = [
            mlp(share, share.weights.layers[i], rms_norm(x, share.weights.layers[i].mlp_norm, eps))
            for share, x in zip(shares, xs, strict=True)
        ]
        xs = [add(x, total) for x, total in zip(xs, cores.all_reduce(parts), strict=True)]
    parts = [
        linear(rms_norm(x[len(ids) - rows :], share.weights.norm, eps), share.weights.head)
        for share, x in zip(shares, xs, strict=True)
    ]
    return cores.to_host(parts, axis=1)


def embed(share: Share, ids: Sequence[int]) -> Tile:
    """Rows of the embedding [T, H], gathered by DMA."""
    core, table = share.core, share.weights.embedding
    out: Tile = nl.ndarray((len(ids), table.shape[1]), table.dtype, buffer=core.hbm)
    for at, token in enumerate(ids):
        nl.store(out[at : at + 1], nl.load(table[token : token + 1]))
    return out


def mlp(share: Share, layer: Layer, x: Tile) -> Tile:
    """x [T, H] -> this core's part of the MLP's result [T, H]."""
    gate, up, down = layer.gate, layer.up, layer.down
    if isinstance(gate, tuple) and isinstance(up, tuple) and isinstance(down, tuple):
        return svd_mlp(x, gate, up, down, FUSED, nl.float32)
    x_t = transposed(x, share.identity)
    inner = silu_times(product(x_t, gate), product(x_t, up))
    return product(transposed(inner, share.identity), down)


def product(x_t: Tile, w: Matrix) -> Tile:
    """x^T [K, T] w [K, N] -> [T, N], of factors fused: where some of the three matrices have them and some have not."""
    if isinstance(w, tuple):
        return fused(x_t, *w, FUSED, nl.float32, is_xt=True)
    return matmul(x_t, w, BASELINE, nl.float32)


def greedy(logits: np.ndarray) -> int:
    """The likeliest token; of equal ones the lowest id."""
    return int(np.argmax(logits))
