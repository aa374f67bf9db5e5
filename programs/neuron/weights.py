"""A model's tensors in the HBM of NeuronCores: heads and columns of the MLP shared out, the rest on every core."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from meshrt.programs.neuron.attention import Heads
from meshrt.programs.neuron.coded import place_codes
from meshrt.programs.neuron.linear import Matrix, Whole


@dataclass(frozen=True)
class Layer:
    """One layer's tensors, [in, out]: of this core's heads, and of its columns of the MLP.

    `qkv` has the three matrices as one, or one by one where some are in factors.
    """

    attention_norm: Tile
    qkv: tuple[Matrix, ...]
    qkv_bias: Tile | None
    o: Matrix
    o_bias: Tile | None
    mlp_norm: Tile
    gate: Matrix
    up: Matrix
    down: Matrix


@dataclass(frozen=True)
class Weights:
    """A model on one core. `cos`, `sin` have the rotary tables, `head` the core's columns of the vocabulary."""

    embedding: Tile
    layers: tuple[Layer, ...]
    norm: Tile
    head: Tile
    cos: Tile
    sin: Tile


def share_heads(config: Config, cores: int) -> Heads:
    """What heads each of `cores` NeuronCores has: where there are more cores than heads of keys and values, several
    have the same one, and its query heads among them. UsageError where they do not come out even.
    """
    if (config.kv_heads % cores and cores % config.kv_heads) or config.heads % cores:
        fits = [
            n for n in range(1, config.heads + 1)
            if config.heads % n == 0 and (config.kv_heads % n == 0 or n % config.kv_heads == 0)
        ]  # fmt: skip
        raise UsageError(
            f"--cores is {cores}; the {config.heads} heads of the model, with {config.kv_heads} of keys and values, can"
            f" be shared by {', '.join(map(str, fits))} cores"
        )
    if config.head_dim > nl.tile_size.pmax:
        raise UsageError(
            f"a head of {config.head_dim} is more than the {nl.tile_size.pmax} partitions that a product contracts over"
        )
    own = max(1, config.kv_heads // cores)
    return Heads(own, config.heads // cores // own, config.head_dim)


def place_weights(
    core: NeuronCore, config: Config, checkpoint: Checkpoint | None, dtype: Any, cores: int, positions: int
) -> Weights:
    """Read a core's share of the model into its HBM; without a checkpoint, by shape."""
    if checkpoint is not None and config.quantized:
        checkpoint = multiplied_out(checkpoint, config)
    heads, family = share_heads(config, cores), family_of(config)
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    queries = part(core.index, cores, config.heads * dim)
    keys = slice(*(dim * (core.index * config.kv_heads // cores + more) for more in (0, heads.kv)))
    columns, words = part(core.index, cores, inner), part(core.index, cores, config.vocab_size)
    every = slice(None)

    def tensor(shape: tuple[int, ...], *reads: tuple[str, tuple[slice, ...]]) -> Tile:
        """Rows of checkpoint tensors, one below the other and then transposed: [in, out]; a vector is a row."""
        if checkpoint is None:
            return core.tensor_of(shape, dtype)
        rows = [np.atleast_2d(checkpoint.read(name, *index).astype(np.float32)) for name, index in reads]
        vector = rows[0].shape[0] == 1 and len(reads[0][1]) == 1
        return core.tensor_of(np.concatenate(rows, axis=1) if vector else np.concatenate(rows).T, dtype)

    def vector(name: str, size: int, index: slice = every) -> Tile:
        return tensor((1, size), (name + ".weight", (index,)))

    def matrix(source: forms.Matrix, rows: slice, across: slice) -> Matrix:
        """W^T of the checkpoint's [out, in] at [across, rows]; or U and V, of which one side is cut."""
        if not isinstance(source.form, forms.LowRank):
            return whole((source,), rows, (across,))
        u, v = source.factors()
        return side_by_side((u,), rows, (every,)), side_by_side((v,), every, (across,))

    def whole(several: Sequence[forms.Matrix], rows: slice, across: Sequence[slice]) -> Whole:
        """Matrices that are no factors, side by side: numbers, or codes; those with a compensator, multiplied out."""
        if all(isinstance(one.form, Quantized) and not one.form.rank for one in several):
            return place_codes(core, checkpoint, several, rows, across, dtype)
        return side_by_side(several, rows, across)

    def side_by_side(several: Sequence[forms.Matrix], rows: slice, across: Sequence[slice]) -> Tile:
        pairs = list(zip(several, across, strict=True))
        width = sum(len(range(source.columns)[columns]) for source, columns in pairs)
        reads = [(source.name + ".weight", (columns, rows)) for source, columns in pairs]
        return tensor((len(range(several[0].rows)[rows]), width), *reads)

    def layer(source: forms.Layer) -> Layer:
        attention, index = (source.q, source.k, source.v), (queries, keys, keys)
        out = (heads.queries + 2 * heads.kv) * dim
        first = core.index == 0  # whose sum brings the bias of the output in
        mlp = source.dense_mlp
        gate, up = mlp.inner
        return Layer(
            vector(source.attention_norm, hidden),
            tuple(matrix(part, every, span) for part, span in zip(attention, index, strict=True))
            if any(isinstance(part.form, forms.LowRank) for part in attention)
            else (whole(attention, every, index),),
            tensor((1, out), *((part.name + ".bias", (span,)) for part, span in zip(attention, index, strict=True)))
            if source.q.bias
            else None,
            matrix(source.o, queries, every),
            tensor((1, hidden), (source.o.name + ".bias", (every,))) if source.o.bias and first else None,
            vector(source.mlp_norm, hidden),
            matrix(gate, every, columns),
            matrix(up, every, columns),
            matrix(mlp.down, columns, every),
        )

    table = family.embedding + ".weight"
    embedding = core.tensor_of(
        (config.vocab_size, hidden) if checkpoint is None else checkpoint.read(table).astype(np.float32), dtype
    )
    tables = cos_sin(config, np.arange(positions))
    cos, sin = (core.tensor_of(rotary if core.payload else rotary.shape, nl.float32) for rotary in tables)
    head = tensor((hidden, words.stop - words.start), (family.head + ".weight", (words, every)))
    return Weights(embedding, tuple(map(layer, family.layers)), vector(family.norm, hidden), head, cos, sin)


def multiplied_out(checkpoint: Checkpoint, config: Config) -> Checkpoint:
    """The checkpoint with matrices that have compensators as numbers, codes and V^T U^T added up."""
    from meshrt.models.quantize.folder import read_dense  # few models need it

    def read(matrix: forms.Matrix, *index: Any) -> np.ndarray:
        found: np.ndarray = read_dense(checkpoint, matrix)[index]
        return found

    of_both = [one for one in config.matrices().values() if isinstance(one.form, Quantized) and one.form.rank]
    return replace(
        checkpoint, rebuilt={**checkpoint.rebuilt, **{f"{one.name}.weight": partial(read, one) for one in of_both}}
    )


def part(index: int, cores: int, size: int) -> slice:
    """A core's share of 0..size, as even as it goes."""
    return slice(size * index // cores, size * (index + 1) // cores)
