"""What lies between products on Arm cores, by instructions: against float64, to the bit, and counts in closed form."""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from meshrt.arm.core import ArmCore, Team
from meshrt.arm.device import N2X8
from meshrt.arm.isa import OPERATIONS, ld1, of, st1
from meshrt.arm.kernel import MicroKernel
from meshrt.models.eightbits import block_sums, quantize_rows
from meshrt.models.errors import ModelError
from meshrt.programs.arm.simd import exponent
from meshrt.programs.arm.simd.between import rms_norm, silu_times
from meshrt.programs.arm.simd.eightbits import rounded, scales
from meshrt.programs.arm.simd.softmax import rotated, softmax
from meshrt.programs.arm.simd.stored import restored, store
from meshrt.programs.arm.simd.vectors import F32, added, laid, narrowed, sweep, taken, widened

SIZES = st.tuples(st.integers(1, 9), st.integers(1, 70), st.integers(0, 99))


def team_of(*counts: int, payload: bool = True) -> Team:
    """Cores with so many units each, one after the other."""
    begins = np.cumsum([0, *counts])
    return [
        (ArmCore(N2X8, at, payload), range(begin, begin + count))
        for at, (begin, count) in enumerate(zip(begins.tolist(), counts, strict=False))
    ]


def ran(team: Team) -> Counter[str]:
    return sum((core.instructions for core, _ in team), Counter())


def near(result: Any, truth: np.ndarray, share: float) -> bool:
    return result is not None and bool(
        np.abs(result - truth).max(initial=0) <= share * np.abs(truth).max(initial=1e-30)
    )


# ---- numbers


def test_powers_of_e() -> None:
    """Within 2.5e-7 of the truth where e^x is a normal number, and the same as at the ends beyond."""
    x = np.linspace(-100, 100, 40_003, dtype=np.float32)
    kernel = MicroKernel(
        "raise", (exponent.load(),), (ld1(("x",), "x"), *exponent.raised("x", "y", True), st1(("y",), "y")), ()
    )
    inputs = {"x": laid(x[None], 4), "exponent": exponent.constants()}
    stored = sweep(team_of(1), kernel, (1,), ceil(len(x) / 4), inputs, {"y": 16})
    assert stored is not None
    truth = np.exp(np.clip(x.astype(np.float64), exponent.LEAST, exponent.MOST))
    assert np.abs(taken(stored["y"], F32, len(x))[0] / truth - 1).max() < 2.5e-7


@given(SIZES, st.integers(0, 2))
def test_norms_are_those_of_float64(sizes: tuple[int, int, int], count: int) -> None:
    rows, k, seed = sizes
    rng = np.random.default_rng(seed)
    x, more, bias, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((rows, k), (rows, k), k, k))
    stays, normed = rms_norm(team_of(rows), k, x, (more, bias)[:count], weight, 1e-5)
    total = x.astype(np.float64) + sum((more, bias)[:count])
    assert near(stays, total, 1e-6)
    assert near(normed, total / np.sqrt((total**2).mean(axis=1, keepdims=True) + 1e-5) * weight, 2e-6)


@given(SIZES)
def test_silu_is_that_of_float64(sizes: tuple[int, int, int]) -> None:
    rows, k, seed = sizes
    gate, up = (np.random.default_rng(seed).standard_normal((2, rows, k)) * 9).astype(np.float32)
    truth = gate.astype(np.float64) / (1 + np.exp(-gate.astype(np.float64))) * up
    assert near(silu_times(team_of(rows), k, gate, up), truth, 1e-6)


@given(SIZES, st.sampled_from([1, 5, 32, 64]), st.booleans())
def test_codes_are_those_of_the_reference(sizes: tuple[int, int, int], group: int, blocks: bool) -> None:
    """To the bit, for any rows and groups: rows of zeros, and the least numbers that there are, too."""
    rows, k, seed = sizes
    rng, group = np.random.default_rng(seed), min(group, k)
    x = (rng.standard_normal((rows, k)) * 10.0 ** rng.integers(-45, 38, (rows, 1))).astype(np.float32)
    x[rng.integers(0, rows)] = 0
    codes, scale, sums = quantize_rows(x, group if blocks else None)
    team = team_of(rows)
    scaled = scales(team, x, k, group if blocks else k)
    assert scaled is not None and scaled.tobytes() == scale.tobytes() and scaled.shape == scale.shape
    mine, totals = rounded(team, x, scaled, k, group)
    assert mine is not None and totals is not None
    assert (mine == codes).all() and (totals == (sums if blocks else block_sums(codes, group))).all()
    x[0, 0] = np.inf
    with pytest.raises(ModelError, match="NaN or infinite"):
        scales(team, x, k, k)


@given(st.integers(1, 3), st.integers(1, 6), st.sampled_from([2, 8, 18, 64]), st.booleans(), st.integers(0, 99))
def test_heads_turn_as_in_float64(heads: int, tokens: int, size: int, biased: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((heads, tokens, size), (heads, 1, size)))
    cos, sin = rng.uniform(-1, 1, (2, tokens, size // 2)).astype(np.float32)
    turned = rotated(team_of(heads), (tokens, size), x, (cos, sin), bias if biased else None, biased, 0.25)
    low, high = np.split(x.astype(np.float64) + (bias if biased else 0), 2, axis=-1)
    truth = np.concatenate((low * cos - high * sin, high * cos + low * sin), -1) / 4
    assert near(turned, truth, 1e-6)


@given(st.integers(1, 3), st.integers(1, 9), st.integers(0, 30), st.booleans(), st.integers(0, 99))
def test_shares_are_those_of_float64(heads: int, tokens: int, held: int, wide: bool, seed: int) -> None:
    """Tokens see themselves and what was before; what is behind has no share."""
    seen = held + tokens
    scores = (np.random.default_rng(seed).standard_normal((heads, tokens, seen)) * 5).astype(
        np.float32 if wide else np.float16
    )
    shares = softmax(team_of(heads), tokens, seen, scores, wide)
    future = np.arange(seen) > held + np.arange(tokens)[:, None]
    powers = np.where(future, 0, np.exp(scores.astype(np.float64) - scores.max(axis=-1, keepdims=True)))
    assert near(shares, powers / powers.sum(axis=-1, keepdims=True), 1e-6 if wide else 1e-3)
    assert shares is not None and shares.dtype == scores.dtype and (shares[:, future] <= 1e-30).all()


def test_every_float16_as_e4m3_is_that_of_ml_dtypes() -> None:
    """Up to 464, from where on theirs is NaN and this the largest number; and all codes come back.

    Below 2^-6, where e4m3 has no normal numbers, what is within 2^-16 of a tie may go to either side.
    """
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    every = every[np.abs(every) <= 464].reshape(1, 1, -1)
    stored, scale = store(team_of(1), "e4m3", (1, every.shape[2]), every)
    assert stored is not None and scale is None
    truth, normal = every.astype(ml_dtypes.float8_e4m3fn), np.abs(every) >= 2**-6
    assert (stored.view(np.uint8) == truth.view(np.uint8))[normal].all()
    off = [np.abs(each.astype(np.float32) - every).max(where=~normal, initial=0) for each in (stored, truth)]
    assert off[0] <= off[1] + 2**-16
    far, _ = store(team_of(1), "e4m3", (1, 3), np.array([[[6e4, -1e9, 500]]], np.float32))
    assert far is not None and far.astype(np.float32).tolist() == [[[448, -448, 448]]]
    codes = np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8)
    codes = codes.view(ml_dtypes.float8_e4m3fn).reshape(1, 1, -1)
    back = restored(team_of(1), "e4m3", (1, codes.shape[2]), codes, None, 1)
    assert back is not None and back.tobytes() == codes.astype(np.float16).tobytes()


@given(st.integers(1, 3), st.integers(1, 4), st.sampled_from([4, 16, 18, 128]), st.integers(0, 99))
def test_int8_has_a_scale_of_its_own_for_each_token(heads: int, tokens: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((heads, tokens, size)) * 10.0 ** rng.integers(-9, 3, (heads, tokens, 1))).astype(
        np.float32
    )
    x[0, 0] = 0
    codes, scale = store(team_of(heads), "int8", (tokens, size), x)
    most = np.abs(x).max(axis=-1)
    own = np.where(most > 0, most / np.float32(127), np.float32(1)).astype(np.float16)
    steps = np.maximum(own, np.finfo(np.float16).smallest_subnormal)[..., None].astype(np.float32)
    assert scale is not None and codes is not None and (scale == own).all()
    assert (codes == np.clip(np.rint(x / steps), -127, 127)).all()
    back = restored(team_of(heads), "int8", (tokens, size), codes, scale, 3)
    assert back is not None and (back == codes.astype(np.float16) * own[..., None]).all()


def test_small_kernels() -> None:
    x, a = np.random.default_rng(0).standard_normal((2, 3, 11)).astype(np.float32)
    total, half = added(team_of(3), (3,), 11, x, a[0]), narrowed(team_of(3), (3,), 11, x)
    assert total is not None and (total == x + a[0]).all()
    assert half is not None and (half == x.astype(np.float16)).all()
    back = widened(team_of(3), (3,), 11, half)
    assert back is not None and back.dtype == np.float32 and (back == half).all()


# ---- counts


def test_norms_in_closed_form() -> None:
    """5 rows of 70: 18 registers of four, once for the sum and its square and once for the norm; on two cores."""
    team, rows, fours = team_of(2, 3, payload=False), 5, ceil(70 / 4)
    rms_norm(team, 70, None, (None, None), None, 1e-5)
    count = ran(team)
    assert [core.instructions["fmla"] for core, _ in team] == [2 * fours, 3 * fours]
    assert count["fadd"] == rows * (2 * fours + 1) and count["fmla"] == rows * fours
    assert count["fmul"] == rows * (2 * fours + 1) and count["faddp"] == 2 * rows
    assert count["fsqrt"] == count["fdiv"] == rows
    moved = sum(core.counts["l1_bytes"] for core, _ in team)
    assert moved == 16 * rows * (3 * fours + fours + 2 + 1 + (2 * fours + fours + 1))
    assert [core.registers for core, _ in team] == [7, 7]  # s, one, mean, eps, x, a, b


def test_silu_in_closed_form() -> None:
    """Of four numbers: a clip on both sides, 3 to split off a power of two, 6 coefficients, and what SiLU is."""
    team = team_of(3, payload=False)
    silu_times(team, 70, None, None)
    fours, count = 3 * ceil(70 / 4), ran(team)
    degree = exponent.DEGREE
    assert count == {
        "fneg": fours, "fmax": fours, "fmin": fours, "fmul": 2 * fours, "frintn": fours, "fmls": 2 * fours,
        "mov": degree * fours, "fmla": degree * fours, "fcvtns": fours, "shl_4s": fours, "add_4s": fours,
        "fadd": fours, "fdiv": fours, "ld1": 2 * fours + 3, "st1": fours, "subs": fours, "bne": fours,
    }  # fmt: skip
    assert sum(core.counts["operations"] for core, _ in team) == 8 * (degree + 2) * fours


@pytest.mark.parametrize("blocks", [False, True])
def test_codes_in_closed_form(blocks: bool) -> None:
    """5 rows of 100 in groups of 64 and 36: 4 and 3 registers of 16; scales of a row by 7, of its groups by 4 and 3."""
    team = team_of(2, 3, payload=False)
    scales(team, None, 100, 64 if blocks else 100)
    rounded(team, None, None, 100, 64)
    count, sixteens, parts = ran(team), 5 * (4 + 3), 5 * (2 if blocks else 1)
    assert count["fabs"] == count["fmax"] == count["fcvtns"] == 4 * sixteens
    assert count["fdiv"] == 4 * sixteens + parts and count["fmaxv"] == count["bsl"] == parts
    assert count["sqxtn_4h"] == count["sqxtn2_8h"] == 2 * sixteens
    assert count["sqxtn_8b"] == count["sqxtn2_16b"] == count["smax"] == count["sadalp"] == sixteens
    assert count["addv_4s"] == 5 * 2 and count["st1"] == parts + sixteens + 5 * 2


@pytest.mark.parametrize("wide", [False, True])
def test_softmax_in_closed_form(wide: bool) -> None:
    """3 heads of 4 tokens that see 21 positions, in three registers of eight: each is masked, raised and divided."""
    team = team_of(1, 2, payload=False)
    softmax(team, 4, 21, None, wide)
    rows, eights = 3 * 4, 3 * 4 * 3
    count = ran(team)
    assert count["cmgt_4s"] == count["bsl"] == count["fsub"] == count["frintn"] == 2 * eights
    assert count["fmax"] == 2 * eights + 2 * eights and count["fmaxv"] == rows
    assert count["fmla"] == exponent.DEGREE * 2 * eights and count["fadd"] == 2 * eights
    assert count["fmul"] == 2 * eights + 2 * eights and count["fdiv"] == rows and count["faddp"] == 2 * rows
    assert count["fcvtl"] == count["fcvtl2"] == count["fcvtn"] == count["fcvtn2"] == (0 if wide else eights)


def test_keys_and_values_in_closed_form() -> None:
    """2 heads of 3 tokens of 18 numbers are 12 registers of 16; int8 looks for the largest first."""
    sixteens, rows = 2 * 3 * 2, 2 * 3
    count = {}
    for kind in ("float32", "float16", "int8", "e4m3"):
        team = team_of(1, 1, payload=False)
        store(team, kind, (3, 18), None)
        restored(team, kind, (3, 18), None, None, 2)
        count[kind] = ran(team)
    assert count["float32"]["ld1"] == count["float16"]["ld1"] == sixteens  # of four registers each
    assert count["float16"]["fcvtn"] == count["float16"]["fcvtn2"] == 2 * sixteens
    assert count["int8"]["fabs"] == count["int8"]["fcvtns"] == 4 * sixteens
    assert count["int8"]["fmul_8h"] == 2 * 2 * sixteens and count["int8"]["dup_8h"] == 2 * rows
    assert count["e4m3"]["umin_8h"] == 2 * sixteens and count["e4m3"]["uxtl2"] == 2 * sixteens
    assert count["e4m3"]["fmul_8h"] == 2 * sixteens + 2 * 2 * sixteens


# ---- instructions


@settings(max_examples=examples(25))
@given(st.integers(0, 2**32 - 1))
def test_lanes(seed: int) -> None:
    """Each against a loop over its lanes."""
    rng = np.random.default_rng(seed)

    def run(op: str, *operands: np.ndarray, at: int | None = None, kind: Any = np.float32) -> list[Any]:
        arrays = [np.ascontiguousarray(each).view(np.uint8).reshape(1, 16) for each in operands]
        result: list[Any] = OPERATIONS[op].run(*arrays, at).reshape(16).view(kind).tolist()
        return result

    a, b = rng.standard_normal((2, 4)).astype(np.float32) * 9
    whole = rng.integers(-(2**31), 2**31, (2, 4), dtype=np.int32)
    short = rng.integers(-(2**15), 2**15, (2, 8), dtype=np.int16)
    tiny = rng.integers(-128, 128, 16, dtype=np.int8)
    pairs = [*zip(a, b, strict=True)]
    assert run("fmax", a, b) == [max(x, y) for x, y in pairs] and run("fmin", a, b) == [min(x, y) for x, y in pairs]
    assert run("fdiv", a, b) == [x / y for x, y in pairs] and run("fabs", a) == [abs(x) for x in a]
    assert run("fsqrt", np.abs(a)) == [np.sqrt(abs(x)) for x in a] and run("fmaxv", a) == [max(a), 0, 0, 0]
    assert run("faddp", a, b) == [a[0] + a[1], a[2] + a[3], b[0] + b[1], b[2] + b[3]]
    assert run("frintn", np.array([0.5, 1.5, -2.5, 2.6], np.float32)) == [0, 2, -2, 3]
    big = np.array([0.5, 2.5, 3e9, np.nan], np.float32)
    assert run("fcvtns", big, kind=np.int32) == [0, 2, 2**31 - 1, 0]
    assert run("fcmeq0", np.array([0, -0.0, 1, np.nan], np.float32), kind=np.int32) == [-1, -1, 0, 0]
    assert run("cmgt_4s", *whole, kind=np.int32) == [-int(x > y) for x, y in zip(*whole, strict=True)]
    mask = np.array([-1, 0, -1, 0], np.int32)
    assert run("bsl", mask, a, b) == [a[0], b[1], a[2], b[3]]
    clip = [int(np.clip(x, -(2**15), 2**15 - 1)) for x in whole[0]]
    assert run("sqxtn_4h", whole[0], kind=np.int16) == [*clip, 0, 0, 0, 0]
    assert run("sqxtn2_8h", short[0], whole[0], kind=np.int16) == [*short[0][:4].tolist(), *clip]
    clip = [int(np.clip(x, -128, 127)) for x in short[0]]
    assert run("sqxtn_8b", short[0], kind=np.int8)[:8] == clip
    assert run("sqxtn2_16b", tiny, short[0], kind=np.int8) == [*tiny[:8].tolist(), *clip]
    sums = [int(tiny[2 * at]) + int(tiny[2 * at + 1]) for at in range(8)]
    assert run("saddlp", tiny, kind=np.int16) == sums
    total = [(int(whole[0][at]) + int(short[0][2 * at]) + int(short[0][2 * at + 1]) + 2**31) % 2**32 - 2**31
             for at in range(4)]  # fmt: skip
    assert run("sadalp", whole[0], short[0], kind=np.int32) == total
    assert run("addv_4s", whole[0], kind=np.int32)[0] == (sum(map(int, whole[0])) + 2**31) % 2**32 - 2**31
    assert (
        run("sxtl", tiny, kind=np.int16) == tiny[:8].tolist() and run("sxtl2", tiny, kind=np.int16) == tiny[8:].tolist()
    )
    assert run("uxtl2", tiny, kind=np.uint16) == tiny.view(np.uint8)[8:].tolist()
    assert run("dup_4s", a, at=2) == [a[2]] * 4 and run("dup_8h", short[0], at=5, kind=np.int16) == [short[0][5]] * 8
    assert run("shl_8h", short[0], at=7, kind=np.uint16) == [int(x) << 7 & 0xFFFF for x in short[0]]
    assert run("ushr_8h", short[0], at=7, kind=np.uint16) == [int(x) >> 7 for x in short[0].view(np.uint16)]
    assert run("shl_4s", whole[0], at=23, kind=np.uint32) == [int(x) << 23 & 0xFFFFFFFF for x in whole[0]]
    halves = a.astype(np.float16)
    assert run("fcvtn", a, kind=np.float16) == [*halves.tolist(), 0, 0, 0, 0]
    assert run("fcvtn2", np.tile(halves, 2), b, kind=np.float16) == [*halves.tolist(), *b.astype(np.float16).tolist()]
    assert run("scvtf_8h", short[0], kind=np.float16) == short[0].astype(np.float16).tolist()
    assert run("smax", tiny, np.full(16, -127, np.int8), kind=np.int8) == [max(x, -127) for x in tiny.tolist()]


@settings(max_examples=examples(25))
@given(st.integers(0, 2**32 - 1))
def test_lanes_of_64_bits_and_bytes(seed: int) -> None:
    """Each against a loop over its lanes."""
    rng = np.random.default_rng(seed)

    def run(op: str, *operands: np.ndarray, at: int | None = None, kind: Any = np.float32) -> list[Any]:
        arrays = [np.ascontiguousarray(each).view(np.uint8).reshape(1, 16) for each in operands]
        result: list[Any] = OPERATIONS[op].run(*arrays, at).reshape(16).view(kind).tolist()
        return result

    def pairs(kind: Any) -> Any:
        """Two registers, of which some lanes are alike."""
        info = np.iinfo(kind)
        x = rng.integers(info.min, info.max, (2, 16 // np.dtype(kind).itemsize), dtype=kind, endpoint=True)
        x[1, ::2] = x[0, ::2]
        return x, [*zip(*x.tolist(), strict=True)]

    bits, words, shorts = 1 << 64, 1 << 32, rng.integers(0, 1 << 16, (2, 8), dtype=np.uint16)
    x, both = pairs(np.uint64)
    assert run("add_2d", *x, kind=np.uint64) == [(a + b) % bits for a, b in both]
    assert run("sub_2d", *x, kind=np.uint64) == [(a - b) % bits for a, b in both]
    assert run("shl_2d", x[0], at=9, kind=np.uint64) == [a << 9 & bits - 1 for a, _ in both]
    assert run("ins_2d", *x, at=1, kind=np.uint64) == [both[0][0], both[0][1]]
    x, both = pairs(np.int64)
    assert run("cmgt_2d", *x, kind=np.int64) == [-int(a > b) for a, b in both]
    assert run("cmge_2d", *x, kind=np.int64) == [-int(a >= b) for a, b in both]
    assert run("cmeq_2d", *x, kind=np.int64) == [-int(a == b) for a, b in both]
    x, both = pairs(np.uint32)
    assert run("sub_4s", *x, kind=np.uint32) == [(a - b) % words for a, b in both]
    assert run("mul_4s", *x, kind=np.uint32) == [a * b % words for a, b in both]
    assert run("umull", *x, kind=np.uint64) == [a * b for a, b in both[:2]]
    lanes = x[0].tolist()
    assert run("uaddlp_4s", x[0], kind=np.uint64) == [lanes[0] + lanes[1], lanes[2] + lanes[3]]
    assert run("rev64_4s", x[0], kind=np.uint32) == [lanes[at] for at in (1, 0, 3, 2)]
    assert run("sshr_4s", x[0], at=5, kind=np.int32) == [a >> 5 for a in x[0].view(np.int32).tolist()]
    assert run("ins_4s", *x, at=2, kind=np.uint32) == [*lanes[:2], both[0][1], lanes[3]]
    assert run("zip1_4s", *x, kind=np.uint32) == [*both[0], *both[1]]
    assert run("zip2_4s", *x, kind=np.uint32) == [*both[2], *both[3]]
    of_shorts = [*zip(*shorts.tolist(), strict=True)]
    assert run("zip1_8h", *shorts, kind=np.uint16) == [number for pair in of_shorts[:4] for number in pair]
    assert run("zip2_8h", *shorts, kind=np.uint16) == [number for pair in of_shorts[4:] for number in pair]
    assert run("uzp1_8h", *shorts, kind=np.uint16) == [*shorts[0, ::2].tolist(), *shorts[1, ::2].tolist()]
    x, both = pairs(np.uint8)
    assert run("eor", *x, kind=np.uint8) == [a ^ b for a, b in both]
    assert run("bic", *x, kind=np.uint8) == [a & ~b for a, b in both]
    assert run("cmeq_16b", *x, kind=np.uint8) == [255 * (a == b) for a, b in both]
    assert run("ins_16b", *x, at=7, kind=np.uint8) == [*x[0, :7].tolist(), both[0][1], *x[0, 8:].tolist()]
    few = np.array([[1, -0.0, np.nan, -2], [1, 0, np.nan, 3]], np.float32)
    assert run("fcmgt", *few, kind=np.int32) == [0, 0, 0, 0] and run("fcmgt", *few[::-1], kind=np.int32) == [
        0,
        0,
        0,
        -1,
    ]
    assert run("fcmge", *few, kind=np.int32) == run("fcmeq", *few, kind=np.int32) == [-1, -1, 0, 0]


def test_a_register_that_is_no_sum_is_not_carried() -> None:
    """A step may add to what the one before has left, and do nothing else with it."""
    lines = (ld1(("x",), "x"), of("fadd", "s", "s", "x"), of("fmul", "x", "x", "s"))
    with pytest.raises(AssertionError, match="is no sum in s"):
        _ = MicroKernel("k", (of("movi", "s", at=0),), lines, ()).carried
    assert MicroKernel("k", (), lines[:2], ()).carried == {"s"}
    fresh = (of("mov", "p", "c"), of("fmla", "p", "x", "x"))
    assert not MicroKernel("k", (), fresh, ()).carried


def test_sums_go_from_step_to_step_in_their_order() -> None:
    """1e8 + 1 - 1e8, of one row by fadd; of another the largest by fmax."""
    x = np.array([[1e8] * 4 + [1] * 4 + [-1e8] * 4], np.float32)
    for op, truth in (("fadd", 0.0), ("fmax", 1e8)):
        kernel = MicroKernel(
            "k", (of("movi", "s", at=0),), (ld1(("x",), "x"), of(op, "s", "s", "x")), (st1(("s",), "y"),)
        )
        stored = sweep(team_of(1), kernel, (1,), 3, {"x": laid(x, 4)}, {}, {"y": 16})
        assert stored is not None and stored["y"].view(np.float32).reshape(-1).tolist() == [truth] * 4
