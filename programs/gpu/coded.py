"""Quantized matrices cut for a GPU, as they are packed in the checkpoint: what its own rows and columns touch, no more.

Factors that are stored as codes have their groups in the row-major array, across rows where these are no whole groups.
"""

import numpy as np

from meshrt.gpu.codes import UNIT, GpuCodes, GpuFactor, GpuMatrix, ProductWay, Thin, room_for_factor
from meshrt.gpu.gpu import COMPUTED, Gpu
from meshrt.models.errors import ModelError
from meshrt.models.folders.checkpoint import Checkpoint, Index
from meshrt.models.matrix import Matrix
from meshrt.models.quantize.form import Quantized
from meshrt.records import dataclass

EVERY = slice(None)
DTYPES = {"U8": np.uint8, "F16": np.float16}


@dataclass(frozen=True)
class Hold:
    """How products with codes are computed; whether compensators are held in float16, whatever they are stored in."""

    way: ProductWay = "apart"
    half: bool = False


@dataclass(frozen=True)
class CodedCut:
    """Cuts one quantized matrix, [out, in] in the checkpoint, for a GPU; without a checkpoint, shapes."""

    gpu: Gpu
    checkpoint: Checkpoint | None
    matrix: Matrix
    form: Quantized
    hold: Hold

    def part(self, rows: Index, columns: slice) -> GpuMatrix:
        """These rows and columns, kept on the GPU. ModelError, LimitError."""
        specs = self.form.codes(self.matrix.columns, self.matrix.rows)
        tensors = {end: self._read(end, *spec) for end, spec in specs.items()}
        shape = length(rows, self.matrix.columns), length(columns, self.matrix.rows)
        codes = self._cut(tensors, self.form.bits, rows, _span(columns, self.matrix.rows), shape)
        self._keep("codes", codes)
        return GpuMatrix(codes, (self._thin(rows, columns, shape[0]),) if self.form.rank else (), self.hold.way)

    def _thin(self, rows: Index, columns: slice, height: int) -> Thin:
        rank = self.form.rank
        u = self._factor("u", (self.matrix.columns, rank), rows, EVERY)
        return Thin(slice(0, height), u, self._factor("v", (rank, self.matrix.rows), EVERY, columns), rank)

    def _factor(self, letter: str, shape: tuple[int, int], rows: Index, columns: slice) -> GpuFactor:
        specs = self.form.compensator(self.matrix.columns, self.matrix.rows)
        tensors = {
            end.removeprefix(letter + "_"): self._read(end, *spec)
            for end, spec in specs.items() if end.startswith(letter)
        }  # fmt: skip
        size = length(rows, shape[0]), length(columns, shape[1])
        if self.form.compensator_bits == 16:
            return self._half(self._take(tensors[letter], rows, columns, size))
        parts = tuple(self._parts(tensors, shape, rows, columns, size))
        if self.hold.half:
            return self._half(room_for_factor(parts).whole() if self.gpu.payload else self.gpu.shaped(size, np.float16))
        for part in parts:
            self._keep("compensators", part)
        return parts

    def _parts(
        self, tensors: dict[str, np.ndarray], shape: tuple[int, int], rows: Index, columns: slice, size: tuple[int, int]
    ) -> list[GpuCodes]:
        bits, width, own = self.form.compensator_bits, shape[1], _span(columns, shape[1])
        if width % self.form.group == 0:  # every row has groups of its own
            by_row = {name: tensor.reshape(shape[0], -1) for name, tensor in tensors.items()}
            return [self._cut(by_row, bits, rows, own, size)]
        line = {name: tensor.reshape(1, -1) for name, tensor in tensors.items()}
        if size[1] == width and isinstance(rows, slice):
            first, last = _span(rows, shape[0])
            return [self._cut(line, bits, EVERY, (first * width, last * width), size)]
        return [
            self._cut(line, bits, EVERY, (row * width + own[0], row * width + own[1]), (1, size[1]))
            for row in np.arange(shape[0])[rows].tolist()
        ]

    def _cut(
        self, tensors: dict[str, np.ndarray], bits: int, lines: Index, own: tuple[int, int], size: tuple[int, int]
    ) -> GpuCodes:
        """Of these lines the codes from one number to another, as a matrix of that size."""
        group, unit = self.form.group, UNIT * bits // 8
        groups = slice(own[0] // group, -(-own[1] // group))
        units = slice(own[0] // UNIT, -(-own[1] // UNIT))
        count = length(lines, len(tensors["codes"]))
        shift = self.form.shift or ""

        def take(name: str, index: slice) -> np.ndarray:
            return self._take(tensors[name], lines, index, (count, index.stop - index.start))

        return GpuCodes(
            take("codes", slice(units.start * unit, units.stop * unit)), take("scale", groups),
            take(shift, groups) if shift in tensors else None, bits, group,
            units.start * UNIT - groups.start * group, own[0] - groups.start * group, *size, shift == "offset",
        )  # fmt: skip

    def _read(self, end: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        """A tensor, or its shape; what is taken of it is read from the disk."""
        if self.checkpoint is None:
            return self.gpu.shaped(shape, DTYPES[dtype])
        return self.checkpoint.view(f"{self.matrix.name}.{end}")

    def _take(self, array: np.ndarray, rows: Index, columns: slice, size: tuple[int, int]) -> np.ndarray:
        if self.checkpoint is None:
            return self.gpu.shaped(size, array.dtype)
        part = np.array(array[:, columns][rows], order="C")
        if part.dtype == np.float16 and not np.isfinite(part).all():
            raise ModelError(
                f"{self.checkpoint.folder}: a tensor of {self.matrix.name} has values that are NaN or infinite"
            )
        return part

    def _half(self, factor: np.ndarray) -> np.ndarray:
        """Rounded to float16, which it counts as, and computed with as all numbers are."""
        if self.gpu.payload:
            factor = factor.astype(np.float16).astype(COMPUTED)
        return self.gpu.keep("compensators", factor, np.float16)

    def _keep(self, name: str, codes: GpuCodes) -> None:
        for array in (codes.codes, codes.scale, codes.zero):
            if array is not None:
                self.gpu.keep(name, array, array.dtype)


def _span(index: slice, size: int) -> tuple[int, int]:
    begin, stop, _ = index.indices(size)
    return begin, stop


def length(index: Index, size: int) -> int:
    return len(range(size)[index]) if isinstance(index, slice) else len(index)
