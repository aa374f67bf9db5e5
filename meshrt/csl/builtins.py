"""The builtins that compute, or name, something. Those on vectors: vectorbuiltins; of tiles: tilebuiltins."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.csl import descriptorbuiltins, tilebuiltins, vectorbuiltins
from meshrt.csl import nodes as n
from meshrt.csl.arithmetic import bitcast, convert
from meshrt.csl.conversions import code, coerce
from meshrt.csl.costs import COSTS
from meshrt.csl.expressions import expression, known, place, type_of_node
from meshrt.csl.pending import held
from meshrt.csl.scope import Scope
from meshrt.csl.types import (
    BOOL,
    FLOAT,
    INT,
    NUMBERS,
    STRUCT,
    TYPE,
    TYPES,
    VOID,
    Array,
    Enum,
    Pointer,
    dtype,
    is_float,
    is_int,
    is_number,
    is_pointer,
    is_word,
    nbytes,
)  # fmt: skip
from meshrt.csl.values import Val


def count(node: n.Builtin, scope: Scope, *allowed: int) -> None:
    if len(node.arguments) not in allowed:
        asked = " or ".join(map(str, allowed))
        raise scope.wrong(node.line, f"{node.name} takes {asked} arguments, here are {len(node.arguments)}")


def _as(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 2)
    kind = type_of_node(node.arguments[0], scope)
    one = expression(node.arguments[1], scope)
    if one.type == kind:
        return one
    if isinstance(one.type, Enum) or isinstance(kind, Enum) or is_word(one.type) or is_word(kind):
        return _as_word(one, kind, scope, node.line)
    if not (is_number(one.type) and is_number(kind)):
        raise scope.wrong(node.line, f"@as of a {one.type} to {kind}")
    if one.known:
        with np.errstate(all="ignore"):
            if kind in (INT, FLOAT):
                return Val(kind, int(one.value) if kind is INT else float(one.value))
            return Val(kind, convert(one.value, NUMBERS[kind.name]))
    scope.spend(COSTS.arithmetic)
    if is_float(kind):
        return Val(kind, code=f"{kind}({one.code})")
    return Val(kind, code=f"convert({one.code}, {kind})")


def _as_word(one: Val, kind: Any, scope: Scope, line: int) -> Val:
    if not nbytes(kind) and kind is not INT:
        raise scope.wrong(line, f"@as of a {one.type} to {kind}")
    if one.known:
        value = int(one.value)
        if kind == BOOL:
            return Val(kind, bool(value))
        return Val(kind, convert(value, NUMBERS[kind.name]) if is_number(kind) and kind is not INT else value)
    if kind == BOOL:
        return Val(kind, code=f"({one.code} != 0)")
    return Val(kind, code=f"convert(int({one.code}), {kind if is_number(kind) else 'u16'})")


def _bitcast(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 2)
    kind = type_of_node(node.arguments[0], scope)
    one = expression(node.arguments[1], scope)
    if isinstance(one.type, Pointer) and isinstance(kind, Pointer):
        return Val(kind, one.value, one.code)
    if not nbytes(kind) or not nbytes(one.type) or nbytes(kind) != nbytes(one.type):
        raise scope.wrong(node.line, f"@bitcast of {one.type} to {kind}: they differ in width")
    if is_word(kind) or is_word(one.type):
        return _as_word(one, kind, scope, node.line)
    if one.known:
        return Val(kind, bitcast(one.value, NUMBERS[kind.name]))
    return Val(kind, code=f"bitcast({one.code}, {kind})")


def _ptrcast(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 2)
    kind = type_of_node(node.arguments[0], scope)
    one = expression(node.arguments[1], scope)
    if not is_pointer(one.type) or not is_pointer(kind):
        raise scope.wrong(node.line, f"@ptrcast of {one.type} to {kind}: both have to be pointers")
    return Val(kind, one.value, one.code)


def _zeros(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 1)
    kind = type_of_node(node.arguments[0], scope)
    if not isinstance(kind, Array) or not nbytes(kind.element):
        raise scope.wrong(node.line, f"@zeros of {kind}, which is no array of numbers")
    return Val(kind, np.zeros(kind.sizes, dtype(kind.element)))


def _constants(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 2)
    kind = type_of_node(node.arguments[0], scope)
    one = coerce(known(node.arguments[1], scope, "the constant"), kind.element, scope, node.line)
    return Val(kind, np.full(kind.sizes, one.value, dtype(kind.element)))


def _identity(of: str, limit: int) -> Any:
    def get(node: n.Builtin, scope: Scope) -> Val:
        count(node, scope, 1)
        one = expression(node.arguments[0], scope)
        if not one.known:
            return Val(TYPES[of], code=f"int({one.code})")
        if not (is_int(one.type) or is_word(one.type)):
            raise scope.wrong(node.line, f"{node.name} of a {one.type}")
        if not 0 <= int(one.value) < limit:
            raise scope.wrong(node.line, f"{node.name}({int(one.value)}): there are 0 to {limit - 1}")
        return Val(TYPES[of], int(one.value))

    return get


def _range(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 2, 4)
    kind = type_of_node(node.arguments[0], scope)
    bounds = [coerce(expression(one, scope), kind, scope, node.line) for one in node.arguments[1:]]
    zero, one = Val(kind, NUMBERS[kind.name](0)), Val(kind, NUMBERS[kind.name](1))
    return Val(TYPES["range"], (kind, zero, bounds[0], one) if len(bounds) == 1 else (kind, *bounds))


def _is_arch(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 1)
    return Val(BOOL, known(node.arguments[0], scope, "an architecture").value == scope.module.program.arch)


def _concat_structs(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 2)
    a, b = (known(one, scope, "a struct") for one in node.arguments)
    for one in (a, b):
        if one.type is not STRUCT:
            raise scope.wrong(node.line, f"@concat_structs of a {one.type}")
    twice = [name for name in a.value if name in b.value]
    if twice:
        raise scope.wrong(node.line, f"both structs have a field {twice[0]!r}")
    return Val(STRUCT, {**a.value, **b.value})


def _import(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 1, 2)
    path = known(node.arguments[0], scope, "a module's name").value
    given = known(node.arguments[1], scope, "a module's parameters").value if len(node.arguments) > 1 else {}
    found: Val = scope.module.program.open(path, given, scope, node.line)
    return found


def _assert(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 1, 2)
    one = expression(node.arguments[0], scope)
    if one.type != BOOL:
        raise scope.wrong(node.line, f"{node.name} of a {one.type}, which is no bool")
    if one.known and (one.value or scope.writer is None or node.name == "@comptime_assert"):
        if not one.value:
            text = known(node.arguments[1], scope, "a message").value if len(node.arguments) > 1 else "it does not hold"
            raise scope.wrong(node.line, f"{node.name}: {text}")
        return Val(VOID)
    scope.image.space["held"] = held
    return Val(VOID, code=f"held(c, {code(one, scope)})")


def _type_of(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 1)
    return Val(TYPE, place(node.arguments[0], scope).type)


def _is_same_type(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 2)
    a, b = (type_of_node(one, scope) for one in node.arguments)
    return Val(BOOL, a == b)


def _has_field(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 2)
    name = known(node.arguments[1], scope, "a field's name").value
    return Val(BOOL, name in known(node.arguments[0], scope, "a struct").value)


def _field(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 2)
    name = known(node.arguments[1], scope, "a field's name").value
    found: Val = expression(n.Field(node.line, node.arguments[0], name), scope)
    return found


def _get_int(node: n.Builtin, scope: Scope) -> Val:
    """The number of a colour, queue or task."""
    count(node, scope, 1)
    one = expression(node.arguments[0], scope)
    return Val(TYPES["u16"], np.uint16(one.value)) if one.known else Val(TYPES["u16"], code=f"u16({code(one, scope)})")


BUILTINS: dict[str, Any] = {
    "@as": _as, "@bitcast": _bitcast, "@ptrcast": _ptrcast, "@zeros": _zeros, "@constants": _constants,
    "@get_color": _identity("color", 32), "@get_input_queue": _identity("input_queue", 8),
    "@get_output_queue": _identity("output_queue", 8), "@get_ut_id": _identity("ut_id", 9),
    "@get_local_task_id": _identity("local_task_id", 32), "@get_data_task_id": _identity("data_task_id", 32),
    "@get_control_task_id": _identity("control_task_id", 64), "@range": _range, "@is_arch": _is_arch,
    "@concat_structs": _concat_structs, "@import_module": _import, "@assert": _assert, "@comptime_assert": _assert,
    "@type_of": _type_of, "@is_same_type": _is_same_type, "@has_field": _has_field, "@field": _field,
    "@get_int": _get_int, **tilebuiltins.BUILTINS, **descriptorbuiltins.BUILTINS, **vectorbuiltins.BUILTINS,
}  # fmt: skip
