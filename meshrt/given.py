"""What a script names of a program: its file or function, and options of it and of its machine by keyword."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from meshrt.errors import UsageError
from meshrt.machine import find_machine, machine_of
from meshrt.options import in_short
from meshrt.program import Program, load_program, named, program_of, settings_of

Own = Callable[..., dict[str, Any]]  # a program: run(block, *, ...)


def options_of(
    program: Own | str | Path, on: str | None, options: Mapping[str, Any]
) -> tuple[Program, dict[str, Any], dict[str, Any]]:
    """The program, its own options and those of its machine, checked. UsageError."""
    if not isinstance(program, (str, PathLike)) and not hasattr(program, "__code__"):
        raise UsageError(
            f"program is {in_short(program)}; it is the name of a program or a model, the path of a FILE.py, or a"
            " function run(block, *, ...), such as lambda block: other(block, 3)"
        )
    if callable(program):
        loaded, fixed = program_of(program, on), dict[str, Any]()
    else:
        name, fixed = named(str(program))
        loaded = load_program(name, on)
    machine_options = settings_of(loaded.machine)
    names = {option.name for option in loaded.options}
    values = dict(options)
    shared = {word: name for word, name in find_machine(loaded.machine).SHARED.items() if word not in names}
    said = {}
    for word, name in shared.items():
        if word in values:
            if name in values:
                raise UsageError(f"{word} and {name} say the same thing: give one of them")
            values[name], said[name] = values.pop(word), word
    settings = {name: values.pop(name) for name in list(values) if name in machine_options and name not in names}
    if not isinstance(device := settings.get("device", ""), str) and machine_of(device) not in (None, loaded.machine):
        raise UsageError(
            f"device {device.name} is of {machine_of(device)}, and {loaded.name} runs on {loaded.machine}: give"
            f" on={machine_of(device)!r}, or another device"
        )
    settings = {name: machine_options[name].check(value, said.get(name, name)) for name, value in settings.items()}
    if unknown := [name for name in values if name not in names]:
        raise UsageError(
            f"{loaded.name} has no option {unknown[0]!r}; it has {', '.join(sorted(names)) or 'none'}, and"
            f" {loaded.machine} has {', '.join([*machine_options, *shared])}"
        )
    arguments = fixed | values
    loaded.complete(arguments, script=True)
    return loaded, arguments, settings
