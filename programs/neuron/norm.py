"""RMSNorm, sums and products of activations in HBM: the kernels between the matrix products."""

from collections.abc import Callable
from typing import Any

from meshrt.neuron import isa as nisa
from meshrt.neuron import language as nl
from meshrt.neuron.tile import Tile, as_tile
from meshrt.programs.neuron.blocks import F, P, cast, spans, width


def on_all_partitions(row: Tile) -> Tile:
    """A tensor [1, n] of HBM as [128, n] in SBUF: a product with a column of ones."""
    core, n = row.core, row.shape[1]
    ones: Tile = nl.ndarray((nl.par_dim(1), P), row.dtype, buffer=core.sbuf)
    nisa.memset(ones, 1.0)
    row_tile = as_tile(nl.load(row))
    spread: Tile = nl.ndarray((nl.par_dim(P), n), row.dtype, buffer=core.sbuf)
    for columns in spans(n, F):
        spread[:, columns] = nisa.tensor_copy(as_tile(nisa.nc_matmul(ones, row_tile[:, columns])))
    return spread


def rms_norm(x: Tile, weight: Tile, eps: float) -> Tile:
    """x [T, H] / root mean square of its rows * weight [1, H], in HBM; the arithmetic is in float32."""
    core, (tokens, hidden) = x.core, x.shape
    out: Tile = nl.ndarray((tokens, hidden), x.dtype, buffer=core.hbm)
    scale = on_all_partitions(weight)
    epsilon: Tile = nl.ndarray((nl.par_dim(P), 1), nl.float32, buffer=core.sbuf)
    nisa.memset(epsilon, eps)
    for rows in spans(tokens, P):
        partitions = slice(0, width(rows))
        t = as_tile(nl.load(x[rows]))
        squares = nisa.tensor_reduce(nl.add, nisa.activation(nl.square, t, dtype=nl.float32))
        inverse = nisa.activation(nl.rsqrt, squares, scale=1 / hidden, bias=epsilon[partitions])
        normed = nisa.tensor_scalar(t, nl.multiply, inverse, dtype=nl.float32)
        nl.store(out[rows], nisa.tensor_tensor(normed, scale[partitions], nl.multiply, dtype=x.dtype))
    return out


def combine(op: Callable[..., Any], a: Tile, b: Tile) -> Tile:
    """op(a, b) element by element of two tensors [T, n] in HBM."""
    out: Tile = nl.ndarray(a.shape, a.dtype, buffer=a.core.hbm)
    for rows in spans(a.shape[0], P):
        for columns in spans(a.shape[1], 4 * F):
            left, right = as_tile(nl.load(a[rows, columns])), as_tile(nl.load(b[rows, columns]))
            nl.store(out[rows, columns], op(left, right))
    return out


def add(a: Tile, b: Tile) -> Tile:
    """a + b: the residual connection."""
    return combine(lambda left, right: nisa.tensor_tensor(left, right, nl.add), a, b)


def silu_times(gate: Tile, up: Tile) -> Tile:
    """SiLU(gate) * up, between the products of a dense MLP."""

    def op(left: Tile, right: Tile) -> Any:
        active = nisa.activation(nl.silu, left, dtype=nl.float32)
        return cast(as_tile(nisa.tensor_tensor(active, right, nl.multiply)), left.dtype)

    return combine(op, gate, up)
