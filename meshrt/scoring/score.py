"""What a user's own program scores: the cycles of its run, for jobs and programs that search; what cheats is refused.

A score is worth something if everything that a core holds, sends and computes went through the runtime. So the text may
use no more of meshrt than programs need (scoredtext.py), and while it runs, what it holds is looked at whenever it
sends or takes memory (`Referee`): arrays of all cores that are charged to no core, and results that were gathered and
are used again.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np

from meshrt.emulate import emulate
from meshrt.errors import UsageError
from meshrt.mesh import tiles
from meshrt.mesh.audit import Audit
from meshrt.mesh.block import Block
from meshrt.mesh.memory import CoreMemory
from meshrt.program import Program
from meshrt.ranks.alone import Alone
from meshrt.ranks.board import Board
from meshrt.records import dataclass
from meshrt.scoring.text import check_text

TOLERANCE = 1e-3  # of max_abs_error in the result, unless --tolerance says otherwise


@dataclass(eq=False)
class Referee(Audit):
    """`Audit` of a program that is scored. `lead` are the first two dimensions of what all cores hold."""

    memory: CoreMemory | None = None
    lead: tuple[int, int] = (1, 1)
    gathered: bool = False
    module: str = ""  # whose classes are the program's own

    def sends(self, arrivals: Any) -> None:
        self.look()
        super().sends(arrivals)

    def makes(self, memory: CoreMemory, name: str, numbers: np.ndarray) -> np.ndarray:
        self.look()
        return super().makes(memory, name, numbers)

    def look(self) -> None:
        """UsageError for what the program holds now and has not taken memory for, or goes on with after its end."""
        if self.gathered:
            raise UsageError("the result has been gathered: nothing may be sent or taken after that")
        frame: FrameType | None = sys._getframe(2)
        everywhere: Mapping[str, Any] = {}
        while frame is not None:
            if frame.f_code.co_filename == self.file:
                for name, array in _arrays(frame.f_locals, self.module):
                    self._check(name, array)
                everywhere = frame.f_globals
            frame = frame.f_back
        for name, array in _arrays(everywhere, self.module):
            self._check(name, array)

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


def _arrays(values: Mapping[str, Any], module: str) -> Iterator[tuple[str, np.ndarray]]:
    """Arrays by the names of the variables that have them, also in containers and in objects of its own classes."""
    for name, value in [*values.items()]:
        members, seen = [value], set[int]()
        while members:
            member = members.pop()
            if isinstance(member, np.ndarray):
                yield name, member
            elif id(member) not in seen:
                seen.add(id(member))
                if isinstance(member, dict):
                    members += member.values()
                elif isinstance(member, list | tuple | set | deque):
                    members += member
                elif type(member).__module__ == module:
                    members += getattr(member, "__dict__", {}).values()


def refereed(path: str, run: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The run of a user's own program on a block that is looked at."""

    def wrapped(block: Block, **options: Any) -> dict[str, Any]:
        own: Any = getattr(run, "__wrapped__", run)
        referee = Referee(path, own.__code__.co_filename, memory=block.memory, lead=block.lead, module=own.__module__)
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
