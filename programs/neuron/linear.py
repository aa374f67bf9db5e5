"""x W with a strip of x in SBUF: the projections of attention, and the head, of dense and compressed models alike."""

from meshrt.neuron import isa as nisa
from meshrt.neuron import language as nl
from meshrt.neuron.tile import Tile
from meshrt.programs.neuron.blocks import (
    Blocks,
    P,
    add_products,
    cast,
    load_block,
    load_block_transposed,
    spans,
    width,
    within,
)  # fmt: skip
from meshrt.programs.neuron.norm import on_all_partitions

LINEAR = Blocks(m=512, k=1024, n=1024)


def linear(x: Tile, w: Tile, bias: Tile | None = None, blocks: Blocks = LINEAR) -> Tile:
    """x [T, K] w [K, N] + bias [1, N] -> [T, N] in HBM. x is read once, w once for each strip of x."""
    core, (tokens, inner), n_size = x.core, x.shape, w.shape[1]
    out: Tile = nl.ndarray((tokens, n_size), x.dtype, buffer=core.hbm)
    for m in spans(tokens, blocks.m):
        xs = {k.start: load_block_transposed(x, m, k, None) for k in spans(inner, blocks.k)}
        for n in spans(n_size, blocks.n):
            totals = [nl.ndarray((width(rows), width(n)), nl.float32, buffer=core.sbuf) for rows in spans(m, P)]
            for k in spans(inner, blocks.k):
                block = load_block(w, k, n)
                for total, rows in zip(totals, spans(m, P), strict=True):
                    add_products(total, xs[k.start], within(rows, m), block, first=k.start == 0)
            if bias is not None:
                spread = on_all_partitions(bias[:, n])
                for total in totals:
                    total += nisa.tensor_copy(spread[0 : total.shape[0]], dtype=nl.float32)
            for total, rows in zip(totals, spans(m, P), strict=True):
                nl.store(out[rows, n], cast(total, out.dtype))
    return out
