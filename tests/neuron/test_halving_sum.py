"""All-reduce by recursive halving and doubling: right, the same on any ranks, its times and bytes in closed form."""

from __future__ import annotations

from math import log2
from typing import Any

import numpy as np
import pytest

from meshrt.ranks.board import Board
from meshrt.ranks.control import Control
from meshrt.ranks.group import Group
from meshrt.ranks.halving import halving_sum, steps_of
from meshrt.ranks.rings import Link, Touched

LINK = Link(1e9, 5e-6)


def run(
    comm: Any, size: int, shape: tuple[int, ...], payload: bool = True, begin: float = 0.0
) -> list[tuple[Any, ...]]:
    """(sum, end, bytes sent, bytes read, bytes written) of all members, on every rank; member m begins at m `begin`."""
    group = Group(Control(comm, Board.alone(), "test"), size, Link(1.0, 1.0), payload)
    group.touched = [Touched() for _ in group.mine]
    everyone = np.random.default_rng(1).standard_normal((size, *shape)).astype(np.float32)
    parts = [everyone[at] if payload else np.broadcast_to(np.float32(0), shape) for at in group.mine]
    sums, ends = halving_sum(group, parts, [begin * at for at in group.mine], LINK)
    members = [
        (np.array(total), end, traffic["all_to_all"].bytes, touched.read, touched.written)
        for total, end, traffic, touched in zip(sums, ends, group.traffic, group.touched, strict=True)
    ]
    return [member for share in group.control.bcast(group.control.gather(members)) for member in share]


def test_partners_are_there_for_powers_of_two_alone() -> None:
    assert [steps_of(size) for size in (1, 2, 8, 32)] == [[], [1], [1, 2, 4], [1, 2, 4, 8, 16]]
    assert [steps_of(size) for size in (3, 6, 12)] == [None] * 3


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
@pytest.mark.parametrize(("size", "shape"), [(4, (5, 2)), (4, (3,)), (8, (9, 11)), (16, (2, 3))])
def test_every_member_has_the_sum(size: int, shape: tuple[int, ...], comm: Any) -> None:
    expected = np.random.default_rng(1).standard_normal((size, *shape)).astype(np.float32).sum(axis=0, dtype=np.float64)
    members = run(comm, size, shape)
    for total, *_ in members:
        assert total.shape == shape
        np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-6)
        assert total.tobytes() == members[0][0].tobytes()


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("payload", [True, False])
def test_bits_counts_and_times_do_not_depend_on_the_ranks(payload: bool, comm: Any) -> None:
    from mpi4py import MPI

    alone, many = (run(of, 8, (11,), payload, begin=1e-6) for of in (MPI.COMM_SELF, comm))
    for of_one, of_many in zip(alone, many, strict=True):
        assert of_one[0].tobytes() == of_many[0].tobytes() and of_one[1:] == of_many[1:]


@pytest.mark.mpi(ranks=[1, 2])
def test_without_payload_the_same_is_counted(comm: Any) -> None:
    full, none = (run(comm, 8, (12, 2), payload) for payload in (True, False))
    assert [member[1:] for member in full] == [member[1:] for member in none]
    assert [member[0].shape for member in full] == [member[0].shape for member in none]


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_times_and_bytes_are_those_of_its_steps(size: int, comm: Any) -> None:
    """n members, N bytes that divide, all from 0: N / 2 + N / 4 + ... bytes each way, a latency a step. What is sent is
    read, what comes written; of each sum both halves are read, and it is written.
    """
    nbytes = 4 * 32
    each_way = nbytes - nbytes // size
    for _, end, sent, read, written in run(comm, size, (32,)):
        assert end == pytest.approx(2 * (log2(size) * 5e-6 + each_way / 1e9), rel=1e-12)
        assert sent == 2 * each_way
        assert read == sent + 2 * each_way and written == sent + each_way


@pytest.mark.mpi(ranks=[1])
def test_a_late_member_holds_up_the_others(comm: Any) -> None:
    assert min(member[1] for member in run(comm, 4, (4,), begin=1.0)) > 3.0
