"""Where an expression stands: its module, the names it sees, and the Python that is being written, if it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from meshrt.csl.errors import CslError, SourceLocation, wrong
from meshrt.csl.language.values import Language, Module, Val

NOWHERE = SourceLocation("", 0)


@dataclass(slots=True, eq=False)
class Writer:
    """The Python of one function."""

    image: Any
    result: Any  # type
    body: list[str] = field(default_factory=list)
    locations: list[SourceLocation] = field(default_factory=list)
    depth: int = 1
    names: int = 0
    cost: float = 0.0  # cycles of what was written, not yet charged
    at: SourceLocation = NOWHERE
    after: list[Any] = field(default_factory=list)  # what each open loop does before it goes on
    taken: frozenset[str] = frozenset()  # names whose address is taken

    def line(self, text: str) -> None:
        """Write a line, which comes from `at` in the source."""
        self.body.append("    " * self.depth + text)
        self.locations.append(self.at)

    def charge(self) -> None:
        """Write down what was not yet charged."""
        if self.cost:
            self.line(f"c.t += {self.cost!r}")
            self.cost = 0.0

    @contextmanager
    def block(self) -> Iterator[None]:
        """What is written within is an indented block."""
        self.depth += 1
        before = len(self.body)
        yield
        self.charge()
        if len(self.body) == before:
            self.line("pass")
        self.depth -= 1

    def name(self, stem: str) -> str:
        """One that the function does not have yet."""
        self.names += 1
        return f"{stem}_{self.names}"


@dataclass(slots=True, eq=False)
class Scope:
    """The names of a block, then those of the blocks around it, up to the module's. Without a writer nothing is left
    to the run: all has to be known before it.
    """

    module: Module
    names: dict[str, Val] = field(default_factory=dict)
    outer: Scope | None = None
    writer: Writer | None = None

    def child(self) -> Scope:
        """That of a block within."""
        return Scope(self.module, {}, self, self.writer)

    def known(self) -> Scope:
        """The same, where all has to be known before the run."""
        return Scope(self.module, {}, self, None)

    def find(self, name: str) -> Val | None:
        """What the innermost such name stands for; None where there is none."""
        scope: Scope | None = self
        while scope is not None:
            value = scope.names.get(name)
            if value is not None:
                return value
            scope = scope.outer
        return None

    def at(self, line: int) -> SourceLocation:
        """A line of the module's file."""
        return SourceLocation(self.module.tree.path, line)

    def wrong(self, line: int, message: str) -> CslError:
        """An error there."""
        return wrong(self.at(line), message)

    def spend(self, cycles: float) -> None:
        """What is written here takes so long in the run."""
        if self.writer is not None:
            self.writer.cost += cycles

    @property
    def language(self) -> Language:
        language: Language = self.module.program.language
        return language

    @property
    def image(self) -> Any:
        return self.module.image
