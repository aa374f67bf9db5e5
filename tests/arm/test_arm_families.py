"""All kinds of models on Arm cores, in W4A8: beside the integer reference of the same codes; and by shape."""

from pathlib import Path
from typing import Any

import moe_models
import numpy as np
import pytest
from family_models import CASES, IDS, random_family
from runs import run_on_arm

from meshrt.models.config import read_config
from meshrt.models.integer import projection
from meshrt.models.quantize.model import quantize, read_model, statistics
from meshrt.models.quantize.sizes import Scheme
from meshrt.models.reference import forward, load_weights

SCHEME = Scheme("w4a8", 8, 32, False, 16, "row", True)


def folder_of(name: str, path: Path) -> Path:
    """A random model in codes of 8 bits."""
    base, folder = path / "base", path / "model"
    if name in CASES:
        random_family(name, base)
    else:
        moe_models.random_moe(name, base)
    quantize(base, folder, SCHEME, {}, 1, statistics(*read_model(base)))
    return folder


def truth_of(folder: Path, ids: list[int]) -> np.ndarray:
    """Its tables are in float16, as they are in memory here."""
    config, weights = read_config(folder, quantized=True), load_weights(folder)
    for table in (config.kind.names.embedding, config.kind.names.positions):
        if table is not None:
            weights[table + ".weight"] = weights[table + ".weight"].astype(np.float16).astype(np.float64)
    return forward(config, weights, ids, project=projection(folder, config))


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(4)
@pytest.mark.parametrize("name", [*CASES, *moe_models.CASES])
def test_logits_are_those_of_the_integer_reference(name: str, tmp_path: Path, comm: Any) -> None:
    folder, prompt = folder_of(name, tmp_path), IDS.get(name, moe_models.IDS.get(name))
    report = run_on_arm(
        comm, "llama", model=str(folder), prompt_ids=",".join(map(str, prompt)), max_new_tokens=5, kv="float32",
        logits=str(tmp_path / "logits.npy"), ignore_eos=True, cores=3,
    )  # fmt: skip
    ids = [*prompt, *report["result"]["token_ids"][:-1]]
    assert np.abs(np.load(tmp_path / "logits.npy") - truth_of(folder, ids)).max() < 1e-3
