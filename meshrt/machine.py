"""Machines: what the runtime asks of each of them, and which there are.

A machine is a folder of meshrt/ with a file machine.py in it, found by its name. It has

    open_machine(comm, board, *, default, payload, console, ...)   a `Machine` for this rank; what follows are options,
                                                                   declared as those of a program (meshrt/program.py)
    SHARED                                                         words that every machine understands for one of them:
                                                                   `size`, how many there are; `memory`, its limit
    PRESETS                                                        its devices, by name
    asked(report)                                                  its options as far as a report tells them, and the
                                                                   numbers of the device that they have changed
    SUMMARY                                                        what a sweep shows unless asked for other numbers
    TIMELINE                                                       what a page says over a trace of so many devices
    ONE_MEMORY, QUICK                                              not of the mesh: all share one memory; a run by shape
                                                                   takes no longer than an error's message may
    gather(machine)                                                all ranks' counters: `Measured` at rank 0, else None
    title(report), rows(report)                                    how a person reads that
    fullest(machine)                                               of those with a memory each, of which there are
                                                                   machine.count: `Held`, of this rank's
    with_memory(settings, nbytes)                                  options for devices with so much
    ceilings(report, part)                                         what it can do at most: meshrt/reports/ceilings.py
"""

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import field
from numbers import Integral
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from meshrt.errors import UsageError
from meshrt.records import dataclass


class Machine(Protocol):
    """This rank's part of a machine, which a program works on."""

    device: Any  # its numbers, a frozen dataclass
    payload: bool  # False: shapes for numbers
    control: Any  # for loading, gathering and reports; not counted
    console: Any

    @property
    def notes(self) -> dict[str, Any]:
        """What a program found of the host; rank 0's are in the report, under `host`."""
        ...

    def phase(self, name: str, tokens: int = ...) -> AbstractContextManager[Any]:
        """A named stretch of the run with counters of its own, which all ranks begin and end together. `tokens`: how
        many it is about. In the report a name that comes again is added to the phase that has it.
        """
        ...

    def close(self) -> None:
        """Give back what the process has few of."""
        ...


@dataclass(frozen=True, eq=False)
class Measured:
    """What a machine reports of a run, as the JSON has it; `more` are keys of its own."""

    device: Mapping[str, Any]
    size: tuple[int, int]
    whole: Mapping[str, Any]
    phases: Sequence[Mapping[str, Any]]
    host: Mapping[str, Any]
    more: Mapping[str, Any] = field(default_factory=dict)
    sampled: Iterable[str] = ()  # phases in which a part stood for others; "" is the whole run


@dataclass(frozen=True, eq=False)
class Held:
    """The most that one memory of a machine held in a run: where, by what name. `limit`: of the device."""

    nbytes: int
    limit: int
    index: int
    place: str
    holders: Mapping[str, int]


def check_phase(name: Any, tokens: Any) -> None:
    """UsageError for a phase whose name is no text, and for a number of tokens that is none."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"a phase is named {name!r}: give it a text")
    if tokens is not None and (not isinstance(tokens, Integral) or tokens < 0):
        raise UsageError(f"phase {name!r} is about {tokens!r} tokens: give a whole number from 0 on, or leave it away")


class InPhases(Protocol):
    """What is in one phase at a time, by its name; "" in none."""

    open_phase: str


@contextmanager
def one_phase(owner: InPhases, name: str, tokens: int | None) -> Iterator[None]:
    """A phase of a machine. UsageError as `check_phase`, and for one inside of another: what is done in it would be
    counted twice, or what comes after it in neither.
    """
    check_phase(name, tokens)
    if owner.open_phase:
        raise UsageError(f"phase {name!r} is inside phase {owner.open_phase!r}: one ends before the next begins")
    owner.open_phase = name
    try:
        yield
    finally:
        owner.open_phase = ""


def changed(report: Mapping[str, Any], presets: Mapping[str, Any], options: Mapping[str, str]) -> dict[str, Any]:
    """Of `options`, each with the number of the device that it replaces, those that a run was given: where a number is
    not the preset's. All of them for a device of the user's own.
    """
    device = report["device"]
    preset = presets.get(device["name"])
    return {
        option: device[number]
        for option, number in options.items()
        if preset is None or getattr(preset, number) != device[number]
    }


def machines() -> list[str]:
    """The names of all machines."""
    return sorted(path.parent.name for path in Path(__file__).parent.glob("*/machine.py"))


def find_machine(name: str) -> ModuleType:
    """The machine.py of that name, which is one of `machines()`."""
    return importlib.import_module(f"meshrt.{name}.machine")


def machine_of(device: Any) -> str | None:
    """The name of the machine that has such devices, also for one of a script's own; None for what is no device."""
    for name in machines():
        if isinstance(device, tuple({type(preset) for preset in find_machine(name).PRESETS.values()})):
            return name
    return None
