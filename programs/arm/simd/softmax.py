"""Rotary embedding and softmax by instructions, in float32; heads are the team's units, their tokens rows."""

from collections.abc import Sequence
from functools import lru_cache
from math import ceil

import numpy as np

from meshrt.arm.core import Team
from meshrt.arm.isa import ld1, of, st1
from meshrt.arm.kernel import MicroKernel
from meshrt.programs.arm.simd import exponent
from meshrt.programs.arm.simd.vectors import F16, F32, laid, same, sweep, taken, units_of

Array = np.ndarray


@lru_cache
def turning(biased: bool, scaled: bool) -> MicroKernel:
    """Four numbers of each half of a head: a bias, if any, then they turn, and are multiplied if they are `scaled`."""
    body = [ld1(("l",), "low"), ld1(("h",), "high")]
    if biased:
        body += [
            ld1(("a",), "bias_low"),
            ld1(("b",), "bias_high"),
            of("fadd", "l", "l", "a"),
            of("fadd", "h", "h", "b"),
        ]
    body += [
        ld1(("c",), "cos"), ld1(("s",), "sin"), of("fmul", "a", "l", "c"), of("fmls", "a", "h", "s"),
        of("fmul", "b", "h", "c"), of("fmla", "b", "l", "s"),
    ]  # fmt: skip
    if scaled:
        body += [of("fmul", "a", "a", "scale"), of("fmul", "b", "b", "scale")]
    body += [st1(("a",), "y_low"), st1(("b",), "y_high")]
    return MicroKernel("rotary", (ld1(("scale",), "constants"),) if scaled else (), tuple(body), ())


def rotated(
    team: Team, shape: tuple[int, int], x: Array | None, rotary: tuple[Array, Array] | None, bias: Array | None,
    biased: bool, scale: float | None = None,
) -> Array | None:  # fmt: skip
    """Rotary embedding of x [heads, T, D], of shape (T, D): component i turns with component i + D / 2.

    `rotary`: cosines and sines [T, D / 2]; `bias` [heads, 1, D]; `scale`: what all is multiplied by, if anything.
    """
    tokens, size = shape
    half = size // 2
    inputs: dict[str, Array | None] = {}
    for name, whole in (("", x), ("bias_", bias)):
        if not name or biased:
            parts = (None, None) if whole is None else (whole[..., :half], whole[..., half:])
            inputs |= {name + "low": laid(parts[0], 4), name + "high": laid(parts[1], 4)}
    for name, table in zip(("cos", "sin"), rotary or (None, None), strict=True):
        inputs[name] = laid(table, 4)
    if scale is not None:
        inputs["constants"] = same(scale)
    kernel = turning(biased, scale is not None)
    stored = sweep(team, kernel, (len(units_of(team)), tokens), ceil(half / 4), inputs, {"y_low": 16, "y_high": 16})
    return None if stored is None else np.concatenate([taken(y, F32, half) for y in stored.values()], axis=-1)


@lru_cache
def largest(wide: bool, windowed: bool = False) -> MicroKernel:
    """Of eight scores, float32 or float16: what is at or behind the row's limit becomes -infinity, and what is at or
    before its floor if it is `windowed`; the largest.
    """
    before = [ld1(("nothing",), "constants"), ld1(("limit",), "limit"), of("mov", "m", "nothing")]
    before += [ld1(("floor",), "floor")] if windowed else []
    loads = [ld1(("a", "b"), "x")] if wide else [
        ld1(("h",), "x"), of("fcvtl", "a", "h"), of("fcvtl2", "b", "h")
    ]  # fmt: skip
    body = [*loads, ld1(("p", "q"), "positions")]
    for score, position in (("a", "p"), ("b", "q")):
        body += [of("cmgt_4s", "w", position, "floor")] if windowed else []
        body.append(of("cmgt_4s", position, "limit", position))
        body += [of("and", position, position, "w")] if windowed else []
        body += [of("bsl", position, score, "nothing"), of("fmax", "m", "m", position)]
    after = (of("fmaxv", "m", "m"), of("dup_4s", "m", "m", at=0), st1(("m",), "most"))
    return MicroKernel("softmax largest", tuple(before), (*body, st1(("p", "q"), "y")), after)


RAISE = MicroKernel(
    "softmax raise", (exponent.load(), ld1(("m",), "most"), of("movi", "s", at=0)),
    (ld1(("x",), "x"), of("fsub", "x", "x", "m"), *exponent.raised("x", "y", False), of("fadd", "s", "s", "y"),
     st1(("y",), "y")),
    (of("faddp", "s", "s", "s"), of("faddp", "s", "s", "s"), of("fdiv", "s", "one", "s"), st1(("s",), "share")),
)  # fmt: skip


@lru_cache
def sharing(wide: bool) -> MicroKernel:
    """Eight numbers times the row's, as float32 or float16."""
    body = [ld1(("a", "b"), "x"), of("fmul", "a", "a", "s"), of("fmul", "b", "b", "s")]
    body += [st1(("a", "b"), "y")] if wide else [
        of("fcvtn", "h", "a"), of("fcvtn2", "h", "b"), st1(("h",), "y")
    ]  # fmt: skip
    return MicroKernel("softmax share", (ld1(("s",), "share"),), tuple(body), ())


def softmax(
    team: Team, tokens: int, seen: int, scores: Array | None, wide: bool, wide_shares: bool | None = None,
    window: int | None = None,
) -> Array | None:  # fmt: skip
    """Over the last axis of scores [heads, T, S], where the last of the T tokens sees all S positions, or the last
    `window` of them, and each other one position less.

    float32 within; scores and shares are float32 if they are `wide`, else float16; shares have a kind of their own if
    `wide_shares` says so. e^x is that of exponent.py.
    """
    shares_wide = wide if wide_shares is None else wide_shares
    grid: Sequence[int] = (len(units_of(team)), tokens)
    steps = ceil(seen / 8)
    limit = np.repeat(np.arange(seen - tokens + 1, seen + 1, dtype=np.int32)[:, None], 4, axis=1)
    inputs: dict[str, Array | None] = {
        "x": laid(scores, 8), "positions": np.arange(8 * steps, dtype=np.int32).view(np.uint8).reshape(steps, 32),
        "limit": limit.view(np.uint8)[:, None], "constants": same(-np.inf),
    }  # fmt: skip
    if window is not None:
        inputs["floor"] = (limit - (window + 1)).view(np.uint8)[:, None]
    seen_only = sweep(team, largest(wide, window is not None), grid, steps, inputs, {"y": 32}, {"most": 16})
    x = most = share = None
    if seen_only is not None:
        x, most = seen_only["y"], seen_only["most"]
    fours = None if x is None else x.reshape(*grid, 2 * steps, 16)
    inputs = {"x": fours, "most": most, "exponent": exponent.constants()}
    powers = sweep(team, RAISE, grid, 2 * steps, inputs, {"y": 16}, {"share": 16})
    if powers is not None:
        x, share = powers["y"].reshape(*grid, steps, 32), powers["share"]
    kind = F32 if shares_wide else F16
    stored = sweep(team, sharing(shares_wide), grid, steps, {"x": x, "share": share}, {"y": 8 * kind.itemsize})
    return None if stored is None else taken(stored["y"], kind, seen)
