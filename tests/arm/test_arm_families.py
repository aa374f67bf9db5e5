"""All kinds of models on Arm cores, in W4A8: beside the integer reference of the same codes; and by shape."""

import json
from pathlib import Path
from typing import Any

import moe_models
import numpy as np
import pytest
from family_models import CASES, IDS, golden_of, random_family
from mpi4py import MPI
from runs import run_on_arm
from safetensors.numpy import load_file, save_file

from meshrt.errors import UsageError
from meshrt.models.config import read_config
from meshrt.models.errors import ModelError
from meshrt.models.integer import projection
from meshrt.models.quantize.model import quantize, read_model, statistics
from meshrt.models.quantize.sizes import CodeScheme
from meshrt.models.reference import forward, load_weights

SCHEME = CodeScheme("w4a8", 8, 32, False, 16, "row", True)


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
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", [*CASES, *moe_models.CASES])
def test_logits_are_those_of_the_integer_reference(name: str, tmp_path: Path, comm: Any) -> None:
    folder, prompt = folder_of(name, tmp_path), IDS.get(name, moe_models.IDS.get(name))
    report = run_on_arm(
        comm, "llama", model=str(folder), prompt_ids=",".join(map(str, prompt)), max_new_tokens=5, kv="float32",
        logits=str(tmp_path / "logits.npy"), ignore_eos=True, cores=3,
    )  # fmt: skip
    ids = [*prompt, *report["result"]["token_ids"][:-1]]
    assert np.abs(np.load(tmp_path / "logits.npy") - truth_of(folder, ids)).max() < 1e-3


@pytest.mark.mpi(ranks=[1])
def test_layers_with_and_without_a_window_take_turns_in_room_for_flash(tmp_path: Path, comm: Any) -> None:
    """Gemma 2, of whose three layers every other one has a window."""
    random_family("gemma2", tmp_path / "model")
    given = {"model": str(tmp_path / "model"), "prompt_ids": ",".join(map(str, IDS["gemma2"])), "max_new_tokens": 2}
    for flash in (0, 3):
        run_on_arm(comm, "llama", **given, flash=flash, logits=str(tmp_path / f"{flash}.npy"), ignore_eos=True)
    assert (np.load(tmp_path / "0.npy") == np.load(tmp_path / "3.npy")).all()
    with pytest.raises(UsageError, match="layer 2 has other ranks than layer 1, another window"):
        run_on_arm(comm, "llama", **given, layers_run=2, payload=False)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CASES)
def test_that_reference_is_as_near_transformers_as_eight_bits_are(name: str, tmp_path: Path) -> None:
    """No form of a model is floats on Arm cores, to be within 1e-3 of transformers, whose logits vary by 1.3 to 1.8."""
    ids, golden = golden_of(name)
    away = np.abs(truth_of(folder_of(name, tmp_path), ids) - golden)
    assert away.mean() < 0.05 and 1e-3 < away.max() < 0.5


@pytest.mark.mpi(ranks=[1, 3])
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["gemma2", "gpt2", "qwen3-late", "olmoe", "qwen2-moe"])
def test_ranks_and_shapes_change_nothing(name: str, tmp_path: Path, comm: Any) -> None:
    """Reports on several ranks, of which some have no row of a single token; counters by shape, but for experts."""
    path = Path(comm.bcast(str(tmp_path)))
    folder = comm.bcast(folder_of(name, path) if comm.rank == 0 else None)
    ids = IDS.get(name, moe_models.IDS.get(name))
    given = {"model": str(folder), "prompt_ids": ",".join(map(str, ids)), "max_new_tokens": 3, "ignore_eos": True}
    report = run_on_arm(comm, "llama", cores=5, **given)
    shape = run_on_arm(comm, "llama", cores=5, payload=False, **given)
    if comm.rank:
        return
    for together, payload in ((report, True), (shape, False)):
        alone = run_on_arm(MPI.COMM_SELF, "llama", cores=5, payload=payload, **given)
        together.pop("host"), alone.pop("host")
        assert together == alone
    if "experts" not in report["result"]:
        assert shape["measured"] == report["measured"] and shape["phases"] == report["phases"]


def everyone(folder: Path) -> Path:
    """The model with all experts for each token, so that who gets it is known by shape."""
    config = json.loads((folder / "config.json").read_text())
    config["num_experts_per_tok"] = config.get("num_local_experts") or config.get("n_routed_experts")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("name", ["mixtral", "deepseek"])
def test_experts_by_shape_give_the_same_counts(name: str, tmp_path: Path, comm: Any) -> None:
    """A token takes all of them; one new token is counted by shape as it is with numbers."""
    folder = everyone(moe_models.random_moe(name, tmp_path / "base"))
    given = {"model": str(folder), "prompt_ids": "1,2,3,4,5,6,7,8,9,10,11,12,13", "max_new_tokens": 2, "bits": "3"}
    whole, shape = (run_on_arm(comm, "llama", payload=payload, **given) for payload in (True, False))
    assert whole["measured"] == shape["measured"] and whole["phases"] == shape["phases"]
    tokens = whole["result"]["experts"]["tokens"]
    assert tokens == shape["result"]["experts"]["tokens"] and {*np.ravel(tokens)} == {14}
    assert whole["result"]["imbalance_of_experts"] == 1


@pytest.mark.mpi(ranks=[1])
def test_a_router_that_prefers_none_leaves_experts_without_tokens(tmp_path: Path, comm: Any) -> None:
    """Routers of zeros: all experts are equally likely, so the first three are taken, each time."""
    folder = moe_models.random_moe("mixtral", tmp_path / "base")
    weights = load_file(folder / "model.safetensors")
    for name in weights:
        if "block_sparse_moe.gate" in name:
            weights[name] *= 0
    save_file(weights, folder / "model.safetensors")
    report = run_on_arm(comm, "llama", model=str(folder), prompt_ids="1,2,3,4,5", max_new_tokens=2, ignore_eos=True)
    for line in report["result"]["experts"]["tokens"]:
        assert line == [6, 6, 6, 0, 0]


@pytest.mark.mpi(ranks=[1])
def test_a_router_that_is_not_finite_is_refused(tmp_path: Path, comm: Any) -> None:
    folder = moe_models.random_moe("mixtral", tmp_path / "base")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.block_sparse_moe.gate.weight"][3] = np.inf
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ModelError, match="a router's scores are NaN or infinite"):
        run_on_arm(comm, "llama", model=str(folder), prompt_ids="1,2,3")


@pytest.mark.mpi(ranks=[1])
def test_an_embedding_that_float16_cannot_keep_is_refused(tmp_path: Path, comm: Any) -> None:
    folder = random_family("qwen3", tmp_path / "base")
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][3, 2] = -1e5
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"embed_tokens\.weight has a number of 100000; .* at most 65504"):
        run_on_arm(comm, "llama", model=str(folder), prompt_ids="1,2,3")


@pytest.mark.mpi(ranks=[1])
def test_experts_go_on_where_they_stood(tmp_path: Path, comm: Any) -> None:
    folder = moe_models.random_moe("qwen2-moe", tmp_path / "base")
    given = {"model": str(folder), "prompt_ids": "1,2,3,4,5", "max_new_tokens": 6, "ignore_eos": True}
    whole = run_on_arm(comm, "llama", **given)
    state = {"checkpoint": str(tmp_path / "state"), "every": 2}
    run_on_arm(comm, "llama", **given | state)
    again = run_on_arm(comm, "llama", **given | state, resume=True)
    assert again["result"]["experts"] == whole["result"]["experts"]
    assert again["measured"] == whole["measured"]


@pytest.mark.mpi(ranks=[1])
def test_what_is_asked_of_experts_is_refused_where_there_are_none(comm: Any) -> None:
    with pytest.raises(UsageError, match="--routing is about the experts of a model, and this one has none"):
        run_on_arm(comm, "llama", prompt_ids="1,2", routing="zipf:1")
    with pytest.raises(UsageError, match="--routing-seed: with numbers the router decides"):
        run_on_arm(comm, "llama", model="mixtral-tiny", prompt_ids="1,2", routing_seed=3)
