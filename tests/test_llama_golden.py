"""Logits of whole models on many meshes against those of Hugging Face transformers, kept in tests/golden."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_models import CASES, case_seed, random_checkpoint
from runs import run_program

GOLDEN = Path(__file__).parent / "golden"
MESHES = [(1, 1), (2, 2), (3, 3), (4, 2), (3, 5), (8, 8)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            random_checkpoint(CASES[name], made[name], case_seed(name))
        return made[name]

    return make


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: f"{mesh[0]}x{mesh[1]}")
@pytest.mark.parametrize("name", sorted(CASES))
def test_prefill_and_decode_give_the_logits_of_transformers(name: str, mesh: tuple[int, int], folder, tmp_path: Path, comm):
    golden = np.load(GOLDEN / f"{name}.npz")
    ids, expected = golden["ids"].tolist(), golden["logits"]
    prompt = int(golden["prompt"][0])
    report = generate(comm, folder(name), ids[:prompt], len(ids) - prompt + 1, mesh, tmp_path / "logits.npy")
    logits = np.load(tmp_path / "logits.npy")
    assert logits.shape == expected.shape and logits.dtype == np.float32
    assert np.abs(logits - expected).max() < 1e-3
    assert report["result"]["token_ids"][:-1] == ids[prompt:]


def generate(comm: Any, model: Path, prompt: list[int], count: int, mesh: tuple[int, int], path: Path) -> Any:
    return run_program(
        comm, "llama", mesh, model=str(model), prompt_ids=",".join(map(str, prompt)), max_new_tokens=count,
        dtype="float32", logits=str(path), ignore_eos=True,
    )  # fmt: skip
