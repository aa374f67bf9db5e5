"""What all tiles of one program with equal parameters share: its memory as it begins, its code, its tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshrt.csl.errors import MemoryLimit, SourceLocation
from meshrt.csl.language.values import FunctionRef, Val

CORE_BYTES = 48 * 1024
WORD = 4  # bytes


@dataclass(slots=True, eq=False)
class Image:
    arch: str
    limit: int = CORE_BYTES
    memory: Any = field(default_factory=lambda: np.zeros(CORE_BYTES, np.uint8))
    used: int = 0
    symbols: list[tuple[int, int, str]] = field(default_factory=list)  # address, bytes, name
    objects: list[Any] = field(default_factory=list)  # what variables of no bytes begin with
    space: dict[str, Any] = field(default_factory=dict)  # the globals of the functions
    functions: dict[Any, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)  # their Python
    lines: dict[str, list[SourceLocation]] = field(default_factory=dict)  # of a function's Python -> of the source
    tasks: dict[int, FunctionRef] = field(default_factory=dict)
    kinds: dict[int, str] = field(default_factory=dict)  # local, data, control
    blocked: set[int] = field(default_factory=set)
    active: list[int] = field(default_factory=list)
    inputs: dict[int, int] = field(default_factory=dict)  # queue -> colour
    outputs: dict[int, int] = field(default_factory=dict)
    dsrs: dict[tuple[str, int], Any] = field(default_factory=dict)
    fifos: list[Any] = field(default_factory=list)
    exports: dict[str, Val] = field(default_factory=dict)
    from_host: set[int] = field(default_factory=set)  # colours of streams
    to_host: set[int] = field(default_factory=set)
    colors: list[tuple[Any, Any]] = field(default_factory=list)  # set by the tile itself
    modules: dict[Any, Any] = field(default_factory=dict)
    teardown: dict[int, int] = field(default_factory=dict)  # colour -> its handler's number
    turns: bool = False  # its code writes its router anew

    def allocate(self, nbytes: int, name: str, at: SourceLocation, aligned: int = WORD) -> int:
        """Room in memory, from an address that is a multiple of so many bytes. MemoryLimit."""
        address = -(-self.used // aligned) * aligned
        if address + nbytes > self.limit:
            raise MemoryLimit(
                f"{at}: {name} takes {nbytes:,} bytes, {self.used:,} are in use and a core has {self.limit:,}:"
                " spread the data over more cores, or share a buffer"
            )
        self.symbols.append((address, nbytes, name))
        self.used = address + nbytes
        return address

    def constant(self, value: Any) -> str:
        """A name by which the functions know a value."""
        name = f"k{len(self.space)}"
        self.space[name] = value
        return name
