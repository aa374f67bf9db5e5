"""Options: what a program's `run`, or what opens a machine, takes by keyword, read off the signature.

tokens: Annotated[int, "how many to store", AtLeast(1)] = 16
"""

import inspect
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from meshrt.errors import UsageError
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


def options_of(name: str, function: Callable[..., Any]) -> tuple[Option, ...]:
    """The keyword arguments of a program's `run`, or of what opens a machine, as options. UsageError."""
    hints = get_type_hints(function, include_extras=True)
    keywords = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return tuple(_option(name, parameter, hints.get(parameter.name, str)) for parameter in keywords)


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
