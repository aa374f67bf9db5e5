"""Round to nearest, HQQ and GPTQ, against loops over their equations."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrt.models.compress.decompose import feature_error, weight_error
from meshrt.models.errors import ModelError
from meshrt.models.quantize.codes import Codes, nearest, symmetric
from meshrt.models.quantize.gptq import gptq
from meshrt.models.quantize.hqq import BETA, KAPPA, STEPS, P, hqq, shrink

ODD = [(1, 1), (3, 63), (2, 64), (5, 65), (4, 200)]


def weights(shape: tuple[int, int], spread: float, seed: int = 0) -> Any:
    """As a checkpoint has them: float16 numbers."""
    w = spread * np.random.default_rng([*shape, seed]).standard_normal(shape)
    return w.astype(np.float16).astype(np.float64)


def scalar(codes: Codes, group: int) -> list[list[float]]:
    """Equation 3, one weight after the other."""
    whole = []
    for at, row in enumerate(codes.codes):
        flat = [int(code) for part in row for code in part]
        zeros = [2 ** (codes.bits - 1)] * len(row) if codes.zero is None else codes.zero[at]
        whole.append(
            [(flat[j] - float(zeros[j // group])) * float(codes.scale[at][j // group]) for j in range(codes.columns)]
        )
    return whole


@given(st.data())
def test_dequantised_is_equation_3(data: st.DataObject) -> None:
    bits, group = data.draw(st.integers(2, 8)), data.draw(st.sampled_from([32, 64, 96]))
    shape = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 200))
    w = weights(shape, data.draw(st.sampled_from([0.002, 0.02, 3.0, 400.0])))
    for coded in (nearest(w, bits, group), symmetric(w, bits, group), hqq(w, bits, group)):
        assert coded.codes.shape == (shape[0], -(-shape[1] // group), group)
        assert coded.codes.max() < 2**bits and coded.scale.dtype == np.float16
        assert coded.dequantized().tolist() == scalar(coded, group)


@given(st.data())
def test_nearest_is_half_a_step_away_at_most(data: st.DataObject) -> None:
    """And what float16 makes of a scale and a zero: 2^-11 of them, over the codes and the zero."""
    bits, group = data.draw(st.integers(2, 8)), data.draw(st.sampled_from([32, 64]))
    shape = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 150))
    shift = data.draw(st.sampled_from([0.0, -0.5, 0.5]))  # all negative, all positive
    w = weights(shape, 0.05) + shift
    coded = nearest(w, bits, group)
    assert coded.zero is not None
    step = np.repeat(coded.scale.astype(float), group, axis=1)[:, : shape[1]]
    zero = np.repeat(coded.zero.astype(float), group, axis=1)[:, : shape[1]]
    assert np.all(np.abs(w - coded.dequantized()) <= step * (0.5 + (2**bits + np.abs(zero)) * 2.0**-10))


@pytest.mark.parametrize("shape", ODD)
def test_a_last_group_that_is_not_full_is_as_if_it_were_alone(shape: tuple[int, int]) -> None:
    w, ends = weights(shape, 0.02), shape[1] // 64 * 64
    for method in (nearest, symmetric, hqq):
        whole = method(w, 3, 64).dequantized()
        if shape[1] > ends and method is not hqq:  # whose number of steps is that of the whole matrix
            np.testing.assert_array_equal(whole[:, ends:], method(w[:, ends:], 3, 64).dequantized())
        assert whole.shape == shape and weight_error(w, whole) < 0.35


@pytest.mark.parametrize("value", [0.0, 5.0, -5.0, 1e-7, -60000.0])
@pytest.mark.parametrize("method", [nearest, hqq])
def test_constant_groups_are_kept(method: Any, value: float) -> None:
    """The published 7 / 0 is clamped to a scale of 5e-5, and a zero of -5 / 5e-5 is infinite in float16."""
    w = weights((2, 128), 0.02)
    w[0, :64] = value
    coded = method(w, 3, 64)
    assert coded.scale[0, 0] == 1 and np.isfinite(coded.zero).all()
    np.testing.assert_array_equal(coded.dequantized()[0, :64], np.float16(value))
    assert weight_error(w[1], coded.dequantized()[1]) < 0.3


@pytest.mark.parametrize("method", [nearest, hqq])
def test_a_group_far_from_zero_beside_its_range_is_kept_as_one_value(method: Any) -> None:
    """64 neighbours of 300 within 1e-4: its zero, -300 / 6.1e-5, is none of float16's."""
    w = 300 + 1e-4 * np.linspace(0, 1, 64)[None]
    coded = method(w, 3, 64)
    assert coded.scale[0, 0] == 1
    np.testing.assert_array_equal(coded.dequantized(), np.full((1, 64), 300.0))


def test_all_negative_groups_do_not_change_their_sign() -> None:
    """With the plain maximum in equation 15 the scale would be negative, and 0 / 0 where it is 0."""
    w = -np.abs(weights((2, 64), 0.02)) - 0.01
    w[1] = 0
    for coded in (symmetric(w, 3, 64), nearest(w, 3, 64)):
        assert np.all(coded.scale > 0) and np.all(coded.dequantized()[0] < 0)
        np.testing.assert_array_equal(coded.dequantized()[1], np.zeros(64))


def test_the_largest_weight_of_equation_15() -> None:
    """round(3.5) and round(-3.5) are 4 and -4, half to even; codes end at -4 and 3: 6/7 of +max, 8/7 of -max."""
    w = np.full((1, 32), 0.875)
    w[0, 1] = -0.875  # a step of 0.25, which is a float16
    rebuilt = symmetric(w, 3, 32).dequantized()[0]
    assert rebuilt[0] == 0.75 == 6 / 7 * 0.875 and rebuilt[1] == -1.0 == -8 / 7 * 0.875


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_weights_that_are_no_numbers_are_refused(bad: float) -> None:
    w = weights((2, 64), 0.02)
    w[1, 5] = bad
    for method in (nearest, symmetric, hqq):
        with pytest.raises(ModelError, match="NaN or infinite"):
            method(w, 3, 64)
    with pytest.raises(ModelError, match="NaN or infinite"):
        gptq(w, np.eye(64), 3, 64)


def test_weights_beyond_float16_are_refused() -> None:
    """bfloat16 has such: 7 steps of 65504 are the widest range there is."""
    w = np.zeros((1, 64))
    w[0, :2] = -4e5, 4e5
    for method in (nearest, symmetric, hqq):
        with pytest.raises(ModelError, match="not finite in float16"):
            method(w, 3, 64)
    with pytest.raises(ModelError, match="not finite in float16"):
        nearest(np.full((1, 64), 1e5), 3, 64)


# ------------------------------------------------------------------------------------------------------------- HQQ


def hqq_of_a_loop(w: Any, bits: int, group: int) -> tuple[list[list[float]], list[list[int]]]:
    """Zeros [rows, groups] before they are float16, and how many steps: equations 6 to 9, one number at a time."""
    first = nearest(w, bits, group)
    assert first.zero is not None
    scale, zero = first.scale.astype(float).tolist(), first.zero.astype(float).tolist()
    rows, columns = w.shape
    beta, best, steps = BETA, math.inf, 0
    for _ in range(STEPS):
        steps, total = steps + 1, 0.0
        for r in range(rows):
            for g in range(len(scale[r])):
                s, z, terms = scale[r][g], zero[r][g], []
                for x in w[r, g * group : (g + 1) * group]:
                    code = min(max(round(x / s + z), 0), 2**bits - 1)
                    error = x - (code - z) * s
                    m = math.copysign(max(abs(error) - abs(error) ** (P - 1) / beta, 0), error) if error else 0.0
                    terms.append(code - (x - m) / s)
                    total += abs(error)
                zero[r][g] = math.fsum(terms) / len(terms)
        beta *= KAPPA
        if total / (rows * columns) >= best * (1 - 1e-12):
            break
        best = total / (rows * columns)
    return zero, [[steps]]


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("spread", [0.02, 0.5, 2.0])
def test_hqq_follows_its_equations(spread: float, bits: int) -> None:
    w = weights((3, 100), spread)
    coded, (zero, _) = hqq(w, bits, 32), hqq_of_a_loop(w, bits, 32)
    assert coded.zero is not None
    np.testing.assert_allclose(coded.zero.astype(float), zero, rtol=2**-10, atol=1e-6)


def test_the_norm_of_hqq_changes_no_bit_on_weights_of_language_models() -> None:
    """Plain least squares for the zero, at a spread of 0.02: errors are below 0.147, where shrinking begins."""
    w = weights((64, 256), 0.02)
    least_squares = hqq(w, 3, 64, beta=1e-300)  # shrinks everything to 0
    for coded in (hqq(w, 3, 64), hqq(w, 3, 64, p=0.5), hqq(w, 3, 64, beta=2.0), hqq(w, 3, 64, kappa=1.05)):
        assert coded.zero is not None and least_squares.zero is not None
        assert coded.zero.tobytes() == least_squares.zero.tobytes()
        assert coded.codes.tobytes() == least_squares.codes.tobytes()
    wide = weights((64, 256), 1.0)
    assert hqq(wide, 3, 64).codes.tobytes() != hqq(wide, 3, 64, beta=1e-300).codes.tobytes()
    assert shrink(np.array([0.17, -0.17]), P, BETA).tolist() == [0, 0]
    left = 0.171 - 0.171 ** (P - 1) / BETA
    assert shrink(np.array([0.171, -0.171]), P, BETA).tolist() == pytest.approx([left, -left])
    last = (BETA * KAPPA ** (STEPS - 1)) ** (-1 / (2 - P))
    assert last == pytest.approx(0.147, abs=5e-4)


def test_errors_of_normal_weights() -> None:
    """As of a prototype of another hand, on other numbers of the same distribution."""
    w = weights((512, 512), 0.02)
    assert weight_error(w, nearest(w, 3, 64).dequantized()) == pytest.approx(0.1927, abs=1e-3)
    assert weight_error(w, hqq(w, 3, 64).dequantized()) == pytest.approx(0.1851, abs=1e-3)


@pytest.mark.parametrize(("bits", "group", "error"), [(4, 32, 0.0783), (4, 64, 0.0898), (4, 128, 0.1000)])
def test_errors_of_four_bits(bits: int, group: int, error: float) -> None:
    """As of a prototype of another hand, whose grids end at the least weight: nothing depends on three bits."""
    w = np.random.default_rng(0).standard_normal((256, 1024)).astype(np.float32)
    assert weight_error(w, nearest(w, bits, group).dequantized()) == pytest.approx(error, abs=3e-4)


# ------------------------------------------------------------------------------------------------------------ GPTQ


def gptq_of_a_loop(w: Any, gram: Any, bits: int, group: int) -> Any:
    """One input after the other, with the inverse of what is left of the damped Gram matrix found anew each time."""
    left, size = w.copy(), w.shape[1]
    h = gram + 0.01 * np.mean(np.diag(gram)) * np.eye(size)
    rebuilt = np.empty_like(left)
    for i in range(size):
        if i % group == 0:
            grids = nearest(left[:, i : i + group], bits, group)
            assert grids.zero is not None
            scale, zero = grids.scale[:, 0].astype(float), grids.zero[:, 0].astype(float)
        inverse = np.linalg.inv(h[i:, i:])
        rebuilt[:, i] = (np.clip(np.rint(left[:, i] / scale + zero), 0, 2**bits - 1) - zero) * scale
        left[:, i:] -= np.outer((left[:, i] - rebuilt[:, i]) / inverse[0, 0], inverse[0])
    return rebuilt


@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("shape", [(5, 64), (7, 96), (4, 70), (3, 20)])
def test_gptq_is_that_of_a_loop(shape: tuple[int, int], bits: int) -> None:
    w, x = weights(shape, 0.02), weights((300, shape[1]), 1.0, 1) @ weights((shape[1], shape[1]), 1.0, 2)
    gram = x.T @ x / len(x)
    rebuilt = gptq(w, gram, bits, 32).dequantized()
    np.testing.assert_allclose(rebuilt, gptq_of_a_loop(w, gram, bits, 32), rtol=1e-9, atol=1e-12)


def test_gptq_trades_the_weights_for_the_features() -> None:
    w, x = weights((64, 128), 0.02), weights((2000, 128), 1.0, 1) @ weights((128, 128), 1.0, 2)
    gram = x.T @ x
    errors = []
    for rebuilt in (gptq(w, gram, 3, 64).dequantized(), nearest(w, 3, 64).dequantized()):
        errors.append((feature_error(w.T, rebuilt.T, gram), weight_error(w, rebuilt)))
    assert errors[0][0] < 0.75 * errors[1][0] and errors[0][1] > errors[1][1]


def test_gptq_of_inputs_that_are_apart_is_rounding_to_nearest() -> None:
    """Nothing to make up for elsewhere; an input that never occurs, the third, is no exception."""
    w = weights((6, 100), 0.02)
    gram = np.diag(np.random.default_rng(0).uniform(1, 2, 100))
    gram[2, 2] = 0
    np.testing.assert_array_equal(gptq(w, gram, 3, 64).dequantized(), nearest(w, 3, 64).dequantized())


def test_gptq_without_any_input_is_refused() -> None:
    with pytest.raises(ModelError, match="no input of it occurs"):
        gptq(weights((2, 64), 0.02), np.zeros((64, 64)), 3, 64)
    with pytest.raises(ModelError, match="activations are not finite"):
        gptq(weights((2, 64), 0.02), np.full((64, 64), np.nan), 3, 64)
