"""When instructions of NKI kernels run: each waits for the bytes that it touches, whatever the pattern."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiers import examples
from watched_cores import WatchedCore

import meshrt.nki as nki
import meshrt.nki.isa as nisa
import meshrt.nki.language as nl_module
from meshrt.neuron.device import TRN1
from meshrt.nki.tensors.pattern import AccessPattern
from meshrt.nki.tensors.patternview import PatternExtent

nl: Any = nl_module
BF16 = ml_dtypes.bfloat16


@nki.jit
def loaded_block(x, zeros, parts):  # rows of tiles into one tensor, which is set to zero first or not
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    p, f = nl.mgrid[0:128, 0:512]
    block = (nl.zeros if zeros else nl.ndarray)((nl.par_dim(128), parts, 512), dtype=x.dtype, buffer=nl.sbuf)
    for at in nl.affine_range(parts):
        block[p, at, f] = nl.load(x[at * 128 + p, f], mask=(at * 128 + p < x.shape[0]) & (f < x.shape[1]))
    for at in nl.affine_range(parts):
        nl.store(out[at * 128 + p, f], value=block[p, at, f])
    return out


@nki.jit
def loaded_again(x, zeros, parts):  # every row of tiles to the same place
    out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    p, f = nl.mgrid[0:128, 0:512]
    block = (nl.zeros if zeros else nl.ndarray)((nl.par_dim(128), parts, 512), dtype=x.dtype, buffer=nl.sbuf)
    for at in nl.affine_range(parts):
        block[p, 0, f] = nl.load(x[at * 128 + p, f])
    nl.store(out[p, f], value=block[p, 0, f])
    return out


def seconds(kernel: Any, *arguments: Any) -> float:
    nki.simulate(kernel, show=False)(*arguments)
    total: float = kernel.report["critical_path"]["seconds"]
    return total


@pytest.mark.parametrize("zeros", [False, True])
def test_loads_into_parts_of_a_block_overlap(zeros: bool) -> None:
    """A load of 128 KiB keeps all engines busy for t = 0.49 us, and so does a store. Loads follow one another, and
    stores the loads, as the first store's 1.3 us are over by then. Into one place each load waits for the one before.
    """
    x = np.ones((512, 512), BF16)
    start, t = TRN1.dma_start_seconds, 8 * (1024 / TRN1.dma_bytes_per_second + TRN1.dma_descriptor_seconds)
    fill = zeros * 4 * 512 / 2 / TRN1.vector_hz
    assert seconds(loaded_block, x, zeros, 4) == pytest.approx(fill + start + 8 * t)
    assert seconds(loaded_again, x, zeros, 4) == pytest.approx(fill + 4 * (start + t) + start + t)


@nki.jit
def added_blocks(x):  # blocks that are set to zero, loaded and added up: zeros need not wait for the sums before them
    out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    total = nl.zeros((nl.par_dim(128), 512), dtype=x.dtype, buffer=nl.sbuf)
    for at in nl.sequential_range(x.shape[0] // 128):
        block = nl.zeros((nl.par_dim(128), 512), dtype=x.dtype, buffer=nl.sbuf)
        block[...] = nl.load(x[at * 128 : (at + 1) * 128, :])
        total[...] = nl.add(total, block)
    nl.store(out, value=total)
    return out


def test_zeros_go_before_sums_if_the_order_may_change() -> None:
    """In the kernel's order each block waits for zeros behind the sum before it. Else loads follow one another."""
    x, start = np.arange(8 * 128 * 512).reshape(1024, 512).astype(BF16), TRN1.dma_start_seconds
    results = [nki.simulate(added_blocks, show=False, reorder=reorder)(x) for reorder in (False, True)]
    assert (results[0] == results[1]).all()
    t, add = 8 * (1024 / TRN1.dma_bytes_per_second + TRN1.dma_descriptor_seconds), 512 / TRN1.vector_hz
    ends = start + t
    times = []
    for reorder in (False, True):
        nki.simulate(added_blocks, show=False, reorder=reorder)(x)
        times.append(added_blocks.report["critical_path"]["seconds"])
    zeros = add / 2
    assert times[0] == pytest.approx(zeros + 8 * (zeros + start + t + add) + ends)
    assert times[1] == pytest.approx(2 * zeros + start + 8 * t + add + ends)


@nki.jit
def many_ways(a, b):  # masks, strides, several axes, other dtypes, patterns, sums, tiles that are used again
    out = nl.ndarray((128, 96), dtype=nl.float32, buffer=nl.shared_hbm)
    p, f = nl.mgrid[0:128, 0:96]
    x = nl.zeros((nl.par_dim(128), 4, 96), dtype=nl.float32, buffer=nl.sbuf)
    for turn in nl.sequential_range(3):
        for at in nl.affine_range(4):
            x[p, at, f] = nl.load(a[p, at * 96 + f], mask=f < 96 - 8 * turn)
        y = nl.ndarray((128, 4, 96), dtype=nl.float32, buffer=nl.sbuf)
        for at in nl.affine_range(4):
            y[:, at, 0:48] = nl.exp(x[:, at, 0:96:2])
            y[:, at, 48:96] = nl.add(x[:, at, 1:96:2], x[:, at, 0:48])
        x[:, 0:2, 3:50] = nl.multiply(y[:, 1:3, 3:50], 2.0)
        x[0:32, 3, :] = nl.copy(y[64:96, 0, :])
        x.view(nl.int32)[:, 2, 5:9] = nl.copy(y.view(nl.int32)[:, 3, 0:4])
        i = nl.arange(12)[None, :]
        x[nl.arange(128)[:, None], 1, i * i % 96] = nl.copy(y[nl.arange(128)[:, None], 1, i])
        w = nl.load(b)
        total = nl.ndarray((128, 96), dtype=nl.float32, buffer=nl.psum)
        for part in nl.affine_range(2):
            moving = nl.copy(x[:, part, :], dtype=nl.bfloat16)
            total[:, part * 48 : part * 48 + 48] = nisa.nc_matmul(w, moving[:, part * 48 : part * 48 + 48])
        x[p, 3, f] += total[p, f]
        nl.store(out[p, f], value=x[p, 3, f])
    return out


def test_every_instruction_waits_for_the_bytes_that_it_touches(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[WatchedCore] = []

    def core(*arguments: Any) -> WatchedCore:
        made.append(WatchedCore(*arguments))
        return made[-1]

    monkeypatch.setattr("meshrt.nki.session.NeuronCore", core)
    nki.simulate(many_ways, show=False)(np.ones((128, 384), np.float32), np.ones((128, 128), BF16))
    assert sum(core.seen for core in made) > 60


@pytest.mark.parametrize(
    ("dtype", "op", "psum", "number", "passes"),
    [
        (nl.bfloat16, nl.multiply, False, False, (1, 2)), (nl.bfloat16, nl.add, False, True, (2, 1)),
        (nl.float32, nl.multiply, False, True, (2, 1)), (nl.float32, nl.multiply, True, False, (1, 1)),
    ],
)  # fmt: skip
def test_cycles_of_two_operators_and_of_a_predicated_copy(
    dtype: Any, op: Any, psum: bool, number: bool, passes: tuple[int, int]
) -> None:
    def kernel() -> None:
        tile = nl.full((32, 100), 2.0, dtype, nl.psum if psum else nl.sbuf)
        other, to = nl.full((32, 100), 3.0, dtype, nl.sbuf), nl.full((32, 100), 0.0, dtype, nl.sbuf)
        chosen = nl.full((32, 100), 1, nl.uint8, nl.sbuf)
        nisa.scalar_tensor_tensor(dst=to, data=tile, op0=nl.subtract, operand0=1.0, op1=op, operand1=other)
        nisa.tensor_copy_predicated(dst=to, src=5.0 if number else tile, predicate=chosen)

    jitted = nki.jit(kernel)
    nki.simulate(jitted, show=False)()
    assert jitted.report is not None
    sets = 3 * 100 + max(64, 100 / (2 if dtype == nl.bfloat16 else 1))  # zeros of 16 bits take half
    cycles = TRN1.vector_hz * jitted.report["engines"]["vector"]["busy_seconds"]
    assert cycles == pytest.approx(sets + 100 * sum(passes))


@pytest.mark.parametrize("way", ["array", "slice", "vector"])
def test_what_a_tile_picks_waits_for_the_tile(way: str) -> None:
    """Three transfers one after the other, each 1.3 us from what it waits for: the indices, the rows, the result."""

    def kernel(table: Any, places: Any) -> Any:
        rows = places.shape[0] if way != "slice" else 8
        out = nl.ndarray((rows, 16), table.dtype, buffer=nl.shared_hbm)
        index, tile = nl.load(places), nl.ndarray((rows, 16), table.dtype, buffer=nl.sbuf)
        if way == "array":
            tile[...] = nl.load(table[index, nl.arange(16)[None, :]])
        elif way == "slice":
            tile[...] = nl.load(table[nl.ds(index[0:1, 0:1], 8), :])
        else:
            nisa.dma_copy(dst=tile, src=table.vector_select(0, index))
        nl.store(out, tile)
        return out

    table, places = np.arange(640, dtype=np.float32).reshape(40, 16), np.array([[7], [3], [20], [0]], np.int32)
    jitted = nki.jit(kernel)
    got = nki.simulate(jitted, show=False)(table, places)
    assert (got == (table[7:15] if way == "slice" else table[places[:, 0]])).all() and jitted.report is not None
    seconds = jitted.report["critical_path"]["seconds"]
    assert 3 * TRN1.dma_start_seconds < seconds < 3 * TRN1.dma_start_seconds + 1e-7


@settings(max_examples=examples(200))
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 30)), min_size=1, max_size=3), st.integers(0, 20),
    st.sampled_from([(4, 2), (2, 4), (2, 2)]),
)  # fmt: skip
@example([(4, 30), (2, 12)], 3, (4, 4))
def test_boxes_of_a_pattern_hold_it(axes: list[tuple[int, int]], offset: int, widths: tuple[int, int]) -> None:
    """Of a store of rows of 30 elements, read as numbers of another width; also if its elements are listed."""
    width, itemsize = widths
    pattern = AccessPattern(tuple(size for size, _ in axes), tuple(stride for _, stride in axes), offset)
    listed = pattern.listed()
    every = {int(byte) for element in listed.reshape(-1) for byte in range(element * width, element * width + width)}
    row_bytes = 30 * itemsize
    for each in (pattern, AccessPattern(listed.shape, (0,) * listed.ndim, elements=listed)):
        boxes = PatternExtent(each, width).boxes((40, 5, 6), itemsize)
        inside = {
            row * row_bytes + column
            for top, end, left, right in boxes for row in range(top, end) for column in range(left, right)
        }  # fmt: skip
        assert every <= inside
    empty = AccessPattern((0, 1), (0, 0), elements=np.zeros((0, 1), np.int64))
    assert PatternExtent(empty, width).boxes((40, 5, 6), itemsize) == []
