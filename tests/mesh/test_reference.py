"""The fabric against the reference fabric: times, paths, hops and bytes of every packet, core and link."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest
import reference_fabric
from hypothesis import given, settings
from hypothesis import strategies as st
from measure import marks, measured, on_first, on_one_rank, own, whole
from runs import new_block
from tiers import examples
from traced import traced

from meshrt.mesh.block import Block
from meshrt.mesh.clock import HOPS, TIME
from meshrt.mesh.device import Device
from meshrt.mesh.mesh import RAMP
from meshrt.mesh.wires import fabric, order, receiving, routes, together
from meshrt.mesh.wires.tables import Channel, installed, overwrite
from meshrt.program import load_program

Cores = tuple[tuple[int, int], ...]


@st.composite
def walks(draw: st.DrawFn, width: int, height: int) -> Cores:
    """A path between any two cores: along x first, along y first, or through a core in between."""
    corner = st.tuples(st.integers(0, width - 1), st.integers(0, height - 1))
    stops = draw(st.lists(corner, min_size=2, max_size=3, unique=True))
    walked = [stops[0]]
    for to_x, to_y in stops[1:]:
        x_first = draw(st.booleans())
        for axis in (0, 1) if x_first else (1, 0):
            while walked[-1][axis] != (to_x, to_y)[axis]:
                x, y = walked[-1]
                step = 1 if (to_x, to_y)[axis] > walked[-1][axis] else -1
                walked.append((x + step, y) if axis == 0 else (x, y + step))
    without_loops: list[tuple[int, int]] = []
    for core in walked:  # no core twice: a loop is left out
        without_loops = without_loops[: without_loops.index(core)] if core in without_loops else without_loops
        without_loops.append(core)
    return tuple(without_loops)


@st.composite
def traffic(draw: st.DrawFn) -> dict[str, Any]:
    """Transfers on random paths, all started before any is waited for, on cores whose clocks differ."""
    width, height = draw(st.sampled_from([(5, 4), (4, 4), (7, 3)]))
    transfers = []
    for _ in range(draw(st.integers(1, 3))):
        paths = draw(st.lists(walks(width, height), min_size=1, max_size=8, unique_by=lambda path: path[-1]))
        paths = [path for path in paths if len(path) > 1]
        forks = draw(st.lists(st.integers(0, 100), max_size=2))  # cores on the way that keep a copy
        if paths:
            transfers.append((paths, forks, draw(st.integers(1, 9))))
    device = Device(
        name="test", alpha=draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])), beta=5.0,
        link_bytes_per_cycle=draw(st.sampled_from([1.0, 4.0, 3.0])),
    )  # fmt: skip
    return {
        "mesh": (width, height),
        "transfers": transfers,
        "device": device,
        "clocks": draw(st.integers(0, 2**16)),
        "skew": draw(st.sampled_from([0, 5, 40, 1000])),
        "order": draw(st.permutations(range(len(transfers)))),
        "twice": draw(st.booleans()),
        "at_once": draw(st.integers(0, 3)) > 0,  # all routes are there before the first transfer begins
    }


def play(block: Block, case: dict[str, Any]) -> None:
    """Start all transfers, then wait for them in some order."""
    rng = np.random.default_rng(case["clocks"])
    width, height = case["mesh"]
    for _ in range(1 + case["twice"]):
        block.clock.state[TIME] += own(block, rng.integers(0, case["skew"] + 1, (height, width)).astype(np.float64))
        flights = []
        with ExitStack() as stack:
            made = (lay(block, stack, paths, forks) for paths, forks, _ in case["transfers"])
            for channel, (_, _, size) in zip(list(made) if case["at_once"] else made, case["transfers"], strict=True):
                flights.append(fabric.send(block, channel, np.zeros((*block.shape, size), np.float32)))
            for at in case["order"]:
                receiving.receive(block, flights[at])
        block.meet()


def lay(block: Block, stack: ExitStack, paths: list[Cores], forks: list[int]) -> Channel:
    """Install paths, some of which leave a copy of the packet on the way."""
    channel = stack.enter_context(installed(block, None, paths))
    ends = {path[-1] for path in paths}
    for fork in forks:
        path = paths[fork % len(paths)]
        core = path[len(path) // 2]
        if core not in ends and core != path[0]:
            ends.add(core)
            keep_a_copy(block, core, int(channel.colours[paths.index(path)]))
    return channel


def keep_a_copy(block: Block, core: tuple[int, int], colour: int) -> None:
    """A router on the way delivers the packet as well as passing it on."""
    mesh, tables = block.mesh, block.tables
    x, y = core[0] - mesh.x0, core[1] - mesh.y0
    is_mine = 0 <= x < mesh.block_width and 0 <= y < mesh.block_height
    enters, leaves = (int(table[colour, y, x]) if is_mine else 0 for table in (tables.enters, tables.leaves))
    overwrite(tables, core, colour, enters, leaves | 1 << RAMP)


def in_the_reference(block: Block, work: Any) -> tuple[reference_fabric.Outcome, np.ndarray]:
    """What the reference makes of the work, and the state [3, H, W] of the block's cores after it. One rank."""
    with traced(block) as trace:
        work(block)
        state = block.clock.state.copy()
    outcome = reference_fabric.run(trace.todo, block.device.alpha, block.device.link_bytes_per_cycle)
    return outcome, state


def state_of(outcome: reference_fabric.Outcome, shape: tuple[int, ...]) -> np.ndarray:
    state = np.zeros((3, *shape))
    for (x, y), core in outcome.cores.items():
        state[:, y, x] = core.time, *core.path
    return state


def links_of(outcome: reference_fabric.Outcome, shape: tuple[int, ...]) -> np.ndarray:
    links = np.zeros((4, *shape), np.int64)
    for ((x, y), port), nbytes in outcome.link_bytes.items():
        links[port, y, x] = nbytes
    return links


def check_traffic(comm: Any, case: dict[str, Any]) -> None:
    """All cores, links and counters after it are those of the reference."""

    def expected(alone: Any) -> Any:
        block = new_block(alone, case["mesh"], case["device"])
        outcome, state = in_the_reference(block, lambda block: play(block, case))
        late = measured(block)["out_of_order"]["packets"]
        assert not (case["at_once"] and late)
        assert late or np.array_equal(state, state_of(outcome, block.shape))
        return state, links_of(outcome, block.shape), outcome.hops, outcome.messages, outcome.longest

    state, links, hops, messages, longest = on_one_rank(comm, expected)
    block = new_block(comm, case["mesh"], case["device"])
    play(block, case)
    assert np.array_equal(whole(block, block.clock.state.transpose(1, 2, 0)).transpose(2, 0, 1), state)
    block.settle()
    assert np.array_equal(whole(block, block.link_bytes.transpose(1, 2, 0)).transpose(2, 0, 1), links)
    report = measured(block)
    assert (report["hops"], report["messages"], report["max_hops"]) == (hops, messages, longest)


@pytest.mark.mpi(ranks=[1])
def test_random_paths_that_meet_take_the_time_of_the_reference(comm):
    """Static paths with turns, copies on the way, skewed clocks, several transfers under way."""

    @settings(max_examples=examples(40))
    @given(traffic())
    def check(case: dict[str, Any]) -> None:
        check_traffic(comm, case)

    check()


@pytest.mark.mpi(ranks=[4])
def test_so_do_random_paths_on_any_number_of_ranks(comm):
    @settings(max_examples=examples(45))
    @given(st.sampled_from([2, 3, 4]), traffic())
    def check(ranks: int, case: dict[str, Any]) -> None:
        on_first(comm, ranks, lambda part: check_traffic(part, case))

    check()


@pytest.mark.mpi(ranks=[1, 4])
def test_a_link_is_not_kept_for_a_packet_that_comes_later(comm):
    """Routes 0 -> 2 and 1 -> 3, 16 bytes at 4 a cycle: the head from core 0 is at core 1 at cycle 1.

    Core 1 sends before, just after, or late, when the link has long been idle again.
    """
    for late, times in ((0.0, (2 + 3 + 4, 2 + 4)), (2.0, (2 + 4, 5 + 2 + 4)), (1000.0, (2 + 4, 1000 + 2 + 4))):
        block = new_block(comm, (4, 1), "wse2")
        block.clock.state[TIME] += own(block, np.array([[0.0, late, 0.0, 0.0]]))
        with installed(block, "x", [routes.Route(0, (2,)), routes.Route(1, (3,))]) as channel:
            fabric.transfer(block, channel, np.zeros((*block.shape, 4), np.float32))
        assert tuple(whole(block, block.clock.state[TIME])[0, 2:]) == times


@pytest.mark.mpi(ranks=[1, 4])
def test_a_link_is_not_kept_for_a_packet_that_was_sent_before_and_comes_later(comm):
    """As above, by two transfers that were laid before the first began: that from core 0 is the first one sent."""
    for late, times in ((0.0, (2 + 3 + 4, 2 + 4)), (2.0, (2 + 4, 5 + 2 + 4))):
        block = new_block(comm, (4, 1), "wse2")
        block.clock.state[TIME] += own(block, np.array([[0.0, late, 0.0, 0.0]]))
        tiles = np.zeros((*block.shape, 4), np.float32)
        paths = [tuple((x, 0) for x in range(low, low + 3)) for low in (0, 1)]
        with installed(block, None, paths[:1]) as first, installed(block, None, paths[1:]) as second:
            for flight in [fabric.send(block, channel, tiles) for channel in (first, second)]:
                receiving.receive(block, flight)
        assert tuple(whole(block, block.clock.state[TIME])[0, 2:]) == times
        assert measured(block)["out_of_order"]["packets"] == 0


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("before", [[False, False], [False, True]], ids=["nowhere", "elsewhere"])
def test_nor_where_the_same_routes_were_used_on_other_lines_first(before: list[bool], comm):
    """Core 1 to core 2 at cycle 100; on other lines, or none, from core 0 past both; then so on the line itself."""
    block = new_block(comm, (4, 2), "wse2")
    block.clock.state[TIME] += own(block, np.array([[0.0, 100.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]))
    tiles, lines = np.zeros((*block.shape, 4), np.float32), [np.array(before), np.array([True, False])]
    with (
        installed(block, "x", [routes.Route(1, (2,))], lines=lines[1]) as short,
        installed(block, "x", [routes.Route(0, (3,))]) as other,
    ):
        flights = [fabric.send(block, short, tiles), *(fabric.send(block, other, tiles, lines=on) for on in lines)]
        for flight in flights:
            receiving.receive(block, flight)
    assert whole(block, block.clock.state[TIME])[0].tolist() == [0, 100, 100 + 1 + 4, 3 + 4]
    assert measured(block)["out_of_order"]["packets"] == 0


@pytest.mark.mpi(ranks=[1, 2, 4])
def test_nor_where_other_cores_used_the_same_routes_first(comm):
    """Core 1 to core 2 at cycle 100; then from core 3 to core 2, and from core 0 past core 1, by the same routes."""
    block = new_block(comm, (4, 1), "wse2")
    block.clock.state[TIME] += own(block, np.array([[0.0, 100.0, 0.0, 0.0]]))
    tiles = np.zeros((*block.shape, 4), np.float32)
    with (
        installed(block, "x", [routes.Route(1, (2,))]) as short,
        installed(block, "x", [routes.Route(0, (2,)), routes.Route(3, (2,))]) as other,
    ):
        flights = [fabric.send(block, short, tiles)]
        flights += [fabric.send(block, other, tiles, positions=marks(4, [source])) for source in (3, 0)]
        for flight in flights:
            receiving.receive(block, flight)
    assert whole(block, block.clock.state[TIME]).tolist() == [[0, 100, 100 + 1 + 4, 0]]
    assert measured(block)["out_of_order"]["packets"] == 0


@pytest.mark.mpi(ranks=[1, 4])
def test_heads_that_ask_together_go_in_the_order_of_the_program_on_a_path_and_a_line_too(comm):
    """From core 0 along a path past core 1, and from core 1 at cycle 1: both ask for the link to core 2 then."""

    def work(block: Block) -> None:
        block.clock.state[TIME] += own(block, np.array([[0.0, 1.0, 0.0, 0.0]]))
        tiles = np.zeros((*block.shape, 4), np.float32)
        with (
            installed(block, None, [((0, 0), (1, 0), (2, 0))]) as path,
            installed(block, "x", [routes.Route(1, (3,))]) as line,
        ):
            for flight in [fabric.send(block, channel, tiles) for channel in (path, line)]:
                receiving.receive(block, flight)

    def expected(alone: Any) -> np.ndarray:
        block = new_block(alone, (4, 1), "wse2")
        outcome, _ = in_the_reference(block, work)
        return state_of(outcome, block.shape)[0]

    block = new_block(comm, (4, 1), "wse2")
    work(block)
    times = whole(block, block.clock.state[TIME])
    assert times.tolist() == on_one_rank(comm, expected).tolist() == [[0, 1, 2 + 4, 1 + 4 + 2 + 4]]


@pytest.mark.mpi(ranks=[1, 4])
def test_a_link_is_not_given_twice(comm):
    """Core 1 to core 2 at cycles 0, 10 and 100, 4 cycles each; from core 0, past both, a packet that asks at cycle 12.

    It is not known any more that the link was idle from cycle 14 on, so the packet waits for the last, and is counted.
    """
    block = new_block(comm, (4, 1), "wse2")
    tiles = np.zeros((*block.shape, 4), np.float32)
    with (
        installed(block, "x", [routes.Route(1, (2,))]) as short,
        installed(block, "x", [routes.Route(0, (3,))]) as other,
    ):
        flights = [fabric.send(block, short, tiles)]
        for more in (10.0, 90.0):
            block.clock.state[TIME] += own(block, np.array([[0.0, more, 0.0, 0.0]]))
            flights.append(fabric.send(block, short, tiles))
        block.clock.state[TIME] += own(block, np.array([[11.0, 0.0, 0.0, 0.0]]))
        flights.append(fabric.send(block, other, tiles))
        for flight in flights:
            receiving.receive(block, flight)
    assert whole(block, block.clock.state[TIME]).tolist() == [[11, 100, 105, 104 + 2 + 4]]
    assert measured(block)["out_of_order"] == {"packets": 1, "longest_wait": 92.0}


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize(("asks", "gets"), [(96, 96), (97, 104), (100, 104)])
def test_a_link_is_taken_from_when_its_last_head_asked(asks: int, gets: int, comm):
    """Core 1 to core 2 at cycles 0 and 100, 4 cycles each, and a packet that asks shortly before the second is over."""
    block = new_block(comm, (4, 1), "wse2")
    tiles = np.zeros((*block.shape, 4), np.float32)
    with (
        installed(block, "x", [routes.Route(1, (2,))]) as short,
        installed(block, "x", [routes.Route(0, (3,))]) as other,
    ):
        flights = [fabric.send(block, short, tiles)]
        block.clock.state[TIME] += own(block, np.array([[asks - 1.0, 100.0, 0.0, 0.0]]))
        flights += [fabric.send(block, short, tiles), fabric.send(block, other, tiles)]
        for flight in flights:
            receiving.receive(block, flight)
    assert whole(block, block.clock.state[TIME]).tolist() == [[asks - 1, 100, 105, gets + 2 + 4]]


@pytest.mark.mpi(ranks=[2, 4])
def test_who_gets_a_ramp_does_not_depend_on_who_waits_with_it_on_a_rank(comm):
    """Two rings bring every core a packet; one is received, a third begins, and then the others are received."""

    def run(comm: Any, seed: int) -> tuple[Any, Any]:
        draw = np.random.default_rng(seed).integers
        block = new_block(comm, (4, 4), Device(name="test", alpha=1.0, link_bytes_per_cycle=1.0))
        tiles = np.zeros((*block.shape, 3), np.float32)
        block.clock.state[TIME] += own(block, draw(0, 100, (4, 4)).astype(float))
        with (
            installed(block, "x", routes.interleaved_ring(4)) as x,
            installed(block, "y", routes.interleaved_ring(4)) as y,
        ):
            flights = [fabric.send(block, x, tiles), fabric.send(block, y, tiles)]
            receiving.receive(block, flights[0])
            block.clock.state[TIME] += own(block, draw(0, 30, (4, 4)).astype(float))
            flights.append(fabric.send(block, x, tiles))
            for flight in flights[1:]:
                receiving.receive(block, flight)
        return whole(block, block.clock.state.transpose(1, 2, 0)).tolist(), measured(block)["out_of_order"]

    for seed in range(12):
        assert run(comm, seed) == on_one_rank(comm, partial(run, seed=seed)), seed


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("paths", [False, True])
def test_a_link_is_given_to_a_packet_that_comes_between_two_that_were_sent_before(paths: bool, comm):
    """From core 1 to core 2 at cycles 0 and 100, 4 cycles each; from core 0 past both of them at cycle 50."""
    block = new_block(comm, (4, 1), "wse2")
    tiles = np.zeros((*block.shape, 4), np.float32)
    with (
        installed(block, "x", [routes.Route(1, (2,))]) as short,
        (
            installed(block, None, [tuple((x, 0) for x in range(4))])
            if paths
            else installed(block, "x", [routes.Route(0, (3,))])
        ) as other,
    ):
        flights = [fabric.send(block, short, tiles)]
        block.clock.state[TIME] += own(block, np.array([[50.0, 100.0, 0.0, 0.0]]))
        flights += [fabric.send(block, channel, tiles) for channel in (short, other)]
        for flight in flights:
            receiving.receive(block, flight)
    assert whole(block, block.clock.state[TIME]).tolist() == [[50, 100, 100 + 1 + 4, 50 + 3 + 4]]
    assert measured(block)["out_of_order"]["packets"] == 0


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("width", [None, 4.0])
def test_paths_that_do_not_meet_take_alpha_a_hop_and_the_tail(width: float | None, comm):
    """Many paths of two hops, at places that are no few slices; the second transfer leaves when its ramp is free."""
    corners = [(2 * int(at) % 24, 2 * int(at) // 24 * 2) for at in np.random.default_rng(1).permutation(144)[:80]]
    paths = [((x, y), (x + 1, y), (x + 1, y + 1)) for x, y in corners]
    block = new_block(comm, (24, 24), Device(name="test", alpha=3.0, beta=5.0, link_bytes_per_cycle=width))
    busy = 16 / width if width else 0.0
    with installed(block, None, paths) as channel:
        flights = [fabric.send(block, channel, np.zeros((*block.shape, 4), np.float32)) for _ in range(2)]
        for turn, flight in enumerate(flights):
            receiving.receive(block, flight)
            times = whole(block, block.clock.state[TIME])
            assert {times[y + 1, x + 1] for x, y in corners} == {2 * 3.0 + (1 + turn) * busy}


def halo(block: Block) -> None:
    """Every core sends to its four neighbours and waits for them, three times, after work that differs."""
    rng = np.random.default_rng(3)
    patterns = [(axis, routes.chain(block.mesh.length(axis), step)) for axis in "xy" for step in (1, -1)]
    for size in (1, 5, 3):
        block.clock.state[TIME] += own(block, rng.integers(0, 30, (block.mesh.height, block.mesh.width)) + 0.25)
        with ExitStack() as stack:
            channels = [stack.enter_context(installed(block, *pattern)) for pattern in patterns]
            flights = [fabric.send(block, channel, np.zeros((*block.shape, size), np.float32)) for channel in channels]
            receiving.receive_at(block, channels[1], flights[1], marks(block.mesh.width, [1, 4]))
            for flight in flights:
                receiving.receive(block, flight)
        block.meet()


@pytest.mark.mpi(ranks=[1, 2, 4, 6])
def test_ramps_go_to_the_head_that_asks_first_whatever_the_program_waits_for_first(comm):
    """Four packets come to every core: as in the reference, on any ranks."""

    def expected(alone: Any) -> Any:
        block = new_block(alone, (6, 4), "wse2")
        outcome, state = in_the_reference(block, halo)
        assert np.array_equal(state, state_of(outcome, block.shape))
        assert outcome.behind > 0
        return state

    state = on_one_rank(comm, expected)
    block = new_block(comm, (6, 4), "wse2")
    halo(block)
    assert np.array_equal(whole(block, block.clock.state.transpose(1, 2, 0)).transpose(2, 0, 1), state)
    assert measured(block)["out_of_order"] == {"packets": 0, "longest_wait": 0.0}


@st.composite
def neighbours(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rounds of packets to neighbours: what is sent, on how late cores, and what is waited for in which order."""
    rounds, sent = [], st.tuples(st.integers(1, 6), st.booleans())  # numbers of a packet, and is it streamed?
    for _ in range(draw(st.integers(1, 3))):
        ways = draw(st.lists(st.tuples(st.sampled_from("xy"), st.sampled_from([1, -1])), min_size=1, unique=True))
        same = draw(st.none() | sent)  # all alike
        rounds.append(
            {
                "ways": [(way, *(same or draw(sent))) for way in ways],
                "rings": draw(st.booleans()),  # or chains: are there packets for all cores?
                "skew": draw(st.sampled_from([0, 2, 9, 40])),
                "seed": draw(st.integers(0, 2**16)),
                "some": draw(st.none() | st.tuples(st.integers(0, len(ways) - 1), st.integers(0, 31))),
                "order": draw(st.permutations(range(len(ways)))),
            }
        )
    return rounds


def pattern(n: int, step: int, ring: bool) -> tuple[routes.Route, ...]:
    """Every core's packet goes that way: to the next on the line, or round it."""
    if not ring:
        return routes.chain(n, step)
    round_ = routes.interleaved_ring(n)
    return round_ if step == 1 else tuple(routes.Route(route.stops[0], (route.source,)) for route in round_)


def exchange_with_neighbours(block: Block, rounds: list[dict[str, Any]]) -> None:
    for round_ in rounds:
        late = np.random.default_rng(round_["seed"]).integers(
            0, round_["skew"] + 1, (block.mesh.height, block.mesh.width)
        )
        block.clock.state[TIME] += own(block, late.astype(np.float64))
        with ExitStack() as stack:
            channels = [
                stack.enter_context(installed(block, axis, pattern(block.mesh.length(axis), step, round_["rings"])))
                for (axis, step), _, _ in round_["ways"]
            ]
            flights = [
                fabric.send(block, channel, np.zeros((*block.shape, size), np.float32), stream=stream)
                for channel, (_, size, stream) in zip(channels, round_["ways"], strict=True)
            ]
            if round_["some"] is not None:
                at, bits = round_["some"]
                chosen = [place for place in range(channels[at].length) if bits >> place & 1]
                receiving.receive_at(block, channels[at], flights[at], marks(channels[at].length, chosen))
            for at in round_["order"]:
                receiving.receive(block, flights[at])


@pytest.mark.mpi(ranks=[1])
def test_any_packets_to_neighbours_take_the_time_of_the_reference(comm):
    """Of any sizes, some of them streamed and added for longer than they take on a link, waited for in any order."""
    device = Device(name="test", alpha=1.0, beta=5.0, link_bytes_per_cycle=4.0, macs_per_cycle=0.5)
    in_order = []

    @settings(max_examples=examples(60))
    @given(neighbours())
    def check(rounds: list[dict[str, Any]]) -> None:
        block = new_block(comm, (5, 4), device)
        outcome, state = in_the_reference(block, lambda block: exchange_with_neighbours(block, rounds))
        in_order.append(not measured(block)["out_of_order"]["packets"])
        assert not in_order[-1] or np.array_equal(state, state_of(outcome, block.shape))

    check()
    assert sum(in_order) > len(in_order) / 2


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.sample(12)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("sizes", [(3, 3), (3, 5)])  # numbers of a packet
@pytest.mark.parametrize("room", [0, together.ROOM])  # cores of a block, up to which all is done at once
@pytest.mark.parametrize("turn", [(0, 1), (1, 0), ((0, 1),)])
def test_two_packets_for_every_core_take_its_ramp_in_turn(
    turn: tuple[Any, ...], room: int, sizes: tuple[int, int], stream: bool, comm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round a ring along x and, sent next, one along y: each core's times and hops after either, or both at once, have
    been waited for."""
    monkeypatch.setattr(together, "ROOM", room)
    block = new_block(comm, (6, 4), Device(name="test", alpha=1.0, link_bytes_per_cycle=4.0, macs_per_cycle=0.5))
    taking, tail = ([size / 0.5 for size in sizes], (0, 0)) if stream else (sizes, sizes)
    for seed in range(8):
        clocks = np.random.default_rng(seed).integers(0, 1 + 2 * seed, (4, 6)).astype(np.float64)
        asks, far = np.zeros((2, 4, 6)), np.zeros((2, 4, 6))
        for way, (n, to, ready) in enumerate(((6, asks[0].T, clocks.T), (4, asks[1], clocks))):
            for route in routes.interleaved_ring(n):
                (stop,) = route.stops
                hops = abs(stop - route.source)
                to[stop] = ready[route.source] + way * sizes[0] + hops  # the ramp to the router is free when x has left
                (far[0].T, far[1])[way][stop] = hops
        begin = np.where(asks[0] <= asks[1], [asks[0], np.maximum(asks[0] + taking[0], asks[1])],
                         [np.maximum(asks[1] + taking[1], asks[0]), asks[1]])  # fmt: skip
        block.clock.cells[...] = 0
        block.clock.asked_at[...], block.clock.idle[...] = 0, 0
        block.clock.state[TIME] = own(block, clocks)
        with (
            installed(block, "x", routes.interleaved_ring(6)) as x,
            installed(block, "y", routes.interleaved_ring(4)) as y,
        ):
            flights = [
                fabric.send(block, ring, np.zeros((*block.shape, size), np.float32), stream=stream)
                for ring, size in zip((x, y), sizes, strict=True)
            ]
            time, hops_of = clocks, np.zeros((4, 6))
            for awaited in turn:
                if isinstance(awaited, tuple):
                    receiving.receive_all(block, tuple(flights[way] for way in awaited))
                else:
                    receiving.receive(block, flights[awaited])
                for way in awaited if isinstance(awaited, tuple) else (awaited,):
                    later = begin[way] + tail[way] > time
                    time, hops_of = np.maximum(time, begin[way] + tail[way]), np.where(later, far[way], hops_of)
                state = whole(block, block.clock.state.transpose(1, 2, 0))
                assert np.array_equal(state[..., TIME], time) and np.array_equal(state[..., HOPS], hops_of)


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("core", ["", "numpy"])
@pytest.mark.parametrize("started", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_packets_that_ask_together_take_a_ramp_as_their_transfers_were_started(
    started: tuple[int, ...], core: str, comm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of different sizes, all waited for at once: the core's path is that of the last, by its hops."""
    monkeypatch.setenv("MESHRT_CORE", core)
    block = new_block(comm, (6, 4), Device(name="test", alpha=1.0, link_bytes_per_cycle=4.0))
    ways = [((0, 1), (1, 1), (2, 1), (3, 1)), ((5, 1), (4, 1), (3, 1)), ((3, 0), (3, 1))]
    sizes, clocks = (3, 5, 2), np.zeros((4, 6))
    for way in ways:
        (x, y), hops = way[0], len(way) - 1
        clocks[y, x] = 3 - hops  # so that all ask at 3
    block.clock.state[TIME] = own(block, clocks)
    with ExitStack() as stack:
        channels = [stack.enter_context(installed(block, None, [way])) for way in ways]
        flights = [
            fabric.send(block, channels[way], np.zeros((*block.shape, sizes[way]), np.float32)) for way in started
        ]
        receiving.receive_all(block, tuple(flights))
    state = whole(block, block.clock.state.transpose(1, 2, 0))[1, 3]
    assert (state[TIME], state[HOPS]) == (3 + sum(sizes), len(ways[started[-1]]) - 1)


def given_to(ask: float, busy: float, free: float, asked_at: float, idle: float) -> tuple[tuple[float, ...], bool]:
    """One head and one link, as `order.give`: (start, free, asked, idle), and whether it was held up by a later one."""
    if asked_at <= ask:
        return (max(ask, free), max(ask, free) + busy, ask, free), False
    begin = max(ask, idle)
    if begin + busy <= asked_at:
        return (begin, free, asked_at, begin + busy), ask < idle
    return (free, free + busy, asked_at, free), True


@pytest.mark.mpi(ranks=[1])
def test_links_are_given_to_one_head_at_a_time(comm):
    """Three links, asked for in any order; a head is out of order where another has what it would have got."""

    block = new_block(comm, (2, 2), "wse2")

    @settings(max_examples=examples(200))
    @given(st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), max_size=8), st.integers(1, 5))
    def check(turns: list[list[int]], busy: int) -> None:
        counters = block.counters
        counters.out_of_order, counters.longest_wait = 0, 0.0
        free, asked_at, idle = np.zeros((3, 3))
        links, used, late, longest = [(0.0, 0.0, 0.0)] * 3, [set[int]() for _ in range(3)], 0, 0.0
        for turn in turns:
            times = np.array(turn, float)
            order.give(block, times, float(busy), free, asked_at, idle)
            for at, ask in enumerate(turn):
                (start, *new), held_up = given_to(ask, busy, *links[at])
                links[at] = (new[0], new[1], new[2])
                late, longest = late + held_up, max(longest, (start - ask) * held_up)
                assert (times[at], free[at], asked_at[at], idle[at]) == (start, *links[at])
                taken = set(range(int(start), int(start) + busy))
                assert start >= ask and not taken & used[at]
                used[at] |= taken
        assert (counters.out_of_order, counters.longest_wait) == (late, longest)

    check()


GEMM = {"m": 64, "k": 64, "n": 64}
EXACT: list[tuple[str, tuple[int, int], dict[str, Any]]] = [
    ("gemm", (16, 16), GEMM | {"transpose_b": True}),
    ("gemm", (12, 8), {"algorithm": "summa"}),
    ("gemv", (16, 16), {}),
    ("gemv", (7, 5), {"allreduce": "ring"}),
    ("allreduce", (16, 16), {}),
    ("shift", (8, 8), {}),
]
# Off by so much, as docs/machine.md says: (slowest, fastest) of the run's time over the reference's.
OFF: list[tuple[str, tuple[int, int], dict[str, Any], float, float]] = [
    ("gemm", (16, 16), GEMM, 1.0, 1.0),
    ("gemm", (16, 16), GEMM | {"algorithm": "cannon"}, 1.0, 1.0),
    ("gemm", (16, 16), GEMM | {"algorithm": "summa"}, 1.0, 1.0),
    ("gemm", (16, 16), {"algorithm": "summa"}, 1.0, 1.0),
    ("gemm", (16, 16), GEMM | {"algorithm": "allgather"}, 0.972, 1.0),
    ("kvcache", (8, 8), {}, 1.0, 1.0),
    (
        "llama",
        (8, 8),
        {"model": "llama-tiny", "prompt_ids": "1,2,3,4,5,6,7,8", "max_new_tokens": 2, "ignore_eos": True},
        0.9999,
        1.0,
    ),
]


def compared(comm: Any, name: str, mesh: tuple[int, int], options: dict[str, Any]) -> tuple[Any, np.ndarray, int]:
    """A program's run and the reference: (outcome, state of the run, heads that were out of order)."""
    program = load_program(name)
    arguments = {option.name: option.default for option in program.options} | options
    block = new_block(comm, mesh, "wse2", core_memory=2**20)
    outcome, state = in_the_reference(block, lambda block: program.run(block, **arguments))
    report = measured(block)
    assert (outcome.messages, outcome.hops, outcome.longest) == (report["messages"], report["hops"], report["max_hops"])
    assert sum(outcome.link_bytes.values()) == report["link_bytes"]["total"]
    return outcome, state, report["out_of_order"]["packets"]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(("name", "mesh", "options"), EXACT)
def test_programs_whose_heads_are_in_order_take_the_time_of_the_reference(
    name: str, mesh: tuple[int, int], options: dict[str, Any], comm
):
    outcome, state, out_of_order = compared(comm, name, mesh, options)
    assert out_of_order == 0
    assert np.array_equal(state[0], state_of(outcome, state.shape[1:])[0])


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize(("name", "mesh", "options", "least", "most"), OFF)
def test_programs_whose_heads_are_not_are_off_by_as_much_as_the_docs_say(
    name: str, mesh: tuple[int, int], options: dict[str, Any], least: float, most: float, comm
):
    outcome, state, out_of_order = compared(comm, name, mesh, options)
    expected = state_of(outcome, state.shape[1:])[0]
    assert out_of_order > 0 or np.array_equal(state[0], expected)
    assert least <= state[0].max() / expected.max() <= most


def test_the_reference_names_a_router_without_a_rule_and_cores_that_wait_for_ever():
    """The definition itself can fail."""
    send = ("send", 1, 0, 4, {(0, 0): {0: (frozenset([RAMP]), frozenset([1]))}, (1, 0): {}}, 1.0, False)
    with pytest.raises(KeyError):
        reference_fabric.run({(0, 0): [send], (1, 0): []}, 1.0, 4.0)
    with pytest.raises(RuntimeError, match="wait"):
        reference_fabric.run({(0, 0): [("wait", 1)]}, 1.0, 4.0)


def test_a_trace_of_two_hops_by_hand():
    """16 bytes over two hops at 4 bytes a cycle: two cycles for the head, four for the rest."""
    on = frozenset
    routers = {(0, 0): {0: (on([RAMP]), on([1]))}, (1, 0): {0: (on([3]), on([1]))}, (2, 0): {0: (on([3]), on([RAMP]))}}
    todo: dict[Any, list[tuple[Any, ...]]] = {(0, 0): [("send", 1, 0, 16, routers, 4.0, False)], (1, 0): []}
    outcome = reference_fabric.run(todo | {(2, 0): [("work", 1.0), ("wait", 1), ("stage", 5.0)]}, 1.0, 4.0)
    assert (outcome.cores[2, 0].time, outcome.cores[2, 0].path) == (2 + 4 + 5, (2, 1))
    assert outcome.link_bytes == {((0, 0), 1): 16, ((1, 0), 1): 16}
    assert (outcome.messages, outcome.hops, outcome.longest, outcome.behind) == (1, 2, 2, 0)
