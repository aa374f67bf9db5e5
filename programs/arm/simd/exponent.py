"""e^x by instructions, of four numbers: a power of two, and a polynomial in what is left."""

from math import factorial, log

import numpy as np

from meshrt.arm.isa import Instruction, ld1, of
from meshrt.programs.arm.simd.vectors import same

LEAST, MOST = -86.0, 88.0  # e^x is a normal number there; what is further out counts as these
DEGREE = 6  # of Taylor's polynomial: within 1.3e-7 up to log(2) / 2
HIGH = np.float32(log(2)).view(np.uint32) & np.uint32(0xFFFF0000)  # log(2) in two parts, so that n times one is exact
COEFFICIENTS = [f"k{degree}" for degree in range(DEGREE, 1, -1)]
NAMES = (*COEFFICIENTS, "one", "log2e", "high", "low", "least", "most")


def constants() -> np.ndarray:
    """What `load` loads."""
    high = float(HIGH.view(np.float32))
    polynomial = [1 / factorial(degree) for degree in range(DEGREE, 1, -1)]
    return same(*polynomial, 1, 1 / log(2), high, log(2) - high, LEAST, MOST)


def load() -> Instruction:
    """Before a loop: the constants, which stay in registers."""
    return ld1(NAMES, "exponent")


def raised(x: str, y: str, positive: bool) -> list[Instruction]:
    """y = e^x, of which x is lost; registers n and p as well. `positive`: x may be."""
    lines = [of("fmax", x, x, "least")] + ([of("fmin", x, x, "most")] if positive else [])
    lines += [
        of("fmul", "n", x, "log2e"),
        of("frintn", "n", "n"),
        of("fmls", x, "n", "high"),
        of("fmls", x, "n", "low"),
    ]
    before, after = "p", y
    lines += [of("mov", before, COEFFICIENTS[1]), of("fmla", before, COEFFICIENTS[0], x)]
    for name in (*COEFFICIENTS[2:], "one", "one"):
        lines += [of("mov", after, name), of("fmla", after, before, x)]
        before, after = after, before
    assert before == y, "the last one is in y"
    return [*lines, of("fcvtns", "n", "n"), of("shl_4s", "n", "n", at=23), of("add_4s", y, y, "n")]
