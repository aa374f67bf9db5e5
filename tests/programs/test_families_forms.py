"""Kinds of models that are no LLaMA with matrices in two factors, and in codes, on every machine and any ranks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_models import CASES, IDS, random_family
from generations import same_as_on_one_rank
from gpu_runs import logits_of, new_gpus
from measure import on_one_rank
from runs import run_on_cores, run_program

from meshrt.models.compress.model import compress
from meshrt.models.config import Config, read_config
from meshrt.models.quantize.model import quantize, read_model, statistics
from meshrt.models.quantize.sizes import CodeScheme
from meshrt.models.reference import forward, load_weights

TEXTS = [[int(number) for number in np.random.default_rng(at).integers(3, 67, 40)] for at in range(3)]
FORMS = ("whole", "factored", "mixed", "coded")
SHORT = [("gpt2", "factored"), ("gemma3", "mixed"), ("phi3", "coded")]
EVERY = [(name, form) for name in CASES for form in FORMS[1:]]


def made(name: str, form: str, folder: Path, **changes: Any) -> tuple[Path, Config]:
    """All of a model's matrices in factors, with ranks that differ, or most of them; or all of them in 4 bits."""
    base, out = random_family(name, folder / "base", **changes), folder / form
    if form == "whole":
        return base, read_config(base)
    if form == "coded":
        quantize(base, out, CodeScheme("rtn", 4, 32, True, 16), {}, 1, statistics(*read_model(base)))
    else:
        ranks = {
            matrix_name: max(1, int(0.6 * matrix.most_rank)) - at % 2
            for at, (matrix_name, matrix) in enumerate(read_config(base).matrices().items())
            if form == "factored" or at % 3 != 1
        }
        compress(base, out, ranks, "svd", TEXTS, {"method": "svd"})
    return out, read_config(out, quantized=True)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("name, form", SHORT, ids=str)
def test_all_machines_give_the_logits_of_the_reference(name: str, form: str, tmp_path: Path, comm: Any) -> None:
    check(name, form, tmp_path, comm)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize("name, form", EVERY, ids=str)
def test_so_they_do_of_all_kinds(name: str, form: str, tmp_path: Path, comm: Any) -> None:
    check(name, form, tmp_path, comm)


def check(name: str, form: str, folder: Path, comm: Any) -> None:
    (model, config), new = made(name, form, folder), 5
    weights = load_weights(model, config=config)
    given: dict[str, Any] = {
        "model": str(model), "prompt_ids": ",".join(map(str, IDS[name])), "max_new_tokens": new, "ignore_eos": True,
        "logits": str(folder / "logits.npy"),
    }  # fmt: skip
    for machine in ("mesh", "neuron"):
        if machine == "mesh":
            report = run_program(comm, "llama", (4, 2), **given)
        else:
            report = run_on_cores(comm, "llama", config.kv_heads, **given)
        ids = [*IDS[name], *report["result"]["token_ids"][:-1]]
        assert np.abs(np.load(folder / "logits.npy") - forward(config, weights, ids)).max() < 1e-3, machine
    truth = forward(config, weights, ids)
    for scheme in ("dense", "deinfer") if form == "coded" else ("dense", "base", "deinfer"):
        assert np.abs(logits_of(new_gpus(config.heads), model, scheme, ids, len(IDS[name])) - truth).max() < 1e-3


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_ranks_change_nothing_on_the_mesh(name: str, tmp_path: Path, comm: Any) -> None:
    mesh_on_ranks(name, "whole", tmp_path, comm)


@pytest.mark.all
@pytest.mark.mpi(ranks=[2, 4, 8])
@pytest.mark.parametrize("name", CASES)
def test_nor_do_they_in_any_kind(name: str, tmp_path: Path, comm: Any) -> None:
    for form in FORMS:
        mesh_on_ranks(name, form, tmp_path / form, comm)


def mesh_on_ranks(name: str, form: str, folder: Path, comm: Any) -> None:
    folder = Path(comm.bcast(str(folder)))
    if comm.rank == 0:
        made(name, form, folder)
    comm.Barrier()
    model = folder / ("base" if form == "whole" else form)
    ids = ",".join(map(str, IDS[name]))
    same_as_on_one_rank(comm, model, (4, 2), folder, prompt_ids=ids, max_new_tokens=4)


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("name", ["gemma3"])
def test_nor_on_neuron_cores(name: str, tmp_path: Path, comm: Any) -> None:
    folder = Path(comm.bcast(str(tmp_path)))
    if comm.rank == 0:
        random_family(name, folder / "base")
    comm.Barrier()

    def run(ranks: Any) -> Any:
        report = run_on_cores(
            ranks, "llama", 2, model=str(folder / "base"), prompt_ids="5,9,7,4,3,8", max_new_tokens=4, ignore_eos=True
        )
        return ranks.bcast(report and {key: value for key, value in report.items() if key != "host"})

    assert run(comm) == on_one_rank(comm, run)
