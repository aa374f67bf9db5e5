"""<tile_config>: what a tile changes of its own router in the run; <memcpy/memcpy_switches>: commands for others'.

Written from the public description of <tile_config> and from how published programs use both. What is not used there is
not here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.csl import commands
from meshrt.csl.conversions import code
from meshrt.csl.costs import COSTS
from meshrt.csl.libraries.system import native
from meshrt.csl.router import ports
from meshrt.csl.scope import Scope
from meshrt.csl.types import MODULE, STRUCT, TYPES, U16, VOID, Array
from meshrt.csl.values import Library, Val

U32 = TYPES["u32"]


def library(program: Any, given: dict[str, Val], image: Any) -> Library:
    """<tile_config>."""
    parts = {
        "color_config": {
            "get_color_config_addr": native("get_color_config_addr", _address),
            "reset_routes": native("reset_routes", _reset_routes),
        },
        "switch_config": {
            "clear_current_position": native("clear_current_position", _change("clear_position")),
            "set_invalid_for_all_switch_positions": native("set_invalid_for_all", _change("drop_positions")),
            "set_rx_switch_pos1": native("set_rx_switch_pos1", _change("add_position")),
        },
        "teardown": {"exit": native("exit", _change("leave_teardown"))},
    }  # fmt: skip
    return Library("<tile_config>", {
        name: Val(MODULE, Library(f"<tile_config>.{name}", members)) for name, members in parts.items()
    })  # fmt: skip


def _address(scope: Scope, arguments: list[Val], line: int) -> Val:
    """A colour's register is known by the colour."""
    return Val(U16, arguments[0].value, arguments[0].code)


def _reset_routes(scope: Scope, arguments: list[Val], line: int) -> Val:
    color, routes = arguments
    if routes.type is not STRUCT or set(routes.value) != {"rx", "tx"}:
        raise scope.wrong(line, "reset_routes takes a colour's address, and .rx and .tx")
    if not all(one.known for one in routes.value.values()):
        raise scope.wrong(line, "directions of reset_routes have to be known before the run")
    both = [scope.image.constant(ports(routes.value[name])) for name in ("rx", "tx")]
    return _written(scope, "reset", [code(color, scope), *both], line)


def _change(method: str) -> Any:
    def call(scope: Scope, arguments: list[Val], line: int) -> Val:
        return _written(scope, method, [code(one, scope) for one in arguments], line)

    return call


def _written(scope: Scope, method: str, texts: list[str], line: int) -> Val:
    if scope.writer is None:
        raise scope.wrong(line, "<tile_config> changes a router in the run, not before it")
    scope.spend(COSTS.load + COSTS.arithmetic + COSTS.store)
    return Val(VOID, code=f"c.wafer.rewrite(c, {method!r}, {', '.join(texts)})")


def switches(program: Any, given: dict[str, Val], image: Any) -> Library:
    """<memcpy/memcpy_switches>: lists of commands, none of which reaches a core, and the wavelet of a list."""
    kind = Array((commands.COUNT,), U16)

    def listed(*names: str) -> Any:
        found = [commands.NAMES.index(name) | commands.SILENT for name in names]
        whole = np.array([*found, *[commands.SILENT] * (commands.COUNT - len(found))], np.uint16)
        return native("commands", lambda scope, arguments, line: Val(kind, whole))

    def ctrl(scope: Scope, arguments: list[Val], line: int) -> Val:
        if arguments[0].type != kind or not arguments[0].known:
            raise scope.wrong(line, "ctrl takes a list of commands that is known before the run")
        return Val(U32, np.uint32(commands.encode([int(one) for one in arguments[0].value])))

    return Library("<memcpy/memcpy_switches>", {
        "ctrl": native("ctrl", ctrl), "switch_cmd_1": listed("SWITCH_ADV"),
        "switch_cmd_11": listed("SWITCH_ADV", "SWITCH_ADV"), "teardown_cmd_1": listed("TEARDOWN"),
    })  # fmt: skip
