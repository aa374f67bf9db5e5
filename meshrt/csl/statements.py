"""Statements: done at once where all is known, else written as Python."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.csl import nodes as n
from meshrt.csl.conversions import code, coerce
from meshrt.csl.costs import COSTS
from meshrt.csl.expressions import expression, place, truth, type_of_node
from meshrt.csl.modules import initial_value
from meshrt.csl.operators import binary
from meshrt.csl.places import load, store
from meshrt.csl.scope import Scope
from meshrt.csl.types import BOOL, FLOAT, INT, TYPES, VOID, Array, dtype, is_number, is_word, nbytes
from meshrt.csl.values import Cell, Local, Memory, Val

RANGE = TYPES["range"]


class Returned(Exception):
    """A function that is computed before the run has come to its return."""

    def __init__(self, value: Val):
        self.value = value


class Jumped(Exception):
    def __init__(self, word: str):
        self.word = word


def statement(node: n.Node, scope: Scope) -> None:
    """Do it, or write it. CslError."""
    if scope.writer is not None:
        scope.writer.at = scope.at(node.line)
    handler = HANDLERS.get(type(node))
    if handler is not None:
        handler(node, scope)
        return
    found = expression(node, scope)
    if scope.writer is not None:
        scope.writer.charge()
        if found.code is not None:
            scope.writer.line(found.code)


def _block(node: n.Block, scope: Scope) -> None:
    inner = scope.child()
    for one in node.statements:
        statement(one, inner)


def _write_block(node: n.Node, scope: Scope) -> None:
    """An indented block of Python."""
    writer = scope.writer
    assert writer is not None
    writer.depth += 1
    before = len(writer.body)
    statement(node, scope)
    writer.charge()
    if len(writer.body) == before:
        writer.line("pass")
    writer.depth -= 1


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
            scope.names[node.name] = Val(kind, value.value, value.code, value.spot if isinstance(kind, Array) else None)
        else:
            initial = initial_value(kind) if value is None else value.value
            initial = initial.copy() if isinstance(initial, np.ndarray) else initial
            scope.names[node.name] = Val(kind, initial, spot=Cell(scope.names, node.name))
        return
    if node.kind == "const" and value is not None and value.known and not isinstance(kind, Array):
        scope.names[node.name] = Val(kind, value.value)
        return
    if isinstance(kind, Array) or (node.name in writer.taken and nbytes(kind)):
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
    address = scope.image.allocate(nbytes(kind), node.name, scope.at(node.line))
    spot = Val(kind, spot=Memory(address))
    scope.names[node.name] = spot
    if value is not None:
        store(spot, value, scope, node.line)


def _assign(node: n.Assign, scope: Scope) -> None:
    if isinstance(node.target, n.Name) and node.target.name == "_":
        statement(node.value, scope)
        return
    target = place(node.target, scope)
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
    _write_block(node.then, scope.child())
    if node.otherwise is not None:
        writer.line("else:")
        _write_block(node.otherwise, scope.child())


def _while(node: n.While, scope: Scope) -> None:
    writer = scope.writer
    if writer is None:
        while truth(node.condition, scope).value:
            try:
                statement(node.body, scope.child())
            except Jumped as jump:
                if jump.word == "break":
                    break
            if node.after is not None:
                statement(node.after, scope)
        return
    writer.charge()
    writer.line("while True:")
    writer.depth += 1
    condition = truth(node.condition, scope)
    scope.spend(COSTS.branch)
    writer.charge()
    writer.line(f"if not {code(condition, scope)}: break")
    writer.depth -= 1
    writer.after.append((node.after, scope))
    _write_block(node.body, scope.child())
    writer.after.pop()
    if node.after is not None:
        _write_block(node.after, scope)


def _for(node: n.For, scope: Scope) -> None:
    writer = scope.writer
    over = place(node.over, scope)
    if over.type is RANGE:
        _for_range(node, over, scope)
        return
    over = load(over, scope)
    if not isinstance(over.type, Array):
        raise scope.wrong(node.line, f"for over a {over.type}: there are @range and arrays")
    element, count = over.type.element, over.type.sizes[0]
    if writer is None:
        for at in range(count):
            inner = scope.child()
            found = over.value[at]
            inner.names[node.names[0]] = Val(element, found)
            if len(node.names) > 1:
                inner.names[node.names[1]] = Val(TYPES["i16"], np.int16(at))
            statement(node.body, inner)
        return
    position = writer.name("at")
    writer.charge()
    writer.line(f"for {position} in numbers(i16, 0, {count}, 1):")
    inner = scope.child()
    writer.depth += 1
    scope.spend(COSTS.branch + COSTS.arithmetic)
    if over.value is not None and not isinstance(over.spot, Memory):
        one = Val(element, code=f"{scope.image.constant(over.value)}[{position}]")
    else:
        address = f"{over.spot.address} + int({position}) * {nbytes(element)}"
        one = load(Val(element, spot=Memory(address)), scope)
    name = writer.name(node.names[0])
    writer.charge()
    writer.line(f"{name} = {code(one, scope)}")
    writer.depth -= 1
    inner.names[node.names[0]] = Val(element, code=name)
    if len(node.names) > 1:
        inner.names[node.names[1]] = Val(TYPES["i16"], code=position)
    writer.after.append((None, scope))
    _write_block(node.body, inner)
    writer.after.pop()


def _for_range(node: n.For, over: Val, scope: Scope) -> None:
    kind, begin, end, step = over.value
    writer = scope.writer
    if writer is None:
        for at in range(int(begin.value), int(end.value), int(step.value)):
            inner = scope.child()
            inner.names[node.names[0]] = Val(kind, dtype(kind).type(at) if is_number(kind) else at)
            try:
                statement(node.body, inner)
            except Jumped as jump:
                if jump.word == "break":
                    break
        return
    name = writer.name(node.names[0])
    bounds = ", ".join(str(int(one.value)) if one.known else f"int({one.code})" for one in (begin, end, step))
    writer.charge()
    writer.line(f"for {name} in numbers({kind}, {bounds}):")
    inner = scope.child()
    inner.names[node.names[0]] = Val(kind, code=name)
    scope.spend(COSTS.branch + COSTS.arithmetic)
    writer.after.append((None, scope))
    _write_block(node.body, inner)
    writer.after.pop()


def _switch(node: n.Switch, scope: Scope) -> None:
    value = expression(node.value, scope)
    writer = scope.writer
    if value.known:
        for labels, then in node.cases:
            if not labels or any(binary("==", value, expression(one, scope), scope, node.line).value for one in labels):
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
        tests = [binary("==", tested, expression(one, scope), scope, node.line).code for one in labels]
        writer.cost = 0.0
        writer.line(f"{word} {' or '.join(map(str, tests))}:" if labels else "else:" if word == "elif" else "if True:")
        word = "elif"
        writer.cost = COSTS.branch
        _write_block(then, scope.child())


def _return(node: n.Return, scope: Scope) -> None:
    value = Val(VOID) if node.value is None else expression(node.value, scope)
    writer = scope.writer
    if writer is None:
        raise Returned(value)
    if node.value is None:
        writer.charge()
        writer.line("return")
        return
    value = coerce(value, writer.result, scope, node.line)
    text = code(value, scope)
    writer.charge()
    writer.line(f"return {text}")


def _jump(node: n.Jump, scope: Scope) -> None:
    writer = scope.writer
    if writer is None:
        raise Jumped(node.word)
    if not writer.after:
        raise scope.wrong(node.line, f"{node.word} is in no loop")
    after, outer = writer.after[-1]
    if node.word == "continue" and after is not None:
        statement(after, outer)
    writer.charge()
    writer.line(node.word)


def _comptime(node: n.Comptime, scope: Scope) -> None:
    statement(node.body, scope.known() if scope.writer is not None else scope)


def _nested(node: n.Node, scope: Scope) -> None:
    raise scope.wrong(node.line, "functions stand at the top of a file")


HANDLERS: dict[type, Any] = {
    n.Block: _block, n.Declaration: _declaration, n.Assign: _assign, n.If: _if, n.While: _while, n.For: _for,
    n.Switch: _switch, n.Return: _return, n.Jump: _jump, n.Comptime: _comptime, n.Function: _nested,
}  # fmt: skip

__all__ = ["BOOL", "is_word", "statement"]
