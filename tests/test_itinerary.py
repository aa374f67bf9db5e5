"""The rounds of an exchange against the rules, followed packet by packet; what crosses the links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrt.crossbar.itinerary import Itinerary
from meshrt.crossbar.legs import hops, ways
from meshrt.mesh import EAST, NORTH, SOUTH, STEP, WEST

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
        moved, told = {packet.number for packet in goes.values()}, set()
        for packet in waiting:
            packet.straight = -1
        for (core, port), packet in goes.items():
            told.add((packet.number, core, port, packet.tile, packet.touched))
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
        yield told, (max(tiles.values(), default=0), max(others.values(), default=0))


@st.composite
def maps(draw: st.DrawFn) -> tuple[int, int, list[int]]:
    """A grid and everybody's owner: few owners, so that there are queues, or many."""
    width, height = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    cores = width * height
    among = draw(st.lists(st.integers(0, cores - 1), min_size=1, max_size=cores))
    return width, height, draw(st.lists(st.sampled_from(among), min_size=cores, max_size=cores))


@settings(max_examples=300, deadline=None)
@given(maps(), st.booleans())
def test_every_round_is_what_the_rules_say(where: tuple[int, int, list[int]], asks: bool):
    width, height, owners = where
    legs = ways(width, height, np.array(owners), asks)
    found = 0
    for (expected, most), one in zip(by_the_rules(width, owners, asks), Itinerary(width, height, legs), strict=True):
        told = set()
        fresh = set(one.fresh.tolist())
        for port, lane in enumerate(one.lanes):
            for seat in range(lane.start, lane.stop):
                core, leg = int(one.before[seat]), int(one.legs[seat])
                if core < width * height:
                    told.add((int(legs.packets[leg]), core, port, bool(legs.tiles[leg]), seat not in fresh))
                    assert one.after[seat] == core + STEP[port][0] + STEP[port][1] * width
        assert told == expected
        assert one.count == len(told)
        assert one.bound[0] >= most[0] and one.bound[1] >= most[1]
        assert one.held() == most
        found += len(told)
    assert found == hops(legs)


def test_seats_are_given_out_anew_and_headers_can_follow():
    """Of 20 x 20 cores all want the same tile: there are more packets than seats at first, and few at last."""
    legs = ways(20, 20, np.full(400, 190), True)
    seated, moves = np.empty(0, np.int64), 0
    for one in Itinerary(20, 20, legs):
        if one.moved is not None:
            moves += 1
            seated = np.where(one.moved < 0, -1, seated[one.moved] if len(seated) else -1)
        seated[one.entered[0]] = one.entered[1]
        live = one.before < 400
        assert np.array_equal(seated[live], one.legs[live])
        assert np.array_equal(one.legs[one.ended[0]], one.ended[1])
    assert moves > 2


def test_a_map_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"owners of shape \(5,\) for 6 cores"):
        ways(3, 2, np.zeros(5, np.int64), True)
