"""What other models than LLaMA have between products, by instructions, against float64; planes of bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_arm_vectors import near, ran, team_of

from meshrt.arm.isa import OPERATIONS, ld1, ld1r, of, st1
from meshrt.arm.kernel import MicroKernel, execute
from meshrt.models.experts import route
from meshrt.models.reference import activated as truth_of
from meshrt.models.reference import capped as cap_of
from meshrt.models.reference import seen
from meshrt.programs.arm.products.kernels import KernelForm, integer_kernel
from meshrt.programs.arm.products.planes import pack, planes_of, unpacking
from meshrt.programs.arm.simd.activations import acting, activated, bounded, capped, capping, scaled
from meshrt.programs.arm.simd.between import ArmNorm, norm_of, rms_norm
from meshrt.programs.arm.simd.softmax import largest, softmax
from meshrt.programs.arm.simd.top import likeliest
from meshrt.programs.arm.tiles import UNITS

SEEDS = st.integers(0, 99)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@example(rows=1, k=2, adds=1, seed=0)  # a mean 20 times what is left of it, in two lanes of four
@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 2), SEEDS)
def test_layer_norm_is_that_of_float64(rows: int, k: int, adds: int, seed: int) -> None:
    """With a mean that is larger than what is left of it."""
    x, a, b, weight, bias = normal(seed, rows, k) + 5, normal(seed + 1, rows, k), *normal(seed + 2, 3, k)
    stays, normed = norm_of(team_of(rows), k, x, (a, b)[:adds], ArmNorm(1e-5, weight, True, bias))
    total = x.astype(np.float64) + sum((a, b)[:adds])
    centred = total - total.mean(axis=1, keepdims=True)
    truth = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * weight + bias
    assert near(stays, total, 1e-6) and near(normed, truth, 2e-4 if k == 1 else 2e-5)


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 20), SEEDS)
def test_norms_of_heads_are_those_of_float64(rows: int, heads: int, size: int, seed: int) -> None:
    x, weight = normal(seed, rows, heads, size), normal(seed + 1, size)
    _, normed = rms_norm(team_of(rows), size, x, (), weight, 1e-6, (heads,))
    wide = x.astype(np.float64)
    assert near(normed, wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + 1e-6) * weight, 2e-6)


@given(
    st.integers(1, 5), st.integers(1, 40), st.sampled_from(["silu", "gelu_tanh", "relu"]), st.booleans(), st.booleans(),
    SEEDS,
)  # fmt: skip
def test_activations_are_those_of_float64(rows: int, k: int, name: str, gated: bool, biased: bool, seed: int) -> None:
    gate, up = 3 * normal(seed, rows, k), normal(seed + 1, rows, k)
    biases = tuple(normal(seed + 2, 2, k)) if biased else ()
    outputs = activated(team_of(rows), k, name, gate, gated, up if gated else None, biases[: 1 + gated])
    first, second = (gate + biases[0], up + biases[1]) if biased else (gate, up)
    truth = truth_of(first.astype(np.float64), name) * (second if gated else 1)
    assert near(outputs, truth, 2e-6)


@given(st.integers(1, 4), st.integers(1, 20), st.booleans(), SEEDS)
def test_caps_bounds_and_scales_are_those_of_float64(rows: int, k: int, wide: bool, seed: int) -> None:
    x = (40 * normal(seed, rows, k)).astype(np.float32 if wide else np.float16)
    assert near(capped(team_of(rows), (), k, 30.0, x, wide), cap_of(x.astype(np.float64), 30.0), 1e-6)
    x = normal(seed, rows, k)
    assert (bounded(team_of(rows), k, x, 0.75) == np.clip(x, -0.75, 0.75)).all()
    bias = normal(seed + 1, k)
    assert (scaled(team_of(rows), (), k, 1.7, x) == x * np.float32(1.7)).all()
    assert (scaled(team_of(rows), (), k, 1.7, x, True, bias) == (x + bias) * np.float32(1.7)).all()


@given(st.integers(1, 7), st.integers(0, 9), st.integers(1, 12), SEEDS)
def test_windows_are_those_of_float64(tokens: int, held: int, window: int, seed: int) -> None:
    """Of scores in float32 shares in float16, which the products after them take."""
    count = held + tokens
    scores = normal(seed, 2, tokens, count)
    shares = softmax(team_of(2), tokens, count, scores, True, False, window)
    masked = np.where(seen(count, window)[held:], scores.astype(np.float64), -np.inf)
    powers = np.exp(masked - masked.max(axis=-1, keepdims=True))
    assert shares is not None and shares.dtype == np.float16
    assert np.abs(shares - powers / powers.sum(axis=-1, keepdims=True)).max() < 1e-3


@given(st.integers(1, 6), st.integers(1, 13), st.integers(1, 13), st.booleans(), st.booleans(), SEEDS)
def test_the_likeliest_experts_are_those_of_the_reference(
    rows: int, experts: int, top: int, renormalise: bool, equal: bool, seed: int
) -> None:
    """Some that are equally likely, and all of them."""
    top, scores = min(top, experts), 3 * normal(seed, rows, experts)
    if equal:
        scores = np.round(scores)
    chosen, shares = likeliest(team_of(rows), experts, top, renormalise, scores)
    truth, truth_shares = route(scores, top, renormalise)
    assert (chosen == truth).all() and near(shares, truth_shares, 1e-6)


def test_a_choice_is_counted_by_shape() -> None:
    """Of 7 rows of 10 experts, which are 3 fours, the 2 likeliest: largest, where, away for each; then shares."""
    whole, shape = team_of(3, 4), team_of(3, 4, payload=False)
    likeliest(whole, 10, 2, True, normal(0, 7, 10))
    likeliest(shape, 10, 2, True, None)
    count = ran(shape)
    assert count == ran(whole)
    assert count["cmeq_4s"] == 7 * 2 * (3 + 3) and count["smin_4s"] == 7 * 2 * 3 and count["sminv_4s"] == 7 * 2


# ---- planes of bits


@pytest.mark.parametrize("bits", [2, 3, 5, 6, 7])
def test_planes_waste_no_bit_and_come_back(bits: int) -> None:
    """Every code in every place: by the kernel's own instructions."""
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (3, 128)).astype(np.uint8)
    packed = pack(codes, bits)
    assert packed.shape == (3, 16 * bits)
    names = iter(f"r{at}" for at in range(40))
    own = unpacking(bits, 8, names)
    body = own.load() + [line for chunk in range(8) for line in [*own.unpack(chunk, "w"), st1(("w",), "y")]]
    y = np.zeros((3, 1, 128), np.uint8)
    shifts = np.array([0] * 8 + [252] * 8, np.uint8)[None, None]
    streams = {"w": packed[:, None], "bits": packed[:, None, 16 * (bits & ~1) :], "shifts": shifts, "y": y}
    execute(MicroKernel("planes", tuple(own.before()), tuple(body), ()), (3,), 1, streams)
    assert (y[:, 0] == codes).all()
    assert sum(width for width, _ in planes_of(bits)) == bits


@pytest.mark.parametrize("bits", [2, 3, 5, 6, 7])
@pytest.mark.parametrize("unit", ["smmla", "sdot"])
def test_kernels_of_planes_stay_within_the_registers(bits: int, unit: str) -> None:
    from test_arm_linear import new_soc

    from meshrt.programs.arm.products.weights import choose

    how = choose(new_soc(), KernelForm(bits, shift="zero"), unit)
    kernel = integer_kernel(how.unit, how.rows, how.columns, how.form)
    assert len(kernel.registers) <= 32 and how.rows >= 6


def test_three_bits_in_closed_form() -> None:
    """A step of 8 x 8 of smmla: two planes, whose bits of four registers take six shifts, seven masks and four orr."""
    body = integer_kernel(UNITS["smmla"], 8, 8, KernelForm(3)).tallies[1].instructions
    assert dict(body) == {
        "ld1": 2, "ld1r": 1, "ushl": 1, "ushr": 4, "shl": 2, "and": 7, "orr": 4, "smmla": 16, "subs": 1, "bne": 1,
    }  # fmt: skip


@pytest.mark.parametrize("kernel", [acting("gelu_tanh", True, True), capping(False), largest(False, True)], ids=str)
def test_kernels_have_room(kernel: MicroKernel) -> None:
    assert len(kernel.registers) <= 32


def test_new_instructions_are_those_of_loops_over_lanes() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 256, (2, 5, 16)).astype(np.uint8)
    b[:, :3] = [0, 3, 250]
    b = np.where(np.abs(b.view(np.int8)) < 9, b, 0)
    shifted = OPERATIONS["ushl"].run(a, b, None)
    for at in np.ndindex(a.shape):
        bits = int(b.view(np.int8)[at])
        assert shifted[at] == ((int(a[at]) << bits) & 255 if bits >= 0 else int(a[at]) >> -bits)
    assert (OPERATIONS["shl"].run(a, 3) == (a.astype(int) << 3 & 255)).all()
    fours, others = a.view(np.int32), b.view(np.int32)
    assert (OPERATIONS["smin_4s"].run(a, b, None).view(np.int32) == np.minimum(fours, others)).all()
    assert (OPERATIONS["cmeq_4s"].run(a, a, None) == 255).all()
    assert (OPERATIONS["cmeq_4s"].run(a, b, None).view(np.int32) == -(fours == others).astype(int)).all()
    least = OPERATIONS["sminv_4s"].run(a, None).view(np.int32)
    assert (least[:, 0] == fours.min(axis=1)).all() and not least[:, 1:].any()


def test_a_load_of_eight_bytes_fills_both_halves() -> None:
    x, y = np.arange(24, dtype=np.uint8).reshape(1, 3, 8), np.zeros((1, 3, 16), np.uint8)
    kernel = MicroKernel("both", (), (ld1r("a", "x"), st1(("a",), "y")), ())
    execute(kernel, (1,), 3, {"x": x, "y": y})
    assert (y[..., :8] == x).all() and (y[..., 8:] == x).all()
    assert kernel.total(3).loads == 3 and str(ld1r("a", "x")) == "ld1r {a}, [x], #8"
    assert str(of("shl", "a", "b", at=2)) == "shl a, b, #2" and str(ld1(("a",), "x")).endswith("#16")
