"""Loops: run through at once where all is known, else written as Python's."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.csl.costs import COSTS
from meshrt.csl.language.conversions import code
from meshrt.csl.language.expressions import lvalue, truth
from meshrt.csl.language.lvalues import load
from meshrt.csl.language.scope import Scope
from meshrt.csl.language.types import TYPES, CslArray, dtype, is_number, nbytes
from meshrt.csl.language.values import MemoryAddress, Val
from meshrt.csl.syntax import nodes as n

RANGE = TYPES["range"]


class Jumped(Exception):
    """A loop that is run before the run has come to break or continue."""

    def __init__(self, word: str):
        self.word = word


def _while(node: n.While, scope: Scope) -> None:
    writer = scope.writer
    if writer is None:
        while truth(node.condition, scope).value:
            try:
                scope.language.statement(node.body, scope.child())
            except Jumped as jump:
                if jump.word == "break":
                    break
            if node.after is not None:
                scope.language.statement(node.after, scope)
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
    with writer.block():
        scope.language.statement(node.body, scope.child())
    writer.after.pop()
    if node.after is not None:
        with writer.block():
            scope.language.statement(node.after, scope)


def _for(node: n.For, scope: Scope) -> None:
    writer = scope.writer
    over = lvalue(node.over, scope)
    if over.type is RANGE:
        _for_range(node, over, scope)
        return
    over = load(over, scope)
    if not isinstance(over.type, CslArray):
        raise scope.wrong(node.line, f"for over a {over.type}: there are @range and arrays")
    element, count = over.type.element, over.type.sizes[0]
    if writer is None:
        for at in range(count):
            inner = scope.child()
            value = over.value[at]
            inner.names[node.names[0]] = Val(element, value)
            if len(node.names) > 1:
                inner.names[node.names[1]] = Val(TYPES["i16"], np.int16(at))
            scope.language.statement(node.body, inner)
        return
    position = writer.name("at")
    writer.charge()
    writer.line(f"for {position} in numbers(i16, 0, {count}, 1):")
    inner = scope.child()
    writer.depth += 1
    scope.spend(COSTS.branch + COSTS.arithmetic)
    if over.value is not None and not isinstance(over.spot, MemoryAddress):
        item = Val(element, code=f"{scope.image.constant(over.value)}[{position}]")
    else:
        address = f"{over.spot.address} + int({position}) * {nbytes(element)}"
        item = load(Val(element, spot=MemoryAddress(address)), scope)
    name = writer.name(node.names[0])
    writer.charge()
    writer.line(f"{name} = {code(item, scope)}")
    writer.depth -= 1
    inner.names[node.names[0]] = Val(element, code=name)
    if len(node.names) > 1:
        inner.names[node.names[1]] = Val(TYPES["i16"], code=position)
    writer.after.append((None, scope))
    with writer.block():
        scope.language.statement(node.body, inner)
    writer.after.pop()


def _for_range(node: n.For, over: Val, scope: Scope) -> None:
    kind, begin, end, step = over.value
    writer = scope.writer
    if writer is None:
        for at in range(int(begin.value), int(end.value), int(step.value)):
            inner = scope.child()
            inner.names[node.names[0]] = Val(kind, dtype(kind).type(at) if is_number(kind) else at)
            try:
                scope.language.statement(node.body, inner)
            except Jumped as jump:
                if jump.word == "break":
                    break
        return
    name = writer.name(node.names[0])
    bounds = ", ".join(str(int(bound.value)) if bound.known else f"int({bound.code})" for bound in (begin, end, step))
    writer.charge()
    writer.line(f"for {name} in numbers({kind}, {bounds}):")
    inner = scope.child()
    inner.names[node.names[0]] = Val(kind, code=name)
    scope.spend(COSTS.branch + COSTS.arithmetic)
    writer.after.append((None, scope))
    with writer.block():
        scope.language.statement(node.body, inner)
    writer.after.pop()


def _jump(node: n.Jump, scope: Scope) -> None:
    writer = scope.writer
    if writer is None:
        raise Jumped(node.word)
    if not writer.after:
        raise scope.wrong(node.line, f"{node.word} is in no loop")
    after, outer = writer.after[-1]
    if node.word == "continue" and after is not None:
        scope.language.statement(after, outer)
    writer.charge()
    writer.line(node.word)


HANDLERS: dict[type, Any] = {n.While: _while, n.For: _for, n.Jump: _jump}
