"""Options: what a program's `run`, or what opens a machine, takes by keyword, read off the signature.

tokens: Annotated[int, "how many to store", AtLeast(1)] = 16
"""

import inspect
import os
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from math import isfinite
from numbers import Integral, Real
from sys import float_info
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from meshrt.errors import UsageError
from meshrt.records import dataclass
from meshrt.whole import LARGEST

# What may follow the help in Annotated[kind, help, ...]:
HOST = "host"  # an option that says how a run is done, not what; reports leave it out
FILE = "file"  # a text that may name a file or a folder: a script may give a path, such as pathlib's
WRITTEN = "written"  # one that a run writes: of several runs each wants its own


@dataclass(frozen=True)
class AtLeast:
    """The smallest value that a number may have."""

    least: float


@dataclass(frozen=True)
class AtMost:
    """The largest."""

    most: float


@dataclass(frozen=True)
class Above:
    """What a number has to be greater than."""

    above: float


@dataclass(frozen=True)
class Below:
    """What it has to be less than."""

    below: float


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
class Listed:
    """A text of numbers or words with that `between`, such as 1,2,3: a script may give one of them, or several as a
    list, a tuple or an array. Of ";," those of a list have ; between, and their own parts a comma.
    """

    between: str = ","


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
    above: float | None = None
    below: float | None = None
    shown: str | None = None
    also: tuple[type, ...] = ()  # what a script may give instead
    words: tuple[str, ...] = ()  # what may be there in place of a number
    ending: str | None = None  # of names of files that may be there in place of a choice
    machine: str = ""  # that it is an option of, if of none of a program's own
    literals: tuple[Any, ...] = ()  # what the choices are to the program, if no texts
    file: bool = False  # may it be a path?
    written: bool = False  # does a run write it?
    between: str = ""  # what is between the parts of a text that a script may give one by one

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    def check(self, value: Any, said: str | None = None) -> Any:
        """The value, as the command line has it: NumPy's numbers as Python's, (W, H) as "WxH" and [1, 2] as "1,2" where
        the option is such a text, a path as its text, a number or a dtype that is one of the choices as its name.
        UsageError, by the name that was `said`, else the flag, for what is of another kind, outside of the range or no
        choice. True and False are no numbers.
        """
        said = said or self.flag
        if value is None and self.default is None:
            return value
        value = self._as_said(value)
        if isinstance(value, bool) and self.kind in (int, float) and bool not in self.also:
            raise UsageError(f"{said} is {value}; it is {self._words()}")
        if isinstance(value, self.also):
            return value
        if isinstance(value, str) and value in self.words:
            return value
        if self.kind in (int, float) and isinstance(value, Real) and not isinstance(value, bool):
            return self._number(int(value) if isinstance(value, Integral) else value, said)
        if not isinstance(value, self.kind) and not self.choices:
            raise UsageError(f"{said} is {in_short(value)}; it is {self._words()}{_way_out(value)}")
        if self.choices and (not isinstance(value, str) or value not in self.choices) and not self.is_file(value):
            there_are = ", ".join((*self.choices, *([f"files as mine{self.ending}"] if self.ending else [])))
            on = f"on {self.machine} " if self.machine else ""
            raise UsageError(f"{said} is {in_short(value)}; {on}there are {there_are}{_way_out(value)}")
        return self.literals[self.choices.index(value)] if self.literals else value

    def _as_said(self, value: Any) -> Any:
        """What a script has given, where the command line has a text or a number for it: that; else the value."""
        value = pythons(value)
        if (self.file or self.ending) and isinstance(value, os.PathLike):
            return os.fsdecode(value)
        if self.choices:
            if isinstance(value, type):  # np.float16, and the dtype of that name
                value = value.__name__ if value.__name__ in self.choices else value
            elif hasattr(value, "itemsize") and getattr(value, "name", None) in self.choices:
                value = value.name
            elif isinstance(value, Real):
                text = str(int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value)
                value = text if text in self.choices else value
        between = "x" if self._two else self.between
        if several(value) is not None or (self.between and isinstance(value, Real) and not isinstance(value, bool)):
            return _joined(value, between) if between else value
        return value

    def _number(self, value: Any, said: str) -> int | float:
        """A number as `kind`, in the range. UsageError."""
        if self.kind is int and not (isinstance(value, int) or (isfinite(value) and value == int(value))):
            raise UsageError(f"{said} is {value}; it is a whole number")
        high_enough = (self.least is None or value >= self.least) and (self.above is None or value > self.above)
        if not (
            high_enough and (self.most is None or value <= self.most) and (self.below is None or value < self.below)
        ):
            raise UsageError(f"{said} is {value}; it {self._range()}")
        if self.kind is int and abs(value) > LARGEST:
            raise UsageError(f"{said} is {value}; it is a whole number of at most {LARGEST}")
        try:
            return int(value) if self.kind is int else float(value)
        except OverflowError:  # of a whole number, which has no end
            raise UsageError(f"{said} is {in_short(value)}; it is a number of at most {float_info.max:.3g}") from None

    def _range(self) -> str:
        """Where a number lies."""
        if self.least is not None and self.below is None:
            return f"starts at {self.least:.16g}" if self.most is None else f"is {self.least:.16g} to {self.most:.16g}"
        ends = (
            (self.least, "at least {}"),
            (self.above, "above {}"),
            (self.most, "{} at most"),
            (self.below, "below {}"),
        )
        return "is " + " and ".join(words.format(f"{end:.16g}") for end, words in ends if end is not None)

    def _words(self) -> str:
        """What a value is."""
        if self._two:
            return f"{self.shown} or ({', '.join(str(self.shown).split('x'))})"
        about = self.help.split("  [default")[0].rstrip(".") if self.kind is str else ""
        return f"{WORDS[self.kind]}{f' ({about})' if about else ''}"

    @property
    def _two(self) -> bool:
        """Is it two sizes, such as WxH, that a script may give as two numbers?"""
        return tuple in self.also and re.fullmatch("[A-Z]x[A-Z]", self.shown or "") is not None

    def is_file(self, value: Any) -> bool:
        """Is that the name of a file that may be there in place of a choice?"""
        return self.ending is not None and isinstance(value, str) and value.endswith(self.ending)


WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "True or False"}


def pythons(value: Any) -> Any:
    """NumPy's numbers, bools and texts, also as arrays without dimensions, as Python's; anything else as it is."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def several(value: Any) -> list[Any] | None:
    """The parts of a list, a tuple, a range or an array with dimensions; None of anything else."""
    if isinstance(value, (list, tuple, range)):
        return list(value)
    shape = getattr(value, "shape", None)
    return list(value.tolist()) if isinstance(shape, tuple) and shape and hasattr(value, "tolist") else None


def _joined(value: Any, between: str) -> str:
    """The text of a value, or of its parts with the first of the signs between them, and of theirs with the next."""
    parts = several(value) if between else None
    if parts is not None:
        return between[0].join(_joined(part, between[1:]) for part in parts)
    whole = isinstance(value, Real) and not isinstance(value, (bool, Integral)) and float(value).is_integer()
    return str(int(value) if whole else value)


def in_short(value: Any) -> str:
    """A value as Python shows it, on one line, without the middle where it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 300 else f"{text[:150]} ... {text[-100:]}"


def _way_out(value: Any) -> str:
    """Behind what is said of several values where there is to be one."""
    parts = several(value) is not None or (hasattr(value, "__iter__") and not isinstance(value, (str, bytes)))
    return "; `meshrt.sweep` runs each value of a list" if parts else ""


def options_of(name: str, function: Callable[..., Any]) -> tuple[Option, ...]:
    """The keyword arguments of a program's `run`, or of what opens a machine, as options. UsageError."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise UsageError(f"{name}: what an option of run is said to be is nothing that there is: {error}") from error
    keywords = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return tuple(_option(name, parameter, hints.get(parameter.name, _kind_of(parameter))) for parameter in keywords)


def _kind_of(parameter: inspect.Parameter) -> type:
    """Of an option of which nothing is said: that of its default, else a text."""
    kind = type(parameter.default)
    return kind if kind in (int, float, bool) else str


Result = TypeVar("Result")


def grouped(run: Callable[..., Result]) -> Callable[..., Result]:
    """A program's `run` of which keywords may be groups, dataclasses of options: it takes their fields in their place.

    @grouped
    def run(block, *, sampling: Sampling, tokens: Annotated[int, "how many", AtLeast(1)] = 16): ...
    """
    hints, parameters = get_type_hints(run, include_extras=True), inspect.signature(run).parameters.values()
    groups = {parameter.name: hints[parameter.name] for parameter in parameters if is_dataclass(hints[parameter.name])
              and parameter.kind is parameter.KEYWORD_ONLY}  # fmt: skip
    names = {name: [field.name for field in fields(group)] for name, group in groups.items()}

    @wraps(run)
    def takes_options(*machine: Any, **options: Any) -> Result:
        given = {
            name: group(**{field: options.pop(field) for field in names[name] if field in options})
            for name, group in groups.items()
        }
        return run(*machine, **given, **options)

    flat = []
    for parameter in parameters:
        if parameter.name in groups:
            kinds = get_type_hints(groups[parameter.name], include_extras=True)
            flat += [
                parameter.replace(name=field.name, annotation=kinds[field.name], default=field.default)
                for field in fields(groups[parameter.name])
            ]
        else:
            flat.append(parameter.replace(annotation=hints[parameter.name]))
    takes_options.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]  # what inspect.signature looks at
    takes_options.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return takes_options


def values_of(*groups: Any) -> dict[str, Any]:
    """The options of such groups by name."""
    return {field.name: getattr(group, field.name) for group in groups for field in fields(group)}


def _option(program: str, parameter: inspect.Parameter, hint: Any) -> Option:
    text = ""
    extras: list[Any] = []
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        at = next((at for at, extra in enumerate(extras) if isinstance(extra, str)), None)
        if at is not None and (at == 0 or extras[at] not in (HOST, FILE, WRITTEN)):
            text = extras.pop(at)
    others: list[Any] = []
    if get_origin(hint) in (Union, UnionType):
        hint, *others = (part for part in get_args(hint) if part is not NoneType)
    literals = get_args(hint) if get_origin(hint) is Literal else ()
    choices = tuple(map(str, literals))
    kind = str if choices else hint
    words = tuple(word for other in others if get_origin(other) is Literal for word in get_args(other))
    also = tuple(get_origin(other) or other for other in others if get_origin(other) is not Literal)
    more: dict[str, Any] = {"choices": choices, "also": also, "words": words}
    if not all(isinstance(literal, str) for literal in literals):
        more["literals"] = literals
    more |= {"reported": HOST not in extras, "file": FILE in extras or WRITTEN in extras, "written": WRITTEN in extras}
    for extra in extras:
        match extra:
            case AtLeast(least):
                more["least"] = least
            case AtMost(most):
                more["most"] = most
            case Above(above):
                more["above"] = above
            case Below(below):
                more["below"] = below
            case Choices(names, ending):
                more |= {"choices": names, "ending": ending}
            case Shown(shown):
                more["shown"] = shown
            case Listed(between):
                more["between"] = between
    if kind not in (int, float, str, bool):
        raise UsageError(f"{program}: option {parameter.name} is {kind}; it can be int, float, str, bool or a Literal")
    if parameter.default is parameter.empty:
        raise UsageError(f"{program}: option {parameter.name} needs a default value")
    return Option(parameter.name, kind, default=parameter.default, help=str(text), **more)
