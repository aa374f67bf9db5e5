"""A model into the DRAM of Arm cores: the codes that a folder has, or such as its weights are rounded to."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from meshrt.arm.soc import Soc
from meshrt.errors import UsageError
from meshrt.models import matrix as forms
from meshrt.models.checkpoint import Checkpoint
from meshrt.models.config import Config
from meshrt.models.errors import ModelError
from meshrt.models.family import family_of
from meshrt.models.quantize import codes as grids
from meshrt.models.quantize.codes import Codes
from meshrt.models.quantize.folder import read_parts
from meshrt.models.quantize.form import Quantized
from meshrt.programs.arm.attention import Heads
from meshrt.programs.arm.kernels import Form, Shift
from meshrt.programs.arm.model import Factors, Layer, Matrix, Model
from meshrt.programs.arm.split import Split
from meshrt.programs.arm.weights import Packed, choose, place
from meshrt.records import dataclass

Array = np.ndarray


@dataclass(frozen=True)
class Scheme:
    """How matrices and activations are kept. `group` weights of a row share a scale, 0: all."""

    bits: int
    group: int
    symmetric: bool
    head_bits: int
    blocks: bool


def scheme_of(
    config: Config, bits: str | None, group: int | None, symmetric: bool, head_bits: str,
    activations: str | None,
) -> Scheme:  # fmt: skip
    """That of a folder of codes, or what is asked for of one of weights. UsageError for both."""
    forms_there = {*config.quantized.values()}
    if not forms_there:
        return Scheme(int(bits or 4), 64 if group is None else group, symmetric, int(head_bits), activations == "block")
    if (bits, group) != (None, None) or symmetric:
        raise UsageError("--bits, --group and --symmetric are for weights: the model's folder has codes already")
    one = next(iter(forms_there))
    if one.bits not in (4, 8):
        raise UsageError(f"the model has codes of {one.bits} bits; kernels on Arm cores unpack 4 bits, or take 8")
    if any(form.rank for form in forms_there):
        raise UsageError(
            "the model has compensators, which products of whole numbers have no room for: quantize without"
        )
    if config.head is not None and head_bits != "8":
        raise UsageError(
            f"--head-bits {head_bits} is for a head of weights: the model's folder has codes of it already"
        )
    blocks = (activations or one.activations) == "block"
    return Scheme(one.bits, one.group, one.symmetric, int(head_bits), blocks)


def place_model(
    soc: Soc, config: Config, scheme: Scheme, source: Checkpoint | None, split: Split, flash: int = 0,
    layers_run: int | None = None,
) -> Model:  # fmt: skip
    """All of it in DRAM, by shape without its numbers. LimitError, ModelError.

    The last `flash` layers are on flash, and take turns in room for two of them. Of more layers than `layers_run` the
    others are room alone, as much as the last that runs takes.
    """
    family = family_of(config)
    hidden = config.hidden_size
    how = choose(soc, Form(scheme.bits, shift=shift_of(config, scheme), blocks=scheme.blocks))

    def vector(name: str) -> Array | None:
        return None if source is None else source.read(name + ".weight").astype(np.float32)

    def packed(name: str, several: Sequence[forms.Matrix], over: Packed | None, at: int = 0) -> Packed:
        """Matrices that have one input as one."""
        codes = None if source is None else beside([codes_of(source, one, scheme) for one in several])
        columns, first = sum(one.columns for one in several), several[0]
        return place(soc, how, name, columns, first.rows, group_of(first, scheme), codes, over, at)

    def side_by_side(name: str, several: Sequence[forms.Matrix], before: Matrix | None) -> Matrix:
        """`before`: that in whose place they are, in turns."""
        over = iter(() if before is None else before.packed)
        ends = [*accumulate(one.columns for one in several)]
        biased = any(one.bias for one in several)
        bias = None if source is None or not biased else np.concatenate([bias_of(source, one) for one in several])
        at = {one.name: end - one.columns for one, end in zip(several, ends, strict=True)}
        cut = [one for one in several if isinstance(one.form, forms.LowRank)]
        if not cut:
            whole: tuple[Packed, ...] = (packed(name, several, next(over, None)),)
            return Matrix(name, several[0].rows, ends[-1], whole, how, biased, bias)
        whole = tuple(
            packed(one.name, (one,), next(over, None), at[one.name]) for one in several if one not in cut
        )  # fmt: skip
        first = packed(f"{name}, first factors", [one.factors()[0] for one in cut], next(over, None))
        seconds = tuple(
            packed(f"{one.name}, second factor", one.factors()[1:], next(over, None), at[one.name]) for one in cut
        )  # fmt: skip
        return Matrix(name, several[0].rows, ends[-1], whole, how, biased, bias, Factors(first, seconds))

    table = family.embedding + ".weight"
    embedding = None if source is None else source.read(table).astype(np.float16)
    buffer = soc.buffer("embedding", 2 * config.vocab_size * hidden)
    layers: list[Layer] = []
    first = config.layers - flash
    for number, one in enumerate(family.layers[:layers_run]):
        stem, mlp = f"layer {number}: ", one.dense_mlp
        if mlp.gate is None:
            raise ModelError("a model without gates in its MLPs; on Arm cores there is SwiGLU")
        over: Sequence[Matrix | None] = layers[number - 2].matrices if number - 2 >= first else [None] * 4
        layers.append(Layer(
            vector(one.attention_norm), side_by_side(stem + "q, k, v", (one.q, one.k, one.v), over[0]),
            side_by_side(stem + "o", (one.o,), over[1]), vector(one.mlp_norm),
            side_by_side(stem + "gate, up", (mlp.gate, mlp.up), over[2]),
            side_by_side(stem + "down", (mlp.down,), over[3]),
        ))  # fmt: skip
    if others := config.layers - len(layers):
        soc.buffer("the other layers", others * sum(matrix.nbytes for matrix in layers[-1].matrices))
    output = config.head_matrix if config.head else forms.Matrix(family.head, hidden, config.vocab_size)
    group, tile = group_of(output, scheme), f"{how.rows}x{how.columns}"
    shift: Shift = "half" if scheme.symmetric else "offset" if config.head and config.head.offset else "zero"
    form = Form(scheme.head_bits, shift=shift, blocks=scheme.blocks)
    head_how = choose(soc, form, how.unit.name, tile)
    codes = None if source is None else codes_of(source, output, replace(scheme, bits=scheme.head_bits))
    lying = place(soc, head_how, "head", output.columns, hidden, group, codes)
    head = Matrix("head", hidden, output.columns, (lying,), head_how, False, None)
    heads = Heads(config.heads, config.kv_heads, config.head_dim)
    return Model(
        config, heads, embedding, buffer, tuple(layers), vector(family.norm), head, split, scheme.blocks, flash
    )


def shift_of(config: Config, scheme: Scheme) -> Shift:
    """Where offsets of groups come from."""
    if any(form.offset for form in config.quantized.values()):
        return "offset"
    return "half" if scheme.symmetric else "zero"


def group_of(one: forms.Matrix, scheme: Scheme) -> int:
    """Weights of a row that share a scale: as many as there are at the most."""
    group = one.form.group if isinstance(one.form, Quantized) else scheme.group
    return min(group or one.rows, one.rows)


def codes_of(source: Checkpoint, one: forms.Matrix, scheme: Scheme) -> Codes:
    """A matrix in codes [out, in]: the folder's own, or its weights rounded to nearest. ModelError."""
    if isinstance(one.form, Quantized):
        return read_parts(source, one.name, one.form, one.columns, one.rows).codes
    weights = source.read(one.name + ".weight").astype(np.float64)
    return (grids.symmetric if scheme.symmetric else grids.nearest)(weights, scheme.bits, group_of(one, scheme))


def beside(several: Sequence[Codes]) -> Codes:
    """Matrices that have one input as one."""
    first = several[0]
    changes: dict[str, Any] = {
        name: np.concatenate([getattr(one, name) for one in several])
        for name in ("codes", "scale", "zero", "offset") if getattr(first, name, None) is not None
    }  # fmt: skip
    return replace(first, **changes)


def bias_of(source: Checkpoint, one: forms.Matrix) -> Array:
    """float32 [columns]; zeros where its neighbours have one and it has none."""
    if not one.bias:
        return np.zeros(one.columns, np.float32)
    return source.read(one.name + ".bias").astype(np.float32)
