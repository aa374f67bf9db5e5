"""The rounds of an exchange against the rules, followed packet by packet: who moves when, and what time it takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from compiled import compiled
from hypothesis import example, given, settings
from hypothesis import strategies as st
from runs import new_block
from tiers import examples

from meshrt.mesh.clock import HOPS, LINK_FREE, RAMP_IN, RAMP_OUT, STAGES, TIME
from meshrt.mesh.device import Device
from meshrt.mesh.exchange.exchange import crossbar, exchange
from meshrt.mesh.exchange.itinerary import Itinerary
from meshrt.mesh.exchange.legs import REQUEST_BYTES, Legs, Transfer, hops, ways
from meshrt.mesh.exchange.march import TOUCHED, March
from meshrt.mesh.mesh import EAST, NORTH, SOUTH, STEP, WEST
from meshrt.mesh.wires.core import built

BOTH = pytest.mark.parametrize("name", ["numpy", pytest.param("compiled", marks=compiled)])

Hops = set[tuple[int, int, int, bool, bool]]  # (packet, core, port, carries a tile, has been touched)


@dataclass
class Packet:
    number: int
    owner: int
    core: int
    to: int
    tile: bool
    straight: int = -1  # the port that it would go straight on by
    touched: bool = False


def port_of(packet: Packet, width: int) -> int:
    """Along x first, then along y."""
    (y, x), (to_y, to_x) = divmod(packet.core, width), divmod(packet.to, width)
    if to_x != x:
        return EAST if to_x > x else WEST
    return SOUTH if to_y > y else NORTH


def by_the_rules(width: int, owners: list[int], asks: bool) -> Iterator[tuple[Hops, tuple[int, int]]]:
    """The hops of every round, and the most tiles and requests of others that one core then holds."""
    waiting = [
        Packet(core, owner, core if asks else owner, owner if asks else core, not asks)
        for core, owner in enumerate(owners)
        if core != owner
    ]  # those that have been where they are for longest come first
    while waiting:
        goes: dict[tuple[int, int], Packet] = {}
        for packet in waiting:
            goes.setdefault((packet.core, port_of(packet, width)), packet)
        for packet in waiting:
            if packet.straight == port_of(packet, width):
                goes[packet.core, packet.straight] = packet
        moved, hops_now = {packet.number for packet in goes.values()}, set()
        for packet in waiting:
            packet.straight = -1
        for (core, port), packet in goes.items():
            hops_now.add((packet.number, core, port, packet.tile, packet.touched))
            packet.core += STEP[port][0] + STEP[port][1] * width
            packet.straight, packet.touched = port, True
            if packet.core == packet.to and not packet.tile:
                packet.tile, packet.to, packet.straight = True, packet.number, -1
        waiting = [packet for packet in waiting if packet.number not in moved] + [
            packet
            for packet in waiting
            if packet.number in moved and not (packet.tile and packet.core == packet.number)
        ]
        touched = [packet for packet in waiting if packet.touched]
        tiles = Counter(packet.core for packet in touched if packet.tile and packet.core != packet.owner)
        others = Counter(packet.core for packet in touched if not (packet.tile and packet.core != packet.owner))
        yield hops_now, (max(tiles.values(), default=0), max(others.values(), default=0))


@st.composite
def maps(draw: st.DrawFn) -> tuple[int, int, list[int]]:
    """A grid and everybody's owner: few owners, so that there are queues, or many."""
    width, height = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    cores = width * height
    among = draw(st.lists(st.integers(0, cores - 1), min_size=1, max_size=cores))
    return width, height, draw(st.lists(st.sampled_from(among), min_size=cores, max_size=cores))


Told = tuple[list[tuple[int, int, int, bool, bool]], int, tuple[int, int], tuple[int, int]]  # hops, count, bound, held


def found_by(name: str, width: int, height: int, legs: Legs) -> Iterator[Told]:
    """What the itinerary says of every round, or the compiled core."""
    if name == "compiled":
        march = March(built, width, height, legs)
        while count := march.enter():
            cores, leg, kind = (march.of(field).tolist() for field in ("core", "leg", "kind"))
            seats = [(port, seat) for port, span in enumerate(march.spans()) for seat in range(span.start, span.stop)]
            hops_now = [
                (int(legs.packets[leg[seat]]), cores[seat], port, bool(legs.tiles[leg[seat]]), kind[seat] >= TOUCHED)
                for port, seat in seats
            ]
            yield hops_now, count, march.bound, march.held()
            march.come_in()
        return
    for round_ in Itinerary(width, height, legs):
        fresh, hops_now = set(round_.fresh.tolist()), []
        for port, lane in enumerate(round_.spans):
            for seat in range(lane.start, lane.stop):
                at, on = int(round_.before[seat]), int(round_.legs[seat])
                if at < width * height:
                    hops_now.append((int(legs.packets[on]), at, port, bool(legs.tiles[on]), seat not in fresh))
                    assert round_.after[seat] == at + STEP[port][0] + STEP[port][1] * width
        yield hops_now, round_.count, round_.bound, round_.held()


@BOTH
@settings(max_examples=examples(300), deadline=None)
@given(where=maps(), asks=st.booleans())
@example(where=(3, 4, [6, 6, 0, 9, 6, 9, 11, 9, 0, 4, 4, 6]), asks=True)  # two moved together: who came first before
def test_every_round_is_what_the_rules_say(name: str, where: tuple[int, int, list[int]], asks: bool):
    width, height, owners = where
    legs = ways(width, height, np.array(owners), asks)
    rules, count_of_all = by_the_rules(width, owners, asks), 0
    for (expected, most), (hops_now, count, bound, held) in zip(
        rules, found_by(name, width, height, legs), strict=True
    ):
        assert len(hops_now) == count and set(hops_now) == expected
        assert bound[0] >= most[0] and bound[1] >= most[1]
        assert held == most
        count_of_all += count
    assert count_of_all == hops(legs)


@pytest.mark.sample(6)
@BOTH
@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("grid", [(71, 16), (1, 300), (260, 3)])
def test_rounds_of_more_cores_than_a_word_has_bits(name: str, grid: tuple[int, int], asks: bool):
    """Few packets, far from each other; and all of them for one core, so that hundreds wait at a door."""
    width, height = grid
    at = np.arange(width * height)
    few = at.copy()
    few[[3, 7, -2]] = [len(at) - 1, 0, 4]
    for owners in (few, np.full(len(at), len(at) // 3)):
        legs = ways(width, height, owners, asks)
        rules = by_the_rules(width, owners.tolist(), asks) if owners is few else None
        count_of_all = 0
        for hops_now, count, _, held in found_by(name, width, height, legs):
            count_of_all += count
            assert rules is None or (set(hops_now), held) == next(rules)
        assert count_of_all == hops(legs)


SLOW = Device(name="slow", alpha=1.5, beta=7.0, link_bytes_per_cycle=4.0)


def carry_out(cells: list[list[float]], width: int, owners: list[int], asks: bool, sizes: tuple[int, int]) -> int:
    """An exchange on a grid; `cells`: the rows of `Clock.cells`, of each core. `sizes`: bytes of a request, of a tile.

    Returns the most bytes of others that a round needs room for. A hop waits for the ramp out of its core, for the
    link, and for the ramp into the next core.
    """
    heads: dict[int, list[float]] = {}
    room, busy = 0, [SLOW.busy_cycles(size) for size in sizes]
    for hops_now, (tiles, requests) in by_the_rules(width, owners, asks):
        room = max(room, requests * sizes[0] + tiles * sizes[1])
        moves = sorted(hops_now, key=lambda move: move[2])  # by port where a core has several packets
        for number, core, port, tile, touched in moves:
            cell = cells[core]
            if number in heads and heads[number][TIME] > cell[TIME]:
                cell[: STAGES + 1] = heads[number]
            cell[TIME] += SLOW.beta * touched
            cell[STAGES] += touched
            time = max(cell[TIME], cell[RAMP_OUT], cell[LINK_FREE + port])
            cell[RAMP_OUT] = cell[LINK_FREE + port] = time + busy[tile]
            heads[number] = [time + SLOW.alpha, cell[HOPS] + 1, cell[STAGES]]
        for number, core, port, tile, _ in moves:
            cell = cells[core + STEP[port][0] + STEP[port][1] * width]
            heads[number][TIME] = cell[RAMP_IN] = max(heads[number][TIME], cell[RAMP_IN]) + busy[tile]
    for reader, head in heads.items():
        if head[TIME] > cells[reader][TIME]:
            cells[reader][: STAGES + 1] = head
    return room


@pytest.mark.mpi(ranks=[1])
@BOTH
@pytest.mark.parametrize("axis", ["x", "y", None])
def test_clocks_links_ramps_and_memory_are_those_of_the_rules(
    axis: str | None, name: str, comm: Any, monkeypatch: pytest.MonkeyPatch
):
    """Two exchanges in a row, on cores whose clocks differ and whose links and ramps may be busy already."""
    monkeypatch.setenv("MESHRT_CORE", name)

    @settings(max_examples=examples(60))
    @given(maps(), st.booleans(), st.integers(0, 2**16), st.sampled_from([0, 30, 500]))
    def check(where: tuple[int, int, list[int]], asks: bool, seed: int, skew: int) -> None:
        width, height, owners = where
        grid = {"x": (width, 1), "y": (1, height), None: (width, height)}[axis]  # of the cores that exchange tiles
        owners = [owner % (grid[0] * grid[1]) for owner in owners[: grid[0] * grid[1]]]
        block = new_block(comm, (width, height), SLOW)
        cells = block.clock.cells[:, :-1]
        cells[...] = np.random.default_rng(seed).integers(0, skew + 1, cells.shape)

        def by_line() -> np.ndarray:
            every = cells.reshape(-1, height, width).transpose(1, 2, 0)
            return {"x": every, "y": every.swapaxes(0, 1), None: every.reshape(1, -1, len(cells))}[axis]

        lines, held, resize = by_line().tolist(), [0], block.memory.resize

        def noted(name: str, nbytes: int) -> None:
            held.append(nbytes)
            resize(name, nbytes)

        with crossbar(block) as bar, pytest.MonkeyPatch.context() as patch:
            patch.setattr(block.memory, "resize", noted)
            for _ in range(2):
                exchange(block, bar, Transfer(axis, np.array(owners), np.zeros((*block.shape, 6), np.float32), asks))
                rooms = [carry_out(line, grid[0], owners, asks, (REQUEST_BYTES, 24)) for line in lines]
                assert max(held) == max(rooms)
        assert np.array_equal(by_line(), lines)

    check()


def test_seats_are_given_out_anew_and_headers_can_follow():
    """Of 20 x 20 cores all want the same tile: there are more packets than seats at first, and few at last."""
    legs = ways(20, 20, np.full(400, 190), True)
    seated, moves = np.empty(0, np.int64), 0
    for round_ in Itinerary(20, 20, legs):
        if round_.old_seats is not None:
            moves += 1
            seated = np.where(round_.old_seats < 0, -1, seated[round_.old_seats] if len(seated) else -1)
        seated[round_.entered[0]] = round_.entered[1]
        live = round_.before < 400
        assert np.array_equal(seated[live], round_.legs[live])
        assert np.array_equal(round_.legs[round_.ended[0]], round_.ended[1])
    assert moves > 2


def test_a_map_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"owners of shape \(5,\) for 6 cores"):
        ways(3, 2, np.zeros(5, np.int64), True)
