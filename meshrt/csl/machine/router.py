"""Routers: by colour, which ports wavelets come in by and leave by; switches that turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt.csl.errors import ColorLimit, CslError
from meshrt.csl.machine.filters import Counter, DataRange, filter_of
from meshrt.errors import nearest

COLORS = 24  # that routers have: higher numbers are of tasks
# Those that have switches on a WSE-3 (SDK documentation, builtins, switching); on a WSE-2 all have.
SWITCHED = {"wse3": (*range(10), 12, 13, 16, 17, 20, 21)}
RAMP, EAST, NORTH, WEST, SOUTH = range(5)
NAMES = ("RAMP", "EAST", "NORTH", "WEST", "SOUTH")
STEPS = {EAST: (1, 0), NORTH: (0, -1), WEST: (-1, 0), SOUTH: (0, 1)}
FIELDS = ("routes", "switches", "filter", "teardown")
SWITCHES = ("pos1", "pos2", "pos3", "current_switch_pos", "ring_mode", "pop_mode")
POP_MODES = ("no_pop", "always_pop", "pop_on_advance", "pop_on_advance_nop")
ACROSS = {EAST: WEST, WEST: EAST, NORTH: SOUTH, SOUTH: NORTH}


@dataclass(slots=True, eq=False)
class RouterEntry:
    """One entry of a router. `positions`: (rx, tx) of each switch position."""

    positions: list[tuple[frozenset[int], frozenset[int]]]
    at: int = 0
    ring: bool = False
    pop: str = "no_pop"  # when a router takes its command off a control wavelet
    filter: DataRange | Counter | None = None
    swap_x: bool = False
    swap_y: bool = False
    location: Any = None
    exact: bool = False  # of a library: takes no more than its core's operations ask for
    changes: bool = False  # the tile's code writes it anew in the run: what it does not take waits
    torn: bool = False  # in teardown: nothing goes through

    @property
    def rx(self) -> frozenset[int]:
        return self.positions[self.at][0]

    @property
    def tx(self) -> frozenset[int]:
        return self.positions[self.at][1]

    def reset(self, rx: frozenset[int], tx: frozenset[int]) -> None:
        """The first position, written anew; the others stay as they are."""
        self.positions[0] = (rx, tx)

    def clear_position(self) -> None:
        self.at = 0

    def drop_positions(self) -> None:
        """All but the first."""
        del self.positions[1:]
        self.at = 0

    def set_position(self, number: int, way: str, sides: frozenset[int]) -> None:
        """Where a switch position receives from, or sends to; the other as in the one before. ValueError."""
        if number > len(self.positions):
            raise ValueError(f"position {number} is set and there is no position {number - 1}")
        rx, tx = self.positions[min(number, len(self.positions) - 1)]
        self.positions[number : number + 1] = [(sides, tx) if way == "rx" else (rx, sides)]

    def take_position(self, number: Any) -> None:
        """ValueError."""
        if not 0 <= int(number) < len(self.positions):
            raise ValueError(f"position {int(number)} is taken up: there are 0 to {len(self.positions) - 1}")
        self.at = int(number)

    def set_pop(self, mode: str) -> None:
        self.pop = mode

    def set_direction(self, way: str, side: int) -> None:
        self._direct(way, self._sides(way) | {side})

    def clear_direction(self, way: str, side: int) -> None:
        self._direct(way, self._sides(way) - {side})

    def toggle_direction(self, way: str, side: int) -> None:
        self._direct(way, self._sides(way) ^ {side})

    def _sides(self, way: str) -> frozenset[int]:
        return self.positions[0][way == "tx"]

    def _direct(self, way: str, sides: frozenset[int]) -> None:
        rx, tx = self.positions[0]
        self.positions[0] = (sides, tx) if way == "rx" else (rx, sides)

    def leave_teardown(self) -> None:
        self.torn = False

    def pops(self, command: str) -> bool:
        """Does it take the command off the wavelet that brings it?"""
        if self.pop == "pop_on_advance_nop" and command == "NOP":
            return True
        return self.pop == "always_pop" or (self.pop.startswith("pop_on_advance") and self.turns(command))

    def turns(self, command: str) -> bool:
        """Would it take up another position?"""
        if command == "SWITCH_ADV":
            return self.at + 1 < len(self.positions) or (self.ring and self.at > 0)
        return command == "SWITCH_RST" and self.at > 0

    def turn(self, command: str) -> bool:
        """Take up another position. Did it change?"""
        before = self.at
        if command == "SWITCH_RST":
            self.at = 0
        elif command == "SWITCH_ADV":
            self.at += 1
            if self.at == len(self.positions):
                self.at = 0 if self.ring else self.at - 1
        return self.at != before


def check_color(color: int, location: Any) -> None:
    """May it have routes? ColorLimit."""
    if not 0 <= color < COLORS:
        raise ColorLimit(
            f"{location}: colour {color} is given routes, a router has {COLORS}, 0 to {COLORS - 1}: routes that share"
            " no router may share a colour"
        )


def check_switch(color: int, entry: RouterEntry, arch: str) -> None:
    """May a colour have more positions than one? ColorLimit."""
    if len(entry.positions) > 1 and color not in SWITCHED.get(arch, range(COLORS)):
        raise ColorLimit(
            f"{entry.location}: colour {color} is given switch positions, which a WSE-3 has for colours"
            f" {', '.join(map(str, SWITCHED[arch]))} alone"
        )


def ports(directions: Any) -> frozenset[int]:
    """Of one direction, a struct, or an array of them."""
    value = directions.value
    if isinstance(value, dict):
        return frozenset(int(part.value) for part in value.values())
    if isinstance(value, np.ndarray):
        return frozenset(int(getattr(part, "value", part)) for part in value.flat)
    return frozenset([int(value)])


def _only(names: Iterable[str], choices: Sequence[str], of: str, location: Any) -> None:
    for name in names:
        if name not in choices:
            hint = nearest(name, choices, f"there are .{', .'.join(choices)}")
            raise CslError(f"{location}: {of} has no .{name} in the part of CSL that is here (docs/csl.md): {hint}")


def route(config: dict[str, Any], location: Any) -> RouterEntry:
    """What @set_color_config says. CslError."""
    _only(config, FIELDS, "a colour's configuration", location)
    if "routes" not in config:
        raise CslError(f"{location}: a colour's configuration has no .routes")
    routes = config["routes"].value
    _only(routes, ("rx", "tx", "color_swap_x", "color_swap_y"), "a colour's .routes", location)
    rx = ports(routes["rx"]) if "rx" in routes else frozenset[int]()
    tx = ports(routes["tx"]) if "tx" in routes else frozenset[int]()
    entry = RouterEntry([(rx, tx)], location=location)
    entry.swap_x = "color_swap_x" in routes and bool(routes["color_swap_x"].value)
    entry.swap_y = "color_swap_y" in routes and bool(routes["color_swap_y"].value)
    if "switches" in config:
        _set_switches(entry, config["switches"].value, location)
    entry.changes = entry.torn = "teardown" in config and bool(config["teardown"].value)
    if "filter" in config:
        entry.filter = filter_of(config["filter"].value, location)
    return entry


def _set_switches(entry: RouterEntry, switches: dict[str, Any], location: Any) -> None:
    """The positions of a switch behind the first one, and how it turns. CslError."""
    _only(switches, SWITCHES, "a colour's .switches", location)
    for name in ("pos1", "pos2", "pos3"):
        if name not in switches or "invalid" in switches[name].value:
            break
        position, (rx, tx) = switches[name].value, entry.positions[-1]
        # what a position does not say is as in the one before
        rx = ports(position["rx"]) if "rx" in position else rx
        tx = ports(position["tx"]) if "tx" in position else tx
        entry.positions.append((rx, tx))
    if "current_switch_pos" in switches:
        entry.at = int(switches["current_switch_pos"].value)
        if not 0 <= entry.at < len(entry.positions):
            raise CslError(
                f"{location}: .current_switch_pos is {entry.at}, and the last position before one that is not valid"
                f" is {len(entry.positions) - 1}"
            )
    for name in switches["pop_mode"].value if "pop_mode" in switches else ():
        _only([name], POP_MODES, ".pop_mode", location)
        entry.pop = name
    entry.ring = "ring_mode" in switches and bool(switches["ring_mode"].value)
