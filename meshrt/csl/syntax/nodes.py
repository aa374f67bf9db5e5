"""The tree of a CSL file. `line` is where a node begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    line: int


@dataclass(frozen=True, slots=True, eq=False)
class Literal(Node):
    """A number, a string, true, false, null or `{}` (no value)."""

    type: str
    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Name(Node):
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Struct(Node):
    """.{ .a = x, .b = y }; where fields have no names, those are "0", "1"..."""

    fields: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Items(Node):
    """[n]T{ ... }"""

    type: Node
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Unary(Node):
    op: str
    operand: Node


@dataclass(frozen=True, slots=True, eq=False)
class Binary(Node):
    op: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True, eq=False)
class Call(Node):
    callee: Node
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Builtin(Node):
    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Field(Node):
    owner: Node
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Deref(Node):
    pointer: Node


@dataclass(frozen=True, slots=True, eq=False)
class Index(Node):
    array: Node
    indices: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Choice(Node):
    """if (c) a else b, as a value."""

    condition: Node
    then: Node
    otherwise: Node | None


@dataclass(frozen=True, slots=True, eq=False)
class ArrayType(Node):
    sizes: tuple[Node, ...]
    element: Node


@dataclass(frozen=True, slots=True, eq=False)
class PointerType(Node):
    many: bool
    element: Node


@dataclass(frozen=True, slots=True, eq=False)
class FunctionType(Node):
    parameters: tuple[Node, ...]
    result: Node


@dataclass(frozen=True, slots=True, eq=False)
class EnumType(Node):
    base: Node | None
    members: tuple[tuple[str, Node | None], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Access(Node):
    """|i, j|{n, m} -> A[i, j]"""

    names: tuple[str, ...]
    extents: tuple[Node, ...]
    element: Node


@dataclass(frozen=True, slots=True, eq=False)
class Declaration(Node):
    kind: str  # var, const, param
    name: str
    type: Node | None
    value: Node | None
    aligned: Node | None = None  # bytes that its address is a multiple of


@dataclass(frozen=True, slots=True, eq=False)
class Assign(Node):
    op: str  # "", or that of +=
    target: Node
    value: Node


@dataclass(frozen=True, slots=True, eq=False)
class Block(Node):
    statements: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class If(Node):
    condition: Node
    then: Node
    otherwise: Node | None


@dataclass(frozen=True, slots=True, eq=False)
class While(Node):
    condition: Node
    after: Node | None
    body: Node


@dataclass(frozen=True, slots=True, eq=False)
class For(Node):
    over: Node
    names: tuple[str, ...]
    body: Node


@dataclass(frozen=True, slots=True, eq=False)
class Switch(Node):
    """`cases`: values (none: else) and what is then done."""

    value: Node
    cases: tuple[tuple[tuple[Node, ...], Node], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Return(Node):
    value: Node | None


@dataclass(frozen=True, slots=True, eq=False)
class Jump(Node):
    word: str  # break, continue


@dataclass(frozen=True, slots=True, eq=False)
class Comptime(Node):
    body: Node


@dataclass(frozen=True, slots=True, eq=False)
class Layout(Node):
    body: Block


@dataclass(frozen=True, slots=True, eq=False)
class Function(Node):
    """fn or task. A parameter: name, type, is it comptime."""

    kind: str
    name: str
    parameters: tuple[tuple[str, Node, bool], ...]
    result: Node | None
    body: Block


@dataclass(frozen=True, slots=True, eq=False)
class File(Node):
    path: str
    declarations: dict[str, Node]
    blocks: tuple[Node, ...]  # comptime and layout
    order: tuple[str, ...]
    exported: tuple[str, ...] = ()  # variables that the host sees by their names
