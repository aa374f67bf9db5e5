"""The SwiGLU MLP of a compressed model in two kernels, and of a dense one in three.

NeuronMM, section 4.2.3, Algorithms 2 and 3. Up and gate projection share their reads of X, and what they hand to the
down projection is transposed already.
"""

from functools import partial
from typing import Any

from meshrt.models.matrix import Activation
from meshrt.neuron import isa as nisa
from meshrt.neuron import language as nl
from meshrt.neuron.tile import Tile, as_tile
from meshrt.programs.neuron.blocks import BlockSizes, spans
from meshrt.programs.neuron.fused import fused, times_v, xu_strips
from meshrt.programs.neuron.norm import OPS


def up_gate(
    x: Tile, u_gate: Tile, v_gate: Tile, u_up: Tile, v_up: Tile, blocks: BlockSizes, sums: Any,
    identity: Tile | None = None, activation: Activation = "silu",
) -> Tile:  # fmt: skip
    """Algorithm 2: x [M, K], u [K, r], v [r, N] -> (SiLU(x u_gate v_gate) * (x u_up v_up))^T [N, M] in HBM; or with
    another activation.
    """
    m_size, n_size = x.shape[0], v_gate.shape[1]
    out: Tile = nl.ndarray((n_size, m_size), x.dtype, buffer=x.core.hbm)
    for m in spans(m_size, blocks.m):
        strips = xu_strips(x, [u_gate, u_up], m, blocks, sums, False, identity)
        for n in spans(n_size, blocks.n):
            times_v(strips, [v_gate, v_up], out, m, n, blocks, sums, True, partial(gated, activation=activation))
        del strips
    return out


def svd_mlp(
    x: Tile, gate: tuple[Tile, Tile], up: tuple[Tile, Tile], down: tuple[Tile, Tile], blocks: BlockSizes, sums: Any,
    identity: Tile | None = None, activation: Activation = "silu",
) -> Tile:  # fmt: skip
    """Algorithm 3: x [M, K] through the factors (u, v) of the three matrices -> [M, K] in HBM."""
    y_t = up_gate(x, *gate, *up, blocks, sums, identity, activation)
    return fused(y_t, *down, blocks, sums, is_xt=True)


def gated(totals: list[Tile], activation: Activation) -> Tile:
    """act(gate) * up: the scalar engine and then the vector engine."""
    gate, up = totals
    active = as_tile(nisa.activation(OPS[activation], gate, dtype=nl.float32))
    return as_tile(nisa.tensor_tensor(active, up, nl.multiply))
