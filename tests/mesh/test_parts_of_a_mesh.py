"""What happens in parts of a mesh: rings and trees inside regions, lines on which nothing moves, cores that rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from measure import measured, numbered, own, whole
from runs import new_block

from meshrt.mesh.clock import TIME
from meshrt.mesh.collectives.allreduce import allreduce, ktree
from meshrt.mesh.collectives.remap import remap
from meshrt.mesh.collectives.rings import rings_in_regions
from meshrt.mesh.presets import WSE2
from meshrt.programs.mesh.meshgemm import meshgemm
from meshrt.programs.mesh.placement import turn


def random_tiles(block: Any, rows: int, columns: int, *tile: int) -> np.ndarray:
    """The same on any ranks: tiles [H, W, rows, columns, *tile] of the whole mesh."""
    mesh = block.mesh
    return np.random.default_rng(4).normal(size=(mesh.height, mesh.width, rows, columns, *tile)).astype(np.float32)


def matrix(tiles: np.ndarray) -> np.ndarray:
    """A region's tiles as the matrix that they are cut from."""
    h, w, rows, columns, m, n = tiles.shape
    return tiles.transpose(0, 2, 4, 1, 3, 5).reshape(h * rows * m, w * columns * n)


@pytest.mark.mpi(ranks=[1, 2, 4])
@pytest.mark.parametrize("width, height", [(3, 3), (2, 3), (1, 6), (6, 2), (6, 6)], ids=str)
def test_every_region_has_its_own_product(width: int, height: int, comm: Any) -> None:
    """C = A B in each, by packets of two hops at most and 12 route entries; and every tile may change sides inside."""
    block = new_block(comm, (6, 6), WSE2)
    side = int(np.lcm(width, height))
    rows, columns = side // height, side // width
    a, b = random_tiles(block, rows, columns, 2, 3), random_tiles(block, rows, columns, 3, 4)
    with rings_in_regions(block, width, height) as rings:
        c = whole(block, meshgemm(block, rings, own(block, a), own(block, b)))
        turned = whole(block, turn(block, rings, own(block, a)))
    for y in range(0, 6, height):
        for x in range(0, 6, width):
            region = slice(y, y + height), slice(x, x + width)
            np.testing.assert_allclose(matrix(c[region]), matrix(a[region]) @ matrix(b[region]), rtol=1e-4, atol=1e-4)
            by_place = a[region].swapaxes(1, 2).reshape(side, side, 2, 3)
            assert (turned[region].swapaxes(1, 2).reshape(side, side, 2, 3) == by_place.swapaxes(0, 1)).all()
    report = measured(block)
    assert report["max_hops"] <= 2 and report["route_entries"]["max"] <= 12


@pytest.mark.mpi(ranks=[1, 2])
def test_tiles_are_cut_anew_on_some_lines_only(comm: Any) -> None:
    """From all 4 cores of a column to the first 2: 2 + 1 tiles and hops on each of the chosen lines."""
    block = new_block(comm, (3, 4))
    tiles = own(block, numbered(3, 4, 2, 1))
    before, after = np.array([0, 2, 4, 6, 8]), np.array([0, 4, 8, 8, 8])
    chosen = np.array([True, False, True])
    remapped = whole(block, remap(block, "y", tiles, before, after, chosen))
    every = numbered(3, 4, 2, 1)
    for x in (0, 2):
        assert (remapped[:2, x].ravel() == every[:, x].ravel()).all()
    assert measured(block)["hops"] == 2 * (1 + 1 + 2)


@pytest.mark.mpi(ranks=[1, 2])
def test_one_tree_of_several_on_a_line_adds_up_alone(comm: Any) -> None:
    block = new_block(comm, (2, 6))
    tiles = own(block, numbered(2, 6, 3))
    with ktree(block, "y", 1, stretches=(2, 3)) as tree:
        sums = whole(block, allreduce(block, tree.only(3, 6), tiles))
    every = numbered(2, 6, 3)
    assert (sums[:3] == every[:3]).all() and (sums[3:] == every[3:].sum(axis=0)).all()
    report = measured(block)
    assert report["stages"] == 2 * 2 and report["messages"] == 2 * (2 + 1)


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize("payload", [True, False])
def test_cores_that_rest_take_no_time_and_count_nothing(payload: bool, comm: Any) -> None:
    block = new_block(comm, (4, 2), WSE2, payload=payload)
    busy = np.zeros((2, 4), bool)
    busy[1, 2:] = True
    mine = busy[block.mesh.y0 : block.mesh.y0 + block.shape[0], block.mesh.x0 : block.mesh.x0 + block.shape[1]]
    ones = np.ones((*block.lead, 2, 3), np.float32)
    products = block.matmul(ones, ones.swapaxes(-1, -2), cores=mine)
    block.elementwise(products, 3, mine)
    assert ((block.clock.state[TIME] > 0) == mine).all()
    if payload:
        assert (products[mine] == 3).all() and (products[~mine] == 0).all()
    assert measured(block)["macs"] == 2 * 2 * 2 * 3
