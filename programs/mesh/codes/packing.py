"""A rank's tiles of quantized matrices, read from the checkpoint and packed anew, tile by tile (tileform.py)."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.models import matrix as forms
from meshrt.models.errors import ModelError
from meshrt.models.folders.checkpoint import Checkpoint
from meshrt.models.quantize.folder import check_tensors
from meshrt.models.quantize.form import Quantized
from meshrt.models.quantize.packing import pack, unpack
from meshrt.programs.mesh.codes.packed import Packed
from meshrt.programs.mesh.codes.tileform import (
    HEADER,
    MOST_TILES,
    OF_GROUPS,
    UNIT,
    Letter,
    ScaleGroups,
    TileForm,
    elements,
    tile_form,
)
from meshrt.programs.mesh.experts.grid import RegionGrid
from meshrt.records import dataclass

Same = Sequence[forms.Matrix]  # one for each region of a grid


@dataclass(frozen=True)
class Numbered:
    """Some of the chunks that a dimension is cut into: their numbers, and [chunks, size] what is in them."""

    numbers: np.ndarray
    table: np.ndarray


def pack_matrices(
    block: Block, checkpoint: Checkpoint | None, grid: RegionGrid, matrices: Sequence[tuple[Same, np.ndarray]],
    rows: np.ndarray, dtype: np.dtype[Any], turned: bool, apart: bool,
) -> Packed:  # fmt: skip
    """Matrices with an input of these rows, each with its columns, side by side; as `Reader.matrix` has whole ones.

    UsageError, ModelError, LimitError.
    """
    forms, begin = [], HEADER
    for same, columns in matrices:
        forms.append(tile_form(_form(same), same[0].rows, rows, columns, begin))
        begin += forms[-1].nbytes
    if grid.sides > MOST_TILES:
        raise UsageError(f"{grid.sides} x {grid.sides} tiles of codes: {MOST_TILES} along an axis are the most")
    each = (grid.tile_rows, grid.tile_columns)
    data = block.tiles(f"{matrices[0][0][0].name}.codes", (*each, begin), np.uint8)
    data[...] = 0
    packed = Packed(data, tuple(forms), dtype, apart)
    if checkpoint is None:
        return packed
    for number, region in grid.parts(block.mesh):
        part = data[region.rows, region.columns]
        bh, bw = part.shape[:2]
        along_y, along_x = (
            np.arange(low * of, (low + size) * of)
            for low, size, of in ((region.y, bh, each[0]), (region.x, bw, each[1]))
        )
        down, across = (along_x, along_y) if turned else (along_y, along_x)
        # [columns of cores, their tiles, rows of cores, theirs, bytes], or turned: where they stay, not a copy
        tiles = part.transpose((0, 2, 1, 3, 4) if turned else (1, 3, 0, 2, 4))
        header = np.stack(np.broadcast_arrays(down, across[:, None]), axis=-1).astype("<u2")
        tiles[..., :HEADER] = header.view(np.uint8).reshape(*tiles.shape[:-1], HEADER)
        for (same, columns), form in zip(matrices, forms, strict=True):
            if number < len(same):
                source = MatrixSource(
                    checkpoint, same[number], form, Numbered(down, rows[down]), Numbered(across, columns[across])
                )
                fill(tiles, source)
    return packed


def _form(same: Same) -> Quantized:
    """The form of matrices that share tiles. UsageError."""
    form = same[0].form
    assert isinstance(form, Quantized)
    for matrix in same:
        if matrix.form != form:
            raise UsageError(
                f"{matrix.name} has a compensator of another rank than {same[0].name}, beside which it is to lie in"
                " regions: cut experts over the whole mesh (--experts split), or give all one rank"
            )
    return form


@dataclass(frozen=True)
class MatrixSource:
    """A matrix in the checkpoint, and the chunks of its inputs and outputs that are wanted."""

    checkpoint: Checkpoint
    matrix: forms.Matrix
    form: TileForm
    down: Numbered
    across: Numbered

    def __post_init__(self) -> None:
        check_tensors(self.checkpoint, self.matrix.name, self.form.form, self.matrix.columns, self.matrix.rows)

    def read(self, end: str, *index: Any) -> np.ndarray:
        """A tensor of the matrix, or a part of it. ModelError where it has values that are none."""
        name = f"{self.matrix.name}.{end}"
        part = self.checkpoint.read(name, *index)
        if part.dtype == np.float16 and not np.isfinite(part).all():
            raise ModelError(f"{self.checkpoint.find(name).file}: tensor {name} has values that are NaN or infinite")
        return part


def fill(tiles: np.ndarray, source: MatrixSource) -> None:
    """One matrix into tiles of bytes, [.., .., .., .., bytes]: across in the first two dimensions, down in the next."""
    form, kind, lead = source.form, source.form.form, (len(source.across.table), len(source.down.table))
    codes: dict[Letter, np.ndarray] = {}
    arrays = {name: of_groups(source, name) for name in form.arrays() if name in OF_GROUPS}
    if form.u is not None and form.v is not None:
        codes["u"], arrays["u_scale"] = factor_codes(source, "u", source.across, form.u, (kind.rank, form.nt))
        codes["v"], arrays["v_scale"] = factor_codes(source, "v", source.down, form.v, (form.kt, kind.rank))
    elif kind.rank:
        u, v = (
            padded(source.read(end), *at)
            for end, at in (("u", (source.across.table, None)), ("v", (None, source.down.table)))
        )
        arrays["u"] = u.reshape(-1, form.nt, kind.rank).swapaxes(1, 2)[:, None]
        arrays["v"] = v.reshape(kind.rank, -1, form.kt).transpose(1, 2, 0)[None]
    for name, numbers in arrays.items():
        begin, end = form.spans[name]
        whole = np.broadcast_to(numbers, (*lead, *form.arrays()[name])).astype("<f2")
        tiles[..., begin:end] = np.ascontiguousarray(whole).view(np.uint8).reshape(*tiles.shape[:-1], end - begin)
    put_codes(tiles, form, codes)
    each = tiles.shape[1]
    for at, row_tiles in enumerate(tiles):  # a byte a code for these alone
        put_codes(row_tiles, form, {"w": own_codes(source, source.across.table[at * each : (at + 1) * each])})


def put_codes(tiles: np.ndarray, form: TileForm, codes: dict[Letter, np.ndarray]) -> None:
    """Slices of these codes, [across, down, *whole], into tiles of bytes. Codes may be the same along either."""
    for letter, row, column, shape, _ in form.slices():
        if letter in codes:
            begin, end = form.spans[f"{letter} {row} {column}"]
            part = codes[letter][..., row : row + shape[0], column : column + shape[1]]
            flat = part.reshape(*part.shape[:2], -1)
            flat = np.pad(flat, ((0, 0), (0, 0), (0, -prod(shape) % UNIT)))
            packed = pack(flat, form.form.bits if letter == "w" else form.form.compensator_bits)
            dims = [
                of if prod(of) == size else (1,) * len(of)
                for of, size in zip((tiles.shape[:-3], tiles.shape[-3:-1]), packed.shape, strict=False)
            ]
            tiles[..., begin:end] = packed.reshape(*dims[0], *dims[1], end - begin)


def own_codes(source: MatrixSource, outs: np.ndarray) -> np.ndarray:
    """The matrix's codes of chunks of its outputs, [chunks, down, Kt, Nt]; 0 where there are none."""
    bits, ins = source.form.form.bits, source.down.table
    out, into = outs[outs >= 0], ins[ins >= 0]
    padded = np.zeros((outs.size, ins.size), np.uint8)
    if out.size and into.size:
        low, high = int(into.min()) // UNIT, int(into.max()) // UNIT + 1
        nbytes = UNIT * bits // 8
        codes = unpack(source.read("codes", out, slice(low * nbytes, high * nbytes)), bits)
        at = into - low * UNIT
        codes = codes[:, at[0] : at[-1] + 1] if (np.diff(at) == 1).all() else codes[:, at]
        if codes.shape == padded.shape:
            padded = codes
        else:
            padded[np.ix_(np.flatnonzero(outs >= 0), np.flatnonzero(ins >= 0))] = codes
    return padded.reshape(*outs.shape, *ins.shape).transpose(0, 2, 3, 1)


def of_groups(source: MatrixSource, name: str) -> np.ndarray:
    """Scale, zero or offset of the groups of each tile's rows, [across, down, groups, Nt]; 0 where there are none.

    A tile whose rows are all padding has those of the first group: sums of whole numbers are multiplied by them at
    every core (whole.py).
    """
    outs = source.across.table
    which = source.form.rows.which[source.down.numbers].copy()
    which[(which < 0).all(axis=1), 0] = 0
    values = padded(source.read(name), outs, which)
    return values.reshape(*outs.shape, *which.shape).transpose(0, 2, 3, 1)


def padded(values: np.ndarray, rows: np.ndarray | None, columns: np.ndarray | None) -> np.ndarray:
    """These rows and columns, any of which may be -1: zeros."""
    for axis, index in enumerate((rows, columns)):
        if index is not None:
            flat = index.reshape(-1)
            values = np.take(values, np.maximum(flat, 0), axis)
            np.moveaxis(values, axis, 0)[flat < 0] = 0
    return values


def factor_codes(
    source: MatrixSource, letter: Letter, chunks: Numbered, groups: ScaleGroups, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Codes of U^T [across, 1, rank, Nt] or V^T [1, down, Kt, rank], and their scales, [.., groups]."""
    kind = source.form.form
    at = elements(letter, chunks.table, kind.rank, source.matrix.rows)
    numbers = unpack(source.read(f"{letter}_codes"), kind.compensator_bits).reshape(-1)
    codes = np.where(at < 0, 1 << kind.compensator_bits - 1, numbers[np.maximum(at, 0)]).astype(np.uint8)
    scale = padded(source.read(f"{letter}_scale"), groups.which[chunks.numbers], None).reshape(len(at), -1)
    axis = 1 if letter == "u" else 0
    return np.expand_dims(codes.reshape(-1, *shape), axis), np.expand_dims(scale, axis)
