"""Sums along lines of blocks of many cores, by shape, which the compiled core makes strip by strip: against NumPy."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from compiled import compiled
from test_sums import COMBINES, DEVICES

from meshrt.mesh.block import Block, make_block
from meshrt.mesh.collectives.allreduce import allreduce, ktree, pipeline
from meshrt.mesh.collectives.trees import reduce
from meshrt.mesh.wires import fabric, receiving, routes, stripsums
from meshrt.mesh.wires.tables import installed
from meshrt.ranks.board import Board


def sums(block: Block, seed: int) -> tuple[list[bytes], dict[str, Any], int]:
    """Some sums among other transfers: (what clocks and links then are, counters, tables that were used)."""
    random, kept, mesh = np.random.default_rng(seed), list[bytes](), block.mesh
    rows, columns = slice(mesh.y0, mesh.y0 + mesh.block_height), slice(mesh.x0, mesh.x0 + mesh.block_width)
    clock = block.clock
    with ExitStack() as stack:
        ways = [ktree(block, "x"), pipeline(block, "x"), ktree(block, "y", 1), ktree(block, "x", 2, stored=True)]
        trees = [stack.enter_context(way) for way in ways]
        chains = [stack.enter_context(installed(block, axis, routes.chain)) for axis in "xy"]
        kinds = [np.ones((*block.lead, size), kind) for size in (1, 3) for kind in (np.float32, np.float64)]
        for _ in range(60):
            tree, combine = trees[random.integers(len(trees))], COMBINES[random.integers(len(COMBINES))]
            tiles, case = kinds[random.integers(len(kinds))].copy(), random.integers(8)
            across = mesh.length("y" if tree.axis == "x" else "x")
            lines = np.arange(across) % 2 == 0 if case == 1 else random.random(across) < 0.6
            late = random.integers(0, 9, (mesh.height, mesh.width)) * 4.25
            if case == 0:
                flight = fabric.send(block, chains[0], tiles, tiles.copy())
                allreduce(block, tree, tiles)  # with a packet under way
                receiving.receive(block, flight)
            elif case == 2:
                fabric.transfer(block, chains[random.integers(2)], tiles, tiles.copy())
            elif case == 3:
                reduce(block, tree, tiles, combine)
            else:
                allreduce(block, tree, tiles, combine, lines if case in (1, 4) else None)
                assert (tiles == 1).all()
            clock.spend(late[rows, columns])
            kept += [array.tobytes() for array in (clock.cells[:, :-1], clock.asked_at, clock.idle)]
        plans = [plan for tree in trees for plan in tree.plans.values()]
        used = sum(table is not None for plan in plans for tables in plan.tables.values() for table in tables.values())
    block.settle()
    counters = vars(block.counters)
    counted = {name: value for name, value in counters.items() if isinstance(value, int | float)}
    crossed = {name: [part.tolist() for part in counters[name].values()] for name in ("links", "ramps", "used")}
    return kept, counted | crossed | vars(block.host), used


@compiled
@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.sample(5)
@pytest.mark.parametrize("strip", [1, 2, 100])
@pytest.mark.parametrize("device", DEVICES)
def test_strips_leave_clocks_and_links_as_numpy_does(
    comm: Any, monkeypatch: pytest.MonkeyPatch, device: str, strip: int
) -> None:
    """Also where lines do not divide into strips, every other line takes part, and lines go on on another rank."""
    for seed, mesh in enumerate([(12, 8), (8, 20)]):
        monkeypatch.setattr(stripsums, "CACHED", strip * mesh[0] * stripsums.CORE)
        made = []
        for core in ("compiled", "numpy"):
            monkeypatch.setenv("MESHRT_CORE", core)
            made.append(sums(make_block(comm, DEVICES[device], *mesh, Board.shared(comm), payload=False), seed))
        assert made[0][0] == made[1][0]
        assert made[0][1] == made[1][1]
        assert made[0][2] and not made[1][2], "the compiled core has made some as a whole"
