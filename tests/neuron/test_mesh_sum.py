"""All-reduce from each core to all at once: right, the same on any ranks, and chosen where it is faster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshrt.neuron import language as nl
from meshrt.neuron.cores import Cores
from meshrt.neuron.device import find_neuron_device
from meshrt.ranks.board import Board
from meshrt.ranks.control import Control
from meshrt.ranks.group import Group
from meshrt.ranks.rings import Link, Touched

LINK = Link(1e9, 5e-6)


def run(
    comm: Any, size: int, shape: tuple[int, ...], payload: bool = True, begin: float = 1e-6
) -> list[tuple[Any, ...]]:
    """(sum, end, bytes sent, bytes read, bytes written) of all members, on every rank; member m begins at m `begin`."""
    group = Group(Control(comm, Board.alone(), "test"), size, Link(1.0, 1.0), payload)
    group.touched = [Touched() for _ in group.mine]
    everyone = np.random.default_rng(1).standard_normal((size, *shape)).astype(np.float32)
    parts = [everyone[at] if payload else np.broadcast_to(np.float32(0), shape) for at in group.mine]
    sums, ends = group.mesh_sum(parts, [begin * at for at in group.mine], LINK)
    members = [
        (np.array(total), end, traffic["all_to_all"].bytes, touched.read, touched.written)
        for total, end, traffic, touched in zip(sums, ends, group.traffic, group.touched, strict=True)
    ]
    return [member for share in group.control.bcast(group.control.gather(members)) for member in share]


@pytest.mark.mpi(ranks=[1, 2, 3])
@pytest.mark.parametrize(("size", "shape"), [(3, (5, 2)), (4, (4, 3)), (7, (3,)), (8, (9, 11))])
def test_every_member_has_the_sum(size: int, shape: tuple[int, ...], comm: Any) -> None:
    expected = np.random.default_rng(1).standard_normal((size, *shape)).astype(np.float32).sum(axis=0, dtype=np.float64)
    for total, *_ in run(comm, size, shape):
        assert total.shape == shape
        np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("payload", [True, False])
def test_bits_counts_and_times_do_not_depend_on_the_ranks(payload: bool, comm: Any) -> None:
    from mpi4py import MPI

    for of_one, of_many in zip(run(MPI.COMM_SELF, 5, (11,), payload), run(comm, 5, (11,), payload), strict=True):
        assert of_one[0].tobytes() == of_many[0].tobytes() and of_one[1:] == of_many[1:]


@pytest.mark.mpi(ranks=[1, 2])
def test_without_payload_the_same_is_counted(comm: Any) -> None:
    full, none = (run(comm, 5, (12, 2), payload) for payload in (True, False))
    assert [member[1:] for member in full] == [member[1:] for member in none]
    assert [member[0].shape for member in full] == [member[0].shape for member in none]


@pytest.mark.mpi(ranks=[1, 2])
def test_it_takes_two_latencies_and_its_bytes_whatever_the_size(comm: Any) -> None:
    """n members, N bytes that divide, all from 0: n - 1 chunks out, a latency, and so again. Of each chunk that a
    member has summed, n were read; what it sends is read, what comes is written.
    """
    for size in (2, 4, 8):
        nbytes, chunk = 4 * 16, 4 * 16 // size
        for _, end, sent, read, written in run(comm, size, (16,), begin=0.0):
            assert end == pytest.approx(2 * (5e-6 + (size - 1) * chunk / 1e9), rel=1e-12)
            assert sent == 2 * (size - 1) * chunk
            assert read == sent + nbytes and written == sent + chunk


@pytest.mark.mpi(ranks=[1])
def test_a_late_member_holds_up_the_others(comm: Any) -> None:
    ends = [member[1] for member in run(comm, 4, (4,), begin=1.0)]
    assert min(ends) > 3.0


@pytest.mark.mpi(ranks=[1, 2])
def test_the_faster_way_is_taken(comm: Any) -> None:
    """trn1, 16 cores: 30 steps of 2 us round the ring or 8 us at once; 1 MiB takes 20 us of each core's link or 41."""
    cores = Cores(16, find_neuron_device("trn1"), Control(comm, Board.alone(), "test"))
    for rows, way in ((1, "all_to_all"), (1024, "all_to_all"), (4096, "reduce_sum")):
        before = [
            dict.fromkeys(traffic, 0) | {k: t.calls for k, t in traffic.items()} for traffic in cores.group.traffic
        ]
        start = cores.mine[0].barrier()
        sums = cores.all_reduce([core.tensor_of(np.full((rows, 512), core.index), nl.bfloat16) for core in cores.mine])
        assert all((total.data == 120).all() for total in sums)
        seconds = cores.mine[0].barrier() - start
        nbytes = 2 * 512 * rows
        ring = 30 * (2e-6 + nbytes / 16 / 96e9)
        mesh = 2 * 4e-6 + 30 * nbytes / 16 / 48e9
        assert seconds == pytest.approx(min(ring, mesh), rel=1e-9)
        for traffic, old in zip(cores.group.traffic, before, strict=True):
            assert {kind for kind, of_kind in traffic.items() if of_kind.calls > old.get(kind, 0)} == {way}
