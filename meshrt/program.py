"""Programs: a file with a function `run(block, *, options...)`, found by name, and its options read off the signature.

MACHINE = "mesh"                                   what it runs on; "neuron": run(cores, *, options...)
MESH = (8, 8)                                      the mesh it runs on unless --mesh says otherwise

def run(block, *, tokens: Annotated[int, "how many to store", AtLeast(1)] = 16) -> dict:
    \"\"\"First line: what `meshrt list` says of it. `meshrt run NAME --help` has all lines.\"\"\"
"""

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from meshrt.errors import UsageError, nearest
from meshrt.machine import find_machine, machines
from meshrt.records import dataclass

# What may follow the help in Annotated[kind, help, ...]:
HOST = "host"  # an option that says how a run is done, not what; reports leave it out


@dataclass(frozen=True)
class AtLeast:
    """The smallest value that a number may have."""

    least: float


@dataclass(frozen=True)
class AtMost:
    """The largest."""

    most: float


@dataclass(frozen=True)
class Choices:
    """The values that a text may have; with an `ending`, also files whose names end so."""

    names: tuple[str, ...]
    ending: str | None = None


@dataclass(frozen=True)
class Shown:
    """What `--help` puts for the value; of a flag, the name of its contrary."""

    text: str


@dataclass(frozen=True)
class Option:
    """One keyword argument of a program's run: a value of `kind`, or one of `choices`, from `least` to `most`."""

    name: str
    kind: type
    choices: tuple[str, ...]
    default: Any
    help: str
    reported: bool = True
    least: float | None = None
    most: float | None = None
    shown: str | None = None
    also: tuple[type, ...] = ()  # what a script may give instead
    words: tuple[str, ...] = ()  # what may be there in place of a number
    ending: str | None = None  # of names of files that may be there in place of a choice

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    def check(self, value: Any) -> Any:
        """The value, as `kind`. UsageError for what is of another kind, outside of the range or no choice."""
        if (value is None and self.default is None) or isinstance(value, self.also):
            return value
        if isinstance(value, str) and value in self.words:
            return value
        if self.kind in (int, float) and isinstance(value, (int, float)) and not isinstance(value, bool):
            if self.kind is int and not isinstance(value, int) and value != int(value):
                raise UsageError(f"{self.flag} is {value}; it is a whole number")
            low, high = (
                self.least is not None and not value >= self.least,
                self.most is not None and value > self.most,
            )
            if low or high:
                whole = (
                    f"is {self.least:g} to {self.most:.0f}" if self.most is not None else f"starts at {self.least:g}"
                )
                raise UsageError(f"{self.flag} is {value}; it {whole}")
        elif not isinstance(value, self.kind) and not self.choices:
            raise UsageError(f"{self.flag} is {value!r}; it is {WORDS[self.kind]}")
        if self.choices and value not in self.choices and not self.is_file(value):
            there_are = ", ".join((*self.choices, *([f"files as mine{self.ending}"] if self.ending else [])))
            raise UsageError(f"{self.flag} is {value!r}; there are {there_are}")
        return value

    def is_file(self, value: Any) -> bool:
        """Is that the name of a file that may be there in place of a choice?"""
        return self.ending is not None and isinstance(value, str) and value.endswith(self.ending)


WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "True or False"}


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

    def complete(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """All options with their values: those given, else the defaults. UsageError."""
        names = {option.name for option in self.options}
        if unknown := [name for name in arguments if name not in names]:
            hint = nearest(unknown[0], names, f"it has {', '.join(sorted(names))}")
            raise UsageError(f"{self.name} has no option {unknown[0]!r}: {hint}")
        values = {option.name: option.default for option in self.options} | dict(arguments)
        return {option.name: option.check(values[option.name]) for option in self.options}


def named(name: str) -> tuple[str, dict[str, Any]]:
    """The program that a name stands for, and the arguments: a packaged model's stands for its program and --model."""
    catalogue = importlib.import_module("meshrt.models.catalogue")
    return (catalogue.runner(name), {"model": name}) if name in catalogue.packaged() else (name, {})


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
    if name not in packaged_programs():
        there = [*packaged_programs(), *importlib.import_module("meshrt.models.catalogue").packaged()]
        hint = nearest(name, there, "`meshrt list` shows what there is; a file's name ends in .py")
        if Path(f"{name}.py").is_file():
            hint = f"did you mean the file {name}.py?"
        raise UsageError(f"no program or model {name!r}: {hint}")
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
    return Program(name, run, getattr(module, "MESH", (1, 1)), options, text.split("\n")[0], machine, text)


def options_of(name: str, function: Callable[..., Any]) -> tuple[Option, ...]:
    """The keyword arguments of a program's `run`, or of what opens a machine, as options. UsageError."""
    hints = get_type_hints(function, include_extras=True)
    keywords = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return tuple(_option(name, parameter, hints.get(parameter.name, str)) for parameter in keywords)


def settings_of(machine: str) -> dict[str, Option]:
    """The options of a machine, by name."""
    return {option.name: option for option in options_of(machine, find_machine(machine).open_machine)}


def _option(program: str, parameter: inspect.Parameter, hint: Any) -> Option:
    text = ""
    extras: list[Any] = []
    if get_origin(hint) is Annotated:
        hint, text, *extras = get_args(hint)
    others: list[Any] = []
    if get_origin(hint) in (Union, UnionType):
        hint, *others = (part for part in get_args(hint) if part is not NoneType)
    choices = tuple(map(str, get_args(hint))) if get_origin(hint) is Literal else ()
    kind = str if choices else hint
    words = tuple(word for other in others if get_origin(other) is Literal for word in get_args(other))
    also = tuple(get_origin(other) or other for other in others if get_origin(other) is not Literal)
    more: dict[str, Any] = {"choices": choices, "reported": HOST not in extras, "also": also, "words": words}
    for extra in extras:
        match extra:
            case AtLeast(least):
                more["least"] = least
            case AtMost(most):
                more["most"] = most
            case Choices(names, ending):
                more |= {"choices": names, "ending": ending}
            case Shown(shown):
                more["shown"] = shown
    if kind not in (int, float, str, bool):
        raise UsageError(f"{program}: option {parameter.name} is {kind}; it can be int, float, str, bool or a Literal")
    if parameter.default is parameter.empty:
        raise UsageError(f"{program}: option {parameter.name} needs a default value")
    return Option(parameter.name, kind, default=parameter.default, help=str(text), **more)
