"""Statements: done at once where all is known, else written as Python."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.csl.costs import COSTS
from meshrt.csl.language import loops
from meshrt.csl.language.conversions import code, coerce
from meshrt.csl.language.expressions import expression, lvalue, truth, type_of_node
from meshrt.csl.language.lvalues import load, store
from meshrt.csl.language.modules import alignment, initial_value
from meshrt.csl.language.operators import binary
from meshrt.csl.language.scope import Scope
from meshrt.csl.language.types import FLOAT, INT, VOID, CslArray, nbytes
from meshrt.csl.language.values import Local, MemoryAddress, StaticVariable, Val
from meshrt.csl.syntax import nodes as n


class Returned(Exception):
    """A function that is computed before the run has come to its return."""

    def __init__(self, value: Val):
        self.value = value


def statement(node: n.Node, scope: Scope) -> None:
    """Do it, or write it. CslError."""
    if scope.writer is not None:
        scope.writer.at = scope.at(node.line)
    handler = HANDLERS.get(type(node))
    if handler is not None:
        handler(node, scope)
        return
    value = expression(node, scope)
    if scope.writer is not None:
        scope.writer.charge()
        if value.code is not None:
            scope.writer.line(value.code)


def _block(node: n.Block, scope: Scope) -> None:
    inner = scope.child()
    for part in node.statements:
        statement(part, inner)


def _declaration(node: n.Declaration, scope: Scope) -> None:
    kind = None if node.type is None else type_of_node(node.type, scope)
    value = None if node.value is None else expression(node.value, scope)
    if value is not None and kind is not None:
        value = coerce(value, kind, scope, node.line)
    kind = kind if value is None else value.type
    writer = scope.writer
    if writer is None:
        if node.kind == "const":
            assert value is not None
            scope.names[node.name] = Val(
                kind, value.value, value.code, value.spot if isinstance(kind, CslArray) else None
            )
        else:
            initial = initial_value(kind) if value is None else value.value
            initial = initial.copy() if isinstance(initial, np.ndarray) else initial
            scope.names[node.name] = Val(kind, initial, spot=StaticVariable(scope.names, node.name))
        return
    if node.kind == "const" and value is not None and value.known and not isinstance(kind, CslArray):
        scope.names[node.name] = Val(kind, value.value)
        return
    if isinstance(kind, CslArray) or (node.name in writer.taken and nbytes(kind)):
        _stack(node, kind, value, scope)
        return
    if kind in (INT, FLOAT):
        raise scope.wrong(node.line, f"var {node.name} has no type: a number alone does not say how wide it is")
    name = writer.name(node.name)
    writer.charge()
    if value is None:
        value = Val(kind, initial_value(kind))
    writer.line(f"{name} = {code(value, scope)}")
    scope.names[node.name] = Val(kind, code=name, spot=Local(name))


def _stack(node: n.Declaration, kind: Any, value: Val | None, scope: Scope) -> None:
    """A local array, or a local whose address is taken: at one address, as functions do not call themselves in it."""
    address = scope.image.allocate(nbytes(kind), node.name, scope.at(node.line), alignment(node, kind, scope))
    spot = Val(kind, spot=MemoryAddress(address))
    scope.names[node.name] = spot
    if value is not None:
        store(spot, value, scope, node.line)


def _assign(node: n.Assign, scope: Scope) -> None:
    if isinstance(node.target, n.Name) and node.target.name == "_":
        statement(node.value, scope)
        return
    target = lvalue(node.target, scope)
    if target.spot is None:
        raise scope.wrong(node.line, "this is const: it cannot be assigned to")
    value = expression(node.value, scope)
    if node.op:
        value = binary(node.op, load(target, scope), value, scope, node.line)
    store(target, coerce(value, target.type, scope, node.line), scope, node.line)


def _if(node: n.If, scope: Scope) -> None:
    condition = truth(node.condition, scope)
    if condition.known:
        if condition.value:
            statement(node.then, scope.child())
        elif node.otherwise is not None:
            statement(node.otherwise, scope.child())
        return
    writer = scope.writer
    assert writer is not None
    scope.spend(COSTS.branch)
    writer.charge()
    writer.line(f"if {condition.code}:")
    with writer.block():
        statement(node.then, scope.child())
    if node.otherwise is not None:
        writer.line("else:")
        with writer.block():
            statement(node.otherwise, scope.child())


def _switch(node: n.Switch, scope: Scope) -> None:
    value = expression(node.value, scope)
    writer = scope.writer
    if value.known:
        for labels, then in node.cases:
            if not labels or any(
                binary("==", value, expression(label, scope), scope, node.line).value for label in labels
            ):
                statement(then, scope.child())
                return
        return
    assert writer is not None
    name = writer.name("switched")
    writer.charge()
    writer.line(f"{name} = {code(value, scope)}")
    tested = Val(value.type, code=name)
    word = "if"
    for labels, then in node.cases:
        tests = [binary("==", tested, expression(label, scope), scope, node.line).code for label in labels]
        writer.cost = 0.0
        writer.line(f"{word} {' or '.join(map(str, tests))}:" if labels else "else:" if word == "elif" else "if True:")
        word = "elif"
        writer.cost = COSTS.branch
        with writer.block():
            statement(then, scope.child())


def _return(node: n.Return, scope: Scope) -> None:
    value = Val(VOID) if node.value is None else expression(node.value, scope)
    writer = scope.writer
    if writer is None:
        raise Returned(value)
    if node.value is None:
        if writer.result is not VOID:
            raise scope.wrong(node.line, f"return without a value: the function's type is {writer.result}")
        writer.charge()
        writer.line("return")
        return
    value = coerce(value, writer.result, scope, node.line)
    text = code(value, scope)
    writer.charge()
    writer.line(f"return {text}")


def _comptime(node: n.Comptime, scope: Scope) -> None:
    statement(node.body, scope.known() if scope.writer is not None else scope)


def _nested(node: n.Node, scope: Scope) -> None:
    raise scope.wrong(node.line, "functions stand at the top of a file")


HANDLERS: dict[type, Any] = {
    n.Block: _block, n.Declaration: _declaration, n.Assign: _assign, n.If: _if, n.Switch: _switch, n.Return: _return,
    n.Comptime: _comptime, n.Function: _nested, **loops.HANDLERS,
}  # fmt: skip
