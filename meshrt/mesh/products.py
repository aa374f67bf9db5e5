"""Products of the tiles of all cores. For small tiles BLAS, called for each, spends most of its time on the call.

The compiled core (products.c) then makes the same numbers: in which way is found out by comparing them with BLAS's,
once for each size. Where none is the same, as where BLAS sums in another order, BLAS it is. Tiles of 16 bits it reads
as they lie, where NumPy makes a copy in float32 first; so larger ones gain as well. Where BLAS is to have that copy,
the core makes it.
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
SMALL_16 = 1024  # the same where the second factor is of 16 bits
VECTORS = 4096  # the same of a vector and tiles of float32
VECTORS_16 = 1 << 18  # and of 16 bits, which BLAS would get a copy of
BAND = 1 << 18  # numbers that NumPy makes float32 at a time: 1 MiB
BAND_MADE = 1 << 16  # that the core makes so, or that are made of codes, at a time
FEW = 8  # tiles, for which it does not pay to find out
TRIED = 64  # tiles, or more, so that there are
TRIED_SUMS = 1024
LAST = 7  # steps
FURTHER = 17  # places in memory from one tile that is tried to the next
SCATTER = 2654435761  # 2**32 over the golden ratio: its multiples lie evenly
KINDS = {"float16": 1, "bfloat16": 2}  # of the second factor, as products.c has them; 0 is float32
TWO_ROUNDINGS, ONE_ROUNDING, AS_VECTORS, AS_WIDE_VECTORS = range(4)  # the orders of products.c
Way: TypeAlias = int | bytes  # one of them; bytes: one rounding, and which rows sum even and odd steps apart
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
        for cores in _bands(self.shape, BAND_MADE):
            yield cores, self.make(cores)


def _bands(shape: tuple[int, ...], numbers: int) -> Iterator[Some]:
    """Cores of a block [bh, bw, ..] whose tiles have no more numbers than these, or one core."""
    height, width = shape[:2]
    fit = max(1, numbers // max(1, prod(shape[2:])))  # cores
    rows, columns = max(1, fit // width), min(fit, width)
    for y in range(0, height, rows):
        for x in range(0, width, columns):
            yield slice(y, y + rows), slice(x, x + columns)


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
    way = _way(core, a, b)
    if way is not None and (total is None or _apart(total, a, b)):
        c: np.ndarray = np.empty((*a.shape[:-1], b.shape[-1]), np.float32) if total is None else total
        how = (ONE_ROUNDING, total is not None, kind, way) if isinstance(way, bytes) else (way, total is not None, kind)
        if core.multiply(a, b.view(np.uint16) if kind else b, c, *how):
            return c
    c = _by_blas(core, a, b)
    if total is None:
        return c
    total += c
    return total


@cache
def _kind(dtype: np.dtype[Any]) -> int:
    """As products.c has it, which reads numbers as the machine has them. NumPy makes the name anew each time."""
    return KINDS.get(dtype.name, 0) if dtype.isnative else 0


def _by_blas(core: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """BLAS's a @ b. Of 16 bits, the copy of b in float32 is of some cores at a time, and stays in the cache."""
    if b.dtype == np.float32:
        return np.asarray(np.matmul(a, b))
    band = BAND if core is None else BAND_MADE
    if b.size <= band or not 4 <= a.ndim == b.ndim or a.shape[:2] != b.shape[:2]:
        return np.asarray(np.matmul(a, _widened(core, b)))
    leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    c = np.empty((*leading, a.shape[-2], b.shape[-1]), np.float32)
    for cores in _bands(b.shape, band):
        np.matmul(a[cores], _widened(core, b[cores]), out=c[cores])
    return c


def _widened(core: Any, b: np.ndarray) -> np.ndarray:
    """b in float32, lying as b does."""
    if core is None or not (kind := _kind(b.dtype)):
        return b.astype(np.float32)
    numbers = np.empty_like(b, np.float32)
    core.widen(b.view(np.uint16), numbers, kind)
    return numbers


def _way(core: Any, a: np.ndarray, b: np.ndarray) -> Way | None:
    """How the compiled core makes BLAS's numbers; None where it does not, or is not there."""
    m, k, n = *a.shape[-2:], b.shape[-1]
    macs, is_16 = m * k * n, b.itemsize == 2
    most = SMALL_16 if is_16 else SMALL if n % VECTOR else BROAD
    if m == 1:
        most = VECTORS_16 if is_16 else max(most, VECTORS)
    if core is None or macs > most or not 3 <= a.ndim == b.ndim <= 8 or a.shape[:-2] != b.shape[:-2]:
        return None
    if prod(a.shape[:-2]) < FEW:
        return None
    turned = tuple(_turned(tiles) for tiles in (a, b))
    if None in turned or not prod(a.shape):
        return None
    orders = (ONE_ROUNDING, TWO_ROUNDINGS) if macs <= (SMALL_16 if is_16 else SMALL) else ()
    way = _found(core, m, k, n, *turned, (AS_VECTORS, AS_WIDE_VECTORS, *orders) if m == 1 else orders)
    if way is None and not is_16 and macs > SMALL and not n % VECTOR and not any(turned):
        return _rows_apart(core, m, k, n)
    return way


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
def _found(core: Any, m: int, k: int, n: int, a_turned: bool, b_turned: bool, orders: tuple[int, ...]) -> int | None:
    """The first of these orders that makes BLAS's numbers."""
    a, b, expected = _tried(m, k, n, a_turned, b_turned)
    c = np.empty_like(expected)
    for order in orders:
        if core.multiply(a, b, c, order, False, 0) and c.tobytes() == expected.tobytes():
            return order
    return None


@cache
def _rows_apart(core: Any, m: int, k: int, n: int) -> bytes | None:
    """Of tiles by row, which rows sum even and odd steps apart; None where some are neither sum."""
    a, b, expected = _tried(m, k, n, False, False)
    c, alike = np.empty_like(expected), []
    for apart in (b"\0", b"\1"):
        if not core.multiply(a, b, c, ONE_ROUNDING, False, 0, apart * m):
            return None
        alike.append((c.view(np.uint32) == expected.view(np.uint32)).all(axis=(0, 2)))
    return bytes(~alike[0]) if (alike[0] | alike[1]).all() else None


def _tried(m: int, k: int, n: int, a_turned: bool, b_turned: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Factors and BLAS's product. Of every second tile all steps count, of the others the last few alone: some orders
    differ in nothing else, and of long sums one in a hundred then shows it.
    """
    tiles = max(TRIED, -(-TRIED_SUMS // (m * n)))
    a, b = _laid(_numbers(tiles, m * k).copy(), m, k, a_turned), _laid(_numbers(tiles, k * n), k, n, b_turned)
    a[1::2, :, :-LAST] = 0
    a[0][a[0] == 0] = 1
    return a, b, np.matmul(a, b)


def _numbers(tiles: int, count: int) -> np.ndarray:
    """So many for each tile, of several sizes, zeros of both signs among them. Tiles share them, each from a place
    further on.
    """
    at = np.arange(1, count + tiles * FURTHER)
    scattered = at * SCATTER % (1 << 32) > (1 << 32) // 11  # at other steps in each tile, whatever its size
    numbers: np.ndarray = (np.sin(at * 1.7) * np.exp(np.sin(at * 0.37)) * scattered).astype(np.float32)
    numbers[::7] *= -1
    return np.lib.stride_tricks.sliding_window_view(numbers, count)[: tiles * FURTHER : FURTHER]


def _laid(numbers: np.ndarray, rows: int, columns: int, turned: bool) -> np.ndarray:
    """[tiles, rows x columns] -> [tiles, rows, columns], by column if turned."""
    if turned:
        return numbers.reshape(-1, columns, rows).swapaxes(1, 2)
    return numbers.reshape(-1, rows, columns)
