"""x W with a strip of x in SBUF: the projections of attention, and the head. W may be two factors: two products."""

from collections.abc import Sequence

from meshrt.neuron import isa as nisa
from meshrt.neuron import language as nl
from meshrt.neuron.tile import Tile, new_tile
from meshrt.programs.neuron.blocks import (
    BlockSizes,
    P,
    add_products,
    cast,
    load_block,
    load_block_transposed,
    spans,
    width,
    within,
)  # fmt: skip
from meshrt.programs.neuron.coded import CodedTiles, scaled
from meshrt.programs.neuron.norm import on_all_partitions

LINEAR = BlockSizes(m=512, k=1024, n=1024)


Whole = Tile | CodedTiles  # W [in, out], of numbers or in codes
NeuronMatrix = Whole | tuple[Tile, Tile]  # or its factors U [in, r] and V [r, out]


def beside(x: Tile, matrices: Sequence[NeuronMatrix], bias: Tile | None = None) -> Tile:
    """x [T, K] times matrices that lie side by side, + bias [1, N] -> [T, N] in HBM, N being all their columns."""
    widths = [columns_of(w) for w in matrices]
    out: Tile = nl.ndarray((x.shape[0], sum(widths)), x.dtype, buffer=x.core.hbm)
    for at, w in enumerate(matrices):
        columns = slice(sum(widths[:at]), sum(widths[: at + 1]))
        linear(x, w, None if bias is None else bias[:, columns], out[:, columns])
    return out


def columns_of(w: NeuronMatrix) -> int:
    return (w[1] if isinstance(w, tuple) else w).shape[1]


def linear(
    x: Tile, w: NeuronMatrix, bias: Tile | None = None, out: Tile | None = None, blocks: BlockSizes = LINEAR
) -> Tile:
    """x [T, K] w [K, N] + bias [1, N] -> [T, N] in HBM, in `out` if given. x is read once, w once for each strip of x.

    Of factors the product x U goes through HBM.
    """
    if isinstance(w, tuple):
        return linear(linear(x, w[0], blocks=blocks), w[1], bias, out, blocks)
    core, (tokens, inner), n_size = x.core, x.shape, w.shape[1]
    if out is None:
        out = new_tile(core.hbm, (tokens, n_size), x.dtype)
    for m in spans(tokens, blocks.m):
        xs = {k.start: load_block_transposed(x, m, k, None) for k in spans(inner, blocks.k)}
        for n in spans(n_size, blocks.n):
            totals = [nl.ndarray((width(rows), width(n)), nl.float32, buffer=core.sbuf) for rows in spans(m, P)]
            for k in spans(inner, blocks.k):
                block = load_block(w, k, n)
                for total, rows in zip(totals, spans(m, P), strict=True):
                    add_products(total, xs[k.start], within(rows, m), block, first=k.start == 0)
            scaled(totals, w, n)
            if bias is not None:
                spread = on_all_partitions(bias[:, n])
                for total in totals:
                    total += nisa.tensor_copy(spread[0 : total.shape[0]], dtype=nl.float32)
            for total, rows in zip(totals, spans(m, P), strict=True):
                nl.store(out[rows, n], cast(total, out.dtype))
    return out
