"""Products of the tiles of all cores. For small tiles BLAS, called for each, spends most of its time on the call.

The compiled core (products.c) then makes the same numbers: in which way is found out by comparing them with BLAS's,
once for each size. Where none is the same, as where BLAS sums in another order, BLAS it is. Tiles of 16 bits it reads
as they lie, where NumPy makes a copy in float32 first; so larger ones gain as well.
"""

from collections.abc import Callable, Iterator
from functools import cache
from math import prod
from typing import Any, TypeAlias

import numpy as np

from meshrt.records import dataclass

SMALL = 128  # multiply-accumulates; for larger tiles BLAS takes less time
BROAD = 4096  # the same for tiles by row, with columns for whole vectors
VECTOR = 8  # numbers
BAND = 1 << 18  # numbers that are made float32 at a time: 1 MiB
BAND_MADE = 1 << 16  # that are made of codes at a time
SMALL_16 = 1024  # the same where the second factor is of 16 bits
FEW = 8  # tiles, for which it does not pay to find out
TRIED = 64
KINDS = {"float16": 1, "bfloat16": 2}  # of the second factor, as products.c has them; 0 is float32
Way: TypeAlias = bool | bytes  # one rounding a step, or two; bytes: one, and which rows sum even and odd steps apart
Some: TypeAlias = tuple[slice, slice]  # of a block's cores


@dataclass(frozen=True, eq=False)
class Made:
    """A second factor [bh, bw, .., k, n] whose tiles are made as they are multiplied, those of some cores at a time, so
    that they stay in the cache. `make` has them of cores, as numbers of that dtype or as the same in float32.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    make: Callable[[Some], np.ndarray]

    def bands(self) -> Iterator[tuple[Some, np.ndarray]]:
        height, width = self.shape[:2]
        fit = max(1, BAND_MADE // max(1, prod(self.shape[2:])))  # cores
        rows, columns = max(1, fit // width), min(fit, width)
        for y in range(0, height, rows):
            for x in range(0, width, columns):
                cores = slice(y, y + rows), slice(x, x + columns)
                yield cores, self.make(cores)


def product(core: Any, a: np.ndarray, b: np.ndarray | Made, total: np.ndarray | None = None) -> np.ndarray:
    """a @ b of numbers [.., m, k] and [.., k, n], in float32, or the total [.., m, n] with that added to it."""
    if isinstance(b, Made):
        leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        out = np.empty((*leading, a.shape[-2], b.shape[-1]), np.float32) if total is None else total
        for cores, tiles in b.bands():
            if total is None:
                out[cores] = product(core, a[cores], tiles)
            else:
                product(core, a[cores], tiles, out[cores])
        return out
    a = a.astype(np.float32, copy=False)
    kind = _kind(b.dtype) if b.itemsize == 2 else 0
    if not kind:
        b = b.astype(np.float32, copy=False)
    fused = _way(core, a, b)
    if fused is not None and (total is None or _apart(total, a, b)):
        c: np.ndarray = np.empty((*a.shape[:-1], b.shape[-1]), np.float32) if total is None else total
        apart = (fused,) if isinstance(fused, bytes) else ()
        if core.multiply(a, b.view(np.uint16) if kind else b, c, fused is not False, total is not None, kind, *apart):
            return c
    c = _by_blas(a, b)
    if total is None:
        return c
    total += c
    return total


@cache
def _kind(dtype: np.dtype[Any]) -> int:
    """As products.c has it. NumPy makes the name anew each time."""
    return KINDS.get(dtype.name, 0)


def _by_blas(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """BLAS's a @ b. Of 16 bits, the copy of b in float32 is of some rows of cores at a time, and stays in the cache."""
    rows = max(1, BAND // max(1, b[:1].size))
    if b.dtype == np.float32 or not 3 <= a.ndim == b.ndim or not rows < len(a) == len(b):
        return np.asarray(np.matmul(a, b.astype(np.float32, copy=False)))
    leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    c = np.empty((*leading, a.shape[-2], b.shape[-1]), np.float32)
    for low in range(0, len(b), rows):
        np.matmul(a[low : low + rows], b[low : low + rows].astype(np.float32), out=c[low : low + rows])
    return c


def _way(core: Any, a: np.ndarray, b: np.ndarray) -> Way | None:
    """How the compiled core makes BLAS's numbers; None where it does not, or is not there."""
    m, k, n = *a.shape[-2:], b.shape[-1]
    most = SMALL_16 if b.itemsize == 2 else SMALL if n % VECTOR else BROAD
    if core is None or m * k * n > most or not 3 <= a.ndim == b.ndim <= 8 or a.shape[:-2] != b.shape[:-2]:
        return None
    if prod(a.shape[:-2]) < FEW:
        return None
    turned = tuple(_turned(tiles) for tiles in (a, b))
    if None in turned or not prod(a.shape):
        return None
    if b.itemsize == 2 or m * k * n <= SMALL:
        return _found(core, m, k, n, *turned)
    return None if any(turned) else _found(core, m, k, n, False, False, True)


def _apart(total: np.ndarray, a: np.ndarray, b: np.ndarray) -> bool:
    """Can sums be put there before all are made?"""
    shape = *a.shape[:-1], b.shape[-1]
    shares = np.may_share_memory(total, a) or np.may_share_memory(total, b)
    return total.shape == shape and total.dtype == np.float32 and not shares


def _turned(tiles: np.ndarray) -> bool | None:
    """Do the tiles lie in memory by column? None: neither so nor by row, which BLAS gets a copy of."""
    (rows, columns), (down, along), size = tiles.shape[-2:], tiles.strides[-2:], tiles.itemsize
    if (along == size or columns == 1) and (down == columns * size or rows == 1):
        return False
    return True if (down == size or rows == 1) and (along == rows * size or columns == 1) else None


@cache
def _found(core: Any, m: int, k: int, n: int, a_turned: bool, b_turned: bool, broad: bool = False) -> Way | None:
    """Tried on numbers of many sizes, zeros of both signs among them; `broad`: of tiles by row, which rows sum so."""
    a, b = (_numbers(*size) for size in ((m, k, a_turned), (k, n, b_turned)))
    c, expected = np.empty((TRIED, m, n), np.float32), np.matmul(a, b)
    if not broad:
        for fused in (True, False):
            if core.multiply(a, b, c, fused, False, 0) and c.tobytes() == expected.tobytes():
                return fused
        return None
    alike = []
    for apart in (b"\0", b"\1"):
        if not core.multiply(a, b, c, True, False, 0, apart * m):
            return None
        alike.append((c.view(np.uint32) == expected.view(np.uint32)).all(axis=(0, 2)))
    return bytes(~alike[0]) if (alike[0] | alike[1]).all() else None


def _numbers(rows: int, columns: int, turned: bool) -> np.ndarray:
    count = TRIED * rows * columns
    at = np.arange(1, count + 1)
    numbers: np.ndarray = (np.sin(at * 1.7) * np.exp(3 * np.sin(at * 0.37)) * (at % 11 > 0)).astype(np.float32)
    numbers[::7] *= -1
    if turned:
        return numbers.reshape(TRIED, columns, rows).swapaxes(1, 2)
    return numbers.reshape(TRIED, rows, columns)
