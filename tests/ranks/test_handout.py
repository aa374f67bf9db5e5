"""Pieces of work that ranks share out: each is done once, by whoever is free."""

from __future__ import annotations

from typing import Any

import pytest

from meshrt.ranks import handout
from meshrt.ranks.handout import gathered, handed_out


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_each_piece_is_handed_out_once(comm: Any, count: int) -> None:
    parts = gathered(comm, [*handed_out(comm, count)])
    assert sorted(number for part in parts for number in part) == [*range(count)]


@pytest.mark.mpi(ranks=[2, 3])
def test_who_is_free_takes_the_next(comm: Any) -> None:
    """All that is left while the first piece of rank 0 takes its time."""
    numbers, mine = handed_out(comm, 9), []
    if comm.rank == 0:
        mine.append(next(numbers))
    comm.Barrier()
    if comm.rank:
        mine += numbers
    comm.Barrier()
    mine += numbers
    parts = gathered(comm, mine)
    assert parts[0] == [0] and sorted(number for part in parts[1:] for number in part) == [*range(1, 9)]


@pytest.mark.mpi(ranks=[3])
def test_no_node_waits_for_another(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks 0 and 2 are on one node, rank 1 on another, which has what would be dealt out to it."""
    ranks = [0, 2] if comm.rank != 1 else [1]
    monkeypatch.setattr(handout, "of_this_node", lambda every: (every.Split(every.rank == 1), ranks))
    parts = gathered(comm, [*handed_out(comm, 8)])
    assert parts[1] == [1, 4, 7] and sorted(parts[0] + parts[2]) == [0, 2, 3, 5, 6]
