"""What kernels take on a GPU: tiles and waves, what memory gives, a block a row, and what hides behind what."""

from dataclasses import replace
from math import ceil, inf
from typing import Any

import numpy as np
import pytest
from gpu_runs import new_gpus
from hypothesis import given
from hypothesis import strategies as st

from meshrt.gpu.device import GpuDevice
from meshrt.gpu.operations import matmul, matmuls
from meshrt.gpu.presets import GPU_PRESETS, find_gpu
from meshrt.gpu.timing import SPLITS, TILES, RowKernel, plain_seconds, products_seconds, rows_seconds, together

FREE = 1e18  # a rate at which nothing takes any time
SIZES = st.integers(1, 5000)


def arithmetic_alone(**numbers: float) -> GpuDevice:
    """Four SMs, of which each does 10^12 operations a second, and nothing else takes any time; no inner dimension is
    cut, since that costs a second."""
    free: dict[str, Any] = {
        "flops": 4e12, "flops_share": 1.0, "sms": 4, "memory_bytes_per_second": FREE, "memory_share": 1.0,
        "sm_memory_bytes_per_second": FREE, "sm_l2_bytes_per_second": FREE, "product_seconds": 1e-15,
        "split_seconds": 1.0,
    }  # fmt: skip
    return replace(find_gpu("a100"), **free | numbers)


def test_waves_of_tiles() -> None:
    """Tiles of 16 x 64 are the smallest. As many as there are SMs take one turn; a column more, and one SM has two."""
    device = arithmetic_alone()
    of_tile = 2 * 16 * 64 * 4096 / 1e12
    for columns, turns in ((1, 1), (64, 1), (65, 1), (4 * 64, 1), (4 * 64 + 1, 2), (8 * 64, 2), (8 * 64 + 1, 3)):
        assert products_seconds(device, ((16, 4096, columns),), 2) == pytest.approx(turns * of_tile, rel=1e-6)


def test_an_inner_dimension_is_cut_where_sms_would_have_nothing_to_do() -> None:
    """One tile for four SMs: a quarter of 4096 each, and what it takes to add four parts up; less would not be worth
    a block of its own, and an inner dimension of 96 is not cut at all."""
    device = arithmetic_alone(split_seconds=1e-9)
    of_tile = 2 * 16 * 64 * 4096 / 1e12
    assert products_seconds(device, ((16, 4096, 64),), 2) == pytest.approx(of_tile / 4 + 1e-9, rel=1e-6)
    assert products_seconds(device, ((16, 256, 64),), 2) == pytest.approx(of_tile / 32 + 1e-9, rel=1e-6)
    assert products_seconds(device, ((16, 96, 64),), 2) == pytest.approx(of_tile * 96 / 4096, rel=1e-6)


def test_one_sm_alone_does_not_get_all_of_the_memory() -> None:
    """By bytes alone: 1, 2 and 8 tiles of 64 columns, at 1 GB/s for each SM at work and 3 GB/s for all."""
    device = arithmetic_alone(flops=FREE, memory_bytes_per_second=3e9, sm_memory_bytes_per_second=1e9)
    for tiles, rate in ((1, 1e9), (2, 2e9), (8, 3e9)):
        n = 64 * tiles
        assert products_seconds(device, ((1, 1000, n),), 2) == pytest.approx(2 * (1000 + 1001 * n) / rate, rel=1e-4)


def test_a_tile_waits_for_its_operands() -> None:
    """From the L2 cache: of the tiles that cover 16 x 64 the smallest has the least to bring."""
    device = arithmetic_alone(flops=FREE, sm_l2_bytes_per_second=1e9)
    assert products_seconds(device, ((16, 1024, 64),), 2) == pytest.approx(2 * (16 + 64) * 1024 / 1e9, rel=1e-4)


def by_loops(device: GpuDevice, m: int, k: int, n: int) -> float:
    """A product, tile by tile on SMs that take turns."""
    best = inf
    for rows, columns in TILES:
        for parts in SPLITS:
            inner = 32 * ceil(ceil(k / parts) / 32)
            if parts > 1 and inner < 128:
                continue
            own = [0.0] * device.sms
            of_tile = max(
                2 * rows * columns * inner * device.sms / (device.flops * device.flops_share),
                2 * (rows + columns) * inner / device.sm_l2_bytes_per_second,
            )
            tiles = ceil(m / rows) * ceil(n / columns) * parts
            for tile in range(min(tiles, device.sms)):
                own[tile] += of_tile * ceil((tiles - tile) / device.sms)
            whole = device.memory_bytes_per_second * device.memory_share
            rate = min(whole, sum(time > 0 for time in own) * device.sm_memory_bytes_per_second)
            seconds = (max(own) ** 3 + (2 * (m * k + k * n + m * n) / rate) ** 3) ** (1 / 3)
            if parts > 1:
                seconds += device.split_seconds + 4 * parts * m * n / whole
            best = min(best, seconds + device.product_seconds)
    return best


@given(st.sampled_from(["a6000", "a40", "a100", "h100"]), SIZES, SIZES, SIZES)
def test_a_product_is_that_of_plain_loops(name: str, m: int, k: int, n: int) -> None:
    device = GPU_PRESETS[name]
    seconds = products_seconds(device, ((m, k, n),), 2)
    assert seconds == pytest.approx(by_loops(device, m, k, n), rel=1e-9)
    least = max(2 * m * k * n / device.flops, 2 * (m * k + k * n + m * n) / device.memory_bytes_per_second)
    assert seconds > least


def test_products_of_one_kernel_share_its_waves() -> None:
    """Three tiles each on four SMs: two turns for both products where each alone has one, not three or four."""
    device = arithmetic_alone()
    shape = (16, 4096, 3 * 64)
    alone = products_seconds(device, (shape,), 2)
    assert products_seconds(device, (shape, shape), 2) == pytest.approx(2 * alone)
    assert products_seconds(device, (shape,) * 4, 2) == pytest.approx(3 * alone)
    assert products_seconds(device, (shape, (16, 32, 64)), 2) == pytest.approx(
        alone, rel=1e-6
    )  # no less than the longest


@given(st.integers(1, 300), SIZES)
def test_blocks_of_rows_take_turns(rows: int, width: int) -> None:
    device = replace(find_gpu("a100"), sms=7, hertz=1e9, sm_rate=2.0, start_seconds=1e-15, memory_bytes_per_second=FREE)
    full = rows_seconds(device, RowKernel(3.0, 0.0, 50.0), rows, width, 0)
    assert full == pytest.approx(ceil(rows / 7) * (50 + 3 * width) / 2e9)
    assert rows_seconds(device, RowKernel(0.0, 5.0, 0.0), rows, width, 0) == pytest.approx(5 * width / 1e9)
    kernel, large = RowKernel(3.0, 0.0, 0.0, 1.5), device.l2_bytes + 1
    again = rows_seconds(device, kernel, rows, width, large) / rows_seconds(device, kernel, rows, width, large - 1)
    assert again == pytest.approx(1.5, rel=1e-4)


def test_what_runs_together_hides_what_is_shorter() -> None:
    assert together(1.0, 0.0, 0.0) == 1.0
    assert together(3.0, 3.0) == pytest.approx(3 * 2 ** (1 / 3))
    assert 1.0 < together(1.0, 0.1) < 1.001
    device = find_gpu("a100")
    nbytes = 1e9
    bare = nbytes / (device.memory_share * device.memory_bytes_per_second)
    assert plain_seconds(device, 0, nbytes) == pytest.approx(bare, rel=1e-6)
    assert plain_seconds(device, 0, 0) == pytest.approx(device.start_seconds)


def test_operations_are_charged_so() -> None:
    """In the dtype that numbers are counted in; a grouped product is one kernel."""
    gpu = new_gpus(1, payload=False, device="a6000").mine[0]
    gpu.dtype = np.dtype(np.float16)
    x, w, v = gpu.shaped((64, 4096)), gpu.shaped((4096, 1024)), gpu.shaped((4096, 512))
    matmul(gpu, x, w)
    single = products_seconds(gpu.device, ((64, 4096, 1024),), 2)
    assert gpu.counters.compute_seconds == single < products_seconds(gpu.device, ((64, 4096, 1024),), 4)
    matmuls(gpu, [x, x], [w, v], [None, None])
    both = products_seconds(gpu.device, ((64, 4096, 1024), (64, 4096, 512)), 2)
    assert gpu.counters.compute_seconds == pytest.approx(single + both)
    assert single < both < single + products_seconds(gpu.device, ((64, 4096, 512),), 2)
