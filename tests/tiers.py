"""Which tests plain `pytest` runs: all mechanisms, of large grids a sample. `pytest --all` runs the others as well.

    @pytest.mark.sample(8)     # 8 of its parameter sets, from the first to the last
    @pytest.mark.parametrize("n", range(1, 65))
    def test_ring(n): ...

    @pytest.mark.all           # none: what it looks at, others look at as well
    def test_the_same_on_a_large_mesh(): ...

A test runs with each parameter set, or of its sample, on one number of ranks: the least, mostly one. But one set, drawn
by the test's name, runs on any of its numbers, the least or one in MORE, of many ranks less often; each run draws the
same. Sets that are marked `all` (pytest.param(..., marks=pytest.mark.all)) are left out. Tests that are named
(file::test) run as a whole. Where hypothesis draws examples, a third of them is drawn.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from mpi_parent import ranks_of
from mpi_plugin import on_ranks

from meshrt.ranks import launcher

MORE = (2, 3, 4)  # ranks: a job of six is four of these and two that start for three of its tests
PART = 3  # of so many examples of hypothesis, one


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run all tests: large grids as a whole, and what takes long")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sample(count): without --all, so many of its parameter sets")
    config.addinivalue_line("markers", "all: runs with --all only")
    if not config.getoption("--all"):
        import hypothesis  # behind bytecode.py, see conftest.py

        hypothesis.settings.register_profile("part", hypothesis.settings(), max_examples=examples(100) // PART)
        hypothesis.settings.load_profile("part")


def examples(count: int) -> int:
    """How many examples hypothesis draws where --all has `count`: a third of them, of few more."""
    import hypothesis

    return max(min(count, 5), count * hypothesis.settings().max_examples // 100)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all") or any("::" in argument for argument in config.args):
        return
    launched = launcher.launched_size() if on_ranks(config) else 0
    tests: dict[str, dict[int, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    kept = set()
    for item in items:
        ranks = ranks_of(item) or launched or 1
        if launched and ranks != launched:
            kept.add(item.nodeid)  # to be skipped, with a line that says for how many ranks it is
        elif not item.get_closest_marker("all"):
            tests[item.nodeid.split("[")[0]][ranks].append(item)
    kept |= {item.nodeid for name, grids in tests.items() for item in chosen(name, grids)}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]


def chosen(name: str, grids: dict[int, list[pytest.Item]]) -> list[pytest.Item]:
    """What the default tier runs of a test's parameter sets, of which `grids` has as many on each number of ranks."""
    least = min(grids)
    sample = grids[least][0].get_closest_marker("sample")
    sampled = grids[least] if sample is None else [grids[least][at] for at in spread(len(grids[least]), *sample.args)]
    more = [item for ranks, grid in grids.items() if least < ranks in MORE for item in grid]
    if not more:
        return sampled
    sets = {set_of(item) for item in sampled}
    more = [item for item in more if set_of(item) in sets] or more
    extra = drawn(name, [item for item in [*sampled, *more] for _ in range(36 // max(ranks_of(item) or 1, 2) ** 2)])
    return [*(item for item in sampled if set_of(item) != set_of(extra)), extra]


def set_of(item: pytest.Item) -> str:
    """A test's parameter set, on whatever number of ranks."""
    assert isinstance(item, pytest.Function)
    return item.callspec.id.replace(f"ranks={ranks_of(item)}", "", 1)


def drawn(name: str, items: Sequence[Any]) -> Any:
    """One of them: for a test's name always the same."""
    return random.Random(name).choice(items)


def spread(length: int, count: int) -> list[int]:
    """`count` of `length` places, even distances apart from the first to the last; all where there are no more."""
    if count >= length:
        return list(range(length))
    return [round(place * (length - 1) / max(count - 1, 1)) for place in range(count)]
