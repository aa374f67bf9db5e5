"""Bounds that numbers have to keep, as a CI job states them: `hops=960,critical_path.cycles<=1e6`."""

import operator
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from meshrt.errors import MeshrtError, UsageError, nearest

HOLDS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    "<=": (operator.le, "at most"),
    "==": (operator.eq, "just"),
    "=": (operator.le, "at most"),
    ">=": (operator.ge, "at least"),
    "<": (operator.lt, "less than"),
    ">": (operator.gt, "more than"),
}


class BrokenError(MeshrtError):
    """A stated bound does not hold."""

    exit_code = 3


def keep(lines: Sequence[str]) -> None:
    """BrokenError with these lines, if there are any; what was printed before it gets out first."""
    if lines:
        sys.stdout.flush()  # a rank that ends a job of several has no time to
        raise BrokenError("\n".join(["a stated bound does not hold", *lines]))


def split(texts: Sequence[str], relations: str = "==|<=|>=|=|<|>") -> Iterator[tuple[str, str, str, str]]:
    """'hops=2,stages<3', ... -> the bound as it was written, and its name, relation and value. UsageError.

    A phase may be named anything: first token.hops=5.
    """
    for text in (part.strip() for whole in texts for part in whole.split(",")):
        match = re.fullmatch(rf"([^=<>~!]*[^=<>~!\s])\s*({relations})\s*([^\s=].*)", text)
        if match is None:
            raise UsageError(f"--expect {text!r} is no NAME, one of {relations.replace('|', ' ')}, and a bound: hops=2")
        name, relation, bound = match.groups()
        yield text, name, relation, bound


def number(text: str, bound: str) -> float:
    """The bound of an --expect. UsageError."""
    try:
        value = float(bound)
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise UsageError(f"--expect {text!r}: {bound!r} is no finite number")
    return value


def parse(texts: Sequence[str]) -> list[tuple[str, str, float]]:
    """The bounds of `meshrt run --expect`: name, relation, value. `=` is <=, what is measured may be better."""
    return [(name, relation, number(text, bound)) for text, name, relation, bound in split(texts)]


def broken(bounds: Sequence[tuple[str, str, float]], report: Mapping[str, Any]) -> list[str]:
    """What of a report does not hold, a line each.

    A name is a path in `measured`, in `result`, or from a phase's name on; or the end of one path of `measured`, as
    cycles. UsageError for a name that is none.
    """
    lines = []
    for name, relation, bound in bounds:
        value = find_number(name, report)
        holds, words = HOLDS[relation]
        if not holds(value, bound):
            lines.append(f"{name} is {value:.10g}, expected {words} {bound:.10g}")
    return lines


def find_number(name: str, report: Mapping[str, Any]) -> float:
    """The number of a report with that name, as `broken` has them. UsageError."""
    measured = dict(numbers_of(report["measured"]))
    others = dict(numbers_of(report["result"]))
    plain = [*measured, *others]
    for phase in report["phases"]:
        others |= {f"{phase['name']}.{path}": value for path, value in numbers_of(phase)}
    if name in measured or name in others:
        return measured[name] if name in measured else others[name]
    ends = [path for path in measured if path.endswith("." + name)]
    if len(ends) == 1:
        return measured[ends[0]]
    if ends:
        raise UsageError(f"{name!r} may be {' or '.join(ends)}")
    hint = nearest(name, [*measured, *others], f"there are {', '.join(plain)}, and those of a phase as PHASE.hops")
    raise UsageError(f"the report has no number {name!r}; {hint}")


def numbers_of(part: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in nested dictionaries, each with its path."""
    if isinstance(part, Mapping):
        for key, value in part.items():
            yield from numbers_of(value, f"{path}.{key}" if path else key)
    elif isinstance(part, (int, float)) and not isinstance(part, bool):
        yield path, part
