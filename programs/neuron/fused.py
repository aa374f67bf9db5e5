"""X U V in one kernel: a strip of X U stays in SBUF, transposed as it is made, and every block of V meets it there.

NeuronMM, section 4.2.1. Caching: a row strip of X U is computed once. Implicit transposition: (X U)^T = U^T X^T, so the
stationary side of the first product is U, and what comes out is what the second product wants. Blocking: X and the
result cross between HBM and SBUF once, U and V once for each strip (eq. 10).
"""

from collections.abc import Callable
from typing import Any

from meshrt.neuron import language as nl
from meshrt.neuron.tile import Tile
from meshrt.programs.neuron.blocks import (
    BlockSizes,
    P,
    add_products,
    cast,
    load_block,
    load_block_transposed,
    spans,
    tiles_of,
    width,
    within,
)

FUSED = BlockSizes(1024, 512, 1024, 512)
Finish = Callable[[list[Tile]], Tile]


def fused(
    x: Tile, u: Tile, v: Tile, blocks: BlockSizes, sums: Any, *, is_xt: bool = False, req_ot: bool = False,
    identity: Tile | None = None,
) -> Tile:  # fmt: skip
    """x [M, K] (or x^T [K, M]), u [K, r], v [r, N] -> x u v [M, N], or its transpose [N, M], in HBM.

    `is_xt` and `req_ot` are the paper's (Algorithm 3). `sums`: the dtype of sums over blocks, in SBUF. `identity`:
    transpose x by the tensor engine, not by DMA.
    """
    m_size, n_size = x.shape[1 if is_xt else 0], v.shape[1]
    out: Tile = nl.ndarray((n_size, m_size) if req_ot else (m_size, n_size), x.dtype, buffer=x.core.hbm)
    for m in spans(m_size, blocks.m):
        strips = xu_strips(x, [u], m, blocks, sums, is_xt, identity)
        for n in spans(n_size, blocks.n):
            times_v(strips, [v], out, m, n, blocks, sums, req_ot, only)
        del strips
    return out


def xu_strips(
    x: Tile, us: list[Tile], m: slice, blocks: BlockSizes, sums: Any, is_xt: bool, identity: Tile | None
) -> list[list[Tile]]:
    """For each u the strip (x[m] u)^T [r, m] in SBUF, as tiles of up to 128 rows. x is read once."""
    core, dtype = x.core, x.dtype
    strips = [
        [
            nl.ndarray((nl.par_dim(width(rows)), width(m)), sums, buffer=core.sbuf)
            for rows in tiles_of(u.shape[1], blocks.r)
        ]
        for u in us
    ]
    for k in spans(x.shape[0 if is_xt else 1], blocks.k):
        xs = load_block(x, k, m) if is_xt else load_block_transposed(x, m, k, identity)
        for u, strip in zip(us, strips, strict=True):
            tiles = iter(strip)
            for p in spans(u.shape[1], blocks.r):
                block = load_block(u, k, p)  # while the one before is in use: a double buffer
                for rows in spans(p, P):
                    add_products(next(tiles), block, within(rows, p), xs, first=k.start == 0)
    return [[cast(tile, dtype) for tile in strip] for strip in strips] if sums != dtype else strips


def times_v(
    strips: list[list[Tile]], vs: list[Tile], out: Tile, m: slice, n: slice, blocks: BlockSizes, sums: Any,
    req_ot: bool, finish: Finish,
) -> None:  # fmt: skip
    """Block (m, n) of the result: the sum over r of strip^T v for each pair, made one by `finish`, stored.

    Whichever side is stationary gives the rows of the result: O and O^T cost the same.
    """
    core = out.core
    down, across = (n, m) if req_ot else (m, n)
    totals = [
        [nl.ndarray((nl.par_dim(width(rows)), width(across)), sums, buffer=core.sbuf) for rows in spans(down, P)]
        for _ in vs
    ]
    for strip, v, total in zip(strips, vs, totals, strict=True):
        at = 0
        for p in spans(v.shape[0], blocks.r):
            block = load_block(v, p, n)
            cached = strip[at : at + len(block)]
            at += len(block)
            left, right = (block, cached) if req_ot else (cached, block)
            for tile, rows in zip(total, spans(down, P), strict=True):
                add_products(tile, left, within(rows, down), right, first=p.start == 0)
    for at, rows in enumerate(spans(down, P)):
        nl.store(out[rows, across], cast(finish([total[at] for total in totals]), out.dtype))


def only(totals: list[Tile]) -> Tile:
    """The one sum there is."""
    return totals[0]
