"""Activations as 8-bit rows: abs-max over a row, at run time (W4A8 on Arm, section IV.C)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from meshrt.arm.cache import Pieces, pieces
from meshrt.arm.core import ArmCore
from meshrt.arm.kernel import vectors
from meshrt.arm.soc import Soc
from meshrt.models.errors import ModelError
from meshrt.programs.arm.split import equal
from meshrt.programs.arm.tiles import row_tiles

Array = np.ndarray
MOST = 127  # and never -128
# Of 16 numbers: their largest (a pass of its own), then divided, rounded, narrowed, added up and stored.
QUANTIZE = vectors(loads=8, stores=1, fabs=4, fmax=4, fdiv=4, fcvtns=4, sqxtn=3, sqxtn2=3, saddlp=1, sadalp=1)
OF_A_SCALE = vectors(stores=1, fmaxv=1, fdiv=1)


@dataclass(frozen=True)
class Rows:
    """x [rows, inner] as codes int8 times `scale` [rows, 1 or groups]; `totals` [rows, groups] are sums of codes.

    Arrays are None by shape.
    """

    count: int
    inner: int
    buffer: int
    codes: Array | None = None
    scale: Array | None = None
    totals: Array | None = None


def quantize_rows(x: Array, group: int, blocks: bool) -> tuple[Array, Array, Array]:
    """float32 [rows, inner] -> codes int8, their scale float32 [rows, 1 or groups], totals int32 [rows, groups].

    By the largest magnitude, to nearest with halves to even, of a row or of each of its groups; that of zeros is 1.
    """
    begins = range(0, x.shape[1], group)
    most = np.maximum.reduceat(np.abs(x), begins if blocks else [0], axis=1)
    if not np.isfinite(most).all():
        raise ModelError("activations are NaN or infinite; they cannot be put into 8 bits")
    scale = np.where(most > 0, most / np.float32(MOST), np.float32(1)).astype(np.float32)
    wide = np.repeat(scale, group, axis=1)[:, : x.shape[1]] if blocks else scale
    codes = np.clip(np.rint(x / wide), -MOST, MOST).astype(np.int8)
    return codes, scale, np.add.reduceat(codes, begins, axis=1, dtype=np.int32)


def tile_pieces(buffer: int, tile: int, rows: int, inner: int) -> Pieces:
    """Where the codes of a tile lie, with a scale and a total for each row."""
    return pieces(buffer, tile, rows * (inner + 8))


def quantized(
    soc: Soc, x: Array | None, shape: tuple[int, int], group: int, high: int, source: int, target: int, blocks: bool
) -> Rows:
    """x [rows, inner] as codes, by all cores, some tiles of `high` rows each: from buffer `source` to `target`.

    `blocks`: with a scale for each group of the weights, else for each row.
    """
    count, inner = shape
    ends = [0, *accumulate(row_tiles(count, high))]

    def work(core: ArmCore, tiles: Sequence[int]) -> tuple[Array, Array, Array] | None:
        mine = range(ends[tiles[0]], ends[tiles[-1] + 1])
        core.issue(QUANTIZE, len(mine) * -(-inner // 16))
        core.issue(OF_A_SCALE, len(mine) * (-(-inner // group) if blocks else 1))
        for row in mine:
            core.caches.read(pieces(source, row, 4 * inner))
        for tile in tiles:
            core.caches.write(tile_pieces(target, tile, ends[tile + 1] - ends[tile], inner))
        return None if x is None else quantize_rows(x[mine.start : mine.stop], group, blocks)

    found = [part for part in soc.parallel(equal(len(ends) - 1, soc.count), work) if part is not None]
    if x is None:
        return Rows(count, inner, target)
    codes, scale, totals = (np.concatenate([part[at] for part in found]) for at in range(3))
    return Rows(count, inner, target, codes, scale, totals)
