"""y = x W^T of 8-bit rows and packed weights: micro-kernels over all tiles, panels of columns shared out to cores."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from meshrt.arm.cache import pieces
from meshrt.arm.core import ArmCore, Team, run
from meshrt.arm.device import ArmDevice
from meshrt.arm.isa import OPERATIONS
from meshrt.arm.soc import Soc
from meshrt.programs.arm.layout import STEP, block
from meshrt.programs.arm.products import packing
from meshrt.programs.arm.products.inputs import CodedRows, tile_pieces
from meshrt.programs.arm.products.kernels import integer_kernel
from meshrt.programs.arm.products.planes import SHIFTS
from meshrt.programs.arm.products.weights import PackedWeights, ProductMethod, panels_of
from meshrt.programs.arm.split import Split, SplitWork, equal, share_out
from meshrt.programs.arm.tiles import row_tiles

Array = np.ndarray


def shares_of(soc: Soc, x: CodedRows, weights: PackedWeights, how: ProductMethod, split: Split) -> list[Sequence[int]]:
    """The panels of each core. What one takes is found on a core of each kind, by shape, and not counted."""
    units = panels_of(weights.columns, how)
    if split == "equal" or soc.count == 1:
        return equal(units, soc.count)
    device, cores = soc.device, soc.device.cores[: soc.count]
    shape = replace(weights, buffer=-1, codes=None, scale=None, shift=None)
    seconds = {cluster: _trial(device, cores.index(cluster), x.count, shape, how) for cluster in cores}
    intensity = 2 * x.count * x.inner * weights.columns / (weights.nbytes + x.count * (x.inner + 4 * weights.columns))
    most = device.peak(OPERATIONS[how.unit.name].operations, soc.count) / device.bus_bytes_per_second
    return share_out(split, SplitWork(
        units, tuple(seconds[cluster] for cluster in cores), weights.nbytes / units,
        tuple(cluster.bytes_per_second for cluster in cores), device.bus_bytes_per_second,
        intense=intensity >= most,
    ))  # fmt: skip


@lru_cache(1024)
def _trial(device: ArmDevice, index: int, rows: int, weights: PackedWeights, how: ProductMethod) -> float:
    """Seconds that a core computes on a panel more, once it has the inputs."""
    heights = tuple(row_tiles(rows, how.rows))
    x, core, took = CodedRows(rows, weights.inner, -1, heights), ArmCore(device, index, payload=False, spill=True), []
    for panels in (range(1), range(1, 2)):
        core.begin()
        compute([(core, panels)], x, weights, how, -2)
        took.append(core.end().seconds)
    return took[1]


def product(
    soc: Soc, x: CodedRows, weights: PackedWeights, how: ProductMethod, shares: Sequence[Sequence[int]], y: int
) -> Array | None:
    """x W^T float32 [rows, columns], to buffer y; None by shape. Which core computes a panel changes no bit."""

    parts = soc.parallel(shares, lambda team: compute(team, x, weights, how, y))
    if x.codes is None:
        return None
    whole = np.empty((x.count, panels_of(weights.columns, how), how.columns), np.float32)
    for panels, part in parts:
        whole[:, panels] = part
    return np.ascontiguousarray(whole.reshape(x.count, -1)[:, : weights.columns])


def compute(team: Team, x: CodedRows, weights: PackedWeights, how: ProductMethod, y: int) -> Array | None:
    """The team's panels of the result, float32 [rows, panels, columns of a panel]."""
    tiles, panels = x.heights, [panel for _, units in team for panel in units]
    for core, units in team:
        touch(core, x, weights, how, units, y)
    out = None if x.codes is None else np.empty((x.count, len(panels), how.columns), np.float32)
    begin = 0
    for rows in dict.fromkeys(tiles):
        count = tiles.count(rows)
        span = slice(begin, begin + rows * count)
        begin += rows * count
        block = _tiles(team, x, weights, how, rows, count, span)
        if out is not None and block is not None:
            out[span] = block
    return out


def _tiles(
    team: Team, x: CodedRows, weights: PackedWeights, how: ProductMethod, rows: int, count: int, span: slice
) -> Array | None:
    """All micro-tiles of one height: float32 [rows * count, panels, columns]."""
    panels = [panel for _, units in team for panel in units]
    y = None if x.codes is None else np.zeros((count, len(panels), 1, 1, 4 * rows * how.columns), np.uint8)
    real = [sum(min(how.columns, weights.columns - panel * how.columns) for panel in units) for _, units in team]
    for at, groups, first, last in _turns(weights):
        kernel, part = integer_kernel(how.unit, rows, how.columns, how.form, first, last), weights.parts[at]
        streams = {} if y is None else _streams(x, weights, how, panels, rows, span, at, groups) | {"y": y}
        useful = [2 * rows * count * columns * part.length * len(groups) for columns in real]
        run(team, kernel, (count, len(panels), len(groups)), 1, part.steps, streams, useful)
    if y is None:
        return None
    tiles = y.view(np.float32).reshape(count, len(panels), rows, how.columns)
    return tiles.transpose(0, 2, 1, 3).reshape(rows * count, len(panels), how.columns)


def _turns(weights: PackedWeights) -> Iterator[tuple[int, range, bool, bool]]:
    """Groups in order, those together that have one kernel: of which part, which of its, with the first? the last?"""
    end = len(weights.parts) - 1
    for at, part in enumerate(weights.parts):
        begin, stop = int(at == 0), part.groups - (at == end)
        if begin and stop == 0:
            yield at, range(1), True, True
            continue
        if begin:
            yield at, range(1), True, False
        if begin < stop:
            yield at, range(begin, stop), False, False
        if at == end:
            yield at, range(stop, stop + 1), False, True


def _streams(
    x: CodedRows,
    weights: PackedWeights,
    how: ProductMethod,
    panels: Sequence[int],
    rows: int,
    span: slice,
    at: int,
    groups: range,
) -> dict[str, Array]:
    """What the pointers of a kernel walk over, for these tiles and groups: [tiles, panels, groups, steps, bytes]."""
    assert x.codes is not None and x.scale is not None and x.totals is not None
    assert weights.codes is not None and weights.scale is not None
    part, mine, within = weights.parts[at], [*panels], slice(groups.start, groups.stop)
    those = slice(part.first + groups.start, part.first + groups.stop)  # of all groups of a row
    row_scale = x.scale[span, those] if how.form.blocks else x.scale[span]
    streams = {
        "w": weights.codes[at][mine][None, :, within],
        "x": packing.pack_inputs(x.codes[span], how.unit, rows, part, weights.group)[:, None, within],
        "scale": weights.scale[at][mine][None, :, within, None],
        "row_scale": packing.by_rows(row_scale, rows)[:, None, :, None],
        "total": packing.by_rows(x.totals[span, those].astype(np.float32), rows)[:, None, :, None],
    }
    if how.form.bits not in (4, 8):
        streams["bits"] = streams["w"][..., how.columns * STEP * (how.form.bits & ~1) // 8 :]
        streams["shifts"] = SHIFTS.reshape(1, 1, 1, 1, 16)
    if weights.shift is not None:
        streams[how.form.shift] = weights.shift[at][mine][None, :, within, None]
    return streams


def touch(
    core: ArmCore, x: CodedRows, weights: PackedWeights, how: ProductMethod, panels: Sequence[int], y: int
) -> None:
    """What a core's loop over tiles reads and writes, in its order."""
    tiles = x.heights
    real = sum(min(how.columns, weights.columns - panel * how.columns) for panel in panels)
    core.counts["product_numbers"] += x.count * (real + (x.inner if 0 in panels else 0))
    core.counts["product_weight_bytes"] += len(panels) * (weights.nbytes // panels_of(weights.columns, how))
    panel_bytes = weights.nbytes // panels_of(weights.columns, how)
    inputs = [tile_pieces(x.buffer, at, rows, x.inner) for at, rows in enumerate(tiles)]
    columns = {panel: pieces(weights.buffer, panel, panel_bytes) for panel in panels}
    order = [(tile, panel) for panel in panels for tile in range(len(tiles))]
    if how.order == "rows":
        order = [(tile, panel) for tile in range(len(tiles)) for panel in panels]
    for tile, panel in order:
        core.caches.read(columns[panel])
        core.caches.read(inputs[tile])
        begin = weights.at + panel * how.columns
        core.caches.write(block(y, tiles, (tile,), range(begin, begin + how.columns)))
