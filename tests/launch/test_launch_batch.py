"""What is asked of a cluster: nodes, limits, words, times and sizes; and a sweep's runs."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrt.errors import UsageError
from meshrt.launch.batch import BatchJob, clock_time, parse_memory, parse_time
from meshrt.launch.sweep import MOST_RUNS, expand, parse_axis


def batch(**options: Any) -> BatchJob:
    return BatchJob(**{"ranks": 8, "runs": (("run", "gemm"),)} | options)


@pytest.mark.parametrize(
    ("options", "spread"),
    [
        ({}, None),
        ({"nodes": 4}, (2, 2, 2, 2)),
        ({"nodes": 3}, (3, 3, 2)),
        ({"ranks_per_node": 3}, (3, 3, 2)),
        ({"ranks_per_node": 8}, (8,)),
        ({"ranks_per_node": 5, "nodes": 2}, (5, 3)),
        ({"ranks_per_node": 9}, (8,)),
    ],
)
def test_ranks_on_nodes(options: dict[str, int], spread: tuple[int, ...] | None) -> None:
    assert batch(**options).on_nodes == spread


@given(ranks=st.integers(1, 500), nodes=st.integers(1, 500))
def test_all_ranks_are_on_all_nodes_evenly(ranks: int, nodes: int) -> None:
    if nodes > ranks:
        with pytest.raises(UsageError):
            batch(ranks=ranks, nodes=nodes)
        return
    spread = batch(ranks=ranks, nodes=nodes).on_nodes
    assert spread is not None and sum(spread) == ranks and len(spread) == nodes
    assert spread[0] - spread[-1] in (0, 1) and sorted(spread, reverse=True) == list(spread)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ranks": 0}, "ranks: 0"),
        ({"nodes": 0}, "nodes: 0"),
        ({"time": 0}, "time: 0"),
        ({"runs": ()}, "no run"),
        ({"nodes": 9}, "9 nodes for 8 ranks"),
        ({"nodes": 3, "ranks_per_node": 2}, "8 ranks, 2 on a node, take 4 nodes, not 3"),
        ({"memory": 100}, "--memory is of a node: give --nodes"),
        ({"cores_per_node": 2}, "--cores-per-node is of a node: give --nodes"),
        ({"nodes": 2, "cores_per_node": 4}, "4 cores for 4 ranks"),
        ({"name": "a b"}, "name 'a b'"),
        ({"name": "-a"}, "name '-a'"),
        ({"name": "a\n#SBATCH --uid=0"}, "name"),
        ({"output": "my file"}, "output 'my file'"),
        ({"output": "a\n#PBS -q x"}, "output"),
        ({"partition": "p;q"}, "partition 'p;q'"),
        ({"account": "$(id)"}, "account"),
        ({"account": ""}, "account ''"),
    ],
)
def test_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        batch(**options)
    assert words in str(caught.value)


def test_times_and_sizes() -> None:
    assert [parse_time(text) for text in ("90", "1:30:00", "100:00:01")] == [90 * 60, 90 * 60, 360_001]
    assert [clock_time(seconds) for seconds in (60, 3661, 360_001)] == ["0:01:00", "1:01:01", "100:00:01"]
    assert [parse_memory(text) for text in ("500M", "4G")] == [500, 4096]
    for text in ("", "1:30", "1:60:00", "-5", "1h", "1-00:00:00"):
        with pytest.raises(UsageError, match="minutes, or hours:minutes:seconds"):
            parse_time(text)
    for text in ("", "500", "4g", "1.5G", "-1G", "1T"):
        with pytest.raises(UsageError, match="500M or 4G"):
            parse_memory(text)


@given(seconds=st.integers(1, 10**8))
def test_a_time_is_read_as_it_is_written(seconds: int) -> None:
    assert parse_time(clock_time(seconds)) == seconds


def test_a_sweep_is_every_combination() -> None:
    arguments = ("run", "gemm", "--m", "{m}", "--k={k}", "--json", "{m}-{k}.json", "{other}")
    runs = expand(arguments, [parse_axis("m=1,2"), parse_axis("k=3,4,5")])
    assert runs == tuple(
        ("run", "gemm", "--m", m, f"--k={k}", "--json", f"{m}-{k}.json", "{other}") for m, k in product("12", "345")
    )


def test_without_a_sweep_there_is_one_run_as_it_stands() -> None:
    arguments = ("run", "x", "{m}", "--json", "a", "--json", "a")
    assert expand(arguments, []) == (arguments,)


def test_a_value_is_never_taken_for_a_name() -> None:
    assert expand(("{a}", "{b}"), [parse_axis("a={b},c"), parse_axis("b=d")]) == (("{b}", "d"), ("c", "d"))


@pytest.mark.parametrize("text", ["", "m", "m=", "m=1,,2", "=1", "1m=2", "m =1", "m=1,1"])
def test_no_axis(text: str) -> None:
    with pytest.raises(UsageError, match="sweep"):
        parse_axis(text)


@pytest.mark.parametrize(
    ("arguments", "axes", "words"),
    [
        (("run", "--m", "1"), ["m=1,2"], "no {m} in the arguments"),
        (("--m", "{m}"), ["m=1,2", "m=3"], "each name may be there once"),
        (("--m", "{m}", "--json", "a.json"), ["m=1,2"], "2 runs would write a.json: put {m}"),
        (("--m", "{m}", "{k}", "--json=a-{k}.json"), ["m=1,2,3", "k=4,5"], "3 runs would write a-4.json: put {m}"),
        (("--m", "{m}", "{k}", "--json=a-{m}.json"), ["m=1,2,3", "k=4,5"], "2 runs would write a-1.json: put {k}"),
        (
            ("{m}", "--outputs", "a.npz"),
            ["m=1,2"],
            "2 runs would write a.npz: put {m} into the name given to",
        ),
        (("{m}", "--checkpoint", "state"), ["m=1,2"], "2 runs would write state: put {m} into the name given to --ch"),
        (("{m}", "--maps=a.npz"), ["m=1,2"], "2 runs would write a.npz: put {m} into the name given to --maps"),
        (("{m}",), [f"m={','.join(map(str, range(MOST_RUNS + 1)))}"], f"{MOST_RUNS + 1} runs: at most {MOST_RUNS}"),
    ],
)
def test_no_sweep(arguments: tuple[str, ...], axes: list[str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        expand(arguments, [parse_axis(axis) for axis in axes])
    assert words in str(caught.value)


def test_all_runs_may_print_their_json() -> None:
    assert len(expand(("--m", "{m}", "--json", "-"), [parse_axis("m=1,2")])) == 2
