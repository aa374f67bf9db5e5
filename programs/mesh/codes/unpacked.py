"""Numbers of tiles of codes (tileform.py), as the host makes them. What cores do for them is counted elsewhere.

NumPy's way is the definition. The compiled core (codes.c) makes the same in one pass, and as float32 already: numbers
of 16 bits are rounded to those, so that products have the same factors. Scales and zeros are float16, sums and products
of them float32.
"""

from typing import Any

import numpy as np

from meshrt.mesh.products import product
from meshrt.models.quantize.packing import unpack
from meshrt.programs.mesh.codes.tileform import HEADER, SLICE, UNIT, Letter, TileForm

CENTRE, ZERO, OFFSET, EACH, PLAIN = range(5)  # what is done to a code, as codes.c has it
ROUNDINGS = {"float32": 0, "float16": 1, "bfloat16": 2}
FLOAT32 = np.dtype(np.float32)


def fresh(core: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Room for numbers of that dtype: of that, or float32 where the compiled core makes them."""
    return np.empty(shape, dtype if core is None else FLOAT32)


def rebuild(core: Any, data: np.ndarray, form: TileForm, low: int, out: np.ndarray, dtype: np.dtype[Any]) -> None:
    """Numbers of that dtype of a slice of rows, from row `low` on, into `out`, `fresh` [.., rows, Nt].

    The compensator is not among them.
    """
    rows, kind = out.shape[-2], form.form
    if core is not None:
        way = CENTRE if kind.shift is None else OFFSET if kind.offset else ZERO
        groups = (0, form.rows.number, low, 1)
        _compiled(core, data, form, ("w", low, 0), out, way, groups, rounding=ROUNDINGS[dtype.name])
        return
    codes = codes_of(data, form, "w", (low, 0), (rows, form.nt), kind.bits)
    at = form.rows.number[numbers(data)[0]][..., low : low + rows, None]
    scale = np.take_along_axis(array(data, form, "scale"), at, axis=-2)
    if kind.shift is None:
        out[...] = (codes - np.float32(2 ** (kind.bits - 1))) * scale
        return
    shift = np.take_along_axis(array(data, form, kind.shift), at, axis=-2)
    out[...] = codes * scale + shift if kind.offset else (codes - shift) * scale


def compensate(core: Any, data: np.ndarray, form: TileForm, low: int, out: np.ndarray, dtype: np.dtype[Any]) -> None:
    """Add V^T U^T of a slice of rows to numbers of that dtype."""
    rows, rank = out.shape[-2], form.form.rank
    for first in range(0, rank, SLICE):
        ranks = min(SLICE, rank - first)
        v = factor(core, data, form, "v", (low, first), (rows, ranks))
        u = factor(core, data, form, "u", (first, 0), (ranks, form.nt))
        if dtype == FLOAT32:
            product(core, v, u, out)
        elif core is not None:
            core.add_rounded(out, product(core, v, u), ROUNDINGS[dtype.name])
        else:
            out[...] = out.astype(dtype, copy=False) + product(core, v, u).astype(dtype)


def factor(
    core: Any, data: np.ndarray, form: TileForm, letter: Letter, start: tuple[int, int], shape: tuple[int, int]
) -> np.ndarray:
    """A slice of U^T or V^T, [.., *shape]: float16, or float32 of codes."""
    rank = form.form.rank
    groups, whole, axis = (form.u, (rank, form.nt), 1) if letter == "u" else (form.v, (form.kt, rank), 0)
    if groups is None:
        begin, end = form.spans[letter]
        halves = np.ascontiguousarray(data[..., begin:end]).view("<f2").reshape(*data.shape[:-1], *whole)
        return halves[..., start[0] : start[0] + shape[0], start[1] : start[1] + shape[1]].astype(np.float16)
    bits = form.form.compensator_bits
    if core is not None:
        out = np.empty((*data.shape[:-1], *shape), np.float32)
        of = (axis, groups.number, start[0] * whole[1] + start[1], whole[1])
        _compiled(core, data, form, (letter, *start), out, EACH, of, scales=groups.count)
        return out
    number = groups.number.reshape(-1, *whole)[:, start[0] : start[0] + shape[0], start[1] : start[1] + shape[1]]
    at = number[numbers(data)[axis]].reshape(*data.shape[:-1], -1)
    scale = np.take_along_axis(array(data, form, letter + "_scale"), at, axis=-1)
    codes = codes_of(data, form, letter, start, shape, bits)
    return np.asarray((codes - np.float32(2 ** (bits - 1))) * scale.reshape(codes.shape))


def whole_codes(core: Any, data: np.ndarray, form: TileForm, low: int, out: np.ndarray) -> None:
    """Codes of some rows of one slice, from row `low` on, into `out`, `fresh` [.., rows, Nt]."""
    begin, rows = low // SLICE * SLICE, out.shape[-2]
    skipped = (low - begin) * form.nt
    if core is not None:
        of = (0, form.rows.number, low, 1)
        _compiled(core, data, form, ("w", begin, 0), out, PLAIN, of, skipped)
        return
    out[...] = codes_of(data, form, "w", (begin, 0), (rows, form.nt), form.form.bits, skipped)


def _compiled(
    core: Any, data: np.ndarray, form: TileForm, which: tuple[Letter, int, int], out: np.ndarray, way: int,
    groups: tuple[int, np.ndarray, int, int], skipped: int = 0, rounding: int = 0, scales: int = 0,
) -> None:  # fmt: skip
    """`which` slice of codes; `groups` of its elements: along which axis tiles are numbered, of each tile's elements,
    of the first element that is wanted, and how many elements a row is apart.
    """
    letter, row, column = which
    kind, (axis, number, first, step) = form.form, groups
    scale = form.spans["scale" if letter == "w" else letter + "_scale"][0]
    shift = 0 if kind.shift is None else form.spans[kind.shift][0]
    bits = kind.bits if letter == "w" else kind.compensator_bits
    codes = form.spans[f"{letter} {row} {column}"][0]
    wanted = (way, rounding, bits, codes, scale, shift, skipped, axis, number.shape[1], first, step, scales)
    core.rebuild(data, number, out, np.array(wanted, np.int64).tobytes())


def array(data: np.ndarray, form: TileForm, name: str) -> np.ndarray:
    """One of the float16 arrays of each tile, as float32."""
    begin, end = form.spans[name]
    part = np.ascontiguousarray(data[..., begin:end]).view("<f2").astype(np.float32)
    return part.reshape(*data.shape[:-1], *form.arrays()[name])


def codes_of(
    data: np.ndarray, form: TileForm, letter: Letter, start: tuple[int, int], shape: tuple[int, int], bits: int,
    skipped: int = 0,
) -> np.ndarray:  # fmt: skip
    """A slice of codes, uint8 [.., *shape], or what is behind the first of it."""
    begin, size = form.spans[f"{letter} {start[0]} {start[1]}"][0], shape[0] * shape[1]
    low, high = skipped // UNIT, -(-(skipped + size) // UNIT)
    unit = UNIT * bits // 8
    codes = unpack(data[..., begin + low * unit : begin + high * unit], bits)
    return codes[..., skipped - low * UNIT :][..., :size].reshape(*data.shape[:-1], *shape)


def numbers(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each tile, its numbers along the inputs and the outputs."""
    header = np.ascontiguousarray(data[..., :HEADER]).view("<u2")
    return header[..., 0], header[..., 1]
