"""Matrices in two factors on Arm cores: two products of whole numbers each, whatever their neighbours are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import moe_models
import numpy as np
import pytest
from decomposed import decompose
from random_models import CASES, random_checkpoint
from runs import run_on_arm
from test_arm_linear import expected
from test_arm_llama import logits_of

from meshrt.errors import UsageError
from meshrt.models.catalogue import find_model
from meshrt.models.config import read_config
from meshrt.models.matrix import factor_names
from meshrt.models.quantize import codes as grids
from meshrt.models.reference import forward, load_weights
from meshrt.programs.arm import mlp as passes

PROMPT: dict[str, Any] = {"prompt_ids": "1,5,2,9,3,3,8", "max_new_tokens": 3}
SOME = {"self_attn.k_proj": 5, "mlp.gate_proj": 11, "mlp.up_proj": 7, "mlp.down_proj": 13}  # q, v and o are whole


def folder_of(path: Path) -> Path:
    """A small Qwen2 with these matrices in factors."""
    random_checkpoint(CASES["qwen2"], path / "plain", 7)
    layers = read_config(path / "plain").layers
    names = {f"model.layers.{at}.{name}": rank for at in range(layers) for name, rank in SOME.items()}
    return decompose(path / "plain", path / "low", names)


def watched_down(monkeypatch: pytest.MonkeyPatch) -> list[tuple[np.ndarray, Any]]:
    """What goes into layer 1's down_proj and what comes out, at each product from now on."""
    seen: list[tuple[np.ndarray, Any]] = []
    times = passes.times

    def watched(soc: Any, model: Any, matrix: Any, source: Any, *rest: Any) -> Any:
        given: list[np.ndarray] = []

        def before(team: Any) -> Any:
            stays, numbers = source.before(team)
            given.append(numbers)
            return stays, numbers

        out, stays = times(soc, model, matrix, replace(source, before=before), *rest)
        if matrix.name == "layer 1: down":
            seen.append((np.concatenate(given), out))
        return out, stays

    monkeypatch.setattr(passes, "times", watched)
    return seen


@pytest.mark.mpi(ranks=[1, 2])
def test_logits_are_near_those_of_the_factors(comm: Any, tmp_path: Path) -> None:
    """In 8 bits; for whole neighbours of factors too, whose columns lie between theirs; and so it is by shape."""
    path = Path(comm.bcast(str(tmp_path)))
    folder = comm.bcast(folder_of(path) if comm.rank == 0 else None)
    given = {"model": str(folder), "bits": "8", "group": 32, "kv": "float32", **PROMPT}
    logits = logits_of(comm, path, cores=5, **given)
    report = run_on_arm(comm, "llama", cores=5, **given, ignore_eos=True)
    shape = run_on_arm(comm, "llama", cores=5, payload=False, **given, ignore_eos=True)
    if comm.rank:
        return
    ids = [1, 5, 2, 9, 3, 3, 8, *report["result"]["token_ids"][:-1]]
    truth = forward(read_config(folder), load_weights(folder), ids)
    assert np.linalg.norm(logits - truth) <= 0.05 * np.linalg.norm(truth)
    assert shape["measured"] == report["measured"] and shape["phases"] == report["phases"]


@pytest.mark.mpi(ranks=[1])
def test_every_factor_is_multiplied_as_the_integer_reference_does(
    comm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What down_proj makes of what comes in: both factors in codes, and in 8 bits what lies between them."""
    folder = folder_of(tmp_path)
    weights = load_weights(folder)
    seen = watched_down(monkeypatch)
    logits_of(comm, tmp_path, model=str(folder), **PROMPT)
    stem = "model.layers.1.mlp.down_proj"
    u, v = (weights[name + ".weight"].astype(np.float64) for name in factor_names(stem))
    for x, y in seen:
        middle = expected(x, grids.nearest(u, 4, min(64, u.shape[1])), min(64, u.shape[1]))
        assert (y == expected(middle, grids.nearest(v, 4, v.shape[1]), v.shape[1])).all()
    assert len(seen) == 3


@pytest.mark.mpi(ranks=[1])
def test_layers_of_other_ranks_stand_for_none(comm: Any, tmp_path: Path) -> None:
    """Of llama-tiny's four the last alone has factors."""
    low = decompose(find_model("llama-tiny"), tmp_path / "low", {"model.layers.3.mlp.down_proj": 9})
    given = {"model": str(low), "prompt_tokens": 3, "max_new_tokens": 2, "payload": False}
    run_on_arm(comm, "llama", flash=2, **given)
    run_on_arm(comm, "llama", layers=3, layers_run=2, **given)
    with pytest.raises(UsageError, match=r"layer 3 has other ranks than layer 1, .*--flash 2 takes any"):
        run_on_arm(comm, "llama", flash=3, **given)
    with pytest.raises(UsageError, match="layer 3 has other ranks than layer 1"):
        run_on_arm(comm, "llama", layers_run=2, **given)


@pytest.mark.mpi(ranks=[1])
def test_experts_in_factors(comm: Any, tmp_path: Path) -> None:
    """Some of them, the shared one too, in 8 bits; neighbours are whole."""
    moe_models.random_moe("qwen2-moe", tmp_path / "plain")
    names = [name for name in read_config(tmp_path / "plain").matrices() if "mlp" in name and "down" not in name]
    folder = decompose(tmp_path / "plain", tmp_path / "low", {name: 3 + at % 7 for at, name in enumerate(names[::2])})
    given = {"model": str(folder), "bits": "8", "group": 32, "kv": "float32", **PROMPT, "max_new_tokens": 1}
    logits = logits_of(comm, tmp_path, cores=5, **given)
    truth = forward(read_config(folder), load_weights(folder), [1, 5, 2, 9, 3, 3, 8])
    assert np.linalg.norm(logits - truth) <= 0.05 * np.linalg.norm(truth)
