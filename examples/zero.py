"""zero.py: a step of data-parallel training as ZeRO does it, on GPUs in nodes, by four collectives."""

from typing import Annotated

import numpy as np

from meshrt.gpu.gpus import Gpus
from meshrt.gpu.operations import add, matmul

MACHINE = "gpu"


def run(gpus: Gpus, *, size: Annotated[int, "rows and columns of the weights"] = 48) -> dict:
    """Gradients of a product, their mean by reduce-scatter, the weights anew by all-gather, from GPU 0's at first."""
    count, rows = gpus.count, np.array_split(np.arange(size), gpus.count)
    rng = np.random.default_rng(0)
    weights = rng.integers(-3, 4, (size, size)).astype(np.float32)
    inputs, outputs = rng.integers(-3, 4, (2, count, size, size)).astype(np.float32)
    with gpus.phase("weights"):
        whole = [weights if gpus.payload and gpu.index == 0 else gpu.shaped((size, size)) for gpu in gpus.mine]
        ws = gpus.broadcast(whole)
    with gpus.phase("step"):
        slopes = [matmul(gpu, inputs[gpu.index].T, outputs[gpu.index]) for gpu in gpus.mine]
        shares = gpus.reduce_scatter(slopes, rows=True)
        own = [add(gpu, share, w[rows[gpu.index]]) for gpu, share, w in zip(gpus.mine, shares, ws, strict=True)]
        ws = gpus.all_gather(own, [len(part) for part in rows], rows=True)
        ws = gpus.reduce_sum(ws)  # of all replicas, to compare
    if not gpus.payload:
        return {"wrong": None}
    want = count * (weights + sum(x.T @ y for x, y in zip(inputs, outputs, strict=True)))
    return {"wrong": gpus.control.allreduce(sum(int((w != want).sum()) for w in ws))}
