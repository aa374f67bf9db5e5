"""A model into the DRAM of Arm cores: the codes that a folder has, or such as its weights are rounded to."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, repeat

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
from meshrt.programs.arm.attention import ArmScores, HeadCounts
from meshrt.programs.arm.between import ArmNorm
from meshrt.programs.arm.compensators import EIGHT, beside, compensators
from meshrt.programs.arm.kernels import KernelForm, Shift
from meshrt.programs.arm.layout import PANEL
from meshrt.programs.arm.options import CodeOptions
from meshrt.programs.arm.parts import (
    ArmExperts,
    ArmFactors,
    ArmLayer,
    ArmMatrix,
    ArmMlp,
    ArmModel,
    ArmPositions,
    QkvNorms,
)
from meshrt.programs.arm.split import Split
from meshrt.programs.arm.weights import PackedWeights, ProductMethod, choose, place
from meshrt.programs.routing import Routing
from meshrt.records import dataclass

Array = np.ndarray


@dataclass(frozen=True)
class ArmForm:
    """How matrices and activations are kept. `group` weights of a row share a scale, 0: all."""

    bits: int
    group: int
    symmetric: bool
    head_bits: int
    blocks: bool


def scheme_of(config: Config, codes: CodeOptions) -> ArmForm:
    """That of a folder of codes, or what is asked for of one of weights. UsageError for both."""
    forms_there = {*config.quantized.values()}
    if not forms_there:
        size = 64 if codes.group is None else 0 if codes.group == "row" else codes.group
        return ArmForm(int(codes.bits or 4), size, codes.symmetric, int(codes.head_bits), codes.activations == "block")
    if (codes.bits, codes.group) != (None, None) or codes.symmetric:
        raise UsageError("--bits, --group and --symmetric are for weights: the model's folder has codes already")
    form = next(iter(forms_there))
    if config.head is not None and codes.head_bits != "8":
        raise UsageError(
            f"--head-bits {codes.head_bits} is for a head of weights: the model's folder has codes of it already"
        )
    blocks = (codes.activations or form.activations) == "block"
    return ArmForm(form.bits, form.group, form.symmetric, int(codes.head_bits), blocks)


def place_model(
    soc: Soc, config: Config, scheme: ArmForm, source: Checkpoint | None, split: Split, flash: int = 0,
    layers_run: int | None = None, routing: Routing | None = None,
) -> ArmModel:  # fmt: skip
    """All of it in DRAM, by shape without its numbers. LimitError, ModelError.

    The last `flash` layers are on flash, and take turns in room for two of them. Of more layers than `layers_run` the
    others are room alone, as much as the last that runs takes.
    """
    family = family_of(config)
    hidden = config.hidden_size
    how, thin = hows_of(soc, config, scheme)

    def vector(name: str) -> Array | None:
        return None if source is None else source.read(name).astype(np.float32)

    def norm(name: str) -> ArmNorm:
        centred = family.layer_norm
        return ArmNorm(family.eps, vector(name + ".weight"), centred, vector(name + ".bias") if centred else None)

    def after(name: str | None) -> ArmNorm | None:
        return None if name is None else norm(name)

    def packed(name: str, several: Sequence[forms.Matrix], over: PackedWeights | None, at: int = 0) -> PackedWeights:
        """Matrices that have one input as one."""
        codes = None if source is None else beside([codes_of(source, matrix, scheme) for matrix in several])
        columns, first = sum(matrix.columns for matrix in several), several[0]
        return place(soc, how, name, columns, first.rows, group_of(first, scheme), codes, over, at)

    def side_by_side(name: str, several: Sequence[forms.Matrix], before: ArmMatrix | None) -> ArmMatrix:
        """`before`: that in whose place they are, in turns."""
        over = iter(() if before is None else before.packed)
        ends = [*accumulate(matrix.columns for matrix in several)]
        biased = any(matrix.bias for matrix in several)
        bias = None if source is None or not biased else np.concatenate([bias_of(source, matrix) for matrix in several])
        at = {matrix.name: end - matrix.columns for matrix, end in zip(several, ends, strict=True)}
        cut = [matrix for matrix in several if isinstance(matrix.form, forms.LowRank)]
        if not cut:
            whole: tuple[PackedWeights, ...] = (packed(name, several, next(over, None)),)
            more = compensators(soc, thin, source, name, several, at, over)
            return ArmMatrix(name, several[0].rows, ends[-1], whole, how, biased, bias, more=more)
        whole = tuple(
            packed(matrix.name, (matrix,), next(over, None), at[matrix.name]) for matrix in several if matrix not in cut
        )  # fmt: skip
        first = packed(f"{name}, first factors", [matrix.factors()[0] for matrix in cut], next(over, None))
        seconds = tuple(
            packed(f"{each.name}, second factor", each.factors()[1:], next(over, None), at[each.name]) for each in cut
        )  # fmt: skip
        return ArmMatrix(name, several[0].rows, ends[-1], whole, how, biased, bias, ArmFactors(first, seconds, how))

    def mlp_of(stem: str, mlp: forms.Mlp, over: Iterator[ArmMatrix | None]) -> ArmMlp:
        inner = side_by_side(stem + ("up" if mlp.gate is None else "gate, up"), mlp.inner, next(over))
        return ArmMlp(inner, side_by_side(stem + "down", (mlp.down,), next(over)), mlp.gate is not None, mlp.activation)

    def mixture_of(number: int, stem: str, mixture: forms.Experts, over: Iterator[ArmMatrix | None]) -> ArmExperts:
        panels = -(-sum(each.columns for each in mixture.routing) // PANEL)
        router = None
        if source is not None:
            columns = np.concatenate(
                [source.read(each.name + ".weight").astype(np.float32) for each in mixture.routing]
            )
            filled = np.pad(columns, ((0, -len(columns) % PANEL), (0, 0)))
            router = np.ascontiguousarray(filled.reshape(panels, PANEL, hidden).transpose(0, 2, 1))
        buffer = soc.buffer(stem + "router", 4 * panels * PANEL * hidden)
        experts = tuple(mlp_of(f"{stem}expert {at}, ", each, over) for at, each in enumerate(mixture.experts))
        shared = None if mixture.shared is None else mlp_of(stem + "shared expert, ", mixture.shared, over)
        gated = mixture.shared_gate is not None
        return ArmExperts(number, router, buffer, experts, mixture.top, mixture.renormalise, shared, gated)

    def heads_of(layer: forms.Layer) -> QkvNorms | None:
        if layer.q_norm is None or layer.k_norm is None:
            return None if family.clip is None else QkvNorms(None, (0, 0), family.clip)
        norms = (ArmNorm(family.eps, vector(f"{each.name}.weight")) for each in (layer.q_norm, layer.k_norm))
        return QkvNorms((next(norms), next(norms)), (layer.q_norm.size, layer.k_norm.size), family.clip)

    def table(name: str) -> tuple[Array | None, int]:
        """float16 [rows, K], and its buffer."""
        weights = None if source is None else _half(name, source.read(name + ".weight"))
        rows = config.vocab_size if name == family.embedding else family.position_offset + family.max_positions
        return weights, soc.buffer("embedding" if name == family.embedding else "positions", 2 * rows * hidden)

    embedding, buffer = table(family.embedding)
    learned = None if family.positions is None else ArmPositions(*table(family.positions), family.position_offset)
    layers: list[ArmLayer] = []
    first, mixtures = config.layers - flash, 0
    for number, layer in enumerate(family.layers[:layers_run]):
        stem = f"layer {number}: "
        over: Iterator[ArmMatrix | None] = iter(layers[number - 2].matrices) if number - 2 >= first else repeat(None)
        qkv = side_by_side(stem + "q, k, v", (layer.q, layer.k, layer.v), next(over))
        o = side_by_side(stem + "o", (layer.o,), next(over))
        if isinstance(layer.mlp, forms.Mlp):
            mlp: ArmMlp | ArmExperts = mlp_of(stem, layer.mlp, over)
        else:
            mlp = mixture_of(mixtures, stem, layer.mlp, over)
            mixtures += 1
        scores = ArmScores(family.scale, family.score_cap, layer.window, bool(config.ropes))
        layers.append(ArmLayer(
            norm(layer.attention_norm), qkv, o, norm(layer.mlp_norm), mlp, scores, heads_of(layer),
            after(layer.after_attention), after(layer.after_mlp), layer.rope,
        ))  # fmt: skip
    if others := config.layers - len(layers):
        soc.buffer("the other layers", others * sum(matrix.nbytes for matrix in layers[-1].matrices))
    output = config.head_matrix if config.head else forms.Matrix(family.head, hidden, config.vocab_size)
    group, tile = group_of(output, scheme), f"{how.rows}x{how.columns}"
    shift: Shift = "half" if scheme.symmetric else "offset" if config.head and config.head.offset else "zero"
    form = KernelForm(scheme.head_bits, shift=shift, blocks=scheme.blocks)
    head_how = choose(soc, form, how.unit.name, tile)
    codes = None if source is None else codes_of(source, output, replace(scheme, bits=scheme.head_bits))
    lying = place(soc, head_how, "head", output.columns, hidden, group, codes)
    head = ArmMatrix("head", hidden, output.columns, (lying,), head_how, False, None)
    heads = HeadCounts(config.heads, config.kv_heads, config.head_dim)
    experts = max((len(layer.mlp.experts) for layer in layers if isinstance(layer.mlp, ArmExperts)), default=0)
    return ArmModel(
        config, heads, embedding, buffer, tuple(layers), norm(family.norm), head, split, scheme.blocks, flash, learned,
        np.zeros((mixtures, experts), np.int64) if mixtures else None, routing,
    )  # fmt: skip


def hows_of(soc: Soc, config: Config, scheme: ArmForm) -> tuple[ProductMethod, Mapping[int, ProductMethod]]:
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


def shift_of(config: Config, scheme: ArmForm) -> Shift:
    """Where offsets of groups come from."""
    if any(form.offset for form in config.quantized.values()):
        return "offset"
    return "half" if scheme.symmetric else "zero"


def group_of(matrix: forms.Matrix, scheme: ArmForm) -> int:
    """Weights of a row that share a scale: as many as there are at the most."""
    group = matrix.form.group if isinstance(matrix.form, Quantized) else scheme.group
    return min(group or matrix.rows, matrix.rows)


def codes_of(source: Checkpoint, matrix: forms.Matrix, scheme: ArmForm) -> Codes:
    """A matrix in codes [out, in]: the folder's own, or its weights rounded to nearest. ModelError."""
    if isinstance(matrix.form, Quantized):
        return read_parts(source, matrix.name, matrix.form, matrix.columns, matrix.rows).codes
    weights = source.read(matrix.name + ".weight").astype(np.float64)
    return (grids.symmetric if scheme.symmetric else grids.nearest)(weights, scheme.bits, group_of(matrix, scheme))


def bias_of(source: Checkpoint, matrix: forms.Matrix) -> Array:
    """float32 [columns]; zeros where its neighbours have one and it has none."""
    if not matrix.bias:
        return np.zeros(matrix.columns, np.float32)
    return source.read(matrix.name + ".bias").astype(np.float32)


def _half(name: str, numbers: Array) -> Array:
    """Rounded to float16. ModelError where one is too large for it."""
    with np.errstate(over="ignore"):
        rounded = numbers.astype(np.float16)
    if not np.isfinite(rounded).all():
        largest = np.abs(numbers[~np.isfinite(rounded)]).max()
        raise ModelError(f"{name}.weight has a number of {largest:g}; Arm cores keep it as float16, at most 65504")
    return rounded
