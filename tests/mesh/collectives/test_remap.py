"""Tiles cut anew along a line: every number where it belongs, and as many hops as the tiles have to go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measure import measured, on_first
from runs import new_block
from tiers import examples

from meshrt.mesh.collectives.remap import remap

RANKS = [1, 2, 4]
CUTS = [
    ([0, 3, 6, 9, 12], [0, 6, 12, 12, 12]),
    ([0, 6, 12, 12, 12], [0, 3, 6, 9, 12]),
    ([0, 0, 5, 5, 7], [0, 1, 2, 7, 7]),
    ([0, 0, 0, 0, 0], [0, 0, 0, 0, 0]),
    ([0, 9, 9, 9, 9], [0, 0, 0, 0, 9]),
]


def check(comm: Any, axis: str, before: list[int], after: list[int], payload: bool = True) -> Any:
    """Cut numbered units anew on a line of 4 cores, beside two other lines; what was measured."""
    block = new_block(comm, (4, 3) if axis == "x" else (3, 4), payload=payload)
    room = max(1, *np.diff(before))
    tiles = np.full((*block.lead, room, 2), np.nan, np.float32)
    low, length = block.mesh.offset(axis), block.mesh.block_length(axis)
    if payload:
        for at in range(length):
            units = np.arange(before[low + at], before[low + at + 1])
            (tiles[:, at] if axis == "x" else tiles[at])[:, : len(units), 0] = units
    cut = remap(block, axis, tiles, np.array(before), np.array(after))
    if payload:
        for at in range(length):
            units = np.arange(after[low + at], after[low + at + 1])
            assert ((cut[:, at] if axis == "x" else cut[at])[:, : len(units), 0] == units).all()
    return measured(block)


def distance(before: list[int], after: list[int]) -> int:
    """Hops of all tiles of one line: each goes to the farthest core on either side that has a unit of it."""
    owner = np.repeat(np.arange(4), np.diff(before))
    to = np.repeat(np.arange(4), np.diff(after))
    return sum(
        int(max(0, core - to[owner == core].min()) + max(0, to[owner == core].max() - core)) for core in set(owner)
    )


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize("before, after", CUTS, ids=str)
def test_units_arrive_and_hops_are_the_distances(axis: str, before: list[int], after: list[int], comm: Any) -> None:
    report = check(comm, axis, before, after)
    assert report["hops"] == report["stages"] == 3 * distance(before, after)
    assert report["max_hops"] == (1 if report["hops"] else 0)
    shapes = check(comm, axis, before, after, payload=False)
    report.pop("host"), shapes.pop("host")
    assert report == shapes


@pytest.mark.mpi(ranks=[1])
def test_any_cut_becomes_any_other(comm: Any) -> None:
    @settings(max_examples=examples(60), deadline=None, database=None)
    @given(st.data())
    def any_cut(data: st.DataObject) -> None:
        total = data.draw(st.integers(0, 30))
        cuts = st.lists(st.integers(0, total), min_size=3, max_size=3).map(lambda inner: [0, *sorted(inner), total])
        before, after = data.draw(cuts), data.draw(cuts)
        assert check(comm, "x", before, after)["hops"] == 3 * distance(before, after)

    any_cut()


@pytest.mark.mpi(ranks=[4])
def test_so_it_does_on_any_number_of_ranks(comm: Any) -> None:
    cuts = st.lists(st.integers(0, 12), min_size=3, max_size=3).map(lambda inner: [0, *sorted(inner), 12])

    @settings(max_examples=examples(40))
    @given(st.sampled_from([2, 4]), st.sampled_from(["x", "y"]), cuts, cuts)
    def any_cut(ranks: int, axis: str, before: list[int], after: list[int]) -> None:
        def cut_anew(part: Any) -> None:
            assert check(part, axis, before, after)["hops"] == 3 * distance(before, after)

        on_first(comm, ranks, cut_anew)

    any_cut()
