"""Expressions: to a value where all is known, else to the Python that computes it."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.csl.costs import COSTS
from meshrt.csl.errors import unknown
from meshrt.csl.language.conversions import code, coerce
from meshrt.csl.language.lvalues import address, element, load, member, named, pointed
from meshrt.csl.language.operators import binary, peers, unary
from meshrt.csl.language.scope import Scope
from meshrt.csl.language.types import (
    BOOL,
    NATIVE,
    STRUCT,
    TYPE,
    TYPES,
    VOID,
    Callable,
    CslArray,
    Enum,
    Pointer,
    dtype,
    is_int,
    nbytes,
)
from meshrt.csl.language.values import Val
from meshrt.csl.syntax import nodes as n


def expression(node: n.Node, scope: Scope) -> Val:
    """What a node comes to. CslError."""
    value: Val = HANDLERS[type(node)](node, scope)
    return value


def known(node: n.Node, scope: Scope, role: str) -> Val:
    """The value of what has to be known before the run. CslError."""
    value = expression(node, scope if scope.writer is None else scope.known())
    if not value.known:
        raise scope.wrong(node.line, f"{role} has to be known before the run")
    return value


def type_of_node(node: n.Node, scope: Scope) -> Any:
    """The type that a node names. CslError."""
    value = known(node, scope, "a type")
    if value.type is not TYPE:
        raise scope.wrong(node.line, f"a type is missing: this is a {value.type}")
    return value.value


def truth(node: n.Node, scope: Scope) -> Val:
    condition = expression(node, scope)
    if condition.type != BOOL:
        raise scope.wrong(node.line, f"a bool is missing: this is a {condition.type}")
    return condition


# Names and where they lie


def lvalue(node: n.Node, scope: Scope) -> Val:
    """A value with where it lies, not yet read. CslError."""
    if isinstance(node, n.Name):
        return named(node.name, scope, node.line)
    if isinstance(node, n.Index):
        array = lvalue(node.array, scope)
        array = load(array, scope) if isinstance(array.type, Pointer) else array
        return element(array, [expression(index, scope) for index in node.indices], scope, node.line)
    if isinstance(node, n.Deref):
        return pointed(expression(node.pointer, scope), scope, node.line)
    if isinstance(node, n.Field):
        return member(expression(node.owner, scope), node.name, scope, node.line)
    return expression(node, scope)


def _loaded(node: n.Node, scope: Scope) -> Val:
    return load(lvalue(node, scope), scope)


# Operators


def _literal(node: n.Literal, scope: Scope) -> Val:
    return Val(TYPES[node.type], node.value)


def _unary(node: n.Unary, scope: Scope) -> Val:
    if node.op == "&":
        return address(lvalue(node.operand, scope), scope, node.line)
    return unary(node.op, expression(node.operand, scope), scope, node.line)


def _binary(node: n.Binary, scope: Scope) -> Val:
    if node.op in ("and", "or"):
        return _logical(node, scope)
    a = expression(node.left, scope)
    b = expression(node.right, scope)
    return binary(node.op, a, b, scope, node.line)


def _logical(node: n.Binary, scope: Scope) -> Val:
    a = truth(node.left, scope)
    if a.known:
        if bool(a.value) == (node.op == "or"):
            return a
        return truth(node.right, scope)
    b = truth(node.right, scope)
    scope.spend(COSTS.branch)
    return Val(BOOL, code=f"({a.code} {node.op} {code(b, scope)})")


def _choice(node: n.Choice, scope: Scope) -> Val:
    condition = truth(node.condition, scope)
    if condition.known:
        if condition.value:
            return expression(node.then, scope)
        return Val(VOID) if node.otherwise is None else expression(node.otherwise, scope)
    if node.otherwise is None:
        raise scope.wrong(node.line, "this if has no else, and so no value")
    a, b = expression(node.then, scope), expression(node.otherwise, scope)
    a, b = peers(a, b, scope, node.line, "if") if a.type != b.type else (a, b)
    scope.spend(COSTS.branch)
    return Val(a.type, code=f"({code(a, scope)} if {condition.code} else {code(b, scope)})")


def _switch(node: n.Switch, scope: Scope) -> Val:
    value = expression(node.value, scope)
    if not value.known:
        raise scope.wrong(node.line, "switch as a value has to be known before the run")
    for labels, then in node.cases:
        if not labels or any(binary("==", value, expression(label, scope), scope, node.line).value for label in labels):
            return expression(then, scope)
    raise scope.wrong(node.line, "no case of this switch fits")


# Aggregates and types


def _struct(node: n.Struct, scope: Scope) -> Val:
    return Val(STRUCT, {name: expression(field, scope) for name, field in node.fields})


def _items(node: n.Items, scope: Scope) -> Val:
    kind = type_of_node(node.type, scope)
    if kind.count != len(node.items):
        raise scope.wrong(node.line, f"{len(node.items)} values for {kind}")
    values = [coerce(expression(item, scope), kind.element, scope, item.line) for item in node.items]
    if not all(value.known for value in values):
        return Val(kind, code="[" + ", ".join(code(value, scope) for value in values) + "]")
    if nbytes(kind.element):
        return Val(kind, np.array([value.value for value in values], dtype(kind.element)).reshape(kind.sizes))
    array = np.empty(len(values), object)
    for at, value in enumerate(values):
        array[at] = value.value
    return Val(kind, array.reshape(kind.sizes))


def _array_type(node: n.ArrayType, scope: Scope) -> Val:
    sizes = []
    for part in node.sizes:
        size = known(part, scope, "an array's size")
        if not is_int(size.type) or int(size.value) < 0:
            raise scope.wrong(node.line, f"an array of {size.value}: its sizes are whole numbers, 0 or more")
        sizes.append(int(size.value))
    return Val(TYPE, CslArray(tuple(sizes), type_of_node(node.element, scope)))


def _pointer_type(node: n.PointerType, scope: Scope) -> Val:
    return Val(TYPE, Pointer(type_of_node(node.element, scope), node.many))


def _function_type(node: n.FunctionType, scope: Scope) -> Val:
    parameters = tuple(type_of_node(parameter, scope) for parameter in node.parameters)
    return Val(TYPE, Callable(parameters, type_of_node(node.result, scope)))


def _enum_type(node: n.EnumType, scope: Scope) -> Val:
    members: list[tuple[str, int]] = []
    for name, value in node.members:
        after = members[-1][1] + 1 if members else 0
        members.append((name, after if value is None else int(known(value, scope, "a member").value)))
    return Val(TYPE, Enum(tuple(members)))


def _comptime(node: n.Comptime, scope: Scope) -> Val:
    return known(node.body, scope, "what comptime says")


# Calls


def _call(node: n.Call, scope: Scope) -> Val:
    callee = lvalue(node.callee, scope)
    arguments = [expression(argument, scope) for argument in node.arguments]
    if callee.type is NATIVE:
        result: Val = callee.value.call(scope, arguments, node.line)
        return result
    callee = load(callee, scope)
    if not isinstance(callee.type, Callable):
        raise scope.wrong(node.line, f"a call of a {callee.type}, which is no function")
    called: Val = scope.language.call(callee, arguments, scope, node.line)
    return called


def _builtin(node: n.Builtin, scope: Scope) -> Val:
    builtins = scope.language.builtins
    if node.name not in builtins:
        raise unknown(scope.at(node.line), "builtin", node.name, builtins)
    value: Val = builtins[node.name](node, scope)
    return value


def _access(node: n.Access, scope: Scope) -> Val:
    return Val(TYPES["access"], (node, scope))


HANDLERS: dict[type, Any] = {
    n.Literal: _literal, n.Name: _loaded, n.Struct: _struct, n.Items: _items, n.Unary: _unary, n.Binary: _binary,
    n.Call: _call, n.Builtin: _builtin, n.Field: _loaded, n.Deref: _loaded, n.Index: _loaded, n.Choice: _choice,
    n.ArrayType: _array_type, n.PointerType: _pointer_type, n.FunctionType: _function_type, n.EnumType: _enum_type,
    n.Comptime: _comptime, n.Switch: _switch, n.Access: _access,
}  # fmt: skip
