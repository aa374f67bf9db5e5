"""Programs: a file with a function `run(block, *, options...)`, found by name, and its options read off the signature.

MACHINE = "mesh"                                   what it runs on; "neuron": run(cores, *, options...)
MESH = (8, 8)                                      the mesh it runs on unless --mesh says otherwise

def run(block, *, tokens: Annotated[int, "how many to store"] = 16) -> dict:
    \"\"\"First line: what `meshrt list` says of it. `meshrt run NAME --help` has all lines.\"\"\"
"""

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from meshrt.errors import UsageError
from meshrt.ownprogram import guarded, load_file

MACHINES = ("mesh", "neuron", "gpu")
HOST = "host"  # Annotated[kind, help, HOST]: an option that says how a run is done, not what; reports leave it out


@dataclass(frozen=True)
class Option:
    """One keyword argument of a program's run: a value of `kind`, or one of `choices`."""

    name: str
    kind: type
    choices: tuple[str, ...]
    default: Any
    help: str
    reported: bool = True


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


def load_program(name: str, on: str | None = None) -> Program:
    """A packaged program by its name, or a user's own by the path of its FILE.py. UsageError.

    `on` asks for a machine by name: the program itself if it is for that one, or its like in meshrt.programs.MACHINE.
    """
    program = _load(name)
    if on in (None, program.machine):
        return program
    other = f"meshrt.programs.{on}.{name}"
    if on not in MACHINES or name.endswith(".py") or not _exists(other):
        raise UsageError(f"{name} does not run on {on!r}: it is for {program.machine}; leave --on away")
    return _describe(name, importlib.import_module(other))


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _load(name: str) -> Program:
    if name.endswith(".py"):
        module = load_file(Path(name))
        program = _describe(Path(name).stem, module)
        return replace(program, run=guarded(name, module, program.run))
    if name not in packaged_programs():
        raise UsageError(f"no program or model {name!r}: `meshrt list` shows what there is; a file's name ends in .py")
    return _describe(name, importlib.import_module(f"meshrt.programs.{name}"))


def packaged_programs() -> list[str]:
    """The names of the programs that come with meshrt: the files of meshrt/programs."""
    folder = Path(__file__).parent / "programs"
    if not folder.is_dir():  # installed: the subpackage may lie elsewhere
        folder = Path(str(importlib.import_module("meshrt.programs").__path__[0]))
    return sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__" and _has_run(path))


def _has_run(path: Path) -> bool:
    """Is it a program, and not a part of one? Told from the text, so that a listing imports nothing."""
    return "\ndef run(" in path.read_text()


def _describe(name: str, module: ModuleType) -> Program:
    run = getattr(module, "run", None)
    if not callable(run):
        raise UsageError(f"{name} has no function run(block, *, ...): that is what makes a file a program")
    hints = get_type_hints(run, include_extras=True)
    parameters = [*inspect.signature(run).parameters.values()]
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise UsageError(f"{name}: run has no argument for the cores: it is run(block, *, ...)")
    first, *others = parameters
    keywords = [p for p in others if p.kind is p.KEYWORD_ONLY]
    if plain := [p.name for p in others if p.kind is p.POSITIONAL_OR_KEYWORD]:
        raise UsageError(
            f"{name}: run({first.name}, {', '.join(plain)}): put a * before {plain[0]}, which makes options of what"
            f" follows: run({first.name}, *, {plain[0]}=...)"
        )
    options = tuple(_option(name, parameter, hints.get(parameter.name, str)) for parameter in keywords)
    text = inspect.getdoc(run) or inspect.getdoc(module) or ""
    machine = getattr(module, "MACHINE", "mesh")
    if machine not in MACHINES:
        raise UsageError(f"{name}: MACHINE is {machine!r}; there are {', '.join(MACHINES)}")
    return Program(name, run, getattr(module, "MESH", (1, 1)), options, text.split("\n")[0], machine, text)


def _option(program: str, parameter: inspect.Parameter, hint: Any) -> Option:
    text, reported = "", True
    if get_origin(hint) is Annotated:
        reported = HOST not in get_args(hint)[2:]
        hint, text = get_args(hint)[:2]
    if get_origin(hint) in (Union, UnionType):
        hint = next(part for part in get_args(hint) if part is not NoneType)
    choices = tuple(map(str, get_args(hint))) if get_origin(hint) is Literal else ()
    kind = str if choices else hint
    if kind not in (int, float, str, bool):
        raise UsageError(f"{program}: option {parameter.name} is {kind}; it can be int, float, str, bool or a Literal")
    if parameter.default is parameter.empty:
        raise UsageError(f"{program}: option {parameter.name} needs a default value")
    return Option(parameter.name, kind, choices, parameter.default, str(text), reported)
