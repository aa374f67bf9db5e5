"""Which tests plain `pytest` runs: all mechanisms, of large grids a sample. `pytest --all` runs the others as well.

    @pytest.mark.sample(8)     # 8 of its parameter sets, from the first to the last
    @pytest.mark.parametrize("n", range(1, 65))
    def test_ring(n): ...

    @pytest.mark.all           # none: what it looks at, others look at as well
    def test_the_same_on_a_large_mesh(): ...

On the least of its numbers of ranks, mostly one, a test runs with all its parameter sets, or its sample. On more ranks
it looks for what one rank gives, to the bit: with one set, another one on each of its numbers up to FEW, and
on one of its larger numbers, drawn by the test's name from those of MANY, for which jobs start. Tests that are named
(file::test) run as a whole.
"""

from __future__ import annotations

from collections import defaultdict
from zlib import crc32

import pytest
from mpi_parent import ranks_of

FEW = 4
MANY = (6, 9, 16)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run all tests: large grids as a whole, and what takes long")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sample(count): without --all, so many of its parameter sets")
    config.addinivalue_line("markers", "all: runs with --all only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all") or any("::" in argument for argument in config.args):
        return
    tests: dict[str, dict[int, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        tests[item.nodeid.split("[")[0]][ranks_of(item) or 1].append(item)
    kept = {item.nodeid for name, grids in tests.items() for item in chosen(name, grids)}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]


def chosen(name: str, grids: dict[int, list[pytest.Item]]) -> list[pytest.Item]:
    """What the default tier runs of a test's parameter sets, of which there are as many on each number of ranks."""
    first = next(iter(grids.values()))[0]
    if first.get_closest_marker("all"):
        return []
    sample = first.get_closest_marker("sample")
    many = [ranks for ranks in grids if ranks in MANY]
    drawn = many[crc32(name.encode()) % len(many)] if many else None
    found = []
    for ranks, grid in grids.items():
        if ranks == min(grids):
            found += grid if sample is None else [grid[at] for at in spread(len(grid), *sample.args)]
        elif ranks <= FEW or ranks == drawn:
            found.append(grid[(crc32(name.encode()) + ranks) % len(grid)])
    return found


def spread(length: int, count: int) -> list[int]:
    """`count` of `length` places, even distances apart from the first to the last; all where there are no more."""
    if count >= length:
        return list(range(length))
    return [round(one * (length - 1) / max(count - 1, 1)) for one in range(count)]
