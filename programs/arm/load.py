"""A model into the DRAM of Arm cores: the codes that a folder has, or such as its weights are rounded to."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import repeat

import numpy as np

from meshrt.arm.soc import Soc
from meshrt.errors import UsageError
from meshrt.models import matrix as forms
from meshrt.models.config import Config
from meshrt.models.family import family_of
from meshrt.models.folders.checkpoint import Checkpoint
from meshrt.programs.arm.attention import ArmScores, HeadCounts
from meshrt.programs.arm.options import CodeOptions
from meshrt.programs.arm.parts import (
    ArmExperts,
    ArmLayer,
    ArmMatrix,
    ArmMlp,
    ArmModel,
    ArmPositions,
)
from meshrt.programs.arm.products.compensators import EIGHT
from meshrt.programs.arm.products.kernels import KernelForm, Shift
from meshrt.programs.arm.products.weights import ProductMethod, choose, place
from meshrt.programs.arm.reader import ArmScheme, PartReader, codes_of, group_of
from meshrt.programs.arm.split import Split
from meshrt.programs.routing import Routing


def scheme_of(config: Config, codes: CodeOptions) -> ArmScheme:
    """That of a folder of codes, or what is asked for of one of weights. UsageError for both."""
    forms_there = {*config.quantized.values()}
    if not forms_there:
        size = 64 if codes.group is None else 0 if codes.group == "row" else codes.group
        blocks = codes.activations == "block"
        return ArmScheme(int(codes.bits or 4), size, codes.symmetric, int(codes.head_bits), blocks)
    if (codes.bits, codes.group) != (None, None) or codes.symmetric:
        raise UsageError("--bits, --group and --symmetric are for weights: the model's folder has codes already")
    form = next(iter(forms_there))
    if config.head is not None and codes.head_bits != "8":
        raise UsageError(
            f"--head-bits {codes.head_bits} is for a head of weights: the model's folder has codes of it already"
        )
    blocks = (codes.activations or form.activations) == "block"
    return ArmScheme(form.bits, form.group, form.symmetric, int(codes.head_bits), blocks)


def place_model(
    soc: Soc, config: Config, scheme: ArmScheme, source: Checkpoint | None, split: Split, flash: int = 0,
    layers_run: int | None = None, routing: Routing | None = None,
) -> ArmModel:  # fmt: skip
    """All of it in DRAM, by shape without its numbers. LimitError, ModelError.

    The last `flash` layers are on flash, and take turns in room for two of them. Of more layers than `layers_run` the
    others are room alone, as much as the last that runs takes.
    """
    family = family_of(config)
    read = PartReader(soc, config, family, scheme, source, *hows_of(soc, config, scheme))
    embedding, buffer = read.table(family.embedding, "embedding", config.vocab_size)
    learned = None
    if family.positions is not None:
        table = read.table(family.positions, "positions", family.position_offset + family.max_positions)
        learned = ArmPositions(*table, family.position_offset)
    layers = place_layers(read, flash, layers_run)
    if others := config.layers - len(layers):
        soc.buffer("the other layers", others * sum(matrix.nbytes for matrix in layers[-1].matrices))
    head, heads = place_head(read), HeadCounts(config.heads, config.kv_heads, config.head_dim)
    experts = [len(layer.mlp.experts) for layer in layers if isinstance(layer.mlp, ArmExperts)]
    loads = np.zeros((len(experts), max(experts)), np.int64) if experts else None
    return ArmModel(
        config, heads, embedding, buffer, tuple(layers), read.norm(family.norm), head, split, scheme.blocks, flash,
        learned, loads, routing,
    )  # fmt: skip


def place_layers(read: PartReader, flash: int, layers_run: int | None) -> list[ArmLayer]:
    """Those that run; the last `flash` of a model's in the room of the second one before, if that is on flash, too."""
    layers: list[ArmLayer] = []
    first, mixtures = read.config.layers - flash, 0
    for number, layer in enumerate(read.family.layers[:layers_run]):
        over: Iterator[ArmMatrix | None] = iter(layers[number - 2].matrices) if number - 2 >= first else repeat(None)
        layers.append(place_layer(read, number, layer, mixtures, over))
        mixtures += isinstance(layer.mlp, forms.Experts)
    return layers


def place_layer(
    read: PartReader, number: int, layer: forms.Layer, mixtures: int, over: Iterator[ArmMatrix | None]
) -> ArmLayer:
    """`mixtures`: how many layers before it have experts."""
    stem, family = f"layer {number}: ", read.family
    qkv = read.side_by_side(stem + "q, k, v", (layer.q, layer.k, layer.v), next(over))
    o = read.side_by_side(stem + "o", (layer.o,), next(over))
    if isinstance(layer.mlp, forms.Mlp):
        mlp: ArmMlp | ArmExperts = read.mlp(stem, layer.mlp, over)
    else:
        mlp = read.experts(mixtures, stem, layer.mlp, over)
    scores = ArmScores(family.scale, family.score_cap, layer.window, bool(read.config.ropes))
    return ArmLayer(
        read.norm(layer.attention_norm), qkv, o, read.norm(layer.mlp_norm), mlp, scores, read.qkv_norms(layer),
        read.norm_after(layer.after_attention), read.norm_after(layer.after_mlp), layer.rope,
    )  # fmt: skip


def place_head(read: PartReader) -> ArmMatrix:
    """The matrix that makes logits, in as many bits as are asked for of it."""
    soc, config, scheme, source = read.soc, read.config, read.scheme, read.source
    output = config.head_matrix
    if not config.head:
        output = forms.Matrix(read.family.head, config.hidden_size, config.vocab_size)
    group, tile = group_of(output, scheme), f"{read.how.rows}x{read.how.columns}"
    shift: Shift = "half" if scheme.symmetric else "offset" if config.head and config.head.offset else "zero"
    form = KernelForm(scheme.head_bits, shift=shift, blocks=scheme.blocks)
    how = choose(soc, form, read.how.unit.name, tile)
    codes = None if source is None else codes_of(source, output, replace(scheme, bits=scheme.head_bits))
    packed = place(soc, how, "head", output.columns, config.hidden_size, group, codes)
    return ArmMatrix("head", config.hidden_size, output.columns, (packed,), how, False, None)


def hows_of(soc: Soc, config: Config, scheme: ArmScheme) -> tuple[ProductMethod, Mapping[int, ProductMethod]]:
    """How matrices are multiplied, and compensators by their bits: with as many rows, as all take the same codes."""
    how = choose(soc, KernelForm(scheme.bits, shift=shift_of(config, scheme), blocks=scheme.blocks))
    stored = {form.compensator_bits for form in config.quantized.values() if form.rank}
    bits = {EIGHT, *(width for width in stored if width < EIGHT)} if stored else set()
    thin = {
        width: choose(soc, KernelForm(width, shift="half", blocks=scheme.blocks), how.unit.name)
        for width in sorted(bits)
    }
    rows = min(own.rows for own in (how, *thin.values()))
    return replace(how, rows=rows), {width: replace(own, rows=rows) for width, own in thin.items()}


def shift_of(config: Config, scheme: ArmScheme) -> Shift:
    """Where offsets of groups come from."""
    if any(form.offset for form in config.quantized.values()):
        return "offset"
    return "half" if scheme.symmetric else "zero"
