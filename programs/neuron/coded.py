"""Matrices in codes in HBM: what crosses to SBUF are codes and scales, and a core makes tiles of numbers of them.

    codes     uint8 [in, bytes]    a row in pieces of 1024 columns; of 4 bits or fewer, byte j of a piece has column j
                                   in its low half, and in its upper one the column half a piece further; of more, one
                                   column, and int8 where they are symmetric, half of their range less
    scale     float16 [groups, out], and a zero or an offset in the same form where the model has them

A block is loaded as the matrix's own would be (blocks.py). Of each tile of up to 128 rows the vector engine unpacks the
codes, by an and and a shift; codes of a byte are made bfloat16 by the DMA engines on the way, which they can
(Introduction to DMA with NKI, AWS Neuron SDK documentation: casting, "if working with integer types"). The scales of a
tile's groups are spread over their rows by a product with ones where a row is in a group, which leaves them in PSUM,
and the vector engine multiplies by them and adds the offsets, or subtracts zeros before. Symmetric codes with one scale
a column are multiplied as they are, and the sums by the scales (as Transformers NeuronX has its `dequantize` after the
product). Activations are numbers as ever: these are weights alone in codes (W4A16).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt.models.folders.checkpoint import Checkpoint
from meshrt.models.matrix import Matrix
from meshrt.models.quantize.form import Quantized
from meshrt.models.quantize.packing import unpack
from meshrt.neuron import isa as nisa
from meshrt.neuron import language as nl
from meshrt.neuron.core import NeuronCore
from meshrt.neuron.engines import Core
from meshrt.neuron.operand import Operand
from meshrt.neuron.tile import Tile, as_tile
from meshrt.programs.neuron.blocks import F, P, cast, spans, width, within
from meshrt.programs.neuron.norm import on_all_partitions
from meshrt.records import dataclass

PIECE = 1024  # columns whose codes lie together: the most that kernels load at a time
HALF = 4  # bits of a code that shares its byte


@dataclass(frozen=True)
class CodedTiles:
    """A matrix [in, out]. `first` is the place of its first row in that row's group, if it begins within one."""

    form: Quantized
    dtype: np.dtype[Any]  # of the tiles that are made
    outs: int
    first: int
    codes: Tile
    scale: Tile
    shift: Tile | None

    @property
    def core(self) -> Core:
        return self.codes.core

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.outs

    @property
    def late(self) -> bool:
        """Blocks are codes, and who sums up products with them calls `scaled`."""
        return self.form.shift is None and self.scale.shape[0] == 1

    def load_block(self, rows: slice, columns: slice) -> list[Tile]:
        """[rows, columns] as tiles of up to 128 rows, each as wide as the block. Columns begin with a piece."""
        assert columns.start % PIECE == 0 and width(columns) == min(PIECE, self.outs - columns.start)
        if self.late:
            return [cast(self._codes(part, columns, self.dtype), self.dtype) for part in spans(rows, P)]
        group = self.form.group
        groups = slice((rows.start + self.first) // group, -(-(rows.stop + self.first) // group))
        scales = as_tile(nl.load(self.scale[groups, columns]))
        shifts = None if self.shift is None else as_tile(nl.load(self.shift[groups, columns]))
        return [self._tile(part, columns, groups.start, scales, shifts) for part in spans(rows, P)]

    def _tile(self, rows: slice, columns: slice, group: int, scales: Tile, shifts: Tile | None) -> Tile:
        """Of these rows; `scales` and `shifts` are those of the groups from that one on."""
        core, form, size = self.core, self.form, width(columns)
        codes = self._codes(rows, columns, nl.bfloat16)
        of = (np.arange(rows.start, rows.stop) + self.first) // form.group
        member = self._members(of - group, scales.shape[0])
        out: Tile = nl.ndarray((nl.par_dim(width(rows)), size), self.dtype, buffer=core.sbuf)
        for part in spans(columns, F):
            at = within(part, columns)
            own: Operand = codes[:, at]
            if shifts is not None and not form.offset:
                own = nisa.tensor_tensor(own, nisa.nc_matmul(member, shifts[:, at]), nl.subtract, dtype=nl.float32)
            if shifts is not None and form.offset:
                own = nisa.tensor_tensor(own, nisa.nc_matmul(member, scales[:, at]), nl.multiply, dtype=nl.float32)
                out[:, at] = nisa.tensor_tensor(own, nisa.nc_matmul(member, shifts[:, at]), nl.add, dtype=self.dtype)
            else:
                out[:, at] = nisa.tensor_tensor(
                    own, nisa.nc_matmul(member, scales[:, at]), nl.multiply, dtype=self.dtype
                )
        return out

    def _codes(self, rows: slice, columns: slice, whole: np.dtype[Any]) -> Tile:
        """Codes [p, columns] as numbers, half of their range less where they are symmetric: of a byte in the dtype
        `whole`, others in bfloat16, which has all of them.
        """
        form, size = self.form, width(columns)
        begin = _bytes(columns.start, form.bits)
        source = self.codes[rows, begin : begin + _bytes(size, form.bits)]
        if form.bits > HALF:
            return as_tile(nl.load(source, dtype=whole))
        packed = as_tile(nl.load(source))
        less: tuple[Any, ...] = () if form.shift is not None else (nl.subtract, float(1 << form.bits - 1))
        out: Tile = nl.ndarray((nl.par_dim(packed.shape[0]), size), nl.bfloat16, buffer=self.core.sbuf)
        half = packed.shape[1]
        out[:, 0:half] = nisa.tensor_scalar(packed, nl.bitwise_and, 15.0, False, *less)
        if size > half:
            upper = packed[:, 0 : size - half]
            out[:, half:size] = nisa.tensor_scalar(upper, nl.right_shift, 4.0, False, *less)
        return out

    def _members(self, of: np.ndarray, groups: int) -> Tile:
        """[groups, rows]: 1 where a row is in a group."""
        ones: Tile = nl.ndarray((nl.par_dim(groups), len(of)), nl.float16, buffer=self.core.sbuf)
        nisa.memset(ones, 1.0)
        if groups == 1:
            return ones
        return as_tile(nisa.affine_select(np.arange(groups)[:, None] == of, ones, 0.0))


def _bytes(columns: int, bits: int) -> int:
    """That a row of so many columns takes, the last piece being cut in the middle as well."""
    whole, rest = divmod(columns, PIECE)
    return columns if bits > HALF else whole * PIECE // 2 + (rest + 1) // 2


def scaled(totals: Sequence[Tile], w: Any, columns: slice) -> None:
    """Sums of products with these columns of a matrix times their scales, in place, where its blocks are codes."""
    if not isinstance(w, CodedTiles) or not w.late:
        return
    row = w.scale[:, columns]
    single_row = all(total.shape[0] == 1 for total in totals)
    spread = as_tile(nl.load(row)) if single_row else on_all_partitions(row)
    for total in totals:
        total[...] = nisa.tensor_tensor(total, spread[0 : total.shape[0]], nl.multiply, dtype=total.dtype)


def packed(codes: np.ndarray, bits: int, symmetric: bool) -> np.ndarray:
    """Codes [in, out] as a core has them in HBM, uint8 [in, bytes], or int8."""
    if bits > HALF:
        return (codes.astype(np.int16) - (1 << bits - 1)).astype(np.int8) if symmetric else codes
    pieces = []
    for part in spans(codes.shape[1], PIECE):
        piece = codes[:, part]
        half = (width(part) + 1) // 2
        upper = np.pad(piece[:, half:], ((0, 0), (0, 2 * half - width(part))))
        pieces.append(piece[:, :half] | upper << 4)
    return np.concatenate(pieces, axis=1)


def place_codes(
    core: NeuronCore, checkpoint: Checkpoint | None, several: Sequence[Matrix], rows: slice, across: Sequence[slice],
    dtype: np.dtype[Any],
) -> CodedTiles:  # fmt: skip
    """These rows and columns of matrices with one input, side by side, in HBM; without a checkpoint, by shape."""
    form = several[0].form
    assert isinstance(form, Quantized)
    inputs = range(several[0].rows)[rows]
    outs = sum(len(range(matrix.columns)[columns]) for matrix, columns in zip(several, across, strict=True))
    low, high = inputs.start // form.group, -(-inputs.stop // form.group)
    first, size = inputs.start - low * form.group, len(inputs)

    def tensor(end: str | None) -> Tile | None:
        """Scales, zeros or offsets [groups, out]."""
        if end is None:
            return None
        if checkpoint is None:
            return core.tensor_of((high - low, outs), nl.float16)
        parts = [
            checkpoint.read(f"{matrix.name}.{end}", columns)[:, low:high]
            for matrix, columns in zip(several, across, strict=True)
        ]
        return core.tensor_of(np.concatenate(parts).T.astype(np.float32), nl.float16)

    kind = nl.int8 if form.bits > HALF and form.shift is None else nl.uint8
    if checkpoint is None:
        codes = core.tensor_of((size, _bytes(outs, form.bits)), kind)
    else:
        read = [
            checkpoint.read(f"{matrix.name}.codes", columns) for matrix, columns in zip(several, across, strict=True)
        ]
        whole = unpack(np.concatenate(read), form.bits)[:, inputs.start : inputs.stop].T
        codes = core.tensor_of(packed(whole, form.bits, form.shift is None), kind)
    scale = tensor("scale")
    assert scale is not None
    return CodedTiles(form, dtype, outs, first, codes, scale, tensor(form.shift))
