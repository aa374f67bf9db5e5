"""What a user's own program scores: the cycles of its run, for jobs and programs that search; what cheats is refused.

A score is worth something if everything that a core holds, sends and computes went through the runtime. So the text may
use no more of meshrt than programs need (`check_text`), and while it runs, what it holds is looked at whenever it sends
or takes memory (`Referee`): arrays of all cores that are charged to no core, and results that were gathered and are
used again.
"""

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from meshrt.emulate import emulate
from meshrt.errors import UsageError
from meshrt.mesh import tiles
from meshrt.mesh.audit import Audit
from meshrt.mesh.block import Block
from meshrt.mesh.memory import Memory
from meshrt.program import Program
from meshrt.ranks.alone import Alone
from meshrt.ranks.board import Board
from meshrt.records import dataclass

MODULES = (  # that a program may import from
    "__future__", "collections", "contextlib", "dataclasses", "functools", "itertools", "math", "typing", "ml_dtypes",
    "numpy", "meshrt.errors", "meshrt.mesh.block", "meshrt.mesh.collectives", "meshrt.mesh.exchange",
    "meshrt.mesh.tiles", "meshrt.mesh.wires.fabric", "meshrt.mesh.wires.routes", "meshrt.mesh.wires.tables",
    "meshrt.options", "meshrt.program",
)  # fmt: skip
STAGE = "meshrt.mesh.wires.software", "stage"  # of that module it alone: it can only take time
NAMES = frozenset(  # that reach what counts, whoever has them
    ("audit", "clock", "comm", "control", "core", "counters", "host", "ledger", "link_bytes", "link_free", "maps",
     "notes", "ramp_bytes", "scouts", "segments", "timed", "traffic", "uses", "watch", "entries", "enters",
     "leaves", "book", "landing", "lane", "arrivals", "schedule", "over", "peak", "common", "extra", "arrays")
)  # fmt: skip
CALLS = frozenset(
    ("compile", "delattr", "eval", "exec", "getattr", "globals", "locals", "open", "setattr", "vars", "__import__")
)
TOLERANCE = 1e-3  # of max_abs_error in the result, unless --tolerance says otherwise


def check_text(path: str) -> None:
    """UsageError, with the line, for what could touch counters, or bring numbers by another way than the mesh."""
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"), path)
    except (OSError, ValueError, SyntaxError):
        return  # who loads it says what is wrong
    for node in ast.walk(tree):
        found = _refused(node)
        if found:
            raise UsageError(
                f"{path}, line {getattr(node, 'lineno', 1)}: {found}; a program that is scored may not (docs/start.md)"
            )


def _refused(node: ast.AST) -> str | None:
    match node:
        case ast.Import(names=names) if wrong := [one.name for one in names if not _known(one.name)]:
            return f"imports {wrong[0]}"
        case ast.ImportFrom(module=module, names=names) if not _known(module or ""):
            if module == STAGE[0] and all(one.name == STAGE[1] for one in names):
                return None
            return f"imports from {module or '.'}"
        case ast.Attribute(attr=name) if name in NAMES or name.startswith("_"):
            return f"uses .{name}"
        case ast.Name(id=name) if name in CALLS or (name.startswith("__") and name != "__name__"):
            return f"uses {name}"
    return None


def _known(module: str) -> bool:
    return any(module == one or module.startswith(one + ".") for one in MODULES)


@dataclass(eq=False)
class Referee(Audit):
    """`Audit` of a program that is scored. `lead` are the first two dimensions of what all cores hold."""

    memory: Memory | None = None
    lead: tuple[int, int] = (1, 1)
    gathered: bool = False

    def sends(self, arrivals: Any) -> None:
        self.look()
        super().sends(arrivals)

    def makes(self, memory: Memory, name: str, numbers: np.ndarray) -> np.ndarray:
        self.look()
        return super().makes(memory, name, numbers)

    def look(self) -> None:
        """UsageError for what the program holds now and has not taken memory for, or goes on with after its end."""
        if self.gathered:
            raise UsageError("the result has been gathered: nothing may be sent or taken after that")
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_filename == self.file:
                for name, array in _arrays(frame.f_locals):
                    self._check(name, array)
            frame = frame.f_back

    def _check(self, name: str, array: np.ndarray) -> None:
        if array.shape[:2] != self.lead or array.ndim < 3 or array.dtype == bool:
            return
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        assert self.memory is not None
        if id(owner) not in self.memory.arrays:
            raise UsageError(
                f"{name!r}, {array.dtype} {list(array.shape)}, is an array of all cores that is charged to none: make"
                " it with block.tiles, or say block.memory.keep(name, array)"
            )


def _arrays(values: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Arrays by the names of the variables that have them, also in lists, tuples and dictionaries."""
    for name, value in [*values.items()]:
        members = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
        for member in [*members]:
            if isinstance(member, np.ndarray):
                yield name, member


def refereed(path: str, run: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The run of a user's own program on a block that is looked at."""

    def wrapped(block: Block, **options: Any) -> dict[str, Any]:
        own: Any = getattr(run, "__wrapped__", run)
        referee = Referee(path, own.__code__.co_filename, memory=block.memory, lead=block.lead)
        block.audit = referee
        gather = block.control.gather

        def gathers(value: Any) -> Any:
            referee.gathered |= sys._getframe(1).f_code is tiles.gather_parts.__code__
            return gather(value)

        vars(block.control)["gather"] = gathers  # of this block alone
        try:
            return run(block, **options)
        finally:
            del vars(block.control)["gather"]

    return wrapped


def score(
    program: Program, path: str, arguments: Mapping[str, Any], settings: Mapping[str, Any], payload: bool,
    tolerance: float = TOLERANCE,
) -> dict[str, Any]:  # fmt: skip
    """The score of a program's file and what it is made of, as one flat dictionary. UsageError, LimitError."""
    if program.machine != "mesh":
        raise UsageError(f"{path} runs on {program.machine}: scores are of the mesh")
    check_text(path)
    judged = replace(program, run=refereed(path, program.run))
    report = emulate(Alone(), Board.alone(), judged, arguments, payload=payload, **settings)
    assert report is not None
    error = report["result"].get("max_abs_error")
    if payload and error is not None and not error <= tolerance:
        raise UsageError(f"{path}: max_abs_error is {error}, above {tolerance}: a wrong result has no score")
    measured = report["measured"]
    return {
        "ok": True, "score": measured["critical_path"]["cycles"],
        **{name: measured["critical_path"][name] for name in ("cycles", "hops", "stages", "seconds")},
        "messages": measured["messages"], "packet_hops": measured["hops"],
        "link_bytes": measured["link_bytes"]["max"], "memory_bytes": measured["memory_bytes"]["max"],
        "route_entries": measured["route_entries"]["max"], "macs": measured["macs"], "result": report["result"],
    }  # fmt: skip
