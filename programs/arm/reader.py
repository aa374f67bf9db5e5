"""Parts of a model into the DRAM of Arm cores, from a folder or by shape: norms, matrices, MLPs, experts, tables."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import numpy as np

from meshrt.arm.soc import Soc
from meshrt.models import matrix as forms
from meshrt.models.config import Config
from meshrt.models.errors import ModelError
from meshrt.models.family import Family
from meshrt.models.folders.checkpoint import Checkpoint
from meshrt.models.quantize import codes as grids
from meshrt.models.quantize.codes import Codes
from meshrt.models.quantize.folder import read_parts
from meshrt.models.quantize.form import Quantized
from meshrt.programs.arm.layout import PANEL
from meshrt.programs.arm.parts import (
    ArmExperts,
    ArmFactors,
    ArmMatrix,
    ArmMlp,
    QkvNorms,
)
from meshrt.programs.arm.products.compensators import beside, compensators
from meshrt.programs.arm.products.weights import PackedWeights, ProductMethod, place
from meshrt.programs.arm.simd.between import ArmNorm
from meshrt.records import dataclass

Array = np.ndarray


@dataclass(frozen=True)
class ArmScheme:
    """How matrices and activations are kept. `group` weights of a row share a scale, 0: all."""

    bits: int
    group: int
    symmetric: bool
    head_bits: int
    blocks: bool


@dataclass(frozen=True)
class PartReader:
    """Reads parts of a model into DRAM, by shape, without numbers, where `source` is None. LimitError, ModelError.

    `how`: how matrices are multiplied, `thin`: compensators, by their bits. `over`: matrices in whose place those are
    that are read, in turns.
    """

    soc: Soc
    config: Config
    family: Family
    scheme: ArmScheme
    source: Checkpoint | None
    how: ProductMethod
    thin: Mapping[int, ProductMethod]

    def vector(self, name: str) -> Array | None:
        return None if self.source is None else self.source.read(name).astype(np.float32)

    def norm(self, name: str) -> ArmNorm:
        centred = self.family.layer_norm
        bias = self.vector(name + ".bias") if centred else None
        return ArmNorm(self.family.eps, self.vector(name + ".weight"), centred, bias)

    def norm_after(self, name: str | None) -> ArmNorm | None:
        return None if name is None else self.norm(name)

    def qkv_norms(self, layer: forms.Layer) -> QkvNorms | None:
        if layer.q_norm is None or layer.k_norm is None:
            return None if self.family.clip is None else QkvNorms(None, (0, 0), self.family.clip)
        norms = (ArmNorm(self.family.eps, self.vector(f"{each.name}.weight")) for each in (layer.q_norm, layer.k_norm))
        return QkvNorms((next(norms), next(norms)), (layer.q_norm.size, layer.k_norm.size), self.family.clip)

    def packed(
        self, name: str, several: Sequence[forms.Matrix], over: PackedWeights | None, at: int = 0
    ) -> PackedWeights:
        """Matrices that have one input as one."""
        source, scheme = self.source, self.scheme
        codes = None if source is None else beside([codes_of(source, matrix, scheme) for matrix in several])
        columns, first = sum(matrix.columns for matrix in several), several[0]
        return place(self.soc, self.how, name, columns, first.rows, group_of(first, scheme), codes, over, at)

    def side_by_side(self, name: str, several: Sequence[forms.Matrix], before: ArmMatrix | None) -> ArmMatrix:
        """`before`: that in whose place they are."""
        over = iter(() if before is None else before.packed)
        ends = [*accumulate(matrix.columns for matrix in several)]
        bias = self.biases(several)
        biased = any(matrix.bias for matrix in several)
        at = {matrix.name: end - matrix.columns for matrix, end in zip(several, ends, strict=True)}
        cut = [matrix for matrix in several if isinstance(matrix.form, forms.LowRank)]
        if not cut:
            whole: tuple[PackedWeights, ...] = (self.packed(name, several, next(over, None)),)
            more = compensators(self.soc, self.thin, self.source, name, several, at, over)
            return ArmMatrix(name, several[0].rows, ends[-1], whole, self.how, biased, bias, more=more)
        whole = tuple(
            self.packed(each.name, (each,), next(over, None), at[each.name]) for each in several if each not in cut
        )
        first = self.packed(f"{name}, first factors", [matrix.factors()[0] for matrix in cut], next(over, None))
        seconds = tuple(
            self.packed(f"{each.name}, second factor", each.factors()[1:], next(over, None), at[each.name])
            for each in cut
        )
        factors = ArmFactors(first, seconds, self.how)
        return ArmMatrix(name, several[0].rows, ends[-1], whole, self.how, biased, bias, factors)

    def biases(self, several: Sequence[forms.Matrix]) -> Array | None:
        """float32 [columns of all]; None by shape, and where no matrix has one."""
        if self.source is None or not any(matrix.bias for matrix in several):
            return None
        return np.concatenate([bias_of(self.source, matrix) for matrix in several])

    def mlp(self, stem: str, mlp: forms.Mlp, over: Iterator[ArmMatrix | None]) -> ArmMlp:
        name = stem + ("up" if mlp.gate is None else "gate, up")
        inner = self.side_by_side(name, mlp.inner, next(over))
        down = self.side_by_side(stem + "down", (mlp.down,), next(over))
        return ArmMlp(inner, down, mlp.gate is not None, mlp.activation)

    def experts(self, layer: int, stem: str, mixture: forms.Experts, over: Iterator[ArmMatrix | None]) -> ArmExperts:
        """`layer`: its number among those with experts."""
        hidden = self.config.hidden_size
        panels = -(-sum(each.columns for each in mixture.routing) // PANEL)
        router = None if self.source is None else router_panels(self.source, mixture, panels, hidden)
        buffer = self.soc.buffer(stem + "router", 4 * panels * PANEL * hidden)
        experts = tuple(self.mlp(f"{stem}expert {at}, ", each, over) for at, each in enumerate(mixture.experts))
        shared = None if mixture.shared is None else self.mlp(stem + "shared expert, ", mixture.shared, over)
        gated = mixture.shared_gate is not None
        return ArmExperts(layer, router, buffer, experts, mixture.top, mixture.renormalise, shared, gated)

    def table(self, name: str, buffer: str, rows: int) -> tuple[Array | None, int]:
        """float16 [rows, K], and its buffer."""
        weights = None if self.source is None else _half(name, self.source.read(name + ".weight"))
        return weights, self.soc.buffer(buffer, 2 * rows * self.config.hidden_size)


def router_panels(source: Checkpoint, mixture: forms.Experts, panels: int, hidden: int) -> Array:
    """A router's weights and its shared gate's, float32 [panels, K, 8]."""
    columns = np.concatenate([source.read(each.name + ".weight").astype(np.float32) for each in mixture.routing])
    filled = np.pad(columns, ((0, -len(columns) % PANEL), (0, 0)))
    return np.ascontiguousarray(filled.reshape(panels, PANEL, hidden).transpose(0, 2, 1))


def group_of(matrix: forms.Matrix, scheme: ArmScheme) -> int:
    """Weights of a row that share a scale: as many as there are at the most."""
    group = matrix.form.group if isinstance(matrix.form, Quantized) else scheme.group
    return min(group or matrix.rows, matrix.rows)


def codes_of(source: Checkpoint, matrix: forms.Matrix, scheme: ArmScheme) -> Codes:
    """A matrix in codes [out, in]: the folder's own, or its weights rounded to nearest. ModelError."""
    if isinstance(matrix.form, Quantized):
        return read_parts(source, matrix.name, matrix.form, matrix.columns, matrix.rows).codes
    weights = source.read(matrix.name + ".weight").astype(np.float64)
    try:
        return (grids.symmetric if scheme.symmetric else grids.nearest)(weights, scheme.bits, group_of(matrix, scheme))
    except ModelError as error:
        raise ModelError(f"{source.folder}: {matrix.name}: {error}") from error


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
