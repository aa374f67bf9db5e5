"""How inputs and weights lie in memory, so that kernels load what they multiply (section IV.D and its figures).

p is the unit's pack. Inputs [l / p, e / ep, ep, p] and weights [h / hp, l / p, hp, p], of the paper's layouts with the
loop's tile for its last two axes. Four bits: of 32 numbers in that order the first 16 are the upper halves of 16 bytes
and the other 16 the lower ones ("planes"), so that a shift and a mask give two registers that need no reordering. The
paper says so of pairs that are packed first, which gives another order. `pairs` is what it was before: numbers 2 j and
2 j + 1 in byte j, which zip1 and zip2 have to put in order. Other numbers of bits are those of planes.py.
"""

from math import ceil

import numpy as np

from meshrt.programs.arm.layout import STEP
from meshrt.programs.arm.products import planes
from meshrt.programs.arm.tiles import Unit
from meshrt.records import dataclass

Array = np.ndarray


@dataclass(frozen=True)
class GroupRun:
    """A stretch of k whose groups have equal lengths: all groups but a shorter last one, or that."""

    first: int  # group
    groups: int
    length: int  # numbers of a group

    @property
    def steps(self) -> int:
        return ceil(self.length / STEP)


def parts_of(inner: int, group: int) -> list[GroupRun]:
    """The whole groups of a row, and the rest."""
    whole, rest = divmod(inner, group)
    return [part for part in (GroupRun(0, whole, group), GroupRun(whole, 1, rest)) if part.groups and part.length]


def padded(columns: int, hp: int, parts: list[GroupRun]) -> tuple[int, int]:
    """Columns and numbers along k with what tiles and steps fill up."""
    return hp * ceil(columns / hp), sum(part.groups * part.steps * STEP for part in parts)


def pack_weights(codes: Array, unit: Unit, hp: int, part: GroupRun, bits: int, layout: str) -> Array:
    """Codes uint8 [h, groups, group] -> uint8 [panels, groups, steps, bytes of a step]; of 8 bits int8."""
    h, size = len(codes), part.steps * STEP
    panels = ceil(h / hp)
    full = np.zeros((panels * hp, part.groups, size), np.uint8)
    full[:h, :, : part.length] = codes[:, part.first : part.first + part.groups, : part.length].view(np.uint8)
    by_step = full.reshape(panels, hp, part.groups, part.steps, STEP // unit.pack, unit.pack)
    flat = by_step.transpose(0, 2, 3, 4, 1, 5).reshape(panels, part.groups, part.steps, -1)
    if bits == 8:
        return np.ascontiguousarray(flat)
    if bits != 4:
        return planes.pack(flat, bits)
    if layout == "pairs":
        pairs = flat.reshape(*flat.shape[:-1], -1, 2)
        return pairs[..., 0] | pairs[..., 1] << 4
    pairs = flat.reshape(*flat.shape[:-1], -1, 2, 16)
    return (pairs[..., 0, :] << 4 | pairs[..., 1, :]).reshape(*flat.shape[:-1], -1)


def pack_inputs(x: Array, unit: Unit, rows: int, part: GroupRun, group: int) -> Array:
    """int8 [tiles * rows, l] -> uint8 [tiles, groups, steps, bytes of a step]: rows filled up to whole registers."""
    tiles, size = len(x) // rows, part.steps * STEP
    high = unit.input_rows * ceil(rows / unit.input_rows)
    full = np.zeros((tiles, high, part.groups, size), np.int8)
    begin = part.first * group
    numbers = x[:, begin : begin + part.groups * part.length].reshape(tiles, rows, part.groups, part.length)
    full[:, :rows, :, : part.length] = numbers
    by_step = full.reshape(tiles, high, part.groups, part.steps, STEP // unit.pack, unit.pack)
    flat = by_step.transpose(0, 2, 3, 4, 1, 5).reshape(tiles, part.groups, part.steps, -1)
    return np.ascontiguousarray(flat).view(np.uint8)


def by_columns(values: Array, hp: int) -> Array:
    """float16 of each column and group [h, groups] -> bytes [panels, groups, hp in whole registers]."""
    h, groups = values.shape
    panels = ceil(h / hp)
    full = np.zeros((panels * hp, groups), np.float16)
    full[:h] = values
    return np.ascontiguousarray(full.reshape(panels, hp, groups).transpose(0, 2, 1)).view(np.uint8)


def by_rows(values: Array, rows: int) -> Array:
    """float32 of each row and group [tiles * rows, groups] -> bytes [tiles, groups, rows in whole registers]."""
    tiles, groups = len(values) // rows, values.shape[1]
    wide = np.zeros((tiles, groups, 4 * ceil(rows / 4)), np.float32)
    wide[..., :rows] = values.reshape(tiles, rows, groups).transpose(0, 2, 1)
    return wide.view(np.uint8)
