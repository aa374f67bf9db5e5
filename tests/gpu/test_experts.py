"""Mixtures of experts on GPUs: the logits of transformers, every layout, any number of ranks, counts in closed form."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_runs import logits_of, new_gpus, run_gpus, run_lowrank
from moe_models import CASES, DEEPSEEK, IDS, MIXTRAL, OLMOE, QWEN2, QWEN3, random_moe
from random_models import random_checkpoint

from meshrt.errors import UsageError
from meshrt.models.config import read_config
from meshrt.models.experts import route
from meshrt.models.reference import forward, generate, load_weights

GOLDEN = Path(__file__).parents[1] / "golden"
LAYOUTS = ("tensor", "replicated", "alltoall")
TOKENS = [int(one) for one in np.random.default_rng(3).integers(0, 61, 11)]
# The same families with heads that 8 GPUs can share.
EIGHT: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 6}
OF_EIGHT = {
    "mixtral": MIXTRAL | EIGHT,
    "deepseek": DEEPSEEK | EIGHT,
    "qwen2-moe": QWEN2 | EIGHT,
    "olmoe": OLMOE | EIGHT | {"hidden_size": 48},
    "qwen3-moe": QWEN3 | EIGHT | {"num_local_experts": 3},  # some of 8 GPUs have no expert
    "one": MIXTRAL | EIGHT | {"num_local_experts": 1, "num_experts_per_tok": 1},
    "all": MIXTRAL | EIGHT | {"num_local_experts": 4, "num_experts_per_tok": 4},
}


def close(found: np.ndarray, want: np.ndarray) -> None:
    assert found.shape == want.shape
    assert np.abs(found - want).max() < 1e-3


def reference(folder: Path, ids: list[int]) -> np.ndarray:
    return forward(read_config(folder, quantized=True), load_weights(folder), ids)


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """These models have three heads."""
    folder, want = random_moe(name, tmp_path), np.load(GOLDEN / f"{name}.npz")["logits"]
    for tp in (1, 3):
        for layout in LAYOUTS:
            close(logits_of(new_gpus(tp), folder, "dense", IDS[name], 10, experts=layout), want)


@pytest.mark.parametrize("name", OF_EIGHT)
def test_any_layout_on_any_gpus_gives_the_references_logits(name: str, tmp_path: Path) -> None:
    folder = random_checkpoint(OF_EIGHT[name], tmp_path, 5)
    want = reference(folder, TOKENS)
    for tp, scheme in ((1, "dense"), (2, "base"), (4, "deinfer"), (8, "dense")):
        for layout in LAYOUTS:
            close(logits_of(new_gpus(tp), folder, scheme, TOKENS, 8, experts=layout), want)
