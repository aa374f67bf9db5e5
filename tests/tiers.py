"""Which tests plain `pytest` runs: all mechanisms, of large grids a sample. `pytest --all` runs the others as well.

    @pytest.mark.sample(8)     # 8 of its parameter sets on one rank or without ranks, from the first to the last
    @pytest.mark.parametrize("n", range(1, 65))
    def test_ring(n): ...

    @pytest.mark.all           # none: what it looks at, others look at as well
    def test_the_same_on_a_large_mesh(): ...

On each of its numbers of ranks above one, where every test looks for the same result to the bit, a test runs with
SHARED of its parameter sets: other ones on other numbers. Jobs start for RANKS alone. Tests that are named (file::test)
run as a whole.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from mpi_parent import ranks_of

SHARED = 2
RANKS = (1, 2, 3, 4, 6, 9, 16)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run all tests: large grids as a whole, and what takes long")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sample(count): without --all, so many of its parameter sets")
    config.addinivalue_line("markers", "all: runs with --all only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all") or any("::" in argument for argument in config.args):
        return
    grids: dict[Any, list[pytest.Item]] = defaultdict(list)
    for item in items:
        grids[item.nodeid.split("[")[0], ranks_of(item)].append(item)
    kept = {item.nodeid for grid in grids.values() for item in chosen(grid)}
    left = [item for item in items if item.nodeid not in kept]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item.nodeid in kept]


def chosen(grid: list[pytest.Item]) -> list[pytest.Item]:
    """What the default tier runs of a test's parameter sets on one number of ranks."""
    ranks = ranks_of(grid[0]) or 1
    if ranks not in RANKS or grid[0].get_closest_marker("all"):
        return []
    if ranks > 1:
        return [grid[at] for at in spread(len(grid), SHARED, ranks)]
    marker = grid[0].get_closest_marker("sample")
    return grid if marker is None else [grid[at] for at in spread(len(grid), *marker.args)]


def spread(length: int, count: int, shift: int = 0) -> list[int]:
    """`count` of `length` places: even distances apart from the first to the last, moved on by `shift` of them."""
    if count >= length:
        return list(range(length))
    places = (round(one * (length - 1) / max(count - 1, 1)) for one in range(count))
    return sorted({(place + shift) % length for place in places})
