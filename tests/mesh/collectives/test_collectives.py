"""Collectives along lines against NumPy, and what they are counted to cost."""

from __future__ import annotations

import numpy as np
import pytest
from measure import marks, measured, numbered, one_core_each, own, whole
from runs import new_block

from meshrt.errors import RouteError
from meshrt.mesh.block import Block
from meshrt.mesh.collectives import treeplan
from meshrt.mesh.collectives.allreduce import allreduce, ktree
from meshrt.mesh.collectives.rings import interleaved_ring, interleaved_rings
from meshrt.mesh.collectives.shifts import rotate, start_shift
from meshrt.mesh.collectives.trees import reduce
from meshrt.mesh.wires import routes
from meshrt.mesh.wires.receiving import receive
from meshrt.mesh.wires.tables import overwrite

RANKS = [1, 2, 3, 4, 6, 9, 16]
MESH = (7, 5)
ACROSS = 2  # tiles of a core at right angles to a ring


def line_of(block: Block, axis: str) -> tuple[int, int]:
    """(cores on a line, lines)."""
    return block.mesh.length(axis), block.mesh.length("y" if axis == "x" else "x")


def by_line(axis: str, tiles: np.ndarray) -> np.ndarray:
    """[H, W, *tile] as [lines, positions, *tile]; a view."""
    return tiles if axis == "x" else tiles.swapaxes(0, 1)


def ring_tiles(block: Block, axis: str, slots: int) -> np.ndarray:
    """Numbered tiles of all cores: [H, W, rows, columns, 3], the slots in the columns (x) or rows (y)."""
    shape = (ACROSS, slots) if axis == "x" else (slots, ACROSS)
    return numbered(block.mesh.width, block.mesh.height, *shape, 3)


def by_place(axis: str, tiles: np.ndarray) -> np.ndarray:
    """[H, W, rows, columns, *tile] as [lines of tiles, places on their rings, *tile]; a copy."""
    tiles = tiles.transpose(0, 2, 1, 3, 4) if axis == "x" else tiles.transpose(1, 3, 0, 2, 4)
    lines, across, cores, slots, size = tiles.shape
    return tiles.reshape(lines * across, cores * slots, size)


def moved(axis: str, tiles: np.ndarray, steps: int) -> np.ndarray:
    """What so many shifts round the interleaved ring make of tiles, by places; negative: back."""
    placed = by_place(axis, tiles)
    order = np.array(routes.ring_order(placed.shape[1]))
    shifted = np.empty_like(placed)
    shifted[:, order] = np.roll(placed[:, order], steps, axis=1)
    return shifted


# ---------------------------------------------------------------------------------------------------------- rings


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("slots", [1, 2, 3, 4])
@pytest.mark.parametrize("axis", ["x", "y"])
def test_a_shift_moves_every_tile_to_the_next_place(axis: str, slots: int, comm):
    for size in (MESH, one_core_each(comm.size)):
        block = new_block(comm, size)
        n, lines = line_of(block, axis)
        tiles = ring_tiles(block, axis, slots)
        mine, arrived = own(block, tiles), np.full_like(own(block, tiles), np.nan)
        with interleaved_ring(block, axis, slots) as ring, interleaved_ring(block, axis, slots, reverse=True) as back:
            receive(block, start_shift(block, ring, mine, arrived))
            assert np.array_equal(by_place(axis, whole(block, arrived)), moved(axis, tiles, 1))
            assert (whole(block, mine) == tiles).all()
            receive(block, start_shift(block, back, arrived, arrived))  # in place
            assert (whole(block, arrived) == tiles).all()
            receive(block, start_shift(block, back, mine, mine))
            assert np.array_equal(by_place(axis, whole(block, mine)), moved(axis, tiles, -1))
        report = measured(block)
        # On a line, one slot: twice the line in all, with 2 hops at most. More: one tile each way between neighbours.
        assert report["hops"] == 3 * lines * 2 * (n - 1)
        assert report["max_hops"] == min(n - 1, 2 if slots == 1 else 1)
        assert report["link_bytes"]["total"] == report["hops"] * ACROSS * 3 * 4
        assert report["stages"] == 0


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("axis", ["x", "y"])
def test_tiles_of_a_later_shift_can_be_read_until_it_is_waited_for(axis: str, slots: int, comm):
    """In place; messages of the other axis come meanwhile, in the same memory of the host."""
    for size in (MESH, one_core_each(comm.size)):
        block = new_block(comm, size)
        other = "y" if axis == "x" else "x"
        tiles, crossing = ring_tiles(block, axis, slots), ring_tiles(block, other, slots)
        mine, beside = own(block, tiles), own(block, crossing)
        with interleaved_ring(block, axis, slots) as ring, interleaved_ring(block, other, slots) as across:
            for steps in (1, 2):
                before = mine.copy()
                flight = start_shift(block, ring, mine, mine, later=True)
                receive(block, start_shift(block, across, beside, beside))
                assert (mine == before).all()
                receive(block, flight)
                assert np.array_equal(by_place(axis, whole(block, mine)), moved(axis, tiles, steps))
        assert np.array_equal(by_place(other, whole(block, beside)), moved(other, crossing, 2))


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("axis", ["x", "y"])
def test_a_shift_of_some_lines_leaves_the_others(axis: str, slots: int, comm):
    block = new_block(comm, MESH)
    n, lines = line_of(block, axis)
    tiles = ring_tiles(block, axis, slots)
    chosen = marks(lines, [0, 1, 3])
    mine = own(block, tiles)
    with interleaved_ring(block, axis, slots) as ring:
        receive(block, start_shift(block, ring, mine, mine, chosen))
    of_tiles = np.repeat(chosen, ACROSS)
    after = by_place(axis, whole(block, mine))
    assert (after[of_tiles] == moved(axis, tiles, 1)[of_tiles]).all()
    assert (after[~of_tiles] == by_place(axis, tiles)[~of_tiles]).all()
    assert measured(block)["hops"] == 3 * 2 * (n - 1)


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("axis", ["x", "y"])
def test_so_does_one_on_lines_of_one_core(axis: str, slots: int, comm):
    """No packet goes anywhere, and what is not shifted keeps what `out` has all the same."""
    block = new_block(comm, (1, 4) if axis == "x" else (4, 1))
    tiles = ring_tiles(block, axis, slots)
    chosen = marks(4, [0, 3])
    mine, out = own(block, tiles), np.full_like(own(block, tiles), -1)
    with interleaved_ring(block, axis, slots) as ring:
        receive(block, start_shift(block, ring, mine, out, chosen))
    of_tiles = np.repeat(chosen, ACROSS)
    after = by_place(axis, whole(block, out))
    assert (after[of_tiles] == moved(axis, tiles, 1)[of_tiles]).all()
    assert (after[~of_tiles] == -1).all()
    assert measured(block)["hops"] == 0


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("axis", ["x", "y"])
def test_rotate_moves_every_line_by_a_number_of_its_own(axis: str, slots: int, comm):
    block = new_block(comm, MESH)
    n, lines = line_of(block, axis)
    tiles = ring_tiles(block, axis, slots)
    places = [(3 * line - 5) for line in range(lines * ACROSS)]
    mine = own(block, tiles)
    with interleaved_ring(block, axis, slots) as ring, interleaved_ring(block, axis, slots, reverse=True) as back:
        rotate(block, ring, back, mine, places)
    after = by_place(axis, whole(block, mine))
    for line, steps in enumerate(places):
        assert (after[line] == moved(axis, tiles, steps)[line]).all()
    # Each line of tiles goes the short way round its ring.
    total = n * slots
    shifts = sum(min(steps % total, -steps % total) for steps in places)
    assert measured(block)["hops"] == shifts * 2 * (n - 1)


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("mesh", [(6, 4), (4, 4)], ids=str)
def test_four_rings_take_twelve_entries_at_most(mesh: tuple[int, int], comm):
    block = new_block(comm, mesh)
    with interleaved_rings(block) as rings:
        assert (rings.x.slots, rings.y.slots) == ((1, 1) if mesh == (4, 4) else (2, 3))
    assert measured(block)["route_entries"]["max"] <= 12


# --------------------------------------------------------------------------------------------------------- K-tree

TREES = [(1, None), (2, None), (3, None), (2, 1), (2, 2), (2, 5), (3, 4)]


def tree_hops(n: int, phases: int, groups: int | None) -> int:
    """Hops of one reduction on one line: the lengths of the tree's routes, which `test_routes` proves a tree."""
    return sum(route.high - route.low for level in treeplan.ktree(n, phases, groups).levels for route in level.routes)


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize(("phases", "groups"), TREES)
@pytest.mark.parametrize("axis", ["x", "y"])
def test_allreduce_gives_the_sum_to_all_and_stages_each_addition(axis: str, phases: int, groups: int | None, comm):
    block = new_block(comm, MESH)
    n, lines = line_of(block, axis)
    tiles = numbered(*MESH, 2, 3)  # whole numbers: sums are exact in any order
    with ktree(block, axis, phases, groups) as tree:
        sums = by_line(axis, whole(block, allreduce(block, tree, own(block, tiles))))
        expected = by_line(axis, tiles).sum(axis=1, keepdims=True)
        assert (sums == expected).all()
        report = measured(block)
    assert report["stages"] == lines * (n - 1)
    assert report["messages"] == lines * (n - 1 + 1)
    assert report["hops"] == lines * (tree_hops(n, phases, groups) + n - 1)
    assert report["route_entries"]["max"] <= 2 * phases + 1


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("axis", ["x", "y"])
def test_allreduce_works_on_every_short_line(axis: str, comm):
    block = new_block(comm, one_core_each(comm.size))
    tiles = numbered(*one_core_each(comm.size), 2)
    for phases in (1, 2, 3):
        with ktree(block, axis, phases) as tree:
            sums = by_line(axis, whole(block, allreduce(block, tree, own(block, tiles))))
        assert (sums == by_line(axis, tiles).sum(axis=1, keepdims=True)).all()


@pytest.mark.mpi(ranks=RANKS)
def test_allreduce_combines_with_any_operation(comm):
    block = new_block(comm, MESH)
    tiles = np.random.default_rng(0).standard_normal((5, 7, 4)).astype(np.float32)
    with ktree(block, "x") as tree:
        most = whole(block, allreduce(block, tree, own(block, tiles), np.maximum))
        least = whole(block, allreduce(block, tree, own(block, tiles), np.minimum))
    assert (most == tiles.max(axis=1, keepdims=True)).all()
    assert (least == tiles.min(axis=1, keepdims=True)).all()


@pytest.mark.mpi(ranks=[1, 4])
def test_what_a_sum_does_is_looked_up_once_and_anew_when_a_table_has_changed(comm):
    block = new_block(comm, (4, 4))
    tiles = own(block, numbered(4, 4, 3))
    with ktree(block, "x", 2) as tree:
        first = allreduce(block, tree, tiles)
        plans = dict(tree.plans)
        assert plans and np.array_equal(allreduce(block, tree, tiles), first)
        assert tree.plans == plans
        allreduce(block, tree, tiles, lines=np.arange(4) < 2)
        allreduce(block, tree, own(block, numbered(4, 4, 5)))
        assert len(tree.plans) == 3 * len(plans) and not tree.only(0, 2).plans


@pytest.mark.mpi(ranks=[1])
def test_a_sum_ends_where_its_routes_have_been_changed_or_left(comm):
    block = new_block(comm, (4, 4))
    tiles = numbered(4, 4, 3)
    with ktree(block, "x", 2) as tree:
        allreduce(block, tree, tiles)
    with pytest.raises(RouteError, match="is used after its `with` block was left"):
        allreduce(block, tree, tiles)
    with ktree(block, "x", 2) as tree:
        allreduce(block, tree, tiles)
        overwrite(block.tables, (1, 1), int(tree.spread.colours[0]), 0, 0)
        with pytest.raises(RouteError, match=r"core \(1, 1\) has no rule"):
            allreduce(block, tree, tiles)


@pytest.mark.mpi(ranks=RANKS)
def test_reduce_leaves_the_sum_at_the_root_and_the_tiles_alone(comm):
    block = new_block(comm, MESH)
    tiles = numbered(*MESH)
    mine = own(block, tiles)
    with ktree(block, "x", 2, 3) as tree:
        sums = whole(block, reduce(block, tree, mine))
        assert (sums[:, tree.root] == tiles.sum(axis=1)).all()
    assert (whole(block, mine) == tiles).all()
    assert measured(block)["hops"] == 5 * tree_hops(7, 2, 3)


@pytest.mark.mpi(ranks=[1, 4])
def test_a_reduction_holds_its_sum_and_its_incoming_tile(comm):
    block = new_block(comm, MESH)
    with ktree(block, "x") as tree:
        allreduce(block, tree, own(block, numbered(*MESH, 2, 3)))
    assert measured(block)["memory_bytes"]["max"] == 2 * (2 * 3 * 4)
