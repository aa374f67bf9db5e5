"""LoRA on the factors of a compressed model (NeuronMM, eq. 9): what is trained, what is written, what it is good for.

Needs torch, which training needs and meshrt never imports (`pip install torch transformers`). Without it this file is
skipped, and says so; that a folder with merged factors runs everywhere is test_models_factors.py's, without it.
"""

import json
from argparse import Namespace
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decomposed import decompose
from mpi_jobs import Finished
from random_models import CASES, case_ids, case_seed, random_checkpoint
from safetensors.numpy import load_file

from meshrt.models.catalogue import find_model
from meshrt.models.config import read_config
from meshrt.models.errors import ModelError
from meshrt.models.matrix import factor_names
from meshrt.models.perplexity import perplexity
from meshrt.models.reference import forward, load_weights
from meshrt.models.stories import HELD_OUT_SEED
from meshrt.models.texts import story_sequences
from meshrt.models.tokenizer import load_tokenizer

pytestmark = pytest.mark.skipif(
    find_spec("torch") is None, reason="training needs torch, which is not installed: pip install torch transformers"
)
MLP = [f"model.layers.{i}.mlp.{name}_proj" for i in range(4) for name in ("gate", "up", "down")]
QUICK = {"steps": 60, "batch": 4, "tokens": 64, "rank": 4, "lr": 2e-3, "stories": 60, "seed": 0, "report": 100}


def trained(folder: Path, out: Path, **given: Any) -> Path:
    import torch

    from meshrt.models.training.lora import recover

    torch.manual_seed(0)
    recover(Namespace(**QUICK | given, out=out), folder)
    return out


def measured(folder: Path) -> float:
    config = read_config(folder)
    return perplexity(config, load_weights(folder), story_sequences(config, load_tokenizer(folder), HELD_OUT_SEED, 8))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """llama-tiny with the MLP at rank 64, a third of its parameters less, before and after a few steps."""
    place = tmp_path_factory.mktemp("lora")
    small = decompose(find_model("llama-tiny"), place / "small", dict.fromkeys(MLP, 64))
    return small, trained(small, place / "after")


def test_some_steps_bring_part_of_the_perplexity_back(folders: tuple[Path, Path]) -> None:
    """Of 1.25 of the dense model and 2.3 of the compressed one, 600 steps reach 1.28 (docs/compress.md)."""
    before, after = map(measured, folders)
    dense = measured(find_model("llama-tiny"))
    assert dense < after < dense + 0.8 * (before - dense)


def test_only_factors_change_and_by_as_low_a_rank_as_asked(folders: tuple[Path, Path]) -> None:
    """Eq. 9: U + B A with B [.., 4] and A [4, ..]. The factors here are float32, so singular values tell."""
    old, new = (load_file(folder / "model.safetensors") for folder in folders)
    changed = {name for name in old if (old[name] != new[name]).any()}
    assert old.keys() == new.keys() and changed == {f"{factor}.weight" for name in MLP for factor in factor_names(name)}
    for name in changed:
        assert (old[name].dtype, old[name].shape) == (new[name].dtype, new[name].shape)
        values = np.linalg.svd(new[name].astype(np.float64) - old[name], compute_uv=False)
        assert values[4] < 1e-3 * values[0]
    configs = [json.loads((folder / "config.json").read_text()) for folder in folders]
    assert configs[1]["low_rank"].pop("lora") == {key: QUICK[key] for key in QUICK if key not in ("stories", "report")}
    assert configs[0] == configs[1]


def test_the_same_arguments_give_the_same_bytes(folders: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = (trained(folders[0], tmp_path / name, steps=3) / "model.safetensors" for name in ("one", "two"))
    assert first.read_bytes() == second.read_bytes()


def test_what_comes_out_runs_on_neuroncores(
    folders: tuple[Path, Path], tmp_path: Path, run_meshrt: Callable[..., Finished]
) -> None:
    ids, logits = [5, 60, 7, 100, 9], tmp_path / "logits.npy"
    options = ("--prompt-ids", ",".join(map(str, ids)), "--max-new-tokens", "1", "--dtype", "float32", "--quiet")
    code, _, err, _ = run_meshrt(
        "run", "llama", "--on", "neuron", "--model", str(folders[1]), *options, "--logits", str(logits)
    )
    assert (code, err) == (0, "")
    expected = forward(read_config(folders[1]), load_weights(folders[1]), ids)
    assert np.abs(np.load(logits)[: len(ids)] - expected).max() < 1e-3


@pytest.mark.parametrize("name", ["lowrank", "lowrankbias"])
def test_nothing_changes_at_first_and_merged_is_what_was_trained(name: str, tmp_path: Path) -> None:
    import torch

    from meshrt.models.training.lora import add_lora, merge, read_model

    folder, ids = random_checkpoint(CASES[name], tmp_path / "model", case_seed(name)), case_ids(name)
    model, tokens = read_model(folder), torch.tensor([ids])
    torch.manual_seed(0)
    with torch.no_grad():
        plain = model(tokens)[0].numpy()
        factors = add_lora(model, 3)
        first = model(tokens)[0].numpy()
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.copy_(0.05 * torch.randn(parameter.shape))
        apart = model(tokens)[0].numpy()
        merge(factors)
        merged = model(tokens)[0].numpy()
    assert np.abs(plain - forward(read_config(folder), load_weights(folder), ids)).max() < 1e-3
    assert (first == plain).all() and np.abs(apart - plain).max() > 0.01
    np.testing.assert_allclose(merged, apart, rtol=0, atol=1e-4)
    assert len(factors) == 2 * len(read_config(folder).factored)


def test_a_model_without_factors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no matrix in factors; write one with `meshrt compress`"):
        trained(find_model("llama-tiny"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [({"rank": 0}, "--rank is 0; it starts at 1"), ({"batch": -1}, "--batch is -1"), ({"report": 0}, "--report is 0"),
     ({"steps": 0}, "--steps is 0"), ({"lr": float("nan")}, "--lr is nan; it is above 0"),
     ({"seed": -1}, "--seed is -1"),
     ({"seed": HELD_OUT_SEED}, "that of the held-out stories")],
)  # fmt: skip
def test_numbers_that_no_training_has_are_refused(change: dict[str, Any], message: str) -> None:
    from meshrt.models.training.lora import check

    with pytest.raises(ModelError, match=message):
        check(Namespace(**QUICK | change))
