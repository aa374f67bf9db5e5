"""Bounds that measurements have to keep, as a CI job states them: `entries=12,hops=2,stages~N^0.5`."""

import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan

from meshrt.errors import MeshrtError, UsageError
from meshrt.studies.plmr import growth
from meshrt.studies.plmr.growth import Growth

HOLDS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    "<=": (operator.le, "at most"),
    "=": (operator.le, "at most"),
    ">=": (operator.ge, "at least"),
    "<": (operator.lt, "less than"),
    ">": (operator.gt, "more than"),
}


class BrokenError(MeshrtError):
    """A stated bound does not hold."""

    exit_code = 3


@dataclass(frozen=True)
class Expectation:
    """A bound on one metric: on its value at every N, or (`~`) on the power of N by which it grows."""

    metric: str
    relation: str
    bound: float
    text: str  # the bound as it was written


def parse(texts: Sequence[str], metrics: Sequence[str]) -> list[Expectation]:
    """'entries=12,hops~1', ... -> the bounds. `=` is <=: what is measured may be better. UsageError."""
    expectations = []
    for text in (part.strip() for whole in texts for part in whole.split(",")):
        match = re.fullmatch(r"(\w+)\s*(<=|>=|=|<|>|~)\s*(\S.*)", text)
        if match is None:
            raise UsageError(f"--expect {text!r} is not METRIC=BOUND or METRIC~GROWTH, such as hops=2 or stages~N^0.5")
        metric, relation, bound = match.groups()
        if metric not in metrics:
            raise UsageError(f"--expect {text!r}: no metric {metric!r}; there are {', '.join(metrics)}")
        if relation == "~":
            value = growth.parse(bound)
        else:
            try:
                value = float(bound)
            except ValueError:
                value = nan
            if not isfinite(value):
                raise UsageError(f"--expect {text!r}: {bound!r} is no finite number")
        expectations.append(Expectation(metric, relation, value, bound))
    return expectations


def broken(expectation: Expectation, values: Mapping[int, float | None], grows: Growth) -> list[str]:
    """What does not hold, a line each, given what was measured at every N: nothing at all breaks a bound as well."""
    if expectation.relation == "~":
        if grows.exponent is None and not grows.appears:
            return [f"{expectation.metric} was measured at too few N to grow as {expectation.text}"]
        if not grows.faster_than(expectation.bound):
            return []
        fitted = "" if grows.exponent is None else f" (fitted exponent {grows.exponent:.2f})"
        return [f"{expectation.metric} grows as {grows.name}{fitted}, expected {expectation.text}"]
    holds, words = HOLDS[expectation.relation]
    lines = []
    for n, value in values.items():
        if value is None:
            lines.append(f"{expectation.metric} at N = {n} could not be measured, expected {words} {expectation.text}")
        elif not holds(value, expectation.bound):
            lines.append(f"{expectation.metric} at N = {n} is {value:.6g}, expected {words} {expectation.text}")
    return lines


def keep(lines: Sequence[str]) -> None:
    """BrokenError with these lines, if there are any; what was printed before it gets out first."""
    if lines:
        sys.stdout.flush()  # a rank that ends a job of several has no time to
        raise BrokenError("\n".join(["a stated bound does not hold", *lines]))
