"""What lies between two products, by instructions: residual sums, norms, SiLU. Rows [rows, K] are the team's units."""

from collections.abc import Sequence
from functools import lru_cache
from math import ceil

import numpy as np

from meshrt.arm.core import Team
from meshrt.arm.isa import ld1, of, st1
from meshrt.arm.kernel import MicroKernel
from meshrt.programs.arm.simd.activations import activated
from meshrt.programs.arm.simd.vectors import F32, add_lines, laid, same, sweep, taken, units_of
from meshrt.records import dataclass

Array = np.ndarray


@lru_cache
def square_sums(count: int) -> MicroKernel:
    """x + (a + b), of which so many are there, is stored if any is; in the end 1 / sqrt(mean of squares + eps)."""
    before = (of("movi", "s", at=0), of("fmov", "one", at=1), ld1(("mean", "eps"), "constants"))
    body = [*add_lines(count), *([st1(("x",), "stays")] if count else []), of("fmla", "s", "x", "x")]
    after = (
        of("faddp", "s", "s", "s"), of("faddp", "s", "s", "s"), of("fmul", "s", "s", "mean"),
        of("fadd", "s", "s", "eps"), of("fsqrt", "s", "s"), of("fdiv", "s", "one", "s"), st1(("s",), "root"),
    )  # fmt: skip
    return MicroKernel("norm sums", before, tuple(body), after)


NORMALIZE = MicroKernel(
    "norm", (ld1(("s",), "root"),),
    (ld1(("x",), "x"), ld1(("w",), "weight"), of("fmul", "x", "x", "s"), of("fmul", "x", "x", "w"), st1(("x",), "y")),
    (),
)  # fmt: skip


@lru_cache
def mean_sums(count: int) -> MicroKernel:
    """x + (a + b), of which so many are there, is stored if any is; in the end the mean of all."""
    before = (of("movi", "s", at=0), ld1(("mean",), "constants"))
    body = [*add_lines(count), *([st1(("x",), "stays")] if count else []), of("fadd", "s", "s", "x")]
    after = (
        of("faddp", "s", "s", "s"),
        of("faddp", "s", "s", "s"),
        of("fmul", "s", "s", "mean"),
        st1(("s",), "average"),
    )
    return MicroKernel("mean", before, tuple(body), after)


@lru_cache
def spread(ragged: bool) -> MicroKernel:
    """1 / sqrt(mean of squares of x - mean + eps). What is behind the last whole register is done last, its other lanes
    set to 0: the mean may be much larger than what is left of it, so its square could not be taken off again.
    """
    before = (
        of("movi", "s", at=0), of("fmov", "one", at=1), ld1(("m",), "average"), ld1(("mean", "eps"), "constants"),
    )  # fmt: skip
    square = (of("fsub", "x", "x", "m"), of("fmla", "s", "x", "x"))
    rest = (ld1(("x",), "rest"), ld1(("lanes",), "lanes"), square[0], of("and", "x", "x", "lanes"), square[1])
    after = (
        of("faddp", "s", "s", "s"), of("faddp", "s", "s", "s"), of("fmul", "s", "s", "mean"),
        of("fadd", "s", "s", "eps"), of("fsqrt", "s", "s"), of("fdiv", "s", "one", "s"), st1(("s",), "root"),
    )  # fmt: skip
    return MicroKernel("norm spread", before, (ld1(("x",), "x"), *square), (*(rest if ragged else ()), *after))


CENTRE = MicroKernel(
    "layer norm", (ld1(("m",), "average"), ld1(("s",), "root")),
    (ld1(("x",), "x"), ld1(("w",), "weight"), ld1(("b",), "bias"), of("fsub", "x", "x", "m"), of("fmul", "x", "x", "s"),
     of("fmul", "x", "x", "w"), of("fadd", "x", "x", "b"), st1(("x",), "y")),
    (),
)  # fmt: skip


@dataclass(frozen=True)
class ArmNorm:
    """An RMSNorm, or a LayerNorm with mean and bias. Weights and biases are None by shape."""

    eps: float
    weight: Array | None
    centred: bool = False
    bias: Array | None = None


def norm_of(
    team: Team, k: int, x: Array | None, more: tuple[Array | None, ...], norm: ArmNorm
) -> tuple[Array | None, Array | None]:
    """x [rows, k] with what is to be added to it, which stays, and that after the norm; float32, None by shape."""
    if norm.centred:
        return layer_norm(team, k, x, more, norm)
    return rms_norm(team, k, x, more, norm.weight, norm.eps)


def rms_norm(
    team: Team, k: int, x: Array | None, more: tuple[Array | None, ...], weight: Array | None, eps: float,
    along: Sequence[int] = (),
) -> tuple[Array | None, Array | None]:  # fmt: skip
    """x [rows, *along, k] with what is to be added to it, which stays, and that after an RMSNorm; float32, None by
    shape.
    """
    grid, steps = (len(units_of(team)), *along), ceil(k / 4)
    lying = laid(x, 4)
    inputs = {"x": lying, **dict(zip("ab", (laid(term, 4) for term in more), strict=False))}
    inputs["constants"] = same(1 / k, eps)
    sums = sweep(team, square_sums(len(more)), grid, steps, inputs, {"stays": 16} if more else {}, {"root": 16})
    stays = None if sums is None else sums["stays"] if more else lying
    root = None if sums is None else sums["root"]
    normed = sweep(team, NORMALIZE, grid, steps, {"x": stays, "root": root, "weight": laid(weight, 4)}, {"y": 16})
    if stays is None or normed is None:
        return None, None
    return taken(stays, F32, k), taken(normed["y"], F32, k)


def layer_norm(
    team: Team, k: int, x: Array | None, more: tuple[Array | None, ...], norm: ArmNorm
) -> tuple[Array | None, Array | None]:
    """The same with a LayerNorm: the mean first, then the mean square of what is left."""
    grid, steps = (len(units_of(team)),), ceil(k / 4)
    lying = laid(x, 4)
    inputs = {"x": lying, **dict(zip("ab", (laid(term, 4) for term in more), strict=False)), "constants": same(1 / k)}
    sums = sweep(team, mean_sums(len(more)), grid, steps, inputs, {"stays": 16} if more else {}, {"average": 16})
    stays = None if sums is None else sums["stays"] if more else lying
    average = None if sums is None else sums["average"]
    whole, over = divmod(k, 4)
    inputs = {"x": stays, "average": average, "constants": same(1 / k, norm.eps)}
    if over:
        lanes = np.repeat([0xFF, 0], [4 * over, 16 - 4 * over]).astype(np.uint8)
        parts = (None, None) if stays is None else (stays[..., :whole, :], stays[..., whole:, :])
        inputs |= {"x": parts[0], "rest": parts[1], "lanes": lanes[None]}
    spreads = sweep(team, spread(over > 0), grid, whole, inputs, {}, {"root": 16})
    root = None if spreads is None else spreads["root"]
    inputs = {"x": stays, "average": average, "root": root, "weight": laid(norm.weight, 4), "bias": laid(norm.bias, 4)}
    normed = sweep(team, CENTRE, grid, steps, inputs, {"y": 16})
    if stays is None or normed is None:
        return None, None
    return taken(stays, F32, k), taken(normed["y"], F32, k)


def silu_times(team: Team, k: int, gate: Array | None, up: Array | None) -> Array | None:
    """SiLU(gate) * up, float32 [rows, k]."""
    return activated(team, k, "silu", gate, True, up)
