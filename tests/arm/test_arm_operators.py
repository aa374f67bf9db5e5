"""Operators of graphs on Arm cores, by instructions: against NumPy in float64, and counts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_arm_vectors import near, ran, team_of

from meshrt.arm.core import Team
from meshrt.models.errors import ModelError
from meshrt.models.graph import BINARY, OPERATORS, REDUCE, UNARY, Node, compute
from meshrt.programs.arm.graph import operator_of
from meshrt.programs.arm.simd import choices, exponent
from meshrt.programs.arm.simd.choices import COMPARE, TRUTHS, WHOLE, lanes_of
from meshrt.programs.arm.simd.functions import FARTHEST
from meshrt.programs.arm.simd.moves import moved, moves_of
from meshrt.programs.arm.simd.operators import ALONG, EACH, along, each, each_kernel

FUNCTIONS = {"Log", "Sin", "Cos", "Pow"}
NEAR = {"Sigmoid": 2e-7, "Tanh": 3e-7, "Erf": 4e-7}  # of the largest, which is 1; of Exp 3e-7 of each


def each_of(team: Team, op: str, kinds: str, given: list[Any], kind: Any = np.float32) -> Any:
    """An operator on arrays [steps, numbers of one]."""
    kernel = each_kernel(op, kinds)
    assert kernel is not None and len(kernel.registers) <= 32
    result = each(team, kernel, given, lanes_of(op, kinds) * np.dtype(kind).itemsize)
    return None if result is None else result.view(kind)


def function(op: str, *given: Any) -> Any:
    """Of arrays [n] of float32, n a multiple of 4."""
    fours = [np.asarray(operand, np.float32).reshape(-1, 4) for operand in given]
    return each_of(team_of(len(fours[0])), op, "f" * len(fours), fours).reshape(-1)


@pytest.mark.parametrize("op", sorted({*EACH} - FUNCTIONS))
def test_what_works_on_each_number_is_that_of_float64(op: str) -> None:
    """+ - * / and the like to the bit of float32."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((2, 51, 4)) * 5).astype(np.float32)
    a = np.abs(a) if op == "Sqrt" else a
    a[0] = [0, 1e-3, 30, -30] if op not in ("Reciprocal", "Sqrt") else a[0]
    given_ = [a, b] if op in BINARY else [a]
    result = each_of(team_of(20, 31), op, "f" * len(given_), given_)
    if op in BINARY or op in ("Abs", "Neg", "Sqrt", "Relu", "Reciprocal"):
        assert (result == ({**UNARY, **BINARY}[op](*given_))).all()
        return
    truth = np.vectorize(math.erf)(a) if op == "Erf" else UNARY[op](a.astype(np.float64))
    if op == "Exp":
        assert np.abs(result / truth - 1).max() < 3e-7
    else:
        assert np.abs(result - truth).max() < NEAR[op]


def test_logarithms() -> None:
    """Of all normal numbers within 2e-7 of each, near 1 too; 2^-126 for what is less."""
    rng = np.random.default_rng(0)
    x = np.concatenate((np.exp(rng.uniform(-87, 88, 4000)), rng.uniform(0.7, 1.4, 4000))).astype(np.float32)
    assert np.abs(function("Log", x) / np.log(x.astype(np.float64)) - 1).max() < 2e-7
    few = function("Log", [0, -0.0, 1, np.inf, -1, -np.inf, np.nan, 1e-40])
    np.testing.assert_array_equal(few[:7], [-np.inf, -np.inf, 0, np.inf, np.nan, np.nan, np.nan])
    assert few[7] == pytest.approx(-126 * math.log(2))


@pytest.mark.parametrize("op", ["Sin", "Cos"])
def test_sines(op: str) -> None:
    """Within 1e-7 as far as 2^20, in all quarters of a turn; no numbers beyond."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-far, far, 2000) for far in (1, 10, 1e4, FARTHEST)]).astype(np.float32)
    assert np.abs(function(op, x) - UNARY[op](x.astype(np.float64))).max() < 1e-7
    quarters = np.concatenate((np.arange(-8, 8) * np.pi / 2, [0, -0.0, FARTHEST, -FARTHEST])).astype(np.float32)
    assert np.abs(function(op, quarters) - UNARY[op](quarters.astype(np.float64))).max() < 1e-7
    assert np.isnan(function(op, [2 * FARTHEST, -2 * FARTHEST, np.inf, np.nan])).all()


def test_powers() -> None:
    """Within 5e-7 and 1e-7 |b| of each; what is infinite, 0 or no number is that of NumPy."""
    rng = np.random.default_rng(0)
    for far, most in ((3, 3), (80, 1), (1, 80), (0.01, 8000)):
        a, b = np.exp(rng.uniform(-far, far, 2000)), rng.uniform(-most, most, 2000)
        a, b = a.astype(np.float32), b.astype(np.float32)
        truth = np.power(a.astype(np.float64), b.astype(np.float64))
        normal = (truth > 1e-37) & (truth < 3e38)
        share = np.abs(function("Pow", a, b)[normal] / truth[normal] - 1)
        assert (share < 5e-7 + 1e-7 * np.abs(b[normal])).all() and normal.sum() > 1000
    bases = [0, -0.0, 1, -1, 2, -2, 0.5, -0.5, np.inf, -np.inf, np.nan, 3, -3, 1e-30, 1e30, -1e30]
    powers = [0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, 2.5, 100, 101, -101]
    a, b = (numbers.reshape(-1) for numbers in np.meshgrid(np.float32(bases), np.float32(powers)))
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(function("Pow", a, b), np.power(a, b), rtol=1e-5)


NUMBERS = {"f": [-2.5, 0, -0.0, 1, np.nan, np.inf], "i": [-(2**63), 2**63 - 1, -1, 0, 1, 3_000_000_000], "b": [0, 1]}
TYPES: dict[str, Any] = {"f": np.float32, "i": np.int64, "b": np.bool_}
CHOICES = [
    *((op, kind * 2) for op in COMPARE for kind in "fi"), ("Equal", "bb"), ("And", "bb"), ("Or", "bb"), ("Not", "b"),
    *((op, "i" if op in ("Neg", "Abs") else "ii") for op in WHOLE), ("Where", "bff"), ("Where", "bii"),
]  # fmt: skip


@pytest.mark.parametrize("op, kinds", CHOICES)
def test_choices_are_those_of_numpy(op: str, kinds: str) -> None:
    """To the bit: each number with each other, no numbers and the ends of 64 bits among them."""
    rng, lanes = np.random.default_rng(0), lanes_of(op, kinds)
    arrays = [rng.choice(np.array(NUMBERS[kind], TYPES[kind]), (64 // lanes, lanes)) for kind in kinds]
    want = compute(Node(op, op, (), "y", {}), arrays)
    result = each_of(team_of(1, 64 // lanes - 1), op, kinds, arrays, want.dtype)
    np.testing.assert_array_equal(result, want)


@pytest.mark.parametrize("op, said, shapes", [
    ("Reshape", {"shape": [7, -1]}, [(5, 7)]), ("Transpose", {"perm": [1, 0, 2]}, [(3, 5, 4)]),
    ("Identity", {}, [(9,)]), ("Transpose", {"perm": [1, 0]}, [(6, 11)]),
    ("Concat", {"axis": 1}, [(3, 5), (3, 2), (3, 8)]),
    ("Slice", {"parts": [[0, 1, 9, 2], [1, 0, 3, 1]]}, [(9, 5)]), ("Expand", {"shape": [4, 3, 5]}, [(3, 1)]),
    ("Gather", {"axis": 1}, [(4, 9)]),
])  # fmt: skip
@pytest.mark.parametrize("kind", [np.float32, np.int64, np.bool_])
def test_what_moves_numbers_moves_them(op: str, said: Any, shapes: Any, kind: Any) -> None:
    given_ = [np.random.default_rng(0).integers(0, 99, shape).astype(kind) for shape in shapes]
    given_ += [np.array([[3, 0], [8, 8]])] if op == "Gather" else []
    node = Node(op, op, (), "y", said)
    want = compute(node, given_)
    moves = moves_of(node, given_, want)
    copied = moved(team_of(1, len(moves.numbers) - 1), moves, given_[: len(shapes)])
    assert copied is not None
    np.testing.assert_array_equal(copied.reshape(-1).view(kind)[: want.size].reshape(want.shape), want)


def test_moves_in_closed_form() -> None:
    """Rows of 8 stay registers, columns are put together number by number; of a table only what is taken is read."""
    x = np.zeros((64, 8), np.float32)
    for op, said, more, whole in (
        ("Gather", {"axis": 0}, [np.array([3, 3, 40])], 6),
        ("Transpose", {"perm": [1, 0]}, [], 0),
    ):
        node = Node(op, op, (), "y", said)
        moves = moves_of(node, [x, *more], compute(node, [x, *more]))
        team = team_of(len(moves.numbers), payload=False)
        moved(team, moves, None)
        others = len(moves.numbers) - whole
        assert ran(team)["ld1"] == whole + 4 * others and ran(team)["st1"] == len(moves.numbers)
        assert ran(team)["ins_4s"] == 3 * others
        lines = [span for _, span in moves.read(range(len(moves.numbers)), 0, 7)]
        assert lines == ([(3 * 32 // 64 * 64, 128), (40 * 32, 40 * 32 + 64)] if whole else [(0, 64 * 8 * 4)])


@pytest.mark.parametrize("op, kinds", [("Add", "fi"), ("Exp", "i"), ("ReduceSum", "i"), ("MatMul", "ii")])
def test_what_has_no_instructions_is_refused_by_name(op: str, kinds: str) -> None:
    given_ = [np.ones((3, 3), TYPES[kind]) for kind in kinds]
    with pytest.raises(ModelError, match=f"node its name .{op}."):
        operator_of(Node(op, "its name", (), "y", {}), given_, given_[0])


def test_every_operator_is_run_by_instructions() -> None:
    """Of floats, or of truth values: none by a table."""
    for op in OPERATORS:
        kinds = {"Where": "bff", "Not": "b", "And": "bb", "Or": "bb"}.get(
            op, "ff" if op in (*BINARY, "MatMul") else "f"
        )
        given_ = [np.ones((3, 3), TYPES[kind]) for kind in kinds]
        assert operator_of(Node(op, op, (), "y", {}), given_, given_[-1])


@given(st.integers(1, 5), st.integers(1, 40), st.sampled_from([*ALONG, "Softmax"]), st.integers(0, 99))
def test_what_works_along_rows_is_that_of_float64(rows: int, k: int, op: str, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((rows, k)).astype(np.float32) - 3
    result, wide = along(team_of(rows), op, k, x), x.astype(np.float64)
    if op == "Softmax":
        powers = np.exp(wide - wide.max(axis=1, keepdims=True))
        assert near(result, powers / powers.sum(axis=1, keepdims=True), 1e-6)
    else:
        assert near(result, REDUCE[op](wide, axis=1), 1e-6)


def test_counts_in_closed_form() -> None:
    """One step of a kernel for four numbers; rows of 70 are 18 fours, then what is left of them."""
    team = team_of(3, 4, payload=False)
    each_of(team, "Sigmoid", "f", [None])
    along(team, "ReduceMean", 70, None)
    count, degree = ran(team), exponent.DEGREE
    assert count["fmla"] == 7 * degree and count["fdiv"] == count["fneg"] == 7
    assert count["fadd"] == 7 + 7 * 18 and count["faddp"] == 2 * 7 and count["fmul"] == 7 + 7


def test_counts_of_what_compares() -> None:
    """Of sixteen numbers: as many comparisons as they fill registers, and zips to bytes, or from them."""
    team = team_of(2, 3, payload=False)
    each_of(team, "Less", "ff", [None, None])
    each_of(team, "Where", "bff", [None, None, None])
    each_of(team, "Greater", "ii", [None, None])
    count = ran(team)
    assert count["fcmgt"] == 5 * 4 and count["cmgt_2d"] == 5 * 8 and count["bsl"] == 5 * 4
    assert count["uzp1_4s"] == 5 * 4 and count["uzp1_8h"] == 5 * (2 + 2) and count["uzp1_16b"] == 5 * 2
    assert count["zip1_16b"] == count["zip2_16b"] == 5 and count["zip1_8h"] == count["zip2_8h"] == 5 * 2
    assert count["st1"] == 5 * (1 + 4 + 1) and count["ld1"] == 5 * (8 + 9 + 16)
    assert set(TRUTHS) == {"And", "Or", "Not", "Equal"} and choices.kernel("Less", "bb") is None


def test_functions_in_closed_form() -> None:
    """Of four numbers: multiply-adds of the polynomials, and of what takes multiples of log 2 and pi / 2 off."""
    team = team_of(3, payload=False)
    for op in ("Log", "Sin", "Cos"):
        each_of(team, op, "f", [None])
    count = ran(team)
    assert count["fmla"] == 3 * ((3 + 1 + 2) + 2 * (2 + 1 + 4)) and count["fmls"] == 3 * 2 * 3
    team = team_of(3, payload=False)
    each_of(team, "Pow", "ff", [None, None])
    count = ran(team)
    assert count["fmla"] == 3 * (3 + 1 + 1 + 2 + exponent.DEGREE + 1) and count["fdiv"] == 3 * 3
