"""SBUF, PSUM and HBM: who is spilled when, what that moves and costs, when memory is free again, and peaks."""

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from neuron_cores import loaded, new_core, slow_core, tensor, values
from tiers import examples

from meshrt.errors import UsageError
from meshrt.neuron import isa as nisa
from meshrt.neuron import language as nl
from meshrt.neuron.core import NeuronCore
from meshrt.neuron.tile import Tile, as_tile

F32 = nl.float32


def three(core: NeuronCore) -> Iterator[Tile]:
    """Tiles [128, 4] of float32, 16 bytes of a partition, 2048 bytes in all, that were loaded one after the other."""
    for seed in range(3):
        yield loaded(core, 128, 4, seed=seed)


def spilled(core: NeuronCore) -> tuple[int, int]:
    """Tiles of `three` that were saved, and that came back."""
    assert core.counts["spill_saved"] % 2048 == core.counts["spill_reloaded"] % 2048 == 0
    return core.counts["spill_saved"] // 2048, core.counts["spill_reloaded"] // 2048


def use(tile: Tile) -> None:
    """An instruction that reads a tile and writes nothing new to SBUF."""
    copy = nl.ndarray(tile.shape, F32, buffer=tile.core.psum)
    copy[...] = nisa.tensor_copy(tile)


# ---- spills


def test_the_least_recently_used_tile_goes_first_and_its_numbers_come_back() -> None:
    core = new_core(sbuf_partition_bytes=48)
    a, b, c = three(core)
    before = b.data.copy()
    use(a)
    d = loaded(core, 128, 4, seed=3)
    assert [tile.store.resident for tile in (a, b, c, d)] == [True, False, True, True]
    assert spilled(core) == (1, 0) and core.dma.transfers == 5
    assert (values(nisa.tensor_copy(b[0:5]).settle()) == before[0:5]).all()  # needs two places: of c, then of a
    assert [tile.store.resident for tile in (a, b, c, d)] == [False, True, False, True]
    assert spilled(core) == (3, 1)
    assert (core.counts["hbm_read"], core.counts["hbm_written"]) == ((4 + 1) * 2048, 3 * 2048)


def test_a_tile_is_saved_again_only_if_it_was_written_since() -> None:
    """Three places and four tiles, asked for in turn: each is away when its turn comes, and sends the next away."""
    core = new_core(sbuf_partition_bytes=48)
    a, b, c = three(core)
    d = loaded(core, 128, 4, seed=3)
    assert spilled(core) == (1, 0)
    for tile in (a, b, c, d, a):
        use(tile)
    assert spilled(core) == (4, 5)  # a, b, c, d were saved; then a and b went once more
    a += 1.0
    a_then = a.data.copy()
    for tile in (b, c, d):
        use(tile)
    assert not a.store.resident and spilled(core)[0] == 5
    assert (values(a) == a_then).all()


def test_what_was_never_written_is_neither_saved_nor_brought_back() -> None:
    core = new_core(sbuf_partition_bytes=48)
    fresh = nl.ndarray((128, 4), F32, buffer=core.sbuf)
    kept = [*three(core)]
    assert not fresh.store.resident and spilled(core) == (0, 0)
    fresh[:, 0:2] = 1.0
    assert fresh.store.resident and spilled(core) == (1, 0) and len(kept) == 3


def test_what_is_written_as_a_whole_is_not_brought_back_first() -> None:
    core = new_core(sbuf_partition_bytes=48)
    a, b, c = three(core)
    d = loaded(core, 128, 4, seed=3)
    assert not a.store.resident
    a[...] = 2.0
    assert spilled(core) == (2, 0) and (a.data == 2).all()
    b[:, 0:1] = 3.0
    assert spilled(core) == (3, 1)
    assert all(tile.data.any() for tile in (c, d))


def test_operands_of_one_instruction_do_not_push_one_another_out() -> None:
    core = new_core(sbuf_partition_bytes=48)
    a, b, c = three(core)
    expected = a.data + b.data
    d = nl.ndarray((128, 4), F32, buffer=core.sbuf)
    use(c)
    d[...] = nisa.tensor_tensor(a, b, nl.add)
    assert [tile.store.resident for tile in (a, b, c, d)] == [True, True, False, True]
    assert (d.data == expected).all()


def test_a_spill_comes_back_no_sooner_than_it_has_gone() -> None:
    """1 byte a second: tiles [1, 4] of float32 take 16 s and 1 s more. One place; the DMA is never idle.

    a is loaded until 17, memset makes b: a is saved 17..34, b's 4 cycles 34..38. Then a is asked for: b is saved
    38..55 and a brought back 55..72.
    """
    core = slow_core(sbuf_partition_bytes=16)
    a = as_tile(nl.load(core.tensor_of(np.ones((1, 4)), F32)))
    b = nl.ndarray((1, 4), F32, buffer=core.sbuf)
    nisa.memset(b, 1.0)
    assert (a.store.ready, b.store.ready) == (34, 38)
    use(a)
    assert (a.store.ready, core.vector.now, core.finish) == (72, 76, 76)
    assert core.dma.transfers == 4


# ---- whose memory it is, and until when


def test_memory_is_given_back_with_the_last_reference() -> None:
    core = new_core()
    tile = loaded(core, 128, 4)
    part = tile[:, 0:1]
    del tile
    assert core.sbuf.live == 16
    del part
    assert core.sbuf.live == 0
    for _ in range(5):
        block = loaded(core, 128, 4)  # the one before is still there while the next is loaded: a double buffer
    assert (core.sbuf.live, core.sbuf.peak) == (16, 32)
    assert sum([use(tile) is None for tile in three(core)]) == 3
    assert core.sbuf.live == 16 and block.shape == (128, 4)
    grid = nl.ndarray((2, 3, nl.par_dim(128), 4), F32, buffer=core.sbuf)
    assert core.sbuf.live == 16 * 7 and grid.shape == (2, 3, 128, 4)
    del grid
    with suppress(UsageError):
        fails(core)
    assert core.sbuf.live == 16 and core.psum.live == 0
    total = nl.zeros((128, 1), F32, buffer=core.psum)
    assert core.psum.live == 2048 and total.shape == (128, 1)


def fails(core: NeuronCore) -> None:
    kept, total = [*three(core)], nl.zeros((4, 4), F32, buffer=core.psum)
    total += nisa.nc_matmul(kept[0], kept[1][0:3])


def test_peaks_are_of_a_phase_and_of_the_run() -> None:
    core = new_core()
    with core.phase("first") as first:
        kept = [*three(core)]
    with core.phase("second") as second:
        del kept
        loaded(core, 128, 5)
    assert (first.peaks["sbuf"], second.peaks["sbuf"], core.sbuf.most) == (48, 48, 48)
    with core.phase("third") as third:
        x = tensor(core, 1000, 10)
    assert (third.peaks["sbuf"], third.peaks["hbm"], core.hbm.live) == (0, 40000, 40000)
    assert x.shape == (1000, 10)


def test_a_place_is_free_when_its_last_user_is_done_however_it_is_cut() -> None:
    """A tile of 64 bytes is read until t = 1 + 16 + ... s; what takes any of its bytes has to wait for that."""
    core = slow_core(sbuf_partition_bytes=64)
    big = nl.ndarray((1, 16), F32, buffer=core.sbuf)
    nisa.memset(big, 1.0)  # 0..16
    use(big)  # 16..32
    del big
    small = [nl.ndarray((1, 4), F32, buffer=core.sbuf) for _ in range(4)]
    for tile in small:
        nisa.memset(tile, 1.0, engine=core.gpsimd)
    assert [tile.store.ready for tile in small] == [36, 40, 44, 48]
    use(small[3])  # 48..52
    del small, tile
    two = nl.ndarray((1, 8), F32, buffer=core.sbuf)
    nisa.memset(two, 1.0, engine=core.scalar)  # the places that were free first, at 36 and at 40
    assert two.store.ready == 40 + 8


def test_a_bank_is_free_when_its_last_user_is_done() -> None:
    """The product ends at 4, its copy at 8; the second sum has the same bank and its products wait till then."""
    core = slow_core(psum_banks=1)
    a = core.tensor_of(np.ones((4, 4)), F32)
    x = nl.zeros((4, 4), nl.bfloat16, buffer=core.sbuf)  # until 2: zeros of 16 bit, two a cycle
    first = nl.zeros((4, 4), F32, buffer=core.psum)
    first += nisa.nc_matmul(x, x)
    out = as_tile(nisa.tensor_copy(first))
    assert (first.store.ready, out.store.ready) == (6, 10)
    del first
    second = nl.zeros((4, 4), F32, buffer=core.psum)
    second += nisa.nc_matmul(x, x)
    assert second.store.ready == 14 and a.shape == (4, 4)


@given(st.lists(st.tuples(st.sampled_from("nnfuw"), st.integers(0, 7), st.integers(1, 12)), max_size=60))
@settings(max_examples=examples(60))
def test_any_program_keeps_its_numbers_and_sbuf_its_limit(steps: list[tuple[str, int, int]]) -> None:
    """New, freed, used and written tiles of 4 to 48 bytes in 100 bytes: what NumPy would hold, and no byte twice."""
    core = new_core(sbuf_partition_bytes=100)
    held: dict[int, tuple[Tile, np.ndarray]] = {}
    clock = 0.0
    for at, (action, which, size) in enumerate(steps):
        if action == "n":
            tile = nl.full((2, size), float(at), F32, buffer=core.sbuf)
            held[which] = tile, np.full((2, size), at, np.float32)
            del tile
        elif which in held and action == "f":
            del held[which]
        elif which in held:
            tile, expected = held[which]
            if action == "w":
                tile += 1.0
                expected += 1
            else:
                use(tile)
            assert tile.store.resident and (tile.data == expected).all()
            del tile
        resident = [tile.store for tile, _ in held.values() if tile.store.resident]
        assert core.sbuf.live == sum(store.row_bytes for store in resident) <= 100
        assert core.sbuf.live + sum(size for _, size in core.sbuf.idle) == 100
        assert core.now >= clock
        clock = core.now
    assert all((tile.data == expected).all() for tile, expected in held.values())
