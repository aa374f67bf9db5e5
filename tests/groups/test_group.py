"""Groups: ring collectives against NumPy, the same bits, counts and times for any number of ranks, closed forms."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measure import on_first
from tiers import examples

from meshrt.errors import UsageError
from meshrt.groups.group import Group
from meshrt.groups.rings import Link
from meshrt.ranks.board import Board
from meshrt.ranks.control import Control

LINK = Link(1e9, 2e-6)
KINDS = ("reduce_sum", "all_gather", "reduce_scatter", "broadcast")


def new_group(comm: Any, size: int, payload: bool = True, link: Link = LINK) -> Group:
    return Group(Control(comm, Board.alone(), "test"), size, link, payload)


def parts_of(size: int, shape: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    """An array for each member, all different."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for _ in range(size)]


def call(group: Group, kind: str, parts: list[np.ndarray], times: list[float], root: int) -> Any:
    if kind == "reduce_sum":
        return group.reduce_sum(parts, times)
    if kind == "broadcast":
        return group.broadcast(parts, times, root)
    return getattr(group, kind)(parts, times, 0)


def run(comm: Any, kind: str, size: int, shape: tuple[int, ...], payload: bool = True, root: int = 0) -> Any:
    """Results, end times and traffic of all members, on every rank. Members begin at different times."""
    group = new_group(comm, size, payload)
    everyone = parts_of(size, shape)
    own = [everyone[at] if payload else np.broadcast_to(np.float32(0), shape) for at in group.mine]
    results, times = call(group, kind, own, [1e-6 * (at * 7 % 5) for at in group.mine], root)
    members = [
        (at, np.array(result), time, traffic[kind].calls, traffic[kind].bytes)
        for at, result, time, traffic in zip(group.mine, results, times, group.traffic, strict=True)
    ]
    shares = group.control.bcast(group.control.gather(members))
    return [member for share in shares for member in share]


def expected(kind: str, size: int, shape: tuple[int, ...], root: int = 0) -> list[np.ndarray]:
    """What NumPy says in float64."""
    parts = [part.astype(np.float64) for part in parts_of(size, shape)]
    total = np.sum(parts, axis=0)
    if kind == "reduce_scatter":
        return np.array_split(total, size)
    whole = {"reduce_sum": total, "all_gather": np.concatenate(parts), "broadcast": parts[root]}[kind]
    return [whole] * size


@pytest.mark.mpi(ranks=[1, 2, 3, 4, 6])
def test_collectives_are_right_for_any_number_of_members_and_ranks(comm: Any) -> None:
    for kind in KINDS:
        for size in (comm.size, comm.size + 1, 8):
            for at, result, *_ in run(comm, kind, size, (5, 3), root=size - 1):
                np.testing.assert_allclose(result, expected(kind, size, (5, 3), size - 1)[at], rtol=1e-5, atol=1e-6)


@pytest.mark.mpi(ranks=[2, 3, 4, 6])
def test_bits_counts_and_times_do_not_depend_on_the_ranks(comm: Any) -> None:
    from mpi4py import MPI

    for kind in KINDS:
        for payload in (True, False):
            alone = run(MPI.COMM_SELF, kind, 7, (11,), payload, 2)
            shared = run(comm, kind, 7, (11,), payload, 2)
            assert [member[0] for member in shared] == [*range(7)]
            for of_one, of_many in zip(alone, shared, strict=True):
                assert of_one[1].tobytes() == of_many[1].tobytes()
                assert of_one[2:] == of_many[2:]


@pytest.mark.mpi(ranks=[1, 2])
def test_without_payload_the_same_is_counted(comm: Any) -> None:
    for kind in KINDS:
        full, none = (run(comm, kind, 5, (12, 2), payload) for payload in (True, False))
        assert [member[2:] for member in full] == [member[2:] for member in none]
        assert [member[1].shape for member in full] == [member[1].shape for member in none]


@pytest.mark.mpi(ranks=[1, 3])
def test_bytes_are_those_of_rings(comm: Any) -> None:
    """n members, N bytes each that divide: (n-1)/n N a phase, N (n-1) to gather; a broadcast passes N on n-1 times."""
    n, nbytes = 4, 4 * 4 * 3
    sent = {kind: [member[4] for member in run(comm, kind, n, (4, 3))] for kind in KINDS}
    assert sent["reduce_scatter"] == [nbytes * (n - 1) // n] * n
    assert sent["reduce_sum"] == [2 * nbytes * (n - 1) // n] * n
    assert sent["all_gather"] == [nbytes * (n - 1)] * n
    assert sent["broadcast"] == [nbytes] * (n - 1) + [0]  # of root 0: the last in the ring sends nothing


@pytest.mark.mpi(ranks=[1, 3])
@pytest.mark.parametrize("payload", [True, False])
@pytest.mark.parametrize("size, shape", [(4, (4, 3)), (3, (5, 2)), (5, (3,))])
def test_memory_is_touched_as_rings_do(size: int, shape: tuple[int, ...], payload: bool, comm: Any) -> None:
    """All members' chunks of a step make one array of N bytes, even or not.

    To add up: n - 1 steps read what is sent, n - 1 sums read the member's own chunk, n - 1 arrivals are written, and
    the last sum, which is not sent on, reads what arrived and is written. To spread: a read and a write a step.
    """
    n, nbytes = size, 4 * int(np.prod(shape))
    added, spread = (nbytes * (2 * (n - 1) + 1), nbytes * n), (nbytes * (n - 1), nbytes * (n - 1))
    whole = {"reduce_scatter": added, "reduce_sum": tuple(a + b for a, b in zip(added, spread, strict=True))}
    whole |= {"all_gather": tuple(n * moved for moved in spread), "broadcast": spread}  # an array each; one array
    for kind in KINDS:
        group = new_group(comm, n, payload)
        everyone = parts_of(n, shape)
        own = [everyone[at] if payload else np.broadcast_to(np.float32(0), shape) for at in group.mine]
        call(group, kind, own, [0.0 for _ in group.mine], 0)
        mine = [(touched.read, touched.written) for touched in group.touched]
        every = [member for share in group.control.bcast(group.control.gather(mine)) for member in share]
        assert tuple(map(sum, zip(*every, strict=True))) == whole[kind]


@pytest.mark.mpi(ranks=[1, 2])
def test_times_are_those_of_rings(comm: Any) -> None:
    """All begin at 0 and chunks are even: a step takes latency + chunk / bandwidth, and follows the one before."""
    n, shape = 4, (8, 25)
    chunk = 4 * 8 * 25 / n / LINK.bytes_per_second
    for kind, steps, size in (("reduce_sum", 2 * (n - 1), chunk), ("all_gather", n - 1, n * chunk)):
        group = new_group(comm, n)
        _, times = call(group, kind, [parts_of(n, shape)[at] for at in group.mine], [0.0 for _ in group.mine], 0)
        np.testing.assert_allclose(times, steps * (size + LINK.latency), rtol=1e-12)


@pytest.mark.mpi(ranks=[1, 2])
def test_all_gather_of_uneven_parts_along_any_axis(comm: Any) -> None:
    group = new_group(comm, 4)
    sizes = [3, 0, 5, 2]
    everyone = [np.full((2, size), at, np.float32) for at, size in enumerate(sizes)]
    gathered, _ = group.all_gather([everyone[at] for at in group.mine], [0.0 for _ in group.mine], 1, sizes)
    for array in gathered:
        np.testing.assert_array_equal(array, np.concatenate(everyone, axis=1))
    # A member sends each part but that of the member after it, which begins with it.
    assert [traffic["all_gather"].bytes for traffic in group.traffic] == [
        8 * (sum(sizes) - sizes[(at + 1) % 4]) for at in group.mine
    ]


@pytest.mark.mpi(ranks=[1])
def test_one_member_costs_nothing(comm: Any) -> None:
    for kind in KINDS:
        ((_, result, time, calls, sent),) = run(comm, kind, 1, (3, 2))
        np.testing.assert_array_equal(result, parts_of(1, (3, 2))[0])
        assert (time, calls, sent) == (0.0, 1, 0)


@pytest.mark.mpi(ranks=[1])
def test_a_late_member_holds_up_the_others(comm: Any) -> None:
    group = new_group(comm, 3)
    _, times = group.reduce_sum(parts_of(3, (3,)), [0.0, 1.0, 0.0])
    assert min(times) > 1.0


@pytest.mark.mpi(ranks=[1, 2])
def test_who_gets_nothing_waits_for_nobody(comm: Any) -> None:
    """The root of a broadcast is done when its 4 chunks have left it, however late the member before it comes."""
    group, shape, root = new_group(comm, 4), (8, 25), 1
    begins = [1.0, 0.0, 0.0, 0.0]  # 0 comes last of all and is before the root in the ring; it sends nothing on
    own = [parts_of(4, shape)[at] for at in group.mine]
    _, times = group.broadcast(own, [begins[at] for at in group.mine], root)
    if root in group.mine:
        assert times[group.mine.index(root)] == pytest.approx(4 * 8 * 25 / LINK.bytes_per_second, rel=1e-12)
    if 0 in group.mine:
        assert times[group.mine.index(0)] == 1.0  # the chunks were there long before


def check_call(comm: Any, kind: str, size: int, shape: list[int], root: int) -> None:
    root %= size
    for at, result, time, calls, _ in run(comm, kind, size, tuple(shape), root=root):
        want = expected(kind, size, tuple(shape), root)[at]
        assert result.shape == want.shape
        np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-5)
        assert calls == 1 and time >= 1e-6 * (at * 7 % 5)


SHAPES = st.lists(st.integers(0, 6), min_size=1, max_size=3)


@pytest.mark.mpi(ranks=[1])
def test_any_size_shape_and_order_of_times(comm: Any) -> None:
    @settings(max_examples=examples(60))
    @given(st.sampled_from(KINDS), st.integers(1, 9), SHAPES, st.integers(0, 8))
    def check(kind: str, size: int, shape: list[int], root: int) -> None:
        check_call(comm, kind, size, shape, root)

    check()


@pytest.mark.mpi(ranks=[4])
def test_so_on_any_number_of_ranks(comm: Any) -> None:
    @settings(max_examples=examples(60))
    @given(st.integers(2, 4), st.sampled_from(KINDS), st.integers(0, 5), SHAPES, st.integers(0, 8))
    def check(ranks: int, kind: str, others: int, shape: list[int], root: int) -> None:
        on_first(comm, ranks, lambda part: check_call(part, kind, ranks + others, shape, root))

    check()


@pytest.mark.mpi(ranks=[3])
def test_what_crosses_between_ranks_is_counted(comm: Any) -> None:
    """A ring of 3 ranks has 3 edges: each step of a reduce_sum is a message of a time and a chunk over each."""
    group = new_group(comm, 6)
    group.reduce_sum([np.ones(12, np.float32) for _ in group.mine], [0.0 for _ in group.mine])
    steps = 2 * (6 - 1)
    assert (group.messages, group.message_bytes) == (steps, steps * (8 + 4 * 12 // 6))


@pytest.mark.mpi(ranks=[2])
def test_more_ranks_than_members_are_refused(comm: Any) -> None:
    with pytest.raises(UsageError, match="2 ranks for 1 members"):
        new_group(comm, 1)


@pytest.mark.mpi(ranks=[1])
def test_a_root_outside_is_refused(comm: Any) -> None:
    with pytest.raises(UsageError, match="root 4 is no member of a group of 4"):
        new_group(comm, 4).broadcast(parts_of(4, (2,)), [0.0] * 4, 4)
