"""tiers.py itself: what plain `pytest` leaves out, and that --all and a test's name bring it back."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from mpi_jobs import nested_pytest, run_ranks
from tiers import drawn, spread

TESTS = Path(__file__).parents[1]

GRIDS = """
import pytest

@pytest.mark.parametrize("n", range(9))
def test_plain(n): pass

@pytest.mark.sample(3)
@pytest.mark.parametrize("n", range(9))
def test_sampled(n): pass

@pytest.mark.all
@pytest.mark.parametrize("n", range(9))
def test_of_all(n): pass

@pytest.mark.mpi(ranks=[1, 2, 3, 6, 8, 9])
@pytest.mark.parametrize("n", range(9))
def test_on_ranks(n): pass

@pytest.mark.mpi(ranks=[2, 4])
@pytest.mark.parametrize("n", range(9))
def test_never_alone(n): pass

@pytest.mark.mpi(ranks=[1, 2, 4])
@pytest.mark.parametrize("n", [0])
def test_single(n): pass

@pytest.mark.sample(2)
@pytest.mark.mpi(ranks=[2, 4, 6, 8])
@pytest.mark.parametrize("n", range(9))
def test_large(n): pass

@pytest.mark.parametrize("n", [pytest.param(n, marks=pytest.mark.all if n % 2 else ()) for n in range(9)])
def test_half_of_all(n): pass
"""


DRAWN = """
from hypothesis import given, settings, strategies as st
from tiers import examples

def test_drawn():
    drawn = [0, 0]

    @given(st.integers())
    def many(n): drawn[0] += 1

    @settings(max_examples=examples(30))
    @given(st.integers())
    def thirty(n): drawn[1] += 1

    many(), thirty()
    print(f"drawn {drawn[0]} of many and {drawn[1]} of thirty")
"""


# Each pytest as one of its own, without the start of one.
COLLECTS = """
import json, sys
import pytest

for arguments in json.loads(sys.argv[1]):
    print("collects", flush=True)
    assert pytest.main(["--collect-only", "-q", "-p", "mpi_plugin", "-p", "tiers", *arguments]) == 0
"""
NAMED = ("sampled", "of_all")
LISTS = ([], ["--all"], [f"test_grids.py::test_{name}" for name in NAMED])


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A folder with GRIDS."""
    (tmp_path / "test_grids.py").write_text(GRIDS)
    return tmp_path


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[str]]]:
    """With the arguments of LISTS: the parameter sets that would run of each test of GRIDS and number of ranks."""
    folder = tmp_path_factory.mktemp("grids")
    (folder / "test_grids.py").write_text(GRIDS)
    done = run_ranks([sys.executable, "-c", COLLECTS, json.dumps(LISTS)], 1, nested_pytest(), cwd=folder)
    assert done.code == 0, done.stdout + done.stderr
    return [sets_in(text) for text in done.stdout.split("collects\n")[1:]]


def sets_in(text: str) -> dict[str, list[str]]:
    sets: dict[str, list[str]] = {}
    for name, parameters in re.findall(r"::test_(\w+)\[(.*)\]", text):
        ranks = re.search(r"ranks=\d", parameters)
        sets.setdefault(f"{name} {ranks[0]}" if ranks else name, []).append(re.findall(r"\b\d\b", parameters)[-1])
    return sets


def test_the_default_tier_has_every_test_and_number_of_ranks_with_a_sample(
    collected: list[dict[str, list[str]]],
) -> None:
    ran = {**collected[0]}
    several = []
    grids = {"on_ranks": (1, "012345678"), "large": (2, "08"), "never_alone": (2, "012345678"), "single": (1, "0")}
    for name, (least, sets) in grids.items():
        # One set is on any number, of up to 6, and the others are on the least.
        by_ranks = {int(key[-1]): ran.pop(key) for key in [*ran] if key.startswith(f"{name} ")}
        assert sorted(number for its in by_ranks.values() for number in its) == [*sets]
        by_ranks.pop(least, None)
        assert {*by_ranks} <= {2, 3, 4} and sum(map(len, by_ranks.values())) <= 1
        several += by_ranks
    assert 0 < len(several) < len(grids)
    assert {name: len(sets) for name, sets in ran.items()} == {"plain": 9, "sampled": 3, "half_of_all": 5}
    assert ran["sampled"] == ["0", "4", "8"]
    assert ran["half_of_all"] == [*"02468"]


def test_under_mpirun_all_sets_for_its_ranks_run(suite: Path) -> None:
    """Or their sample: on_ranks and never_alone 9, single 1, large 2, and 17 that are for no ranks."""
    plugins = ("-p", "mpi_plugin", "-p", "tiers", "-p", "workers")
    argv = [sys.executable, "-m", "pytest", "-q", *plugins, "-n", "auto", "--with-mpi"]
    done = run_ranks(argv, 2, nested_pytest(), cwd=suite)
    assert done.code == 0, done.stdout + done.stderr
    skipped = 9 * 5 + 9 * 1 + 2 + 9 * 3  # for other ranks
    deselected = 9 + 4 + 6 + 7  # of_all, half_of_all, sampled, large
    assert done.stdout.count(f"38 passed, {skipped} skipped, {deselected} deselected") == 2, done.stdout


def test_what_is_drawn_is_any_and_always_the_same() -> None:
    names, items = [f"test_{k}" for k in range(60)], [object() for _ in range(5)]
    draws = [drawn(name, items) for name in names]
    assert draws == [drawn(name, items) for name in names]
    assert set(draws) == set(items) and drawn("test_0", items[:1]) is items[0]


def test_all_of_them_run_with_all(collected: list[dict[str, list[str]]]) -> None:
    whole = {"plain", "sampled", "of_all", *(f"on_ranks ranks={ranks}" for ranks in (1, 2, 3, 6, 8, 9))}
    whole |= {"never_alone ranks=2", "never_alone ranks=4", "half_of_all"}
    whole |= {f"large ranks={ranks}" for ranks in (2, 4, 6, 8)}
    single = dict.fromkeys((f"single ranks={ranks}" for ranks in (1, 2, 4)), 1)
    counts = Counter({name: len(sets) for name, sets in collected[1].items()})
    assert counts == dict.fromkeys(whole, 9) | single


def test_a_third_of_the_examples_is_drawn_and_with_all_every_one(suite: Path) -> None:
    (suite / "test_drawn.py").write_text(DRAWN)
    for options, least, given in (((), 33, 9), (("--all",), 100, 30)):
        argv = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-s",
            "-p",
            "mpi_plugin",
            "-p",
            "tiers",
            *options,
            "test_drawn.py",
        ]
        done = run_ranks(argv, 1, nested_pytest(), cwd=suite)
        assert f"drawn {least} of many and {given} of thirty" in done.stdout, done.stdout + done.stderr


def ids(*arguments: str) -> set[str]:
    """The tests of this checkout that would run."""
    done = run_ranks([sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", *arguments], cwd=TESTS.parent)
    assert done.code == 0, done.stdout + done.stderr
    return {line for line in done.stdout.splitlines() if "::" in line}


@pytest.mark.all
def test_the_default_tier_is_part_of_all_and_leaves_out_no_test_that_is_not_marked() -> None:
    default, whole, unmarked = ids(), ids("--all"), ids("--all", "-m", "not all")
    assert default < unmarked < whole and len(default) < 0.9 * len(whole)
    assert {name.split("[")[0] for name in default} == {name.split("[")[0] for name in unmarked}


def test_a_test_that_is_named_runs_as_a_whole(collected: list[dict[str, list[str]]]) -> None:
    assert collected[2] == {name: [*"012345678"] for name in NAMED}


def test_a_sample_is_spread_from_the_first_to_the_last() -> None:
    for length in range(1, 40):
        for count in range(1, 12):
            places = spread(length, count)
            assert places == sorted(set(places)) and set(places) <= set(range(length))
            assert len(places) == min(length, count)
            assert count == 1 or {0, length - 1} <= set(places)


def test_what_is_marked_is_listed() -> None:
    """docs/tests.md has the name of each test that the default tier leaves out or has a sample of, and no other."""
    named = set(re.findall(r"`(test_\w+)`", (TESTS.parent / "docs" / "tests.md").read_text()))
    marked = set()
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text()
        for node in ast.parse(text).body if "mark.all" in text or "mark.sample" in text else ():
            if isinstance(node, ast.FunctionDef):
                marks = " ".join(map(ast.unparse, node.decorator_list))
                marked |= {node.name} if re.search(r"mark\.(all|sample)\b", marks) else set()
    assert marked == named
