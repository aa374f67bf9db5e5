"""Switch positions of a router's entry, and its filters of wavelets, by their index or by how many have come."""

from types import SimpleNamespace

import pytest

from meshrt.csl.errors import CslError
from meshrt.csl.machine.filters import Counter, DataRange, filter_of
from meshrt.csl.machine.router import EAST, NORTH, RAMP, WEST, RouterEntry

POSITIONS = [(frozenset([WEST]), frozenset([direction])) for direction in (RAMP, EAST, NORTH)]


@pytest.mark.parametrize("ring", [False, True])
def test_a_switch_turns_to_its_last_position_or_round(ring: bool) -> None:
    entry = RouterEntry(list(POSITIONS), ring=ring)
    for at in (1, 2, 0 if ring else 2, 1 if ring else 2):
        before = entry.at
        turns = entry.turns("SWITCH_ADV")
        assert turns == entry.turn("SWITCH_ADV") == (at != before)
        assert (entry.at, entry.rx, entry.tx) == (at, *POSITIONS[at])
    assert entry.turns("SWITCH_RST") and entry.turn("SWITCH_RST") and entry.at == 0
    for command in ("SWITCH_RST", "NOP"):
        assert not entry.turns(command) and not entry.turn(command) and entry.at == 0


def test_when_a_router_takes_a_command_off() -> None:
    commands = ("NOP", "SWITCH_ADV", "SWITCH_RST")
    first, last = RouterEntry(list(POSITIONS)), RouterEntry(list(POSITIONS), at=2)
    for mode, popped in {
        "no_pop": ((), ()),
        "always_pop": (commands, commands),
        "pop_on_advance": (["SWITCH_ADV"], ["SWITCH_RST"]),
        "pop_on_advance_nop": (["NOP", "SWITCH_ADV"], ["NOP", "SWITCH_RST"]),
    }.items():
        for entry, expected in zip((first, last), popped, strict=True):
            entry.set_pop(mode)
            assert [command for command in commands if entry.pops(command)] == list(expected)


def _filter(**fields: int) -> DataRange | Counter:
    kind = SimpleNamespace(value={fields.pop("kind"): SimpleNamespace(value=True)})
    return filter_of({"kind": kind, **{name: SimpleNamespace(value=value) for name, value in fields.items()}}, "here")


def test_a_filter_keeps_the_first_and_the_last_of_its_range() -> None:
    entry = _filter(kind="range", min_idx=3, max_idx=5)
    assert [index for index in range(9) if entry.passes(index << 16 | 0xFFFF)] == [3, 4, 5]
    assert entry.passes(0, control=True)


@pytest.mark.parametrize(("limit", "most", "first"), [(5, 4, 0), (7, 1, 4), (3, 3, 2), (4, 9, 0), (0, 0, 0)])
def test_a_filter_counts(limit: int, most: int, first: int) -> None:
    """From its first number to its limit, and from 0 again; what finds more than the most is rejected."""
    entry = _filter(kind="counter", count_data=True, limit1=limit, max_counter=most, init_counter=first)
    for at in range(30):
        assert entry.passes(at) == ((first + at) % (limit + 1) <= most)
        assert entry.passes(at, control=True) == ((first + at + 1) % (limit + 1) <= most)  # not counted


def test_a_filter_counts_control_wavelets_and_lets_but_one_pass() -> None:
    entry = _filter(kind="counter", count_control=True, limit1=3, max_counter=2, filter_control=True)
    assert not entry.passes(0)
    assert [entry.passes(0, control=True) for _ in range(8)] == [False, False, True, False] * 2


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"limit1": 3, "limit2": 5}, [0, 1, 4, 5, *range(10, 20)]),  # 0 to 3, 0 to 5, and no more
        ({"limit1": 3}, [0, 1, *range(4, 20)]),
        ({}, [*range(20)]),
    ],
)
def test_a_sparse_filter_ends(fields: dict[str, int], kept: list[int]) -> None:
    entry = _filter(kind="sparse_counter", count_data=True, max_counter=1, **fields)
    assert [at for at in range(20) if entry.passes(at)] == kept


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "parity"}, "here: a filter's .kind is one of .*range.*counter"),
        ({"kind": "counter", "limit2": 4}, "here: a filter by counter has no .limit2: it has .count_data"),
        ({"kind": "range", "limit1": 4}, "here: a filter by range has no .limit1"),
    ],
)
def test_a_filter_that_is_none(fields: dict[str, int], message: str) -> None:
    with pytest.raises(CslError, match=message):
        _filter(**fields)
