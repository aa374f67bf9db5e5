"""Activations as 8-bit rows: abs-max over a row, at run time (W4A8 on Arm, section IV.C)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from meshrt.arm.cache import Pieces, pieces
from meshrt.arm.core import ArmCore
from meshrt.arm.kernel import vectors
from meshrt.arm.soc import Soc
from meshrt.programs.arm.split import equal
from meshrt.programs.arm.tiles import row_tiles

Array = np.ndarray
MOST = 127  # and never -128
# Of 16 numbers: their largest (a pass of its own), then divided, rounded, narrowed, added up and stored.
QUANTIZE = vectors(loads=8, stores=1, fabs=4, fmax=4, fdiv=4, fcvtns=4, sqxtn=3, sqxtn2=3, saddlp=1, sadalp=1)
OF_A_ROW = vectors(stores=1, fmaxv=1, fdiv=1)


@dataclass(frozen=True)
class Rows:
    """x [rows, inner] as codes int8 times a scale a row; `totals` [rows, groups] are sums of codes. None by shape."""

    count: int
    inner: int
    buffer: int
    codes: Array | None = None
    scale: Array | None = None
    totals: Array | None = None


def quantize_rows(x: Array, group: int) -> tuple[Array, Array, Array]:
    """float32 [rows, inner] -> codes int8, scale float32 [rows], totals int32 [rows, groups]."""
    most = np.abs(x).max(axis=1, initial=0)
    scale = np.where(most > 0, most / np.float32(MOST), np.float32(1)).astype(np.float32)
    codes = np.rint(x / scale[:, None]).astype(np.int8)
    totals = np.add.reduceat(codes.astype(np.int32), range(0, x.shape[1], group), axis=1)
    return codes, scale, totals


def tile_pieces(buffer: int, tile: int, rows: int, inner: int) -> Pieces:
    """Where the codes of a tile lie, with a scale and a total for each row."""
    return pieces(buffer, tile, rows * (inner + 8))


def quantized(
    soc: Soc, x: Array | None, count: int, inner: int, group: int, high: int, source: int, target: int
) -> Rows:  # fmt: skip
    """x [count, inner] as codes, by all cores, some tiles of `high` rows each: from buffer `source` to `target`."""
    ends = [0, *accumulate(row_tiles(count, high))]

    def work(core: ArmCore, tiles: Sequence[int]) -> tuple[Array, Array, Array] | None:
        mine = range(ends[tiles[0]], ends[tiles[-1] + 1])
        core.issue(QUANTIZE, len(mine) * -(-inner // 16))
        core.issue(OF_A_ROW, len(mine))
        for row in mine:
            core.caches.read(pieces(source, row, 4 * inner))
        for tile in tiles:
            core.caches.write(tile_pieces(target, tile, ends[tile + 1] - ends[tile], inner))
        return None if x is None else quantize_rows(x[mine.start : mine.stop], group)

    found = [part for part in soc.parallel(equal(len(ends) - 1, soc.count), work) if part is not None]
    if x is None:
        return Rows(count, inner, target)
    codes, scale, totals = (np.concatenate([part[at] for part in found]) for at in range(3))
    return Rows(count, inner, target, codes, scale, totals)
