"""Caches, the bus and how work is shared out: against brute force, worked figures, and bits that no split changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import run_on_arm
from test_arm_linear import new_soc

from meshrt.arm.bus import ends, fair
from meshrt.arm.cache import PIECE, CoreCaches, Lru, SharedCache, bytes_of, pieces, stretch
from meshrt.arm.device import N2X8, PHONE, Cluster
from meshrt.programs.arm.split import SplitWork, by_speed, equal, share_out
from meshrt.studies.arm.split import BUS, CAPS, COMPUTING, READING, last, shares_of

RATES = st.lists(st.floats(1.0, 1e3), min_size=1, max_size=8)


@given(RATES, st.floats(1.0, 4e3))
def test_shares_of_the_bus_are_max_min_fair(demands: list[float], total: float) -> None:
    """Nobody gets more than it demands; the bus is used if it is wanted; who gets less has no less than anyone."""
    rates = fair(demands, total)
    assert all(0 < rate <= demand for rate, demand in zip(rates, demands, strict=True))
    assert sum(rates) == pytest.approx(min(total, sum(demands)))
    short = [rate for rate, demand in zip(rates, demands, strict=True) if rate < demand]
    assert all(rate >= max(rates) * (1 - 1e-12) for rate in short)


def test_small_cores_first_then_the_others_alike() -> None:
    assert fair(CAPS, BUS) == [9e9] * 4 + [8e9] * 4
    assert fair(CAPS[:4], BUS) == [17e9] * 4  # the four big cores fill the bus alone


def test_who_is_done_leaves_the_bus_to_others() -> None:
    """10 and 30 bytes at 1 byte a second each of 1: half each until 20 s, then all; a core without bytes computes."""
    assert ends([0, 0, 7], [10, 30, 0], [1, 1, 1], 1) == [20, 40, 7]
    assert ends([50, 0], [10, 10], [1, 1], 1) == [
        50,
        pytest.approx(12.5),
    ]  # 0.2 bytes a second, no faster than it computes
    assert ends([], [], [], 1) == []


@pytest.mark.parametrize(
    ("work", "way", "milliseconds"),
    [(READING, "equal", 62.50), (READING, "speed", 63.79), (READING, "rate", 58.82), (READING, "steal", 58.82),
     (COMPUTING, "equal", 245.71), (COMPUTING, "speed", 154.29), (COMPUTING, "rate", 154.29)],
)  # fmt: skip
def test_worked_figures(work: SplitWork, way: str, milliseconds: float) -> None:
    """4 GB behind a bus of 68 GB/s take 58.82 ms at the least; 688 units at speeds that add up to 4.5 take 152.9."""
    assert round(1e3 * last(work, shares_of(way, work)), 2) == pytest.approx(milliseconds, abs=0.011)


def test_parts_as_the_published_rule_rounds_them() -> None:
    speeds = [1.0, 0.7, 0.7, 0.7, 0.35, 0.35, 0.35, 0.35]
    assert by_speed(688, speeds) == [153, 108, 108, 108, 54, 54, 54, 49]
    assert [len(share) for share in equal(10, 4)] == [3, 3, 2, 2]


@given(
    st.sampled_from(["equal", "rate", "paper", "steal"]), st.integers(0, 60),
    st.lists(st.floats(1e-6, 1e-3), min_size=1, max_size=8), st.booleans(), st.booleans(),
)  # fmt: skip
def test_every_unit_has_one_core(split: Any, units: int, seconds: list[float], reads: bool, intense: bool) -> None:
    work = SplitWork(units, tuple(seconds), 1e4 * reads, (1e9,) * len(seconds), 3e9, intense)
    shares = share_out(split, work)
    assert len(shares) == len(seconds) and sorted(unit for share in shares for unit in share) == [*range(units)]


@pytest.mark.mpi(ranks=[1, 2, 4])
@pytest.mark.parametrize("split", ["rate", "paper", "steal"])
def test_no_split_changes_a_bit(split: str, comm: Any) -> None:
    options: dict[str, Any] = {"m": 11, "k": 100, "n": 300, "device": "phone"}
    first = run_on_arm(comm, "linear", **options)
    other = run_on_arm(comm, "linear", split=split, **options)
    shape = run_on_arm(comm, "linear", split=split, payload=False, **options)
    if comm.rank == 0:
        assert other["result"] == first["result"]
        assert other["phases"][1]["instructions"] == first["phases"][1]["instructions"]
        assert other["measured"] == shape["measured"] and other["phases"] == shape["phases"]


# ---- caches


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 40)), max_size=60), st.integers(1, 100))
def test_what_was_used_last_stays(accesses: list[tuple[int, int]], capacity: int) -> None:
    """Against a list in the order of use. A piece has one size."""
    sizes: dict[int, int] = {}
    cache, held = Lru(capacity), list[int]()
    for name, drawn in accesses:
        size = sizes.setdefault(name, drawn)
        assert bytes_of(cache.touch((name, 0, 0), (0, size))[0]) == (0 if name in held else size)
        held = [*(other for other in held if other != name), name]
        while sum(sizes[other] for other in held) > capacity:
            held.pop(0)
        assert [key[0] for key in cache.held] == held and cache.used == sum(sizes[other] for other in held)


def test_ranges_are_cut_into_pieces() -> None:
    assert [span for _, span in pieces(1, 2, 2 * PIECE + 5)] == [(0, PIECE), (0, PIECE), (0, 5)]
    assert pieces(1, 2, 0) == []


def test_a_piece_that_grows_counts_once_and_what_another_core_wrote_is_fetched_again() -> None:
    lru = Lru(100)
    assert lru.touch((0, 0, 0), (0, 10)) == (((0, 10),), ()) and lru.touch((0, 0, 0), (0, 30)) == (((10, 30),), ())
    assert lru.used == 30
    within = stretch(4, 2, 100, PIECE + 50)
    assert within == [((4, 2, 0), (100, PIECE)), ((4, 2, PIECE), (0, 50))]
    caches = CoreCaches(Lru(9 * PIECE), Lru(9 * PIECE))
    caches.read(within)
    caches.forget([within[0][0]])
    caches.begin()
    caches.read(within)
    assert caches.l2_bytes == caches.slc_bytes == PIECE - 100


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 11), st.integers(1, 12)), max_size=40),
    st.integers(1, 40),
)  # fmt: skip
def test_of_a_piece_there_is_what_was_touched(accesses: list[tuple[bool, int, int, int]], capacity: int) -> None:
    """Against sets of bytes: what is read of DRAM, and what was changed and had to leave."""
    slc, held, changed = SharedCache(Lru(capacity)), dict[int, set[int]](), dict[int, set[int]]()
    for write, tile, begin, length in accesses:
        touched, part = {*range(begin, begin + length)}, [((0, tile, 0), (begin, begin + length))]
        missing, left = touched - held.get(tile, set()), 0
        held[tile] = held.pop(tile, set()) | touched
        changed[tile] = changed.get(tile, set()) | (touched if write else set())
        while sum(map(len, held.values())) > capacity:
            oldest = next(iter(held))
            held.pop(oldest)
            left += len(changed.pop(oldest, ()))
        assert slc.serve([[] if write else part], [part if write else []]) == [(0 if write else len(missing), left)]
        assert slc.lru.used == sum(map(len, held.values()))


def test_what_a_core_writes_of_a_piece_makes_nothing_else_of_it_be_there() -> None:
    """The last two of ten tokens are written: those before them are read from beyond, though all are in one piece."""
    caches = CoreCaches(Lru(9 * PIECE), Lru(9 * PIECE))
    caches.write(stretch(0, 0, 90, 100))
    caches.write(stretch(0, 0, 80, 90))
    assert caches.written == {(0, 0, 0): ((80, 100),)}
    caches.read(stretch(0, 0, 0, 100))
    assert caches.l2_bytes == caches.slc_bytes == 80 and caches.misses == [((0, 0, 0), (0, 80))]


def test_levels() -> None:
    """L1 of two pieces and L2 of four, in rounds of three: L1 never has one, L2 always after the first round."""
    caches = CoreCaches(Lru(2 * PIECE), Lru(4 * PIECE))
    for _ in range(5):
        for tile in range(3):
            caches.read(pieces(0, tile, PIECE))
    assert caches.l2_bytes == 15 * PIECE and caches.slc_bytes == 3 * PIECE and len(caches.misses) == 3


def test_what_is_written_goes_to_dram_when_it_has_to_make_room() -> None:
    """An SLC of two pieces: one that was written leaves for two others; one that is dropped goes nowhere."""
    slc = SharedCache(Lru(2 * PIECE))
    (first,), (second,), (third,) = (pieces(0, tile, PIECE) for tile in range(3))
    assert slc.serve([[]], [[first]]) == [(0, 0)]
    assert slc.serve([[second], [third]], [[], []]) == [(PIECE, 0), (PIECE, PIECE)]
    assert slc.serve([[]], [[first]]) == [(0, 0)]
    slc.drop(0)
    assert slc.serve([[second, third]], [[]]) == [(2 * PIECE, 0)] and slc.lru.used == 2 * PIECE
    assert slc.serve([[first], [second, third]], [[], []]) == [(PIECE, 0), (2 * PIECE, 0)]  # as DRAM has it


def test_what_a_core_has_written_it_still_has_and_others_fetch() -> None:
    """A piece of 100 bytes goes to the SLC; its writer reads it from its caches, the other core through the SLC."""
    soc = new_soc(2)
    first, second = soc.mine
    within = pieces(0, 0, 100)
    for core in (first, second):
        core.caches.read(within)
    first.begin()
    first.caches.write(within)
    soc._advance([first.end()])
    assert first.counts["slc_bytes"] == 100 and soc.system["dram_written"] == 0
    for core, fetched in ((first, 0), (second, 100)):
        core.begin()
        core.caches.read(within)
        assert core.caches.slc_bytes == fetched


def test_what_came_from_flash_before_it_was_wanted_takes_no_time() -> None:
    soc = new_soc(1)
    soc.system["seconds"] = 5.0
    soc.arrived(3.0, ())
    assert soc.system["seconds"] == 5.0 and soc.system["flash_wait_seconds"] == 0
    soc.arrived(7.0, ())
    assert soc.system["seconds"] == 7.0 and soc.system["flash_wait_seconds"] == 2.0


def test_a_loop_over_rows_reads_weights_again_and_one_over_columns_inputs() -> None:
    """Bytes from L2 follow from the order of the loops: 64 KiB of L1 hold a panel, not the matrix."""
    from mpi4py import MPI

    def l2_bytes(order: str) -> int:
        whole = run_on_arm(MPI.COMM_SELF, "linear", cores=1, payload=False, m=80, k=1024, n=512, group=0, order=order)
        return int(whole["phases"][1]["l2_bytes"])

    weights, inputs = 512 * 1024 // 2 + 4 * 512, 80 * (1024 + 8)
    assert l2_bytes("columns") == weights + 64 * inputs and l2_bytes("rows") == inputs + 8 * weights


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "cores": (lambda _: 4, "mesh"),
    "hz": (lambda hz: hz / 2, "measured.compute_seconds"),
    "simd_pipes": (lambda _: 1, "measured.compute_seconds"),
    "loads": (lambda _: 0.01, "measured.compute_seconds"),
    "stores": (lambda _: 0.01, "measured.compute_seconds"),
    "l1_bytes": (lambda _: 4096, "measured.l2_bytes"),
    "l2_bytes": (lambda _: 8192, "measured.slc_bytes"),
    "l2_bytes_per_cycle": (lambda _: 0.01, "measured.compute_seconds"),
    "slc_bytes_per_cycle": (lambda _: 0.01, "measured.compute_seconds"),
    "bytes_per_second": (lambda _: 1e7, "measured.critical_path.seconds"),
}


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("name", [field.name for field in fields(Cluster) if field.name != "name"])
def test_every_number_of_a_cluster_moves_something(name: str, comm: Any) -> None:
    change, path = CHANGES[name]
    cluster = replace(N2X8.clusters[0], l1_bytes=8192)
    values = []
    for changed in (cluster, replace(cluster, **{name: change(getattr(cluster, name))})):
        at: Any = run_on_arm(comm, "linear", payload=False, m=40, k=512, limits={"clusters": (changed,)})
        for key in path.split("."):
            at = at[key]
        values.append(at)
    assert values[0] != values[1]


def test_a_device_has_cores_in_order() -> None:
    assert [cluster.name for cluster in PHONE.cores] == ["Cortex-X3"] + 3 * ["Cortex-A715"] + 4 * ["Cortex-A510"]
    assert new_soc(3, "phone").mine[2].cluster.name == "Cortex-A715"
