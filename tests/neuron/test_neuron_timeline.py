"""When instructions and transfers run: worked out by hand, with 1 cycle and 1 byte a second (neuron_cores.slow_core).

There a transfer of b bytes takes b + 1 s on the one DMA engine, an instruction as many seconds as it has cycles.
"""

import re
from collections.abc import Callable
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuron_cores import loaded, new_core, slow_core, tensor

from meshrt.neuron import isa as nisa
from meshrt.neuron import language as nl
from meshrt.neuron.core import NeuronCore
from meshrt.neuron.device import NEURON_PRESETS
from meshrt.neuron.tile import Tile, as_tile
from meshrt.neuron.timeline import DmaRings

F32, BF16 = nl.float32, nl.bfloat16


def fresh(core: NeuronCore, *shape: int, dtype: Any = F32) -> Tile:
    tile: Tile = nl.ndarray(shape, dtype, buffer=core.sbuf)
    return tile


# ---- dependencies


def test_a_tiny_kernel() -> None:
    """Two loads of 16 bytes, one after the other on the one engine; a + b reads two tiles of float32: 8 cycles."""
    core = slow_core()
    a, b = loaded(core, 1, 4), loaded(core, 1, 4, seed=1)
    assert (a.store.ready, b.store.ready) == (17, 34)
    total = as_tile(a + b)
    assert total.store.ready == 42
    out = nl.ndarray((1, 4), F32, buffer=core.hbm)
    nl.store(out, total)
    assert (out.store.ready, core.now, core.dma.busy, core.vector.busy) == (59, 59, 51, 8)


def test_engines_run_side_by_side_each_in_order() -> None:
    core = slow_core()
    x = loaded(core, 1, 4)  # until 17
    ends = [
        as_tile(nisa.tensor_copy(x, engine=engine)).store.ready
        for engine in (core.vector, core.scalar, core.gpsimd, core.scalar)
    ]
    assert ends == [21, 21, 21, 25]


def test_read_after_write_write_after_read_write_after_write() -> None:
    core = slow_core()
    x, y = fresh(core, 1, 10), fresh(core, 1, 10)
    nisa.memset(x, 1.0, engine=core.gpsimd)  # 0..10
    y[...] = nisa.tensor_copy(x, engine=core.scalar)  # reads x: 10..20
    assert y.store.ready == 20
    nisa.memset(x, 2.0, engine=core.vector)  # overwrites what the copy reads: 20..30
    assert x.store.ready == 30
    nisa.memset(y, 3.0, engine=core.gpsimd)  # overwrites what the copy wrote: 20..30
    assert y.store.ready == 30
    nisa.memset(y, 4.0, engine=core.scalar)
    assert y.store.ready == 40


def test_parts_of_a_tile_are_filled_side_by_side_and_rewritten_in_turn() -> None:
    core = slow_core()
    x = fresh(core, 1, 30)
    nisa.memset(x[:, 0:10], 1.0, engine=core.gpsimd)
    nisa.memset(x[:, 10:20], 1.0, engine=core.vector)
    assert (core.gpsimd.now, core.vector.now) == (10, 10)
    nisa.memset(x[:, 5:15], 1.0, engine=core.scalar)  # written before, in part
    assert core.scalar.now == 20
    nisa.memset(x[:, 20:30], 1.0, engine=core.gpsimd)  # not so: 10..20
    assert core.gpsimd.now == 20
    nisa.memset(x[:, 0:10], 1.0, engine=core.gpsimd)
    assert core.gpsimd.now == 30


@pytest.mark.parametrize(("reorder", "ends"), [(False, (29, 39, 48)), (True, (8, 31, 17))])
def test_what_is_free_goes_before_what_waits_if_the_order_may_change(reorder: bool, ends: tuple[int, ...]) -> None:
    """A copy waits for its load until 17, and ends at 21. Eight and five and four seconds fit before it, ten do not;
    after a barrier nothing goes before that."""
    core = NeuronCore(slow_core().device, reorder=reorder)
    x = loaded(core, 1, 4)
    nisa.tensor_copy(x).settle()
    tiles = [fresh(core, 1, size) for size in (8, 10, 9)]
    for tile in tiles[:2]:
        nisa.memset(tile, 1.0)
    nisa.memset(tiles[2][:, 0:5], 1.0)
    nisa.memset(tiles[2][:, 5:9], 1.0)
    assert tuple(tile.store.ready for tile in tiles) == ends
    assert core.vector.busy == 4 + 8 + 10 + 9
    assert core.barrier(60.0) == 60
    nisa.memset(tiles[0], 1.0)
    assert (tiles[0].store.ready, core.barrier()) == (68, 68)


def test_a_sum_adds_its_products_in_order_and_is_read_when_it_is_done() -> None:
    """Products of bfloat16 with 4 moving columns take 4 cycles, of float32 16."""
    core = slow_core()
    x, y = nl.full((4, 4), 1.0, BF16, buffer=core.sbuf), nl.full((4, 4), 1.0, F32, buffer=core.sbuf)  # until 4, 8
    acc = nl.zeros((4, 4), F32, buffer=core.psum)
    for _ in range(3):
        acc += nisa.nc_matmul(x, x)
    assert acc.store.ready == 16
    acc += nisa.nc_matmul(y, y)
    out = as_tile(nisa.tensor_copy(acc, engine=core.scalar))
    assert (acc.store.ready, out.store.ready, core.tensor.busy) == (32, 36, 28)


def test_a_barrier_and_a_phase_begin_when_all_is_done() -> None:
    core = slow_core()
    x = loaded(core, 1, 4)  # until 17
    with core.phase("one") as phase:
        nisa.memset(fresh(core, 1, 9), 1.0)
        use = as_tile(nisa.tensor_copy(x, engine=core.scalar))
    assert (phase.begin, phase.end, use.store.ready) == (17, 26, 21)
    assert (phase.busy["vector"], phase.busy["scalar"], phase.busy["dma"], phase.instructions["dma"]) == (9, 4, 0, 0)
    assert core.barrier(50.0) == 50
    nisa.memset(x, 1.0)
    assert x.store.ready == 54


# ---- DMA


def test_a_transfer_that_waits_leaves_its_time_to_other_queues() -> None:
    """The store waits for 40 cycles of the vector engine; a load that comes later in the program goes before it."""
    core = slow_core()
    slow = fresh(core, 1, 40)
    nisa.memset(slow, 1.0)  # 0..40
    out = nl.ndarray((1, 40), F32, buffer=core.hbm)
    nl.store(out, slow)  # 160 bytes: 40..201
    first = loaded(core, 1, 4)  # 0..17
    second = loaded(core, 1, 4)  # 17..34
    third = loaded(core, 1, 4)  # 34..51 would overlap: 201..218
    fourth = loaded(core, 1, 1)  # 4 bytes would fit before 40, but loads start in their order: 218..223
    assert [tile.store.ready for tile in (first, second, third, fourth)] == [17, 34, 218, 223]
    assert (out.store.ready, core.dma.busy) == (201, 161 + 3 * 17 + 5)


def test_a_transposing_load_takes_twice_the_time_of_its_bytes() -> None:
    core = slow_core()
    x = tensor(core, 4, 1)
    assert as_tile(nl.load(x.reshape(1, 4))).store.ready == 17
    assert as_tile(nl.load_transpose2d(x)).store.ready == 17 + 2 * 16 + 1
    assert core.counts["hbm_read"] == 32


def test_a_transfer_is_cut_by_partitions_over_the_engines() -> None:
    """128 partitions on 16 engines are 8 each. Few partitions keep few engines busy, and leave the rest to others."""
    core = new_core()
    for rows, engines in ((128, 16), (8, 1), (16, 2), (17, 3), (1, 1)):
        core.barrier()
        before, busy, descriptors = core.now, core.dma.busy, core.counts["dma_descriptors"]
        loaded(core, rows, 512)
        seconds = -(-rows // engines) * (2048 / 17e9 + 1.1e-9)
        assert core.now - before == pytest.approx(1.3e-6 + seconds)
        assert core.dma.busy - busy == pytest.approx(seconds * engines / 16)
        assert core.counts["dma_descriptors"] - descriptors == rows


def test_an_engine_moves_no_more_than_its_share_of_the_hbm() -> None:
    core = new_core(hbm_bytes_per_second=16e9, dma_start_seconds=0.0)
    loaded(core, 8, 512)
    assert core.now == pytest.approx(8 * (2048 / 1e9 + 1.1e-9))


@pytest.mark.parametrize(("rows", "columns", "nanoseconds"), [(4, 4096, 1416), (128, 128, 97)])
def test_transfers_of_the_sdk_take_what_its_profiles_show(rows: int, columns: int, nanoseconds: int) -> None:
    """Introduction to DMA with NKI, its two examples on a trn2, bfloat16: what one engine takes of each."""
    core = NeuronCore(NEURON_PRESETS["trn2"])
    loaded(core, rows, columns, dtype=BF16)
    assert core.now - core.device.dma_start_seconds == pytest.approx(1e-9 * nanoseconds, rel=0.01)


def test_a_transfer_that_is_about_to_start_keeps_nobody_busy() -> None:
    """Four seconds before its first byte: the second load's are over with the first one's. A chain waits each time."""
    core = slow_core(dma_start_seconds=4.0, dma_descriptor_seconds=0.5)
    a, b = loaded(core, 1, 4), loaded(core, 1, 4)
    assert (a.store.ready, b.store.ready, core.dma.busy) == (4 + 17.5, 4 + 2 * 17.5, 35)
    out = nl.ndarray((1, 4), F32, buffer=core.hbm)
    nl.store(out, b)  # waits for b
    assert out.store.ready == 39 + 4 + 17.5


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["load", "store", "spill"]), st.integers(0, 300), st.integers(1, 8), st.integers(1, 9)
        ),
        max_size=150,
    )
)
def test_bookings_never_overlap_nor_begin_early(transfers: list[tuple[str, int, int, int]]) -> None:
    """Of transfers that may begin 3 s after 0..300 s, and keep 2 engines busy for rows * (bytes + 2) + 1 s."""
    taken: list[tuple[float, float]] = []

    class Watched(DmaRings):
        def _book(self, earliest: float, seconds: float) -> float:
            start = super()._book(earliest, seconds)
            taken.append((start, start + seconds))
            return start

    rings = Watched(2, 8, 1.0, 2.0, 1.0, 3.0)
    last: dict[str, float] = {}
    for queue, earliest, rows, nbytes in transfers:
        end = rings.run(queue, earliest, rows, nbytes)
        start = taken[-1][0]
        assert start >= max(earliest + 3, last.get(queue, 0.0))
        assert end == start + -(-rows // min(2, -(-rows // 4))) * (nbytes + 2) + 1
        last[queue] = start
    taken.sort()
    assert all(booked[1] <= after[0] for booked, after in pairwise(taken))
    assert rings.busy == sum(end - start for start, end in taken) and rings.transfers == len(transfers)
    assert rings.end == max((end for _, end in taken), default=0)


# ---- costs

COSTS: dict[str, tuple[Callable[[NeuronCore, Tile, Tile], Any], str, float]] = {
    # of x, y [128, 300] in bfloat16; w is float32
    "activation": (lambda c, x, w: nisa.activation(nl.exp, x), "scalar", 300),
    "activation_reduce": (
        lambda c, x, w: nisa.activation_reduce(nl.exp, x, reduce_op=np.add, reduce_res=fresh(c, 128, 1)), "scalar", 364
    ),
    "tensor_tensor of bfloat16": (lambda c, x, w: x + x, "vector", 300),
    "tensor_tensor to float32": (lambda c, x, w: nl.add(x, x, dtype=F32), "vector", 600),
    "tensor_tensor of float32": (lambda c, x, w: w * w, "vector", 600),
    "tensor_tensor, dear op": (lambda c, x, w: nl.maximum(x, x), "vector", 600),
    "tensor_tensor with PSUM": (lambda c, x, w: w + nisa.nc_matmul(x[:, 0:128], x), "vector", 300),
    "tensor_scalar": (lambda c, x, w: w * 2.0, "vector", 300),
    "tensor_scalar, two ops": (
        lambda c, x, w: nisa.tensor_scalar(x, np.add, 1, op1=np.multiply, operand1=2), "vector", 300
    ),
    "tensor_copy": (lambda c, x, w: nisa.tensor_copy(x, dtype=F32), "vector", 300),
    "tensor_copy on scalar": (lambda c, x, w: nisa.tensor_copy(x, engine=c.scalar), "scalar", 300),
    "tensor_reduce": (lambda c, x, w: nl.max(w), "vector", 300),
    "tensor_reduce of bfloat16": (lambda c, x, w: nl.sum(x), "vector", 150),
    "tensor_reduce to float32": (lambda c, x, w: nl.sum(x, dtype=F32), "vector", 300),
    "reciprocal": (lambda c, x, w: nisa.reciprocal(x), "vector", 2400),
    "memset": (lambda c, x, w: nisa.memset(x, 1.0), "vector", 300),
    "memset of zeros": (lambda c, x, w: nisa.memset(x, 0.0), "vector", 150),
    "memset of float32 zeros": (lambda c, x, w: nisa.memset(w, 0.0), "vector", 300),
    "affine_select": (lambda c, x, w: nisa.affine_select(np.ones((128, 300)), x, 0.0), "gpsimd", 450),
    "small": (lambda c, x, w: x[:, 0:2] + x[:, 0:2], "vector", 64),
    "product": (lambda c, x, w: nisa.nc_matmul(x[:, 0:128], x), "tensor", 300),
    "product, narrow": (lambda c, x, w: nisa.nc_matmul(x[:, 0:128], x[:, 0:10]), "tensor", 64),
    "product, narrow, float32": (lambda c, x, w: nisa.nc_matmul(w[:, 0:128], w[:, 0:10]), "tensor", 256),
    "product, float32": (lambda c, x, w: nisa.nc_matmul(w[:, 0:128], w), "tensor", 1200),
    "transpose": (lambda c, x, w: nisa.nc_transpose(x[:, 0:70], nl.shared_identity(c, BF16)), "tensor", 128),
}  # fmt: skip


@pytest.mark.parametrize("name", COSTS)
def test_costs_are_those_of_the_reference(name: str) -> None:
    """docs/neuron.md has the formulas and where they are from."""
    instruction, engine, cycles = COSTS[name]
    core = new_core()
    x, w = loaded(core, 128, 300, dtype=BF16), loaded(core, 128, 300, seed=1)
    instruction(core, x, w)
    core.settle()
    unit = getattr(core, engine)
    assert unit.busy * unit.hz == pytest.approx(cycles)


def test_the_narrowest_product_still_takes_its_least() -> None:
    """max(min(64, 10), 5) = 10 cycles, of which an instruction takes 64 at least."""
    core = new_core()
    x = loaded(core, 128, 10, dtype=BF16)
    nisa.nc_matmul(x, x[:, 0:5]).settle()
    assert core.tensor.busy * core.tensor.hz == pytest.approx(64)


@pytest.mark.parametrize("name", NEURON_PRESETS)
def test_presets_say_where_each_of_their_numbers_is_from(name: str) -> None:
    device = NEURON_PRESETS[name]
    named = set(re.findall(r"\w+", " ".join(device.sources)))
    assert {field.name for field in fields(device)} - named == {"name", "sources"}
    assert device.peak_flops == pytest.approx({"trn1": 92e12, "trn2": 79e12}[name], rel=0.01)
