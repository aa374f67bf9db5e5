"""The likeliest of some experts by instructions: the largest of a row, where it is, and away with it, time after time.

Rows are the team's units. Of equal ones the first is taken, as models/experts.py has it.
"""

from math import ceil

import numpy as np

from meshrt.arm.core import Team
from meshrt.arm.isa import ld1, of, st1
from meshrt.arm.kernel import MicroKernel
from meshrt.programs.arm.simd.softmax import softmax
from meshrt.programs.arm.simd.vectors import F32, laid, same, sweep, taken, units_of

Array = np.ndarray
GONE = -1.0  # less than any share

LARGEST = MicroKernel(
    "top largest", (ld1(("m",), "gone"),), (ld1(("x",), "x"), of("fmax", "m", "m", "x")),
    (of("fmaxv", "m", "m"), of("dup_4s", "m", "m", at=0), st1(("m",), "most")),
)  # fmt: skip
WHERE = MicroKernel(
    "top where", (ld1(("m",), "most"), ld1(("none",), "none"), of("mov", "w", "none")),
    (ld1(("x",), "x"), ld1(("i",), "numbers"), of("cmeq_4s", "x", "x", "m"), of("bsl", "x", "i", "none"),
     of("smin_4s", "w", "w", "x")),
    (of("sminv_4s", "w", "w"), of("dup_4s", "w", "w", at=0), st1(("w",), "number")),
)  # fmt: skip
AWAY = MicroKernel(
    "top away", (ld1(("w",), "number"), ld1(("gone",), "gone")),
    (ld1(("x",), "x"), ld1(("i",), "numbers"), of("cmeq_4s", "i", "i", "w"), of("bsl", "i", "gone", "x"),
     st1(("i",), "y")),
    (),
)  # fmt: skip
SUM = MicroKernel(
    "top sum", (of("movi", "s", at=0),), (ld1(("x",), "x"), of("fadd", "s", "s", "x")),
    (of("faddp", "s", "s", "s"), of("faddp", "s", "s", "s"), st1(("s",), "sum")),
)  # fmt: skip
DIVIDE = MicroKernel(
    "top share", (ld1(("s",), "sum"),), (ld1(("x",), "x"), of("fdiv", "x", "x", "s"), st1(("x",), "y")), ()
)  # fmt: skip


def likeliest(
    team: Team, experts: int, top: int, renormalise: bool, scores: Array | None
) -> tuple[Array | None, Array | None]:
    """Scores float32 [rows, experts] to the experts of each row, in order of their numbers, and their shares, [rows,
    top]; None by shape.
    """
    grid, steps = (len(units_of(team)),), ceil(experts / 4)
    shares = softmax(team, 1, experts, None if scores is None else scores[:, None], True)
    x = None
    if shares is not None:
        x = laid(np.pad(shares[:, 0], ((0, 0), (0, -experts % 4)), constant_values=GONE), 4)
    numbers = np.arange(4 * steps, dtype=np.int32).view(np.uint8).reshape(steps, 16)
    gone, none = same(GONE), same(4 * steps, kind=np.int32)
    ranked: list[tuple[Array, Array]] = []
    for _ in range(top):
        largest = sweep(team, LARGEST, grid, steps, {"x": x, "gone": gone}, {}, {"most": 16})
        most = None if largest is None else largest["most"]
        at = sweep(
            team, WHERE, grid, steps, {"x": x, "most": most, "numbers": numbers, "none": none}, {}, {"number": 16}
        )
        number = None if at is None else at["number"]
        left = sweep(team, AWAY, grid, steps, {"x": x, "number": number, "numbers": numbers, "gone": gone}, {"y": 16})
        x = None if left is None else left["y"]
        if most is not None and number is not None:
            ranked.append((number.view(np.int32)[:, 0, 0], most.view(F32)[:, 0, 0]))
    chosen = own = None
    if ranked:
        chosen, own = (np.stack(column, axis=1) for column in zip(*ranked, strict=True))
        order = np.argsort(chosen, axis=1)
        chosen, own = np.take_along_axis(chosen, order, axis=1), np.take_along_axis(own, order, axis=1)
    if renormalise:
        lying = laid(own, 4)
        total = sweep(team, SUM, grid, ceil(top / 4), {"x": lying}, {}, {"sum": 16})
        inputs = {"x": lying, "sum": None if total is None else total["sum"]}
        divided = sweep(team, DIVIDE, grid, ceil(top / 4), inputs, {"y": 16})
        own = None if divided is None else taken(divided["y"], F32, top)
    return chosen, own
