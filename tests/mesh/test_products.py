"""Products with a second factor of 16 bits: those of its float32, to the bit, on the compiled core and on NumPy."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from compiled import compiled
from hypothesis import given
from hypothesis import strategies as st

from meshrt.mesh import products
from meshrt.mesh.wires import core

KINDS = [np.float16, ml_dtypes.bfloat16]
ANY_KIND = st.sampled_from([np.float32, *KINDS])
ORDERS = (products.AS_VECTORS, products.AS_WIDE_VECTORS)  # of a vector's products


def has(*flags: str) -> bool:
    """Has this processor such instructions, by Linux's own account?"""
    about = Path("/proc/cpuinfo")
    return about.exists() and all(f" {flag} " in about.read_text() for flag in flags)


# By the processor, not by what the core refuses: a core that refuses where it should not is a fault.
with_vectors = pytest.mark.skipif(
    not has("avx2", "fma", "f16c"),
    reason="vectors have these orders with AVX2, FMA and F16C alone; BLAS it is elsewhere",
)


def tiles(rng: np.random.Generator, shape: tuple[int, ...], kind: type, turned: bool = False) -> np.ndarray:
    """Numbers of many sizes, zeros among them; `turned`: each tile lies by column."""
    numbers = rng.standard_normal(shape, np.float32) * rng.choice(np.array([0, 1, 1e-3, 1e3], np.float32), shape)
    numbers = numbers.astype(kind)
    return np.ascontiguousarray(numbers.swapaxes(-1, -2)).swapaxes(-1, -2) if turned else numbers


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


@pytest.mark.parametrize("sizes", [(2, 3, 6), (1, 90, 90), (9, 40, 40)])
def test_numbers_with_their_bytes_the_other_way_round_are_the_same(sizes: tuple[int, int, int]) -> None:
    """The compiled core took their bytes as they lie: 3 was 2e-4."""
    (m, k, n), rng = sizes, np.random.default_rng(5)
    a, b = rng.standard_normal((9, 2, m, k), np.float32), rng.standard_normal((9, 2, k, n), np.float32)
    made = products.product(core.built, a, b.astype(">f2"))
    assert made.tobytes() == products.product(core.built, a, b.astype(np.float16)).tobytes()


@pytest.mark.parametrize("by", ["numpy", "core"])
@pytest.mark.parametrize("band", [1, 150, 10**6])
@pytest.mark.parametrize("turned", [False, True])
def test_some_cores_at_a_time_make_the_same(monkeypatch: pytest.MonkeyPatch, turned: bool, band: int, by: str) -> None:
    monkeypatch.setattr(products, "BAND" if by == "numpy" else "BAND_MADE", band)
    own = None if by == "numpy" else core.built
    rng, kind = np.random.default_rng(6), ml_dtypes.bfloat16
    a, b = rng.standard_normal((5, 2, 1, 3, 1, 6), np.float32), rng.standard_normal((5, 2, 3, 1, 6, 9)).astype(kind)
    if turned:
        b = np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2)
    expected, total = np.matmul(a, b.astype(np.float32)), rng.standard_normal((5, 2, 3, 3, 1, 9)).astype(np.float32)
    assert products.product(own, a, b).tobytes() == expected.tobytes()
    assert products.product(own, a, b, total.copy()).tobytes() == (total + expected).tobytes()
    few = a[0, 0, 0]  # has no cores
    assert products.product(own, few, b).tobytes() == np.matmul(few, b.astype(np.float32)).tobytes()


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


@given(st.integers(1, 40), st.integers(1, 70), ANY_KIND, st.booleans(), st.booleans(), st.integers(0, 2**32 - 1))
def test_vectors_multiply_as_without_the_core(k: int, n: int, kind: type, turned: bool, adds: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b, total = tiles(rng, (3, 4, 1, k), np.float32), tiles(rng, (3, 4, k, n), kind, turned), rng.random((3, 4, 1, n))
    totals = [total.astype(np.float32) if adds else None for _ in range(2)]
    by_numpy, by_core = (products.product(of, a, b, to) for of, to in zip((None, core.built), totals, strict=True))
    assert by_core.tobytes() == by_numpy.tobytes()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("sizes", [(35, 274), (274, 35), (128, 256), (300, 900), (9, 4099), (4099, 6)])
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_multiply_larger_tiles_as_without_the_core(kind: type, sizes: tuple[int, int], turned: bool) -> None:
    (k, n), rng = sizes, np.random.default_rng(9)
    a, b = tiles(rng, (2, 4, 1, k), np.float32), tiles(rng, (2, 4, k, n), kind, turned)
    assert products.product(core.built, a, b).tobytes() == products.product(None, a, b).tobytes()


@compiled
@with_vectors
@pytest.mark.parametrize("order", ORDERS)
@given(st.integers(2, 80), st.integers(4, 90), ANY_KIND, st.booleans(), st.booleans(), st.integers(0, 2**32 - 1))
def test_vectors_are_multiplied_in_one_order(
    order: int, k: int, n: int, kind: type, turned: bool, adds: bool, seed: int
) -> None:
    """By the core alone, whatever BLAS does: sums of whole numbers are exact; any kind is summed as its float32 is."""
    rng, code = np.random.default_rng(seed), products.KINDS.get(np.dtype(kind).name, 0)
    a, b, total = rng.integers(-9, 9, (3, 1, k)), rng.integers(-9, 9, (3, k, n)), rng.integers(-9, 9, (3, 1, n))
    right = a @ b + total * adds
    for vectors, numbers in ((a, b), (tiles(rng, a.shape, np.float32), tiles(rng, b.shape, kind))):
        vectors, factor = vectors.astype(np.float32), numbers.astype(kind)
        if turned:
            factor = np.ascontiguousarray(factor.swapaxes(-1, -2)).swapaxes(-1, -2)
        sums, same = total.astype(np.float32), total.astype(np.float32)
        own = factor.view(np.uint16) if code else factor
        made = core.built.multiply(vectors, own, sums, order, adds, code)
        assert bool(made) == (
            order == products.AS_VECTORS or not turned or k > 8
        )  # BLAS has others for those that are left
        if not made:
            return
        assert core.built.multiply(vectors, factor.astype(np.float32), same, order, adds, 0)
        assert sums.tobytes() == same.tobytes()
        if numbers is b:
            np.testing.assert_array_equal(sums, right)


@given(
    st.sampled_from([1, 1, 2, 3, 6, 16]), st.integers(1, 140), st.integers(1, 140), ANY_KIND, st.booleans(),
    st.booleans(), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_any_product_is_as_without_the_core(
    m: int, k: int, n: int, kind: type, a_turned: bool, b_turned: bool, seed: int
) -> None:
    """Most orders that are not BLAS's differ in some of the last bits, so each example tells."""
    rng = np.random.default_rng(seed)
    a, b = tiles(rng, (3, 5, m, k), np.float32, a_turned), tiles(rng, (3, 5, k, n), kind, b_turned)
    assert products.product(core.built, a, b).tobytes() == products.product(None, a, b).tobytes()


@given(st.integers(2, 400), st.integers(1, 90), st.booleans())
def test_an_order_is_tried_on_numbers_at_each_step(k: int, n: int, turned: bool) -> None:
    """Where one step is zero in all tiles, orders that differ in it alone look the same."""
    a, b, _ = products._tried(1, k, n, False, turned)
    products_of_steps = abs(a.swapaxes(1, 2)) * abs(b)
    assert (products_of_steps > 0).any(axis=(0, 2)).all()


@compiled
@with_vectors
@given(st.integers(49, 1200), st.integers(4, 60), st.booleans())
def test_orders_that_differ_in_the_last_steps_or_columns_are_told_apart(k: int, n: int, turned: bool) -> None:
    """Whichever of both is BLAS's: a core that takes one for the other would make other numbers."""
    a, b, _ = products._tried(1, k, n, False, turned)
    sums = [np.empty((len(a), 1, n), np.float32) for _ in ORDERS]
    for c, order in zip(sums, ORDERS, strict=True):
        assert core.built.multiply(a, b, c, order, False, 0)
    differ = k % 4 > 0 if turned else n % 4 > 0 or k % 4 > 1
    different = np.count_nonzero(sums[0] != sums[1])
    assert different >= 8 if differ else different == 0


@pytest.mark.parametrize("k", [22, 33, 44, 77])
@pytest.mark.parametrize("turned", [False, True])
def test_ends_of_vectors_are_as_without_the_core(k: int, turned: bool) -> None:
    rng = np.random.default_rng(11)
    for n in (5, 8, 11, 16):
        a, b = tiles(rng, (4, 8, 1, k), np.float32), tiles(rng, (4, 8, k, n), np.float32, turned)
        assert products.product(core.built, a, b).tobytes() == products.product(None, a, b).tobytes()


VECTOR_SIZES = {  # by row and by column: with last columns or steps by themselves, and without
    False: [(16, 16), (12, 8), (35, 64), (6, 12), (64, 16), (52, 12), (35, 274), (6, 46), (7, 5), (51, 19), (4, 9)],
    True: [(16, 16), (12, 8), (64, 35), (20, 6), (35, 274), (46, 6), (13, 7), (22, 5), (33, 16), (31, 10)],
}  # fmt: skip


def orders_found(turned: bool) -> list[set[int]]:
    """Of each size, those orders of vectors that are BLAS's."""
    return [
        {order for order in ORDERS if products._found(core.built, 1, k, n, False, turned, (order,)) is not None}
        for k, n in VECTOR_SIZES[turned]
    ]


@compiled
@pytest.mark.parametrize("turned", [False, True])
def test_one_order_of_vectors_is_blas_own_for_all_sizes_or_none_is(turned: bool) -> None:
    orders = orders_found(turned)
    assert set.intersection(*orders) or not set.union(*orders)


@compiled
@pytest.mark.parametrize("kernels, order, flag", [("Haswell", ORDERS[0], "avx2"), ("SkylakeX", ORDERS[1], "avx512f")])
def test_the_order_is_that_of_openblas_kernels(kernels: str, order: int, flag: str) -> None:
    """Of those that it is told to take, in a process of its own."""
    if not has(flag):
        pytest.skip(f"this processor has no {flag}, which these kernels want")
    script = (
        "import threadpoolctl, test_products as t; "
        "print(threadpoolctl.threadpool_info()[0].get('architecture'), [*map(t.orders_found, (False, True))])"
    )
    environment = os.environ | {"OPENBLAS_CORETYPE": kernels, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    taken, _, orders = ran.stdout.partition(" ")
    if taken != kernels:
        pytest.skip(f"BLAS here is no OpenBLAS that takes the kernels it is told: {ran.stdout}")
    for sets in ast.literal_eval(orders):
        assert all(order in of_size for of_size in sets)


@compiled
def test_vectors_that_are_not_multiplied_so_are_refused() -> None:
    whole = [np.zeros(shape, np.float32) for shape in ((2, 1, 8), (2, 8, 8), (2, 1, 8))]
    two_rows = [np.zeros(shape, np.float32) for shape in ((2, 2, 8), (2, 8, 8), (2, 2, 8))]
    few_columns = [np.zeros(shape, np.float32) for shape in ((2, 1, 8), (2, 8, 3), (2, 1, 3))]
    gaps = [whole[0], np.zeros((2, 8, 9), np.float32)[:, :, :8], whole[2]]
    for a, b, c in (two_rows, few_columns, gaps):
        for order in ORDERS:
            assert not core.built.multiply(a, b, c, order, False, 0)


@compiled
@pytest.mark.parametrize("kind", KINDS)
@given(st.permutations(range(4)), st.permutations(range(4)), st.integers(1, 3), st.data())
def test_numbers_of_any_layout_are_widened(
    kind: type, lies: list[int], goes: list[int], step: int, data: st.DataObject
) -> None:
    shape = data.draw(st.tuples(*[st.integers(0, 4)] * 4))
    bits = np.random.default_rng(3).integers(0, 2**16, [step * size for size in shape]).astype(np.uint16)
    numbers = bits[::step, ::step, ::step, ::step].transpose(lies)
    wide = np.empty([numbers.shape[axis] for axis in goes], np.float32).transpose(np.argsort(goes))
    core.built.widen(numbers, wide, products.KINDS[np.dtype(kind).name])
    assert wide.tobytes() == numbers.view(kind).astype(np.float32).tobytes()
    assert products._widened(core.built, numbers.view(kind)).tobytes() == wide.tobytes()


@compiled
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_every_number_is_widened_to_the_bit(kind: type, step: int) -> None:
    """NaN with all that it says, too."""
    numbers = np.repeat(np.arange(2**16, dtype=np.uint16), step)[::step]
    wide = np.empty(2**16, np.float32)
    core.built.widen(numbers, wide, products.KINDS[np.dtype(kind).name])
    assert wide.tobytes() == numbers.view(kind).astype(np.float32).tobytes()


@compiled
def test_what_cannot_be_widened_is_refused() -> None:
    numbers, wide = np.zeros((2, 3), np.uint16), np.zeros((2, 3), np.float32)
    for kind in (0, 3):
        with pytest.raises(ValueError, match="kind"):
            core.built.widen(numbers, wide, kind)
    for source, target in ((wide, wide), (numbers, numbers), (numbers, wide.T), (numbers, wide[0])):
        with pytest.raises(ValueError, match="one shape"):
            core.built.widen(source, target, 1)
    with pytest.raises(TypeError, match="widen"):
        core.built.widen(numbers, wide)


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


@compiled
@pytest.mark.parametrize("order", [-1, 4])
def test_an_order_that_there_is_not_is_refused(order: int) -> None:
    tile = np.zeros((1, 1, 1), np.float32)
    with pytest.raises(ValueError, match="order"):
        core.built.multiply(tile, tile, tile.copy(), order, False, 0)
