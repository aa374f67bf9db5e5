"""Rows of float32 as whole numbers of 8 bits, by instructions: the largest magnitude, then the codes and their sums.

To the bit what models/eightbits.py makes of them: a scale is the largest magnitude over 127, of zeros 1; codes are the
nearest whole numbers, halves to even, and never -128. Rows [rows, inner] are the team's units, in groups along them.
"""

from collections.abc import Iterator

import numpy as np

from meshrt.arm.core import Team
from meshrt.arm.isa import Instruction, ld1, of, st1
from meshrt.arm.kernel import MicroKernel
from meshrt.models.errors import ModelError
from meshrt.programs.arm.products.packing import GroupRun, parts_of
from meshrt.programs.arm.simd.vectors import F32, laid, same, sweep, taken, units_of

Array = np.ndarray
MOST = 127
LOWEST = 256 - MOST  # -127, as a byte


def largest() -> list[Instruction]:
    """To register m: the largest magnitudes of 16 numbers, and of those before."""
    x = ("x0", "x1", "x2", "x3")
    return [
        ld1(x, "x"),
        *(of("fabs", register, register) for register in x),
        *(of("fmax", "m", "m", register) for register in x),
    ]


def scale_of() -> list[Instruction]:
    """m, the largest magnitude in one of its lanes, becomes the scale in all of them."""
    return [
        of("fmaxv", "m", "m"), of("fdiv", "m", "m", "most"), of("fcmeq0", "z", "m"), of("bsl", "z", "one", "m"),
        of("dup_4s", "z", "z", at=0),
    ]  # fmt: skip


def codes_of(scale: str) -> list[Instruction]:
    """16 numbers over a scale, as bytes in register x0."""
    x = ("x0", "x1", "x2", "x3")
    lines = [ld1(x, "x")]
    for register in x:
        lines += [of("fdiv", register, register, scale), of("fcvtns", register, register)]
    for low, high in (("x0", "x1"), ("x2", "x3")):
        lines += [of("sqxtn_4h", low, low), of("sqxtn2_8h", low, high)]
    return [*lines, of("sqxtn_8b", "x0", "x0"), of("sqxtn2_16b", "x0", "x2"), of("smax", "x0", "x0", "lowest")]


FIRST = (of("movi", "m", at=0), of("fmov", "one", at=1), ld1(("most",), "constants"))
SCALE = MicroKernel("scale", FIRST, tuple(largest()), (*scale_of(), st1(("z",), "scale")))
CODES = MicroKernel(
    "codes", (of("movi", "t", at=0), of("movi", "lowest", at=LOWEST), ld1(("s",), "scale")),
    (*codes_of("s"), st1(("x0",), "y"), of("saddlp", "x0", "x0"), of("sadalp", "t", "x0")),
    (of("addv_4s", "t", "t"), st1(("t",), "total")),
)  # fmt: skip


def scales(team: Team, x: Array | None, inner: int, group: int) -> Array | None:
    """Of float32 [rows, inner], for each group: float32 [rows, groups]. ModelError for what is NaN or infinite."""
    rows, parts = len(units_of(team)), []
    for part, numbers in _groups(x, inner, group):
        inputs = {"x": laid(numbers, 16), "constants": same(MOST)}
        stored = sweep(team, SCALE, (rows, part.groups), -(-part.length // 16), inputs, {}, {"scale": 16})
        if stored is not None:
            parts.append(stored["scale"].view(F32)[..., 0, 0])
    if not parts:
        return None
    scale = np.concatenate(parts, axis=1)
    if not np.isfinite(scale).all():
        raise ModelError("activations are NaN or infinite; they cannot be put into 8 bits")
    return scale


def rounded(
    team: Team, x: Array | None, scale: Array | None, inner: int, group: int
) -> tuple[Array | None, Array | None]:
    """Codes int8 [rows, inner] by scales [rows, 1] or [rows, groups], and sums of them, int32 [rows, groups]."""
    rows, codes, totals = len(units_of(team)), [], []
    for part, numbers in _groups(x, inner, group):
        ready = None
        if scale is not None:
            own = scale if scale.shape[1] == 1 else scale[:, part.first : part.first + part.groups]
            ready = np.repeat(own[..., None, None], 4, axis=-1).view(np.uint8)
        inputs, steps = {"x": laid(numbers, 16), "scale": ready}, -(-part.length // 16)
        stored = sweep(team, CODES, (rows, part.groups), steps, inputs, {"y": 16}, {"total": 16})
        if stored is not None:
            codes.append(taken(stored["y"], np.int8, part.length).reshape(rows, -1))
            totals.append(stored["total"].view(np.int32)[..., 0, 0])
    if not codes:
        return None, None
    return np.concatenate(codes, axis=1), np.concatenate(totals, axis=1)


def _groups(x: Array | None, inner: int, group: int) -> Iterator[tuple[GroupRun, Array | None]]:
    """The whole groups of all rows, [rows, groups, length], and then what is left."""
    for part in parts_of(inner, group):
        begin = part.first * group
        numbers = None if x is None else x[:, begin : begin + part.groups * part.length]
        yield part, None if numbers is None else numbers.reshape(len(numbers), part.groups, part.length)
