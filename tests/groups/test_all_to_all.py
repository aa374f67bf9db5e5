"""All-to-all of rank groups: uneven parts against NumPy, the same on any ranks, bytes and times in closed form."""

from typing import Any

import numpy as np
import pytest
from gpu_runs import new_gpus
from hypothesis import given, settings
from hypothesis import strategies as st
from test_group import LINK, new_group
from tiers import examples

ROW = 10  # bytes on a link, whatever it is here


def table_of(size: int, seed: int, empty: float = 0.3) -> list[list[int]]:
    """Rows from each to each, many of them none."""
    rng = np.random.default_rng([size, seed])
    return np.where(rng.random((size, size)) < empty, 0, rng.integers(1, 6, (size, size))).tolist()


def rows_of(source: int, to: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """What is sent: rows of three float32, and of two int32; all different."""
    first = 1000 * source + 10 * to + np.arange(count)[:, None]
    return (first + np.array([0, 0.25, 0.5])).astype(np.float32), np.repeat(-first, 2, axis=1).astype(np.int32)


def run(comm: Any, table: list[list[int]], neighbours: bool, payload: bool = True) -> Any:
    """Of each member: the arrays, its time, bytes, calls, parts that it sent; then messages of all ranks."""
    size = len(table)
    group = new_group(comm, size, payload)
    kinds = ((3, np.float32), (2, np.int32))

    def arrays(counts: list[int]) -> list[np.ndarray]:
        made = [np.zeros((sum(counts), columns), dtype) for columns, dtype in kinds]
        return made if payload else [np.broadcast_to(array[:1].sum(), array.shape) for array in made]

    parts = [
        [np.concatenate(each) for each in zip(*(rows_of(at, to, n) for to, n in enumerate(table[at])), strict=True)]
        if payload else arrays(table[at])
        for at in group.mine
    ]  # fmt: skip
    outs = [arrays([line[at] for line in table]) for at in group.mine]
    times = [1e-6 * (at * 7 % 5) for at in group.mine]
    hops = group.all_to_all(parts, outs, table, ROW, times, [LINK for _ in group.mine], neighbours)
    members = [
        (at, [array.copy() for array in out], time, traffic["all_to_all"].bytes, traffic["all_to_all"].calls, moved)
        for at, out, time, traffic, moved in zip(group.mine, outs, times, group.traffic, hops, strict=True)
    ]
    shares = group.control.bcast(group.control.gather((members, group.messages)))
    return [member for share, _ in shares for member in share], sum(messages for _, messages in shares)


@pytest.mark.mpi(ranks=[1, 2, 3, 4, 6])
def test_everyone_gets_what_is_for_it_and_the_bits_do_not_depend_on_the_ranks(comm: Any) -> None:
    from mpi4py import MPI

    for size in (comm.size, comm.size + 1, 7):
        for neighbours in (False, True):
            table = table_of(size, comm.size)
            members, _ = run(comm, table, neighbours)
            alone, none = run(MPI.COMM_SELF, table, neighbours)[0], run(comm, table, neighbours, False)[0]
            for at, arrays, *counts in members:
                want = zip(*(rows_of(source, at, line[at]) for source, line in enumerate(table)), strict=True)
                for array, parts in zip(arrays, want, strict=True):
                    np.testing.assert_array_equal(array, np.concatenate(parts))
                assert counts == list(alone[at][2:]) == list(none[at][2:])


@pytest.mark.mpi(ranks=[1, 3])
def test_bytes_and_parts_are_counted_where_they_go(comm: Any) -> None:
    """Joined pair by pair a part is sent once; round a ring the part for member i + s crosses s links, of i and of the
    s - 1 after it. Empty ones are not sent, nor are one's own."""
    size, table = 6, table_of(6, 1)
    direct, ring, parts, moved = ([0] * size for _ in range(4))
    for source in range(size):
        for far in range(1, size):
            count = table[source][(source + far) % size]
            direct[source] += ROW * count
            parts[source] += bool(count)
            for hop in range(far):
                ring[(source + hop) % size] += ROW * count
                moved[(source + hop) % size] += bool(count)
    for neighbours, sent, hops in ((False, direct, parts), (True, ring, moved)):
        members, messages = run(comm, table, neighbours)
        assert [member[3] for member in members] == sent
        assert [member[5] for member in members] == hops
        assert all(member[4] == 1 for member in members)
        if comm.size == 1:
            assert messages == 0


@pytest.mark.mpi(ranks=[4])
def test_with_a_member_a_rank_every_part_is_a_message(comm: Any) -> None:
    table = table_of(4, 2)
    members, messages = run(comm, table, False)
    assert (
        messages
        == sum(member[5] for member in members)
        == sum(bool(n) for at in range(4) for to, n in enumerate(table[at]) if to != at)
    )


@pytest.mark.mpi(ranks=[1, 2])
def test_a_round_ends_when_a_member_has_sent_and_received(comm: Any) -> None:
    """Two members that begin at 0 and 2 us; three that begin together, of which the last sends nothing."""
    second = ROW / LINK.bytes_per_second
    (first, other), _ = run(comm, [[9, 400], [100, 0]], False)
    ends = [0 + 400 * second, 2e-6 + 100 * second]
    assert first[2] == pytest.approx(max(ends[0], ends[1] + LINK.latency))
    assert other[2] == pytest.approx(max(ends[1], ends[0] + LINK.latency))
    nothing, _ = run(comm, [[5, 0], [0, 5]], True)
    assert [member[2] for member in nothing] == [0.0, 2e-6] and [member[3] for member in nothing] == [0, 0]


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 9), st.integers(0, 10**6), st.booleans(), st.sampled_from([0.0, 0.5, 1.0]))
def test_any_table_on_one_rank(size: int, seed: int, neighbours: bool, empty: float) -> None:
    from gpu_runs import Alone

    table = table_of(size, seed, empty)
    members, _ = run(Alone(), table, neighbours)
    for at, (floats, ints), *_ in members:
        want = [rows_of(source, at, line[at]) for source, line in enumerate(table)]
        np.testing.assert_array_equal(floats, np.concatenate([row_floats for row_floats, _ in want]))
        np.testing.assert_array_equal(ints, np.concatenate([row_ints for _, row_ints in want]))


@pytest.mark.parametrize("link", ["nvlink", "pcie"])
def test_on_gpus_the_device_says_whether_parts_are_handed_on(link: str) -> None:
    """Four GPUs, a row from each to each: 3 parts of a GPU, or 3 + 2 + 1 links for each of them; each has a launch."""
    gpus = new_gpus(4, payload=False, link=link)
    arrays = [[gpu.shaped((4, 8))] for gpu in gpus.mine]
    outs = [[gpu.shaped((4, 8))] for gpu in gpus.mine]
    gpus.all_to_all(arrays, outs, [[1] * 4] * 4, 32)
    each = 3 if link == "nvlink" else 6
    for gpu, traffic in zip(gpus.mine, gpus.group.traffic, strict=True):
        assert gpu.counters.tally == {"all_to_all_parts": each} and traffic["all_to_all"].bytes == 32 * each
        protocol = gpu.device.protocol(3, 32)
        rounds = 3 * (protocol.step_seconds + (each / 3) * 32 / (protocol.share * gpu.device.link_bytes_per_second))
        begin = gpu.device.launch_seconds + gpu.device.kernel_seconds
        assert gpu.now == pytest.approx(begin + protocol.seconds + rounds)
        assert gpu.counters.collective_seconds == pytest.approx(protocol.seconds + rounds)
