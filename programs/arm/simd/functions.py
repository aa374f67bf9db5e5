"""Logarithm, sine, cosine and power by instructions, of four numbers of float32.

Polynomials of sines are those of Cephes (sinf.c), that of the logarithm the series of the inverse
hyperbolic tangent. The registers that they are given and lose are named as in operators.py: a and b, the result in y.
"""

from math import log, pi

import numpy as np

from meshrt.arm.isa import Instruction, of
from meshrt.programs.arm.simd import exponent
from meshrt.programs.arm.simd.vectors import same

InstructionSeries = tuple[Instruction, ...]
FARTHEST = 2.0**20  # of sines: beyond, neighbours of float32 are an eighth apart, and more
SERIES = {"s4": 2 / 9, "s3": 2 / 7, "s2": 2 / 5, "s1": 2 / 3}  # of log((1 + s) / (1 - s)) - 2 s; s to 0.172
SINE = {"s3": -1.9515295891e-4, "s2": 8.3321608736e-3, "s1": -1.6666654611e-1}
COSINE = {"c4": 2.443315711809948e-5, "c3": -1.388731625493765e-3, "c2": 4.166664568298827e-2, "c1": -0.5, "one": 1}
HIGH = float(exponent.HIGH.view(np.float32))
PI_1 = float(np.float32(pi / 2))
PI_2 = float(np.float32(pi / 2 - PI_1))

# Constants by their registers. pi / 2 is in three parts, log 2 in two: what is left of near multiples is exact.
POWER = {"root": 0.5**0.5, "tiny": 2.0**-126, "two": 2.0, **SERIES, "infinity": np.inf, "none": np.nan}
LOG = POWER | {"one": 1.0, "high": HIGH, "low": log(2) - HIGH}
TURN = {
    "turns": 2 / pi, "p1": PI_1, "p2": PI_2, "p3": pi / 2 - PI_1 - PI_2, **SINE, **COSINE, "sign": -0.0,
    "farthest": FARTHEST, "none": np.nan,
}  # fmt: skip


def constants(registers: dict[str, float]) -> np.ndarray:
    """In memory."""
    return same(*registers.values())


def _series(x: str, y: str, names: tuple[str, ...], other: str) -> InstructionSeries:
    """y = a polynomial in x, the coefficient of its highest power first; `other` is lost."""
    targets = (y, other) if len(names) % 2 == 0 else (other, y)
    lines: InstructionSeries = ()
    before = names[0]
    for at, name in enumerate(names[1:]):
        lines += (of("mov", targets[at % 2], name), of("fmla", targets[at % 2], before, x))
        before = targets[at % 2]
    assert before == y, "the last one is in y"
    return lines


def _split_log() -> InstructionSeries:
    """Of a, normal and above 0: log a = m + e log 2, where m is at most half of log 2; n, p, u, v and y are lost."""
    return (
        of("sub_4s", "y", "a", "root"), of("sshr_4s", "y", "y", at=23), of("shl_4s", "u", "y", at=23),
        of("sub_4s", "n", "a", "u"), of("scvtf", "e", "y"), of("fsub", "u", "n", "one"), of("fadd", "y", "n", "one"),
        of("fdiv", "p", "u", "y"), of("fmul", "v", "p", "p"), *_series("v", "u", tuple(SERIES), "y"),
        of("fmul", "v", "v", "p"), of("fmul", "m", "p", "two"), of("fmla", "m", "u", "v"),
    )  # fmt: skip


def logarithm() -> InstructionSeries:
    """y = log a: -infinity of 0, no number of less. What is nearer to 0 than 2^-126 counts as that."""
    return (
        of("mov", "x", "a"), of("fmax", "a", "a", "tiny"), *_split_log(), of("fmla", "m", "e", "low"),
        of("fmla", "m", "e", "high"),
        of("fcmgt", "y", "infinity", "x"), of("bsl", "y", "m", "x"),
        of("fsub", "v", "one", "one"), of("fcmgt", "v", "v", "x"), of("bsl", "v", "none", "y"),
        of("fneg", "u", "infinity"), of("fcmeq0", "y", "x"), of("bsl", "y", "u", "v"),
    )  # fmt: skip


def turning(cosine: bool) -> InstructionSeries:
    """y = sin a, or cos a: of what a is beyond a quarter of a turn, by which quarter it is. No number beyond 2^20."""
    odd, even = ("u", "c") if cosine else ("c", "u")
    moved = (of("shl_4s", "s", "s", at=31), of("eor", "n", "n", "s")) if cosine else ()
    return (
        of("fmul", "n", "a", "turns"), of("frintn", "n", "n"), of("mov", "x", "a"), of("fmls", "x", "n", "p1"),
        of("fmls", "x", "n", "p2"), of("fmls", "x", "n", "p3"), of("fmul", "v", "x", "x"),
        *_series("v", "s", tuple(SINE), "t"), of("fmul", "t", "v", "x"), of("mov", "u", "x"), of("fmla", "u", "s", "t"),
        *_series("v", "c", tuple(COSINE), "t"),
        of("fcvtns", "n", "n"), of("shl_4s", "s", "n", at=31), of("sshr_4s", "s", "s", at=31),
        of("mov", "y", "s"), of("bsl", "y", odd, even), of("shl_4s", "n", "n", at=30), *moved,
        of("and", "n", "n", "sign"), of("eor", "t", "y", "n"),
        of("fabs", "a", "a"), of("fcmge", "y", "farthest", "a"), of("bsl", "y", "t", "none"),
    )  # fmt: skip


def power() -> InstructionSeries:
    """y = a to the power of b: the square of e^(b/2 log |a|), for which b log |a| has what it was rounded by beside it.

    Of 0, infinity and what is below 0 it is what NumPy's is.
    """
    return (
        of("mov", "x", "a"), of("fabs", "w", "a"), of("fmax", "a", "w", "tiny"), *_split_log(),
        of("fmla", "m", "e", "low"), of("fmul", "y", "e", "high"), of("fadd", "a", "y", "m"),
        of("fsub", "y", "y", "a"), of("fadd", "v", "y", "m"),  # log |a| = a + v
        of("fdiv", "u", "b", "two"), of("fmul", "m", "a", "u"), of("fneg", "y", "m"), of("fmla", "y", "a", "u"),
        of("fmla", "y", "v", "u"),  # b/2 log |a| = m + y; where m is out of bounds y is 0
        of("fcmgt", "v", "most", "m"), of("and", "v", "v", "y"),
        of("fcmgt", "y", "m", "least"), of("and", "v", "v", "y"),
        *exponent.raised("m", "y", True),
        of("mov", "p", "y"), of("fmla", "p", "y", "v"), of("fmul", "p", "p", "p"),
        of("frintn", "y", "b"), of("fcmeq", "y", "y", "b"),  # is b whole?
        of("sshr_4s", "v", "x", at=31), of("bic", "v", "v", "y"), of("bsl", "v", "none", "p"),
        of("frintn", "m", "u"), of("fcmeq", "m", "m", "u"), of("bic", "y", "y", "m"),  # is it odd?
        of("eor", "x", "x", "w"), of("and", "x", "x", "y"),
        of("fdiv", "u", "one", "w"), of("sshr_4s", "n", "b", at=31), of("bsl", "n", "u", "w"),  # of 0 and infinity
        of("fcmgt", "p", "infinity", "w"), of("fcmeq0", "m", "w"), of("bic", "p", "p", "m"), of("bsl", "p", "v", "n"),
        of("eor", "p", "p", "x"), of("fcmeq0", "y", "b"), of("bsl", "y", "one", "p"),
    )  # fmt: skip
