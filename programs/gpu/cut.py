"""Cuts of a model's tensors, read from the checkpoint straight to a GPU: its own rows and columns, and nothing else."""

from dataclasses import dataclass

import numpy as np

from meshrt.gpu.gpu import COMPUTED, Gpu
from meshrt.models.checkpoint import Checkpoint, Index
from meshrt.models.matrix import Matrix

EVERY = slice(None)


def part(index: int, count: int, size: int) -> slice:
    """A GPU's share of 0..size, as even as it goes."""
    return slice(size * index // count, size * (index + 1) // count)


def shares(count: int, size: int) -> tuple[int, ...]:
    """How long the shares of all GPUs are."""
    return tuple(share.stop - share.start for share in (part(index, count, size) for index in range(count)))


@dataclass(frozen=True)
class Cutter:
    """Reads for GPU `gpu` of `count`; without a checkpoint, shapes. Matrices come as [in, out], for the kernels."""

    gpu: Gpu
    count: int
    checkpoint: Checkpoint | None

    def own(self, size: int) -> slice:
        """This GPU's share of 0..size."""
        return part(self.gpu.index, self.count, size)

    def whole(self, matrix: Matrix, rows: Index, columns: Index) -> np.ndarray:
        """A part of W^T, also of one that is decomposed."""
        if matrix.rank is None:
            return self._read(matrix, rows, columns)
        shape = (_length(rows, matrix.rows), _length(columns, matrix.columns))
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
            return self._keep(self.gpu.shaped((_length(index, size),)))
        return self._keep(self.checkpoint.read(name, index).astype(COMPUTED))

    def table(self, name: str, rows: int, columns: int, index: Index = EVERY) -> np.ndarray:
        """Rows of a table [rows, columns]."""
        if self.checkpoint is None:
            return self._keep(self.gpu.shaped((_length(index, rows), columns)))
        return self._keep(self.checkpoint.read(name + ".weight", index).astype(COMPUTED))

    def joined(self, arrays: list[np.ndarray]) -> np.ndarray:
        """Matrices that were read already, side by side; they are the same memory."""
        if self.gpu.payload:
            return np.concatenate(arrays, axis=1)
        return self.gpu.shaped((arrays[0].shape[0], sum(array.shape[1] for array in arrays)))

    def _read(self, matrix: Matrix, rows: Index, columns: Index) -> np.ndarray:
        if self.checkpoint is None:
            return self._keep(self.gpu.shaped((_length(rows, matrix.rows), _length(columns, matrix.columns))))
        # The file has [out, in].
        array = self.checkpoint.read(matrix.name + ".weight", columns, rows)
        return self._keep(np.ascontiguousarray(array.T, COMPUTED))

    def _keep(self, array: np.ndarray) -> np.ndarray:
        return self.gpu.keep("weights", array)


def _length(index: Index, size: int) -> int:
    return len(range(size)[index]) if isinstance(index, slice) else len(index)
