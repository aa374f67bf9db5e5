"""<tile_config>: what a tile changes of its own router in the run; <memcpy/memcpy_switches>: commands for others'.

Written from the public description of <tile_config> and from how published programs use both. What nobody says of
priorities (which is the first) and of queues' states (how far they are filled) is not made up here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.csl.costs import COSTS
from meshrt.csl.language.conversions import code, coerce
from meshrt.csl.language.scope import Scope
from meshrt.csl.language.types import MODULE, STRUCT, TYPE, TYPES, U16, VOID, CslArray, Enum
from meshrt.csl.language.values import Library, Val
from meshrt.csl.libraries.system import native
from meshrt.csl.machine import commands
from meshrt.csl.machine.router import EAST, NORTH, RAMP, SOUTH, WEST, ports

U32 = TYPES["u32"]
SIDES = {"WEST": WEST, "EAST": EAST, "SOUTH": SOUTH, "NORTH": NORTH, "RAMP": RAMP}
FABRIC_IO = Enum(tuple((name, at) for at, name in enumerate(f"{way}_{side}" for way in ("TX", "RX") for side in SIDES)))
POP_MODE = Enum((("NO_POP", 0), ("ALWAYS_POP", 1), ("POP_ON_ADVANCE", 2)))


def library(program: Any, given: dict[str, Val], image: Any) -> Library:
    """<tile_config>."""
    directions = {
        f"{how}_io_direction": _of(f"{how}_io_direction", 2, _direction(f"{how}_direction"))
        for how in ("set", "toggle", "clear")
    }
    moved = {
        f"set_{way}_switch_pos{number}": _of(f"set_{way}_switch_pos{number}", 2, _position(number, way))
        for way in ("rx", "tx")
        for number in (1, 2, 3)
    }
    filters = {"set_counter": "count", "set_max_counter": "most", "set_active_limit": "limit"}
    invalid = "set_invalid_for_all_switch_positions"
    address = _of("get_color_config_addr", 1, _address)
    parts = {
        "color_config": {
            "fabric_io": Val(TYPE, FABRIC_IO),
            "get_color_config_addr": address,
            "reset_routes": _of("reset_routes", 2, _reset_routes),
            **directions,
        },
        "switch_config": {
            "pop_mode": Val(TYPE, POP_MODE),
            "get_color_config_addr": address,
            "clear_current_position": _of("clear_current_position", 1, _change("clear_position")),
            "set_current_switch_position": _of("set_current_switch_position", 2, _change("take_position")),
            invalid: _of(invalid, 1, _change("drop_positions")),
            "set_pop_mode": _of("set_pop_mode", 2, _pop_mode),
            **moved,
        },
        "filters": {name: _of(name, 2, _filter(field)) for name, field in filters.items()},
        "teardown": {"exit": _of("exit", 1, _change("leave_teardown"))},
    }
    return Library("<tile_config>", {
        name: Val(MODULE, Library(f"<tile_config>.{name}", members)) for name, members in parts.items()
    })  # fmt: skip


def _of(name: str, count: int, call: Any) -> Val:
    """A function of so many arguments."""

    def counted(scope: Scope, arguments: list[Val], line: int) -> Val:
        if len(arguments) != count:
            raise scope.wrong(line, f"{name} takes {count} arguments, here are {len(arguments)}")
        result: Val = call(scope, arguments, line)
        return result

    return native(name, counted)


def _address(scope: Scope, arguments: list[Val], line: int) -> Val:
    """A colour's register is known by the colour."""
    return Val(U16, arguments[0].value, arguments[0].code)


def _reset_routes(scope: Scope, arguments: list[Val], line: int) -> Val:
    color, routes = arguments
    if routes.type is not STRUCT or set(routes.value) != {"rx", "tx"}:
        raise scope.wrong(line, "reset_routes takes a colour's address, and .rx and .tx")
    if not all(direction.known for direction in routes.value.values()):
        raise scope.wrong(line, "directions of reset_routes have to be known before the run")
    both = [scope.image.constant(ports(routes.value[name])) for name in ("rx", "tx")]
    return _written(scope, "reset", [code(color, scope), *both], line)


def _direction(method: str) -> Any:
    """One way in or out of a router, of the first position."""

    def call(scope: Scope, arguments: list[Val], line: int) -> Val:
        color, direction = arguments
        name = _member(
            FABRIC_IO, direction, scope, line, "a direction is one of color_config.fabric_io, such as .TX_EAST, and"
        )
        return _written(scope, method, [code(color, scope), repr(name[:2].lower()), str(SIDES[name[3:]])], line)

    return call


def _position(number: int, way: str) -> Any:
    def call(scope: Scope, arguments: list[Val], line: int) -> Val:
        color, side = arguments
        if not side.known:
            raise scope.wrong(line, "a switch position's direction has to be known before the run")
        name = scope.image.constant(ports(side))
        return _written(scope, "set_position", [code(color, scope), str(number), repr(way), name], line)

    return call


def _pop_mode(scope: Scope, arguments: list[Val], line: int) -> Val:
    color, mode = arguments
    name = _member(POP_MODE, mode, scope, line, "set_pop_mode takes one of switch_config.pop_mode,")
    return _written(scope, "set_pop", [code(color, scope), repr(name.lower())], line)


def _member(enum: Enum, value: Val, scope: Scope, line: int, wanted: str) -> str:
    """The name of an enumeration's member, which has to be known."""
    if value.type == TYPES["member"]:
        value = coerce(value, enum, scope, line)
    if value.type != enum or not value.known:
        raise scope.wrong(line, f"{wanted} known before the run")
    return enum.members[int(value.value)][0]


def _filter(field: str) -> Any:
    """Of a counter filter, which goes by its colour's number (@get_filter_id)."""

    def call(scope: Scope, arguments: list[Val], line: int) -> Val:
        texts = [code(argument, scope) for argument in arguments]
        return _written(scope, field, texts, line, "refilter")

    return call


def _change(method: str) -> Any:
    def call(scope: Scope, arguments: list[Val], line: int) -> Val:
        return _written(scope, method, [code(argument, scope) for argument in arguments], line)

    return call


def _written(scope: Scope, method: str, texts: list[str], line: int, how: str = "rewrite") -> Val:
    if scope.writer is None:
        raise scope.wrong(line, "<tile_config> changes a router in the run, not before it")
    scope.spend(COSTS.load + COSTS.arithmetic + COSTS.store)
    scope.image.turns = True
    return Val(VOID, code=f"c.wafer.{how}(c, {method!r}, {', '.join(texts)})")


def switches(program: Any, given: dict[str, Val], image: Any) -> Library:
    """<memcpy/memcpy_switches>: lists of commands, none of which reaches a core, and the wavelet of a list."""
    kind = CslArray((commands.COUNT,), U16)

    def listed(*names: str) -> Any:
        codes = [commands.NAMES.index(name) | commands.SILENT for name in names]
        whole = np.array([*codes, *[commands.SILENT] * (commands.COUNT - len(codes))], np.uint16)
        return native("commands", lambda scope, arguments, line: Val(kind, whole))

    def ctrl(scope: Scope, arguments: list[Val], line: int) -> Val:
        if arguments[0].type != kind or not arguments[0].known:
            raise scope.wrong(line, "ctrl takes a list of commands that is known before the run")
        return Val(U32, np.uint32(commands.encode([int(command) for command in arguments[0].value])))

    return Library("<memcpy/memcpy_switches>", {
        "ctrl": native("ctrl", ctrl), "switch_cmd_1": listed("SWITCH_ADV"),
        "switch_cmd_11": listed("SWITCH_ADV", "SWITCH_ADV"), "teardown_cmd_1": listed("TEARDOWN"),
    })  # fmt: skip
