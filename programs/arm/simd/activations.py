"""Activations of MLPs by instructions, in float32: act(gate) * up, or act(up) where there is no gate."""

from functools import lru_cache
from math import ceil, pi, sqrt

import numpy as np

from meshrt.arm.core import Team
from meshrt.arm.isa import Instruction, ld1, of, st1
from meshrt.arm.kernel import MicroKernel
from meshrt.models.matrix import Activation
from meshrt.programs.arm.simd import exponent
from meshrt.programs.arm.simd.vectors import F32, laid, same, sweep, taken, units_of

Array = np.ndarray
LINEAR = 2 * sqrt(2 / pi)  # (1 + tanh u) / 2 is 1 / (1 + e^-2u), and 2 u is x (LINEAR + CUBIC x x)
CUBIC = 0.044715 * LINEAR


@lru_cache
def acting(activation: Activation, gated: bool, biased: bool) -> MicroKernel:
    """Of four numbers of each; biases are added first."""
    body = [ld1(("g",), "gate"), *([ld1(("b",), "bias_gate"), of("fadd", "g", "g", "b")] if biased else [])]
    if gated:
        body += [ld1(("u",), "up"), *([ld1(("b",), "bias_up"), of("fadd", "u", "u", "b")] if biased else [])]
    before: list[Instruction] = [of("movi", "zero", at=0)]
    if activation == "relu":
        body.append(of("fmax", "g", "g", "zero"))
    else:
        before = [exponent.load()]
        if activation == "silu":
            body.append(of("fneg", "x", "g"))
        else:
            before.append(ld1(("linear", "cubic"), "gelu"))
            body += [
                of("fmul", "y", "g", "g"), of("mov", "x", "linear"), of("fmla", "x", "cubic", "y"),
                of("fmul", "x", "x", "g"),
            ]  # fmt: skip
        body += [*exponent.raised("x", "y", True), of("fadd", "y", "y", "one"), of("fdiv", "g", "g", "y")]
    body += [of("fmul", "g", "g", "u")] if gated else []
    return MicroKernel(activation, tuple(before), (*body, st1(("g",), "y")), ())


def activated(
    team: Team, k: int, activation: Activation, gate: Array | None, gated: bool, up: Array | None = None,
    biases: tuple[Array | None, ...] = (),
) -> Array | None:  # fmt: skip
    """Float32 [rows, k] of the team's rows. Without a gate what is activated is given in its place.

    `biases` [k] of the gate and of up, or of what there is; none: there are none. All are None by shape.
    """
    inputs: dict[str, Array | None] = {"gate": laid(gate, 4)} | ({"up": laid(up, 4)} if gated else {})
    inputs |= {name: laid(bias, 4) for name, bias in zip(("bias_gate", "bias_up"), biases, strict=False)}
    inputs |= {"exponent": exponent.constants(), "gelu": same(-LINEAR, -CUBIC)}
    kernel = acting(activation, gated, bool(biases))
    stored = sweep(team, kernel, (len(units_of(team)),), ceil(k / 4), inputs, {"y": 16})
    return None if stored is None else taken(stored["y"], F32, k)


@lru_cache
def capping(wide: bool) -> MicroKernel:
    """Of eight numbers, float32 or float16: cap tanh(x / cap), float32. tanh u is 1 - 2 / (1 + e^2u)."""
    body = [ld1(("a", "b"), "x")] if wide else [ld1(("h",), "x"), of("fcvtl", "a", "h"), of("fcvtl2", "b", "h")]
    for name in ("a", "b"):
        body += [
            of("fmul", name, name, "steep"), *exponent.raised(name, "y", True), of("fadd", "y", "y", "one"),
            of("fdiv", "y", "one", "y"), of("fadd", "y", "y", "y"), of("fsub", "y", "one", "y"),
            of("fmul", name, "y", "cap"),
        ]  # fmt: skip
    return MicroKernel("cap", (exponent.load(), ld1(("steep", "cap"), "constants")), (*body, st1(("a", "b"), "y")), ())


def capped(team: Team, along: tuple[int, ...], k: int, cap: float, x: Array | None, wide: bool) -> Array | None:
    """cap tanh(x / cap) of x [units, *along, k], float32, or float16 unless it is `wide`: float32."""
    inputs = {"x": laid(x, 8), "exponent": exponent.constants(), "constants": same(2 / cap, cap)}
    stored = sweep(team, capping(wide), (len(units_of(team)), *along), ceil(k / 8), inputs, {"y": 32})
    return None if stored is None else taken(stored["y"], F32, k)


BOUNDS = MicroKernel(
    "bounds", (ld1(("low", "high"), "bounds"),),
    (ld1(("x",), "x"), of("fmax", "x", "x", "low"), of("fmin", "x", "x", "high"), st1(("x",), "y")), (),
)  # fmt: skip


def bounded(team: Team, k: int, x: Array | None, clip: float) -> Array | None:
    """x [rows, k] cut off at -clip and clip."""
    inputs = {"x": laid(x, 4), "bounds": same(-clip, clip)}
    stored = sweep(team, BOUNDS, (len(units_of(team)),), ceil(k / 4), inputs, {"y": 16})
    return None if stored is None else taken(stored["y"], F32, k)


@lru_cache
def scaling(biased: bool) -> MicroKernel:
    body = [ld1(("x",), "x"), *([ld1(("b",), "bias"), of("fadd", "x", "x", "b")] if biased else [])]
    return MicroKernel("scale", (ld1(("s",), "constants"),), (*body, of("fmul", "x", "x", "s"), st1(("x",), "y")), ())


def scaled(
    team: Team, along: tuple[int, ...], k: int, factor: float, x: Array | None, biased: bool = False,
    bias: Array | None = None,
) -> Array | None:  # fmt: skip
    """x [units, *along, k], with a bias if it is `biased`, times a number."""
    inputs = {"x": laid(x, 4), "constants": same(factor)} | ({"bias": laid(bias, 4)} if biased else {})
    stored = sweep(team, scaling(biased), (len(units_of(team)), *along), ceil(k / 4), inputs, {"y": 16})
    return None if stored is None else taken(stored["y"], F32, k)
