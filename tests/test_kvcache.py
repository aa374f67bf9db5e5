"""The shift-based KV cache: rows differ by one token at most, every move is one hop, and the order is the tokens'."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from measure import measured, run_report, whole
from runs import new_block

from meshrt.block import Block
from meshrt.errors import LimitError
from meshrt.programs.kvcache import Cache, append, balance, kv_cache, spread_evenly

RANKS = [1, 2, 3, 4, 6, 9, 16]
MESH = (4, 5)


def even(total: int, rows: int) -> list[int]:
    """As many tokens in every row as can be, the first rows with one more."""
    return [total // rows + (row < total % rows) for row in range(rows)]


def tokens(cache: Cache) -> list[np.ndarray]:
    """The numbers that the rows of the mesh hold: float32 [tokens, W, *token] each."""
    data = whole(cache.block, cache.data)
    return [row[:, :held].swapaxes(0, 1) for row, held in zip(data, cache.held, strict=True)]


def number(block: Block, value: int, shape: tuple[int, ...]) -> np.ndarray:
    """The tile of a token at each core of the block: its number, plus a hundredth for the column."""
    columns = np.arange(block.mesh.x0, block.mesh.x0 + block.mesh.block_width, dtype=np.float32) / 128
    return np.broadcast_to((value + columns).reshape(1, -1, *(1,) * len(shape)), (*block.shape, *shape)).astype(
        "float32"
    )


def assert_in_order(cache: Cache) -> None:
    """From north to south the rows hold tokens 0, 1, 2, ... and every core the tiles of its own column."""
    found = np.concatenate(tokens(cache))
    columns = np.arange(found.shape[1]).reshape(1, -1, *(1,) * (found.ndim - 2)) / 128
    assert (found == np.arange(len(found)).reshape(-1, *(1,) * (found.ndim - 1)) + columns).all()


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
    # The fullest row, before or after a token is passed on; and the token on its way.
    assert -(-count // height) * each <= report["memory_bytes"]["max"] <= (-(-count // height) + 2) * each


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("height", range(1, 10))
def test_every_number_of_tokens_is_spread_evenly(height: int, comm):
    for count in range(1, 3 * height + 2):
        result = run_report(comm, "kvcache", (2, height), tokens=count, head_dim=2, heads=1, layers=1)["result"]
        assert (sum(result["rows"]), np.ptp(result["rows"]) <= 1) == (count, True)
        assert count < height or result["rows"] == even(count, height)
        assert result["most_uneven"] <= 1
        assert result["in_order"] is True


@pytest.mark.mpi(ranks=RANKS)
def test_any_start_is_spread_evenly_in_order_by_single_hops(comm):
    width, height = MESH

    @settings(max_examples=30)
    @given(st.lists(st.integers(0, 9), min_size=height, max_size=height))
    @example([0, 0, 0, 0, 9])
    @example([9, 0, 0, 0, 0])
    @example([0, 0, 0, 0, 0])
    @example([3, 0, 9, 0, 1])
    def check(held: list[int]) -> None:
        block = new_block(comm, MESH)
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
    """One token of 4 layers, 2, 4 heads, 16 numbers of 2 bytes takes 1 KiB; there is room for 3 a row, 1 on the way."""
    options = {"head_dim": 64, "heads": 4, "layers": 4}
    report = run_report(comm, "kvcache", (4, 4), "wse2", tokens=12, **options)
    peak = report["measured"]["memory_bytes"]["max"]
    assert report["result"]["bytes_per_token"] == 1024
    block = new_block(comm, (4, 4), core_memory=peak)
    what = r"'(KV cache|token in flight)' asks for \d+ bytes, \d+ are in use"
    with (
        pytest.raises(LimitError, match=rf"core \(0, 3\): {what}, the limit is {peak} "),
        kv_cache(block, (4, 2, 4, 16), 99, "float16") as cache,
    ):
        for at in range(99):
            append(cache, number(block, at, (4, 2, 4, 16)))
            balance(cache)
    assert 12 <= cache.held.sum() < 20, "four rows, with room for four tokens each"


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
