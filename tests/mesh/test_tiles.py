"""A matrix of one's own on the cores, and back: the short ways of `meshrt.mesh` come to what the long ones do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from measure import measured, own
from runs import new_block

from meshrt.mesh import chain, crossbar, gather, installed, interleaved_ring, multicast, place, take
from meshrt.mesh.exchange.exchange import exchange
from meshrt.mesh.exchange.legs import Transfer


@pytest.mark.mpi(ranks=[1, 4, 6])
@pytest.mark.parametrize("shape", [(6, 8), (7, 13), (1, 1)])
def test_an_array_is_placed_as_a_function_of_its_parts_and_gathered_as_it_was(shape: tuple[int, int], comm) -> None:
    matrix = np.random.default_rng(0).random(shape, np.float32)
    blocks = [new_block(comm, (6, 4), "wse2") for _ in range(3)]
    tiles = place(blocks[0], "A", matrix)
    by_parts = place(blocks[1], "A", lambda *part: matrix[part], shape, (4, 6), np.float32)
    more = place(blocks[2], "A", matrix, cut=(8, 12), dtype=np.float64)
    assert tiles.dtype == np.float32 and tiles.tobytes() == by_parts.tobytes()
    assert tiles.shape == (*by_parts.shape[:2], *by_parts.shape[4:]) and by_parts.shape[2:4] == (1, 1)
    assert more.dtype == np.float64 and more.shape[2:4] == (2, 2)
    for block, placed in ((blocks[0], tiles), (blocks[1], by_parts), (blocks[2], more)):
        whole = gather(block, placed, shape)
        assert (whole is not None) == (comm.rank == 0)
        assert whole is None or np.array_equal(whole, matrix)
    assert blocks[0].memory.peak == blocks[1].memory.peak > 0


@pytest.mark.mpi(ranks=[1, 6])
def test_a_rank_of_padding_alone_asks_for_no_part(comm) -> None:
    """It asked for rows 3 to 2, of which NumPy makes no array."""
    block = new_block(comm, (6, 4))
    made = place(block, "A", lambda *part: np.ones([side.stop - side.start for side in part], "f"), (2, 3), dtype="f")
    whole = gather(block, made, (4, 6))
    assert whole is None or (whole.sum() == 6 and whole[:2, :3].all())


@pytest.mark.mpi(ranks=[1, 2, 6])
@pytest.mark.parametrize("tile", [(), (3,), (2, 3, 4)])
def test_tiles_of_any_kind_are_gathered_core_by_core(tile: tuple[int, ...], comm) -> None:
    block = new_block(comm, (6, 4), "wse2")
    every = np.random.default_rng(0).integers(0, 99, (4, 6, *tile))
    whole = gather(block, own(block, every))
    assert (whole is not None) == (comm.rank == 0)
    assert whole is None or np.array_equal(whole, every)


@pytest.mark.mpi(ranks=[1, 4])
def test_what_has_no_numbers_is_not_gathered(comm) -> None:
    block = new_block(comm, (4, 4), "wse2", payload=False)
    tiles = place(block, "A", np.ones((8, 8), np.float32))
    assert gather(block, tiles, (8, 8)) is None and gather(block, tiles) is None


@pytest.mark.mpi(ranks=[1, 4])
def test_routes_are_installed_for_a_block_or_in_its_tables(comm) -> None:
    block = new_block(comm, (4, 4), "wse2")
    paths = [((0, 0), (1, 0), (1, 1))]
    for by_block, by_tables in (
        (installed(block, "x", chain), installed(block, "x", chain)),
        (installed(block, None, paths), installed(block, None, paths)),
    ):
        with by_block as way:
            entries = block.tables.entries.copy()
        with by_tables as again:
            assert (
                np.array_equal(block.tables.entries, entries) and block.control.allreduce(int(entries.max()), max) > 0
            )
            assert np.array_equal(way.colours, again.colours)


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize(
    ("axis", "pattern", "more"),
    [("x", chain, ()), ("y", chain, (-1,)), ("x", multicast, (2,)), ("y", interleaved_ring, (True,))],
)
@pytest.mark.parametrize("lines", [None, 1])
def test_a_pattern_is_made_for_the_length_of_the_line(
    axis: str, pattern: Any, more: tuple[int, ...], lines: int | None, comm
) -> None:
    block = new_block(comm, (6, 4), "wse2")
    n, across = (6, 4) if axis == "x" else (4, 6)
    chosen = None if lines is None else np.arange(across) == lines
    with installed(block, axis, pattern, *more, lines=chosen):
        entries = block.tables.enters.copy(), block.tables.leaves.copy()
    with installed(block, axis, pattern(n, *more), lines=chosen):
        assert np.array_equal(entries, (block.tables.enters, block.tables.leaves))
        assert block.control.allreduce(int(entries[0].sum())) > 0


@pytest.mark.mpi(ranks=[1, 4])
def test_what_is_taken_is_what_a_transfer_brings(comm) -> None:
    tiles = np.random.default_rng(0).random((4, 4, 3), np.float32)
    owners = np.random.default_rng(1).integers(0, 16, 16)
    results = []
    for short in (True, False):
        block = new_block(comm, (4, 4), "wse2")
        mine = own(block, tiles)
        with crossbar(block) as bar:
            taken = take(block, bar, owners, mine) if short else exchange(block, bar, Transfer(None, owners, mine))[0]
        expected = tiles.reshape(16, 3).take(owners, axis=0).reshape(4, 4, 3)
        assert np.array_equal(taken, own(block, expected))
        results.append({key: part for key, part in measured(block).items() if key != "host"})
    assert results[0] == results[1]


@pytest.mark.mpi(ranks=[1, 4, 6])
@pytest.mark.parametrize("payload", [True, False])
def test_a_block_knows_where_its_cores_are(payload: bool, comm) -> None:
    block = new_block(comm, (6, 4), "wse2", payload=payload)
    tiles = block.tiles("numbers", (2,), np.int64)
    tiles[...] = (block.y[:, None] * 6 + block.x)[..., None]  # as tiles are held, also by shape
    if payload:
        assert np.array_equal(tiles[..., 1], own(block, np.arange(24).reshape(4, 6)))
    else:
        assert (block.x.tolist(), block.y.tolist()) == ([block.mesh.x0], [block.mesh.y0])
