"""Matrices in two factors: ranks in config.json, names and shapes, and reads of a product that is nowhere stored."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_models import BASE, CASES, case_seed, random_checkpoint, random_weights
from safetensors.numpy import save_file

from meshrt.models.checkpoint import Checkpoint, check_shapes, expected_shapes, open_checkpoint
from meshrt.models.config import Config, read_config
from meshrt.models.errors import ModelError
from meshrt.models.factors import product

LOWRANK = CASES["lowrank"]
GATE = "model.layers.0.mlp.gate_proj"
U, V = "model.layers.0.mlp.gate_u_proj.weight", "model.layers.0.mlp.gate_v_proj.weight"


def folder_of(folder: Path, data: dict[str, Any] = LOWRANK) -> Path:
    return random_checkpoint(data, folder, case_seed("lowrank"))


def low_rank(ranks: Any) -> dict[str, Any]:
    return BASE | {"low_rank": {"ranks": ranks}}


def test_ranks_are_read_and_all_else_in_the_key_is_ignored() -> None:
    config = Config.from_dict(BASE | {"low_rank": {"ranks": {GATE: 9}, "method": "svd", "ratio": 0.2}})
    assert config.ranks == {GATE: 9}
    assert config != Config.from_dict(BASE) and not Config.from_dict(BASE).ranks
    assert len({config, Config.from_dict(low_rank({GATE: 9}))}) == 1  # a configuration can be a key


def test_shapes_follow_the_ranks_without_any_weights() -> None:
    """As in Table 6 of NeuronMM, here [out, in]: u_proj is [r, in], v_proj [out, r]; a bias keeps its name."""
    dense, shapes = expected_shapes(Config.from_dict(BASE)), expected_shapes(Config.from_dict(low_rank({GATE: 9})))
    assert (shapes[U], shapes[V]) == ((9, 48), (80, 9))
    assert {name: shape for name, shape in shapes.items() if name not in (U, V)} == (
        {name: shape for name, shape in dense.items() if name != GATE + ".weight"}
    )
    bias = expected_shapes(Config.from_dict(CASES["lowrankbias"]))
    assert bias["model.layers.0.self_attn.k_proj.bias"] == (24,)
    assert bias["model.layers.0.self_attn.k_v_proj.weight"] == (24, 16)


def test_matrices_are_those_of_the_dense_model() -> None:
    for name in ("headdim", "gqa82"):
        config = Config.from_dict(CASES[name])
        shapes = expected_shapes(config)
        assert config.matrices() == {
            name[:-7]: shape for name, shape in shapes.items() if name.endswith("_proj.weight")
        }


@pytest.mark.parametrize(
    "bad",
    [
        [],
        "svd",
        {},
        {"method": "svd"},
        {"ranks": {}},
        {"ranks": None},
        {"ranks": [GATE]},
        {"ranks": {GATE + ".weight": 8}},
        {"ranks": {"gate_proj": 8}},
        {"ranks": {"model.layers.2.mlp.gate_proj": 8}},
        {"ranks": {"lm_head": 8}},
        {"ranks": {"model.embed_tokens": 8}},
        {"ranks": {GATE: 0}},
        {"ranks": {GATE: -8}},
        {"ranks": {GATE: 49}},
        {"ranks": {GATE: 8.0}},
        {"ranks": {GATE: True}},
        {"ranks": {GATE: "8"}},
        {"ranks": {GATE: None}},
        {"ranks": {GATE: 10**400}},
    ],
)
def test_malformed_ranks_are_refused(bad: Any) -> None:
    with pytest.raises(ModelError, match=r"^here/config\.json: 'low_rank' (has|is)"):
        Config.from_dict(BASE | {"low_rank": bad}, source="here/config.json")


@pytest.mark.parametrize("name", ["lowrank", "lowrankbias"])
def test_matrix_can_be_asked_for_as_if_it_were_there(tmp_path: Path, name: str) -> None:
    config = Config.from_dict(CASES[name])
    weights = random_weights(CASES[name], case_seed(name))
    checkpoint = open_checkpoint(random_checkpoint(CASES[name], tmp_path, case_seed(name)))
    check_shapes(checkpoint, config)
    for matrix in config.ranks:
        u, v = (weights[f"{matrix[:-5]}_{factor}_proj.weight"].astype(np.float64) for factor in "uv")
        read = checkpoint.read(matrix + ".weight")
        assert checkpoint.shape(matrix + ".weight") == read.shape == config.matrices()[matrix]
        assert checkpoint.dtype(matrix + ".weight") == read.dtype == np.float32
        np.testing.assert_allclose(read, v @ u, rtol=1e-6, atol=1e-6)
        assert matrix + ".weight" not in checkpoint.tensors


@pytest.mark.parametrize(
    "index",
    [
        (slice(3, 9),),
        (slice(None), slice(10, 20)),
        (slice(0, 48, 4), slice(5, 6)),
        (np.array([7, 0, 7]),),
        (np.array([1, 2]), slice(3, 8)),
        (slice(3, 8), np.array([40, 2])),
        (np.array([3, 1, 3]), np.array([0, 40])),
        (np.array([], int), slice(0, 4)),
        (slice(100, 200),),
    ],
)
def test_slices_of_a_product_are_those_of_the_whole_bit_for_bit(tmp_path: Path, index: tuple[Any, ...]) -> None:
    checkpoint = open_checkpoint(folder_of(tmp_path))
    whole = checkpoint.read(GATE + ".weight")
    rows, columns = (np.arange(size)[part] for size, part in zip(whole.shape, (*index, slice(None)), strict=False))
    np.testing.assert_array_equal(checkpoint.read(GATE + ".weight", *index), whole[np.ix_(rows, columns)])


def test_only_the_slices_that_are_needed_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint(folder_of(tmp_path))
    found, read = [], Checkpoint.read

    def watched(self: Checkpoint, name: str, *index: Any) -> Any:
        array = read(self, name, *index)
        found.append((name, array.shape))
        return array

    monkeypatch.setattr(Checkpoint, "read", watched)
    checkpoint.read(GATE + ".weight", slice(4, 7), np.array([1, 5]))
    assert sorted(found) == [(GATE + ".weight", (3, 2)), (U, (16, 2)), (V, (3, 16))]


@pytest.mark.parametrize("index", [(np.array([80]),), (np.array([-1]),), (slice(1), slice(1), slice(1))])
def test_index_outside_a_product(tmp_path: Path, index: tuple[Any, ...]) -> None:
    with pytest.raises(ModelError, match="gate"):
        open_checkpoint(folder_of(tmp_path)).read(GATE + ".weight", *index)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_product_has_the_dtype_of_its_factors(tmp_path: Path, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    u, v = rng.standard_normal((5, 6)).astype(dtype), rng.standard_normal((7, 5)).astype(dtype)
    save_file({U: u, V: v}, tmp_path / "model.safetensors")
    found = open_checkpoint(tmp_path).read(GATE + ".weight")
    assert found.dtype == dtype
    exact = v.astype(np.float64) @ u.astype(np.float64)
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=2.0 ** (-8 if dtype != np.float16 else -11))


@given(
    m=st.integers(1, 40), r=st.integers(1, 90), n=st.integers(1, 40), scale=st.integers(-30, 30),
    seed=st.integers(0, 10**6),
)  # fmt: skip
def test_product_is_accurate_and_knows_no_order(m: int, r: int, n: int, scale: int, seed: int) -> None:
    """Two grids of 2^-23 of the largest element (r <= 90: (53 - 7) // 2 bits), half a step off each, r terms."""
    rng = np.random.default_rng(seed)
    left = (rng.standard_normal((m, r)) * 2.0**scale).astype(np.float32)
    right = (rng.standard_normal((r, n)) * 10.0 ** rng.integers(-3, 3, (r, n))).astype(np.float32)
    found, exact = product(left, right), left.astype(np.float64) @ right.astype(np.float64)
    largest = np.abs(left).max(1, keepdims=True).astype(np.float64) * np.abs(right).max(0, keepdims=True)
    assert np.all(np.abs(found - exact) <= 1.01 * r * 2.0**-22 * largest)
    order = rng.permutation(r)
    np.testing.assert_array_equal(product(left[:, order], right[order]), found)
    row, column = rng.integers(m), rng.integers(n)
    np.testing.assert_array_equal(product(left[row : row + 1], right[:, column : column + 1])[0, 0], found[row, column])


def test_product_of_zeros_and_of_the_smallest_numbers() -> None:
    smallest = np.array([[np.finfo(np.float32).smallest_subnormal, 0]])
    assert product(np.zeros((2, 3), np.float16), np.ones((3, 4), np.float16)).tolist() == [[0.0] * 4] * 2
    assert product(smallest, np.ones((2, 1))) == smallest[0, 0]


def rewritten(folder: Path, change: Any) -> Checkpoint:
    weights = random_weights(LOWRANK, case_seed("lowrank"))
    change(weights)
    save_file(weights, folder / "model.safetensors")
    return open_checkpoint(folder)


@pytest.mark.parametrize("name", [U, V])
def test_missing_factor_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match=f"no tensor {name}"):
        check_shapes(rewritten(tmp_path, lambda weights: weights.pop(name)), Config.from_dict(LOWRANK))


def test_matrix_beside_its_factors_is_refused(tmp_path: Path) -> None:
    checkpoint = rewritten(tmp_path, lambda w: w.update({GATE + ".weight": np.zeros((80, 48), np.float32)}))
    with pytest.raises(ModelError, match=f"{GATE} as two factors.* the matrix itself"):
        check_shapes(checkpoint, Config.from_dict(LOWRANK))


def test_factors_that_the_configuration_does_not_know_are_refused(tmp_path: Path) -> None:
    data = json.loads((folder_of(tmp_path) / "config.json").read_text())
    del data["low_rank"]["ranks"][GATE]
    with pytest.raises(ModelError, match=f"{GATE}.weight as two factors; config.json"):
        check_shapes(open_checkpoint(tmp_path), Config.from_dict(data))


def test_rank_of_the_configuration_must_be_that_of_the_factors(tmp_path: Path) -> None:
    other = LOWRANK | {"low_rank": {"ranks": LOWRANK["low_rank"]["ranks"] | {GATE: 17}}}
    with pytest.raises(ModelError, match=r"gate_u_proj.weight has shape \[16, 48\]; config.json asks for \[17, 48\]"):
        check_shapes(open_checkpoint(folder_of(tmp_path)), Config.from_dict(other))


@pytest.mark.parametrize("shape", [(4, 6), (6,), (2, 5, 6)])
def test_factors_that_do_not_fit_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    save_file({U: np.zeros(shape, np.float32), V: np.zeros((7, 5), np.float32)}, tmp_path / "model.safetensors")
    for ask in (Checkpoint.read, Checkpoint.shape, Checkpoint.dtype):
        with pytest.raises(ModelError, match="not the factors"):
            ask(open_checkpoint(tmp_path), GATE + ".weight")


def test_folder_is_read_as_a_whole(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    assert dict(read_config(folder).ranks) == LOWRANK["low_rank"]["ranks"]
