"""Activations as 8-bit rows: abs-max over a row, at run time (W4A8 on Arm, section IV.C), after what comes before."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from meshrt.arm.cache import CachePieces, pieces
from meshrt.arm.core import ArmCore, Team
from meshrt.arm.soc import Soc
from meshrt.programs.arm.layout import block, covering
from meshrt.programs.arm.simd.eightbits import rounded, scales
from meshrt.programs.arm.split import equal
from meshrt.programs.arm.tiles import row_tiles
from meshrt.records import dataclass

Array = np.ndarray


@dataclass(frozen=True)
class CodedRows:
    """x [rows, inner] as codes int8 times `scale` [rows, 1 or groups]; `totals` [rows, groups] are sums of codes.

    Arrays are None by shape. `heights`: rows of each micro-tile.
    """

    count: int
    inner: int
    buffer: int
    heights: tuple[int, ...]
    codes: Array | None = None
    scale: Array | None = None
    totals: Array | None = None


@dataclass(frozen=True)
class RowSource:
    """What is done with rows before they become codes.

    `before`: by a team whose units are rows, all that comes before: what stays of them, if anything, and what becomes
    codes; None by shape. `reads`, `writes`: buffers of float32, and columns of them.
    """

    before: Callable[[Team], tuple[Array | None, Array | None]]
    reads: tuple[tuple[int, range], ...]
    writes: tuple[tuple[int, range], ...] = ()
    of: int | None = None  # rows of the buffers, whose last ones these are; None: they are all
    picked: tuple[int, ...] | None = None  # which of them these are, if not the last ones

    def touched(self, heights: Sequence[int], count: int, rows: range) -> Sequence[int]:
        """The tiles of the buffers, of such heights, that some of the `count` rows are in."""
        if self.picked is None:
            first = (self.of or count) - count
            return covering(heights, first + rows.start, first + rows.stop)
        ends = [*accumulate(heights)]
        return sorted({bisect_right(ends, row) for row in self.picked[rows.start : rows.stop]})


def span_of(team: Team) -> slice:
    """The rows of a team's cores, which lie one after the other."""
    return slice(team[0][1][0], team[-1][1][-1] + 1)


def tile_pieces(buffer: int, tile: int, rows: int, inner: int) -> CachePieces:
    """Where the codes of a tile lie, with a scale and a total for each row."""
    return pieces(buffer, tile, rows * (inner + 8))


def quantized(
    soc: Soc, source: RowSource, shape: tuple[int, int], group: int, high: int, target: int, blocks: bool
) -> tuple[CodedRows, Array | None]:
    """Rows [rows, inner] as codes in buffer `target`, and what stays; by all cores, some tiles of `high` rows each.

    `group`: inputs whose codes have a total; `blocks`: and a scale of their own.
    """
    count, inner = shape
    heights, of = tuple(row_tiles(count, high)), source.of or count
    ends = [0, *accumulate(heights)]
    source_heights = row_tiles(of, high)

    def touch(core: ArmCore, tiles: Sequence[int], rows: range) -> None:
        touched = source.touched(source_heights, count, rows)
        for buffer, columns in source.reads:
            core.caches.read(block(buffer, source_heights, touched, columns))
        for buffer, columns in source.writes:
            core.caches.write(block(buffer, source_heights, touched, columns))
        for tile in tiles:
            core.caches.write(tile_pieces(target, tile, heights[tile], inner))

    def work(team: Team) -> tuple[Array | None, ...] | None:
        by_rows = [(core, range(ends[tiles[0]], ends[tiles[-1] + 1])) for core, tiles in team]
        for (core, tiles), (_, rows) in zip(team, by_rows, strict=True):
            touch(core, tiles, rows)
        stays, numbers = source.before(by_rows)
        scale = scales(by_rows, numbers, inner, group if blocks else inner)
        codes, totals = rounded(by_rows, numbers, scale, inner, group)
        return None if codes is None else (stays, codes, scale, totals)

    parts = [part for _, part in soc.parallel(equal(len(heights), soc.count), work) if part is not None]
    if not parts:
        return CodedRows(count, inner, target, heights), None
    stays, codes, scale, totals = (
        None if parts[0][at] is None else np.concatenate([part[at] for part in parts]) for at in range(4)
    )
    return CodedRows(count, inner, target, heights, codes, scale, totals), stays
