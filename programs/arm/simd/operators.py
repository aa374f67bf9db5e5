"""Operators of graphs by instructions: what works on each number, and, in float32, what works along rows of them."""

from collections.abc import Sequence
from functools import lru_cache
from math import ceil

import numpy as np

from meshrt.arm.core import Team
from meshrt.arm.isa import Instruction, ld1, of, st1
from meshrt.arm.kernel import MicroKernel
from meshrt.programs.arm.simd import choices, exponent, functions
from meshrt.programs.arm.simd.softmax import softmax
from meshrt.programs.arm.simd.vectors import F32, laid, same, sweep, taken, units_of

Array = np.ndarray
# Abramowitz and Stegun 7.1.26: erf x = 1 - (t (c1 + t (c2 + ..))) e^(-x x), t = 1 / (1 + c0 x), within 1.5e-7.
ERF = (0.3275911, 0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def _raised(*after: Instruction) -> tuple[Instruction, ...]:
    """e^a in y, and what comes then."""
    return (*exponent.raised("a", "y", True), *after)


def _erf() -> tuple[Instruction, ...]:
    """In y; the sign of a, which only its highest bit says, is put back in the end."""
    lines = [
        of("fabs", "t", "a"), of("fmul", "u", "t", "c0"), of("fadd", "u", "u", "one"), of("fdiv", "u", "one", "u"),
        of("mov", "v", "c4"), of("fmla", "v", "c5", "u"),
    ]  # fmt: skip
    for name in ("c3", "c2", "c1"):
        lines += [of("fmul", "v", "v", "u"), of("fadd", "v", "v", name)]
    lines += [
        of("fmul", "v", "v", "u"), of("fmul", "t", "t", "t"), of("fneg", "t", "t"),
        *exponent.raised("t", "y", False), of("fmul", "v", "v", "y"), of("fsub", "v", "one", "v"),
        of("mov", "y", "sign"), of("bsl", "y", "a", "v"),
    ]  # fmt: skip
    return tuple(lines)


# What becomes of the registers a and b, and where it is then.
EACH: dict[str, tuple[tuple[Instruction, ...], str]] = {
    "Add": ((of("fadd", "a", "a", "b"),), "a"), "Sub": ((of("fsub", "a", "a", "b"),), "a"),
    "Mul": ((of("fmul", "a", "a", "b"),), "a"), "Div": ((of("fdiv", "a", "a", "b"),), "a"),
    "Max": ((of("fmax", "a", "a", "b"),), "a"), "Min": ((of("fmin", "a", "a", "b"),), "a"),
    "Abs": ((of("fabs", "a", "a"),), "a"), "Neg": ((of("fneg", "a", "a"),), "a"),
    "Sqrt": ((of("fsqrt", "a", "a"),), "a"), "Relu": ((of("fmax", "a", "a", "zero"),), "a"),
    "Reciprocal": ((of("fdiv", "a", "one", "a"),), "a"), "Exp": (_raised(), "y"),
    "Sigmoid": (
        (of("fneg", "a", "a"), *_raised(of("fadd", "y", "y", "one"), of("fdiv", "y", "one", "y"))), "y",
    ),
    "Tanh": (
        (of("fadd", "a", "a", "a"), *_raised(
            of("fadd", "y", "y", "one"), of("fdiv", "y", "one", "y"), of("fadd", "y", "y", "y"),
            of("fsub", "y", "one", "y"),
        )), "y",
    ),
    "Erf": (_erf(), "y"), "Log": (functions.logarithm(), "y"), "Sin": (functions.turning(False), "y"),
    "Cos": (functions.turning(True), "y"), "Pow": (functions.power(), "y"),
}  # fmt: skip
ALONG = {"ReduceSum": "fadd", "ReduceMean": "fadd", "ReduceMax": "fmax", "ReduceMin": "fmin"}
ROWS = (*ALONG, "Softmax")


# What else is in registers from the start.
CONSTANTS: dict[str, dict[str, float]] = {
    "Erf": {f"c{at}": number for at, number in enumerate(ERF)} | {"sign": -0.0},
    "Log": functions.LOG, "Sin": functions.TURN, "Cos": functions.TURN, "Pow": functions.POWER,
}  # fmt: skip


@lru_cache
def each_kernel(op: str, kinds: str) -> MicroKernel | None:
    """Of the numbers of a step of one operand or more, of these kinds (choices.py); None if there is none."""
    if op not in EACH or set(kinds) != {"f"}:
        return choices.kernel(op, kinds)
    lines, result = EACH[op]
    names = {name for line in lines for name in line.of}
    own = tuple(CONSTANTS.get(op, ()))
    before = [ld1(own, "constants")] if own else []
    if "log2e" in names:
        before.append(exponent.load())
    elif "one" in names - {*own}:
        before.append(of("fmov", "one", at=1))
    before += [of("movi", "zero", at=0)] if "zero" in names else []
    loads = [ld1((name,), name) for name in "ab"[: len(kinds)]]
    return MicroKernel(op, tuple(before), (*loads, *lines, st1((result,), "y")), ())


def each(team: Team, kernel: MicroKernel, given: Sequence[Array | None], nbytes: int) -> Array | None:
    """An operator on each number, of [steps, numbers of one] of every operand; steps are the team's units.

    Bytes [steps, `nbytes` of a step].
    """
    count = len(units_of(team))
    inputs: dict[str, Array | None] = {
        name: None if operand is None else np.ascontiguousarray(operand).view(np.uint8)[:, None]
        for name, operand in zip("abc", given, strict=False)
    }
    inputs["exponent"] = exponent.constants()
    if kernel.name in CONSTANTS:
        inputs["constants"] = functions.constants(CONSTANTS[kernel.name])
    stored = sweep(team, kernel, (count,), 1, inputs, {"y": nbytes})
    return None if stored is None else stored["y"][:, 0]


@lru_cache
def along_kernel(op: str) -> MicroKernel:
    """Of four numbers of a row, and those before; in the end of the four."""
    name = ALONG[op]
    last = [of("faddp", "s", "s", "s"), of("faddp", "s", "s", "s")] if name == "fadd" else [of(name + "v", "s", "s")]
    last += [of("fmul", "s", "s", "share")] if op == "ReduceMean" else []
    before = (ld1(("s", "share"), "constants"),)
    return MicroKernel(op, before, (ld1(("a",), "a"), of(name, "s", "s", "a")), (*last, st1(("s",), "y")))


def along(team: Team, op: str, k: int, rows: Array | None) -> Array | None:
    """Sums, means, the largest or the least of float32 [rows, k], [rows]; or, of Softmax, shares [rows, k]."""
    count = len(units_of(team))
    if op == "Softmax":
        shares = softmax(team, 1, k, None if rows is None else rows[:, None], True)
        return None if shares is None else shares[:, 0]
    begin = {"fadd": 0.0, "fmax": -np.inf, "fmin": np.inf}[ALONG[op]]
    missing = -k % 4
    full = None if rows is None else np.pad(rows, ((0, 0), (0, missing)), constant_values=begin)
    inputs = {"a": laid(full, 4), "constants": same(begin, 1 / k)}
    stored = sweep(team, along_kernel(op), (count,), ceil(k / 4), inputs, {}, {"y": 16})
    return None if stored is None else taken(stored["y"], F32, 4)[:, 0]
