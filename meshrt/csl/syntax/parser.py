"""A file as a tree: recursive descent, one function a rule. Expressions: phrases."""

from __future__ import annotations

from meshrt.csl.errors import SourceLocation, wrong
from meshrt.csl.syntax import nodes as n
from meshrt.csl.syntax.lexer import tokens
from meshrt.csl.syntax.phrases import expression, parenthesized, switch, type_of
from meshrt.csl.syntax.reader import TokenReader

ASSIGN = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}


def parse(text: str, file: str) -> n.File:
    """The tree of a file. CslError with the line."""
    r = TokenReader(file, tokens(text, file))
    declarations: dict[str, n.Node] = {}
    blocks: list[n.Node] = []
    exported: list[str] = []
    while r.token.kind != "end":
        line = r.token.line
        export = bool(r.take("export"))
        if r.take("layout"):
            blocks.append(n.Layout(line, _block(r)))
        elif r.has("comptime") and r.peek().text == "{":
            r.next()
            blocks.append(n.Comptime(line, _block(r)))
        elif r.has("fn") or r.has("task"):
            function = _function(r)
            _declare(declarations, function, r.file)
        elif r.token.text in ("var", "const", "param"):
            declaration = _declaration(r)
            _declare(declarations, declaration, r.file)
            if export:
                exported.append(declaration.name)
        else:
            raise r.wrong(
                f"{r.token.text!r} begins no declaration: there are var, const, param, fn, task, comptime, layout"
            )
    return n.File(1, file, declarations, tuple(blocks), tuple(declarations), tuple(exported))


def _declare(names: dict[str, n.Node], node: n.Declaration | n.Function, file: str) -> None:
    """A name of a file or of a block. CslError where it has one of that name."""
    before = names.setdefault(node.name, node)
    if before is not node:
        raise wrong(SourceLocation(file, node.line), f"{node.name} is declared already, in line {before.line}")


def _declaration(r: TokenReader) -> n.Declaration:
    token = r.next()
    name = r.name(f"a {token.text}")
    kind = type_of(r) if r.take(":") else None
    aligned = None
    while r.has("align") or r.has("linksection"):
        word = r.next().text
        r.want("(", word)
        said = expression(r)
        r.want(")", word)
        aligned = said if word == "align" else aligned
    value = expression(r) if r.take("=") else None
    r.want(";", f"the declaration of {name}")
    return n.Declaration(token.line, token.text, name, kind, value, aligned)


def _function(r: TokenReader) -> n.Function:
    token = r.next()
    name = r.name(f"a {token.text}")
    r.want("(", name)
    parameters: list[tuple[str, n.Node, bool]] = []
    while not r.take(")"):
        is_known = r.take("comptime")
        parameter = r.name(f"the parameters of {name}")
        r.want(":", f"the parameters of {name}")
        if parameter in [before for before, _, _ in parameters]:
            raise r.wrong(f"two parameters of {name} are named {parameter}")
        parameters.append((parameter, type_of(r), is_known))
        if not r.has(")"):
            r.want(",", f"the parameters of {name}")
    result = None if r.has("{") else type_of(r)
    return n.Function(token.line, token.text, name, tuple(parameters), result, _block(r))


def _block(r: TokenReader) -> n.Block:
    line = r.want("{", "a block").line
    statements: list[n.Node] = []
    names: dict[str, n.Node] = {}
    while not r.take("}"):
        if r.token.kind == "end":
            raise wrong(SourceLocation(r.file, line), "the block that begins here has no }")
        statement = _statement(r)
        if isinstance(statement, n.Declaration):
            _declare(names, statement, r.file)
        statements.append(statement)
    return n.Block(line, tuple(statements))


def _statement(r: TokenReader) -> n.Node:
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
            statement = switch(r, _done)
            r.take(";")
            return statement
        if text == "return":
            r.next()
            value = None if r.has(";") else expression(r)
            r.want(";", "return")
            return n.Return(line, value)
        if text in ("break", "continue"):
            r.next()
            r.want(";", text)
            return n.Jump(line, text)
        if text == ";":
            r.next()
            return n.Block(line, ())
    statement = _simple(r)
    r.want(";", "a statement")
    return statement


def _simple(r: TokenReader) -> n.Node:
    """An expression or an assignment, without ;"""
    line = r.token.line
    target = expression(r)
    if r.token.kind == "op" and r.token.text in ASSIGN:
        op = r.next().text[:-1]
        return n.Assign(line, op, target, expression(r))
    return target


def _done(r: TokenReader) -> n.Node:
    """What a case of a switch does: a block, or a statement without its ;"""
    return _block(r) if r.has("{") else _simple(r)


def _body(r: TokenReader) -> n.Node:
    """What an if does: a block, or one statement, whose ; may be missing before else."""
    if r.has("{") or r.token.text in ("if", "while", "for", "return", "break", "continue", "switch"):
        return _statement(r)
    statement = _simple(r)
    if not r.has("else"):
        r.want(";", "a statement")
    return statement


def _if(r: TokenReader) -> n.Node:
    line = r.next().line
    condition = parenthesized(r, "if")
    then = _body(r)
    otherwise = None
    if r.take("else"):
        otherwise = _if(r) if r.has("if") else _body(r)
    return n.If(line, condition, then, otherwise)


def _while(r: TokenReader) -> n.Node:
    line = r.next().line
    condition = parenthesized(r, "while")
    after = None
    if r.take(":"):
        r.want("(", "while")
        after = _simple(r)
        r.want(")", "while")
    return n.While(line, condition, after, _statement(r))


def _for(r: TokenReader) -> n.Node:
    line = r.want("for", "a loop").line
    over = parenthesized(r, "for")
    r.want("|", "for")
    names = [r.name("for")]
    while r.take(","):
        names.append(r.name("for"))
    r.want("|", "for")
    return n.For(line, over, tuple(names), _statement(r))
