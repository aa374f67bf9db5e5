"""X W and X U V as the public matrix product computes them: a kernel a product, with transposes between them.

The baseline of NeuronMM, section 5.2 (NKI XW, NKI XUV), is the blocked product of the NKI tutorial: blocks of 1024, the
right side read once, the left one once for each block of columns, partial sums of a strip of M x 1024 in SBUF.
"""

from typing import Any

from meshrt.neuron import language as nl
from meshrt.neuron.tile import Tile
from meshrt.programs.neuron.blocks import (
    BlockSizes,
    Loaded,
    P,
    add_products,
    cast,
    load_block,
    spans,
    tiles_of,
    transposed,
    width,
    within,
)
from meshrt.programs.neuron.coded import scaled

BASELINE = BlockSizes(1024, 1024, 1024, 1024)


def matmul(left_t: Tile, right: Tile | Loaded, blocks: BlockSizes, sums: Any) -> Tile:
    """left_t [K, M], right [K, N] -> left_t^T right [M, N] in HBM. `sums`: the dtype of partial sums in SBUF."""
    (k_size, m_size), n_size = left_t.shape, right.shape[1]
    core = right.core
    out: Tile = nl.ndarray((m_size, n_size), right.dtype, buffer=core.hbm)
    for n in spans(n_size, blocks.n):
        strip = {
            rows.start: nl.ndarray((nl.par_dim(width(rows)), width(n)), sums, buffer=core.sbuf)
            for rows in tiles_of(m_size, blocks.m)
        }
        for k in spans(k_size, blocks.k):
            b = load_block(right, k, n)
            for m in spans(m_size, blocks.m):
                a = load_block(left_t, k, m)
                for rows in spans(m, P):
                    add_products(strip[rows.start], a, within(rows, m), b, first=k.start == 0)
        scaled([*strip.values()], right, n)
        for rows in tiles_of(m_size, blocks.m):
            nl.store(out[rows, n], cast(strip.pop(rows.start), out.dtype))
    return out


def dense(x: Tile, w: Tile, blocks: BlockSizes, sums: Any, out_transposed: bool) -> Tile:
    """x [M, K] w [K, N] -> [M, N], or [N, M]: NKI XW."""
    identity = nl.shared_identity(x.core, x.dtype)
    out = matmul(transposed(x, identity), w, blocks, sums)
    return transposed(out, identity) if out_transposed else out


def sequential(x: Tile, u: Tile, v: Tile, blocks: BlockSizes, sums: Any, out_transposed: bool) -> Tile:
    """(x [M, K] u [K, r]) v [r, N] -> [M, N], or [N, M]: NKI XUV. The product in the middle goes through HBM twice."""
    identity = nl.shared_identity(x.core, x.dtype)
    y = matmul(transposed(x, identity), u, blocks, sums)
    out = matmul(transposed(y, identity), v, blocks, sums)
    return transposed(out, identity) if out_transposed else out
