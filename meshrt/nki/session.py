"""What a kernel runs on: the cores of a launch, the program that is running, and what was noticed on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from math import prod
from pathlib import Path
from sys import _getframe
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from meshrt.errors import MeshrtError, UsageError
from meshrt.neuron.core import NeuronCore
from meshrt.neuron.device import NeuronDevice
from meshrt.neuron.timeline import ComputeEngine
from meshrt.records import dataclass

PACKAGE = str(Path(__file__).parent.parent)  # frames in here are not the kernel's


@dataclass
class Loop:
    """A running loop: steps of the session at which it, and its present iteration, began.

    ordered: a `sequential_range`, whose iterations may use what earlier ones have written.
    """

    began: int
    iteration: int
    ordered: bool = False


@dataclass
class Session:
    """One launch of a kernel. `spread` says over how many cores each axis of `grid` is dealt, round robin."""

    device: NeuronDevice
    nl: Any  # the modules of instructions, for what tensors do by operators
    nisa: Any
    grid: tuple[int, ...] = ()
    spread: tuple[int, ...] = ()
    payload: bool = True
    reorder: bool = False  # engines take instructions in the order that suits them
    cores: list[NeuronCore] = field(init=False)
    program: tuple[int, ...] = ()
    core: NeuronCore = field(init=False)  # that the running program is on
    outputs: list[Any] = field(default_factory=list)  # tensors in HBM that all programs share, in order of allocation
    allocated: int = 0  # of those, by the running program
    steps: int = 0  # instructions so far
    loops: list[Loop] = field(default_factory=list)
    generations: set[str] = field(default_factory=set)  # of the API: "old" where results are values, "new" with dst
    notes: dict[str, None] = field(default_factory=dict)  # what the author should know, each once
    stamps: WeakKeyDictionary[Any, Any] = field(default_factory=WeakKeyDictionary)  # steps that wrote, of a store
    banks: WeakSet[Any] = field(default_factory=WeakSet)  # homes (tensor.py) that are in PSUM
    registers: dict[tuple[int, str], np.ndarray] = field(default_factory=dict)  # of cores' engines (registers.py)

    def __post_init__(self) -> None:
        self.cores = [NeuronCore(self.device, index, self.payload, self.reorder) for index in range(prod(self.spread))]
        self.core = self.cores[0]

    def begin(self, program: tuple[int, ...]) -> None:
        """The next program of the grid runs from here on."""
        at = 0
        for index, count in zip(program, self.spread, strict=True):
            at = at * count + index % count
        self.core.settle()
        self.program, self.core, self.allocated = program, self.cores[at], 0
        self.loops.clear()

    def registers_of(self, engine: ComputeEngine) -> np.ndarray:
        """What an engine of the running core reduces into, float32, one for each partition."""
        at = (self.core.index, engine.name)
        if at not in self.registers:
            self.registers[at] = np.full(self.device.partitions, np.nan, np.float32)
        return self.registers[at]

    def note(self, text: str) -> None:
        """Remember something for the report, with the kernel's line."""
        self.notes[f"{here()}: {text}"] = None


_current: ContextVar[Session | None] = ContextVar("nki session", default=None)


def running() -> Session | None:
    """The launch that is going on, if one is."""
    return _current.get()


def session() -> Session:
    """The launch that is going on. UsageError outside of kernels."""
    launch = _current.get()
    if launch is None:
        raise UsageError("nl and nisa work inside a kernel only: call it as kernel(...) or nki.simulate(kernel)(...)")
    return launch


@contextmanager
def opened(launch: Session) -> Iterator[Session]:
    """Kernels that are called inside run on this launch's cores."""
    token = _current.set(launch)
    try:
        yield launch
    finally:
        _current.reset(token)


def here() -> str:
    """FILE:LINE of the kernel's innermost frame."""
    return _shown(*_spot())


def _spot() -> tuple[str, int]:
    frame: Any = _getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _shown(file: str, line: int) -> str:
    return f"{Path(file).name}:{line}" if file else ""


def from_here(run: Callable[..., None]) -> Callable[..., None]:
    """An instruction that runs when its result is used, whose errors name the kernel's line that asked for it."""
    spot = _spot()

    def later(*args: Any) -> None:  # says nothing of itself: a circle would keep its operands, and their banks of PSUM
        try:
            run(*args)
        except MeshrtError as error:
            blame(error, spot)
            raise

    later.spot = spot  # type: ignore[attr-defined]  # functions take attributes
    return later


def blame(error: MeshrtError, spot: tuple[str, int]) -> None:
    """Tell an error with a line of the kernel, unless it has one."""
    if not hasattr(error, "line"):
        error.line = _shown(*spot)  # type: ignore[attr-defined]  # for kernel.py
