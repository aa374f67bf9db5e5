"""Functions and tasks: computed before the run, or written as Python generators that wait at the fabric."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from meshrt.csl.costs import COSTS
from meshrt.csl.language.arithmetic import bitcast, convert, divide, place_of, remainder
from meshrt.csl.language.conversions import code, coerce
from meshrt.csl.language.expressions import expression, type_of_node
from meshrt.csl.language.lvalues import store
from meshrt.csl.language.modules import FUNCTION, natural_alignment
from meshrt.csl.language.scope import Scope, Writer
from meshrt.csl.language.statements import Returned, statement
from meshrt.csl.language.types import BOOL, FLOAT, INT, NUMBERS, STRING, STRUCT, TYPE, TYPES, VOID, Callable, nbytes
from meshrt.csl.language.values import FunctionRef, MemoryAddress, Val
from meshrt.csl.syntax import nodes as n

BEFORE = (TYPE, STRUCT, STRING, INT, FLOAT)  # of values that live before the run only


def call(callee: Val, arguments: list[Val], scope: Scope, line: int) -> Val:
    """A call of a function of the program. CslError."""
    if not callee.known:
        scope.spend(COSTS.call)
        pairs = zip(arguments, callee.type.parameters, strict=True)
        text = "".join(f", {code(coerce(argument, kind, scope, line), scope)}" for argument, kind in pairs)
        return Val(callee.type.result, code=f"(yield from {callee.code}(c{text}))")
    ref = callee.value
    node, inner = ref.node, Scope(ref.module)
    if len(arguments) != len(node.parameters):
        raise scope.wrong(line, f"{node.name} takes {len(node.parameters)} arguments, here are {len(arguments)}")
    bound: list[tuple[str, Val]] = []
    before: list[tuple[str, Any]] = []
    run: list[Val] = []
    for (name, kind_node, is_known), argument in zip(node.parameters, arguments, strict=True):
        kind = type_of_node(kind_node, inner)
        given = coerce(argument, kind, scope, line)
        bound.append((name, given))
        if is_known or kind in BEFORE or isinstance(kind, Callable):
            if not given.known:
                raise scope.wrong(line, f"{name} of {node.name} has to be known before the run")
            inner.names[name] = given
            before.append((name, given))
        else:
            run.append(given)
    result = VOID if node.result is None else type_of_node(node.result, inner)
    if scope.writer is None or result in BEFORE:
        return _compute(ref, bound, result, scope, line)
    name = function(ref, scope.image, before)
    scope.spend(COSTS.call)
    text = "".join(f", {code(argument, scope)}" for argument in run)
    return Val(result, code=f"(yield from {name}(c{text}))")


def _compute(ref: FunctionRef, bound: list[tuple[str, Val]], result: Any, scope: Scope, line: int) -> Val:
    """What a function returns, before the run."""
    inner = Scope(ref.module)
    for name, value in bound:
        if not value.known:
            raise scope.wrong(line, f"{name} of {ref.node.name} has to be known before the run")
        inner.names[name] = Val(value.type, value.value)
    try:
        statement(ref.node.body, inner)
    except Returned as returned:
        value = coerce(returned.value, result, inner, ref.node.line)
        return Val(value.type, value.value, value.code)
    if result is not VOID:
        raise scope.wrong(ref.node.line, lacking(ref.node.name, result))
    return Val(VOID)


def lacking(name: str, result: Any) -> str:
    """What is wrong with a function of that type whose end was reached without a return."""
    return f"{name} has ended without a value, and its type is {result}: return one on every way through it"


def function(ref: FunctionRef, image: Any, before: list[tuple[str, Any]]) -> str:
    """The name of a function's Python in an image; written when it is first asked for."""
    node = ref.node
    key = (id(ref.module), node, tuple((name, _key(value)) for name, value in before))
    if key in image.functions:
        return str(image.functions[key])
    python = f"f{len(image.functions)}_{node.name}"
    image.functions[key] = python
    scope = Scope(ref.module)
    for name, value in before:
        scope.names[name] = value
    result = VOID if node.result is None else type_of_node(node.result, scope)
    writer = Writer(image, result, at=scope.at(node.line), taken=_taken(node.body))
    scope.writer = writer
    arguments = []
    for name, kind_node, _ in node.parameters:
        if name in scope.names:
            continue
        kind = type_of_node(kind_node, scope.known())
        argument = writer.name(name)
        arguments.append(argument)
        given = Val(kind, code=argument)
        if name in writer.taken and nbytes(kind):
            address = image.allocate(nbytes(kind), name, scope.at(node.line), natural_alignment(kind))
            spot = Val(kind, spot=MemoryAddress(address))
            store(spot, given, scope, node.line)
            scope.names[name] = spot
        else:
            scope.names[name] = given
    statement(node.body, scope)
    writer.charge()
    define(image, python, arguments, writer)
    return python


def define(image: Any, python: str, arguments: list[str], writer: Writer) -> None:
    """Compile what was written, as a generator, and keep where its lines are from."""
    text = "\n".join(writer.body)
    used = [name for name in VIEWS if f"{name}[" in text]
    head = [f"def {python}(c{''.join(f', {arg}' for arg in arguments)}):", *(f"    {name} = c.{name}" for name in used)]
    if "o[" in text:
        head.append("    o = c.o")
    wrong = lacking(python.partition("_")[2], writer.result)
    end = "return" if writer.result is VOID else f"raise ArithmeticError({wrong!r})"
    source = "\n".join([*head, *writer.body, f"    {end}", "    yield"])
    if not image.space.get("convert"):
        image.space.update(SPACE)
    exec(compile(source, f"<{python}>", "exec"), image.space)
    image.sources[python] = source
    image.lines[python] = (
        [writer.locations[0] if writer.locations else writer.at] * len(head) + writer.locations + [writer.at] * 2
    )


def _key(item: Any) -> Any:
    """By what two known values are the same."""
    value = item.value if isinstance(item, Val) else item
    if isinstance(value, dict):
        return tuple((name, _key(part)) for name, part in value.items())
    if isinstance(value, np.ndarray):
        return (
            value.shape,
            value.dtype.str,
            value.tobytes() if value.dtype != object else tuple(map(_key, value.flat)),
        )
    if isinstance(value, FunctionRef):
        return (id(value.module), value.node)
    if isinstance(value, float | np.floating):
        return (type(value).__name__, repr(value))
    return (str(getattr(item, "type", "")), value)


def same(parameters: dict[str, Val]) -> Any:
    """A key that parameters of equal values share."""
    return tuple((name, _key(value)) for name, value in sorted(parameters.items()))


def _taken(node: Any) -> frozenset[str]:
    """Names in a function whose address is taken."""
    names: set[str] = set()

    def walk(tree: Any) -> None:
        if isinstance(tree, tuple):
            for part in tree:
                walk(part)
        elif isinstance(tree, n.Node) and is_dataclass(tree):
            if isinstance(tree, n.Unary) and tree.op == "&" and isinstance(tree.operand, n.Name):
                names.add(tree.operand.name)
            for part in fields(tree):
                walk(getattr(tree, part.name))

    walk(node)
    return frozenset(names)


def function_of(core: Any, ref: FunctionRef) -> Any:
    """The Python of a function that is held as a value."""
    return core.image.space[function(ref, core.image, [])]


def numbers(kind: Any, begin: int, end: int, step: int) -> Any:
    """The numbers of @range, of its type. ArithmeticError."""
    if not step:
        raise ArithmeticError(f"@range from {begin} to {end} in steps of 0 has no end")
    return np.arange(begin, end, step).astype(kind)


VIEWS = [f"m_{np.dtype(kind).name}" for kind in ("i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4")]
SPACE: dict[str, Any] = {
    **NUMBERS, "convert": convert, "divide": divide, "remainder": remainder, "bitcast": bitcast, "numbers": numbers,
    "place_of": place_of, "FunctionOf": function_of,
}  # fmt: skip
__all__ = ["BOOL", "FUNCTION", "TYPES", "expression"]
