"""Tiles as the numbers of a dimension that move together, its units: how they lie along a line of cores, and back.

A unit is what of a chunk moves together: a row or a column, of queries a pair of each of its heads.
"""

from collections.abc import Sequence

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.mesh import Mesh
from meshrt.programs.mesh.cache import TokenCache
from meshrt.records import dataclass


@dataclass(frozen=True)
class Cut:
    """How a dimension lies along a line before and after: the cores' units, as bounds for `remap`, and, after, the
    chunks of a core and the units of a chunk."""

    before: np.ndarray
    after: np.ndarray
    units: tuple[int, int]  # of a chunk, before and after
    chunks: tuple[int, int]  # of a core


def cut(
    mover: Block, axis: str, meshes: Sequence[Mesh], tables: Sequence[np.ndarray], unit_sizes: Sequence[int] = (1, 1)
) -> Cut:  # fmt: skip
    """How a dimension of these chunks lies on lines of both meshes; `unit_sizes` numbers of a chunk are one unit."""
    bounds, units, chunks = [], [], []
    for mesh, table, size in zip(meshes, tables, unit_sizes, strict=True):
        units.append(table.shape[1] // size)
        chunks.append(len(table) // mesh.length(axis))
        real = (table[:, : units[-1]] >= 0).sum(axis=1).reshape(mesh.length(axis), -1).sum(axis=1)
        ends = np.concatenate([[0], np.cumsum(real)])
        bounds.append(np.pad(ends, (0, mover.mesh.length(axis) + 1 - len(ends)), mode="edge"))
    return Cut(bounds[0], bounds[1], (units[0], units[1]), (chunks[0], chunks[1]))


def as_units(tiles: np.ndarray, x: Cut | None, y: Cut | None, rows_last: bool) -> np.ndarray:
    """A core's tiles [bh, bw, rows, columns, Kt, Nt] (or a vector's) -> [bh, bw, units along x, numbers, along y].

    Along x are the numbers of Nt, or with `rows_last` those of Kt, and the others along y.
    """
    if x is None:
        return tiles.reshape(*tiles.shape[:2], 1, 1, -1)
    units = x.units[0]
    if y is None:  # [bh, bw, 1, columns, numbers * units]
        vector = tiles.reshape(*tiles.shape[:2], tiles.shape[3], -1, units).swapaxes(3, 4)
        return vector.reshape(*tiles.shape[:2], tiles.shape[3] * units, -1, 1)
    rows, columns, kt, nt = tiles.shape[2:]
    if rows_last:
        split = tiles.reshape(*tiles.shape[:2], rows, columns, kt // units, units, nt)
        split = split.transpose(0, 1, 3, 5, 4, 2, 6)
    else:
        split = tiles.reshape(*tiles.shape[:2], rows, columns, kt, nt // units, units)
        split = split.transpose(0, 1, 3, 6, 5, 2, 4)
    return split.reshape(*tiles.shape[:2], columns * units, split.shape[4], -1)


def from_units(units: np.ndarray, shape: tuple[int, ...], x: Cut | None, y: Cut | None, rows_last: bool) -> np.ndarray:
    """The inverse of `as_units` for tiles of that shape, from [bh, bw, along y, units along x, numbers]."""
    if x is None:
        return units.reshape(shape)
    size = x.units[1]
    if y is None:
        return units.reshape(*shape[:2], shape[3], size, -1).swapaxes(3, 4).reshape(shape)
    rows, columns, kt, nt = shape[2:]
    if rows_last:
        split = units.reshape(*shape[:2], rows, nt, columns, size, -1).transpose(0, 1, 2, 4, 6, 5, 3)
    else:
        split = units.reshape(*shape[:2], rows, kt, columns, size, -1).transpose(0, 1, 2, 4, 3, 6, 5)
    return split.reshape(shape)


def cache_units(cache: TokenCache, number: int, fullest: int, heads: Cut) -> np.ndarray:
    """Keys and values of one layer as in `as_units`: [bh, bw, units along x, 2 * kv * 2, tokens]."""
    data = cache.data[:, :, :fullest, number]  # [bh, bw, tokens, 2, kv, columns * 2 * pairs]
    columns, pairs = heads.chunks[0], heads.units[0]
    data = data.reshape(*data.shape[:5], columns, 2, pairs).transpose(0, 1, 5, 7, 3, 4, 6, 2)
    return data.reshape(*data.shape[:2], columns * pairs, -1, fullest)
