"""<memcpy/get_params>, <memcpy/memcpy>, <time>, <layout>, <control>, <random>, <directions>, <debug>, <simprint>."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.csl.costs import COSTS
from meshrt.csl.language.conversions import code, coerce
from meshrt.csl.language.lvalues import DIRECTIONS
from meshrt.csl.language.scope import Scope
from meshrt.csl.language.types import BOOL, NATIVE, STRUCT, TYPES, U16, VOID, is_number
from meshrt.csl.language.values import Library, Native, Val

STREAMS = [f"MEMCPY{way}_{number}" for way in ("H2D", "D2H") for number in range(1, 9)]


def native(name: str, call: Any) -> Val:
    return Val(NATIVE, Native(name, call))


def _run_only(name: str, text: Any, result: Any = VOID, cycles: float = COSTS.call) -> Val:
    """A function that does something to the core in the run: `text` makes its Python."""

    def call(scope: Scope, arguments: list[Val], line: int) -> Val:
        if scope.writer is None:
            raise scope.wrong(line, f"{name} is done in the run, not before it")
        scope.spend(cycles)
        scope.image.space.update(SPACE)
        return Val(result, code=text(*(code(argument, scope) for argument in arguments)))

    return native(name, call)


def get_params(program: Any, given: dict[str, Val], image: Any) -> Library:
    def call(scope: Scope, arguments: list[Val], line: int) -> Val:
        return Val(STRUCT, {name: given.get(name, Val(VOID)) for name in (*STREAMS, "LAUNCH", "width", "height")})

    return Library("<memcpy/get_params>", {"get_params": native("get_params", call), **given})


def memcpy(program: Any, given: dict[str, Val], image: Any) -> Library:
    for name, value in given.items():
        if value.type is VOID:
            continue
        if name.startswith("MEMCPYH2D"):
            image.from_host.add(int(value.value))
        elif name.startswith("MEMCPYD2H"):
            image.to_host.add(int(value.value))
    unblock = _run_only("unblock_cmd_stream", lambda: "unblock_cmd_stream(c)")
    return Library("<memcpy/memcpy>", {**given, "unblock_cmd_stream": unblock})


def unblock_cmd_stream(core: Any) -> None:
    core.open = True
    core.wake(core.t)


def time(program: Any, given: dict[str, Val], image: Any) -> Library:
    return Library("<time>", {
        "tsc_size_words": Val(U16, np.uint16(3)),
        "enable_tsc": _run_only("enable_tsc", lambda: "None"),
        "disable_tsc": _run_only("disable_tsc", lambda: "None"),
        "reset_tsc_counter": _run_only("reset_tsc_counter", lambda: "reset_tsc(c)"),
        "get_timestamp": _run_only("get_timestamp", lambda to: f"get_timestamp(c, {to})"),
    })  # fmt: skip


def reset_tsc(core: Any) -> None:
    core.counted_from = core.t


def get_timestamp(core: Any, to: Any) -> None:
    now = int(core.t - core.counted_from)
    core.m_uint16[int(to) >> 1 : (int(to) >> 1) + 3] = [now & 0xFFFF, now >> 16 & 0xFFFF, now >> 32 & 0xFFFF]


def layout(program: Any, given: dict[str, Val], image: Any) -> Library:
    return Library("<layout>", {
        "get_x_coord": _run_only("get_x_coord", lambda: "u16(c.x)", U16),
        "get_y_coord": _run_only("get_y_coord", lambda: "u16(c.y)", U16),
    })  # fmt: skip


OPCODES = {"NOP": 0, "SWITCH_ADV": 1, "SWITCH_RST": 2, "TEARDOWN": 3}
U32 = TYPES["u32"]


def encode(opcode: Any, silent: Any, entry: Any, data: Any) -> Any:
    """A control wavelet, as published programs write them: data 0 to 15, task 16 to 21, command 22, 23, no task 24."""
    return np.uint32(int(data) & 0xFFFF | int(entry) << 16 | int(opcode) << 22 | int(silent) << 24)


def control(program: Any, given: dict[str, Val], image: Any) -> Library:
    def coded(scope: Scope, parts: list[Val]) -> Val:
        if all(part.known for part in parts):
            return Val(U32, encode(*(part.value for part in parts)))
        scope.spend(2 * COSTS.arithmetic)
        scope.image.space.update(SPACE)
        return Val(U32, code=f"encode({', '.join(code(part, scope) for part in parts)})")

    def single(scope: Scope, arguments: list[Val], line: int) -> Val:
        opcode, silent, entry, data = arguments
        if entry.type is VOID:
            entry = Val(U16, np.uint16(0))
        return coded(scope, [opcode, silent, entry, data])

    def task(scope: Scope, arguments: list[Val], line: int) -> Val:
        zero = Val(U16, np.uint16(0))
        data = arguments[1] if len(arguments) > 1 else zero
        return coded(scope, [zero, Val(BOOL, False), arguments[0], data])

    opcodes = Val(STRUCT, {name: Val(U16, np.uint16(value)) for name, value in OPCODES.items()})
    return Library("<control>", {
        "opcode": opcodes, "encode_single_payload": native("encode_single_payload", single),
        "encode_control_task_payload": native("encode_control_task_payload", task),
    })  # fmt: skip


def random(program: Any, given: dict[str, Val], image: Any) -> Library:
    """Numbers of our own: each core's depend on where it is and how many it has drawn."""

    def number(kind: str) -> Val:
        def call(scope: Scope, arguments: list[Val], line: int) -> Val:
            low, high = (coerce(argument, TYPES[kind], scope, line) for argument in arguments)
            scope.spend(20.0)
            scope.image.space.update(SPACE)
            return Val(TYPES[kind], code=f"draw(c, {kind}, {code(low, scope)}, {code(high, scope)})")

        return native(f"random_{kind}", call)

    members = {f"random_{kind}": number(kind) for kind in ("f16", "f32", "i16", "u16", "i32", "u32")}
    return Library(
        "<random>", {**members, "set_global_prng_seed": _run_only("set_global_prng_seed", lambda s: f"seed(c, {s})")}
    )


def seed(core: Any, value: Any) -> None:
    core.drawn = (int(value) * 2654435761 ^ 2463534242 ^ core.x ^ core.y << 16) & 0xFFFFFFFF or 1


def draw(core: Any, kind: Any, low: Any, high: Any) -> Any:
    """Marsaglia's xorshift of 32 bits (2003)."""
    if core.drawn is None:
        seed(core, 0)
    drawn = core.drawn
    drawn ^= drawn << 13 & 0xFFFFFFFF
    drawn ^= drawn >> 17
    drawn ^= drawn << 5 & 0xFFFFFFFF
    core.drawn = drawn
    if np.dtype(kind).kind == "f":
        return kind(float(low) + (float(high) - float(low)) * (drawn >> 8) / 2**24)
    return kind(int(low) + drawn % (int(high) - int(low)))


def directions(program: Any, given: dict[str, Val], image: Any) -> Library:
    opposite = {0: 0, 1: 3, 3: 1, 2: 4, 4: 2}

    def flip(scope: Scope, arguments: list[Val], line: int) -> Val:
        return Val(TYPES["direction"], opposite[int(arguments[0].value)])

    return Library("<directions>", {
        "flip": native("flip", flip), **{name: Val(TYPES["direction"], value) for name, value in DIRECTIONS.items()},
    })  # fmt: skip


def debug(program: Any, given: dict[str, Val], image: Any) -> Library:
    """What is traced is kept with the core; debug_util of the host reads it."""
    key = str(given["key"].value) if "key" in given else ""

    def trace(name: str) -> Val:
        def call(scope: Scope, arguments: list[Val], line: int) -> Val:
            scope.spend(COSTS.call)
            scope.image.space.update(SPACE)
            text = code(arguments[0], scope) if arguments else "int(c.t)"
            return Val(VOID, code=f"trace(c, {key!r}, {text})")

        return native(name, call)

    kinds = [
        f"trace_{kind}"
        for kind in ("string", "timestamp", "bool", "i16", "u16", "i32", "u32", "f16", "f32", "u8", "i8")
    ]
    return Library("<debug>", {name: trace(name) for name in kinds})


def trace(core: Any, key: str, value: Any) -> None:
    core.trace.setdefault(key, []).append(value)


def simprint(program: Any, given: dict[str, Val], image: Any) -> Library:
    """Printed by the interpreter, as the simulator does: a line with the cycle and the core."""

    def out(name: str, show: str) -> Val:
        def call(scope: Scope, arguments: list[Val], line: int) -> Val:
            scope.spend(COSTS.call)
            scope.image.space.update(SPACE)
            text = code(arguments[0], scope) if arguments else "''"
            if arguments and arguments[0].known and not is_number(arguments[0].type):
                text = scope.image.constant(str(arguments[0].value))
            return Val(VOID, code=f"show(c, format({text}, {show!r}))")

        return native(name, call)

    members = {"print_string": out("print_string", "")}
    for kind in ("u8", "i8", "u16", "i16", "u32", "i32"):
        members[f"print_{kind}_decimal"] = out(f"print_{kind}_decimal", "d")
        members[f"print_{kind}_hex"] = out(f"print_{kind}_hex", "#x")
    for kind in ("f16", "f32"):
        members[f"print_{kind}"] = out(f"print_{kind}", "g")
    members["print_newline"] = _run_only("print_newline", lambda: "show(c, '\\n')")
    members["fmt_no_nl"] = members["print_string"]
    return Library("<simprint>", members)


def show(core: Any, text: str) -> None:
    print(text, end="")


SPACE: dict[str, Any] = {
    "unblock_cmd_stream": unblock_cmd_stream, "reset_tsc": reset_tsc, "get_timestamp": get_timestamp,
    "encode": encode, "draw": draw, "seed": seed, "trace": trace, "show": show,
}  # fmt: skip
