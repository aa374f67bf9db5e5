"""MiLo's loop and its compensators."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrt.models.compress.decompose import weight_error
from meshrt.models.quantize.codes import Codes
from meshrt.models.quantize.compensator import factors, stored
from meshrt.models.quantize.hqq import hqq
from meshrt.models.quantize.milo import Milo, milo


def student(shape: tuple[int, int], seed: int = 0) -> Any:
    """Weights with heavy tails: Student's t with 6 degrees of freedom."""
    w = 0.02 * np.random.default_rng([*shape, seed]).standard_t(6, shape)
    return w.astype(np.float16).astype(np.float64)


def stored_error(w: Any, outcome: Milo) -> float:
    assert outcome.compensator is not None
    return weight_error(w, outcome.codes.dequantized() + outcome.compensator.product())


@pytest.mark.parametrize("bits", [3, 8, 16])
@pytest.mark.parametrize(("shape", "rank"), [((96, 128), 8), ((128, 70), 33), ((40, 100), 3)])
def test_the_round_that_is_kept_is_the_best_of_the_curve(shape: tuple[int, int], rank: int, bits: int) -> None:
    w = student(shape)
    outcome = milo(w, rank, 3, 64, bits, 12)
    errors = [round_.stored_error for round_ in outcome.curve]
    assert errors[outcome.kept - 1] == min(errors) <= errors[0]
    assert outcome.kept == 1 + errors.index(min(errors))
    assert stored_error(w, outcome) == pytest.approx(min(errors), rel=1e-9)
    for round_ in outcome.curve:  # storing costs, up to what float16 rounds
        assert round_.stored_error >= round_.error * (1 - 1e-3)


def test_the_first_round_is_hqq_and_one_svd() -> None:
    """Equation 13 of it by NumPy's SVD: what is left are the singular values after the first r."""
    w = student((64, 130))
    codes = hqq(w, 3, 64)
    sigma = np.linalg.svd(w - codes.dequantized(), compute_uv=False)
    outcome = milo(w, 5, 3, 64, 16, 1)
    assert outcome.codes.codes.tobytes() == codes.codes.tobytes()
    assert outcome.curve[0].error == pytest.approx(np.linalg.norm(sigma[5:]) / np.linalg.norm(w), rel=1e-9)
    assert (len(outcome.curve), outcome.kept, outcome.stopped_by) == (1, 1, "rounds")


def test_the_second_round_quantizes_what_the_factors_leave() -> None:
    w = student((64, 128))
    u, v = factors(w - hqq(w, 3, 64).dequantized(), 4)
    codes = hqq(w - u @ v, 3, 64)
    lost = w - codes.dequantized()
    sigma = np.linalg.svd(lost, compute_uv=False)
    outcome = milo(w, 4, 3, 64, 16, 2)
    assert outcome.curve[1].error == pytest.approx(np.linalg.norm(sigma[4:]) / np.linalg.norm(w), rel=1e-9)
    assert outcome.kept == 2 and outcome.codes.codes.tobytes() == codes.codes.tobytes()


def test_rounds_help_where_the_rank_is_small_and_hurt_where_it_is_large() -> None:
    """Section 4.2 says that the error falls monotonically: of half the matrix's rank it rises from round 2 or 3 on."""
    small = milo(student((256, 512)), 16, 3, 64, 16, 8)
    errors = [round_.error for round_ in small.curve]
    assert errors == sorted(errors, reverse=True) and small.kept == 8 and small.stopped_by == "rounds"
    large = milo(student((128, 256)), 64, 3, 64, 3, 20)
    errors = [round_.error for round_ in large.curve]
    assert large.stopped_by == "diverged" and len(errors) == 4
    assert errors[-1] > min(errors) and large.kept < len(errors)
    assert stored_error(student((128, 256)), large) < large.curve[-1].stored_error


@pytest.mark.parametrize(("shape", "rank"), [((64, 96), 4), ((64, 96), 40), ((128, 128), 16), ((30, 64), 2)])
def test_it_stops_by_equation_14(shape: tuple[int, int], rank: int) -> None:
    """Averages of three rounds: the first one that falls by less than 1e-4 of itself ends the loop."""
    outcome = milo(student(shape), rank, 3, 64, 3, 40)
    errors = np.array([round_.error for round_ in outcome.curve])
    averages = np.convolve(errors, np.ones(3) / 3, "valid")
    gains = (averages[:-1] - averages[1:]) / averages[:-1]
    assert np.all(gains[:-1] >= 1e-4)
    assert len(errors) == 40 or gains[-1] < 1e-4
    expected = "rounds" if gains[-1] >= 1e-4 else "converged" if gains[-1] >= 0 else "diverged"
    assert outcome.stopped_by == expected


def test_rank_0_is_hqq() -> None:
    w = student((16, 64))
    outcome, codes = milo(w, 0, 3, 64, 3, 20), hqq(w, 3, 64)
    assert outcome.compensator is None and outcome.codes.codes.tobytes() == codes.codes.tobytes()
    assert (
        outcome.curve[0].error == outcome.curve[0].stored_error == pytest.approx(weight_error(w, codes.dequantized()))
    )


def test_matrices_without_an_error_need_no_numbers() -> None:
    """All zero, and constant rows: residuals of rank 0."""
    for w in (np.zeros((8, 64)), np.repeat(np.arange(8.0)[:, None], 64, axis=1)):
        outcome = milo(w, 3, 3, 64, 3, 20)
        assert outcome.compensator is not None
        np.testing.assert_array_equal(outcome.codes.dequantized() + outcome.compensator.product(), w)
        assert outcome.stopped_by == "converged" and outcome.kept == 1


def test_one_seed_gives_one_result() -> None:
    first, second = (milo(student((64, 128)), 8, 3, 64, 3, 5) for _ in range(2))
    assert first.curve == second.curve
    assert first.codes.codes.tobytes() == second.codes.codes.tobytes()


# ---------------------------------------------------------------------------------------------------- compensators


@pytest.mark.parametrize("shape", [(20, 50), (50, 20), (30, 30), (1, 9)])
def test_factors_are_the_best_of_their_rank(shape: tuple[int, int]) -> None:
    e = student(shape)
    p, sigma, q = np.linalg.svd(e, full_matrices=False)
    for rank in {1, min(shape) // 2 + 1, min(shape)}:
        u, v = factors(e, rank)
        assert u.shape == (shape[0], rank) and v.shape == (rank, shape[1])
        np.testing.assert_allclose(u @ v, p[:, :rank] * sigma[:rank] @ q[:rank], atol=1e-9)
        np.testing.assert_allclose(np.linalg.norm(u, axis=0) ** 2, sigma[:rank], rtol=1e-6)  # equation 12
        np.testing.assert_allclose(np.linalg.norm(v, axis=1) ** 2, sigma[:rank], rtol=1e-6)


@given(st.data())
def test_factors_in_a_few_bits_are_equation_15(data: st.DataObject) -> None:
    """Groups of the row-major array, whatever its rows: any rank, the last group filled up. One number at a time."""
    bits, group = data.draw(st.sampled_from([3, 8])), data.draw(st.sampled_from([32, 64]))
    rows, columns = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    rank = data.draw(st.integers(1, min(rows, columns)))
    u, v = student((rows, rank)), student((rank, columns), 1)
    compensator = stored(u, v, bits, group)
    product = np.zeros((rows, columns))
    back = []
    for factor, coded_factor in ((u, compensator.u), (v, compensator.v)):
        assert isinstance(coded_factor, Codes) and coded_factor.codes.shape == (1, -(-factor.size // group), group)
        numbers = []
        for begin in range(0, factor.size, group):
            part = factor.reshape(-1)[begin : begin + group]
            scale = max(float(np.float16(2 * max(abs(part)) / (2**bits - 1))), float(np.float16(2.0**-14)))
            half = 2 ** (bits - 1)
            numbers += [(min(max(round(x / scale + half), 0), 2**bits - 1) - half) * scale for x in part]
        np.testing.assert_array_equal(coded_factor.dequantized()[0], numbers)
        back.append(np.array(numbers).reshape(factor.shape))
    product = back[0] @ back[1]
    np.testing.assert_allclose(compensator.product(), product, rtol=1e-12, atol=1e-15)


def test_factors_in_float16_are_rounded_and_no_more() -> None:
    u, v = student((30, 4)), student((4, 50), 1)
    compensator = stored(u, v, 16, 64)
    np.testing.assert_array_equal(compensator.product(), u.astype(np.float16).astype(float) @ v.astype(np.float16))
