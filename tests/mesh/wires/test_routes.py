"""Line patterns: the interleaved ring, the K-tree and the others, and the table entries that routes are made of."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrt.errors import UsageError
from meshrt.mesh.collectives import treeplan
from meshrt.mesh.mesh import EAST, NORTH, OPPOSITE, RAMP, SOUTH, STEP, WEST
from meshrt.mesh.wires import routes
from meshrt.mesh.wires.routes import Route

LENGTHS = range(1, 65)


# ---------------------------------------------------------------------------------------------- interleaved ring


def paper_interleave(index: int, n: int) -> tuple[int, int]:
    """Algorithm 1 of the WaferLLM paper, line by line: (send_index, recv_index), for N >= 3."""
    if index % 2 == 0:
        recv_index = max(index - 2, 0)
        send_index = min(index + 2, n - 1)
    else:
        recv_index = min(index + 2, n - 1)
        send_index = max(index - 2, 0)
    if index == 0:
        recv_index = 1
    if index == n - 1:
        if n % 2 == 0:
            recv_index = n - 2
        else:
            send_index = n - 2
    return send_index, recv_index


def test_interleave_is_the_papers_algorithm_1():
    for n in range(3, 65):
        assert [routes.interleave(i, n) for i in range(n)] == [paper_interleave(i, n) for i in range(n)], n


def test_interleave_of_one_core_is_the_identity_and_of_two_a_pair():
    assert routes.interleave(0, 1) == (0, 0)
    assert [routes.interleave(i, 2) for i in range(2)] == [(1, 1), (0, 0)]


@pytest.mark.parametrize("n", LENGTHS)
def test_interleave_is_one_cycle_of_hops_of_two_at_most(n: int):
    core, seen = 0, []
    for _ in range(n):
        seen.append(core)
        to, _ = routes.interleave(core, n)
        assert abs(to - core) <= 2
        assert routes.interleave(to, n)[1] == core
        core = to
    assert core == 0 and sorted(seen) == list(range(n))
    assert tuple(seen) == routes.ring_order(n)
    assert [routes.ring_place(n)[core] for core in seen] == list(range(n))


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("reverse", [False, True])
def test_interleaved_ring_has_a_route_for_every_move(n: int, reverse: bool):
    moves = {(route.source, *route.stops) for route in routes.interleaved_ring(n, reverse)}
    ring = {(core, routes.interleave(core, n)[0]) for core in range(n)} if n > 1 else set()
    assert moves == ({(to, core) for core, to in ring} if reverse else ring)
    # Up the even cores and down the odd ones: the distances of one full shift add up to twice the line.
    assert sum(route.high - route.low for route in routes.interleaved_ring(n, reverse)) == 2 * (n - 1)


# -------------------------------------------------------------------------------------------------- other patterns


@pytest.mark.parametrize("n", [1, 2, 3, 8, 13])
def test_ring_wraps_around_and_chain_does_not(n: int):
    every = [(core, (core + 1) % n) for core in range(n)] if n > 1 else []
    assert [(route.source, *route.stops) for route in routes.ring(n)] == every
    for step in (1, -1, 3, -3):
        inside = [(core, core + step) for core in range(n) if core + step in range(n)]
        assert [(route.source, *route.stops) for route in routes.chain(n, step)] == inside


@pytest.mark.parametrize("n", [1, 2, 3, 8, 13])
def test_multicast_reaches_all_others(n: int):
    for root in range(n):
        others = set(range(n)) - {root}
        assert [(route.source, set(route.stops)) for route in routes.multicast(n, root)] == (
            [(root, others)] if others else []
        )


# ---------------------------------------------------------------------------------------------------------- K-tree


def check_tree(tree: treeplan.TreeRoutes) -> int:
    """Play the tree with sets of cores as partial sums; returns the number of steps."""
    sums = [Counter([core]) for core in range(tree.n)]
    sent: set[int] = set()
    steps = 0
    for level in tree.levels:
        to = {route.source: route.stops for route in level.routes}
        assert len(to) == len(level.routes)
        for senders in level.steps:
            steps += 1
            stops = [stop for core in senders for stop in to.pop(core)]
            assert len(stops) == len(senders) == len(set(stops)), "a core takes one packet a step"
            assert not sent & (senders | set(stops)), "a core sends once, after all that it receives"
            assert not senders & set(stops)
            for core, stop in zip(senders, stops, strict=True):
                sums[stop] += sums[core]
            sent |= senders
        assert not to, "every route of a level is used"
    assert sent == set(range(tree.n)) - {tree.root}
    assert sums[tree.root] == Counter(range(tree.n))
    return steps


@pytest.mark.sample(40)
@pytest.mark.parametrize("phases", [1, 2, 3])
@pytest.mark.parametrize("n", range(1, 41))
def test_ktree_adds_every_core_once(n: int, phases: int):
    for groups in (None, *range(1, n + 1 if phases > 1 else 1)):
        check_tree(treeplan.ktree(n, phases, groups))


@given(st.data())
def test_ktree_takes_a_number_of_groups_for_each_phase(data: st.DataObject):
    """Any that do not grow, from all members down to one: each core's part reaches the root once, by 2 K routes."""
    n = data.draw(st.integers(1, 120))
    counts, most = [], n
    for _ in range(data.draw(st.integers(0, 5))):
        most = data.draw(st.integers(1, most))
        counts.append(most)
    phases = len(counts) + data.draw(st.integers(1, 2))
    tree = treeplan.ktree(n, phases, tuple(counts))
    check_tree(tree)
    assert len(tree.groups) == phases - 1 and tree.groups[: len(counts)] == tuple(counts)
    through = np.zeros(n, int)
    for level in tree.levels:
        for route in level.routes:
            through[route.low : route.high + 1] += 1
    assert through.max() <= 2 * phases


@pytest.mark.parametrize("n", [*range(1, 18), 64, 101])
def test_the_pipeline_is_a_chain_to_one_end(n: int):
    tree = treeplan.pipeline(n)
    assert check_tree(tree) == n - 1
    assert tree.root == 0
    assert all(route.high - route.low == 1 for level in tree.levels for route in level.routes)


@pytest.mark.parametrize("n", range(1, 41))
def test_ktree_of_one_phase_comes_in_from_both_ends(n: int):
    # Both arms run at once towards core n // 2. Where they are equally long (n odd) the last two packets meet there.
    tree = treeplan.ktree(n, 1)
    assert tree.root == n // 2
    assert check_tree(tree) == (n // 2 + n % 2 if n > 1 else 0)


@pytest.mark.parametrize(("n", "groups"), [(9, 3), (12, 4), (16, 4), (20, 5), (35, 7)])
def test_ktree_of_two_phases_groups_neighbours_evenly(n: int, groups: int):
    size = n // groups
    tree = treeplan.ktree(n, 2, groups)
    first, second = tree.levels
    middles = [group * size + size // 2 for group in range(groups)]
    assert {route.source for route in first.routes} == set(range(n)) - set(middles)
    assert all(route.high - route.low == 1 for route in first.routes)
    assert {route.source for route in second.routes} == set(middles) - {tree.root}
    assert all(route.high - route.low == size for route in second.routes)
    assert tree.root == middles[groups // 2]


@pytest.mark.parametrize("n", range(2, 65))
def test_ktree_of_more_phases_takes_fewer_steps_on_a_long_line(n: int):
    """Without a number of groups given, two phases take about 2 sqrt(N) / 2 steps, one takes N / 2."""
    steps = [check_tree(treeplan.ktree(n, phases)) for phases in (1, 2, 3)]
    assert steps[1] <= n**0.5 + 3
    assert n < 12 or steps[1] < steps[0]
    assert n < 48 or steps[2] <= steps[1]


@pytest.mark.parametrize(
    ("phases", "groups"),
    [(0, None), (-1, None), (2, 0), (2, -3), (2, 9), (1, 4), (3, (2, 5)), (3, (4, 0)), (3, (6, 2, 1))],
)
def test_ktree_refuses_what_is_no_tree(phases: int, groups: int | tuple[int, ...] | None):
    with pytest.raises(UsageError):
        treeplan.ktree(8, phases, groups)


# --------------------------------------------------------------------------------------------------------- entries


def walk(
    entries: tuple[np.ndarray, np.ndarray, np.ndarray], source: tuple[int, int], width: int
) -> tuple[list[tuple[int, int]], int]:
    """Follow a packet through entries at y * width + x: (cores that it is delivered at, hops). All entries are used."""
    table = {int(at): (int(enters), int(leaves)) for at, enters, leaves in zip(*entries, strict=True)}
    assert len(table) == len(entries[0]), "one entry a router"
    flight, delivered, hops = [(*source, RAMP)], [], 0
    while flight:
        x, y, port = flight.pop()
        enters, leaves = table.pop(y * width + x)
        assert enters == 1 << port
        for way in (NORTH, EAST, SOUTH, WEST):
            if leaves >> way & 1:
                assert way != port, "a packet is not sent back"
                flight.append((x + STEP[way][0], y + STEP[way][1], OPPOSITE[way]))
                hops += 1
        if leaves >> RAMP & 1:
            delivered.append((x, y))
    assert not table, "an entry where no packet passes"
    return delivered, hops


@given(st.data())
def test_entries_of_a_route_lead_from_the_source_to_exactly_the_stops(data: st.DataObject):
    n = data.draw(st.integers(2, 40))
    source = data.draw(st.integers(0, n - 1))
    stops = data.draw(st.sets(st.integers(0, n - 1).filter(lambda stop: stop != source), min_size=1))
    route = Route(source, tuple(stops))
    along_x, hops = walk(route.entries("x"), (source, 0), n)
    along_y, _ = walk(route.entries("y"), (0, source), 1)
    assert sorted(along_x) == sorted((stop, 0) for stop in stops)
    assert sorted(along_y) == sorted((0, stop) for stop in stops)
    # One packet each way, to the farthest stop there.
    assert hops == max(0, max(stops) - source) + max(0, source - min(stops)) == route.high - route.low


@given(st.integers(1, 6), st.integers(1, 6), st.lists(st.sampled_from(STEP), min_size=1), st.data())
def test_entries_of_a_path_lead_to_its_last_core(
    width: int, height: int, steps: list[tuple[int, int]], data: st.DataObject
):
    x, y = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    cores = [(x, y)]
    for dx, dy in steps:
        core = cores[-1][0] + dx, cores[-1][1] + dy
        if core not in cores and core[0] in range(width) and core[1] in range(height):
            cores.append(core)
    path = tuple(cores)
    if len(cores) == 1:
        with pytest.raises(UsageError, match="two or more cores"):
            routes.path_entries(path, width)
        return
    assert walk(routes.path_entries(path, width), cores[0], width) == ([cores[-1]], len(cores) - 1)


def test_a_path_that_jumps_or_crosses_itself_is_refused():
    with pytest.raises(UsageError, match=r"from core \(0, 0\) to \(2, 0\), which is not its neighbour"):
        routes.path_entries(((0, 0), (2, 0)), 4)
    with pytest.raises(UsageError, match="each once"):
        routes.path_entries(((0, 0), (1, 0), (0, 0)), 4)


@pytest.mark.parametrize(("n", "copies"), [(1, 3), (5, 1), (7, 3), (12, 2)])
def test_a_tree_on_stretches_is_the_same_on_each(n: int, copies: int):
    tree = treeplan.ktree(n, 2)
    every = treeplan.on_stretches(tree, copies)
    assert (every.n, every.root, every.groups) == (n, tree.root, tree.groups)
    assert len(every.levels) == len(tree.levels)
    for at in range(0, copies * n, n):
        own = range(at, at + n)
        for level, on_all in zip([*tree.levels, None], [*every.levels, None], strict=True):
            had, has = (of.routes if of else whole.spread for of, whole in ((level, tree), (on_all, every)))
            shifted = [(r.source - at, *(stop - at for stop in r.stops)) for r in has if r.source in own]
            assert shifted == [(r.source, *r.stops) for r in had]
            if level and on_all:
                assert [{core - at for core in step if core in own} for step in on_all.steps] == [
                    *map(set, level.steps)
                ]


def test_a_step_that_is_no_whole_number_is_nobody_elses():
    """1.0 is equal to 1: a pattern is kept by what is said of it, and every chain of that process was of floats."""
    for pattern in (routes.chain, routes.multicast):
        assert pattern(97, 1.0) and {
            type(stop) for route in pattern(97, 1) for stop in (route.source, *route.stops)
        } == {int}
