"""The KV cache. By shift, rows differ by one token at most, every move is one hop, and the order is the tokens'; the
other policies move nothing, and concatenate fills one row alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from measure import measured, on_first, on_one_rank, own, run_report, whole
from runs import new_block
from tiers import examples

from meshrt.errors import LimitError, UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.devicefile import find_device
from meshrt.programs.mesh.cache import Policy, TokenCache, append, kv_cache, place_of_new
from meshrt.programs.mesh.climb import balance, refusal, spread_evenly

RANKS = [1, 2, 3, 4, 6, 9, 16]
MESH = (4, 5)
COUNTS = 8  # bytes of the numbers of tokens that a core and the one above it hold, where they shift


def even(total: int, rows: int) -> list[int]:
    """As many tokens in every row as can be, the first rows with one more."""
    return [total // rows + (row < total % rows) for row in range(rows)]


def tokens(cache: TokenCache) -> list[np.ndarray]:
    """The numbers that the rows of the mesh hold: float32 [tokens, W, *token] each."""
    data = whole(cache.block, cache.data)
    return [row[:, :held].swapaxes(0, 1) for row, held in zip(data, cache.held, strict=True)]


def number(block: Block, value: int, shape: tuple[int, ...]) -> np.ndarray:
    """The tile of a token at each core of the block: its number, plus a hundredth for the column."""
    columns = np.arange(block.mesh.x0, block.mesh.x0 + block.mesh.block_width, dtype=np.float32) / 128
    return np.broadcast_to((value + columns).reshape(1, -1, *(1,) * len(shape)), (*block.shape, *shape)).astype(
        "float32"
    )


def assert_in_order(cache: TokenCache) -> None:
    """From north to south the rows hold tokens 0, 1, 2, ... and every core the tiles of its own column."""
    held = np.concatenate(tokens(cache))
    columns = np.arange(held.shape[1]).reshape(1, -1, *(1,) * (held.ndim - 2)) / 128
    assert (held == np.arange(len(held)).reshape(-1, *(1,) * (held.ndim - 1)) + columns).all()


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("mesh", [MESH, (16, 1), (4, 4), (9, 2)], ids=str)
def test_rows_stay_even_and_in_order_after_every_token(mesh: tuple[int, int], comm):
    width, height = mesh
    block = new_block(comm, mesh)
    count = 3 * height + 2
    with kv_cache(block, (2, 3), count, "float32") as cache:
        for at in range(count):
            append(cache, number(block, at, (2, 3)))
            balance(cache)
            assert np.ptp(cache.held) <= 1
            assert cache.held.sum() == at + 1
        assert_in_order(cache)
        final = cache.held.copy()
    report = measured(block)
    # Each step, every core tells the one below it how much it holds: one hop in each column but for the south row.
    # Besides, a token moves one hop for every row between the south, where it came in, and where it is in the end.
    climbed = sum(int(held) * (height - 1 - row) for row, held in enumerate(final))
    assert report["hops"] == report["messages"] == width * (count * (height - 1) + climbed)
    assert report["max_hops"] == min(1, height - 1)
    assert report["route_entries"]["max"] <= 4
    each = 2 * 3 * 4
    # The fullest row; a token on its way takes the place that it comes to, and leaves its own when it has arrived.
    assert report["memory_bytes"]["max"] == -(-count // height) * each + COUNTS


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(3)
@pytest.mark.parametrize("height", range(1, 10))
def test_every_number_of_tokens_is_spread_evenly(height: int, comm):
    for count in range(1, 3 * height + 2):
        result = run_report(comm, "kvcache", (2, height), tokens=count, head_dim=2, heads=1, layers=1)["result"]
        assert (sum(result["rows"]), np.ptp(result["rows"]) <= 1) == (count, True)
        assert count < height or result["rows"] == even(count, height)
        assert result["most_uneven"] <= 1
        assert result["in_order"] is True


def check_spreading(comm: Any, held: list[int]) -> None:
    """Rows of MESH that hold so many tokens each hold as many as can be afterwards, in order, by single hops."""
    block, (width, height) = new_block(comm, MESH), MESH
    with kv_cache(block, (2,), sum(held) + 2, "float32") as cache:
        cache.add(np.array(held))
        at = 0
        for row, tokens_here in enumerate(held):
            for place in range(tokens_here):
                if row in range(height)[cache.rows]:
                    cache.data[row - block.mesh.y0, :, place] = number(block, at, (2,))[0]
                at += 1
        spread_evenly(cache)
        assert cache.held.tolist() == even(sum(held), height)
        assert_in_order(cache)
    # In order, what crosses between two rows is the surplus of all rows above; nothing goes there and back.
    crossing = sum(abs(int(surplus)) for surplus in np.cumsum(np.array(held) - even(sum(held), height)))
    report = measured(block)
    assert report["hops"] == report["messages"] == width * crossing
    assert report["max_hops"] == min(1, crossing)


STARTS = st.lists(st.integers(0, 9), min_size=MESH[1], max_size=MESH[1])


@pytest.mark.mpi(ranks=[1, 6, 9, 16])
def test_any_start_is_spread_evenly_in_order_by_single_hops(comm):
    @settings(max_examples=examples(30 if comm.size < 6 else 10))
    @given(STARTS)
    @example([0, 0, 0, 0, 9])
    @example([9, 0, 0, 0, 0])
    @example([0, 0, 0, 0, 0])
    @example([3, 0, 9, 0, 1])
    def check(held: list[int]) -> None:
        check_spreading(comm, held)

    check()


@pytest.mark.mpi(ranks=[4])
def test_so_it_is_on_any_number_of_ranks(comm):
    @settings(max_examples=examples(90))
    @given(st.sampled_from([2, 3, 4]), STARTS)
    @example(2, [0, 0, 0, 0, 9])
    @example(3, [9, 0, 0, 0, 0])
    @example(4, [0, 0, 0, 0, 0])
    @example(4, [3, 0, 9, 0, 1])
    def check(ranks: int, held: list[int]) -> None:
        on_first(comm, ranks, lambda part: check_spreading(part, held))

    check()


@pytest.mark.mpi(ranks=[1])
def test_leaving_the_cache_gives_its_memory_and_routes_back(comm):
    block = new_block(comm, MESH)
    for _ in range(2):
        with kv_cache(block, (2,), 9, "float32") as cache:
            append(cache, number(block, 0, (2,)))
    assert not block.tables.entries.any()
    assert (block.memory.common, block.memory.most_extra) == (0, 0)


@pytest.mark.mpi(ranks=[1])
def test_a_full_row_is_refused_with_its_name_and_core(comm):
    """One token of 4 layers, 2, 4 heads, 16 numbers of 2 bytes takes 1 KiB. 12 tokens are 3 a row; 13 do not fit."""
    options = {"head_dim": 64, "heads": 4, "layers": 4}
    report = run_report(comm, "kvcache", (4, 4), "wse2", tokens=12, **options)
    peak = report["measured"]["memory_bytes"]["max"]
    assert report["result"]["bytes_per_token"] == 1024
    block = new_block(comm, (4, 4), core_memory=peak)
    message = r"'(KV cache|token in flight)' asks for \d+ bytes, \d+ are in use"
    with (
        pytest.raises(LimitError, match=rf"core \(0, 3\): {message}, the limit is {peak} "),
        kv_cache(block, (4, 2, 4, 16), 99, "float16") as cache,
    ):
        for at in range(99):
            append(cache, number(block, at, (4, 2, 4, 16)))
            balance(cache)
    assert (peak, cache.held.tolist()) == (3 * 1024 + COUNTS, [3, 3, 3, 3])


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_cache_that_is_full_ends_the_job_with_exit_code_3(ranks: int, run_meshrt):
    args = ("run", "kvcache", "--mesh", "4x4", "--tokens", "200", "--core-memory", "8192", "--quiet")
    code, out, err, _ = run_meshrt(*args, ranks=ranks)
    assert code == 3, err
    lines = [line for line in err.splitlines() if "meshrt:" in line]
    assert "KV cache" in lines[0] or "token in flight" in lines[0]
    assert "the limit is 8192" in lines[0] and "core (" in lines[0]
    assert "Traceback" not in err and out == ""
    # Ranks whose cores are full at the same moment say so in one more line, not in as many messages.
    assert len(lines) == 1 or (len(lines) == 2 and "more rank" in lines[1])


# -------------------------------------------------------------------------------------------------------- policies


def numbers(cache: TokenCache) -> list[list[int]]:
    """The numbers of the tokens that each row of the mesh holds, as the core in column 0 has them."""
    return [[int(tile.flat[0]) for tile in row[:, 0]] for row in tokens(cache)]


def where_they_go(policy: str, count: int, height: int) -> list[list[int]]:
    """Worked out from Figure 5: the tokens of each row, in the order of their places."""
    if policy == "roundrobin":
        return [list(range(row, count, height)) for row in range(height)]
    if policy == "concat":
        return [[] for _ in range(height - 1)] + [list(range(count))]
    assert count >= height, "before that, shift fills its rows from north to south, too, but leaves some empty"
    starts = np.cumsum([0, *even(count, height)])
    return [list(range(low, high)) for low, high in pairwise(starts)]


@pytest.mark.mpi(ranks=[1, 2, 4, 6])
@pytest.mark.parametrize("policy", ["shift", "concat", "roundrobin"])
def test_each_policy_keeps_every_token_where_it_should(policy: Policy, comm):
    width, height = MESH
    block = new_block(comm, MESH)
    count = 3 * height + 2
    with kv_cache(block, (2, 3), 1, "float32", policy) as cache:  # room for one: the host's array grows
        for at in range(count):
            append(cache, number(block, at, (2, 3)))
            place = place_of_new(cache)
            row = at % height if policy == "roundrobin" else height - 1
            assert (place is not None) == (row in range(height)[cache.rows])
            if place is not None:
                assert cache.data[place[0], 0, place[1], 0, 0] == at + block.mesh.x0 / 128
            balance(cache)
        assert numbers(cache) == where_they_go(policy, count, height)
        if policy != "roundrobin":
            assert_in_order(cache)
        moved = cache.moved
    report = measured(block)
    if policy == "shift":
        assert report["hops"] == width * (moved + count * (height - 1))
        assert moved == sum(row * held for row, held in enumerate(reversed(even(count, height))))
    else:
        assert (moved, report["messages"], report["hops"], report["route_entries"]["max"]) == (0, 0, 0, 0)
    fullest = count if policy == "concat" else -(-count // height)
    more = COUNTS if policy == "shift" else 0
    assert report["memory_bytes"]["max"] == fullest * 2 * 3 * 4 + more, (
        "a token on its way takes the place that it comes to"
    )


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("policy", ["shift", "concat", "roundrobin"])
def test_new_tokens_come_on_top_of_a_prompt(policy: Policy, comm):
    """A prompt of 12 is spread evenly, whatever the policy, and 6 new tokens go where theirs do."""
    expected = {
        "shift": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14], [15, 16, 17]],
        "concat": [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9], [10, 11, 12, 13, 14, 15, 16, 17]],
        "roundrobin": [[0, 1, 2, 15], [3, 4, 5, 16], [6, 7, 12, 17], [8, 9, 13], [10, 11, 14]],
    }
    block = new_block(comm, MESH)
    with kv_cache(block, (2,), 1, "float32", policy) as cache:
        before = block.tables.entries.copy()
        cache.add(np.array([5, 0, 7, 0, 0]))
        for row, low, high in ((0, 0, 5), (2, 5, 12)):
            if row in range(5)[cache.rows]:
                for place, at in enumerate(range(low, high)):
                    cache.data[row - block.mesh.y0, :, place] = number(block, at, (2,))[0]
        spread_evenly(cache)
        assert (block.tables.entries == before).all(), "routes that only the spreading needs are gone again"
        for at in range(12, 18):
            append(cache, number(block, at, (2,)))
            balance(cache)
        assert numbers(cache) == expected[policy]


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("policy", ["shift", "concat", "roundrobin"])
def test_a_refused_token_changes_nothing_on_any_rank(policy: Policy, comm):
    """Rows of 32 bytes a token and 140 bytes hold 4, and two counts of tokens where they shift. A refusal says so on
    all ranks before anything has moved."""
    block = new_block(comm, MESH, core_memory=140)
    room = 4 if policy == "concat" else 4 * MESH[1]
    with kv_cache(block, (8,), 1, "float32", policy) as cache:
        for at in range(room):
            assert refusal(cache) is None
            append(cache, number(block, at, (8,)))
            balance(cache)
        held, state, hops = cache.held.copy(), block.clock.state.copy(), block.counters.hops
        reason = refusal(cache)
        assert reason is not None and "128 are in use, the limit is 140" in reason
        assert comm.allgather(reason) == [reason] * comm.size
        assert (cache.held.tolist(), block.counters.hops) == (held.tolist(), hops)
        assert (block.clock.state == state).all()
        row = 0 if policy == "roundrobin" else MESH[1] - 1
        if row in range(MESH[1])[cache.rows]:
            with pytest.raises(LimitError, match="'KV cache' asks for 160 bytes"):
                append(cache, number(block, room, (8,)))
        assert cache.held.tolist() == held.tolist()
        assert numbers(cache) == where_they_go(policy, room, MESH[1])


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("payload", [True, False])
def test_a_token_in_flight_takes_memory_beside_the_one_that_leaves(payload: bool, comm):
    """Rows hold 3 tokens of 32 bytes each, and row 2 other things as well. While the last row's new token makes all
    rows pass one up, row 2 holds 3, the one that comes, and the counts: it fits in so many bytes, and in no byte less.
    """
    height = MESH[1]
    for less in (0, 1):
        block = new_block(comm, MESH, payload=payload, core_memory=1000)
        with kv_cache(block, (8,), 1, "float32") as cache:
            for at in range(3 * height):
                append(cache, number(block, at, (8,)))
                balance(cache)
            assert cache.held.tolist() == [3] * height
            others = np.zeros(block.shape, int)
            others[2] = 1000 - 4 * 32 - COUNTS + less
            block.memory.take("other things", others)
            block.reset_peaks()
            append(cache, number(block, 3 * height, (8,)))
            if less:
                with pytest.raises(
                    LimitError, match=r"core \(0, 2\): 'token in flight' asks for 32 bytes, 969 are in use"
                ):
                    balance(cache)
            else:
                balance(cache)
                assert cache.held.tolist() == [4, *[3] * (height - 1)]
                assert block.memory.peak == 1000


@pytest.mark.mpi(ranks=[1, 4])
def test_a_row_that_only_gets_a_token_from_below_can_refuse_it(comm):
    """All rows hold as many: a new token makes each pass one up, and the north row has room for the counts alone."""
    block = new_block(comm, MESH, core_memory=100)
    with kv_cache(block, (2,), 1, "float32", "shift") as cache:
        for at in range(MESH[1]):
            append(cache, number(block, at, (2,)))
            balance(cache)
        north = np.zeros((MESH[1], MESH[0]), np.int64)
        north[0] = 100 - 8 - 2 * 4
        with block.memory.hold("something else", own(block, north)):
            reason = refusal(cache)
        assert reason is not None and "'next token of the KV cache' asks for" in reason and ", 0)" in reason
        assert refusal(cache) is None


# ------------------------------------------------------------------------------------------------------- until full


def filled(comm: Any, mesh: tuple[int, int], policy: str, payload: bool = True, **options: Any) -> dict[str, Any]:
    """The report of a cache of 1 KiB tokens on cores of 9 KiB, without what the host says."""
    sizes = {"head_dim": 16, "heads": 4, "layers": 4, "columns": 1} | options
    machine = find_device("wse2", core_memory=9 * 1024)
    report = run_report(comm, "kvcache", mesh, machine, payload, policy=policy, until_full=True, **sizes)
    del report["host"]
    return report


@pytest.mark.mpi(ranks=[1, 2, 4])
@pytest.mark.parametrize(("mesh", "reserved"), [((4, 4), 8), ((2, 7), 1500), ((5, 3), 1500), ((8, 2), 8)], ids=str)
def test_shift_holds_the_rows_times_what_concat_holds(mesh: tuple[int, int], reserved: int, comm):
    height = mesh[1]
    each = (9 * 1024 - reserved) // 1024  # tokens that fit beside what is reserved
    reports = {policy: filled(comm, mesh, policy, reserved=reserved) for policy in ("shift", "concat", "roundrobin")}
    results = {policy: report["result"] for policy, report in reports.items()}
    assert results["concat"]["rows"] == [0] * (height - 1) + [each]
    assert results["roundrobin"]["rows"] == results["shift"]["rows"] == [each] * height
    assert [results[policy]["tokens"] for policy in results] == [height * each, each, height * each]
    for policy, result in results.items():
        assert (result["fullest_row"], result["emptiest_row"]) == (max(result["rows"]), min(result["rows"]))
        assert f"{reserved + each * 1024} are in use, the limit is 9216" in result["refused"]
        assert result["every_token_once"] is True
        assert result["in_order"] is (policy != "roundrobin")
        counts = COUNTS if policy == "shift" else 0
        assert reports[policy]["measured"]["memory_bytes"]["max"] == reserved + each * 1024 + counts
    # Figures of balance, from what was appended when.
    concat, shift = results["concat"], results["shift"]
    assert concat["tokens_over_mean"] == concat["work_over_mean"] == concat["busiest_row_over_mean"] == height
    used = reserved + each * 1024
    assert concat["memory_over_mean"] == pytest.approx(used / (reserved + each * 1024 / height), rel=1e-12)
    assert shift["tokens_over_mean"] == shift["memory_over_mean"] == 1
    # In step n (from 1), the fullest row looks at ceil(n / H) tokens, under both policies that keep rows even. While
    # rows are still empty, though, shift passes tokens up by one row a step: from the third on the south row has two.
    steps = range(1, height * each + 1)
    slowest = sum(-(-n // height) for n in steps)
    assert results["roundrobin"]["work_over_mean"] == pytest.approx(slowest * height / sum(steps), rel=1e-12)
    assert shift["work_over_mean"] == pytest.approx((slowest + height - 2) * height / sum(steps), rel=1e-12)
    assert shift["tokens_moved"] == each * height * (height - 1) // 2, "token by token, from the south to its row"


@pytest.mark.mpi(ranks=[2, 4])
@pytest.mark.parametrize("policy", ["shift", "concat", "roundrobin"])
def test_until_full_is_the_same_on_any_number_of_ranks(policy: str, comm):
    for mesh in ((4, 4), (5, 3)):
        assert filled(comm, mesh, policy) == on_one_rank(comm, lambda alone, at=mesh: filled(alone, at, policy))


@pytest.mark.mpi(ranks=[1, 2, 4])
@pytest.mark.parametrize("policy", ["shift", "concat", "roundrobin"])
def test_until_full_without_payloads_is_the_same(policy: str, comm):
    full, none = (filled(comm, (4, 4), policy, payload) for payload in (True, False))
    assert (none["measured"], none["phases"]) == (full["measured"], full["phases"])
    assert (none["result"].pop("in_order"), none["result"].pop("every_token_once")) == (None, None), "not looked at"
    assert none["result"] == {key: full["result"][key] for key in none["result"]}


@pytest.mark.mpi(ranks=[1])
def test_the_balance_of_four_tokens_on_two_rows_by_hand(comm):
    """Rows at the time of attention: shift 0 1, 1 1, 1 2, 2 2; roundrobin 1 0, 1 1, 2 1, 2 2; concat 0 1, .. 0 4."""
    for policy, work, busiest, moved in (("shift", 1.2, 1.2, 2), ("roundrobin", 1.2, 1.2, 0), ("concat", 2, 2, 0)):
        result = run_report(comm, "kvcache", (3, 2), policy=policy, tokens=4)["result"]
        assert result["work_over_mean"] == pytest.approx(work, rel=1e-12)
        assert result["busiest_row_over_mean"] == pytest.approx(busiest, rel=1e-12)
        assert result["tokens_moved"] == moved


@pytest.mark.mpi(ranks=[1])
def test_a_column_stands_for_a_mesh_of_columns_that_are_alike(comm):
    """One column of cores with the tokens of 12 columns: the same rows, cycles and peaks, a twelfth of the packets."""
    whole_mesh = filled(comm, (12, 6), "shift", False, head_dim=128, heads=8, groups=4, columns=None)
    column = filled(comm, (1, 6), "shift", False, head_dim=128, heads=8, groups=4, columns=12)
    assert column["result"] == whole_mesh["result"]
    assert column["result"]["bytes_per_token"] == 4 * 2 * 2 * 43 * 2, "4 layers, 2 of 8 heads, 128 / 3 numbers"
    assert column["measured"]["critical_path"] == whole_mesh["measured"]["critical_path"]
    assert column["measured"]["memory_bytes"] == whole_mesh["measured"]["memory_bytes"]
    assert 12 * column["measured"]["hops"] == whole_mesh["measured"]["hops"]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(
    ("device", "options", "message"),
    [
        ("wse2", {"tokens": 3, "until_full": True}, "--tokens and --until-full"),
        ("ideal", {"until_full": True}, "--core-memory"),
        ("wse2", {"reserved": -1}, "--reserved is -1"),
        ("wse2", {"groups": 3}, "--groups 3 has to divide the 4 heads"),
        ("wse2", {"groups": 4, "columns": 3}, "no more than 3 columns"),
        ("wse2", {"columns": 0}, "--columns is 0"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(device: str, options: dict[str, Any], message: str, comm):
    with pytest.raises(UsageError, match=message):
        run_report(comm, "kvcache", (2, 2), device, **options)


@pytest.mark.mpi(ranks=[1, 4])
def test_llama_says_the_same_under_every_policy(comm):
    """Attention sums over all tokens, wherever they are. What differs is the fullest row, and what is moved."""
    options = {"prompt_ids": "12,7,300,45,9,3,51,77,120", "max_new_tokens": 6, "ignore_eos": True, "layers": 2}
    reports = {kv: run_report(comm, "llama", (4, 4), kv=kv, **options) for kv in ("shift", "concat", "roundrobin")}
    said = {kv: report["result"]["token_ids"] for kv, report in reports.items()}
    assert said["concat"] == said["roundrobin"] == said["shift"]
    decode = {kv: report["phases"][-1] for kv, report in reports.items()}
    assert decode["roundrobin"]["hops"] == decode["concat"]["hops"] < decode["shift"]["hops"]
    assert decode["roundrobin"]["memory_bytes"]["max"] < decode["concat"]["memory_bytes"]["max"]


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_core_without_room_for_one_token_ends_the_job_with_exit_code_3(ranks: int, run_meshrt):
    args = ("run", "kvcache", "--mesh", "4x4", "--until-full", "--reserved", "49000", "--quiet")
    code, out, err, _ = run_meshrt(*args, ranks=ranks)
    assert (code, out) == (3, ""), err
    assert "not one token fits" in err and "49000 are in use" in err
    assert "Traceback" not in err
