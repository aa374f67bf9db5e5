"""X U V in one kernel without a cache: every block of the result computes its blocks of X U anew.

NeuronMM, Algorithm 1. The block of X U lies in PSUM while it is summed over K, as does the block of the result.
"""

from meshrt.neuron import isa as nisa
from meshrt.neuron import language as nl
from meshrt.neuron.tile import Tile, as_tile
from meshrt.programs.neuron.blocks import (
    BlockSizes,
    F,
    P,
    load_block,
    load_block_transposed,
    spans,
    width,
    within,
)  # fmt: skip

NAIVE = BlockSizes(128, 512, 512, 512)


def naive(x: Tile, u: Tile, v: Tile, blocks: BlockSizes) -> Tile:
    """x [M, K], u [K, r], v [r, N] -> x u v [M, N] in HBM."""
    m_size, (r_size, n_size) = x.shape[0], v.shape
    core = x.core
    out: Tile = nl.ndarray((m_size, n_size), x.dtype, buffer=core.hbm)
    for m in spans(m_size, blocks.m):
        for n in spans(n_size, blocks.n):
            o = {
                (rows.start, columns.start): nl.zeros((width(rows), width(columns)), nl.float32, buffer=core.psum)
                for rows in spans(m, P)
                for columns in spans(n, F)
            }
            for p in spans(r_size, blocks.r):
                y = xu_block(x, u, m, p, blocks)
                vs = load_block(v, p, n)
                for rows in spans(m, P):
                    for columns in spans(n, F):
                        total = o[rows.start, columns.start]
                        for y_t, b in zip(y, vs, strict=True):
                            total[...] += nisa.nc_matmul(y_t[:, within(rows, m)], b[:, within(columns, n)])
            for rows in spans(m, P):
                tile = nl.ndarray((width(rows), width(n)), x.dtype, buffer=core.sbuf)
                for columns in spans(n, F):
                    tile[:, within(columns, n)] = nisa.tensor_copy(o.pop((rows.start, columns.start)))
                nl.store(out[rows, n], tile)
    return out


def xu_block(x: Tile, u: Tile, m: slice, p: slice, blocks: BlockSizes) -> list[Tile]:
    """(x u)^T [p, m] in SBUF, as tiles of up to 128 rows: transposed, as the next product wants it."""
    core = x.core
    sums = {
        (rows.start, columns.start): nl.zeros((width(rows), width(columns)), nl.float32, buffer=core.psum)
        for rows in spans(p, P)
        for columns in spans(m, F)
    }
    for k in spans(x.shape[1], blocks.k):
        xs = load_block_transposed(x, m, k, None)
        us = load_block(u, k, p)
        for (row, column), total in sums.items():
            rows, columns = slice(row, row + total.shape[0]), slice(column, column + total.shape[1])
            for a, b in zip(us, xs, strict=True):
                total[...] += nisa.nc_matmul(a[:, within(rows, p)], b[:, within(columns, m)])
    tiles = []
    for rows in spans(p, P):
        tile = nl.ndarray((width(rows), width(m)), x.dtype, buffer=core.sbuf)
        for columns in spans(m, F):
            tile[:, within(columns, m)] = nisa.tensor_copy(as_tile(sums.pop((rows.start, columns.start))))
        tiles.append(tile)
    return tiles
