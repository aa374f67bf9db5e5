"""Numbers at the edges: whole numbers and their bits, some axes of several, dtypes that nobody gave, bytes of casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshrt.nki as nki
import meshrt.nki.isa as nisa_module
import meshrt.nki.language as nl_module

nl: Any = nl_module
nisa: Any = nisa_module
BF16 = ml_dtypes.bfloat16
RNG = np.random.default_rng(4)
X = RNG.standard_normal((4, 4, 4)).astype(np.float32)
FLAT = X.reshape(4, 16)
WHOLE = RNG.integers(0, 2**20, (8, 10)).astype(np.int32)
BYTES = np.arange(240, 256, dtype=np.uint8).reshape(2, 8)
UP = np.exp(X - X.max(2, keepdims=True))


def launched(function: Callable[..., Any], *args: Any) -> Any:
    """What becomes of tiles with these numbers, in its own dtype."""

    def kernel(*args: Any) -> Any:
        tile = function(*map(nl.load, args)).settle()
        out = nl.ndarray(tile.shape, tile.dtype, nl.shared_hbm)
        nl.store(out, tile)
        return out

    return nki.simulate(nki.jit(kernel), show=False)(*args)


def scanned(x: np.ndarray) -> np.ndarray:
    y, states = np.zeros(len(x)), []
    for at in range(x.shape[1]):
        y = x[:, at] * y + x[:, at]
        states.append(y)
    return np.stack(states, 1)


def of_bits(op: Any) -> Callable[..., Any]:
    return lambda t: nisa.tensor_reduce(op=op, data=t, axis=1)


@pytest.mark.parametrize(
    ("function", "x", "want"),
    [
        (lambda t: ~t, BYTES, ~BYTES),
        (lambda t: t << 2, BYTES, BYTES << 2),
        (lambda t: t ^ 511, BYTES, ~BYTES),
        (lambda t: t & 255, BYTES.view(np.int8), BYTES.view(np.int8)),
        (lambda t: t & -2, BYTES.astype(np.uint32), BYTES & 254),
        (of_bits(nl.bitwise_or), WHOLE, np.bitwise_or.reduce(WHOLE, 1, keepdims=True)),
        (of_bits(nl.bitwise_xor), BYTES, np.bitwise_xor.reduce(BYTES, 1, keepdims=True)),
        (lambda t: nisa.tensor_partition_reduce(op=nl.bitwise_and, data=t), BYTES, BYTES[:1] & BYTES[1:]),
        (lambda t: nisa.tensor_reduce(op=nl.subtract, data=t, axis=[1, 2]), X,
         2 * X[:, :1, 0] - X.sum((1, 2))[:, None]),
        (lambda t: nisa.tensor_reduce(op=nl.abs_max, data=t, axis=1), -FLAT[:, :1] ** 2, FLAT[:, :1] ** 2),
        (lambda t: nl.full((2, 2), 0xDEADBEEF, nl.uint32), X, np.full((2, 2), 0xDEADBEEF)),
        (lambda t: nl.full((2, 2), 2**40, nl.int16), X, np.full((2, 2), 2**15 - 1)),
        (lambda t: nl.mean(t, axis=1), WHOLE, WHOLE.mean(1, keepdims=True)),
        (lambda t: nl.var(t, axis=1), WHOLE, WHOLE.var(1, keepdims=True)),
        (lambda t: nl.var(t, axis=2), X, X.var(2)),
        (lambda t: nl.var(t, axis=2), X[:1], X[:1].var(2)),
        (lambda t: nl.softmax(t, axis=2), X, UP / UP.sum(2, keepdims=True)),
        (lambda t: nisa.bn_aggr(nisa.bn_stats(t)), X, np.stack([FLAT.mean(1), FLAT.var(1)], 1)),
        (lambda t: nisa.max8(src=t), WHOLE.astype(np.uint32) % 3, -np.sort(-(WHOLE % 3), 1)[:, :8]),
        (lambda t: nisa.tensor_tensor_scan(t, t, initial=0, op0=nl.multiply, op1=nl.add), X,
         scanned(FLAT).reshape(4, 4, 4)),
        (lambda t: np.float32(2) * t - np.int64(1), X, 2 * X - 1),
    ],
)  # fmt: skip
def test_numbers(function: Callable[..., Any], x: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(launched(function, x).astype(np.float64), want, rtol=2e-6, atol=2e-6)


def test_dtypes_that_nobody_gave() -> None:
    """Statistics have their operand's, a scan the wider one's, a mean of whole numbers is a float."""
    narrow = FLAT.astype(BF16)
    for function, args, dtype in (
        (nisa.bn_stats, (narrow,), BF16),
        (lambda t: nisa.bn_aggr(nisa.bn_stats(t)), (narrow,), BF16),
        (lambda a, b: nisa.tensor_tensor_scan(a, b, 0, nl.multiply, nl.add), (narrow, FLAT), np.float32),
        (lambda t: nl.mean(t, axis=1), (WHOLE,), np.float32),
    ):
        assert launched(function, *args).dtype == dtype


def test_a_cast_within_hbm_counts_the_bytes_of_both_and_adding_reads_what_is_there() -> None:
    def cast(x: Any, dtype: Any) -> Any:
        out = nl.ndarray(x.shape, dtype, nl.shared_hbm)
        nisa.dma_copy(dst=out, src=x)
        return out

    def added(out: Any, x: Any) -> None:
        nisa.dma_copy(dst=out, src=nl.load(x), dst_rmw_op=nl.add)

    for function, args, counts in (
        (cast, (FLAT, BF16), (256, 128)),
        (cast, (FLAT.astype(BF16), np.float32), (128, 256)),
        (added, (FLAT.copy(), FLAT), (512, 256)),
    ):
        kernel = nki.jit(function)
        nki.simulate(kernel, show=False)(*args)
        assert kernel.report is not None
        assert (kernel.report["hbm_bytes"]["read"], kernel.report["hbm_bytes"]["written"]) == counts
    assert (args[0] == 2 * FLAT).all()
