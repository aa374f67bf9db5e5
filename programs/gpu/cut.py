"""Cuts of a model's tensors, read from the checkpoint straight to a GPU: its own rows and columns, and nothing else."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from meshrt.gpu.codes import GpuMatrix, side_by_side
from meshrt.gpu.gpu import COMPUTED, Gpu
from meshrt.gpu.operations import coded_matmuls, matmul
from meshrt.models.folders.checkpoint import Checkpoint, Index
from meshrt.models.matrix import Matrix
from meshrt.models.quantize.form import Quantized
from meshrt.programs.gpu.coded import CodedCut, Hold, length
from meshrt.programs.shares import part
from meshrt.records import dataclass

EVERY = slice(None)
GpuWeight: TypeAlias = np.ndarray | GpuMatrix  # of a product: [in, out], or codes of [out, in]


def product(gpu: Gpu, x: np.ndarray, weights: GpuWeight, bias: np.ndarray | None = None) -> np.ndarray:
    """x W (+ bias), whatever W is kept in."""
    if isinstance(weights, np.ndarray):
        return matmul(gpu, x, weights, bias)
    return coded_matmuls(gpu, [x], [weights], [bias])[0]


@dataclass(frozen=True)
class Cutter:
    """Reads for GPU `gpu` of `count`; without a checkpoint, shapes. Matrices come as [in, out], for the kernels."""

    gpu: Gpu
    count: int
    checkpoint: Checkpoint | None
    hold: Hold

    def own(self, size: int) -> slice:
        """This GPU's share of 0..size."""
        return part(self.gpu.place, self.count, size)

    def whole(self, matrix: Matrix, rows: Index, columns: Index) -> GpuWeight:
        """A part of W^T, also of one that is decomposed; of one that is quantized its codes."""
        if isinstance(matrix.form, Quantized):
            assert isinstance(rows, slice)
            return CodedCut(self.gpu, self.checkpoint, matrix, matrix.form, self.hold).part(columns, rows)
        if matrix.rank is None:
            return self._read(matrix, rows, columns)
        shape = (length(rows, matrix.rows), length(columns, matrix.columns))
        if self.checkpoint is None:
            return self._keep(self.gpu.shaped(shape))
        u, v = matrix.factors()
        a = self.checkpoint.read(u.name + ".weight", EVERY, rows).astype(np.float64).T
        b = self.checkpoint.read(v.name + ".weight", columns).astype(np.float64).T
        return self._keep((a @ b).astype(COMPUTED))

    def a(self, matrix: Matrix, rows: Index, ranks: slice) -> np.ndarray:
        """A part of A [in, rank]."""
        return self._read(matrix.factors()[0], rows, ranks)

    def b(self, matrix: Matrix, ranks: slice, columns: Index) -> np.ndarray:
        """A part of B [rank, out]."""
        return self._read(matrix.factors()[1], ranks, columns)

    def bias(self, matrix: Matrix, columns: Index) -> np.ndarray | None:
        return self.vector(matrix.name + ".bias", matrix.columns, columns) if matrix.bias else None

    def vector(self, name: str, size: int, index: Index = EVERY) -> np.ndarray:
        if self.checkpoint is None:
            return self._keep(self.gpu.shaped((length(index, size),)))
        return self._keep(self.checkpoint.read(name, index).astype(COMPUTED))

    def table(self, name: str, rows: int, columns: int, index: Index = EVERY) -> np.ndarray:
        """Rows of a table [rows, columns]."""
        if self.checkpoint is None:
            return self._keep(self.gpu.shaped((length(index, rows), columns)))
        return self._keep(self.checkpoint.read(name + ".weight", index).astype(COMPUTED))

    def joined(self, parts: Sequence[GpuWeight]) -> GpuWeight:
        """Matrices that were read already, side by side; they are the same memory."""
        if coded := [part for part in parts if isinstance(part, GpuMatrix)]:
            return side_by_side(self.gpu, coded)
        arrays = [part for part in parts if isinstance(part, np.ndarray)]
        if self.gpu.payload:
            return np.concatenate(arrays, axis=1)
        return self.gpu.shaped((arrays[0].shape[0], sum(array.shape[1] for array in arrays)))

    def _read(self, matrix: Matrix, rows: Index, columns: Index) -> np.ndarray:
        if self.checkpoint is None:
            return self._keep(self.gpu.shaped((length(rows, matrix.rows), length(columns, matrix.columns))))
        # The file has [out, in].
        array = self.checkpoint.read(matrix.name + ".weight", columns, rows)
        return self._keep(np.ascontiguousarray(array.T, COMPUTED))

    def _keep(self, array: np.ndarray) -> np.ndarray:
        return self.gpu.keep("weights", array)
