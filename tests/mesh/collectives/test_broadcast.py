"""Broadcasts and allgather from any core of a line: what arrives, what it costs, and that it fits the tables."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from measure import measured, numbered, own, whole
from runs import new_block

from meshrt.errors import LimitError, UsageError
from meshrt.mesh.collectives import broadcast
from meshrt.mesh.collectives.broadcast import Spread, cut, spreads
from meshrt.mesh.wires import receiving

RANKS = [1, 2, 3, 4, 6, 9, 16]
MESH = (7, 5)
LONGEST = [None, 1, 3, 4]  # cores of a segment; None: all of the line


def by_line(axis: str, tiles: np.ndarray) -> np.ndarray:
    """[H, W, *tile] as [lines, positions, *tile]; a view."""
    return tiles if axis == "x" else tiles.swapaxes(0, 1)


def relays(bounds: tuple[int, ...], source: int) -> int:
    """Cores that a tile from this source is relayed by: the ends of all segments that have one behind them."""
    last = [high - 1 for high in bounds[1:-1] if high - 1 > source]
    first = [low for low in bounds[1:-1] if low < source]
    return len(last) + len(first)


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("longest", LONGEST)
def test_every_core_gets_what_any_core_of_its_line_sends(longest: int | None, comm):
    tiles = numbered(*MESH, 2)
    for number, axis in enumerate("xy"):
        block = new_block(comm, MESH)
        with spreads(block, longest) as both:
            spread = both[number]
            for source in range(spread.n):
                out = np.full_like(own(block, tiles), np.nan)
                begun = broadcast.start(block, spread, source, own(block, tiles), out)
                broadcast.relay(block, begun)
                lines = by_line(axis, whole(block, broadcast.finish(block, begun)))
                assert (lines == by_line(axis, tiles)[:, source : source + 1]).all()
        assert_costs(measured(block), MESH[axis == "x"], spread)


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("longest", LONGEST)
def test_allgather_gives_every_core_all_tiles_of_its_line(longest: int | None, comm):
    tiles = numbered(*MESH, 2)
    for number, axis in enumerate("xy"):
        block = new_block(comm, MESH)
        with spreads(block, longest) as both:
            every = receiving.receive(block, broadcast.start_allgather(block, both[number], own(block, tiles)))
            assert (by_line(axis, whole(block, every)) == by_line(axis, tiles)[:, None]).all()
        assert_costs(measured(block), MESH[axis == "x"], both[number])


def assert_costs(report: dict[str, Any], lines: int, spread: Spread) -> None:
    """Every core of every line has sent its tile to all others: over each link once, with a stage at each relay."""
    assert report["hops"] == lines * spread.n * (spread.n - 1)
    longest = max(high - low for low, high in pairwise(spread.bounds))
    assert report["max_hops"] == (longest if len(spread.bounds) > 2 else spread.n - 1)
    assert report["stages"] == lines * sum(relays(spread.bounds, source) for source in range(spread.n))


@pytest.mark.mpi(ranks=[1])
def test_a_relay_waits_for_the_tail_and_for_nobody_else(comm):
    """One hop a cycle and a stage of 5 (wse2): the far end of a chain of 9 waits for 8 hops and 7 stages, and as long
    as its tile of 4 words takes at each; the cores between have not waited before they `finish`."""
    block = new_block(comm, (9, 1), "wse2")
    tiles = own(block, numbered(9, 1, 4))
    with spreads(block, longest=3) as (x, _):
        begun = broadcast.start(block, x, 0, tiles, np.empty_like(tiles))
        broadcast.relay(block, begun)
        time = block.clock.state[0, 0].copy()
        assert (time[[0, 1, 3, 4, 6, 7, 8]] == 0).all()
        assert (time[[2, 5]] == [2 + 4 + 5, 2 + 4 + 5 + 3 + 4 + 5]).all()
        broadcast.finish(block, begun)
    path = measured(block)["critical_path"]
    assert (path["hops"], path["stages"], path["cycles"]) == (8, 2, 8 + 3 * 4 + 2 * 5)


@pytest.mark.mpi(ranks=[1])
def test_segments_are_as_long_as_the_tables_allow(comm):
    for n in (*range(1, 28), 64, 100):
        block = new_block(comm, (n, n), "wse2", payload=False)
        with spreads(block) as (x, y):
            assert x.bounds == y.bounds == cut(n, max(high - low for low, high in pairwise(x.bounds)))
            assert n > 12 or len(x.bounds) == 2, "12 routes along either axis fill a table of 24"
            assert n <= 12 or max(high - low for low, high in pairwise(x.bounds)) >= 7
        assert 0 <= measured(block)["route_entries"]["max"] <= 24


@pytest.mark.mpi(ranks=[1])
def test_what_does_not_fit_is_refused(comm):
    with pytest.raises(UsageError, match="segments of 0 cores"), spreads(new_block(comm, (4, 4)), longest=0):
        pass
    with pytest.raises(LimitError, match="the limit is 24"), spreads(new_block(comm, (20, 20), "wse2"), longest=20):
        pass
    with pytest.raises(LimitError, match="the limit is 7"), spreads(new_block(comm, (9, 9), route_entries=7)):
        pass
