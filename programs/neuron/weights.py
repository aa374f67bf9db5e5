"""A model's tensors in the HBM of NeuronCores: heads and columns of the MLP shared out, the rest on every core."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.models import matrix as forms
from meshrt.models.config import Config
from meshrt.models.family import family_of
from meshrt.models.folders.checkpoint import Checkpoint
from meshrt.models.quantize.form import Quantized
from meshrt.models.rope import cos_sin
from meshrt.neuron import language as nl
from meshrt.neuron.core import NeuronCore
from meshrt.neuron.tile import Tile
from meshrt.programs.neuron.attention import CoreHeads
from meshrt.programs.neuron.linear import NeuronMatrix
from meshrt.programs.neuron.norm import NeuronNorm
from meshrt.programs.neuron.reader import EVERY, TensorReader
from meshrt.programs.shares import part
from meshrt.records import dataclass


@dataclass(frozen=True)
class NeuronLayer:
    """One layer's tensors, [in, out]: of this core's heads, and of its columns of the MLP. `stored`: gate, up and down
    are [out, in], as in a checkpoint, and so are their factors.

    `qkv` has the three matrices as one, or one by one where some are in factors. `head_norms` [1, D] are those of
    queries and of keys. Biases that are added once are those of the first core, whose sum brings them in.
    """

    attention_norm: NeuronNorm
    qkv: tuple[NeuronMatrix, ...]
    qkv_bias: Tile | None
    o: NeuronMatrix
    o_bias: Tile | None
    head_norms: tuple[Tile, ...]
    after_attention: NeuronNorm | None
    mlp_norm: NeuronNorm
    gate: NeuronMatrix | None
    up: NeuronMatrix
    down: NeuronMatrix
    inner_biases: tuple[Tile, ...]  # of gate and up
    down_bias: Tile | None
    after_mlp: NeuronNorm | None
    activation: forms.Activation
    window: int | None
    rope: int
    stored: bool


@dataclass(frozen=True)
class NeuronWeights:
    """A model on one core. `turns` has cosines and sines of its rotary embeddings, `positions` the table of learned
    ones, `head` the core's columns of the vocabulary.
    """

    embedding: Tile
    positions: Tile | None
    layers: tuple[NeuronLayer, ...]
    norm: NeuronNorm
    head: Tile
    turns: tuple[tuple[Tile, Tile], ...]


def share_heads(config: Config, cores: int) -> CoreHeads:
    """What heads each of `cores` NeuronCores has, of a model that has as many for each (padding.py): where there are
    more cores than heads of keys and values, several have the same one, and its query heads among them. UsageError.
    """
    if config.head_dim > nl.tile_size.psum_fmax:
        raise UsageError(
            f"a head of {config.head_dim} is more than the {nl.tile_size.psum_fmax} float32 of a bank, its sums' place"
        )
    own = max(1, config.kv_heads // cores)
    return CoreHeads(own, config.heads // cores // own, config.head_dim)


@dataclass(frozen=True)
class Cuts:
    """What a core has of a model: its query heads' columns, its keys' and values', the MLP's, and of the vocabulary."""

    heads: CoreHeads
    queries: slice
    keys: slice
    columns: slice
    words: slice


def cuts_of(config: Config, core: int, cores: int) -> Cuts:
    """Those of core number `core`. UsageError."""
    heads, dim = share_heads(config, cores), config.head_dim
    first = core * config.kv_heads // cores
    return Cuts(
        heads, part(core, cores, config.heads * dim), slice(dim * first, dim * (first + heads.kv)),
        part(core, cores, config.intermediate_size), part(core, cores, config.vocab_size),
    )  # fmt: skip


def place_weights(
    core: NeuronCore, config: Config, checkpoint: Checkpoint | None, dtype: Any, cores: int, positions: int,
    stored: bool = False,
) -> NeuronWeights:  # fmt: skip
    """Read a core's share of the model into its HBM; without a checkpoint, by shape. `stored` as in `NeuronLayer`."""
    if checkpoint is not None and config.quantized:
        checkpoint = multiplied_out(checkpoint, config)
    cuts, family, hidden = cuts_of(config, core.index, cores), family_of(config), config.hidden_size
    read = TensorReader(core, checkpoint, dtype, hidden, family.layer_norm)
    embedding = read.table(family.embedding, config.vocab_size)
    learned = None
    if family.positions is not None:
        learned = read.table(family.positions, family.max_positions + family.position_offset)
    turns = tuple(rotary_tiles(core, config, positions, number) for number in range(len(config.ropes)))
    words = cuts.words
    head = read.tensor((hidden, words.stop - words.start), (family.head + ".weight", (words, EVERY)))
    layers = tuple(place_layer(read, layer, cuts, config.head_dim, stored) for layer in family.layers)
    return NeuronWeights(embedding, learned, layers, read.norm(family.norm), head, turns)


def rotary_tiles(core: NeuronCore, config: Config, positions: int, number: int) -> tuple[Tile, Tile]:
    """Cosines and sines of one of the model's rotary embeddings, float32."""
    cos, sin = (
        core.tensor_of(rotary if core.payload else rotary.shape, nl.float32)
        for rotary in cos_sin(config, np.arange(positions), number)
    )
    return cos, sin


def place_layer(read: TensorReader, layer: forms.Layer, cuts: Cuts, dim: int, stored: bool) -> NeuronLayer:
    """Heads are of size `dim`. Biases that are added once are the first core's, whose sum brings them in."""
    qkv, spans = (layer.q, layer.k, layer.v), (cuts.queries, cuts.keys, cuts.keys)
    width = (cuts.heads.queries + 2 * cuts.heads.kv) * dim
    first, mlp, columns = read.core.index == 0, layer.dense_mlp, cuts.columns
    return NeuronLayer(
        read.norm(layer.attention_norm),
        tuple(read.matrix(each, EVERY, span) for each, span in zip(qkv, spans, strict=True))
        if any(isinstance(each.form, forms.LowRank) for each in qkv)
        else (read.whole(qkv, EVERY, spans),),
        read.tensor((1, width), *((each.name + ".bias", (span,)) for each, span in zip(qkv, spans, strict=True)))
        if layer.q.bias
        else None,
        read.matrix(layer.o, cuts.queries, EVERY),
        read.vector(layer.o.name + ".bias", read.hidden) if layer.o.bias and first else None,
        tuple(read.vector(head_norm.name + ".weight", dim) for head_norm in layer.head_norms),
        None if layer.after_attention is None else read.norm(layer.after_attention),
        read.norm(layer.mlp_norm),
        None if mlp.gate is None else read.matrix(mlp.gate, EVERY, columns, stored),
        read.matrix(mlp.up, EVERY, columns, stored),
        read.matrix(mlp.down, columns, EVERY, stored),
        tuple(
            read.vector(each.name + ".bias", columns.stop - columns.start, columns) for each in mlp.inner if each.bias
        ),
        read.vector(mlp.down.name + ".bias", read.hidden) if mlp.down.bias and first else None,
        None if layer.after_mlp is None else read.norm(layer.after_mlp),
        mlp.activation,
        layer.window,
        layer.rope,
        stored,
    )


def multiplied_out(checkpoint: Checkpoint, config: Config) -> Checkpoint:
    """The checkpoint with matrices that have compensators as numbers, codes and V^T U^T added up."""
    from meshrt.models.quantize.folder import read_dense  # few models need it

    def read(matrix: forms.Matrix, *index: Any) -> np.ndarray:
        dense: np.ndarray = read_dense(checkpoint, matrix)[index]
        return dense

    of_both = [
        matrix for matrix in config.matrices().values() if isinstance(matrix.form, Quantized) and matrix.form.rank
    ]
    return replace(
        checkpoint,
        rebuilt={**checkpoint.rebuilt, **{f"{matrix.name}.weight": partial(read, matrix) for matrix in of_both}},
    )
