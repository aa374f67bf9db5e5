"""What is between the matrices of an MLP, and the caps of scores and logits: functions of one number at a time."""

from math import prod

import numpy as np

from meshrt.mesh.block import Block
from meshrt.models.matrix import Activation


def swiglu(block: Block, gate_up: np.ndarray, cores: np.ndarray | None = None) -> np.ndarray:
    """[.., 2 Ft] -> silu(gate) * up [.., Ft], at those cores."""
    half = gate_up.shape[-1] // 2
    gate, up = gate_up[..., :half], gate_up[..., half:]
    block.elementwise(gate, 4, cores)
    numbers = prod(gate.shape[2:])
    block.scalar(divisions=numbers, exponentials=numbers, cores=cores)
    return block.memory.keep("gate times up", gate / (1 + np.exp(-gate)) * up)


def activated(block: Block, inner: np.ndarray, activation: Activation, gated: bool) -> np.ndarray:
    """act(gate) * up of [.., 2 Ft], or act of all [.., Ft] where there is no gate."""
    if gated and activation == "silu":
        return swiglu(block, inner)
    x = np.split(inner, 2, axis=-1)[0] if gated else inner
    numbers = prod(x.shape[2:])
    if activation == "relu":
        block.elementwise(x)
        y = np.maximum(x, 0)
    elif activation == "silu":
        block.elementwise(x, 3)
        block.scalar(divisions=numbers, exponentials=numbers)
        y = x / (1 + np.exp(-x))
    else:  # x / (1 + e^-2u) is x (1 + tanh(u)) / 2
        block.elementwise(x, 7)
        block.scalar(divisions=numbers, exponentials=numbers)
        y = x / (1 + np.exp(np.float32(-2 * np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)))
    if gated:
        block.elementwise(x)
        y *= np.split(inner, 2, axis=-1)[1]
    return block.memory.keep("gate times up" if gated else "activated", y)


def cap(block: Block, x: np.ndarray, limit: float | None) -> None:
    """limit * tanh(x / limit), in place; without a limit nothing is done."""
    if limit is None:
        return
    x /= np.float32(limit)
    np.tanh(x, out=x)
    x *= np.float32(limit)
    block.elementwise(x, 4)
    block.scalar(divisions=prod(x.shape[2:]), exponentials=prod(x.shape[2:]))
