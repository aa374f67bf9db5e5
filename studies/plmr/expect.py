"""Bounds that measurements have to keep, as a CI job states them: `entries=12,hops=2,stages~N^0.5`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshrt.errors import UsageError
from meshrt.studies.bounds import HOLDS, number, split
from meshrt.studies.plmr import growth
from meshrt.studies.plmr.growth import Growth


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
    for text, metric, relation, bound in split(texts, "==|<=|>=|=|<|>|~"):
        if metric not in metrics:
            raise UsageError(f"--expect {text!r}: no metric {metric!r}; there are {', '.join(metrics)}")
        value = growth.parse(bound) if relation == "~" else number(text, bound)
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
