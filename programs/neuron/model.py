"""A LLaMA forward pass on NeuronCores: kernels in a row, with a sum over the cores after attention and after the MLP.

The MLP of a compressed model is NeuronMM's Algorithm 3, that of a dense one the public product, as in its comparison.
Other matrices in factors are two products each: no product of factors is ever made.
Over several cores it is cut as by Megatron: heads and columns of the MLP, whose partial results are added.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt.models.config import Config
from meshrt.models.family import Family, family_of
from meshrt.models.folders.checkpoint import Checkpoint
from meshrt.neuron import isa as nisa
from meshrt.neuron import language as nl
from meshrt.neuron.core import NeuronCore
from meshrt.neuron.cores import Cores
from meshrt.neuron.tile import Tile, as_tile
from meshrt.programs.neuron.attention import CoreHeads, HeadNorms, NeuronLayerCache, NeuronScores, attention, new_cache
from meshrt.programs.neuron.blocks import transposed
from meshrt.programs.neuron.dense import BASELINE, matmul
from meshrt.programs.neuron.fused import FUSED, fused
from meshrt.programs.neuron.linear import NeuronMatrix, beside, linear
from meshrt.programs.neuron.mlp import svd_mlp
from meshrt.programs.neuron.norm import NeuronNorm, activated, add, add_row, capped, gated, normed
from meshrt.programs.neuron.weights import NeuronLayer, NeuronWeights, place_weights, share_heads
from meshrt.records import dataclass


@dataclass(frozen=True)
class Share:
    """What one core has of a model that is running."""

    core: NeuronCore
    heads: CoreHeads
    weights: NeuronWeights
    caches: tuple[NeuronLayerCache, ...]
    identity: Tile


def place_model(
    cores: Cores, config: Config, checkpoint: Checkpoint | None, dtype: Any, room: int, stored: bool = False
) -> list[Share]:
    """The model on the cores of this rank, with room for so many tokens in the cache; `stored` as in `NeuronLayer`."""
    heads = share_heads(config, cores.count)
    return [
        Share(
            core,
            heads,
            place_weights(core, config, checkpoint, dtype, cores.count, room, stored),
            tuple(new_cache(core, heads, room, dtype) for _ in range(config.layers)),
            nl.shared_identity(core, dtype),
        )
        for core in cores.mine
    ]


def forward(cores: Cores, shares: Sequence[Share], config: Config, ids: Sequence[int], position: int, rows: int) -> Any:
    """Tokens `ids` at `position`..: the logits of the last `rows` of them, float32 [rows, vocabulary], on every rank.

    None without payload.
    """
    family = family_of(config)
    eps = family.eps
    xs = [embed(family, share, ids, position) for share in shares]
    for i in range(config.layers):
        parts = [attended(family, share, i, x, position) for share, x in zip(shares, xs, strict=True)]
        after = [share.weights.layers[i].after_attention for share in shares]
        xs = [plus(x, total, norm, eps) for x, total, norm in zip(xs, cores.all_reduce(parts), after, strict=True)]
        parts = [
            mlp(share, share.weights.layers[i], normed(x, share.weights.layers[i].mlp_norm, eps))
            for share, x in zip(shares, xs, strict=True)
        ]
        after = [share.weights.layers[i].after_mlp for share in shares]
        xs = [plus(x, total, norm, eps) for x, total, norm in zip(xs, cores.all_reduce(parts), after, strict=True)]
    parts = [
        linear(normed(x[len(ids) - rows :], share.weights.norm, eps), share.weights.head)
        for share, x in zip(shares, xs, strict=True)
    ]
    if family.logit_cap is not None:
        parts = [capped(part, family.logit_cap) for part in parts]
    return cores.to_host(parts, axis=1)


def attended(family: Family, share: Share, number: int, x: Tile, position: int) -> Tile:
    """x [T, H] -> this core's part of what a layer's attention makes of it [T, H]. What lies between is gone then, on
    each core that a rank hosts: a name that outlived the last of them would be counted of that one alone."""
    layer = share.weights.layers[number]
    qkv = beside(normed(x, layer.attention_norm, family.eps), layer.qkv, layer.qkv_bias)
    turn = share.weights.turns[layer.rope] if share.weights.turns else None
    scores = NeuronScores(family.scale, family.score_cap, layer.window)
    norms = HeadNorms(layer.head_norms, family.eps) if layer.head_norms else None
    heads = attention(qkv, share.heads, share.caches[number], turn, norms, scores, share.identity, position)
    return linear(heads, layer.o, layer.o_bias)


def plus(x: Tile, addend: Tile, norm: NeuronNorm | None, eps: float) -> Tile:
    """x + what a part of a layer made, after the norm that some models have there."""
    return add(x, addend if norm is None else normed(addend, norm, eps))


def embed(family: Family, share: Share, ids: Sequence[int], position: int) -> Tile:
    """Rows of the embedding [T, H], gathered by DMA; with those of positions where they are learned."""
    core, table, learned = share.core, share.weights.embedding, share.weights.positions
    out: Tile = nl.ndarray((len(ids), table.shape[1]), table.dtype, buffer=core.hbm)
    for at, token in enumerate(ids):
        row = nl.load(table[token : token + 1])
        if family.embedding_scale != 1:
            row = nisa.tensor_scalar(row, nl.multiply, family.embedding_scale)
        if learned is not None:
            row_number = position + at + family.position_offset
            row = nisa.tensor_tensor(as_tile(row), as_tile(nl.load(learned[row_number : row_number + 1])), nl.add)
        nl.store(out[at : at + 1], row)
    return out


def mlp(share: Share, layer: NeuronLayer, x: Tile) -> Tile:
    """x [T, H] -> this core's part of the MLP's result [T, H]."""
    gate, up, down, biases = layer.gate, layer.up, layer.down, layer.inner_biases
    if layer.stored:  # made anew at each pass, and gone after it
        gate = None if gate is None else turned(gate, share.identity)
        up, down = turned(up, share.identity), turned(down, share.identity)
    if isinstance(gate, tuple) and isinstance(up, tuple) and isinstance(down, tuple) and not biases:
        return svd_mlp(x, gate, up, down, FUSED, nl.float32, activation=layer.activation)
    x_t = transposed(x, share.identity)
    inner = [product(x_t, w) for w in (gate, up) if w is not None]
    if biases:
        inner = [add_row(part, bias) for part, bias in zip(inner, biases, strict=True)]
    active = activated(inner[0], layer.activation) if gate is None else gated(inner[0], inner[1], layer.activation)
    del inner  # HBM
    out = product(transposed(active, share.identity), down)
    return out if layer.down_bias is None else add_row(out, layer.down_bias)


def turned(w: NeuronMatrix, identity: Tile) -> NeuronMatrix:
    """A matrix, or both factors, [out, in] -> [in, out], through HBM by a kernel of its own: the published program's
    `weight.t()` before each of its kernels.
    """
    if isinstance(w, tuple):
        u, v = (transposed(factor, identity) for factor in w)
        return u, v
    if not isinstance(w, Tile):
        raise TypeError("a matrix in codes lies as its kernel reads it")
    return transposed(w, identity)


def product(x_t: Tile, w: NeuronMatrix) -> Tile:
    """x^T [K, T] w [K, N] -> [T, N], of factors fused: where some of the three matrices have them and some have not."""
    if isinstance(w, tuple):
        return fused(x_t, *w, FUSED, nl.float32, is_xt=True)
    return matmul(x_t, w, BASELINE, nl.float32)


def greedy(logits: np.ndarray) -> int:
    """The likeliest token; of equal ones the lowest id."""
    return int(np.argmax(logits))
