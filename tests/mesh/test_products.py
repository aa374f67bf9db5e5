"""Products with a second factor of 16 bits: those of its float32, to the bit, on the compiled core and on NumPy."""

import ml_dtypes
import numpy as np
import pytest
from compiled import compiled

from meshrt.mesh import products
from meshrt.mesh.wires import core

KINDS = [np.float16, ml_dtypes.bfloat16]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("sizes", [(1, 3, 6), (2, 6, 46), (3, 5, 67), (1, 6, 18), (2, 23, 6)])
@pytest.mark.parametrize("kind", KINDS)
def test_16_bits_multiply_as_their_float32_does(kind: type, sizes: tuple[int, int, int], turned: bool) -> None:
    (m, k, n), rng = sizes, np.random.default_rng(5)
    a, b = rng.standard_normal((7, 2, m, k), np.float32), rng.standard_normal((7, 2, k, n), np.float32).astype(kind)
    if turned:
        b = np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2)
    total = rng.standard_normal((7, 2, m, n), np.float32)
    expected = np.matmul(a, b.astype(np.float32))
    assert products.product(core.built, a, b).tobytes() == expected.tobytes()
    assert products.product(core.built, a, b, total.copy()).tobytes() == (total + expected).tobytes()


@pytest.mark.parametrize("band", [1, 150, 10**6])
@pytest.mark.parametrize("turned", [False, True])
def test_rows_of_cores_at_a_time_make_the_same(monkeypatch: pytest.MonkeyPatch, turned: bool, band: int) -> None:
    monkeypatch.setattr(products, "BAND", band)
    rng, kind = np.random.default_rng(6), ml_dtypes.bfloat16
    a, b = rng.standard_normal((5, 2, 1, 3, 1, 6), np.float32), rng.standard_normal((5, 2, 3, 1, 6, 9)).astype(kind)
    if turned:
        b = np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2)
    expected, total = np.matmul(a, b.astype(np.float32)), rng.standard_normal((5, 2, 3, 3, 1, 9)).astype(np.float32)
    assert products.product(None, a, b).tobytes() == expected.tobytes()
    assert products.product(None, a, b, total.copy()).tobytes() == (total + expected).tobytes()
    few = a[0, 0, 0]  # has no rows of cores
    assert products.product(None, few, b).tobytes() == np.matmul(few, b.astype(np.float32)).tobytes()


@compiled
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("sizes", [(16, 16, 16), (8, 8, 8), (13, 7, 24), (5, 1, 32), (11, 6, 3)])
def test_broad_tiles_are_summed_in_the_order_that_is_asked_for(sizes: tuple[int, int, int], gaps: bool) -> None:
    """Rows in any order, in vectors of any size, or in none: as the loop that makes one number after the other does."""
    (m, k, n), rng = sizes, np.random.default_rng(7)
    a, b, total = (rng.standard_normal((3, 4, *size), np.float32) for size in ((m, k), (k, n), (m, n)))
    if gaps:
        a, b, total = a[:, ::3], b[:, ::3], total[:, ::3]
    in_order, even, odd = (np.empty(total.shape, np.float32) for _ in range(3))
    if not core.built.multiply(a, b, in_order, True, False, 0):
        pytest.skip("no sum and product with one rounding here")
    core.built.multiply(a[..., ::2], b[..., ::2, :], even, True, False, 0)
    core.built.multiply(a[..., 1::2], b[..., 1::2, :], odd, True, False, 0)
    rows = rng.integers(0, 2, m).astype(bool)
    expected = np.where(rows[:, None], even + odd, in_order)
    for apart, right in ((bytes(rows), expected), (b"\0" * m, in_order), (b"\1" * m, even + odd)):
        product, more = np.empty_like(right), total.copy()
        assert core.built.multiply(a, b, product, True, False, 0, apart) and product.tobytes() == right.tobytes()
        assert core.built.multiply(a, b, more, True, True, 0, apart) and more.tobytes() == (total + right).tobytes()
    for kind, fused, count in ((0, False, m), (0, True, m - 1), (1, True, m)):
        factor = b.astype(np.float16).view(np.uint16) if kind else b
        assert not core.built.multiply(a, factor, product, fused, False, kind, b"\0" * count)
    turned = np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2)
    assert n == 1 or k == 1 or not core.built.multiply(a, turned, product, True, False, 0, b"\0" * m)


@compiled
@pytest.mark.parametrize("sizes", [(16, 16, 16), (8, 8, 8), (4, 20, 40), (7, 9, 16), (1, 16, 16), (16, 1, 16)])
def test_broad_tiles_multiply_as_blas_does(sizes: tuple[int, int, int]) -> None:
    (m, k, n), rng = sizes, np.random.default_rng(8)
    a, b, total = (rng.standard_normal((3, 4, *size), np.float32) for size in ((m, k), (k, n), (m, n)))
    expected = np.matmul(a, b)
    assert products.product(core.built, a, b).tobytes() == expected.tobytes()
    turned = total.swapaxes(-1, -2).copy().swapaxes(-1, -2)
    for sums in (total.copy(), turned):
        assert products.product(core.built, a, b, sums).tobytes() == (total + expected).tobytes()


@compiled
@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_16_bits_is_widened_as_numpy_does(kind: type) -> None:
    numbers = np.arange(2**16, dtype=np.uint16).reshape(-1, 1, 64)
    ones, widened = np.ones((len(numbers), 1, 1), np.float32), np.empty(numbers.shape, np.float32)
    code = products.KINDS[np.dtype(kind).name]
    assert core.built.multiply(ones, numbers, widened, False, False, code)
    np.testing.assert_array_equal(widened, numbers.view(kind).astype(np.float32))


@compiled
@pytest.mark.parametrize("kind", [-1, 3])
def test_a_kind_that_there_is_not_is_refused(kind: int) -> None:
    tile = np.zeros((1, 1, 1), np.float32)
    with pytest.raises(ValueError, match="kind"):
        core.built.multiply(tile, tile, tile.copy(), False, False, kind)
