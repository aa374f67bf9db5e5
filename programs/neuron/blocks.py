"""Blocks: a matrix in HBM cut into tiles that the engines take, loaded, transposed and stored.

NeuronMM, section 2.2: a tile is what one product takes, a block is some tiles, a strip is a row or column of blocks.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from meshrt.neuron import isa as nisa
from meshrt.neuron import language as nl
from meshrt.neuron.engines import Core
from meshrt.neuron.tile import Tile, as_tile
from meshrt.records import dataclass

P = nl.tile_size.pmax  # 128: partitions of a tile, and the free axis of a stationary one
F = nl.tile_size.gemm_moving_fmax  # 512: the free axis of a moving one


@dataclass(frozen=True)
class BlockSizes:
    """Sizes of blocks along M, K, r and N: any numbers, of which the last block of an axis may fall short."""

    m: int = 1024
    k: int = 1024
    r: int = 1024
    n: int = 512


def spans(stop: int | slice, size: int) -> Iterator[slice]:
    """0..stop, or a slice, in pieces of `size`; the last may be shorter."""
    begin, end = (stop.start, stop.stop) if isinstance(stop, slice) else (0, stop)
    for at in range(begin, end, size):
        yield slice(at, min(at + size, end))


def tiles_of(stop: int, block: int) -> list[slice]:
    """0..stop in pieces of up to 128 rows, none of which crosses the edge of a block."""
    return [rows for span in spans(stop, block) for rows in spans(span, P)]


def within(part: slice, whole: slice) -> slice:
    """The same piece counted from where the whole begins."""
    return slice(part.start - whole.start, part.stop - whole.start)


def width(piece: slice) -> int:
    return int(piece.stop - piece.start)


class Loaded(Protocol):
    """A matrix in HBM that is no tensor of numbers, and makes tiles of them (coded.py)."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def core(self) -> Core: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def load_block(self, rows: slice, columns: slice) -> list[Tile]: ...


def load_block(matrix: Tile | Loaded, rows: slice, columns: slice) -> list[Tile]:
    """matrix[rows, columns] as tiles of up to 128 rows, each as wide as the block."""
    if not isinstance(matrix, Tile):
        return matrix.load_block(rows, columns)
    return [as_tile(nl.load(matrix[part, columns])) for part in spans(rows, P)]


def load_block_transposed(matrix: Tile, rows: slice, columns: slice, identity: Tile | None) -> list[Tile]:
    """matrix[rows, columns]^T as tiles of up to 128 columns of the matrix, each as wide as there are rows.

    Without an identity the DMA engines transpose (NeuronMM, section 4.2.2); with one the tensor engine does, tile by
    tile, which is what the published counts of transposing operations show (Table 3).
    """
    if identity is None:
        return [as_tile(nl.load_transpose2d(matrix[rows, part])) for part in spans(columns, P)]
    core = matrix.core
    turned = [
        nl.ndarray((nl.par_dim(width(part)), width(rows)), matrix.dtype, buffer=core.sbuf) for part in spans(columns, P)
    ]
    for at, part in enumerate(spans(rows, P)):
        straight = nl.load(matrix[part, columns])
        for tile, piece in zip(turned, spans(columns, P), strict=True):
            corner = nisa.nc_transpose(straight[:, within(piece, columns)], identity)
            # Both engines empty PSUM, so that neither holds up the tensor engine.
            tile[:, within(part, rows)] = nisa.tensor_copy(corner, engine=core.scalar if at % 2 else core.vector)
    return turned


def sum_of_products(stationary: list[Tile], moving: list[Tile], right: slice) -> Tile:
    """The sum over tiles of stationary^T moving[:, right]: up to [128, 512], in PSUM."""
    rows = stationary[0].shape[1]
    total: Tile = nl.zeros((nl.par_dim(rows), width(right)), nl.float32, buffer=moving[0].core.psum)
    for a, b in zip(stationary, moving, strict=True):
        total[...] += nisa.nc_matmul(a, b[:, right])
    return total


def add_products(target: Tile, stationary: list[Tile], left: slice, moving: list[Tile], first: bool) -> None:
    """target = the sum over tiles of stationary[:, left]^T moving the first time, target += that sum later.

    What sums over blocks are made of: PSUM within a block, SBUF between blocks.
    """
    parts = [a[:, left] for a in stationary]
    for columns in spans(target.shape[1], F):
        total = sum_of_products(parts, moving, columns)
        if first:
            target[:, columns] = nisa.tensor_copy(total, engine=target.core.scalar)
        else:
            target[:, columns] += total


def cast(tile: Tile, dtype: Any) -> Tile:
    """A tile of SBUF in another dtype; itself if it has it already."""
    if tile.dtype == dtype:
        return tile
    return as_tile(nisa.tensor_copy(tile, dtype=dtype))


def transposed(matrix: Tile, identity: Tile) -> Tile:
    """A kernel of its own: matrix^T in HBM, by way of the tensor engine. Layouts between kernels that do not match."""
    rows, columns = matrix.shape
    out: Tile = nl.ndarray((columns, rows), matrix.dtype, buffer=matrix.core.hbm)
    for high in spans(rows, 8 * P):
        for across in spans(columns, 4 * P):
            tiles = load_block_transposed(matrix, high, across, identity)
            for tile, part in zip(tiles, spans(across, P), strict=True):
                nl.store(out[part, high], tile)
    return out
