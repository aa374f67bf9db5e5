"""Builtins that work on vectors: operations, what registers are loaded with, @map."""

from __future__ import annotations

from typing import Any

from meshrt.csl.costs import COSTS
from meshrt.csl.language.conversions import code, coerce
from meshrt.csl.language.descriptorbuiltins import number, only
from meshrt.csl.language.expressions import expression, known, lvalue, type_of_node
from meshrt.csl.language.functions import define, function
from meshrt.csl.language.modules import FUNCTION
from meshrt.csl.language.scope import Scope, Writer
from meshrt.csl.language.tilebuiltins import NOTHING, task_number
from meshrt.csl.language.types import DSRS, NATIVE, TYPES, VOID, CslArray, Pointer, dtype, is_dsd, nbytes
from meshrt.csl.language.values import FunctionRef, Val
from meshrt.csl.machine.operations import OPERATIONS, Options
from meshrt.csl.machine.pending import SPACE
from meshrt.csl.machine.vectors import Dsr
from meshrt.csl.syntax import nodes as n


def _options(node: n.Node | None, scope: Scope) -> tuple[Options, Val | None]:
    """.{ .async = true, .activate = id ... }, and .index by itself, which need not be known."""
    if node is None:
        return Options(), None
    fields = expression(node, scope).value
    if not isinstance(fields, dict):
        raise scope.wrong(node.line, "what is said of an operation is a struct, such as .{ .async = true }")
    only(fields, {"async", "activate", "unblock", "ut_id", "save_address", "priority", "index"}, scope, node.line)
    for name, value in fields.items():
        if name != "index" and not value.known:
            raise scope.wrong(node.line, f".{name} has to be known before the run")
    numbers = {
        name: int(task_number(fields[name], scope, node.line).value)
        for name in ("activate", "unblock")
        if name in fields
    }
    options = Options(
        bool(fields["async"].value) if "async" in fields else False, numbers.get("activate"), numbers.get("unblock"),
        int(fields["ut_id"].value) if "ut_id" in fields else None,
        bool(fields["save_address"].value) if "save_address" in fields else False,
    )  # fmt: skip
    return options, fields.get("index")


def _load_to_dsr(node: n.Builtin, scope: Scope) -> Val:
    dsr = known(node.arguments[0], scope, "a register").value
    dsd = expression(node.arguments[1], scope)
    if not isinstance(dsr, Dsr) or not is_dsd(dsd.type):
        raise scope.wrong(node.line, "@load_to_dsr takes a register and a descriptor")
    options, _ = _options(node.arguments[2] if len(node.arguments) > 2 else None, scope)
    if scope.writer is None:
        scope.image.dsrs[dsr.kind, dsr.index] = (dsd.value, options)
        return NOTHING
    scope.spend(COSTS.load_dsr)
    text = f"({code(dsd, scope)}, {scope.image.constant(options)})"
    scope.writer.charge()
    scope.writer.line(f"c.dsrs[{dsr.kind!r}, {dsr.index}] = {text}")
    return NOTHING


def _operation(name: str) -> Any:
    of = OPERATIONS[name]

    def builtin(node: n.Builtin, scope: Scope) -> Val:
        count = of.inputs + 1
        if len(node.arguments) not in (count, count + 1):
            raise scope.wrong(node.line, f"{node.name} takes {count} operands, here are {len(node.arguments)}")
        if scope.writer is None:
            raise scope.wrong(node.line, f"{node.name} is done in the run, not before it")
        options, index = _options(node.arguments[count] if len(node.arguments) > count else None, scope)
        operands = []
        for at, argument in enumerate(node.arguments[:count]):
            operands.append(_operand(expression(argument, scope), at, name, scope, argument.line))
        writer = scope.writer
        written = [code(operand, scope) for operand in operands]
        if index is not None:
            written = [f"indexed({text}, {code(index, scope)})" for text in written]
        texts = ", ".join(written)
        _prepare(scope)
        writer.charge()
        waited = writer.name("wait")
        writer.line(f"{waited} = start(c, {scope.image.constant(of)}, ({texts},), {scope.image.constant(options)})")
        writer.line(f"if {waited} is not None: yield {waited}")
        return NOTHING

    return builtin


def _prepare(scope: Scope) -> None:
    if "start" not in scope.image.space:
        scope.image.space.update(SPACE)


def _operand(operand: Val, at: int, name: str, scope: Scope, line: int) -> Val:
    of = OPERATIONS[name]
    if (
        is_dsd(operand.type)
        or operand.type.__class__ is Dsr
        or (hasattr(operand.type, "name") and operand.type.name in DSRS)
    ):
        return operand
    if isinstance(operand.type, Pointer):
        element = operand.type.to.element if isinstance(operand.type.to, CslArray) else operand.type.to
        text = f"Mem({number(operand)}, {nbytes(element)}, (), (), {dtype(element).str[1:]!r})"
        return Val(TYPES["mem1d_dsd"], code=text)
    if at == 0:
        raise scope.wrong(line, f"@{name} to a {operand.type}: a vector or a pointer takes the result")
    kind = TYPES[of.scalar] if of.scalar is not None else None
    if kind is None or operand.type == kind:
        return operand
    if operand.type.__class__ is type(kind) and nbytes(operand.type) == nbytes(kind) and of.raw:
        return operand
    return coerce(operand, kind, scope, line)


def _map(node: n.Builtin, scope: Scope) -> Val:
    """@map(f, in.., out): f of each element."""

    assert scope.writer is not None
    callee = lvalue(node.arguments[0], scope)
    arguments = [expression(argument, scope) for argument in node.arguments[1:]]
    image = scope.image
    if callee.type is NATIVE:
        kind = TYPES["f16" if callee.value.name.endswith("f16") else "f32"]
        writer = Writer(image, kind, at=scope.at(node.line))
        inner = Scope(scope.module, writer=writer)
        names = [writer.name("x") for _ in arguments[:-1]]
        value = callee.value.call(inner, [Val(kind, code=name) for name in names], node.line)
        text = code(value, inner)
        writer.charge()
        writer.line(f"return {text}")
        python = f"f{len(image.functions)}_{callee.value.name}"
        image.functions[python] = python
        define(image, python, names, writer)
        kinds, result = [kind] * len(names), kind
    elif callee.type is FUNCTION and isinstance(callee.value, FunctionRef):
        ref = callee.value
        inner = Scope(ref.module)
        kinds = [type_of_node(kind, inner) for _, kind, _ in ref.node.parameters]
        result = VOID if ref.node.result is None else type_of_node(ref.node.result, inner)
        arguments = [
            coerce(argument, kind, scope, node.line) if not is_dsd(argument.type) else argument
            for argument, kind in zip(arguments, kinds, strict=False)
        ] + arguments[len(kinds) :]
        python = function(ref, image, [])
    else:
        raise scope.wrong(node.line, f"@map of a {callee.type}: a function is asked for")
    if len(arguments) != len(kinds) + (result is not VOID):
        raise scope.wrong(
            node.line, f"@map of a function of {len(kinds)} parameters: {len(arguments)} operands do not fit"
        )
    out = "None"
    if result is not VOID:
        target = arguments.pop()
        out = code(_operand(target, 0, "fmovs", scope, node.line), scope)
    _prepare(scope)
    texts = ", ".join(code(argument, scope) for argument in arguments)
    scope.writer.charge()
    # elements are of the function's types: a descriptor may be of another, if it was made before its memory was known
    types = [dtype(kind).str[1:] if nbytes(kind) else "" for kind in (*kinds, result)]
    scope.writer.line(f"yield from map_over(c, {python}, ({texts},), {out}, {scope.image.constant(types)})")
    return NOTHING


BUILTINS: dict[str, Any] = {
    "@load_to_dsr": _load_to_dsr, "@map": _map, **{f"@{name}": _operation(name) for name in OPERATIONS},
}  # fmt: skip
