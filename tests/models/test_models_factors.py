"""Matrices in two factors: ranks in config.json, their names and shapes in a folder, what does not fit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_models import BASE, CASES, case_seed, random_checkpoint, random_weights
from safetensors.numpy import save_file

from meshrt.models.config import Config, read_config
from meshrt.models.errors import ModelError
from meshrt.models.folders.checkpoint import Checkpoint, check_shapes, expected_shapes, open_checkpoint
from meshrt.models.matrix import Dense, LowRank, Matrix

LOWRANK = CASES["lowrank"]
GATE = "model.layers.0.mlp.gate_proj"
U, V = "model.layers.0.mlp.gate_u_proj.weight", "model.layers.0.mlp.gate_v_proj.weight"


def folder_of(folder: Path, data: dict[str, Any] = LOWRANK) -> Path:
    return random_checkpoint(data, folder, case_seed("lowrank"))


def low_rank(ranks: Any) -> dict[str, Any]:
    return BASE | {"low_rank": {"ranks": ranks}}


def test_ranks_are_read_and_all_else_in_the_key_is_ignored() -> None:
    config = Config.from_dict(BASE | {"low_rank": {"ranks": {GATE: 9}, "method": "svd", "ratio": 0.2}})
    assert config.factored == {GATE: 9}
    assert config != Config.from_dict(BASE) and not Config.from_dict(BASE).factored
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
        assert {name: (matrix.columns, matrix.rows) for name, matrix in config.matrices().items()} == {
            name[:-7]: shape for name, shape in shapes.items() if name.endswith("_proj.weight")
        }


def test_factors_are_what_x_is_multiplied_by_one_after_the_other() -> None:
    config = Config.from_dict(CASES["lowrankbias"])
    whole, q = config.layer(1).q, config.layer(0).q
    assert whole.factors() == (whole,) and (whole.form, whole.rank) == (Dense(), None)
    assert q.form == LowRank(16) and q.bias and q.most_rank == 48
    stem = "model.layers.0.self_attn.q"
    assert q.factors() == (Matrix(stem + "_u_proj", 48, 16), Matrix(stem + "_v_proj", 16, 48))
    assert {*q.tensors()} == {f"{stem}_u_proj.weight", f"{stem}_v_proj.weight", f"{stem}_proj.bias"}
    layer = config.layer(0)
    assert [len(together) for together in layer.inputs()] == [3, 1, 2, 1]
    assert {matrix for together in layer.inputs() for matrix in together} == {*layer.matrices()}
    assert all(len({matrix.rows for matrix in together}) == 1 for together in layer.inputs())


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


@pytest.mark.parametrize("shape", [(15, 48), (16,), (2, 16, 48)])
def test_factors_that_do_not_fit_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    checkpoint = rewritten(tmp_path, lambda weights: weights.update({U: np.zeros(shape, np.float32)}))
    with pytest.raises(ModelError, match=r"gate_u_proj\.weight has shape .* asks for"):
        check_shapes(checkpoint, Config.from_dict(LOWRANK))


def test_folder_is_read_as_a_whole(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    assert dict(read_config(folder).factored) == LOWRANK["low_rank"]["ranks"]
