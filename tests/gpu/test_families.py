"""Every kind of model that is no LLaMA on GPUs: logits of transformers, whatever the form and the scheme."""

from pathlib import Path

import numpy as np
import pytest
from family_models import CASES, PROMPT, golden_of, random_family
from gpu_runs import logits_of, new_gpus

from meshrt.models.config import read_config


@pytest.mark.parametrize("name", CASES)
def test_the_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    folder, (ids, golden) = random_family(name, tmp_path), golden_of(name)
    for tp in (1, read_config(folder).heads):  # 3, 4
        logits = logits_of(new_gpus(tp), folder, "dense", ids, PROMPT)
        assert np.abs(logits - golden).max() < 1e-3


@pytest.mark.parametrize("name", ["gpt2", "phi3", "gemma2", "gemma3", "qwen3-late"])
def test_a_recorded_plan_gives_them_too(name: str, tmp_path: Path) -> None:
    folder, (ids, golden) = random_family(name, tmp_path), golden_of(name)
    gpus = new_gpus(read_config(folder).heads, static=True)
    assert np.abs(logits_of(gpus, folder, "dense", ids, PROMPT) - golden).max() < 1e-3
