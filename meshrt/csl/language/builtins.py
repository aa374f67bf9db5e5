"""The builtins that compute, or name, something. Those on vectors: vectorbuiltins; of tiles: tilebuiltins."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.csl.costs import COSTS
from meshrt.csl.language import descriptorbuiltins, tilebuiltins, vectorbuiltins
from meshrt.csl.language.arithmetic import bitcast, convert
from meshrt.csl.language.conversions import code, coerce
from meshrt.csl.language.expressions import expression, known, lvalue, type_of_node
from meshrt.csl.language.scope import Scope
from meshrt.csl.language.types import (
    BOOL,
    FLOAT,
    INT,
    NUMBERS,
    STRING,
    STRUCT,
    TYPE,
    TYPES,
    VOID,
    CslArray,
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
from meshrt.csl.language.values import Val
from meshrt.csl.machine.pending import held
from meshrt.csl.syntax import nodes as n


def count(node: n.Builtin, scope: Scope, *allowed: int) -> None:
    if len(node.arguments) not in allowed:
        counts = " or ".join(map(str, allowed))
        raise scope.wrong(node.line, f"{node.name} takes {counts} arguments, here are {len(node.arguments)}")


def _as(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 2)
    kind = type_of_node(node.arguments[0], scope)
    operand = expression(node.arguments[1], scope)
    if operand.type == kind:
        return operand
    if isinstance(operand.type, Enum) or isinstance(kind, Enum) or is_word(operand.type) or is_word(kind):
        return _as_word(operand, kind, scope, node.line)
    if not (is_number(operand.type) and is_number(kind)):
        raise scope.wrong(node.line, f"@as of a {operand.type} to {kind}")
    if operand.known:
        with np.errstate(all="ignore"):
            if kind in (INT, FLOAT):
                return Val(kind, int(operand.value) if kind is INT else float(operand.value))
            return Val(kind, convert(operand.value, NUMBERS[kind.name]))
    scope.spend(COSTS.arithmetic)
    if is_float(kind):
        return Val(kind, code=f"{kind}({operand.code})")
    return Val(kind, code=f"convert({operand.code}, {kind})")


def _as_word(operand: Val, kind: Any, scope: Scope, line: int) -> Val:
    if not nbytes(kind) and kind is not INT:
        raise scope.wrong(line, f"@as of a {operand.type} to {kind}")
    if operand.known:
        if kind == BOOL:
            return Val(kind, bool(operand.value))
        value = int(operand.value)
        return Val(kind, convert(value, NUMBERS[kind.name]) if is_number(kind) and kind is not INT else value)
    if kind == BOOL:
        return Val(kind, code=f"({operand.code} != 0)")
    return Val(kind, code=f"convert(int({operand.code}), {kind if is_number(kind) else 'u16'})")


def _bitcast(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 2)
    kind = type_of_node(node.arguments[0], scope)
    operand = expression(node.arguments[1], scope)
    if isinstance(operand.type, Pointer) and isinstance(kind, Pointer):
        return Val(kind, operand.value, operand.code)
    if not nbytes(kind) or not nbytes(operand.type) or nbytes(kind) != nbytes(operand.type):
        raise scope.wrong(node.line, f"@bitcast of {operand.type} to {kind}: they differ in width")
    if is_word(kind) or is_word(operand.type):
        return _as_word(operand, kind, scope, node.line)
    if operand.known:
        return Val(kind, bitcast(operand.value, NUMBERS[kind.name]))
    return Val(kind, code=f"bitcast({operand.code}, {kind})")


def _ptrcast(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 2)
    kind = type_of_node(node.arguments[0], scope)
    operand = expression(node.arguments[1], scope)
    if not is_pointer(operand.type) or not is_pointer(kind):
        raise scope.wrong(node.line, f"@ptrcast of {operand.type} to {kind}: both have to be pointers")
    return Val(kind, operand.value, operand.code)


def _zeros(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 1)
    kind = type_of_node(node.arguments[0], scope)
    if not isinstance(kind, CslArray) or not nbytes(kind.element):
        raise scope.wrong(node.line, f"@zeros of {kind}, which is no array of numbers")
    return Val(kind, np.zeros(kind.sizes, dtype(kind.element)))


def _constants(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 2)
    kind = type_of_node(node.arguments[0], scope)
    constant = coerce(known(node.arguments[1], scope, "the constant"), kind.element, scope, node.line)
    return Val(kind, np.full(kind.sizes, constant.value, dtype(kind.element)))


def _identity(of: str, limit: int) -> Any:
    def get(node: n.Builtin, scope: Scope) -> Val:
        count(node, scope, 1)
        number = expression(node.arguments[0], scope)
        if not number.known:
            return Val(TYPES[of], code=f"int({number.code})")
        if not (is_int(number.type) or is_word(number.type)):
            raise scope.wrong(node.line, f"{node.name} of a {number.type}")
        if not 0 <= int(number.value) < limit:
            raise scope.wrong(node.line, f"{node.name}({int(number.value)}): there are 0 to {limit - 1}")
        return Val(TYPES[of], int(number.value))

    return get


def _range(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 2, 4)
    kind = type_of_node(node.arguments[0], scope)
    bounds = [coerce(expression(argument, scope), kind, scope, node.line) for argument in node.arguments[1:]]
    zero, one = Val(kind, NUMBERS[kind.name](0)), Val(kind, NUMBERS[kind.name](1))
    return Val(TYPES["range"], (kind, zero, bounds[0], one) if len(bounds) == 1 else (kind, *bounds))


def _is_arch(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 1)
    return Val(BOOL, known(node.arguments[0], scope, "an architecture").value == scope.module.program.arch)


def _concat_structs(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 2)
    a, b = (known(argument, scope, "a struct") for argument in node.arguments)
    for struct in (a, b):
        if struct.type is not STRUCT:
            raise scope.wrong(node.line, f"@concat_structs of a {struct.type}")
    twice = [name for name in a.value if name in b.value]
    if twice:
        raise scope.wrong(node.line, f"both structs have a field {twice[0]!r}")
    return Val(STRUCT, {**a.value, **b.value})


def _import(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 1, 2)
    named = known(node.arguments[0], scope, "a module's name")
    if named.type is not STRING:
        raise scope.wrong(node.line, f"@import_module of a {named.type}: a text names the module")
    path = named.value
    given = known(node.arguments[1], scope, "a module's parameters").value if len(node.arguments) > 1 else {}
    module: Val = scope.module.program.open(path, given, scope, node.line)
    return module


def _assert(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 1, 2)
    condition = expression(node.arguments[0], scope)
    if condition.type != BOOL:
        raise scope.wrong(node.line, f"{node.name} of a {condition.type}, which is no bool")
    if condition.known and (condition.value or scope.writer is None or node.name == "@comptime_assert"):
        if not condition.value:
            text = known(node.arguments[1], scope, "a message").value if len(node.arguments) > 1 else "it does not hold"
            raise scope.wrong(node.line, f"{node.name}: {text}")
        return Val(VOID)
    scope.image.space["held"] = held
    return Val(VOID, code=f"held(c, {code(condition, scope)})")


def _type_of(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 1)
    return Val(TYPE, lvalue(node.arguments[0], scope).type)


def _is_same_type(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 2)
    a, b = (type_of_node(argument, scope) for argument in node.arguments)
    return Val(BOOL, a == b)


def _has_field(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 2)
    name = known(node.arguments[1], scope, "a field's name").value
    return Val(BOOL, name in known(node.arguments[0], scope, "a struct").value)


def _field(node: n.Builtin, scope: Scope) -> Val:
    count(node, scope, 2)
    name = known(node.arguments[1], scope, "a field's name").value
    value: Val = expression(n.Field(node.line, node.arguments[0], name), scope)
    return value


def _get_int(node: n.Builtin, scope: Scope) -> Val:
    """The number of a colour, queue or task."""
    count(node, scope, 1)
    value, kind = expression(node.arguments[0], scope), TYPES["u16"]
    return Val(kind, np.uint16(value.value)) if value.known else Val(kind, code=f"u16({code(value, scope)})")


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
