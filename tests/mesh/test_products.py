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
@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_16_bits_is_widened_as_numpy_does(kind: type) -> None:
    numbers = np.arange(2**16, dtype=np.uint16).reshape(-1, 1, 64)
    ones, found = np.ones((len(numbers), 1, 1), np.float32), np.empty(numbers.shape, np.float32)
    code = products.KINDS[np.dtype(kind).name]
    assert core.built.multiply(ones, numbers, found, False, False, code)
    np.testing.assert_array_equal(found, numbers.view(kind).astype(np.float32))


@compiled
@pytest.mark.parametrize("kind", [-1, 3])
def test_a_kind_that_there_is_not_is_refused(kind: int) -> None:
    tile = np.zeros((1, 1, 1), np.float32)
    with pytest.raises(ValueError, match="kind"):
        core.built.multiply(tile, tile, tile.copy(), False, False, kind)
