"""Matrices of codes in DRAM, packed for the instruction that multiplies them; how products with them are computed."""

from math import ceil
from typing import Literal

import numpy as np

from meshrt.arm.soc import Soc
from meshrt.errors import UsageError
from meshrt.models.quantize.codes import Codes
from meshrt.programs.arm.layout import PANEL
from meshrt.programs.arm.products import packing
from meshrt.programs.arm.products.kernels import KernelForm
from meshrt.programs.arm.products.packing import GroupRun
from meshrt.programs.arm.tiles import UNITS, Unit, parse_tile, plan
from meshrt.records import dataclass

Array = np.ndarray
Order = Literal["columns", "rows"]


@dataclass(frozen=True)
class ProductMethod:
    """How products are computed: the unit, the micro-tile, the form of weights and inputs, and the outer loop."""

    unit: Unit
    rows: int
    columns: int
    form: KernelForm
    order: Order = "columns"


@dataclass(frozen=True)
class PackedWeights:
    """W [columns, inner] in DRAM, of which `group` weights of a row share a scale. Arrays are those of its parts.

    What it makes lies from column `at` of the result on.

    `codes` uint8 [panels, groups, steps, bytes], `scale` and `shift` (zeros or offsets, if any) as float16 in bytes
    [panels, groups, bytes]. None by shape.
    """

    columns: int
    inner: int
    group: int
    buffer: int
    nbytes: int
    parts: tuple[GroupRun, ...]
    codes: tuple[Array, ...] | None = None
    scale: tuple[Array, ...] | None = None
    shift: tuple[Array, ...] | None = None
    at: int = 0


def choose(
    soc: Soc,
    form: KernelForm,
    unit: str | None = None,
    tile: str | tuple[int, int] | None = None,
    order: Order = "columns",
) -> ProductMethod:
    """The best unit that the cores have, and its best tile, unless others are asked for. UsageError."""
    if unit is None:
        unit = next((name for name in ("smmla", "sdot") if UNITS[name].needs in soc.device.isa), None)
        if unit is None:
            raise UsageError(f"device {soc.device.name} has neither i8mm nor dotprod, which products of codes need")
    chosen = UNITS[unit]
    if tile is None:
        spare = (form.layout == "pairs") + form.signed if form.bits == 4 else 0
        best = plan(chosen, soc.device.registers, form.bits, spare=spare)
        rows, columns = best.rows, best.columns
    else:
        rows, columns = parse_tile(tile)
    if rows % chosen.together or columns % PANEL or columns & (columns - 1):
        raise UsageError(
            f"--tile {rows}x{columns} is none of {unit}: rows are a multiple of {chosen.together}, columns {PANEL}, 16,"
            " 32 and so on"
        )
    return ProductMethod(chosen, rows, columns, form, order)


def panels_of(columns: int, how: ProductMethod) -> int:
    """Panels of columns: the units that cores share out."""
    return ceil(columns / how.columns)


def place(
    soc: Soc,
    how: ProductMethod,
    name: str,
    columns: int,
    inner: int,
    group: int,
    codes: Codes | None,
    over: PackedWeights | None = None,
    at: int = 0,
) -> PackedWeights:
    """A matrix in DRAM, packed for the unit; by shape without its codes. LimitError.

    `over`: one in whose place it is, in turns, as it comes from flash.
    """
    form, parts = how.form, tuple(packing.parts_of(inner, group))
    high, length = packing.padded(columns, how.columns, [*parts])
    numbers = 2 if form.shift in ("zero", "offset") else 1
    nbytes = high * length * form.bits // 8 + 2 * numbers * high * sum(part.groups for part in parts)
    buffer = soc.buffer(name, nbytes) if over is None else over.buffer
    if codes is None:
        return PackedWeights(columns, inner, group, buffer, nbytes, parts, at=at)

    def of_columns(values: Array) -> tuple[Array, ...]:
        spans = [slice(part.first, part.first + part.groups) for part in parts]
        return tuple(packing.by_columns(values[:, span], how.columns) for span in spans)

    packed = tuple(
        packing.pack_weights(codes.codes, how.unit, how.columns, part, form.bits, form.layout) for part in parts
    )
    stored = {"zero": codes.zero, "offset": codes.offset}.get(form.shift)
    shift = None if stored is None else of_columns(stored)
    return PackedWeights(columns, inner, group, buffer, nbytes, parts, packed, of_columns(codes.scale), shift, at)
