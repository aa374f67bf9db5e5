"""Instructions wait for the bytes that they touch: beside an oracle that keeps the times of every byte, and by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from neuron_cores import slow_core
from tiers import examples
from watched_cores import WatchedCore

from meshrt.neuron import isa as nisa
from meshrt.neuron import language as nl
from meshrt.neuron.device import find_neuron_device
from meshrt.neuron.regions import MOST_BOXES, PartTimes, TimeGrid, boxes_of
from meshrt.programs.neuron.blocks import BlockSizes
from meshrt.programs.neuron.dense import dense
from meshrt.programs.neuron.fused import fused

F32, BF16 = nl.float32, nl.bfloat16
SHAPE = (40, 3, 8)  # of the stores of random instructions


# ---- random instructions

# Of an axis of n: (start, step, count), which has count elements in 0..n - 1.
piece = st.tuples(st.integers(0, 7), st.sampled_from([1, 1, 1, 2, 3]))
instruction = st.tuples(
    st.sampled_from(["vector", "scalar", "gpsimd", "load", "store", "set"]),
    st.integers(0, 1), st.integers(0, 1),  # the stores
    st.tuples(st.integers(1, 40), st.integers(1, 3), st.integers(1, 8)),  # the size of the operands
    st.tuples(piece, piece, piece), st.tuples(piece, piece, piece),  # where they are
)  # fmt: skip


def key_of(size: tuple[int, ...], spots: Any) -> tuple[slice, ...]:
    """A part of that size: rows from 0 or 32 on, other axes anywhere and with any step that leaves it inside."""
    rows = 32 if spots[0][0] % 2 and size[0] <= 8 else 0
    keys = [slice(rows, rows + size[0])]
    for count, (start, step), whole in zip(size[1:], spots[1:], SHAPE[1:], strict=True):
        step = step if step * (count - 1) < whole else 1
        start %= whole - step * (count - 1)
        keys.append(slice(start, start + step * (count - 1) + 1, step))
    return tuple(keys)


@settings(max_examples=examples(80))
@given(st.lists(instruction, max_size=60), st.sampled_from([F32, BF16]), st.booleans())
def test_every_instruction_waits_for_the_bytes_that_it_touches_and_no_others(
    run: Any, dtype: Any, reorder: bool
) -> None:
    """Also if engines take them in another order, and never two at once."""
    core = WatchedCore(slow_core(dma_start_seconds=4.0).device, reorder=reorder)
    core.trace = []
    stores = [nl.ndarray(SHAPE, dtype, buffer=core.sbuf) for _ in range(2)]
    far = core.tensor_of(np.ones(SHAPE), dtype)
    for tile in stores:
        nisa.memset(tile, 0.0)
    for name, to, of, size, left, right in run:
        target, source = stores[to][key_of(size, left)], stores[of][key_of(size, right)]
        if name == "load":
            target[...] = nl.load(far[key_of(size, right)])
        elif name == "store":
            nl.store(far[key_of(size, left)], source)
        elif name == "set":
            nisa.memset(target, 1.0, engine=core.gpsimd)
        else:
            target[...] = nisa.tensor_copy(source, engine=getattr(core, name))
    assert core.seen == len(run) + 2
    for engine in core.engines:
        ran = [(event.begin, event.end) for event in core.trace if event.track == engine.name]
        assert reorder or ran == sorted(ran)
        assert all(one_ran[1] <= next_ran[0] for one_ran, next_ran in pairwise(sorted(ran)))
        assert engine.busy == sum(end - begin for begin, end in ran) and engine.now == max((0.0, *(r[1] for r in ran)))


def test_every_instruction_of_our_kernels_does() -> None:
    """With blocks that divide nothing, transposes by either way, sums in PSUM and SBUF."""
    core = WatchedCore(find_neuron_device("trn1"))
    x, u, v = (core.tensor_of(np.ones(shape), BF16) for shape in ((300, 260), (260, 150), (150, 700)))
    w = core.tensor_of(np.ones((260, 700)), BF16)
    identity = nl.shared_identity(core, BF16)
    blocks = BlockSizes(130, 140, 100, 520)
    fused(x, u, v, blocks, BF16)
    fused(x, u, v, blocks, F32, req_ot=True, identity=identity)
    dense(x, w, blocks, F32, out_transposed=True)
    assert core.seen > 500


# ---- by hand


def test_loads_into_parts_of_a_zeroed_tile_overlap_and_into_one_part_do_not() -> None:
    """Zeros until 8; 4 s later, the first load's 17 s. The second one's wait is over by then, and it follows at once;
    a third one, into the same part, begins its wait at 46."""
    core = slow_core(dma_start_seconds=4.0)
    x, row = nl.zeros((1, 8), F32, buffer=core.sbuf), core.tensor_of(np.ones((1, 4)), F32)
    ends = []
    for part in (slice(0, 4), slice(4, 8), slice(4, 8)):
        x[:, part] = nl.load(row)
        ends.append(core.finish)
    assert ends == [8 + 4 + 17, 29 + 17, 46 + 4 + 17]


def test_a_part_that_is_there_is_read_while_the_rest_is_loaded() -> None:
    core = slow_core()
    x, row = nl.zeros((1, 8), F32, buffer=core.sbuf), core.tensor_of(np.ones((1, 4)), F32)  # zeros until 8
    x[:, 0:4] = nl.load(row)  # 8..25
    x[:, 4:8] = nl.load(row)  # 25..42
    y = nl.ndarray((1, 8), F32, buffer=core.sbuf)
    y[:, 0:4] = nisa.tensor_copy(x[:, 0:4], engine=core.scalar)
    assert core.scalar.now == 25 + 4
    y[:, 4:8] = nisa.tensor_copy(x[:, 2:6], engine=core.scalar)  # reads of both loads
    assert core.scalar.now == 42 + 4
    nisa.memset(x[:, 0:2], 1.0, engine=core.gpsimd)  # after the first copy
    assert core.gpsimd.now == 29 + 2
    nisa.memset(x[:, 1:3], 1.0, engine=core.gpsimd)  # after the second, of one byte
    assert core.gpsimd.now == 46 + 2
    nisa.memset(y, 1.0)
    assert (core.vector.now, y.store.ready, x.store.idle) == (46 + 8, 54, 46)
    nisa.tensor_copy(x, engine=core.scalar).settle()  # all of it: 48..56
    nisa.memset(x[:, 6:8], 1.0)
    assert (core.scalar.now, core.vector.now) == (56, 56 + 2)


def test_a_store_that_moves_goes_as_one() -> None:
    """Two places of 32 bytes. What was spilled and comes back is there as a whole when all of it is."""
    core = slow_core(sbuf_partition_bytes=32)
    x = nl.ndarray((1, 8), F32, buffer=core.sbuf)
    nisa.memset(x[:, 0:4], 1.0)
    nisa.memset(x[:, 4:8], 1.0)  # until 8
    y = nl.ndarray((1, 8), F32, buffer=core.sbuf)  # x is saved: 8..41
    nisa.memset(y, 1.0)  # 41..49
    nisa.memset(x[:, 0:2], 2.0)  # y is saved until 82, x is back at 115
    assert (core.vector.now, x.store.ready) == (117, 117)
    nisa.memset(x[:, 2:4], 2.0, engine=core.scalar)
    assert core.scalar.now == 117


def test_strides_of_many_pieces_are_filled_side_by_side_but_read_as_one() -> None:
    """Evens and odds are 100 pieces each, and so one box: what was never written is known by element."""
    core = slow_core()
    x = nl.ndarray((1, 200), F32, buffer=core.sbuf)
    nisa.memset(x[:, 0::2], 1.0)
    nisa.memset(x[:, 1::2], 1.0, engine=core.gpsimd)
    assert (core.vector.now, core.gpsimd.now) == (100, 100)
    nisa.memset(x[:, 101:201:2], 1.0, engine=core.gpsimd)  # until 150, 50 pieces
    nisa.memset(x[:, 0:100:2], 1.0)
    assert (core.vector.now, core.gpsimd.now) == (150, 150)
    nisa.memset(x[:, 0::2], 1.0, engine=core.scalar)
    assert core.scalar.now == 250


# ---- boxes and grids


@settings(max_examples=examples(300))
@given(
    st.integers(0, 40), st.lists(st.tuples(st.integers(1, 5), st.integers(-40, 40)), max_size=4), st.integers(1, 3),
    st.integers(1, 24),
)  # fmt: skip
@example(0, [(3, 48), (2, 24)], 1, 24)
@example(2, [(5, 24), (2, 12), (4, 1)], 2, 24)
def test_boxes_have_all_bytes_of_a_pattern(
    offset: int, axes: list[tuple[int, int]], width: int, row_bytes: int
) -> None:
    """And no others where the pieces are few and none crosses the end of a row but with whole ones."""
    sizes, strides = [size for size, _ in axes], [stride for _, stride in axes]
    offset -= sum(stride * (size - 1) for size, stride in axes if stride < 0)
    touched = {offset + step for step in range(width)}
    for size, stride in axes:
        touched = {byte + stride * at for byte in touched for at in range(size)}
    boxes = boxes_of(offset, sizes, strides, width, row_bytes)
    inside = {
        row * row_bytes + column
        for top, end, left, right in boxes for row in range(top, end) for column in range(left, right)
    }  # fmt: skip
    assert touched <= inside and all(0 <= left < right <= row_bytes for _, _, left, right in boxes)
    rows = {byte // row_bytes for byte in touched}
    if len(rows) == 1 and len(touched) <= MOST_BOXES:
        columns = {byte % row_bytes for byte in touched}
        if len(boxes) > 1 or len(columns) == max(columns) - min(columns) + 1:
            assert inside == touched


def test_many_pieces_are_one_box_around_all() -> None:
    assert boxes_of(4, [2, 100], [1000, 8], 4, 1000) == [(0, 2, 4, 800)]
    assert len(boxes_of(4, [2, 64], [1000, 8], 4, 1000)) == 64
    assert boxes_of(3, [50], [1], 1, 20) == [(0, 3, 0, 20)]


def test_a_grid_that_is_full_takes_in_the_cells_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshrt.neuron.regions.MOST_CELLS", 4)
    grid = TimeGrid((0, 10), (0, 10), np.zeros((1, 1)))
    grid.note((2, 10, 0, 10), 1.0)
    grid.note((2, 10, 4, 10), 2.0)
    grid.note((5, 6, 6, 7), 3.0)  # all of the cell
    assert (grid.rows, grid.columns, grid.times.tolist()) == ([0, 2, 10], [0, 4, 10], [[0, 0], [1, 3]])
    assert [grid.latest(box) for box in ((0, 2, 0, 10), (0, 3, 0, 4), (9, 10, 3, 5))] == [0, 1, 3]


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.integers(0, 9), st.integers(1, 10)), max_size=30))
def test_what_is_kept_does_not_depend_on_how_it_came(parts: list[tuple[int, int, int, int]]) -> None:
    """What happened before a second is left out, and so are cuts that nothing needs."""
    times, late, truth = PartTimes((6, 10), 1, 0.5), PartTimes((6, 10), 1, 0.5), np.full((6, 10), 0.5)
    for when, (top, rows, left, width) in enumerate(parts):
        key = np.s_[top : top + rows, left : left + width]
        times.note(when, key)
        truth[key] = np.maximum(truth[key], when)
        if when > 7:
            late.note(when, key)
        assert times.latest(key) == truth[key].max()
    grids = [part.after(7.0) for part in (times, late)]
    assert (grids[0] is None) == (grids[1] is None)
    if grids[0] is not None and grids[1] is not None:
        assert grids[0].rows == grids[1].rows and grids[0].columns == grids[1].columns
        assert (grids[0].times == grids[1].times).all()
        assert grids[0].latest((0, 6, 0, 10)) == truth.max()
