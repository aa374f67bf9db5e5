"""Every kind of model that is no LLaMA on meshes: logits of transformers, on any number of ranks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_models import CASES, NEW, PROMPT, golden_of, random_family
from random_models import BASE
from runs import run_program


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(7)
@pytest.mark.parametrize("name", CASES)
def test_prefill_and_decode_give_the_logits_of_transformers(name: str, tmp_path: Path, comm: Any) -> None:
    check(comm, name, (3, 3), tmp_path)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["gpt2", "gemma3"])
@pytest.mark.parametrize(
    "options",
    [{"regions": 2}, {"decode_mesh": "3x3", "decode_regions": 2}, {"system": "t10"}, {"allreduces": "published"}],
    ids=str,
)
def test_so_they_do_on_other_cores_and_systems(
    name: str, options: dict[str, Any], tmp_path: Path, comm: Any
) -> None:  # fmt: skip
    check(comm, name, (4, 4), tmp_path, **options)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("name", ["gemma2", "gpt2", "qwen3-late"])
def test_shapes_alone_count_and_take_the_same(name: str, tmp_path: Path, comm: Any) -> None:
    given = {"model": str(random_family(name, tmp_path)), "prompt_ids": "5,6,7,8,9,4,3", "max_new_tokens": 4}
    full, none = (
        run_program(comm, "llama", (4, 2), "wse2", payload=payload, ignore_eos=True, **given)
        for payload in (True, False)
    )
    assert (full["measured"], full["phases"]) == (none["measured"], none["phases"])


@pytest.mark.mpi(ranks=[1])
def test_of_a_window_no_more_is_multiplied_and_sent_than_it_has(tmp_path: Path, comm: Any) -> None:
    """The last of 24 tokens sees 6: of the other 18, in 2 layers, no product with keys and values, no score to add."""
    folder = random_family("mistral-window", tmp_path)
    data, phases = json.loads((folder / "config.json").read_text()), []
    for window in (6, None):
        (folder / "config.json").write_text(json.dumps(data | {"sliding_window": window}))
        report = run_program(comm, "llama", (1, 1), payload=False, model=str(folder), context=23, max_new_tokens=2)
        phases.append(report["phases"][-1])
    heads, size = data["num_attention_heads"], data["hidden_size"] // data["num_attention_heads"]
    assert phases[1]["macs"] - phases[0]["macs"] == 2 * 2 * 18 * heads * size


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(("bias", "numbers"), [("attention_bias", 4 * 48), ("mlp_bias", 2 * 80 + 48)])
def test_biases_are_added_in_decode_as_in_a_prompt(bias: str, numbers: int, tmp_path: Path, comm: Any) -> None:
    """One token of each, on one core, in 2 layers: queries, keys, values and what comes of them; gate, up and down."""
    phases = []
    for has_bias in (True, False):
        (tmp_path / "config.json").write_text(json.dumps(BASE | {bias: has_bias}))
        given = {"model": str(tmp_path), "prompt_tokens": 1, "max_new_tokens": 2, "ignore_eos": True}
        report = run_program(comm, "llama", (1, 1), payload=False, **given)
        phases.append({phase["name"]: phase["adds"] for phase in report["phases"]})
    for name in ("prefill", "decode"):
        assert phases[0][name] - phases[1][name] == 2 * numbers


def check(comm: Any, name: str, mesh: tuple[int, int], folder: Path, **options: Any) -> None:
    """Prefill the golden prompt, decode the golden continuation greedily, and compare every logit, on rank 0."""
    ids, golden = golden_of(name)
    folder = Path(comm.bcast(str(folder)))
    if comm.rank == 0:
        random_family(name, folder / name)
    comm.Barrier()
    report = run_program(
        comm, "llama", mesh, model=str(folder / name), prompt_ids=",".join(map(str, ids[:PROMPT])),
        max_new_tokens=NEW + 1, logits=str(folder / "logits.npy"), ignore_eos=True, **options,
    )  # fmt: skip
    compared = None
    if comm.rank == 0:
        error = float(np.abs(np.load(folder / "logits.npy") - golden).max())
        compared = error, report["result"]["token_ids"][:-1] == ids[PROMPT:]
    error, same = comm.bcast(compared)
    assert same and error < 1e-3
