"""Switch positions of a router's entry, and its filter of wavelets by their index."""

from types import SimpleNamespace

import pytest

from meshrt.csl.router import EAST, NORTH, RAMP, WEST, Route, keeps

POSITIONS = [(frozenset([WEST]), frozenset([one])) for one in (RAMP, EAST, NORTH)]


@pytest.mark.parametrize("ring", [False, True])
def test_a_switch_turns_to_its_last_position_or_round(ring: bool) -> None:
    entry = Route(list(POSITIONS), ring=ring)
    for at in (1, 2, 0 if ring else 2, 1 if ring else 2):
        before = entry.at
        turns = entry.turns("SWITCH_ADV")
        assert turns == entry.turn("SWITCH_ADV") == (at != before)
        assert (entry.at, entry.rx, entry.tx) == (at, *POSITIONS[at])
    assert entry.turns("SWITCH_RST") and entry.turn("SWITCH_RST") and entry.at == 0
    for command in ("SWITCH_RST", "NOP"):
        assert not entry.turns(command) and not entry.turn(command) and entry.at == 0


def test_a_filter_keeps_the_first_and_the_last_of_its_range() -> None:
    entry = Route([POSITIONS[0]])
    assert keeps(entry, 0) and keeps(entry, 0xFFFF0000)
    entry.filter = {"min_idx": SimpleNamespace(value=3), "max_idx": SimpleNamespace(value=5)}
    assert [index for index in range(9) if keeps(entry, index << 16 | 0xFFFF)] == [3, 4, 5]
