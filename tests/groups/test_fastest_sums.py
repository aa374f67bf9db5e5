"""All-reduces from each core to all at once and by halves: right, the same on any ranks, and chosen where fastest."""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from typing import Any

import numpy as np
import pytest

from meshrt.groups.group import Group
from meshrt.groups.halving import halving_sum, steps_of
from meshrt.groups.rings import Link, Touched
from meshrt.neuron import language as nl
from meshrt.neuron.cores import Cores
from meshrt.neuron.device import find_neuron_device
from meshrt.ranks.board import Board
from meshrt.ranks.control import Control

LINK = Link(1e9, 5e-6)


WAYS: dict[str, Callable[..., Any]] = {"at once": Group.mesh_sum, "by halves": halving_sum}


def run(
    comm: Any, way: str, size: int, shape: tuple[int, ...], payload: bool = True, begin: float = 1e-6
) -> list[tuple[Any, ...]]:
    """(sum, end, bytes sent, bytes read, bytes written) of all members, on every rank; member m begins at m `begin`."""
    group = Group(Control(comm, Board.alone(), "test"), size, Link(1.0, 1.0), payload)
    group.touched = [Touched() for _ in group.mine]
    everyone = np.random.default_rng(1).standard_normal((size, *shape)).astype(np.float32)
    parts = [everyone[at] if payload else np.broadcast_to(np.float32(0), shape) for at in group.mine]
    sums, ends = WAYS[way](group, parts, [begin * at for at in group.mine], LINK)
    members = [
        (np.array(total), end, traffic["all_to_all"].bytes, touched.read, touched.written)
        for total, end, traffic, touched in zip(sums, ends, group.traffic, group.touched, strict=True)
    ]
    return [member for share in group.control.bcast(group.control.gather(members)) for member in share]


def test_partners_are_there_for_powers_of_two_alone() -> None:
    assert [steps_of(size) for size in (1, 2, 8, 32)] == [[], [1], [1, 2, 4], [1, 2, 4, 8, 16]]
    assert [steps_of(size) for size in (3, 6, 12)] == [None] * 3


@pytest.mark.mpi(ranks=[1, 2, 3])
@pytest.mark.parametrize(
    ("way", "size", "shape"),
    [
        *(("at once", size, shape) for size, shape in ((3, (5, 2)), (4, (4, 3)), (7, (3,)), (8, (9, 11)))),
        *(("by halves", size, shape) for size, shape in ((4, (5, 2)), (4, (3,)), (8, (9, 11)), (16, (2, 3)))),
    ],
)
def test_every_member_has_the_sum(way: str, size: int, shape: tuple[int, ...], comm: Any) -> None:
    expected = np.random.default_rng(1).standard_normal((size, *shape)).astype(np.float32).sum(axis=0, dtype=np.float64)
    members = run(comm, way, size, shape)
    for total, *_ in members:
        assert total.shape == shape
        np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-6)
        assert total.tobytes() == members[0][0].tobytes()


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("payload", [True, False])
@pytest.mark.parametrize(("way", "size"), [("at once", 5), ("by halves", 8)])
def test_bits_counts_and_times_do_not_depend_on_the_ranks(way: str, size: int, payload: bool, comm: Any) -> None:
    from mpi4py import MPI

    alone, many = (run(of, way, size, (11,), payload) for of in (MPI.COMM_SELF, comm))
    for of_one, of_many in zip(alone, many, strict=True):
        assert of_one[0].tobytes() == of_many[0].tobytes() and of_one[1:] == of_many[1:]


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize(("way", "size"), [("at once", 5), ("by halves", 8)])
def test_without_payload_the_same_is_counted(way: str, size: int, comm: Any) -> None:
    full, none = (run(comm, way, size, (12, 2), payload) for payload in (True, False))
    assert [member[1:] for member in full] == [member[1:] for member in none]
    assert [member[0].shape for member in full] == [member[0].shape for member in none]


@pytest.mark.mpi(ranks=[1, 2])
def test_it_takes_two_latencies_and_its_bytes_whatever_the_size(comm: Any) -> None:
    """n members, N bytes that divide, all from 0: n - 1 chunks out, a latency, and so again. Of each chunk that a
    member has summed, n were read; what it sends is read, what comes is written.
    """
    for size in (2, 4, 8):
        nbytes, chunk = 4 * 16, 4 * 16 // size
        for _, end, sent, read, written in run(comm, "at once", size, (16,), begin=0.0):
            assert end == pytest.approx(2 * (5e-6 + (size - 1) * chunk / 1e9), rel=1e-12)
            assert sent == 2 * (size - 1) * chunk
            assert read == sent + nbytes and written == sent + chunk


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_by_halves_it_takes_a_latency_a_step(size: int, comm: Any) -> None:
    """n members, N bytes that divide, all from 0: N / 2 + N / 4 + ... bytes each way, a latency a step. What is sent is
    read, what comes written; of each sum both halves are read, and it is written.
    """
    nbytes = 4 * 32
    each_way = nbytes - nbytes // size
    for _, end, sent, read, written in run(comm, "by halves", size, (32,), begin=0.0):
        assert end == pytest.approx(2 * (log2(size) * 5e-6 + each_way / 1e9), rel=1e-12)
        assert sent == 2 * each_way
        assert read == sent + 2 * each_way and written == sent + each_way


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("way", WAYS)
def test_a_late_member_holds_up_the_others(way: str, comm: Any) -> None:
    ends = [member[1] for member in run(comm, way, 4, (4,), begin=1.0)]
    assert min(ends) > 3.0


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize("count", [16, 12])
def test_the_fastest_way_is_taken(count: int, comm: Any) -> None:
    """trn1, 16 cores: 8 us at once, 16 us by halves, 60 us round the ring; 1 MiB takes 41, 23 or 20 us of a link. On
    12 there are no halves.
    """
    with_numbers, by_shape = (
        Cores(count, find_neuron_device("trn1"), Control(comm, Board.alone(), "test"), payload)
        for payload in (True, False)
    )
    taken = []
    for rows, cores in ((1, with_numbers), (256, with_numbers), (4096, by_shape), (32768, by_shape)):
        before = [{kind: of_kind.calls for kind, of_kind in traffic.items()} for traffic in cores.group.traffic]
        start = cores.mine[0].barrier()
        numbers = [np.broadcast_to(np.float32(core.index), (rows, 512)) for core in cores.mine]
        sums = cores.all_reduce(
            [core.tensor_of(own, nl.bfloat16) for core, own in zip(cores.mine, numbers, strict=True)]
        )
        assert not cores.payload or all((total.data == sum(range(count))).all() for total in sums)
        seconds = cores.mine[0].barrier() - start
        nbytes = 2 * 512 * rows
        sent = 2 * (count - 1) * nbytes / count
        times = {
            ("all_to_all", 2): 2 * 4e-6 + sent / 48e9,
            ("all_to_all", 8): 8 * 2e-6 + sent / 86.4e9 if count == 16 else np.inf,
            ("reduce_sum", 1): 2 * (count - 1) * 2e-6 + sent / 96e9,
        }
        taken.append(min(times, key=lambda way: times[way]))
        assert seconds == pytest.approx(times[taken[-1]], rel=1e-4)  # rows need not divide
        for traffic, old in zip(cores.group.traffic, before, strict=True):
            calls = {kind: of_kind.calls - old.get(kind, 0) for kind, of_kind in traffic.items()}
            assert {kind: n for kind, n in calls.items() if n} == dict([taken[-1]])
    halves = [("all_to_all", 8)] if count == 16 else []
    assert set(taken) == {("all_to_all", 2), *halves, ("reduce_sum", 1)}
