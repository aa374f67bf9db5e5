"""On NeuronCores and GPUs as on the mesh: a generation that goes on ends as one that was never interrupted."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from decomposed import decompose
from kept import Stopped, changes, outside_host, rewrite, stop_after
from measure import meet
from moe_models import DEEPSEEK
from mpi4py import MPI
from random_models import BASE, CASES, random_checkpoint

from meshrt.emulate import emulate
from meshrt.errors import LimitError, UsageError
from meshrt.models.catalogue import find_model
from meshrt.models.config import read_config
from meshrt.program import load_program
from meshrt.programs.generation import generate as loop
from meshrt.ranks.board import Board

NEW = 7  # tokens of a generation; states are kept after the 1st, 2nd, 4th and 6th
SAMPLED = {"temperature": 0.9, "top_k": 40, "seed": 5}
MODELS = {
    "factors": CASES["lowrankbias"],
    "biased": CASES["bias"],
    "uneven": BASE | {"num_attention_heads": 6, "num_key_value_heads": 2},
    "experts": DEEPSEEK | {"num_attention_heads": 4, "head_dim": 10},
}
RUNS: dict[str, tuple[str, int, dict[str, Any]]] = {  # machine, how many, options; @ of the machine
    "neuron, sampled": ("neuron", 4, SAMPLED | {"model": "llama-tiny", "layers": 2}),
    "neuron, bfloat16": ("neuron", 4, {"model": "llama-tiny", "dtype": "bfloat16"}),
    "neuron, one core": ("neuron", 1, {"model": "llama-tiny", "dtype": "float32", **SAMPLED}),
    "neuron, factors": ("neuron", 1, {"model": "factors"}),
    "neuron, spills": ("neuron", 2, {"model": "llama-tiny", "@sbuf_bytes": 2000}),
    "neuron, shapes": ("neuron", 4, {"model": "llama-tiny", "@payload": False, "ratio": 0.4, "block": 16}),
    "neuron, context": ("neuron", 2, {"model": "llama-tiny", "@payload": False, "context": 50}),
    "arm, sampled": ("arm", 4, SAMPLED | {"model": "biased", "kv_chunk": "8"}),
    "arm, int8": ("arm", 3, {"model": "biased", "kv": "int8", "attention": "concat"}),
    "arm, all there will be": ("arm", 1, {"model": "llama-tiny", "kv_chunk": "max"}),
    "arm, shapes": ("arm", 4, {"model": "llama-tiny", "@payload": False, "kv": "e4m3", "split": "steal", "flash": 3}),
    "gpu, sampled": ("gpu", 4, SAMPLED | {"model": "llama-tiny"}),
    "gpu, bfloat16": ("gpu", 4, {"model": "decomposed", "dtype": "bfloat16", "scheme": "base", "block_size": 3}),
    "gpu, static": ("gpu", 4, {"model": "llama-tiny", "@static": True, "block_size": 2, "scheme": "dense", **SAMPLED}),
    "gpu, latents": ("gpu", 4, {"model": "decomposed", "kv": "lowrank", "block_size": 2}),
    "gpu, static latents": (
        "gpu", 4, {"model": "decomposed", "kv": "lowrank", "@static": True, "block_size": 2, "kv_blocks": 9}),
    "gpu, heads that do not come out even": ("gpu", 3, {"model": "uneven", "@static": True}),
    "gpu, experts": ("gpu", 4, {"model": "experts", "experts": "alltoall"}),
    "gpu, experts by shape": ("gpu", 2, {"model": "experts", "@payload": False, "routing": "zipf:1"}),
    "gpu, shapes": ("gpu", 4, {"model": "llama-tiny", "@payload": False, "layers_run": 1, "ratio": 0.4}),
    "gpu, static context": (
        "gpu", 4, {"model": "llama-tiny", "@payload": False, "@static": True, "context": 50, "block_size": 4}),
}  # fmt: skip
SIZE = {"neuron": "cores", "gpu": "tp", "arm": "cores"}


def generate(comm: Any, folder: Path, name: str, changed: dict[str, Any] | None = None, **options: Any) -> Any:
    """The report of a short generation at rank 0, None elsewhere."""
    machine, count, given = RUNS[name]
    given = {"prompt_ids": "5,9,7,30,2,11", "max_new_tokens": NEW, "ignore_eos": True} | given | (changed or {})
    given |= ({"every": 2} if "checkpoint" in options else {}) | options
    if "context" in given:
        del given["prompt_ids"]
    if given["model"] != "llama-tiny" and not Path(given["model"]).is_absolute():
        given["model"] = str(folder / given["model"])
    settings = {key[1:]: given.pop(key) for key in [*given] if key.startswith("@")}
    size = {SIZE[machine]: count} | settings
    return emulate(comm, Board.alone(), load_program("llama", machine), given, **size)


def make_model(comm: Any, folder: Path, name: str) -> Path:
    """The folder that all ranks see, with the model of that run if it is not packaged."""
    folder, model = Path(comm.bcast(str(folder))), RUNS[name][2]["model"]
    if comm.rank == 0 and model in MODELS:
        random_checkpoint(MODELS[model], folder / model, 3)
    elif comm.rank == 0 and model == "decomposed":
        source = find_model("llama-tiny")
        ranks = {name: int(0.7 * matrix.most_rank) for name, matrix in read_config(source).matrices().items()}
        decompose(source, folder / model, ranks)
    meet(comm)
    return folder


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", RUNS)
def test_goes_on_as_if_nothing_had_happened(
    comm: MPI.Intracomm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """By as many ranks as there may be, then on one and on two, from state to state; the last goes to the end."""
    _, count, options = RUNS[name]
    folder = make_model(comm, tmp_path, name)
    logits = folder / "logits.npy"
    more = {} if options.get("@payload") is False else {"logits": str(logits)}
    state = str(folder / "state")
    for at, ranks in enumerate((comm.size, 1, 2) if comm.size > 1 else (1, 1)):
        ranks = min(ranks, count)
        few = comm.Split(comm.rank < ranks)
        if comm.rank < ranks and at == 0:
            whole = generate(few, folder, name, **more)
            rows = logits.read_bytes() if few.rank == 0 and more else b""
            few.Barrier()
            with monkeypatch.context() as patch, pytest.raises(Stopped):
                stop_after(patch, 2)
                generate(few, folder, name, checkpoint=state, **more)
        elif comm.rank < ranks:
            if at == 1:
                with monkeypatch.context() as patch, pytest.raises(Stopped):
                    stop_after(patch, 1)
                    generate(few, folder, name, checkpoint=state, resume=True, **more)
            logits.unlink(missing_ok=True)
            few.Barrier()
            report = generate(few, folder, name, checkpoint=state, resume=True, **more | {"every": NEW})
            if comm.rank == 0:
                assert report["host"]["resumed_at_token"] == 4
                assert outside_host(report) == outside_host(whole)
                assert not rows or logits.read_bytes() == rows
        meet(comm)
        few.Free()


@pytest.mark.mpi(ranks=[1])
def test_spills_of_what_stays_are_in_a_state(comm: MPI.Intracomm, tmp_path: Path) -> None:
    """The run by that name spills before and after a state: otherwise it would be no test of it."""
    report = generate(comm, tmp_path, "neuron, spills")
    assert all(phase["spill_bytes"]["reloaded"] for phase in report["phases"])


def kept_state(comm: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Path:
    state = folder / "state"
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_after(patch, 2)
        generate(comm, folder, name, checkpoint=str(state))
    return state


@pytest.fixture(scope="module")
def state_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The state of a run, made once in one process for tests that change none of it."""

    @cache
    def made(name: str) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            return kept_state(MPI.COMM_SELF, tmp_path_factory.mktemp("state"), patch, name)

    return made


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(4)
@pytest.mark.parametrize("name", RUNS)
def test_who_goes_on_stands_where_the_other_stood(
    comm: MPI.Intracomm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Every clock, counter and heap, also those that nobody waits for in these runs."""
    state = kept_state(comm, make_model(comm, tmp_path, name), monkeypatch, name)
    restore = loop.restore

    def restored(loaded: Any, machine: Any, engine: Any, *more: Any) -> None:
        restore(loaded, machine, engine, *more)
        described = json.loads(json.dumps(engine.describe()[0]))
        assert described == {key: loaded.facts[key] for key in described}
        raise Stopped

    monkeypatch.setattr(loop, "restore", restored)
    with pytest.raises(Stopped):
        generate(comm, tmp_path, name, checkpoint=str(state), resume=True)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("neuron, sampled", {"@cores": 2}, "with --cores 4, and this run has 2"),
        ("neuron, sampled", {"@sbuf_bytes": 9999}, "with device's sbuf_partition_bytes"),
        ("neuron, sampled", {"seed": 6}, "with --seed 5, and this run has 6"),
        ("neuron, sampled", {"layers": 1}, "with another model"),
        ("gpu, sampled", {"@tp": 2}, "with --tp 4, and this run has 2"),
        ("gpu, sampled", {"@static": True}, "with --static False, and this run has True"),
        ("gpu, sampled", {"@link": "pcie"}, "with device's link nvlink, and this run has pcie"),
        ("gpu, sampled", {"scheme": "base"}, "with --scheme deinfer, and this run has base"),
        ("gpu, sampled", {"block_size": 4}, "with --block-size 16, and this run has 4"),
        ("gpu, sampled", {"layers": 1}, "with another model"),
        ("gpu, sampled", {"prompt_ids": "5,9"}, "with another prompt"),
        ("gpu, sampled", {"max_new_tokens": 9}, "with --max-new-tokens 7, and this run has 9"),
        ("neuron, sampled", {"max_new_tokens": 9}, "with --max-new-tokens 7, and this run has 9"),
        ("arm, all there will be", {"max_new_tokens": 9}, "with --max-new-tokens 7, and this run has 9"),
    ],
)
def test_only_the_same_run_goes_on(
    comm: MPI.Intracomm, tmp_path: Path, state_of: Callable[[str], Path], name: str, changed: Any, message: str
) -> None:
    state = state_of(name)
    with pytest.raises(UsageError, match=f"^--resume: what .*/state holds was begun {message}"):
        generate(comm, tmp_path, name, changed, checkpoint=str(state), resume=True)
    with pytest.raises(UsageError, match="holds a checkpoint already: go on from it with --resume"):
        generate(comm, tmp_path, name, checkpoint=str(state))


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["arm, sampled", "arm, int8", "arm, shapes"])
def test_arm_cores_go_on_to_more_tokens_as_if_they_had_been_asked_for(
    comm: MPI.Intracomm, tmp_path: Path, name: str
) -> None:
    """Caches grow as tokens come; NeuronCores and GPUs lay memory out for all of them, and refuse others."""
    folder, more = make_model(comm, tmp_path, name), {"max_new_tokens": 12}
    generate(comm, folder, name, checkpoint=str(folder / "state"))
    report = generate(comm, folder, name, more, checkpoint=str(folder / "state"), resume=True)
    assert report["host"]["resumed_at_token"] == 6
    assert outside_host(report) == outside_host(generate(comm, folder, name, more))


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["neuron, one core", "gpu, static"])
def test_a_state_that_is_damaged_or_that_somebody_has_written_is_told(
    comm: MPI.Intracomm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    state = kept_state(comm, tmp_path, monkeypatch, name)
    whole = (state / "state.json").read_text()
    for change in changes(whole):
        rewrite(state, whole, change)
        with pytest.raises((UsageError, LimitError)):
            generate(comm, tmp_path, name, checkpoint=str(state), resume=True)
    (state / "state.json").write_text(whole)
    arrays = next(state.glob("*.npz"))
    stored = arrays.read_bytes()
    arrays.write_bytes(stored[: len(stored) // 2])
    with pytest.raises(UsageError, match=r"is damaged.*remove the folder and start again"):
        generate(comm, tmp_path, name, checkpoint=str(state), resume=True)
    arrays.write_bytes(stored)
    assert generate(comm, tmp_path, name, checkpoint=str(state), resume=True)["host"]["resumed_at_token"] == 2


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("name", ["neuron, one core", "gpu, sampled"])
def test_a_trace_has_all_that_ran(name: str, comm: MPI.Intracomm, tmp_path: Path) -> None:
    trace = {"@trace": str(tmp_path / "trace.json")}
    with pytest.raises(UsageError, match="--trace has all that ran, and --checkpoint keeps nothing of it"):
        generate(comm, tmp_path, name, trace, checkpoint=str(tmp_path / "state"))
