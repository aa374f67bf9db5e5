"""Norms, sums and products of activations in HBM: the kernels between the matrix products."""

from collections.abc import Callable
from typing import Any

from meshrt.models.matrix import Activation
from meshrt.neuron import isa as nisa
from meshrt.neuron import language as nl
from meshrt.neuron.engines import Core
from meshrt.neuron.tile import Tile, as_tile
from meshrt.programs.neuron.blocks import F, P, cast, spans, width
from meshrt.records import dataclass

OPS: dict[Activation, Callable[..., Any]] = {"silu": nl.silu, "gelu_tanh": nl.gelu_apprx_tanh, "relu": nl.relu}


@dataclass(frozen=True)
class NeuronNorm:
    """RMSNorm, or with a bias LayerNorm: both [1, H]."""

    weight: Tile
    bias: Tile | None


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


def constant(core: Core, value: float) -> Tile:
    """A number on every partition, [128, 1] in SBUF."""
    tile: Tile = nl.ndarray((nl.par_dim(P), 1), nl.float32, buffer=core.sbuf)
    nisa.memset(tile, value)
    return tile


def normed(x: Tile, norm: NeuronNorm, eps: float) -> Tile:
    """x [T, H], less the mean of its rows in a LayerNorm, / their root mean square * weight, + bias; in HBM. The
    arithmetic is in float32.
    """
    core, (tokens, hidden) = x.core, x.shape
    out: Tile = nl.ndarray((tokens, hidden), x.dtype, buffer=core.hbm)
    scale, shift = on_all_partitions(norm.weight), None if norm.bias is None else on_all_partitions(norm.bias)
    epsilon = constant(core, eps)
    for rows in spans(tokens, P):
        partitions = slice(0, width(rows))
        t = as_tile(nl.load(x[rows]))
        if shift is not None:
            total = as_tile(nisa.tensor_reduce(nl.add, t, dtype=nl.float32))
            mean = as_tile(nisa.tensor_scalar(total, nl.multiply, 1 / hidden))
            t = as_tile(nisa.tensor_scalar(t, nl.subtract, mean, dtype=nl.float32))
        squares = nisa.tensor_reduce(nl.add, nisa.activation(nl.square, t, dtype=nl.float32))
        inverse = nisa.activation(nl.rsqrt, squares, scale=1 / hidden, bias=epsilon[partitions])
        straight = nisa.tensor_scalar(t, nl.multiply, inverse, dtype=nl.float32)
        if shift is None:
            nl.store(out[rows], nisa.tensor_tensor(straight, scale[partitions], nl.multiply, dtype=x.dtype))
            continue
        scaled = nisa.tensor_tensor(straight, scale[partitions], nl.multiply, dtype=nl.float32)
        nl.store(out[rows], nisa.tensor_tensor(scaled, shift[partitions], nl.add, dtype=x.dtype))
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


def gated(gate: Tile, up: Tile, activation: Activation) -> Tile:
    """act(gate) * up, between the products of a dense MLP."""

    def op(left: Tile, right: Tile) -> Any:
        active = nisa.activation(OPS[activation], left, dtype=nl.float32)
        return cast(as_tile(nisa.tensor_tensor(active, right, nl.multiply)), left.dtype)

    return combine(op, gate, up)


def each(op: Callable[[Tile], Any], x: Tile) -> Tile:
    """op of a tensor [T, n] in HBM, element by element."""
    out: Tile = nl.ndarray(x.shape, x.dtype, buffer=x.core.hbm)
    for rows in spans(x.shape[0], P):
        for columns in spans(x.shape[1], 4 * F):
            nl.store(out[rows, columns], op(as_tile(nl.load(x[rows, columns]))))
    return out


def activated(x: Tile, activation: Activation) -> Tile:
    """act(x), of an MLP without a gate."""
    return each(lambda tile: nisa.activation(OPS[activation], tile, dtype=x.dtype), x)


def capped(x: Tile, cap: float) -> Tile:
    """cap tanh(x / cap)."""
    return each(lambda tile: cap_tile(tile, cap, 1.0, x.dtype), x)


def cap_tile(tile: Any, cap: float, scale: float, dtype: Any) -> Tile:
    """cap tanh(scale tile / cap): the scalar engine and then the vector engine."""
    bent = as_tile(nisa.activation(nl.tanh, tile, scale=scale / cap, dtype=nl.float32))
    return as_tile(nisa.tensor_scalar(bent, nl.multiply, cap, dtype=dtype))


def add_row(x: Tile, row: Tile) -> Tile:
    """x [T, n] + a row [1, n], in HBM."""
    out: Tile = nl.ndarray(x.shape, x.dtype, buffer=x.core.hbm)
    for columns in spans(x.shape[1], 4 * F):
        spread = on_all_partitions(row[:, columns])
        for rows in spans(x.shape[0], P):
            tile = as_tile(nl.load(x[rows, columns]))
            nl.store(out[rows, columns], nisa.tensor_tensor(tile, spread[0 : width(rows)], nl.add, dtype=x.dtype))
    return out
