"""A LLaMA's small operators as PyTorch runs them one by one: Hugging Face's modeling_llama.py, kernel for kernel.

Profiles of such a model see these kernels, up to ten for an operator, where engines such as vLLM have one. Arrays are
[tokens, ..], 16 bits but for what the norm keeps in 32. What the kernels are is read from PyTorch's sources, named
below; their cycles were found on the rows for fitting of A6000 and H100 by studies/validate/gpufit.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt.gpu.gpu import Cost, Gpu
from meshrt.gpu.timing import RowKernel

WIDE = np.float32
BLOCK = 512  # numbers of a block of a pointwise kernel: 128 threads, 4 each (aten/src/ATen/native/cuda/Loops.cuh)
SUMMING = 512  # threads of a block that sums rows up; with many rows a row gets 32 of them (Reduce.cuh)
FEW = 16  # look-ups for which there is a kernel of its own (Indexing.cu)


@dataclass(frozen=True)
class Eager:
    """SM cycles: of a number that does not lie in order, of one that is looked up; of one that a thread sums up; of a
    row that is looked up alone, where rows are few."""

    strided: RowKernel
    gather: RowKernel
    summing: float
    few: float


EAGER = Eager(RowKernel(1.08, 9.0, 43.0), RowKernel(1.97, 4.77, 43.0), 190.0, 1560.0)


def rms_norm(gpu: Gpu, x: np.ndarray, weight: np.ndarray, eps: float, eager: Eager = EAGER) -> np.ndarray:
    """To 32 bits, square, mean, + eps, 1 / root, times x, to 16 bits, times weight: eight kernels."""
    wide = _each(gpu, np.positive, [x], WIDE)
    squares = _each(gpu, np.square, [wide], WIDE)
    threads = max(32, SUMMING >> min(4, len(x).bit_length() - 1))
    mean = gpu.new(len(x), 1, dtype=WIDE)
    kernel = RowKernel(0.0, eager.summing / threads, 0.0)
    cost = gpu.cost_of_rows(kernel, x.shape, x.size, squares.nbytes + mean.nbytes)
    gpu.launch(_apply, mean, lambda rows: rows.mean(-1, keepdims=True), [squares], cost=cost)
    root = _each(gpu, lambda mean: 1 / np.sqrt(mean), [_each(gpu, lambda mean: mean + eps, [mean], WIDE)], WIDE)
    scaled = _each(gpu, np.multiply, [wide, root], WIDE)
    return _each(gpu, np.multiply, [weight, _each(gpu, np.positive, [scaled], x.dtype)], x.dtype)


def rotate(gpu: Gpu, heads: np.ndarray, cos: np.ndarray, sin: np.ndarray, eager: Eager = EAGER) -> np.ndarray:
    """x cos + (its halves changed, one negated) sin, of x [tokens, heads, D], whose axes were changed before: no two
    heads of a token lie together. Five kernels; cos, sin [tokens, 1, D]."""
    half = heads.shape[-1] // 2

    def each(
        function: Callable[..., Any], xs: Sequence[np.ndarray], shape: tuple[int, ...] = heads.shape
    ) -> np.ndarray:
        out = gpu.new(*shape, dtype=heads.dtype)
        return gpu.launch(_apply, out, function, xs, cost=_strided(gpu, eager.strided, out, xs))

    low, high = heads[..., :half], heads[..., half:]
    negative = each(np.negative, [high], low.shape)
    turned = each(lambda *parts: np.concatenate(parts, -1), [negative, low])
    return each(np.add, [each(np.multiply, [heads, cos]), each(np.multiply, [turned, sin])])


def swiglu(gpu: Gpu, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """silu(gate) up: two kernels."""
    return _each(gpu, np.multiply, [_each(gpu, lambda x: x / (1 + np.exp(-x)), [gate], gate.dtype), up], gate.dtype)


def embed(gpu: Gpu, table: np.ndarray, ids: np.ndarray, eager: Eager = EAGER) -> np.ndarray:
    """Rows of a table. Where they are few, every block goes through all of them, one after the other."""
    out = gpu.new(len(ids), table.shape[1], dtype=table.dtype)
    if len(ids) <= FEW:
        cost = gpu.cost_of_rows(RowKernel(0.0, eager.few, 0.0), (1, len(ids)), 0, 2 * out.nbytes)
    else:
        cost = _strided(gpu, eager.gather, out, [out])
    return gpu.launch(_apply, out, lambda table, ids: table[ids], [table, ids], cost=cost)


def _each(gpu: Gpu, function: Callable[..., Any], xs: Sequence[np.ndarray], dtype: Any) -> np.ndarray:
    """One kernel: a function of numbers in the same place."""
    out = gpu.new(*np.broadcast_shapes(*(x.shape for x in xs)), dtype=dtype)
    cost = gpu.cost(out.size, out.nbytes + sum(x.nbytes for x in xs))
    return gpu.launch(_apply, out, function, xs, cost=cost)


def _strided(gpu: Gpu, kernel: RowKernel, out: np.ndarray, xs: Sequence[np.ndarray]) -> Cost:
    return gpu.cost_of_rows(kernel, (-(-out.size // BLOCK), BLOCK), out.size, out.nbytes + sum(x.nbytes for x in xs))


def _apply(out: np.ndarray, function: Callable[..., Any], xs: Sequence[np.ndarray]) -> None:
    out[...] = function(*xs)
