"""Every kind of model that is no LLaMA on NeuronCores: logits of transformers, on any number of cores and ranks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_models import CASES, NEW, PROMPT, golden_of, random_family
from measure import on_one_rank
from random_models import random_checkpoint
from runs import run_on_cores

from meshrt.models.config import read_config
from meshrt.models.reference import forward, load_weights


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(7)
@pytest.mark.parametrize("name", CASES)
def test_prefill_and_decode_give_the_logits_of_transformers(name: str, tmp_path: Path, comm: Any) -> None:
    check(comm, name, 1, tmp_path)


@pytest.mark.mpi(ranks=[2])
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["gemma2", "gemma3", "phi3", "qwen3"])
def test_so_they_do_shared_by_two_cores(name: str, tmp_path: Path, comm: Any) -> None:
    check(comm, name, 2, tmp_path)


@pytest.mark.mpi(ranks=[3])
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["gpt2", "opt-odd"])
def test_biases_are_added_once_on_three_cores(name: str, tmp_path: Path, comm: Any) -> None:
    check(comm, name, 3, tmp_path)


@pytest.mark.mpi(ranks=[3])
def test_what_a_core_held_at_most_is_the_same_however_ranks_share_the_cores(tmp_path: Path, comm: Any) -> None:
    """Of 67 columns of logits the first of three cores has 23, the last 21: each frees what it needs no more, also
    where it is not the last of its rank."""
    folder = Path(comm.bcast(str(tmp_path)))
    if comm.rank == 0:
        random_family("gpt2", folder)
    comm.Barrier()

    def run(ranks: Any) -> Any:
        given = {"model": str(folder), "prompt_ids": "5,9,7,4,3,8,6", "max_new_tokens": 3, "ignore_eos": True}
        report = run_on_cores(ranks, "llama", 3, **given)
        return ranks.bcast(report and [report["measured"], report["phases"]])

    assert run(comm) == on_one_rank(comm, run)


@pytest.mark.mpi(ranks=[1])
def test_a_window_in_a_prompt_of_several_tiles(tmp_path: Path, comm: Any) -> None:
    """Tiles of 128 values that no row of a tile of queries sees are left out, and the reports say so."""
    folder = random_family("mistral-window", tmp_path)
    ids = [int(number) for number in np.random.default_rng(5).integers(3, 67, 300)]
    data = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 512}
    read = {}
    for window in (130, None):
        (folder / "config.json").write_text(json.dumps(data | {"sliding_window": window}))
        report = run_on_cores(
            comm, "llama", 1, model=str(folder), prompt_ids=",".join(map(str, ids)), max_new_tokens=3,
            logits=str(folder / "logits.npy"), ignore_eos=True,
        )  # fmt: skip
        every = [*ids, *report["result"]["token_ids"][:-1]]
        truth = forward(read_config(folder), load_weights(folder), every)
        assert np.abs(np.load(folder / "logits.npy") - truth).max() < 1e-3
        read[window] = report["phases"][1]["hbm_bytes"]["read"], report["measured"]["macs"]
    assert all(less < more for less, more in zip(read[130], read[None], strict=True))


@pytest.mark.mpi(ranks=[1])
def test_heads_of_more_numbers_than_there_are_partitions(tmp_path: Path, comm: Any) -> None:
    """As all of Gemma's, which have 256: keys and queries are contracted in parts."""
    folder = random_checkpoint(CASES["gemma2"] | {"head_dim": 150, "query_pre_attn_scalar": 900}, tmp_path / "model", 1)
    report = run_on_cores(
        comm, "llama", 1, model=str(folder), prompt_ids="5,9,7,4,3,8,60", max_new_tokens=3, ignore_eos=True,
        logits=str(tmp_path / "logits.npy"),
    )  # fmt: skip
    ids = [5, 9, 7, 4, 3, 8, 60, *report["result"]["token_ids"][:-1]]
    truth = forward(read_config(folder), load_weights(folder), ids)
    assert np.abs(np.load(tmp_path / "logits.npy") - truth).max() < 1e-3


def check(comm: Any, name: str, cores: int, folder: Path) -> None:
    """Prefill the golden prompt, decode the golden continuation greedily, and compare every logit, on rank 0."""
    ids, golden = golden_of(name)
    folder = Path(comm.bcast(str(folder)))
    if comm.rank == 0:
        random_family(name, folder / name)
    comm.Barrier()
    report = run_on_cores(
        comm, "llama", cores, model=str(folder / name), prompt_ids=",".join(map(str, ids[:PROMPT])),
        max_new_tokens=NEW + 1, logits=str(folder / "logits.npy"), ignore_eos=True,
    )  # fmt: skip
    compared = None
    if comm.rank == 0:
        error = float(np.abs(np.load(folder / "logits.npy") - golden).max())
        compared = error, report["result"]["token_ids"][:-1] == ids[PROMPT:]
    error, same = comm.bcast(compared)
    assert same and error < 1e-3
