"""What an expression comes to: known before the run, or Python that finds it in the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from meshrt.csl.syntax import nodes


@dataclass(slots=True, eq=False)
class Val:
    """A typed value: `value` where it is known, `code` (Python) where it is not; `spot`: where it lies."""

    type: Any
    value: Any = None
    code: str | None = None
    spot: Any = None

    @property
    def known(self) -> bool:
        return self.code is None


@dataclass(frozen=True, slots=True)
class MemoryAddress:
    """In a core's memory; the address in bytes is a number or Python."""

    address: int | str


@dataclass(frozen=True, slots=True)
class Slot:
    """Among what a core keeps that has no bytes we know of, such as descriptors."""

    index: int


@dataclass(frozen=True, slots=True)
class Local:
    """A variable of the Python function."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class StaticVariable:
    """A variable that lives before the run only."""

    names: dict[str, Val]
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Element:
    """One of an array that lives before the run only."""

    array: Any
    index: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FunctionRef:
    """A fn or task of a module."""

    module: Any
    node: nodes.Function


@dataclass(frozen=True, slots=True, eq=False)
class Native:
    """A function of a library: (scope, arguments, line) -> Val."""

    name: str
    call: Any


@dataclass(slots=True, eq=False)
class Module:
    """A file with its parameters. `image` is None for the layout's own modules."""

    tree: nodes.File
    parameters: dict[str, Val]
    image: Any
    program: Any
    values: dict[str, Val] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Library:
    """A library that is written in Python."""

    name: str
    members: dict[str, Val]


@dataclass(frozen=True)
class Language:
    """The parts of the interpreter that need each other all around: each gets at the others by the program."""

    lookup: Any  # modules
    statement: Any  # statements
    call: Any  # functions
    builtins: Any  # builtins
