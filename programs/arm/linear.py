"""y = x W^T of 8-bit rows and packed weights: micro-kernels over all tiles, panels of columns shared out to cores."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Literal

import numpy as np

from meshrt.arm.cache import pieces
from meshrt.arm.core import ArmCore
from meshrt.arm.device import ArmDevice
from meshrt.arm.isa import OPERATIONS
from meshrt.arm.soc import Soc
from meshrt.errors import UsageError
from meshrt.models.quantize.codes import Codes
from meshrt.programs.arm import packing
from meshrt.programs.arm.inputs import Rows, tile_pieces
from meshrt.programs.arm.kernels import ZERO, integer_kernel
from meshrt.programs.arm.packing import Part
from meshrt.programs.arm.split import Split, Work, equal, share_out
from meshrt.programs.arm.tiles import UNITS, Unit, parse_tile, plan, row_tiles

Array = np.ndarray
Order = Literal["columns", "rows"]
PANEL = 8  # columns of a tile are a multiple of


@dataclass(frozen=True)
class How:
    """How products are computed: the unit, the tile, how four bits lie and are unpacked, and the outer loop."""

    unit: Unit
    rows: int
    columns: int
    layout: str = "planes"
    signed: bool = False
    order: Order = "columns"


@dataclass(frozen=True)
class Packed:
    """W [columns, inner] in DRAM, `groups` of `group` weights each a row; the arrays are of its parts, None by shape.

    `codes` [panels, groups, steps, bytes], `scale` and `zero` [panels, groups, bytes] in float16.
    """

    columns: int
    inner: int
    group: int
    bits: int
    buffer: int
    nbytes: int
    parts: tuple[Part, ...]
    codes: tuple[Array, ...] | None = None
    scale: tuple[Array, ...] | None = None
    zero: tuple[Array, ...] | None = None


def choose(soc: Soc, bits: int, unit: str | None, tile: str | None, layout: str, signed: bool, order: Order) -> How:
    """The best unit that the cores have, and its best tile, unless others are asked for. UsageError."""
    if unit is None:
        unit = next((name for name in ("smmla", "sdot") if UNITS[name].needs in soc.device.isa), None)
        if unit is None:
            raise UsageError(f"device {soc.device.name} has neither i8mm nor dotprod, which products of codes need")
    found = UNITS[unit]
    if tile is None:
        more = (layout == "pairs") + signed if bits == 4 else 0  # registers to unpack with
        best = plan(found, soc.device.registers - more, bits)
        rows, columns = best.rows, best.columns
    else:
        rows, columns = parse_tile(tile)
    if rows % found.together or columns % PANEL or columns & (columns - 1):
        raise UsageError(
            f"--tile {rows}x{columns} is none of {unit}: rows are a multiple of {found.together}, columns {PANEL}, 16,"
            " 32 and so on"
        )
    return How(found, rows, columns, layout, signed, order)


def place(
    soc: Soc, how: How, name: str, columns: int, inner: int, group: int, bits: int, codes: Codes | None
) -> Packed:
    """A matrix in DRAM, packed for the unit; by shape without its codes. LimitError."""
    parts = tuple(packing.parts_of(inner, group))
    high, length = packing.padded(columns, how.columns, [*parts])
    groups = sum(part.groups for part in parts)
    numbers = 1 if how.signed and bits == 4 else 2
    nbytes = high * length * bits // 8 + 2 * numbers * high * groups
    packed = Packed(columns, inner, group, bits, soc.buffer(name, nbytes), nbytes, parts)
    if codes is None:
        return packed
    zero = np.full_like(codes.scale, 2 ** (bits - 1)) if codes.zero is None else codes.zero
    whole = codes.codes
    if bits == 8:
        whole, zero = whole ^ np.uint8(128), zero - np.float16(128)  # to int8, which is what is multiplied
    if how.signed and (zero != ZERO).any():
        raise UsageError("--signed takes half of the codes off in the loop: weights have to be --symmetric, of 4 bits")

    def of_columns(values: Array) -> tuple[Array, ...]:
        spans = [slice(part.first, part.first + part.groups) for part in parts]
        return tuple(packing.by_columns(values[:, span], how.columns, 8 * ceil(how.columns / 8)) for span in spans)

    packs = tuple(packing.pack_weights(whole, how.unit, how.columns, part, bits, how.layout) for part in parts)
    return Packed(
        columns, inner, group, bits, packed.buffer, nbytes, parts, packs, of_columns(codes.scale), of_columns(zero)
    )


def shares_of(soc: Soc, x: Rows, weights: Packed, how: How, split: Split) -> list[Sequence[int]]:
    """The panels of each core. What one takes is found on a core of each kind, by shape, and not counted."""
    units = panels_of(weights, how)
    if split == "equal" or soc.count == 1:
        return equal(units, soc.count)
    device, cores = soc.device, soc.device.cores[: soc.count]
    shape = replace(weights, buffer=-1, codes=None, scale=None, zero=None)
    seconds = {cluster: _trial(device, cores.index(cluster), x.count, shape, how) for cluster in cores}
    intensity = 2 * x.count * x.inner * weights.columns / (weights.nbytes + x.count * (x.inner + 4 * weights.columns))
    most = device.peak(OPERATIONS[how.unit.name].operations, soc.count) / device.bus_bytes_per_second
    return share_out(split, Work(
        units, tuple(seconds[cluster] for cluster in cores), weights.nbytes / units,
        tuple(cluster.bytes_per_second for cluster in cores), device.bus_bytes_per_second,
        intense=intensity >= most,
    ))  # fmt: skip


@lru_cache(1024)
def _trial(device: ArmDevice, index: int, rows: int, weights: Packed, how: How) -> float:
    """Seconds that a core computes on a panel more, once it has the inputs."""
    x, core, took = Rows(rows, weights.inner, -1), ArmCore(device, index, payload=False, spill=True), []
    for panels in (range(1), range(1, 2)):
        core.begin()
        compute(core, x, weights, how, panels, -2)
        took.append(core.end().seconds)
    return took[1]


def panels_of(weights: Packed, how: How) -> int:
    """Panels of columns: the units that cores share out."""
    return ceil(weights.columns / how.columns)


def product(soc: Soc, x: Rows, weights: Packed, how: How, shares: Sequence[Sequence[int]], y: int) -> Array | None:
    """x W^T float32 [rows, columns], to buffer y; None by shape. Which core computes a panel changes no bit."""

    def work(core: ArmCore, panels: Sequence[int]) -> Array | None:
        return compute(core, x, weights, how, panels, y)

    found = soc.parallel(shares, work)
    if x.codes is None:
        return None
    whole = np.empty((x.count, panels_of(weights, how), how.columns), np.float32)
    for panels, part in zip(shares, found, strict=True):
        if part is not None:
            whole[:, [*panels]] = part
    return np.ascontiguousarray(whole.reshape(x.count, -1)[:, : weights.columns])


def compute(core: ArmCore, x: Rows, weights: Packed, how: How, panels: Sequence[int], y: int) -> Array | None:
    """These panels of the result, float32 [rows, panels, columns of a panel]."""
    tiles = row_tiles(x.count, how.rows)
    touch(core, x, weights, how, panels, tiles, y)
    out = None if x.codes is None else np.empty((x.count, len(panels), how.columns), np.float32)
    begin = 0
    for rows in dict.fromkeys(tiles):
        count = tiles.count(rows)
        span = slice(begin, begin + rows * count)
        begin += rows * count
        block = _tiles(core, x, weights, how, panels, rows, count, span)
        if out is not None and block is not None:
            out[span] = block
    return out


def _tiles(
    core: ArmCore, x: Rows, weights: Packed, how: How, panels: Sequence[int], rows: int, count: int, span: slice
) -> Array | None:
    """All micro-tiles of one height: float32 [rows * count, panels, columns]."""
    y = None if x.codes is None else np.zeros((count, len(panels), 1, 1, 4 * rows * how.columns), np.uint8)
    real = sum(min(how.columns, weights.columns - panel * how.columns) for panel in panels)
    for at, part in enumerate(weights.parts):
        groups = [slice(0, 1), slice(1, part.groups)] if part.first == 0 else [slice(0, part.groups)]
        for some in groups:
            if some.start == some.stop:
                continue
            first = part.first + some.start == 0
            kernel = integer_kernel(how.unit, rows, how.columns, weights.bits, how.layout, how.signed, first)
            streams = {}
            if y is not None:
                streams = _streams(x, weights, how, panels, rows, span, at, some) | {"y": y}
            numbers = some.stop - some.start
            useful = 2 * rows * count * real * part.length * numbers
            core.run(kernel, (count, len(panels), numbers), part.steps, streams, useful)
    if y is None:
        return None
    tiles = y.view(np.float32).reshape(count, len(panels), rows, how.columns)
    return tiles.transpose(0, 2, 1, 3).reshape(rows * count, len(panels), how.columns)


def _streams(
    x: Rows, weights: Packed, how: How, panels: Sequence[int], rows: int, span: slice, at: int, some: slice
) -> dict[str, Array]:
    """What the pointers of a kernel walk over, for these tiles and groups: [tiles, panels, groups, steps, bytes]."""
    assert x.codes is not None and x.scale is not None and x.totals is not None
    assert weights.codes is not None and weights.scale is not None and weights.zero is not None
    part, mine = weights.parts[at], [*panels]
    inputs = packing.pack_inputs(x.codes[span], how.unit, rows, part, weights.group)
    totals = x.totals[span, part.first : part.first + part.groups].astype(np.float32)
    return {
        "w": weights.codes[at][mine][None, :, some],
        "x": inputs[:, None, some],
        "scale": weights.scale[at][mine][None, :, some, None],
        "zero": weights.zero[at][mine][None, :, some, None],
        "row_scale": packing.by_rows(x.scale[span, None], rows)[:, None, :, None],
        "total": packing.by_rows(totals, rows)[:, None, some, None],
    }


def touch(
    core: ArmCore, x: Rows, weights: Packed, how: How, panels: Sequence[int], tiles: Sequence[int], y: int
) -> None:
    """What the loop over tiles reads and writes, in its order."""
    panel_bytes = weights.nbytes // panels_of(weights, how)
    inputs = [tile_pieces(x.buffer, at, rows, x.inner) for at, rows in enumerate(tiles)]
    columns = {panel: pieces(weights.buffer, panel, panel_bytes) for panel in panels}
    places = [(tile, panel) for panel in panels for tile in range(len(tiles))]
    if how.order == "rows":
        places = [(tile, panel) for tile in range(len(tiles)) for panel in panels]
    width = panels_of(weights, how)
    for tile, panel in places:
        core.caches.read(columns[panel])
        core.caches.read(inputs[tile])
        core.caches.write(pieces(y, tile * width + panel, 4 * tiles[tile] * how.columns))
