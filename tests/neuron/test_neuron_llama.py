"""Whole models on NeuronCores against Hugging Face transformers (tests/golden), on any number of cores and ranks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_models import CASES, case_ids, case_seed, random_checkpoint
from runs import run_on_cores
from tiers import examples

from meshrt.errors import UsageError
from meshrt.models.catalogue import find_model
from meshrt.models.config import read_config
from meshrt.models.reference import forward, load_weights
from meshrt.neuron import language as nl
from meshrt.neuron.cores import Cores
from meshrt.neuron.device import find_neuron_device
from meshrt.ranks.board import Board
from meshrt.ranks.control import Control

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(8)
@pytest.mark.parametrize("name", sorted(CASES))
def test_prefill_and_decode_give_the_logits_of_transformers(name: str, tmp_path: Path, comm: Any) -> None:
    check(comm, name, 1, tmp_path)


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["gqa82", "bias", "qwen2", "lowrank", "lowrankbias"])
def test_so_they_do_shared_by_two_cores(name: str, tmp_path: Path, comm: Any) -> None:
    check(comm, name, 2, tmp_path)


@pytest.mark.mpi(ranks=[1, 2, 4])
def test_llama_tiny_on_four_cores_gives_the_text_of_transformers(tmp_path: Path, comm: Any) -> None:
    check(comm, "llama-tiny", 4, tmp_path)


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["gqa82", "llama-tiny"])
def test_so_do_more_cores_than_heads_of_keys_and_values(name: str, tmp_path: Path, comm: Any) -> None:
    """8 query heads of 2 or 4 of keys and values: a core each, so that each of the latter is on 4 or 2 cores."""
    check(comm, name, 8, tmp_path)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("dtype, bound", [("bfloat16", 0.04), ("float16", 0.005)])
def test_sixteen_bits_cost_what_their_mantissa_says(dtype: str, bound: float, tmp_path: Path, comm: Any) -> None:
    """Relative to the largest logit. bfloat16 rounds by up to 2^-9, and some tens of roundings follow one another."""
    ids = case_ids("llama3")
    logits = logits_of(comm, random_checkpoint(CASES["llama3"], tmp_path / "model", 1), ids, tmp_path, 1, dtype=dtype)
    config = read_config(tmp_path / "model")
    expected = forward(config, load_weights(tmp_path / "model"), ids)
    error = np.abs(logits[: len(ids)] - expected).max() / np.abs(expected).max()
    assert 1e-5 < error < bound


@pytest.mark.mpi(ranks=[1])
def test_a_prompt_longer_than_a_tile_and_than_a_bank(tmp_path: Path, comm: Any) -> None:
    """Attention then takes several tiles of queries (128), of scores (512) and of values (128)."""
    shape = CASES["gqa82"] | {"max_position_embeddings": 1024}
    ids = [int(number) for number in np.random.default_rng(5).integers(0, 96, 700)]
    folder = random_checkpoint(shape, tmp_path / "model", 3)
    logits = logits_of(comm, folder, ids, tmp_path, 1)
    assert np.abs(logits[: len(ids)] - forward(read_config(folder), load_weights(folder), ids)).max() < 1e-3


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize("cores", [1, 2])
def test_shapes_alone_count_and_take_the_same(cores: int, comm: Any) -> None:
    if comm.size > cores:
        return
    given = {"model": "llama-tiny", "prompt_ids": "5,6,7,8,9", "max_new_tokens": 4, "ignore_eos": True}
    full, none = (run_on_cores(comm, "llama", cores, payload=payload, **given) for payload in (True, False))
    if comm.rank == 0:
        assert (full["measured"], full["phases"]) == (none["measured"], none["phases"])
        assert full["measured"]["hbm_bytes"]["total"] > 0


@pytest.mark.mpi(ranks=[2])
def test_ranks_change_nothing_but_the_host(tmp_path: Path, comm: Any) -> None:
    from mpi4py import MPI

    given = {"model": "llama-tiny", "max_new_tokens": 5}
    several = run_on_cores(comm, "llama", 2, **given)
    if comm.rank == 0:
        alone = run_on_cores(MPI.COMM_SELF, "llama", 2, **given)
        for report in (several, alone):
            report.pop("host")
        assert json.dumps(several) == json.dumps(alone)


@pytest.mark.mpi(ranks=[1, 2])
def test_a_sum_over_the_cores_goes_from_hbm_to_hbm(comm: Any) -> None:
    """6 x 5 numbers on n = 3 cores: 3n - 2 reads, 2n - 1 writes of a chunk of 10 (test_group.py), 2n - 2 sent."""
    cores = Cores(3, find_neuron_device("trn1"), Control(comm, Board.alone(), "test"))
    numbers = np.arange(30.0).reshape(6, 5)
    for again in (1, 2):
        sums = cores.all_reduce([core.tensor_of(numbers * (core.index + 1), nl.bfloat16) for core in cores.mine])
        for core, total in zip(cores.mine, sums, strict=True):
            counts = [core.counts[key] for key in ("hbm_read", "hbm_written", "link_bytes", "collectives")]
            assert counts == [again * count for count in (7 * 20, 5 * 20, 4 * 20, 1)]
            assert (total.data == 6 * numbers).all()


@pytest.mark.mpi(ranks=[1, 2])
def test_the_json_has_what_the_other_machines_have(comm: Any) -> None:
    """And the host's messages: a sum over 2 cores of 2 ranks takes a message each way for each of its 2 hops."""
    report = run_on_cores(comm, "llama", 2, model="llama-tiny", prompt_ids="1,2,3", max_new_tokens=1)
    if comm.rank:
        return
    assert list(report) == [
        "schema", "machine", "program", "arguments", "device", "mesh", "result", "measured", "phases", "host", "kinds"
    ]  # fmt: skip
    keys = {
        "critical_path",
        "link_bytes",
        "memory_bytes",
        "macs",
        "flops",
        "hbm_bytes",
        "spill_bytes",
        "dma_descriptors",
        "mfu",
        "engines",
    }
    assert keys | {
        "collectives",
        "transpose_flops",
        "sbuf_bytes",
        "psum_bytes",
        "mac_passes",
        "operand_bytes",
        "energy",
    } == set(report["measured"])
    assert [phase["name"] for phase in report["phases"]] == ["prefill", "decode"]
    assert all(set(phase) == {"name", "tokens", *report["measured"]} for phase in report["phases"])
    collectives = 2 * report["result"]["layers"]
    assert report["measured"]["collectives"] == collectives and report["host"]["ranks"] == comm.size
    assert report["host"]["messages"] == (2 * 2 * collectives if comm.size == 2 else 0)
    assert {"wall_seconds", "mpi", "version", "bytes"} < set(report["host"])


@pytest.mark.mpi(ranks=[1, 3])
@pytest.mark.parametrize(
    ("name", "cores", "more"),
    [
        ("llama-tiny", 3, 4),  # 4 heads of keys and values, two a core: 6, each of 2 query heads
        ("gqa82", 6, 4),  # 2 are on 3 cores each, which have 2 of 4 query heads: 6 of each
        pytest.param("llama-tiny", 16, 8, marks=pytest.mark.all),  # a query head a core: 16
        pytest.param("gqa82", 5, 12, marks=pytest.mark.all),  # 5 of keys and values, each of 4
        ("lowrankbias", 3, None),
        pytest.param("qwen2", 3, None, marks=pytest.mark.all),
    ],
)
def test_heads_that_do_not_come_out_even_are_padded(
    name: str, cores: int, more: int | None, tmp_path: Path, comm: Any
) -> None:
    """The logits of transformers, and heads of zeros as worked out beside the cases."""
    check(comm, name, cores, tmp_path)
    if more is not None:
        given = {"model": "llama-tiny" if name == "llama-tiny" else str(comm.bcast(tmp_path) / name)}
        report = run_on_cores(comm, "llama", cores, prompt_ids="1,2", max_new_tokens=1, payload=False, **given)
        assert comm.rank or report["result"]["padded_heads"] == more


@pytest.mark.mpi(ranks=[1])
def test_more_cores_than_columns_are_refused(comm: Any) -> None:
    given = {"model": "llama-tiny", "prompt_ids": "1,2", "max_new_tokens": 1, "payload": False, "layers": 1}
    with pytest.raises(UsageError, match=r"--cores is 385; .* the model has 384 and 512: 384 cores at most"):
        run_on_cores(comm, "llama", 385, **given)
    assert run_on_cores(comm, "llama", 32, **given)["result"]["padded_heads"] == 24


@pytest.mark.mpi(ranks=[1])
def test_a_model_whose_heads_come_out_even_has_no_others(comm: Any) -> None:
    report = run_on_cores(comm, "llama", 8, model="llama-tiny", prompt_ids="1,2", max_new_tokens=1, payload=False)
    assert "padded_heads" not in report["result"]


@pytest.mark.mpi(ranks=[1])
def test_a_ratio_makes_the_mlp_as_small_as_it_says(comm: Any) -> None:
    """Llama-3.2-1B at 0.2 has rank 1280 (NeuronMM, Table 6): 1280 (2048 + 8192) numbers for each 2048 x 8192.

    A decoded token reads every one of them once, and all the rest alike.
    """
    given = {"model": "llama3.2-1b", "layers": 1, "context": 8, "max_new_tokens": 2}
    dense, small = (run_on_cores(comm, "llama", payload=False, ratio=ratio, **given) for ratio in (None, 0.2))
    macs = [report["phases"][-1]["macs"] for report in (dense, small)]
    assert macs[0] - macs[1] == 3 * (2048 * 8192 - 1280 * (2048 + 8192))
    assert small["result"]["tpot_seconds"] < dense["result"]["tpot_seconds"]
    with pytest.raises(UsageError, match="add --payload none, or `meshrt compress` the model"):
        run_on_cores(comm, "llama", model="llama-tiny", ratio=0.2)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("factors", [False, True])
def test_matrices_as_stored_are_transposed_at_each_pass(factors: bool, cores: int, tmp_path: Path, comm: Any) -> None:
    """The same logits; each pass reads the MLP's matrices once more, and writes them once, all of them in tiles of the
    tensor engine: 2 x 128 x in x out operations, 128 being the rows of its identity, or fewer at an edge.
    """
    shape = CASES["gqa82"] | {"hidden_size": 256, "intermediate_size": 384}
    names = [f"model.layers.{i}.mlp.{part}_proj" for i in range(shape["num_hidden_layers"])
             for part in ("gate", "up", "down")]  # fmt: skip
    rank = 128
    shape |= {"low_rank": {"ranks": dict.fromkeys(names, rank)}} if factors else {}
    folder = random_checkpoint(shape, tmp_path / "model", 3)
    reports, logits = [], []
    for stored in (False, True):
        path = tmp_path / f"{stored}.npy"
        given = {"prompt_ids": "1,2,3,4,5", "max_new_tokens": 3, "ignore_eos": True, "dtype": "float32"}
        reports.append(
            run_on_cores(comm, "llama", cores, model=str(folder), stored=stored, logits=str(path), **given)["measured"]
        )
        logits.append(np.load(path))
    assert (logits[0] == logits[1]).all()
    wide = rank * (cores * 256 + 384) if factors else 256 * 384  # every core has the whole of one factor's side
    numbers = 3 * len(names) * wide  # of three passes
    extra = {name: reports[1]["hbm_bytes"][name] - reports[0]["hbm_bytes"][name] for name in ("read", "written")}
    assert extra == {"read": 4 * numbers, "written": 4 * numbers}
    more = reports[1]["transpose_flops"] - reports[0]["transpose_flops"]
    assert 0 < more <= 2 * 128 * numbers and (cores > 1 or more == 2 * 128 * numbers)
    assert reports[1]["macs"] == reports[0]["macs"]
    assert reports[1]["critical_path"]["seconds"] > reports[0]["critical_path"]["seconds"]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("name", ["lowrank", "lowrankbias"])
def test_factors_are_multiplied_one_after_the_other(name: str, tmp_path: Path, comm: Any) -> None:
    """A token takes r (in + out) products of a matrix in factors, in attention too, and in out of a dense one."""
    shape = CASES[name]
    models = {"factors": shape, "dense": {key: value for key, value in shape.items() if key != "low_rank"}}
    macs = {}
    for kind, data in models.items():
        folder = random_checkpoint(data, tmp_path / kind, 3)
        given = {"model": str(folder), "prompt_ids": "1,2,3,4,5", "max_new_tokens": 1}
        macs[kind] = run_on_cores(comm, "llama", payload=False, **given)["measured"]["macs"]
    config = read_config(tmp_path / "factors")
    factored = [matrix for matrix in config.matrices().values() if matrix.rank is not None]
    saved = sum(matrix.rows * matrix.columns - matrix.rank * (matrix.rows + matrix.columns) for matrix in factored)
    assert len(config.factored) in (6, 9) and macs["dense"] - macs["factors"] == 5 * saved


def logits_of(comm: Any, model: Path, ids: list[int], folder: Path, cores: int, **options: Any) -> Any:
    """Run the prompt and one token: all logits, on rank 0."""
    given = {"dtype": "float32"} | options
    run_on_cores(
        comm, "llama", cores, model=str(model), prompt_ids=",".join(map(str, ids)), max_new_tokens=1, ignore_eos=True,
        logits=str(folder / "logits.npy"), **given,
    )  # fmt: skip
    return np.load(folder / "logits.npy") if comm.rank == 0 else None


def check(comm: Any, name: str, cores: int, folder: Path) -> None:
    """Prefill the golden prompt, decode the golden continuation greedily, and compare every logit, on rank 0."""
    golden = {**np.load(GOLDEN / f"{name}.npz")}
    prompt = int(golden["prompt"][0])
    end = prompt + examples(len(golden["ids"]) - prompt)  # a part of what follows, but with --all
    ids, expected = golden["ids"][:end].tolist(), golden["logits"][:end]
    folder = Path(comm.bcast(str(folder)))
    model = find_model(name) if name == "llama-tiny" else folder / name
    if name != "llama-tiny" and comm.rank == 0:
        random_checkpoint(CASES[name], model, case_seed(name))
    comm.Barrier()
    if comm.size > cores:
        with pytest.raises(UsageError, match=f"{comm.size} ranks for {cores} NeuronCores?: start"):
            run_on_cores(comm, "llama", cores, model=str(model))
        return
    report = run_on_cores(
        comm, "llama", cores, model=str(model), prompt_ids=",".join(map(str, ids[:prompt])), dtype="float32",
        max_new_tokens=len(ids) - prompt + 1, logits=str(folder / "logits.npy"), ignore_eos=True,
    )  # fmt: skip
    compared = None
    if comm.rank == 0:
        logits = np.load(folder / "logits.npy")
        same = logits.dtype == np.float32 and logits.shape == expected.shape
        compared = same, float(np.abs(logits - expected).max()), report["result"]["token_ids"][:-1] == ids[prompt:]
    same, error, tokens = comm.bcast(compared)
    assert same and tokens and error < 1e-3
