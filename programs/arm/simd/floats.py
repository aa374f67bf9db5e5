"""Products of floats by fmla: a column of inputs times a row of weights for each step, as attention has them.

float32 sums are float32, four in a register; float16 ones float16, eight in a register (section IV.F: "float16
precision has been used"). They are added in the order of the steps, whatever the tile.
"""

from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np

from meshrt.arm.core import Team, run
from meshrt.arm.isa import ld1, of, st1
from meshrt.arm.kernel import MicroKernel
from meshrt.programs.arm.tiles import MicroTile, Unit, row_tiles

Array = np.ndarray
KINDS: dict[str, np.dtype[Any]] = {"fmla": np.dtype(np.float32), "fmla_8h": np.dtype(np.float16)}


@lru_cache(256)
def float_kernel(unit: Unit, rows: int, columns: int) -> MicroKernel:
    """For a tile of so many rows and columns: sums begin at zero and are stored row by row."""
    wide = columns // unit.sum_columns
    x = [f"x{number}" for number in range(ceil(rows / unit.input_rows))]
    w = [f"w{number}" for number in range(wide)]
    sums = [[f"s{row}_{j}" for j in range(wide)] for row in range(rows)]
    names = [name for line in sums for name in line]
    body = [ld1(tuple(x), "x"), ld1(tuple(w), "w")]
    body += [
        of(unit.name, name, w[j], x[row // unit.input_rows], at=row % unit.input_rows)
        for row, line in enumerate(sums) for j, name in enumerate(line)
    ]  # fmt: skip
    before = tuple(of("movi", name, at=0) for name in names)
    return MicroKernel(f"{unit.name} {rows}x{columns}", before, tuple(body), tuple(st1((name,), "y") for name in names))


def product(
    team: Team, unit: Unit, tile: MicroTile, x: Array | None, w: Array | None, sizes: tuple[int, int, int]
) -> Array | None:
    """x [heads, rows, k] w [heads, k, columns] -> [heads, rows, columns], in the unit's float. None by shape.

    The heads are the team's units. `sizes`: rows, k, columns.
    """
    heads, (count, inner, columns) = sum(len(mine) for _, mine in team), sizes
    kind, panels = KINDS[unit.name], ceil(columns / tile.columns)
    out = None if x is None else np.empty((heads, count, panels * tile.columns), kind)
    weights = None if w is None else _panels(w.astype(kind), tile.columns, panels)
    begin, tiles = 0, row_tiles(count, tile.rows)
    for rows in dict.fromkeys(tiles):
        number = tiles.count(rows)
        span = slice(begin, begin + rows * number)
        begin = span.stop
        streams = {}
        if x is not None and weights is not None:
            streams = {"x": _columns(x[:, span].astype(kind), unit, rows), "w": weights}
            streams["y"] = np.zeros((number, panels, heads, 1, rows * tile.columns * kind.itemsize), np.uint8)
        kernel = float_kernel(unit, rows, tile.columns)
        useful = [2 * len(mine) * rows * number * inner * columns for _, mine in team]
        run(team, kernel, (number, panels, heads), 2, inner, streams, useful)
        if out is not None:
            parts = streams["y"].view(kind).reshape(number, panels, heads, rows, tile.columns)
            out[:, span] = parts.transpose(2, 0, 3, 1, 4).reshape(heads, rows * number, -1)
    return None if out is None else out[..., :columns]


def _panels(w: Array, width: int, panels: int) -> Array:
    """[heads, k, columns] -> bytes [1, panels, heads, k, columns of a panel], filled up with zeros."""
    heads, inner, columns = w.shape
    full = np.zeros((heads, inner, panels * width), w.dtype)
    full[..., :columns] = w
    return np.ascontiguousarray(full.reshape(heads, inner, panels, width).transpose(2, 0, 1, 3)).view(np.uint8)[None]


def _columns(x: Array, unit: Unit, rows: int) -> Array:
    """[heads, tiles * rows, k] -> bytes [tiles, 1, heads, k, rows in whole registers]."""
    heads, count, inner = x.shape
    full = np.zeros((count // rows, heads, inner, unit.input_rows * ceil(rows / unit.input_rows)), x.dtype)
    full[..., :rows] = x.reshape(heads, count // rows, rows, inner).transpose(1, 0, 3, 2)
    return full.view(np.uint8)[:, None]
