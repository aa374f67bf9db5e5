"""Logits of whole models on many meshes against those of Hugging Face transformers, kept in tests/golden."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_models import CASES, case_seed, random_checkpoint
from runs import run_program
from tiers import examples

from meshrt.models.catalogue import find_model

GOLDEN = Path(__file__).parents[1] / "golden"
MESHES = [(1, 1), (2, 2), (3, 3), (4, 2), (3, 5), (8, 8)]
NAMES = sorted(CASES)


def name_of(mesh: tuple[int, int]) -> str:
    return f"{mesh[0]}x{mesh[1]}"


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(6)
@pytest.mark.parametrize("mesh", MESHES, ids=name_of)
@pytest.mark.parametrize("name", NAMES)
def test_prefill_and_decode_give_the_logits_of_transformers(
    name: str, mesh: tuple[int, int], tmp_path: Path, comm: Any
) -> None:
    check(comm, name, mesh, tmp_path)


@pytest.mark.mpi(ranks=[2, 3, 4, 6, 9])
@pytest.mark.sample(1)
@pytest.mark.parametrize("name, mesh", [("gqa82", (3, 5)), ("qwen2", (4, 3)), ("headdim", (3, 3))], ids=str)
def test_so_they_do_on_several_ranks(name: str, mesh: tuple[int, int], tmp_path: Path, comm: Any) -> None:
    check(comm, name, mesh, tmp_path)


@pytest.mark.mpi(ranks=[1, 4])
def test_llama_tiny_gives_the_logits_and_the_text_of_transformers(tmp_path: Path, comm: Any) -> None:
    check(comm, "llama-tiny", (8, 8), tmp_path)


def check(comm: Any, name: str, mesh: tuple[int, int], folder: Path, **options: Any) -> Any:
    """Prefill the golden prompt, decode the golden continuation greedily, and compare every logit, on rank 0.

    Returns the report there.
    """
    golden = {**np.load(GOLDEN / f"{name}.npz")}
    prompt = int(golden["prompt"][0])
    end = prompt + examples(len(golden["ids"]) - prompt)  # a part of what follows, but with --all
    ids, expected = golden["ids"][:end].tolist(), golden["logits"][:end]
    folder = Path(comm.bcast(str(folder)))
    model = find_model(name) if name == "llama-tiny" else folder / name
    if name != "llama-tiny" and comm.rank == 0:
        random_checkpoint(CASES[name], model, case_seed(name))
    comm.Barrier()
    report = run_program(
        comm,
        "llama",
        mesh,
        model=str(model),
        prompt_ids=",".join(map(str, ids[:prompt])),
        max_new_tokens=len(ids) - prompt + 1,
        dtype="float32",
        logits=str(folder / "logits.npy"),
        ignore_eos=True,
        **options,
    )
    compared = None
    if comm.rank == 0:
        logits = np.load(folder / "logits.npy")
        same = logits.dtype == np.float32 and logits.shape == expected.shape
        compared = same, float(np.abs(logits - expected).max()), report["result"]["token_ids"][:-1] == ids[prompt:]
    same, error, tokens = comm.bcast(compared)
    assert same and tokens and error < 1e-3
    return report
