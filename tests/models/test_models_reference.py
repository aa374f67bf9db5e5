"""The NumPy forward pass against what Hugging Face transformers computed (tests/make_golden.py)."""

from pathlib import Path

import family_models
import moe_models
import numpy as np
import opt_models
import pytest
from random_models import BASE, CASES, case_ids, case_seed, random_checkpoint, random_weights

from meshrt.models.catalogue import find_model
from meshrt.models.config import Config, read_config
from meshrt.models.errors import ModelError
from meshrt.models.reference import forward, generate, load_weights

GOLDEN = Path(__file__).parents[1] / "golden"
TINY = ("llama-tiny", "mixtral-tiny", "deepseek-tiny")


def test_golden_files_are_those_of_the_cases() -> None:
    assert {path.stem for path in GOLDEN.glob("*.npz")} == {
        *CASES, *opt_models.CASES, *moe_models.CASES, *family_models.CASES, *TINY,
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", [*CASES, *TINY])
def test_reference_equals_transformers(tmp_path: Path, name: str, dtype: type) -> None:
    folder = find_model(name) if name in TINY else random_checkpoint(CASES[name], tmp_path, case_seed(name))
    golden = {**np.load(GOLDEN / f"{name}.npz")}
    config = read_config(folder)
    logits = forward(config, load_weights(folder, dtype), golden["ids"].tolist(), dtype)
    assert logits.dtype == dtype
    assert name in TINY or golden["ids"].tolist()[: len(case_ids(name))] == case_ids(name)
    np.testing.assert_allclose(logits, golden["logits"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", TINY)
def test_reference_generates_what_transformers_generates(name: str) -> None:
    folder, ids = find_model(name), np.load(GOLDEN / f"{name}.npz")["ids"].tolist()
    config = read_config(folder)
    assert generate(config, load_weights(folder, np.float32), ids[:16], 32, np.float32) == ids[16:]


def test_reference_stops_after_an_end_of_text_id() -> None:
    config, weights = Config.from_dict(BASE), random_weights(BASE, 0)
    first = generate(config, weights, [5, 6], 1)
    stops = Config.from_dict(BASE | {"eos_token_id": first})
    assert generate(stops, weights, [5, 6], 9) == first
    assert len(generate(config, weights, [5, 6], 9)) == 9


def test_reference_is_causal() -> None:
    config, weights = Config.from_dict(BASE), random_weights(BASE, 0)
    np.testing.assert_allclose(
        forward(config, weights, [3, 4, 5, 6])[:2], forward(config, weights, [3, 4, 90, 80])[:2], rtol=1e-12
    )


@pytest.mark.parametrize("ids", [[], [96], [-1], [1.5], [[1]]])
def test_reference_refuses_token_ids(ids: list[int]) -> None:
    with pytest.raises(ModelError, match="token id"):
        forward(Config.from_dict(BASE), random_weights(BASE, 0), ids)


def test_reference_refuses_a_tensor_of_another_shape(tmp_path: Path) -> None:
    folder = random_checkpoint(BASE, tmp_path, 0)
    with pytest.raises(ModelError, match=r"k_proj.weight has shape \[48, 48\]; config.json asks for \[24, 48\]"):
        load_weights(folder, config=Config.from_dict(BASE | {"num_key_value_heads": 2}))
