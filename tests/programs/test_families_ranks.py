"""Every kind of model that is no LLaMA on eight NeuronCores, GPUs and Arm cores: alike on any number of ranks, in every
form, and the reference's logits. tests/programs/test_families_forms.py has the mesh."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_models import CASES, IDS, of_eight
from gpu_runs import new_gpus, run_gpus
from measure import on_one_rank
from runs import run_on_arm, run_on_cores
from test_families_forms import FORMS, made

from meshrt.models.config import read_config
from meshrt.models.reference import forward, load_weights

MACHINES = ("neuron", "gpu", "arm")
SHORT = [
    ("qwen3", "neuron", "whole"), ("gemma2", "gpu", "coded"), ("gemma3", "arm", "whole"),
    ("phi3", "neuron", "factored"), ("gpt2", "gpu", "mixed"), ("opt-odd", "arm", "factored"),
]  # fmt: skip


@pytest.mark.mpi(ranks=[2])
@pytest.mark.sample(3)
@pytest.mark.parametrize("name, machine, form", SHORT, ids=str)
def test_ranks_change_nothing(name: str, machine: str, form: str, tmp_path: Path, comm: Any) -> None:
    check(name, machine, form, tmp_path, comm)


@pytest.mark.all
@pytest.mark.mpi(ranks=[2, 4, 8])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", CASES)
def test_nor_do_they_of_any_kind(name: str, machine: str, tmp_path: Path, comm: Any) -> None:
    for form in FORMS:
        check(name, machine, form, tmp_path / form, comm)


def check(name: str, machine: str, form: str, folder: Path, comm: Any) -> None:
    """The report and the logits, to the bit, are those of one rank; the logits are the reference's. (On Arm, where
    products are of whole numbers, tests/arm/test_arm_families.py compares with that reference.)"""
    folder = Path(comm.bcast(str(folder)))
    if comm.rank == 0:
        made(name, form, folder, **of_eight(name))
    comm.Barrier()
    model, written = folder / ("base" if form == "whole" else form), folder / "logits.npy"
    ids = IDS[name][:7]
    given: dict[str, Any] = {
        "prompt_ids": ",".join(map(str, ids)), "max_new_tokens": 3, "ignore_eos": True, "logits": str(written),
    }  # fmt: skip

    def run(ranks: Any) -> tuple[Any, Any]:
        if machine == "gpu":
            report = run_gpus(new_gpus(8, ranks), model, "llama", scheme="dense", **given)
        elif machine == "neuron":
            report = run_on_cores(ranks, "llama", 8, model=str(model), **given)
        else:
            report = run_on_arm(ranks, "llama", cores=8, model=str(model), **given)
        report = ranks.bcast(report and {key: value for key, value in report.items() if key != "host"})
        return report, ranks.bcast(written.read_bytes() if ranks.rank == 0 else None)

    together = run(comm)
    assert together == on_one_rank(comm, run)
    if machine != "arm" and comm.rank == 0:
        config, every = read_config(model, quantized=True), [*ids, *together[0]["result"]["token_ids"][:-1]]
        truth = forward(config, load_weights(model, config=config), every)
        assert np.abs(np.load(written) - truth).max() < 1e-3
