"""Expressions and types as trees: recursive descent, one function a rule. Statements: parser."""

from __future__ import annotations

from collections.abc import Callable

from meshrt.csl.syntax import nodes as n
from meshrt.csl.syntax.reader import TokenReader

BINARY = [
    ["or"], ["and"], ["==", "!=", "<", ">", "<=", ">="], ["|"], ["^"], ["&"], ["<<", ">>"], ["+", "-"], ["*", "/", "%"],
]  # fmt: skip


def expression(r: TokenReader, level: int = 0) -> n.Node:
    """Of operators that bind as BINARY[level] or closer."""
    if level == len(BINARY):
        return _unary(r)
    left = expression(r, level + 1)
    ops = BINARY[level]
    while r.token.text in ops and r.token.kind in ("op", "name"):
        token = r.next()
        left = n.Binary(token.line, token.text, left, expression(r, level + 1))
    return left


def parenthesized(r: TokenReader, of: str) -> n.Node:
    """An expression and the parentheses around it; `of` is what they belong to."""
    r.want("(", of)
    node = expression(r)
    r.want(")", of)
    return node


def _unary(r: TokenReader) -> n.Node:
    token = r.token
    if token.kind == "op" and token.text in ("-", "!", "~", "&"):
        r.next()
        return n.Unary(token.line, token.text, _unary(r))
    if token.text == "comptime" and token.kind == "name":
        r.next()
        return n.Comptime(token.line, _unary(r))
    return _postfix(r)


def _arguments(r: TokenReader, end: str, of: str) -> tuple[n.Node, ...]:
    arguments: list[n.Node] = []
    while not r.take(end):
        arguments.append(expression(r))
        if not r.has(end):
            r.want(",", of)
    return tuple(arguments)


def _postfix(r: TokenReader) -> n.Node:
    node = _primary(r)
    while r.token.kind == "op":
        line = r.token.line
        if r.take("("):
            node = n.Call(line, node, _arguments(r, ")", "a call"))
        elif r.take("["):
            node = n.Index(line, node, _arguments(r, "]", "an index"))
        elif r.take(".*"):
            node = n.Deref(line, node)
        elif r.has(".") and r.peek().kind in ("name", "int"):
            r.next()
            node = n.Field(line, node, r.next().text)
        else:
            break
    return node


def _primary(r: TokenReader) -> n.Node:
    token = r.token
    line, text = token.line, token.text
    if token.kind == "int":
        r.next()
        return n.Literal(line, "comptime_int", int(text.replace("_", ""), 0))
    if token.kind == "float":
        r.next()
        plain = text.replace("_", "")
        return n.Literal(line, "comptime_float", float.fromhex(plain) if plain.startswith("0x") else float(plain))
    if token.kind == "string":
        r.next()
        return n.Literal(line, "comptime_string", text[1:-1].encode().decode("unicode_escape"))
    if token.kind == "char":
        r.next()
        return n.Literal(line, "comptime_int", ord(text[1:-1].encode().decode("unicode_escape")))
    if token.kind == "builtin":
        r.next()
        r.want("(", text)
        return n.Builtin(line, text, _arguments(r, ")", text))
    if token.kind == "name":
        if text in ("true", "false"):
            r.next()
            return n.Literal(line, "bool", text == "true")
        if text == "if":
            return _choice(r)
        if text == "switch":
            return switch(r, expression)
        if text in ("fn", "task"):
            return type_of(r)
        if text == "enum":
            return _enum(r)
        r.next()
        return n.Name(line, text)
    if text == "(":
        return parenthesized(r, "an expression in parentheses")
    if text == ".{":
        r.next()
        return _struct(r, line)
    if text == "|":
        return _access(r)
    if text in ("[", "*"):
        kind = type_of(r)
        if isinstance(kind, n.ArrayType) and r.take("{"):
            return n.Items(line, kind, _arguments(r, "}", "an array's numbers"))
        return kind
    if text == "{" and r.peek().text == "}":
        r.next()
        r.next()
        return n.Literal(line, "void", None)
    if text == "." and r.peek().kind == "name":
        r.next()
        return n.Literal(line, "member", r.next().text)
    raise r.wrong(f"an expression is missing, there is {text!r}")


def switch(r: TokenReader, done: Callable[[TokenReader], n.Node]) -> n.Node:
    """A switch whose cases are read by `done`."""
    line = r.next().line
    value = parenthesized(r, "switch")
    r.want("{", "switch")
    cases: list[tuple[tuple[n.Node, ...], n.Node]] = []
    while not r.take("}"):
        labels: list[n.Node] = []
        if not r.take("else"):
            labels.append(expression(r))
            while r.take(","):
                if r.has("=>"):
                    break
                labels.append(expression(r))
        r.want("=>", "switch")
        cases.append((tuple(labels), done(r)))
        if not r.has("}"):
            r.want(",", "switch")
    return n.Switch(line, value, tuple(cases))


def _choice(r: TokenReader) -> n.Node:
    line = r.next().line
    condition = parenthesized(r, "if")
    then = expression(r)
    otherwise = expression(r) if r.take("else") else None
    return n.Choice(line, condition, then, otherwise)


def _struct(r: TokenReader, line: int) -> n.Node:
    fields: list[tuple[str, n.Node]] = []
    while not r.take("}"):
        if r.has(".") and r.peek().kind == "name" and r.peek(2).text == "=":
            r.next()
            name = r.next().text
            r.next()
        else:
            name = str(len(fields))
        fields.append((name, expression(r)))
        if not r.has("}"):
            r.want(",", "a struct")
    return n.Struct(line, tuple(fields))


def _access(r: TokenReader) -> n.Node:
    line = r.next().line
    names = [r.name("tensor_access")]
    while r.take(","):
        names.append(r.name("tensor_access"))
    r.want("|", "tensor_access")
    r.want("{", "tensor_access")
    extents = _arguments(r, "}", "tensor_access")
    r.want("->", "tensor_access")
    return n.Access(line, tuple(names), extents, expression(r))


def _enum(r: TokenReader) -> n.Node:
    line = r.next().line
    base = None
    if r.take("("):
        base = type_of(r)
        r.want(")", "enum")
    r.want("{", "enum")
    members: list[tuple[str, n.Node | None]] = []
    while not r.take("}"):
        name = r.name("enum")
        members.append((name, expression(r) if r.take("=") else None))
        if not r.has("}"):
            r.want(",", "enum")
    return n.EnumType(line, base, tuple(members))


def type_of(r: TokenReader) -> n.Node:
    """A type, or what computes one."""
    line = r.token.line
    if r.take("*"):
        r.take("const")
        return n.PointerType(line, False, type_of(r))
    if r.take("["):
        if r.take("*"):
            r.want("]", "a pointer's type")
            r.take("const")
            return n.PointerType(line, True, type_of(r))
        sizes = _arguments(r, "]", "an array's type")
        return n.ArrayType(line, sizes, type_of(r))
    if r.has("fn") or r.has("task"):
        r.next()
        r.want("(", "a function's type")
        parameters: list[n.Node] = []
        while not r.take(")"):
            if r.token.kind == "name" and r.peek().text == ":":
                r.next()
                r.next()
            parameters.append(type_of(r))
            if not r.has(")"):
                r.want(",", "a function's type")
        return n.FunctionType(line, tuple(parameters), type_of(r))
    if r.has("enum"):
        return _enum(r)
    return _postfix(r) if r.token.kind in ("builtin", "name") and not r.has("comptime") else _primary(r)
