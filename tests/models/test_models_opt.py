"""OPT: the reference against Hugging Face transformers, tensor-parallel schemes against the reference, bad configs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decomposed import decompose
from gpu_runs import logits_of, new_gpus, run_lowrank
from opt_models import BASE, CASES, IDS, random_opt

from meshrt.models.config import Config, read_config
from meshrt.models.errors import ModelError
from meshrt.models.folders.checkpoint import expected_shapes, open_checkpoint
from meshrt.models.reference import forward


def weights_of(folder: Path) -> dict[str, np.ndarray]:
    checkpoint = open_checkpoint(folder)
    return {name: checkpoint.read(name) for name in expected_shapes(read_config(folder))}


@pytest.mark.parametrize("name", [*CASES])
def test_the_reference_is_transformers(name: str, tmp_path: Path) -> None:
    golden = {**np.load(Path(__file__).parents[1] / "golden" / f"{name}.npz")}
    assert golden["ids"].tolist() == IDS[name]
    folder = random_opt(name, tmp_path)
    logits = forward(read_config(folder), weights_of(folder), IDS[name])
    np.testing.assert_allclose(logits, golden["logits"], rtol=0, atol=1e-4)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", [*CASES])
def test_every_scheme_gives_its_logits(name: str, tmp_path: Path) -> None:
    plain = random_opt(name, tmp_path / "plain")
    ranks = {
        matrix_name: max(1, int(0.7 * matrix.most_rank) - at % 3)
        for at, (matrix_name, matrix) in enumerate(read_config(plain).matrices().items())
    }
    for folder in (plain, decompose(plain, tmp_path / "model", ranks)):
        want = forward(read_config(folder), weights_of(folder), IDS[name])
        for tp in (1, read_config(plain).heads):  # 4, 8
            for scheme in ("dense", "base", "deinfer"):
                logits = logits_of(new_gpus(tp), folder, scheme, IDS[name], 6)
                assert np.abs(logits - want).max() < 1e-3
    for static in (False, True):
        logits = logits_of(new_gpus(4, static=static), folder, "deinfer", IDS[name], 6, kv="lowrank")
        assert np.abs(logits - want).max() < 1e-3


def test_shapes_of_a_packaged_opt_run() -> None:
    """OPT-30B's bytes in an MLP layer of the DeInfer scheme: latents of fc1 gathered, those of fc2 summed, in fp16."""
    report = run_lowrank(
        new_gpus(8, payload=False), "opt-30b", ratio=0.5, layers=2, prompt_tokens=5, max_new_tokens=2
    )  # fmt: skip
    rank = 7168 // 2
    assert report["measured"]["mlp_link_bytes"] == 2 * 7 * 6 * 2 * (rank + 2 * rank)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"do_layer_norm_before": False}, "'do_layer_norm_before' is False; only True is supported"),
        ({"activation_function": "gelu"}, "'activation_function' is 'gelu'; supported are silu"),
        ({"word_embed_proj_dim": 24}, "'word_embed_proj_dim' is 24; only 48 is supported"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"ffn_dim": -3}, "'ffn_dim' is -3"),
        ({"num_attention_heads": 5}, "not a multiple of num_attention_heads, 5"),
        ({"eos_token_id": "x"}, "'eos_token_id' is 'x'"),
        ({"dtype": "int8"}, "supported are float32"),
        ({"low_rank": []}, "'low_rank' is"),
        ({"low_rank": {"ranks": {"model.decoder.layers.9.fc1": 4}}}, "no matrix of this model's layers"),
    ],
)
def test_what_is_not_supported_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Config.from_dict(BASE | change)


def test_ranks_are_read(tmp_path: Path) -> None:
    name = "model.decoder.layers.1.fc1"
    folder = decompose(random_opt("opt", tmp_path / "plain"), tmp_path / "model", {name: 5})
    config = read_config(folder)
    assert config.factored == {name: 5}
    shapes = expected_shapes(config)
    assert (shapes[name + "_u_proj.weight"], shapes[name + "_v_proj.weight"]) == ((5, 48), (80, 5))
    assert name + ".weight" not in shapes
