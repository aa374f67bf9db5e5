"""What nl and nisa compute, against NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuron_cores import loaded, new_core, rounded, tensor, values

from meshrt.neuron import isa as nisa
from meshrt.neuron import language as nl
from meshrt.neuron.tile import as_tile

DTYPES = ["float32", "float16", "bfloat16"]


# ---- moving


@pytest.mark.parametrize("dtype", DTYPES)
def test_load_and_store_move_parts(dtype: str) -> None:
    core = new_core()
    x, out = tensor(core, 300, 70, dtype=dtype), nl.ndarray((100, 20), dtype, buffer=core.hbm)
    nl.store(out[10:60], value=nl.load(x[200:250, 40:60]))
    assert (out[10:60].data == x.data[200:250, 40:60]).all()
    nbytes = 50 * 20 * nl.DTYPES[dtype].itemsize
    assert (core.counts["hbm_read"], core.counts["hbm_written"]) == (nbytes, nbytes)


def test_a_cast_on_the_way_moves_the_bytes_of_hbm() -> None:
    core = new_core()
    x, out = tensor(core, 8, 10, dtype=nl.bfloat16), nl.ndarray((8, 10), nl.float16, buffer=core.hbm)
    wide = nl.load(x, dtype=nl.float32)
    assert wide.dtype == nl.float32 and (values(wide) == x.data).all()
    nl.store(out, wide * 1.001)
    assert (out.data == rounded(x.data * np.float32(1.001), "float16")).all()
    assert (core.counts["hbm_read"], core.counts["hbm_written"]) == (160, 160)


def test_load_transpose2d() -> None:
    core = new_core()
    x = tensor(core, 300, 100)
    t = as_tile(nl.load_transpose2d(x[10:280, 5:95]))
    assert t.shape == (90, 270) and (t.data == x.data[10:280, 5:95].T).all()


def test_dma_copy_goes_both_ways() -> None:
    core = new_core()
    x, out = tensor(core, 5, 6), nl.ndarray((5, 6), nl.float32, buffer=core.hbm)
    tile = nl.ndarray((5, 6), nl.float32, buffer=core.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=out, src=tile)
    assert (out.data == x.data).all() and core.dma.transfers == 2


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20), st.sampled_from(DTYPES), st.booleans())
def test_numbers_are_rounded_as_by_ml_dtypes(numbers: list[float], dtype: str, late: bool) -> None:
    """At once when a tensor is made, and when an instruction casts; what is too large becomes infinite."""
    core = new_core()
    x = np.array([numbers], np.float32)
    with np.errstate(over="ignore"):
        expected = rounded(x, dtype)
    tile = nl.load(core.tensor_of(x, nl.float32 if late else dtype))
    stored = nisa.tensor_copy(tile, dtype=dtype) if late else tile
    assert values(stored).tobytes() == expected.tobytes()


# ---- products


@pytest.mark.parametrize("dtype", DTYPES)
def test_nc_matmul_overwrites_and_adds_in_psum(dtype: str) -> None:
    """The sum of k <= 128 products of normal numbers in float32: off by less than k 2^-24 of their absolute sum."""
    core = new_core()
    a, b = loaded(core, 100, 60, dtype=dtype), loaded(core, 100, 300, dtype=dtype, seed=1)
    exact = a.data.T.astype(np.float64) @ b.data
    bound = 128 * 2**-24 * (np.abs(a.data.T) @ np.abs(b.data)).max()

    plain = as_tile(nisa.nc_matmul(a, b))
    assert plain.store.buffer is core.psum and plain.dtype == nl.float32
    assert np.abs(plain.data - exact).max() <= bound

    acc = nl.ndarray((60, 300), nl.float32, buffer=core.psum)
    for _ in range(2):
        acc[...] = nisa.nc_matmul(a, b)
    assert (acc.data == plain.data).all()
    acc[...] += nisa.nc_matmul(a, b)
    acc += nisa.nc_matmul(a, b)
    assert np.abs(acc.data - 3 * exact).max() <= 4 * bound

    part = nl.zeros((128, 512), nl.float32, buffer=core.psum)
    part[0:60, 100:400] += nisa.nc_matmul(a, b)
    assert (part.data[0:60, 100:400] == plain.data).all() and np.count_nonzero(part.data) == 60 * 300
    assert core.counts["macs"] == 6 * 100 * 60 * 300


def test_a_sum_begins_with_a_product() -> None:
    core = new_core()
    a, b = loaded(core, 8, 4), loaded(core, 8, 5, seed=1)
    acc = nisa.nc_matmul(a, b)
    for _ in range(2):
        acc += nisa.nc_matmul(a, b)
    assert values(acc) == pytest.approx(3 * (a.data.T @ b.data)) and core.psum.live == 2048


@pytest.mark.parametrize("own", [True, False])
def test_nc_transpose_is_a_product_with_the_identity(own: bool) -> None:
    core = new_core()
    x = loaded(core, 100, 60, dtype=nl.bfloat16)
    t = as_tile(nisa.nc_transpose(x, None if own else nl.shared_identity(core, nl.bfloat16)))
    assert t.store.buffer is core.psum and (t.data == x.data.T).all()
    assert (core.counts["transpose_macs"], core.counts["macs"]) == (100 * 60 * 100, 0)


def test_the_cores_own_identity_is_made_once_for_each_dtype() -> None:
    core = new_core()
    for dtype in (nl.bfloat16, nl.bfloat16, nl.float32):
        nisa.nc_transpose(loaded(core, 16, 16, dtype=dtype))
        core.settle()
    assert core.vector.instructions == 2 and core.sbuf.live == 128 * (2 + 4)


def test_matmul_and_transpose_of_nl() -> None:
    core = new_core()
    x, y = loaded(core, 30, 40), loaded(core, 40, 50, seed=1)
    assert values(nl.matmul(x, y)) == pytest.approx(x.data @ y.data, abs=1e-4)
    assert values(nl.matmul(as_tile(nisa.tensor_copy(nl.transpose(x))), y, transpose_x=True)) == pytest.approx(
        x.data @ y.data, abs=1e-4
    )


# ---- element by element

X, Y, V = (np.random.default_rng(seed).uniform(0.5, 2, shape).astype(np.float32)
           for seed, shape in ((1, (9, 14)), (2, (9, 14)), (3, (9, 1))))  # fmt: skip
ELEMENTWISE: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "activation": (lambda x, y, v: nisa.activation(nl.exp, x), lambda x, y, v: np.exp(x)),
    "activation scaled": (
        lambda x, y, v: nisa.activation(nl.square, x, bias=v, scale=0.5), lambda x, y, v: (x * np.float32(0.5) + v) ** 2
    ),
    "activation scaled by tile": (
        lambda x, y, v: nisa.activation(np.tanh, x, scale=v), lambda x, y, v: np.tanh(x * v)
    ),
    "silu": (lambda x, y, v: nl.silu(x), lambda x, y, v: x * (0.5 * (1 + np.tanh(0.5 * x)))),
    "sigmoid": (lambda x, y, v: nl.sigmoid(x), lambda x, y, v: 0.5 * (1 + np.tanh(0.5 * x))),
    "relu": (lambda x, y, v: nl.relu(x - 1.0), lambda x, y, v: np.maximum(x - 1, 0)),
    "rsqrt": (lambda x, y, v: nl.rsqrt(x), lambda x, y, v: 1 / np.sqrt(x)),
    "tensor_tensor": (lambda x, y, v: nisa.tensor_tensor(x, y, nl.subtract), lambda x, y, v: x - y),
    "tensor_tensor gpsimd": (
        lambda x, y, v: nisa.tensor_tensor(x, y, np.maximum, engine=x.core.gpsimd), lambda x, y, v: np.maximum(x, y)
    ),
    "tensor_scalar": (lambda x, y, v: nisa.tensor_scalar(x, nl.multiply, 3), lambda x, y, v: x * np.float32(3)),
    "tensor_scalar tile": (lambda x, y, v: nisa.tensor_scalar(x, np.divide, v), lambda x, y, v: x / v),
    "tensor_scalar reversed": (lambda x, y, v: nisa.tensor_scalar(x, np.subtract, v, True), lambda x, y, v: v - x),
    "tensor_scalar twice": (
        lambda x, y, v: nisa.tensor_scalar(x, np.multiply, 2.0, False, np.subtract, v, True),
        lambda x, y, v: v - x * np.float32(2),
    ),
    "tensor_copy": (lambda x, y, v: nisa.tensor_copy(x), lambda x, y, v: x),
    "reciprocal": (lambda x, y, v: nisa.reciprocal(x), lambda x, y, v: np.float32(1) / x),
    "tensor_reduce": (
        lambda x, y, v: nisa.tensor_reduce(nl.add, x), lambda x, y, v: np.add.reduce(x, axis=1, keepdims=True)
    ),
    "tensor_reduce negated": (
        lambda x, y, v: nisa.tensor_reduce(np.max, x, axis=(1,), negate=True), lambda x, y, v: -x.max(1, keepdims=True)
    ),
    "affine_select": (
        lambda x, y, v: nisa.affine_select(nl.arange(9)[:, None] >= nl.arange(14)[None, :], x, -np.inf),
        lambda x, y, v: np.where(np.tri(9, 14, dtype=bool), x, -np.inf),
    ),
    "operators": (lambda x, y, v: 1.0 - x * y / v + np.float32(2), lambda x, y, v: 1 - x * y / v + np.float32(2)),
    "operators with a column": (lambda x, y, v: v - x, lambda x, y, v: v - x),
    "functions": (
        lambda x, y, v: nl.maximum(nl.sqrt(nl.log(x + 1.0)), nl.divide(y, v)),
        lambda x, y, v: np.maximum(np.sqrt(np.log(x + 1)), y / v),
    ),
    "max": (lambda x, y, v: nl.max(x, axis=[1]), lambda x, y, v: x.max(1, keepdims=True)),
    "min": (lambda x, y, v: nl.min(x, 1), lambda x, y, v: x.min(1, keepdims=True)),
    "mean": (lambda x, y, v: nl.mean(x), lambda x, y, v: np.add.reduce(x, axis=1, keepdims=True) * np.float32(1 / 14)),
}  # fmt: skip


SEVERAL = ("operators", "functions", "mean", "relu")  # of more than one instruction


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_instructions_compute_in_float32(name: str) -> None:
    core = new_core()
    x, y, v = (nl.load(core.tensor_of(array, nl.float32)) for array in (X, Y, V))
    instruction, expected = ELEMENTWISE[name]
    assert (values(instruction(as_tile(x), as_tile(y), as_tile(v))) == expected(X, Y, V)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", [name for name in ELEMENTWISE if name not in SEVERAL])
def test_they_round_once_at_the_end(name: str, dtype: str) -> None:
    core = new_core()
    x, y, v = (as_tile(nl.load(core.tensor_of(array, dtype))) for array in (X, Y, V))
    instruction, expected = ELEMENTWISE[name]
    result = as_tile(instruction(x, y, v))
    assert result.dtype == nl.DTYPES[dtype]
    assert (result.data == rounded(expected(x.data, y.data, v.data).astype(np.float32), dtype)).all()


def test_two_dtypes_give_float32_and_dtype_overrides() -> None:
    core = new_core()
    a, b = loaded(core, 4, 5, dtype=nl.bfloat16), loaded(core, 4, 5, dtype=nl.float16)
    assert as_tile(a + b).dtype == nl.float32
    assert as_tile(nl.add(a, b, dtype=nl.float16)).dtype == nl.float16
    assert as_tile(nl.exp(a, dtype="float32")).dtype == nl.float32
    whole = nl.load(core.tensor_of(np.array([[1, 2]]), nl.uint8))
    assert values(nl.mean(whole)).tolist() == [[1.5]]  # of whole numbers a mean is none


@pytest.mark.parametrize("axis, shape", [(None, (6, 1)), ([1, 2], (6, 1)), (2, (6, 4)), (-1, (6, 4))])
def test_tensor_reduce_takes_the_last_axes(axis: Any, shape: tuple[int, ...]) -> None:
    core = new_core()
    x = loaded(core, 6, 4, 5)
    axes = (1, 2) if axis is None else tuple(axis) if isinstance(axis, list) else axis
    assert (values(nisa.tensor_reduce(np.maximum, x, axis)) == x.data.max(axes).reshape(shape)).all()
    assert values(nl.sum(x, axis, keepdims=True)) == pytest.approx(x.data.sum(axes, keepdims=True))


def test_activation_reduce_gives_both() -> None:
    core = new_core()
    x = nl.load(core.tensor_of(X, nl.bfloat16))
    total = nl.ndarray((9, 1), nl.float32, buffer=core.sbuf)
    powers = nisa.activation_reduce(
        np.exp, x, reduce_op=np.add, reduce_res=total, bias=nl.load(core.tensor_of(V, "float32"))
    )
    expected = np.exp(values(x) + V)
    assert (values(powers) == rounded(expected, "bfloat16")).all()
    assert (total.data == expected.sum(1, keepdims=True)).all()  # of what was not rounded


def test_memset_full_and_zeros() -> None:
    core = new_core()
    tile = nl.full((3, 4), 0.1, nl.bfloat16, buffer=core.sbuf)
    assert (tile.data == rounded(np.float32([0.1]), "bfloat16")).all()
    tile[:, 1:3] = 2
    assert tile.data[0].tolist() == [tile.data[0, 0], 2, 2, tile.data[0, 0]]
    for buffer in (core.sbuf, core.psum):
        assert (nl.zeros((3, 4), nl.float32, buffer=buffer).data == 0).all()
    assert (nl.zeros_like(tile).data == 0).all() and core.vector.instructions == 4
