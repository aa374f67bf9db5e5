"""Control traffic: values of any length get where they belong, on any number of ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshrt.ranks.board import Board
from meshrt.ranks.control import FIRST, Control

RANKS = [1, 2, 5]
LENGTHS = [0, FIRST // 2, FIRST - 20, FIRST, 9 * FIRST]


def value_of(rank: int, length: int) -> dict[str, Any]:
    return {"rank": rank, "text": chr(ord("a") + rank) * length, "numbers": np.arange(rank)}


def is_of(value: Any, rank: int, length: int) -> bool:
    wanted = value_of(rank, length)
    same = np.array_equal(value["numbers"], wanted["numbers"])
    return bool(same and (value["rank"], value["text"]) == (wanted["rank"], wanted["text"]))


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("length", LENGTHS)
def test_rank_0_tells_all(comm: Any, length: int) -> None:
    control = Control(comm, Board.alone(), "test")
    assert is_of(control.bcast(value_of(comm.rank, length)), 0, length)


@pytest.mark.mpi(ranks=RANKS)
def test_rank_0_gathers_values_of_many_lengths(comm: Any) -> None:
    control = Control(comm, Board.alone(), "test")
    for shift in range(len(LENGTHS)):
        values = control.gather(value_of(comm.rank, LENGTHS[(comm.rank + shift) % len(LENGTHS)]))
        assert (values is None) == (comm.rank > 0)
        for rank, value in enumerate(values or ()):
            assert is_of(value, rank, LENGTHS[(rank + shift) % len(LENGTHS)])


@pytest.mark.mpi(ranks=RANKS)
def test_all_agree(comm: Any) -> None:
    control = Control(comm, Board.alone(), "test")
    assert control.allreduce((comm.rank, "x" * FIRST), max) == (comm.size - 1, "x" * FIRST)
    assert control.totals(comm.rank, 1) == [comm.size * (comm.size - 1) // 2, comm.size]
    assert control.least(1.5 + comm.rank) == 1.5


@pytest.mark.mpi(ranks=RANKS)
def test_neighbours_swap_values(comm: Any) -> None:
    """On a ring, twice, so that a long value of the first time is not taken for one of the second."""
    control = Control(comm, Board.alone(), "test")
    before, after = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    neighbours = [] if comm.size == 1 else [(after, 1, 3), (before, 3, 1)]
    for turn in range(len(LENGTHS)):
        lengths = [LENGTHS[(rank + turn) % len(LENGTHS)] for rank in range(comm.size)]
        values = [value_of(comm.rank, lengths[comm.rank])] * len(neighbours)
        for (rank, _, _), value in zip(neighbours, control.swap(neighbours, values), strict=True):
            assert is_of(value, rank, lengths[rank])


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_every_member_is_hosted_by_the_rank_that_is_said_to(ranks: int) -> None:
    controls = [Control(SimpleNamespace(size=ranks, rank=rank), Board.alone(), "test") for rank in range(ranks)]
    for count in range(ranks, 3 * ranks + 2):
        shares = [control.hosted(count) for control in controls]
        assert [member for share in shares for member in share] == [*range(count)]
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        for control in controls:
            assert all(member in shares[control.host_of(member, count)] for member in range(count))
