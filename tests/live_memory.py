"""What lives at every core, found by walking the frames of a program while it runs: the proof of what memory charges.

At each transfer, exchange and product, all that the frames of the program refer to is looked through for arrays of a
block's leading shape: its variables, what is in them, and the arguments of what it called. Each distinct buffer has to
be charged, and with all of its bytes; what is not has to find room in what the program holds by name at that moment.

Not looked for: temporaries that are gone by then; masks, which say what a core knows by its place; what the runtime
keeps for itself, which its docstrings account for; the cache, of which only the tokens that are there have meaning.
"""

import dataclasses
import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, FunctionType, NoneType
from typing import Any

import numpy as np
import pytest

from meshrt.mesh.block import Block
from meshrt.mesh.exchange.convoy import Convoy
from meshrt.mesh.exchange.marching import MarchingConvoy, MarchingPorter
from meshrt.mesh.exchange.porter import Porter
from meshrt.mesh.memory import CoreMemory
from meshrt.mesh.wires import fabric
from meshrt.mesh.wires.receiving import Flight
from meshrt.programs.mesh.cache import TokenCache
from meshrt.programs.mesh.chunks import Chunks

LEAVES = frozenset((int, float, bool, str, bytes, range, NoneType, FunctionType))  # with no array in them
# Names that no array is of: MeshGEMM and shift have the host move tiles in place. Where a ring has several places at a
# core, a flight has what comes in until it is waited for.
COMING = ("A coming in", "B coming in", "tile coming in")
EMPTY = ("KV cache", *COMING)
HOST = (Block, TokenCache, Chunks)  # not walked: the machine itself, its cache, and maps of the matrices' indices
# A token leaves from its place in the cache; here it is copied out of rows that hold different numbers of them.
IN_PLACE = {("_move", "packet"), ("_pass_down", "packet")}


@dataclasses.dataclass
class Watch:
    """The memories of all blocks of a run, and how often it was looked at."""

    memories: list[CoreMemory] = dataclasses.field(default_factory=list)
    looks: int = 0
    seen: int = 0  # distinct buffers, summed over all looks

    def look(self) -> None:
        """AssertionError where something lives that is not charged."""
        self.looks += 1
        leads = {(memory.mesh.block_height, memory.mesh.block_width) for memory in self.memories}
        charges = {key: charge.nbytes for memory in self.memories for key, charge in memory.arrays.items()}
        buffers, in_place, walked = dict[int, tuple[str, np.ndarray]](), set[int](), set[int]()
        coming = dict[int, np.ndarray]()
        for name, value in _variables(sys._getframe(2)):
            for flight in value if isinstance(value, list | tuple) else [value]:
                if isinstance(flight, Flight):
                    coming |= {id(_owner(array)): _owner(array) for array in _arrays(flight.moves, leads, set())}
            for array in _arrays(value, leads, walked):
                owner = _owner(array)
                buffers[id(owner)] = name, owner
                if tuple(name.split(".")) in IN_PLACE:
                    in_place.add(id(owner))
        self.seen += len(buffers)
        uncharged = Counter[str]()
        for key, (name, owner) in buffers.items():
            each = owner.nbytes // int(np.prod(owner.shape[:2]))
            if key in charges:
                assert charges[key] >= each, f"{name}: {charges[key]} bytes are charged, {each} live"
            elif key not in in_place and key not in coming:
                uncharged[name] += each
        held = self._held(lambda name: not name.startswith(EMPTY))
        assert uncharged.total() <= held, f"not charged: {dict(uncharged)}, held by name: {held}"
        size = sum(owner.nbytes // int(np.prod(owner.shape[:2])) for key, owner in coming.items() if key not in charges)
        assert size <= self._held(lambda name: name.startswith(COMING)), f"{size} bytes come in without a room"

    def _held(self, counts: Callable[[str], bool]) -> int:
        """Bytes of what is held by those names that count."""
        return sum(
            int(np.max(nbytes)) for memory in self.memories for name, nbytes in memory.names.items() if counts(name)
        )


@contextmanager
def watching() -> Iterator[Watch]:
    """Look at all that runs meanwhile, before each transfer, product, and round of an exchange."""
    watch = Watch()

    def looked_at(function: Any) -> Any:
        @functools.wraps(function)
        def looked(*args: Any, **kwargs: Any) -> Any:
            watch.look()
            return function(*args, **kwargs)

        return looked

    def made(memory: CoreMemory) -> None:
        post_init(memory)
        watch.memories.append(memory)

    post_init = CoreMemory.__post_init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CoreMemory, "__post_init__", made)
        patch.setattr(fabric, "_start", looked_at(fabric._start))
        patch.setattr(Block, "matmul", looked_at(Block.matmul))
        for carrier in (Porter, Convoy, MarchingPorter, MarchingConvoy):
            patch.setattr(carrier, "depart", looked_at(carrier.depart))
        yield watch


def _variables(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """(function.variable, value) of the program's frames, and of the arguments of those that they called."""
    called: list[tuple[str, Any]] = []  # of the frame below
    while frame is not None:
        code, values = frame.f_code, frame.f_locals
        if "/programs/" in code.co_filename:
            yield from called
            yield from [(f"{code.co_name}.{name}", value) for name, value in values.items()]
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        called = [(f"{code.co_name}.{name}", values[name]) for name in code.co_varnames[:count] if name in values]
        if isinstance(values, dict) and code.co_name != "<module>":
            values.clear()  # a copy, which would keep alive what is in it
        frame = frame.f_back


def _arrays(value: Any, leads: set[tuple[int, ...]], walked: set[int]) -> Iterator[np.ndarray]:
    """All arrays of these leading shapes in a value, but for what is in things that were `walked`: their ids."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, np.ndarray):
            if value.shape[:2] in leads and value.dtype != bool:
                yield value
            continue
        if type(value) in LEAVES or id(value) in walked:
            continue
        walked.add(id(value))
        if isinstance(value, list | tuple):
            waiting.extend(value)
        elif isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, functools.partial):
            waiting.extend((*value.args, *value.keywords.values()))
        elif dataclasses.is_dataclass(value) and not isinstance(value, HOST):
            program = type(value).__module__.startswith("meshrt.programs.")
            waiting.extend(vars(value).values() if program or {"tiles", "out"} & set(vars(value)) else ())


def _owner(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
