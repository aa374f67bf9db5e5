"""Kernels in the style of each feature of NKI, of both generations of its API, against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshrt.nki as nki
import meshrt.nki.compiler as ncc
import meshrt.nki.isa as nisa
import meshrt.nki.language as nl_module

nl: Any = nl_module
RNG = np.random.default_rng(5)


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def close(got: Any, wanted: np.ndarray, tolerance: float = 1e-5) -> bool:
    gap = np.abs(np.asarray(got, np.float64) - wanted).max()
    return bool(gap <= tolerance * np.abs(wanted).max())


@nki.jit
def rows_scaled(x, gain):  # old: results are values, masks cut the last tile
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    p, f = nl.arange(128)[:, None], nl.arange(x.shape[1])[None, :]
    weights = nl.load(gain.reshape((1, gain.shape[0])))
    for i in nl.affine_range((x.shape[0] + 127) // 128):
        inside = i * 128 + p < x.shape[0]
        tile = nl.load(x[i * 128 + p, f], mask=inside)
        total = nl.sum(nl.square(tile), axis=[1], mask=inside)
        tile[...] = nl.multiply(tile, nl.rsqrt(total), mask=inside)
        nl.store(out[i * 128 + p, f], value=tile * weights.broadcast_to((128, x.shape[1])), mask=inside)
    return out


@pytest.mark.parametrize("rows", [1, 128, 200])
def test_masks_and_a_row_repeated_over_partitions(rows: int) -> None:
    x, gain = normal(rows, 70), normal(70)
    got = nki.simulate(rows_scaled, show=False)(x, gain)
    assert close(got, x / np.sqrt((x.astype(np.float64) ** 2).sum(1, keepdims=True)) * gain)


@nki.jit
def product(a, b):  # new: destination first, products add to what the first has written
    (k, m), n = a.shape, b.shape[1]
    out = nl.ndarray((m, n), dtype=a.dtype, buffer=nl.shared_hbm)
    acc = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.psum)
    for i in nl.affine_range(k // 128):
        left = nl.ndarray((128, m), dtype=a.dtype, buffer=nl.sbuf)
        right = nl.ndarray((128, n), dtype=b.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=left, src=a[nl.ds(i * 128, 128), :])
        nisa.dma_copy(dst=right, src=b[i * 128 : (i + 1) * 128, 0:n])
        nisa.nc_matmul(acc, left, right)
    tile = nl.ndarray((m, n), dtype=a.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=acc)
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_destination_first_and_what_the_report_says(capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (normal(256, 100, dtype=ml_dtypes.bfloat16), normal(256, 300, dtype=ml_dtypes.bfloat16))
    got = nki.simulate(product)(a, b)
    assert got.dtype == a.dtype and close(got, a.astype(np.float64).T @ b.astype(np.float64), 8e-3)
    report = product.report
    assert report["api"] == "new" and report["flops"] == 2 * 256 * 100 * 300
    assert report["hbm_bytes"] == {"read": 2 * 256 * 400, "written": 2 * 100 * 300, "total": 264_800}
    assert report["psum_bytes"]["max"] == 2**18 and report["critical_path"]["seconds"] > 0
    shown = capsys.readouterr().err
    assert "product on 1 NeuronCore of trn1, API new" in shown and "SBUF peak" in shown and "tensor" in shown


def test_by_shape_counts_and_time_are_the_same() -> None:
    class Shape:
        def __init__(self, *shape: int) -> None:
            self.shape, self.dtype = shape, np.dtype(np.float32)

    nki.simulate(product, show=False)(normal(256, 64), normal(256, 512))
    counted = product.report
    assert nki.simulate(product, show=False)(Shape(256, 64), Shape(256, 512)) is None
    assert product.report == counted


@nki.jit
def doubled(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    at = nl.program_id(0) * 128
    tile = nl.load(x[nl.ds(at, 128), :])
    nl.store(out[nl.ds(at, 128), :], nl.add(tile, tile))
    assert nl.num_programs(0) == 4 and nl.program_ndim() == 1
    return out


def test_programs_on_one_core_and_dealt_over_several() -> None:
    x = normal(512, 2000)  # so large that the bytes take longer than the latency of the transfers
    with_one = nki.simulate(doubled, grid=4, show=False)
    assert (with_one(x) == 2 * x).all()
    alone = doubled.report
    assert (nki.simulate(doubled, grid=4, cores=2, show=False)(x) == 2 * x).all()
    assert doubled.report["hbm_bytes"] == alone["hbm_bytes"]
    assert doubled.report["critical_path"]["seconds"] < 0.7 * alone["critical_path"]["seconds"]
    assert (doubled[nl.spmd_dim(2, nl.nc(2))](x) == 2 * x).all()


@nki.jit
def instructions(x, y):
    """Of each, the value-returning form."""
    p, n = x.shape
    out = nl.ndarray((9, p, n), dtype=nl.float32, buffer=nl.shared_hbm)
    a, b = nl.load(x), nl.load(y)
    column = nisa.tensor_reduce(op=nl.max, data=a, axis=1)
    scan = nisa.tensor_tensor_scan(a, b, initial=0, op0=np.multiply, op1=np.add)
    nl.store(out[0], scan)
    nl.store(out[1], nisa.scalar_tensor_tensor(data=a, op0=nl.subtract, operand0=column, op1=nl.multiply, operand1=b))
    sums = nl.ndarray((nl.par_dim(p), 1), dtype=nl.float32)
    up = nisa.activation(op=nl.exp, data=a, bias=column, scale=-1.0, reduce_op=nl.add, reduce_res=sums,
                         reduce_cmd=nisa.reduce_cmd.reset_reduce)  # fmt: skip
    nl.store(out[2], nl.divide(up, sums))
    where = nl.where(nl.greater(a, b), a, -1.0)
    nl.store(out[3], where)
    i, j = nl.mgrid[0:p, 0:n]
    nl.store(out[4], nisa.affine_select(pred=i >= j, on_true_tile=a, on_false_value=-5.0))
    nl.store(out[5], nisa.iota(i * 100 + j, dtype=nl.int32))
    half = nl.ndarray((p, n), dtype=nl.float32)
    half[:, 0 : n // 2] = nl.copy(a[:, 1::2])  # a stride
    half[:, n // 2 :] = nl.copy(b[i, 2 * nl.arange(n // 2)[None, :]])
    nl.store(out[6], half)
    stats = nisa.bn_aggr(nisa.bn_stats(a))
    nl.store(
        out[7], nisa.tensor_scalar(a, op0=np.subtract, operand0=stats[:, 0], op1=np.multiply, operand1=stats[:, 1])
    )
    shuffled = nl.ndarray((p, n), dtype=nl.float32)
    nisa.nc_stream_shuffle(dst=shuffled, src=a, shuffle_mask=[31 - at for at in range(32)])
    nl.store(out[8], shuffled)
    return out


def test_instructions_one_by_one() -> None:
    x, y = normal(64, 40), normal(64, 40)
    got = nki.simulate(instructions, show=False)(x, y)
    scan, state = np.empty(x.shape), np.zeros(64)
    for at in range(40):
        state = x[:, at].astype(np.float64) * state + y[:, at]
        scan[:, at] = state
    top, i, j = x.max(1, keepdims=True), *np.ogrid[:64, :40]
    up = np.exp(top - x)
    wanted = [
        scan, (x - top) * y, up / up.sum(1, keepdims=True), np.where(x > y, x, -1), np.where(i >= j, x, -5),
        i * 100 + j, np.concatenate([x[:, 1::2], y[:, 0::2]], 1),
        (x - x.mean(1, keepdims=True)) * x.var(1, keepdims=True),
        x.reshape(2, 32, 40)[:, ::-1].reshape(64, 40),
    ]  # fmt: skip
    assert all(close(result, expected) for result, expected in zip(got, wanted, strict=True))


@nki.jit
def turned(x, bits):  # new: transposes, integers, 8-bit floats, predicated copies
    p, n = x.shape
    out = nl.ndarray((n, p), dtype=x.dtype, buffer=nl.shared_hbm)
    packed = nl.ndarray((p, n), dtype=nl.float8_e4m3, buffer=nl.shared_hbm)
    low = nl.ndarray(bits.shape, dtype=bits.dtype, buffer=nl.shared_hbm)
    tile, small = nl.load(x), nl.ndarray((p, n), dtype=nl.float8_e4m3, buffer=nl.sbuf)
    nisa.tensor_copy(dst=small, src=tile)
    nisa.dma_copy(dst=packed, src=small)
    flipped = nl.ndarray((n, p), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_transpose(dst=flipped, src=x)
    nisa.dma_copy(dst=out, src=flipped)
    number = nl.load(bits)
    nisa.tensor_scalar(dst=number, data=number, op0=nl.bitwise_and, operand0=255, op1=nl.left_shift, operand1=1)
    nl.store(low, number)
    return out, packed, low


def test_transposes_whole_numbers_and_8_bit_floats() -> None:
    x, bits = normal(50, 30), RNG.integers(0, 2**31 - 1, (20, 9)).astype(np.int32)
    flipped, packed, low = nki.simulate(turned, show=False)(x, bits)
    assert (flipped == x.T).all() and (low == (bits & 255) << 1).all()
    assert packed.dtype == ml_dtypes.float8_e4m3 and (packed == x.astype(ml_dtypes.float8_e4m3)).all()


@nki.jit
def turned_in_part(x, upper):
    rows, columns = x.shape
    out = nl.ndarray((40, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    tile, i, j = nl.zeros((40, 64), dtype=x.dtype, buffer=nl.sbuf), nl.mgrid[0:64, 0:40], nl.mgrid[0:40, 0:64]
    inside = (i.p < rows) & (i.x < columns)
    if upper:
        inside = inside & (i.p < i.x)
    tile[j.p, j.x] = nl.load_transpose2d(x[i.p, i.x], mask=inside)
    nl.store(out, tile)
    return out


@pytest.mark.parametrize("upper", [False, True])
def test_the_mask_of_a_transposed_load_has_the_sources_axes(upper: bool) -> None:
    """A rectangle of another shape than its transpose; or places one by one."""
    x, want = normal(50, 30), np.zeros((40, 64), np.float32)
    kept = np.arange(50)[:, None] < np.arange(30)[None, :] if upper else np.ones((50, 30), bool)
    want[:30, :50] = np.where(kept, x, 0).T
    assert (nki.simulate(turned_in_part, show=False)(x, upper) == want).all()


@nki.jit
def bytes_of(x):
    out = nl.ndarray((x.shape[0], 4 * x.shape[1]), dtype=nl.float8_e4m3, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x).view(nl.float8_e4m3))
    return out


def test_the_bytes_of_a_tile_survive_as_another_dtype() -> None:
    """Also those that are one of several NaN."""
    x = RNG.integers(0, 2**32, (100, 8), np.uint32).view(np.float32)
    x = np.where(np.isnan(x), np.float32(1), x)
    assert (nki.simulate(bytes_of, show=False)(x).view(np.uint8) == x.view(np.uint8)).all()


@ncc.skip_middle_end_transformations
@nki.jit(kernel_return=False)
def into(out, x):
    blocks = nl.zeros((2, nl.par_dim(64), 10), dtype=nl.float32, buffer=nl.sbuf)
    for i in nl.affine_range(2):
        blocks[i] += nl.load(x[nl.ds(64 * i, 64)])
        blocks[i, :, 0:5] = nl.loop_reduce(blocks[i, :, 5:10], op=np.add, loop_indices=[i])
        nl.store(out[nl.ds(64 * i, 64)], blocks[i])


def test_arrays_of_tiles_and_an_argument_that_is_written() -> None:
    x, out = normal(128, 10), np.zeros((128, 10), np.float32)
    nki.simulate(into, show=False)(out, x)
    assert (out[:, :5] == x[:, :5] + x[:, 5:]).all() and (out[:, 5:] == x[:, 5:]).all()


@nki.jit
def picked(table, places):
    out = nl.ndarray((places.shape[0], table.shape[1]), dtype=table.dtype, buffer=nl.shared_hbm)
    index = nl.load(places)
    nl.store(out, nl.load(table[index, nl.arange(table.shape[1])[None, :]]))
    return out


def test_rows_by_indices_that_a_tile_holds() -> None:
    table, places = normal(90, 17), RNG.integers(0, 90, (33, 1)).astype(np.int32)
    assert (nki.simulate(picked, show=False)(table, places) == table[places[:, 0]]).all()
