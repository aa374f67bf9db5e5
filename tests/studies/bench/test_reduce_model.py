"""The virtual clock against the reduce model of "Near-Optimal Wafer-Scale Reduce" (HPDC 2024)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from meshrt.errors import UsageError
from meshrt.mesh.presets import WSE2
from meshrt.studies.bench import reduce_model
from meshrt.studies.bench.reduce_model import MODEL, PatternPoint, cycles_of, measure

LENGTHS = (8, 16, 32, 64, 128)
WORDS = (1, 4, 16, 64, 256, 1024)
ON_LINES = pytest.mark.parametrize("lengths", [LENGTHS[1:4:2], pytest.param(LENGTHS, marks=pytest.mark.all)], ids=str)


@cache
def points(lengths: tuple[int, ...]) -> list[PatternPoint]:
    """Measured once in the process of the ranks; no communicator but its own is used."""
    return measure(lengths, WORDS)


def of(pattern: str, lengths: tuple[int, ...]) -> list[PatternPoint]:
    chosen = [point for point in points(lengths) if point.pattern == pattern]
    assert len(chosen) == len(WORDS) * len([n for n in lengths if n <= 64 or pattern != "star"])
    return chosen


def test_the_models_terms_are_the_published_closed_forms():
    """Section 5 of the paper: chain B + (2 T_R + 2)(P - 1), broadcast B + P + 2 T_R; T_R = 2."""
    for p in (2, 8, 100):
        for b in (1, 7, 4096):
            assert MODEL["chain"](p, b).cycles == b + 6 * (p - 1)
            assert MODEL["broadcast"](p, b).cycles == b + p + 4
            assert MODEL["star"](p, b).cycles == max(b * (p - 1), b * p / 2 + p - 1) + 5
    assert MODEL["tree K=1"](2, 5) == MODEL["chain"](2, 5), "two cores have one arm"
    tree = MODEL["tree K=2"](16, 3)  # 4 groups of 4: arms of 2 and 1 members, then the same, 4 hops apart
    assert (tree.contention, tree.energy, tree.longest, tree.depth) == (4 * 3, 3 * (4 * 3 + 3 * 4), 2 + 8, 2 + 2)


@pytest.mark.mpi(ranks=[1])
@ON_LINES
def test_a_chain_takes_what_the_model_says(lengths: tuple[int, ...], comm):
    assert all(point.clock == point.model for point in of("chain", lengths))


@pytest.mark.mpi(ranks=[1])
@ON_LINES
def test_a_broadcast_is_off_by_the_latency_of_ramps_at_most(lengths: tuple[int, ...], comm):
    assert all(0 <= point.model - point.clock <= 5 for point in of("broadcast", lengths))


@pytest.mark.mpi(ranks=[1])
@ON_LINES
@pytest.mark.parametrize("pattern", ["tree K=1", "tree K=2"])
def test_trees_are_within_a_few_per_cent(pattern: str, lengths: tuple[int, ...], comm):
    """Where contention or distance rules; where neither does, one of two arms waits for the other, or need not."""
    chosen = of(pattern, lengths)
    off = sorted(abs(point.difference) for point in chosen)
    assert off[len(off) // 2] < 0.04
    assert off[-1] < 0.18
    assert all(abs(point.difference) < 0.03 for point in chosen if point.words >= 16 * point.cores)


@pytest.mark.mpi(ranks=[1])
@ON_LINES
def test_a_star_is_bound_by_what_its_root_takes_in(lengths: tuple[int, ...], comm):
    assert all(abs(point.difference) < 0.03 for point in of("star", lengths) if point.words >= 16)


@pytest.mark.mpi(ranks=[1])
def test_additions_that_wait_for_the_whole_packet_are_far_from_the_model(comm):
    """The agreement is the streaming's doing: without it a chain takes B at every core."""
    waiting = replace(WSE2, stream_adds=False)
    assert cycles_of("chain", 16, 64, waiting) > 10 * MODEL["chain"](16, 64).cycles


@pytest.mark.mpi(ranks=[1])
def test_senseless_sizes_are_refused(comm):
    for lengths, words in (((1,), (4,)), ((8,), (0,))):
        with pytest.raises(UsageError):
            measure(lengths, words)


def test_the_command_prints_and_writes_them(run_meshrt: Callable[..., Any], tmp_path: Path):
    path = tmp_path / "clock.json"
    code, out, err, _ = run_meshrt(
        "bench", "clock", "--cores", "8", "--cores", "16", "--words", "4", "--json", str(path)
    )
    assert (code, err) == (0, "")
    written = json.loads(path.read_text())["points"]
    assert {(point["pattern"], point["cores"]) for point in written} == {(name, n) for name in MODEL for n in (8, 16)}
    assert all(name in out for name in MODEL)
    assert "46 +0.0%" in out, "a chain of 8 cores and 4 words: 4 + 6 * 7"
    code, out, err, _ = run_meshrt("bench", "clock", "--cores", "8", "--words", "4", "--json", "-")
    assert (code, err) == (0, "")
    assert json.loads(out)["points"] == [point for point in written if point["cores"] == 8], "and nothing else"
    code, out, err, _ = run_meshrt("bench", "clock", "--cores", "8", "--words", "4", ranks=2)
    assert (code, out) == (2, "") and err.startswith("meshrt: error: 2 ranks: ") and err.count("\n") == 1
    code, _, err, _ = run_meshrt("bench", "clock", "--words", "0")
    assert code == 2 and "'--words': 0 is not in the range x>=1" in err
    assert reduce_model.as_json([]) == {"schema": 1, "device": "wse2", "points": []}
