"""What lies between two products, by instructions: residual sums, norms, SiLU. Rows [rows, K] are the team's units."""

from functools import lru_cache
from math import ceil

import numpy as np

from meshrt.arm.core import Team
from meshrt.arm.isa import ld1, of, st1
from meshrt.arm.kernel import Kernel
from meshrt.programs.arm import exponent
from meshrt.programs.arm.vectors import F32, add_lines, laid, same, sweep, taken, units_of

Array = np.ndarray


@lru_cache
def square_sums(count: int) -> Kernel:
    """x + (a + b), of which so many are there, is stored if any is; in the end 1 / sqrt(mean of squares + eps)."""
    before = (of("movi", "s", at=0), of("fmov", "one", at=1), ld1(("mean", "eps"), "constants"))
    body = [*add_lines(count), *([st1(("x",), "stays")] if count else []), of("fmla", "s", "x", "x")]
    after = (
        of("faddp", "s", "s", "s"), of("faddp", "s", "s", "s"), of("fmul", "s", "s", "mean"),
        of("fadd", "s", "s", "eps"), of("fsqrt", "s", "s"), of("fdiv", "s", "one", "s"), st1(("s",), "root"),
    )  # fmt: skip
    return Kernel("norm sums", before, tuple(body), after)


NORMALIZE = Kernel(
    "norm", (ld1(("s",), "root"),),
    (ld1(("x",), "x"), ld1(("w",), "weight"), of("fmul", "x", "x", "s"), of("fmul", "x", "x", "w"), st1(("x",), "y")),
    (),
)  # fmt: skip
SILU = Kernel(
    "silu", (exponent.load(),),
    (ld1(("g",), "gate"), ld1(("u",), "up"), of("fneg", "x", "g"), *exponent.raised("x", "y", True),
     of("fadd", "y", "y", "one"), of("fdiv", "g", "g", "y"), of("fmul", "g", "g", "u"), st1(("g",), "y")),
    (),
)  # fmt: skip


def rms_norm(
    team: Team, k: int, x: Array | None, more: tuple[Array | None, ...], weight: Array | None, eps: float
) -> tuple[Array | None, Array | None]:
    """x [rows, k] with what is to be added to it, which stays, and that after an RMSNorm; float32, None by shape."""
    rows, steps = len(units_of(team)), ceil(k / 4)
    lying = laid(x, 4)
    inputs = {"x": lying, **dict(zip("ab", (laid(one, 4) for one in more), strict=False))}
    inputs["constants"] = same(1 / k, eps)
    sums = sweep(team, square_sums(len(more)), (rows,), steps, inputs, {"stays": 16} if more else {}, {"root": 16})
    stays = None if sums is None else sums["stays"] if more else lying
    root = None if sums is None else sums["root"]
    normed = sweep(team, NORMALIZE, (rows,), steps, {"x": stays, "root": root, "weight": laid(weight, 4)}, {"y": 16})
    if stays is None or normed is None:
        return None, None
    return taken(stays, F32, k), taken(normed["y"], F32, k)


def silu_times(team: Team, k: int, gate: Array | None, up: Array | None) -> Array | None:
    """SiLU(gate) * up, float32 [rows, k]."""
    inputs = {"gate": laid(gate, 4), "up": laid(up, 4), "exponent": exponent.constants()}
    stored = sweep(team, SILU, (len(units_of(team)),), ceil(k / 4), inputs, {"y": 16})
    return None if stored is None else taken(stored["y"], F32, k)
