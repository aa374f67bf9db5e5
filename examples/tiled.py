"""tiled.py: a matrix product, tile by tile, summed in PSUM."""

from typing import Annotated

import numpy as np

from meshrt.neuron import isa as nisa
from meshrt.neuron import language as nl

MACHINE = "neuron"


def kernel(x_t, y):
    """x_t [K, M], y [K, N], both in HBM -> x y [M, N] in HBM."""
    core, (K, M), N = y.core, x_t.shape, y.shape[1]
    out = nl.ndarray((M, N), nl.float32, buffer=core.hbm)
    for m in nl.affine_range(0, M, 128):
        for n in nl.affine_range(0, N, 512):
            part = out[m : m + 128, n : n + 512]  # smaller at the edges
            total = nl.zeros(part.shape, nl.float32, buffer=core.psum)
            for k in nl.affine_range(0, K, 128):
                a = nl.load(x_t[k : k + 128, m : m + 128])
                b = nl.load(y[k : k + 128, n : n + 512])
                total += nisa.nc_matmul(a, b)
            nl.store(part, nisa.tensor_copy(total))
    return out


def run(cores, *, size: Annotated[int, "rows and columns"] = 512) -> dict:
    """Multiply two square matrices of small whole numbers."""
    x, y = np.random.default_rng(0).integers(-3, 4, (2, size, size))
    for core in cores.mine:
        with core.phase("product"):
            out = kernel(core.tensor_of(x.T, nl.bfloat16), core.tensor_of(y, nl.bfloat16))
    return {"wrong": int((out.data != x @ y).sum()) if cores.payload else None}
