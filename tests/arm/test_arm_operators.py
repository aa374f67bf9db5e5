"""Operators of graphs on Arm cores, by instructions: against NumPy in float64, and counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_arm_vectors import near, ran, team_of

from meshrt.models.graph import BINARY, REDUCE, UNARY
from meshrt.programs.arm import exponent
from meshrt.programs.arm.operators import ALONG, EACH, along, each, each_kernel

NEAR = {"Sigmoid": 2e-7, "Tanh": 3e-7, "Erf": 4e-7}  # of the largest, which is 1; of Exp 3e-7 of each


@pytest.mark.parametrize("op", EACH)
def test_what_works_on_each_number_is_that_of_float64(op: str) -> None:
    """+ - * / and the like to the bit of float32."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((2, 51, 4)) * 5).astype(np.float32)
    a = np.abs(a) if op == "Sqrt" else a
    a[0] = [0, 1e-3, 30, -30] if op not in ("Reciprocal", "Sqrt") else a[0]
    given_ = [a, b] if op in BINARY else [a]
    found = each(team_of(20, 31), op, given_)
    assert found is not None
    if op in BINARY or op in ("Abs", "Neg", "Sqrt", "Relu", "Reciprocal"):
        assert (found == ({**UNARY, **BINARY}[op](*given_))).all()
        return
    truth = np.vectorize(math.erf)(a) if op == "Erf" else UNARY[op](a.astype(np.float64))
    if op == "Exp":
        assert np.abs(found / truth - 1).max() < 3e-7
    else:
        assert np.abs(found - truth).max() < NEAR[op]


@given(st.integers(1, 5), st.integers(1, 40), st.sampled_from([*ALONG, "Softmax"]), st.integers(0, 99))
def test_what_works_along_rows_is_that_of_float64(rows: int, k: int, op: str, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((rows, k)).astype(np.float32) - 3
    found, wide = along(team_of(rows), op, k, x), x.astype(np.float64)
    if op == "Softmax":
        powers = np.exp(wide - wide.max(axis=1, keepdims=True))
        assert near(found, powers / powers.sum(axis=1, keepdims=True), 1e-6)
    else:
        assert near(found, REDUCE[op](wide, axis=1), 1e-6)


def test_counts_in_closed_form() -> None:
    """One step of a kernel for four numbers; rows of 70 are 18 fours, then what is left of them."""
    team = team_of(3, 4, payload=False)
    each(team, "Sigmoid", [None])
    along(team, "ReduceMean", 70, None)
    count, degree = ran(team), exponent.DEGREE
    assert count["fmla"] == 7 * degree and count["fdiv"] == count["fneg"] == 7
    assert count["fadd"] == 7 + 7 * 18 and count["faddp"] == 2 * 7 and count["fmul"] == 7 + 7
    assert max(len(each_kernel(op).registers) for op in EACH) <= 32
