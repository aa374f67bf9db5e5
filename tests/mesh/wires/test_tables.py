"""Colours and route tables: shared where routes do not meet, bounded, freed, and the same on every rank."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure import gossip

from meshrt.errors import LimitError
from meshrt.mesh.collectives import treeplan
from meshrt.mesh.devicefile import find_device
from meshrt.mesh.mesh import Mesh
from meshrt.mesh.presets import IDEAL, WSE2
from meshrt.mesh.wires import routes
from meshrt.mesh.wires.routes import Route
from meshrt.mesh.wires.tables import Channel, Tables
from meshrt.mesh.wires.tables import installed as installed_in_block


@dataclass(frozen=True)
class TablesAlone:
    """A block of which nothing else is there."""

    tables: Tables


def installed(tables: Tables, *arguments: Any, **options: Any) -> AbstractContextManager[Channel]:
    return installed_in_block(TablesAlone(tables), *arguments, **options)


def line_tables(n: int, entries: int | None = None) -> Tables:
    """The tables of one row of n cores; without a limit unless it is given."""
    return Tables(Mesh(n, 1), IDEAL if entries is None else find_device("ideal", route_entries=entries))


def routes_at(patterns: Sequence[Sequence[Route]], n: int) -> np.ndarray:
    """How many routes of all patterns pass each core of a line: what a table needs, by counting."""
    return np.array([sum(r.low <= core <= r.high for routes in patterns for r in routes) for core in range(n)])


@contextmanager
def all_installed(tables: Tables, axis: str, patterns: Sequence[Sequence[Route]]) -> Iterator[None]:
    with ExitStack() as stack:
        for pattern in patterns:
            stack.enter_context(installed(tables, axis, pattern))
        yield


@st.composite
def some_routes(draw: st.DrawFn, n: int = 12) -> list[Route]:
    """A few routes of a line, of different sources."""
    sources = draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True))
    made = []
    for source in sources:
        stops = draw(
            st.sets(st.integers(0, n - 1).filter(lambda stop, own=source: stop != own), min_size=1, max_size=4)
        )
        made.append(Route(source, tuple(sorted(stops))))
    return made


# --------------------------------------------------------------------------------------------------------- colours


@given(some_routes())
def test_routes_share_a_colour_exactly_where_they_share_no_router(made: list[Route]):
    tables = line_tables(12)
    with installed(tables, "x", made) as channel:
        assert channel.sources.tolist() == [route.source for route in made]
        for i, (route, colour) in enumerate(zip(made, channel.colours, strict=True)):
            for other, its in zip(made[:i], channel.colours, strict=False):
                apart = route.high < other.low or other.high < route.low
                assert apart or colour != its
        # The fewest colours possible: as many as there are routes at the core that most of them pass.
        assert len(set(channel.colours.tolist())) == routes_at([made], 12).max()


@given(some_routes(), some_routes())
def test_a_later_pattern_keeps_out_of_the_way_of_an_earlier_one(first: list[Route], second: list[Route]):
    tables = line_tables(12)
    with installed(tables, "x", first) as early, installed(tables, "x", second) as late:
        for route, colour in zip(first, early.colours, strict=True):
            for crossing, its in zip(second, late.colours, strict=True):
                assert route.high < crossing.low or crossing.high < route.low or colour != its
        assert tables.entries[0].tolist() == routes_at([first, second], 12).tolist()


def test_routes_on_different_lines_share_their_colours():
    tables = Tables(Mesh(4, 4), find_device("ideal", route_entries=4))
    with ExitStack() as stack:
        for line in range(4):
            only = np.arange(4) == line
            channel = stack.enter_context(installed(tables, "x", gossip(4), lines=only))
            assert sorted(channel.colours) == [0, 1, 2, 3]
        assert (tables.entries == 4).all()


def test_axes_share_the_table_of_a_router():
    tables = Tables(Mesh(4, 4), find_device("ideal", route_entries=7))
    with installed(tables, "x", gossip(4)):
        with pytest.raises(LimitError), installed(tables, "y", gossip(4)):
            pass
        with installed(tables, "y", gossip(4)[:3]):
            assert (tables.entries == 7).all()


@pytest.mark.parametrize("axis", ["x", "y"])
def test_paths_and_lines_keep_apart(axis: str):
    tables = Tables(Mesh(3, 3), IDEAL)
    corner = ((0, 0), (1, 0), (1, 1), (1, 2))
    with installed(tables, axis, routes.chain(3)) as line, installed(tables, None, [corner]) as path:
        assert not set(line.colours) & set(path.colours)
        # Two routes of the chain meet at its inner cores; the path has an entry at each core that it visits.
        expected = np.tile([1, 2, 1], (3, 1))
        expected = expected if axis == "x" else expected.T.copy()
        for x, y in corner:
            expected[y, x] += 1
        assert tables.entries.tolist() == expected.tolist()
        assert path.sources.tolist() == [0]


# ----------------------------------------------------------------------------------- entries that the paper promises


@pytest.mark.parametrize("n", range(1, 65))
def test_interleaved_ring_takes_three_entries_a_direction_whatever_its_length(n: int):
    for reverse in (False, True):
        ring = routes.interleaved_ring(n, reverse)
        tables = line_tables(n)
        with installed(tables, "x", ring):
            assert tables.entries[0].tolist() == routes_at([ring], n).tolist()
            assert tables.peak == tables.entries.max() <= 3
            assert n < 5 or tables.peak == 3


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 16, 33])
def test_four_interleaved_rings_fit_twelve_entries(n: int):
    tables = Tables(Mesh(n, n), find_device("ideal", route_entries=12))
    rings = [routes.interleaved_ring(n, reverse) for reverse in (False, True)]
    with all_installed(tables, "x", rings), all_installed(tables, "y", rings):
        along = routes_at(rings, n)
        assert tables.entries.tolist() == (along[None] + along[:, None]).tolist()


@pytest.mark.sample(20)
@pytest.mark.parametrize("phases", [1, 2, 3])
@pytest.mark.parametrize("n", range(1, 41))
def test_ktree_takes_two_entries_a_phase_and_one_to_spread(n: int, phases: int):
    for groups in {None, 1, n, *range(2, n, 5)} if phases > 1 else {None}:
        tree = treeplan.ktree(n, phases, groups)
        patterns = [*(level.routes for level in tree.levels), routes.multicast(n, tree.root)]
        tables = line_tables(n)
        with all_installed(tables, "x", patterns):
            assert tables.peak == routes_at(patterns, n).max() <= 2 * phases + 1


def test_gossip_takes_an_entry_for_every_core_of_the_line():
    tables = line_tables(20)
    with installed(tables, "x", gossip(20)):
        assert (tables.entries == 20).all()


# ----------------------------------------------------------------------------------------------------- freeing


def assert_empty(tables: Tables) -> None:
    for array in (tables.entries, tables.enters, tables.leaves, tables.book):
        assert not array.any()


@given(some_routes())
def test_leaving_the_block_frees_the_entries(made: list[Route]):
    tables = line_tables(12)
    with installed(tables, "x", made):
        assert tables.entries.any()
    assert_empty(tables)
    with pytest.raises(ZeroDivisionError), installed(tables, "x", made):
        raise ZeroDivisionError
    assert_empty(tables)


def test_freed_colours_are_used_again():
    tables = line_tables(6, entries=6)
    for _ in range(3):
        with installed(tables, "x", gossip(6)) as channel:
            assert sorted(channel.colours) == list(range(6))
    assert tables.peak == 6


def test_leaving_an_inner_block_leaves_the_outer_ones_entries():
    tables = line_tables(8)
    with installed(tables, "x", routes.ring(8)):
        before = tables.enters.copy(), tables.leaves.copy()
        with installed(tables, "x", gossip(8)):
            pass
        assert (tables.enters[: len(before[0])] == before[0]).all()
        assert (tables.leaves[: len(before[1])] == before[1]).all()
        assert not tables.enters[len(before[0]) :].any()


# ------------------------------------------------------------------------------------------------------- limits


def test_a_full_table_is_refused_with_core_needed_and_limit():
    tables = line_tables(6, entries=4)
    message = r"core \([0-5], 0\) needs 6 route entries, the limit is 4 \(device ideal\)"
    with pytest.raises(LimitError, match=message), installed(tables, "x", gossip(6)):
        pass
    assert_empty(tables)


@pytest.mark.parametrize("axis", ["x", "y"])
def test_the_core_that_is_named_is_one_whose_table_is_full(axis: str):
    # Two routes over cores 0 to 4 and 4 to 6 meet nowhere but at core 4, whose table has room for one.
    tables = Tables(Mesh(7, 7), find_device("ideal", route_entries=1))
    crossing = [Route(0, (4,)), Route(6, (4,))]
    only = np.arange(7) == 2
    core = "(4, 2)" if axis == "x" else "(2, 4)"
    message = re.escape(f"core {core} needs 2 route entries, the limit is 1")
    with pytest.raises(LimitError, match=message), installed(tables, axis, crossing, lines=only):
        pass
    path = ((0, 0), (0, 1), (1, 1))
    with (
        installed(tables, None, [path]),
        pytest.raises(LimitError, match=r"core \(0, 1\) needs 2"),
        installed(tables, "y", routes.chain(7)[1:2], lines=np.arange(7) == 0),
    ):
        pass


def test_entries_in_use_count_against_the_limit():
    tables = line_tables(6, entries=6)
    with (
        installed(tables, "x", routes.chain(6)),
        pytest.raises(LimitError, match=r"core \([1-4], 0\) needs 8 route entries, the limit is 6"),
        installed(tables, "x", gossip(6)),
    ):
        pass


def test_an_unlimited_device_grows_up_to_what_a_header_can_name():
    tables = line_tables(100)
    with installed(tables, "x", gossip(100)) as channel:
        assert sorted(channel.colours) == list(range(100))
        assert tables.peak == 100
    tables = line_tables(257)
    message = "needs 257 route entries, the limit is 256"
    with pytest.raises(LimitError, match=message), installed(tables, "x", gossip(257)):
        pass


# -------------------------------------------------------------------------------------------------------- ranks


@pytest.mark.parametrize(("columns", "rows"), [(1, 4), (3, 2), (7, 5)])
def test_every_rank_writes_its_part_of_the_same_tables(columns: int, rows: int):
    """No rank asks another: the same installations give the same colours, and blocks of the one-rank tables."""
    path = ((0, 0), (1, 0), (1, 1), (1, 2), (2, 2))

    def install(mesh: Mesh) -> tuple[Tables, list[list[int]]]:
        tables = Tables(mesh, WSE2)
        stack = ExitStack()
        channels = [stack.enter_context(installed(tables, "x", routes.interleaved_ring(7)))]
        channels += [
            stack.enter_context(installed(tables, "y", treeplan.ktree(5).levels[0].routes, lines=np.arange(7) % 2 == 0))
        ]
        channels += [stack.enter_context(installed(tables, None, [path]))]
        return tables, [channel.colours.tolist() for channel in channels]

    whole, colours = install(Mesh(7, 5))
    for rank in range(columns * rows):
        mesh = Mesh(7, 5, columns, rows, rank)
        own, its = install(mesh)
        region = slice(mesh.y0, mesh.y0 + mesh.block_height), slice(mesh.x0, mesh.x0 + mesh.block_width)
        assert its == colours
        assert (own.book == whole.book).all()
        assert (own.enters == whole.enters[:, *region]).all()
        assert (own.leaves == whole.leaves[:, *region]).all()
        assert (own.entries == whole.entries[region]).all()
