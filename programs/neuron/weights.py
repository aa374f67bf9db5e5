"""A model's tensors in the HBM of NeuronCores: heads and columns of the MLP shared out, the rest on every core."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.models import matrix as forms
from meshrt.models.checkpoint import Checkpoint
from meshrt.models.config import Config
from meshrt.models.family import family_of
from meshrt.models.quantize.form import Quantized
from meshrt.models.rope import cos_sin
from meshrt.neuron import language as nl
from meshrt.neuron.core import NeuronCore
from meshrt.neuron.tile import Tile
from meshrt.programs.neuron.attention import CoreHeads
from meshrt.programs.neuron.coded import place_codes
from meshrt.programs.neuron.linear import NeuronMatrix, Whole
from meshrt.programs.neuron.norm import NeuronNorm
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


def place_weights(
    core: NeuronCore, config: Config, checkpoint: Checkpoint | None, dtype: Any, cores: int, positions: int,
    stored: bool = False,
) -> NeuronWeights:  # fmt: skip
    """Read a core's share of the model into its HBM; without a checkpoint, by shape. `stored` as in `NeuronLayer`."""
    if checkpoint is not None and config.quantized:
        checkpoint = multiplied_out(checkpoint, config)
    heads, family = share_heads(config, cores), family_of(config)
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    queries = part(core.index, cores, config.heads * dim)
    keys = slice(*(dim * (core.index * config.kv_heads // cores + more) for more in (0, heads.kv)))
    columns, words = part(core.index, cores, inner), part(core.index, cores, config.vocab_size)
    every = slice(None)

    def tensor(shape: tuple[int, ...], *reads: tuple[str, tuple[slice, ...]], as_read: bool = False) -> Tile:
        """Rows of checkpoint tensors, one below the other and then transposed, [in, out], or not; a vector is a row."""
        if checkpoint is None:
            return core.tensor_of(shape[::-1] if as_read else shape, dtype)
        rows = [np.atleast_2d(checkpoint.read(name, *index).astype(np.float32)) for name, index in reads]
        vector = rows[0].shape[0] == 1 and len(reads[0][1]) == 1
        if vector:
            return core.tensor_of(np.concatenate(rows, axis=1), dtype)
        return core.tensor_of(np.concatenate(rows) if as_read else np.concatenate(rows).T, dtype)

    def vector(name: str, size: int, index: slice = every) -> Tile:
        return tensor((1, size), (name, (index,)))

    def norm(name: str) -> NeuronNorm:
        bias = vector(name + ".bias", hidden) if family.layer_norm else None
        return NeuronNorm(vector(name + ".weight", hidden), bias)

    def table(name: str, rows: int) -> Tile:
        read = None if checkpoint is None else checkpoint.read(name + ".weight").astype(np.float32)
        return core.tensor_of((rows, hidden) if read is None else read, dtype)

    def matrix(source: forms.Matrix, rows: slice, across: slice, as_read: bool = False) -> NeuronMatrix:
        """W^T of the checkpoint's [out, in] at [across, rows]; or U and V, of which one side is cut."""
        if not isinstance(source.form, forms.LowRank):
            return whole((source,), rows, (across,), as_read)
        u, v = source.factors()
        return side_by_side((u,), rows, (every,), as_read), side_by_side((v,), every, (across,), as_read)

    def whole(
        several: Sequence[forms.Matrix], rows: slice, across: Sequence[slice], as_read: bool = False
    ) -> Whole:  # fmt: skip
        """Matrices that are no factors, side by side: numbers, or codes; those with a compensator, multiplied out."""
        if all(isinstance(part.form, Quantized) and not part.form.rank for part in several):
            return place_codes(core, checkpoint, several, rows, across, dtype)
        return side_by_side(several, rows, across, as_read)

    def side_by_side(
        several: Sequence[forms.Matrix], rows: slice, across: Sequence[slice], as_read: bool = False
    ) -> Tile:  # fmt: skip
        pairs = list(zip(several, across, strict=True))
        width = sum(len(range(source.columns)[columns]) for source, columns in pairs)
        reads = [(source.name + ".weight", (columns, rows)) for source, columns in pairs]
        return tensor((len(range(several[0].rows)[rows]), width), *reads, as_read=as_read)

    def layer(source: forms.Layer) -> NeuronLayer:
        attention, index = (source.q, source.k, source.v), (queries, keys, keys)
        out = (heads.queries + 2 * heads.kv) * dim
        first = core.index == 0  # whose sum brings the bias of the output in
        mlp = source.dense_mlp
        return NeuronLayer(
            norm(source.attention_norm),
            tuple(matrix(part, every, span) for part, span in zip(attention, index, strict=True))
            if any(isinstance(part.form, forms.LowRank) for part in attention)
            else (whole(attention, every, index),),
            tensor((1, out), *((part.name + ".bias", (span,)) for part, span in zip(attention, index, strict=True)))
            if source.q.bias
            else None,
            matrix(source.o, queries, every),
            tensor((1, hidden), (source.o.name + ".bias", (every,))) if source.o.bias and first else None,
            tuple(vector(head_norm.name + ".weight", dim) for head_norm in source.head_norms),
            None if source.after_attention is None else norm(source.after_attention),
            norm(source.mlp_norm),
            None if mlp.gate is None else matrix(mlp.gate, every, columns, stored),
            matrix(mlp.up, every, columns, stored),
            matrix(mlp.down, columns, every, stored),
            tuple(
                vector(part.name + ".bias", columns.stop - columns.start, columns) for part in mlp.inner if part.bias
            ),
            vector(mlp.down.name + ".bias", hidden) if mlp.down.bias and first else None,
            None if source.after_mlp is None else norm(source.after_mlp),
            mlp.activation,
            source.window,
            source.rope,
            stored,
        )

    embedding = table(family.embedding, config.vocab_size)
    learned = None
    if family.positions is not None:
        learned = table(family.positions, family.max_positions + family.position_offset)
    turns = []
    for number in range(len(config.ropes)):
        cos, sin = (
            core.tensor_of(rotary if core.payload else rotary.shape, nl.float32)
            for rotary in cos_sin(config, np.arange(positions), number)
        )
        turns.append((cos, sin))
    head = tensor((hidden, words.stop - words.start), (family.head + ".weight", (words, every)))
    return NeuronWeights(embedding, learned, tuple(map(layer, family.layers)), norm(family.norm), head, tuple(turns))


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
