"""Tensors of a model into a NeuronCore's HBM, from a checkpoint or by shape: vectors, norms, tables, matrices."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt.models import matrix as forms
from meshrt.models.folders.checkpoint import Checkpoint
from meshrt.models.quantize.form import Quantized
from meshrt.neuron.core import NeuronCore
from meshrt.neuron.tile import Tile
from meshrt.programs.neuron.coded import place_codes
from meshrt.programs.neuron.linear import NeuronMatrix, Whole
from meshrt.programs.neuron.norm import NeuronNorm
from meshrt.records import dataclass

EVERY = slice(None)


@dataclass(frozen=True)
class TensorReader:
    """Reads tensors in `dtype`; by shape where there is no checkpoint. `hidden` numbers a row, `biased` norms."""

    core: NeuronCore
    checkpoint: Checkpoint | None
    dtype: Any
    hidden: int
    biased: bool

    def tensor(self, shape: tuple[int, ...], *reads: tuple[str, tuple[slice, ...]], as_read: bool = False) -> Tile:
        """Rows of checkpoint tensors, one below the other and then transposed, [in, out], or not; a vector is a row."""
        if self.checkpoint is None:
            return self.core.tensor_of(shape[::-1] if as_read else shape, self.dtype)
        rows = [np.atleast_2d(self.checkpoint.read(name, *index).astype(np.float32)) for name, index in reads]
        vector = rows[0].shape[0] == 1 and len(reads[0][1]) == 1
        if vector:
            return self.core.tensor_of(np.concatenate(rows, axis=1), self.dtype)
        return self.core.tensor_of(np.concatenate(rows) if as_read else np.concatenate(rows).T, self.dtype)

    def vector(self, name: str, size: int, index: slice = EVERY) -> Tile:
        return self.tensor((1, size), (name, (index,)))

    def norm(self, name: str) -> NeuronNorm:
        bias = self.vector(name + ".bias", self.hidden) if self.biased else None
        return NeuronNorm(self.vector(name + ".weight", self.hidden), bias)

    def table(self, name: str, rows: int) -> Tile:
        read = None if self.checkpoint is None else self.checkpoint.read(name + ".weight").astype(np.float32)
        return self.core.tensor_of((rows, self.hidden) if read is None else read, self.dtype)

    def matrix(self, source: forms.Matrix, rows: slice, across: slice, as_read: bool = False) -> NeuronMatrix:
        """W^T of the checkpoint's [out, in] at [across, rows]; or U and V, of which one side is cut."""
        if not isinstance(source.form, forms.LowRank):
            return self.whole((source,), rows, (across,), as_read)
        u, v = source.factors()
        return self.side_by_side((u,), rows, (EVERY,), as_read), self.side_by_side((v,), EVERY, (across,), as_read)

    def whole(
        self, several: Sequence[forms.Matrix], rows: slice, across: Sequence[slice], as_read: bool = False
    ) -> Whole:
        """Matrices that are no factors, side by side: numbers, or codes; those with a compensator, multiplied out."""
        if all(isinstance(each.form, Quantized) and not each.form.rank for each in several):
            return place_codes(self.core, self.checkpoint, several, rows, across, self.dtype)
        return self.side_by_side(several, rows, across, as_read)

    def side_by_side(
        self, several: Sequence[forms.Matrix], rows: slice, across: Sequence[slice], as_read: bool = False
    ) -> Tile:
        pairs = list(zip(several, across, strict=True))
        width = sum(len(range(source.columns)[columns]) for source, columns in pairs)
        reads = [(source.name + ".weight", (columns, rows)) for source, columns in pairs]
        return self.tensor((len(range(several[0].rows)[rows]), width), *reads, as_read=as_read)
