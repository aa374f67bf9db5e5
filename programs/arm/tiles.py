"""Which micro-tile is best: rows and columns of the result that registers have room for (W4A8 on Arm, section IV.D).

The paper counts one register a number, ep hp + ep + hp <= R. A register holds more than one, and unpacking four bits
needs some of its own, so here

    ceil(ep / r) ceil(hp / c) + ceil(ep / ra) + ceil(hp / cw) + t <= R

and the best tile is the one with the least traffic e/ep h/hp (l hp + l ep + hp ep), of which ep is a multiple of what
the instruction takes together, and hp a power of two, so that it divides h.
"""

import re
from math import ceil

from meshrt.errors import UsageError
from meshrt.programs.arm.layout import PANEL
from meshrt.programs.arm.products.planes import temporaries
from meshrt.records import dataclass

LANES = 4  # float32 of a register


@dataclass(frozen=True)
class Unit:
    """What an instruction multiplies. Of a register: rows and columns of sums, rows of inputs, columns of weights."""

    name: str
    sum_rows: int
    sum_columns: int
    input_rows: int
    weight_columns: int
    together: int  # rows that a tile has a multiple of
    pack: int  # numbers along k that lie next to each other
    needs: str | None  # extension of the instruction set

    @property
    def panel(self) -> int:
        """Columns that a tile has a multiple of: codes of weights are stored by panels."""
        return PANEL if self.pack > 1 else self.weight_columns


UNITS = {
    unit.name: unit
    for unit in (
        Unit("smmla", 2, 2, 2, 2, 2, 8, "i8mm"),
        Unit("sdot", 1, 4, 4, 4, 4, 4, "dotprod"),
        Unit("fmla", 1, 4, 4, 4, 4, 1, None),
        Unit("fmla_8h", 1, 8, 8, 8, 4, 1, "fp16"),
        Unit("scalar", 1, 1, 1, 1, 1, 1, None),
    )
}


@dataclass(frozen=True)
class MicroTile:
    """Rows and columns of the result, and the registers that its loop takes."""

    rows: int
    columns: int
    registers: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


def registers_of(unit: Unit, rows: int, columns: int, bits: int, spare: int = 0) -> int:
    """Registers of a loop on such a tile; `spare`: those that unpacking takes more than its codes and masks."""
    unpacked = temporaries(bits, columns) + spare if unit.pack > 1 and bits != 8 else 0
    return _sums(unit, rows, columns) + ceil(rows / unit.input_rows) + ceil(columns / unit.weight_columns) + unpacked


def registers_after(unit: Unit, rows: int, columns: int) -> int:
    """Registers that make numbers of a loop's sums: scales and offsets of columns, a row's scale and total, a spare."""
    return _sums(unit, rows, columns) + (2 * ceil(columns / LANES) + 3 if unit.pack > 1 else 0)


def _sums(unit: Unit, rows: int, columns: int) -> int:
    return ceil(rows / unit.sum_rows) * ceil(columns / unit.sum_columns)


def plan(unit: Unit, registers: int, bits: int, weight: float = 1.0, spare: int = 0) -> MicroTile:
    """The tile with the least traffic for each product. `weight`: what one of the weights' numbers counts, of inputs 1.

    UsageError where no tile fits.
    """
    fitting = [
        MicroTile(rows, columns, registers_of(unit, rows, columns, bits, spare))
        for columns in (1 << power for power in range(8))
        if columns % unit.panel == 0
        for rows in range(unit.together, 129, unit.together)
        if max(registers_of(unit, rows, columns, bits, spare), registers_after(unit, rows, columns)) <= registers
    ]
    if not fitting:
        raise UsageError(
            f"no tile of {unit.name} fits into {registers} registers: give --registers more, or a --tile and --spill"
        )
    return min(fitting, key=lambda tile: (traffic(tile, weight), tile.registers, tile.columns))


def traffic(tile: MicroTile, weight: float = 1.0) -> float:
    """Numbers that are read for each product, in units of an input's."""
    return (weight * tile.columns + tile.rows) / (tile.rows * tile.columns)


def accesses(e: int, length: int, h: int, tile: MicroTile | None) -> int:
    """Elements that [e, l] x [l, h] reads and writes in tiles that divide it; None: 2 e h l + e h, without tiles."""
    if tile is None:
        return 2 * e * h * length + e * h
    tiles = e // tile.rows * (h // tile.columns)
    return tiles * (length * (tile.rows + tile.columns) + tile.rows * tile.columns)


def parse_tile(tile: str | tuple[int, int]) -> tuple[int, int]:
    """'10x8', or (10, 8) itself -> (10, 8). UsageError."""
    text = "x".join(map(str, tile)) if isinstance(tile, tuple) else tile
    match = re.fullmatch(r"([1-9][0-9]{0,2})x([1-9][0-9]{0,2})", text)
    if match is None:
        raise UsageError(f"--tile {text!r} is no tile such as 10x8: rows x columns")
    return int(match[1]), int(match[2])


def row_tiles(e: int, rows: int) -> list[int]:
    """The rows of each micro-tile: `rows`, then what is left in 8, 4, 2 and 1, each by a kernel of its own."""
    tiles, left = [rows] * (e // rows), e % rows
    for size in (8, 4, 2, 1):
        while size < rows and left >= size:
            tiles.append(size)
            left -= size
    return tiles
