"""What is between the matrices of an MLP."""

from math import prod

import numpy as np

from meshrt.mesh.block import Block


def swiglu(block: Block, gate_up: np.ndarray, cores: np.ndarray | None = None) -> np.ndarray:
    """[.., 2 Ft] -> silu(gate) * up [.., Ft], at those cores."""
    gate, up = np.split(gate_up, 2, axis=-1)
    block.elementwise(gate, 4, cores)
    numbers = prod(gate.shape[2:])
    block.scalar(divisions=numbers, exponentials=numbers, cores=cores)
    return block.memory.keep("gate times up", gate / (1 + np.exp(-gate)) * up)
