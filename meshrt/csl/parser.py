"""Tokens to a tree: recursive descent, one function a rule."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshrt.csl import nodes as n
from meshrt.csl.errors import CslError, Place, wrong
from meshrt.csl.lexer import Token, tokens

BINARY = [
    ["or"], ["and"], ["==", "!=", "<", ">", "<=", ">="], ["|"], ["^"], ["&"], ["<<", ">>"], ["+", "-"], ["*", "/", "%"],
]  # fmt: skip
ASSIGN = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}


@dataclass
class _Reader:
    file: str
    tokens: list[Token]
    at: int = 0
    open: list[tuple[str, int]] = field(default_factory=list)

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def peek(self, ahead: int = 1) -> Token:
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def next(self) -> Token:
        token = self.tokens[self.at]
        self.at += token.kind != "end"
        return token

    def has(self, text: str) -> bool:
        token = self.tokens[self.at]
        return token.text == text and token.kind in ("op", "name", "builtin")

    def take(self, text: str) -> bool:
        if self.has(text):
            self.at += 1
            return True
        return False

    def want(self, text: str, of: str) -> Token:
        if not self.has(text):
            raise self.wrong(f"{text!r} is missing in {of}, there is {self.token.text!r}")
        return self.next()

    def name(self, of: str) -> str:
        if self.token.kind != "name":
            raise self.wrong(f"a name is missing in {of}, there is {self.token.text!r}")
        return self.next().text

    def wrong(self, message: str) -> CslError:
        return wrong(Place(self.file, self.token.line), message)


def parse(text: str, file: str) -> n.File:
    """The tree of a file. CslError with the line."""
    r = _Reader(file, tokens(text, file))
    declarations: dict[str, n.Node] = {}
    blocks: list[n.Node] = []
    while r.token.kind != "end":
        line = r.token.line
        r.take("export")
        if r.take("layout"):
            blocks.append(n.Layout(line, _block(r)))
        elif r.has("comptime") and r.peek().text == "{":
            r.next()
            blocks.append(n.Comptime(line, _block(r)))
        elif r.has("fn") or r.has("task"):
            function = _function(r)
            declarations[function.name] = function
        elif r.token.text in ("var", "const", "param"):
            one = _declaration(r)
            declarations[one.name] = one
        else:
            raise r.wrong(
                f"{r.token.text!r} begins no declaration: there are var, const, param, fn, task, comptime, layout"
            )
    return n.File(1, file, declarations, tuple(blocks), tuple(declarations))


def _declaration(r: _Reader) -> n.Declaration:
    token = r.next()
    name = r.name(f"a {token.text}")
    kind = _type(r) if r.take(":") else None
    while r.has("align") or r.has("linksection"):
        r.next()
        r.want("(", "align")
        _expression(r)
        r.want(")", "align")
    value = _expression(r) if r.take("=") else None
    r.want(";", f"the declaration of {name}")
    return n.Declaration(token.line, token.text, name, kind, value)


def _function(r: _Reader) -> n.Function:
    token = r.next()
    name = r.name(f"a {token.text}")
    r.want("(", name)
    parameters: list[tuple[str, n.Node, bool]] = []
    while not r.take(")"):
        known = r.take("comptime")
        parameter = r.name(f"the parameters of {name}")
        r.want(":", f"the parameters of {name}")
        parameters.append((parameter, _type(r), known))
        if not r.has(")"):
            r.want(",", f"the parameters of {name}")
    result = None if r.has("{") else _type(r)
    return n.Function(token.line, token.text, name, tuple(parameters), result, _block(r))


def _block(r: _Reader) -> n.Block:
    line = r.want("{", "a block").line
    found: list[n.Node] = []
    while not r.take("}"):
        if r.token.kind == "end":
            raise wrong(Place(r.file, line), "the block that begins here has no }")
        found.append(_statement(r))
    return n.Block(line, tuple(found))


def _statement(r: _Reader) -> n.Node:
    token = r.token
    line, text = token.line, token.text
    if token.kind in ("name", "op"):
        if text == "{":
            return _block(r)
        if text in ("var", "const"):
            return _declaration(r)
        if text == "comptime":
            r.next()
            return n.Comptime(line, _statement(r))
        if text == "if":
            return _if(r)
        if text in ("while", "for", "inline"):
            r.take("inline")
            return _while(r) if r.has("while") else _for(r)
        if text == "switch":
            one = _switch(r, True)
            r.take(";")
            return one
        if text == "return":
            r.next()
            value = None if r.has(";") else _expression(r)
            r.want(";", "return")
            return n.Return(line, value)
        if text in ("break", "continue"):
            r.next()
            r.want(";", text)
            return n.Jump(line, text)
        if text == ";":
            r.next()
            return n.Block(line, ())
    one = _simple(r)
    r.want(";", "a statement")
    return one


def _simple(r: _Reader) -> n.Node:
    """An expression or an assignment, without ;"""
    line = r.token.line
    target = _expression(r)
    if r.token.kind == "op" and r.token.text in ASSIGN:
        op = r.next().text[:-1]
        return n.Assign(line, op, target, _expression(r))
    return target


def _body(r: _Reader) -> n.Node:
    """What an if does: a block, or one statement, whose ; may be missing before else."""
    if r.has("{") or r.token.text in ("if", "while", "for", "return", "break", "continue", "switch"):
        return _statement(r)
    one = _simple(r)
    if not r.has("else"):
        r.want(";", "a statement")
    return one


def _if(r: _Reader) -> n.Node:
    line = r.next().line
    r.want("(", "if")
    condition = _expression(r)
    r.want(")", "if")
    then = _body(r)
    otherwise = None
    if r.take("else"):
        otherwise = _if(r) if r.has("if") else _body(r)
    return n.If(line, condition, then, otherwise)


def _while(r: _Reader) -> n.Node:
    line = r.next().line
    r.want("(", "while")
    condition = _expression(r)
    r.want(")", "while")
    after = None
    if r.take(":"):
        r.want("(", "while")
        after = _simple(r)
        r.want(")", "while")
    return n.While(line, condition, after, _statement(r))


def _for(r: _Reader) -> n.Node:
    line = r.want("for", "a loop").line
    r.want("(", "for")
    over = _expression(r)
    r.want(")", "for")
    r.want("|", "for")
    names = [r.name("for")]
    while r.take(","):
        names.append(r.name("for"))
    r.want("|", "for")
    return n.For(line, over, tuple(names), _statement(r))


def _switch(r: _Reader, statement: bool) -> n.Node:
    line = r.next().line
    r.want("(", "switch")
    value = _expression(r)
    r.want(")", "switch")
    r.want("{", "switch")
    cases: list[tuple[tuple[n.Node, ...], n.Node]] = []
    while not r.take("}"):
        labels: list[n.Node] = []
        if not r.take("else"):
            labels.append(_expression(r))
            while r.take(","):
                if r.has("=>"):
                    break
                labels.append(_expression(r))
        r.want("=>", "switch")
        done = _block(r) if statement and r.has("{") else _simple(r) if statement else _expression(r)
        cases.append((tuple(labels), done))
        if not r.has("}"):
            r.want(",", "switch")
    return n.Switch(line, value, tuple(cases))


def _expression(r: _Reader, level: int = 0) -> n.Node:
    if level == len(BINARY):
        return _unary(r)
    left = _expression(r, level + 1)
    ops = BINARY[level]
    while r.token.text in ops and r.token.kind in ("op", "name"):
        token = r.next()
        left = n.Binary(token.line, token.text, left, _expression(r, level + 1))
    return left


def _unary(r: _Reader) -> n.Node:
    token = r.token
    if token.kind == "op" and token.text in ("-", "!", "~", "&"):
        r.next()
        return n.Unary(token.line, token.text, _unary(r))
    if token.text == "comptime" and token.kind == "name":
        r.next()
        return n.Comptime(token.line, _unary(r))
    return _postfix(r)


def _arguments(r: _Reader, end: str, of: str) -> tuple[n.Node, ...]:
    found: list[n.Node] = []
    while not r.take(end):
        found.append(_expression(r))
        if not r.has(end):
            r.want(",", of)
    return tuple(found)


def _postfix(r: _Reader) -> n.Node:
    one = _primary(r)
    while r.token.kind == "op":
        line = r.token.line
        if r.take("("):
            one = n.Call(line, one, _arguments(r, ")", "a call"))
        elif r.take("["):
            one = n.Index(line, one, _arguments(r, "]", "an index"))
        elif r.take(".*"):
            one = n.Deref(line, one)
        elif r.has(".") and r.peek().kind in ("name", "int"):
            r.next()
            one = n.Field(line, one, r.next().text)
        else:
            break
    return one


def _primary(r: _Reader) -> n.Node:
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
            return _switch(r, False)
        if text in ("fn", "task"):
            return _type(r)
        if text == "enum":
            return _enum(r)
        r.next()
        return n.Name(line, text)
    if text == "(":
        r.next()
        one = _expression(r)
        r.want(")", "an expression in parentheses")
        return one
    if text == ".{":
        r.next()
        return _struct(r, line)
    if text == "|":
        return _access(r)
    if text in ("[", "*"):
        kind = _type(r)
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


def _choice(r: _Reader) -> n.Node:
    line = r.next().line
    r.want("(", "if")
    condition = _expression(r)
    r.want(")", "if")
    then = _expression(r)
    otherwise = _expression(r) if r.take("else") else None
    return n.Choice(line, condition, then, otherwise)


def _struct(r: _Reader, line: int) -> n.Node:
    fields: list[tuple[str, n.Node]] = []
    while not r.take("}"):
        if r.has(".") and r.peek().kind == "name" and r.peek(2).text == "=":
            r.next()
            name = r.next().text
            r.next()
        else:
            name = str(len(fields))
        fields.append((name, _expression(r)))
        if not r.has("}"):
            r.want(",", "a struct")
    return n.Struct(line, tuple(fields))


def _access(r: _Reader) -> n.Node:
    line = r.next().line
    names = [r.name("tensor_access")]
    while r.take(","):
        names.append(r.name("tensor_access"))
    r.want("|", "tensor_access")
    r.want("{", "tensor_access")
    extents = _arguments(r, "}", "tensor_access")
    r.want("->", "tensor_access")
    return n.Access(line, tuple(names), extents, _expression(r))


def _enum(r: _Reader) -> n.Node:
    line = r.next().line
    base = None
    if r.take("("):
        base = _type(r)
        r.want(")", "enum")
    r.want("{", "enum")
    members: list[tuple[str, n.Node | None]] = []
    while not r.take("}"):
        name = r.name("enum")
        members.append((name, _expression(r) if r.take("=") else None))
        if not r.has("}"):
            r.want(",", "enum")
    return n.EnumType(line, base, tuple(members))


def _type(r: _Reader) -> n.Node:
    line = r.token.line
    if r.take("*"):
        r.take("const")
        return n.PointerType(line, False, _type(r))
    if r.take("["):
        if r.take("*"):
            r.want("]", "a pointer's type")
            r.take("const")
            return n.PointerType(line, True, _type(r))
        sizes = _arguments(r, "]", "an array's type")
        return n.ArrayType(line, sizes, _type(r))
    if r.has("fn") or r.has("task"):
        r.next()
        r.want("(", "a function's type")
        parameters: list[n.Node] = []
        while not r.take(")"):
            if r.token.kind == "name" and r.peek().text == ":":
                r.next()
                r.next()
            parameters.append(_type(r))
            if not r.has(")"):
                r.want(",", "a function's type")
        return n.FunctionType(line, tuple(parameters), _type(r))
    if r.has("enum"):
        return _enum(r)
    return _postfix(r) if r.token.kind in ("builtin", "name") and not r.has("comptime") else _primary(r)
