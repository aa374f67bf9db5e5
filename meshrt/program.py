"""Programs: a file with a function `run(block, *, options...)`, found by name, and its options read off the signature.

MACHINE = "mesh"                                   what it runs on; "neuron": run(cores, *, options...)
MESH = (8, 8)                                      the mesh it runs on unless --mesh says otherwise

def run(block, *, tokens: Annotated[int, "how many to store", AtLeast(1)] = 16) -> dict:
    \"\"\"First line: what `meshrt list` says of it. `meshrt run NAME --help` has all lines.\"\"\"
"""

import importlib
import importlib.util
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from operator import index
from pathlib import Path
from types import ModuleType
from typing import Any

from meshrt.errors import UsageError, nearest
from meshrt.machine import find_machine, machines
from meshrt.options import AtLeast, AtMost, Choices, Option, Shown, in_short, options_of
from meshrt.records import dataclass

__all__ = [  # with what users' programs have imported from here
    "AtLeast", "AtMost", "Choices", "Program", "Shown", "load_program", "named", "packaged_programs", "program_of",
    "settings_of",
]  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A program that can be run, with the arguments that its name stands for (a model's name stands for one)."""

    name: str
    run: Callable[..., dict[str, Any]]
    mesh: tuple[int, int]
    options: tuple[Option, ...]
    summary: str
    machine: str = "mesh"
    help: str = ""  # all that its docstring says

    def complete(self, arguments: Mapping[str, Any], script: bool = False) -> dict[str, Any]:
        """All options with their values: those given, else the defaults. UsageError, in which a `script` has options
        by their names, and the command by their flags.
        """
        names = {option.name for option in self.options}
        if unknown := [name for name in arguments if name not in names]:
            hint = nearest(unknown[0], names, f"it has {', '.join(sorted(names))}")
            raise UsageError(f"{self.name} has no option {unknown[0]!r}: {hint}")
        values = {option.name: option.default for option in self.options} | dict(arguments)
        return {
            option.name: option.check(values[option.name], option.name if script else None) for option in self.options
        }


def named(name: str) -> tuple[str, dict[str, Any]]:
    """The program that a name stands for, and the arguments: a packaged model's stands for its program and --model."""
    catalogue = importlib.import_module("meshrt.models.catalogue")
    return (catalogue.runner(name), {"model": name}) if catalogue.is_packaged(name) else (name, {})


def load_program(name: str, on: str | None = None) -> Program:
    """A packaged program by its name, or a user's own by the path of its FILE.py. UsageError.

    `on` asks for a machine by name: the program itself if it is for that one, or its like in meshrt.programs.MACHINE.
    """
    program = _load(name)
    if on in (None, program.machine):
        return program
    if on not in machines():
        there_are = f"there are {', '.join(machines())}"
        raise UsageError(f"no machine {on!r}: {nearest(str(on), machines(), there_are)}")
    other = f"meshrt.programs.{on}.{name}"
    if name.endswith(".py") or not _exists(other):
        raise UsageError(f"{name} does not run on {on!r}: it is for {program.machine}; leave --on away")
    return _describe(name, importlib.import_module(other))


def program_of(run: Callable[..., dict[str, Any]], on: str | None = None) -> Program:
    """A function `run(block, *, options...)` of a script or a notebook as a program, for the mesh or the machine `on`.

    UsageError.
    """
    from meshrt.ownprogram import audited  # most runs need none of it, and start sooner without

    module = ModuleType(run.__name__)
    vars(module).update(run=run, MACHINE=on or "mesh")
    return replace(_describe(run.__name__, module), run=audited(run))


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _load(name: str) -> Program:
    if name.endswith(".py"):
        from meshrt.ownprogram import guarded, load_file

        module = load_file(Path(name))
        program = _describe(Path(name).stem, module)
        return replace(program, run=guarded(name, module, program.run))
    if not _is_packaged(name):
        choices = [*packaged_programs(), *importlib.import_module("meshrt.models.catalogue").packaged()]
        hint = nearest(name, choices, "`meshrt list` shows what there is; a file's name ends in .py")
        if os.path.isfile(f"{name}.py"):  # Path.is_file refuses a name that is too long
            hint = f"did you mean the file {name}.py?"
        elif os.path.isdir(name) or importlib.import_module("meshrt.models.hub").is_hub_name(name):
            hint = f"did you mean `meshrt run llama --model {name}`, a folder or a model of the Hugging Face cache?"
        raise UsageError(f"no program or model {name!r}: {hint}")
    return _describe(name, importlib.import_module(f"meshrt.programs.{name}"))


def is_runnable(name: str) -> bool:
    """Is it the name of a packaged program or model, or a file's that may be a program?"""
    catalogue = importlib.import_module("meshrt.models.catalogue")
    return name.endswith(".py") or name in packaged_programs() or catalogue.is_packaged(name)


def packaged_programs() -> list[str]:
    """The names of the programs that come with meshrt: the files of meshrt/programs."""
    return sorted(path.stem for path in _folder().glob("*.py") if path.stem != "__init__" and _has_run(path))


def _is_packaged(name: str) -> bool:
    """Is it one of those? Found without a look at the others."""
    folder, file = _folder(), f"{name}.py"
    return name != "__init__" and file in os.listdir(folder) and _has_run(folder / file)


def _folder() -> Path:
    folder = Path(__file__).parent / "programs"
    if not folder.is_dir():  # installed: the subpackage may lie elsewhere
        folder = Path(str(importlib.import_module("meshrt.programs").__path__[0]))
    return folder


def _has_run(path: Path) -> bool:
    """Is it a program, and not a part of one? Told from the text, so that a listing imports nothing."""
    return "\ndef run(" in path.read_text()


def _describe(name: str, module: ModuleType) -> Program:
    run = getattr(module, "run", None)
    if not callable(run):
        raise UsageError(f"{name} has no function run(block, *, ...): that is what makes a file a program")
    parameters = [*inspect.signature(run).parameters.values()]
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise UsageError(f"{name}: run has no argument for the cores: it is run(block, *, ...)")
    first, *others = parameters
    if plain := [p.name for p in others if p.kind is p.POSITIONAL_OR_KEYWORD]:
        raise UsageError(
            f"{name}: run({first.name}, {', '.join(plain)}): put a * before {plain[0]}, which makes options of what"
            f" follows: run({first.name}, *, {plain[0]}=...)"
        )
    options = options_of(name, run)
    text = inspect.getdoc(run) or inspect.getdoc(module) or ""
    machine = getattr(module, "MACHINE", "mesh")
    if machine not in machines():
        raise UsageError(f"{name}: MACHINE is {machine!r}; there are {', '.join(machines())}")
    return Program(name, run, _mesh_of(name, module), options, text.split("\n")[0], machine, text)


def _mesh_of(name: str, module: ModuleType) -> tuple[int, int]:
    """The mesh that a program runs on unless it is asked for another. UsageError."""
    sides = getattr(module, "MESH", (1, 1))
    try:
        width, height = map(index, sides)
        if min(width, height) >= 1:
            return width, height
    except (TypeError, ValueError):
        pass
    raise UsageError(f"{name}: MESH is {in_short(sides)}; it is (WIDTH, HEIGHT), such as (8, 8)")


def settings_of(machine: str) -> dict[str, Option]:
    """The options of a machine, by name."""
    return {option.name: option for option in _settings_of(machine)}


@cache
def _settings_of(machine: str) -> tuple[Option, ...]:
    options = options_of(machine, find_machine(machine).open_machine)
    return tuple(replace(option, machine=machine) for option in options)


def written_by(program: Program, values: Mapping[str, Any]) -> dict[str, Any]:
    """What a run with these options, its own and its machine's, writes: files and folders, by the flags of the options.

    A prefix of files' names is none of them.
    """
    options = (*program.options, *settings_of(program.machine).values())
    written = [option for option in options if option.written and option.shown != "PREFIX"]
    return {option.flag: values[option.name] for option in written if values.get(option.name) is not None}


def checked_settings(machine: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Values of options of a machine, in their ranges, as `Option.check` gives them. UsageError."""
    options = settings_of(machine)
    return {name: options[name].check(value) if name in options else value for name, value in settings.items()}
