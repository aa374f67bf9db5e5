"""Mixtures of experts on the mesh: logits and text of the reference wherever experts are, and counts on paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decomposed import decompose
from generations import generated, goes_on_from_a_state, same_as_on_one_rank
from measure import meet
from moe_models import CASES, IDS, QWEN3, random_moe
from random_models import random_checkpoint
from runs import run_program
from safetensors.numpy import load_file, save_file

import meshrt.programs.mesh.experts.gate as gate
import meshrt.programs.mesh.experts.mixture as mixture
import meshrt.programs.mesh.experts.prefill as prompt_side
from meshrt.errors import LimitError, UsageError
from meshrt.models.config import read_config
from meshrt.models.reference import forward, load_weights

GOLDEN = Path(__file__).parents[1] / "golden"
PROMPT, NEW = 8, 5
MESHES = [(3, 3), (4, 2), (8, 8)]
FAMILIES = ["mixtral", "deepseek", "qwen2-moe", "olmoe", "qwen3-moe"]
REGIONS = {"experts": "regions"}
WAYS: list[dict[str, Any]] = [
    {},
    {"dispatch": "dense"},
    {"dispatch": "ring", "capacity": 3},
    REGIONS,
    REGIONS | {"dispatch": "multicast", "capacity": 1},
    REGIONS | {"dispatch": "crossbar"},
]
OTHERS: list[tuple[str, tuple[int, int], dict[str, Any]]] = [
    ("mixtral", (1, 1), {}),
    ("qwen2-moe", (1, 4), REGIONS),
    ("mixtral-two", (4, 4), REGIONS | {"dispatch": "crossbar"}),  # k = n
    ("qwen2-moe", (4, 4), {"dispatch": "crossbar"}),
    ("deepseek-renormalised", (6, 4), REGIONS | {"expert_grid": "3x2", "capacity": 2}),  # experts without a token
    ("qwen3-moe-probabilities", (4, 4), REGIONS | {"expert_grid": "1x1"}),
    ("olmoe-renormalised", (4, 4), {"allreduces": "published"}),
    ("qwen2-moe-renormalised", (4, 4), REGIONS | {"allreduces": "published", "phases": 1}),
    ("mixtral", (3, 2), {"system": "t10"}),
    ("qwen3-moe", (2, 3), {"system": "ladder", "dispatch": "dense"}),
    ("olmoe", (4, 4), {"regions": 2, "decode_mesh": "3x3", "decode_regions": 1}),
    ("qwen2-moe", (4, 4), {"decode_mesh": "6x3"}),
    ("qwen2-moe", (4, 4), REGIONS | {"regions": 3}),
    ("deepseek", (8, 8), REGIONS | {"device": "wse2", "limits": {"core_memory": 10**6}, "dispatch": "multicast"}),
    ("mixtral", (8, 8), {"device": "wse2", "limits": {"core_memory": 10**6}, "dispatch": "crossbar"}),
]


def check(comm: Any, model: Path, mesh: tuple[int, int], ids: list[int], folder: Path, **options: Any) -> Any:
    """Every logit of prefill and decode against the reference in float64, on one rank; the report."""
    report, logits, every = generated(comm, model, mesh, folder, ids, NEW, dtype="float32", **options)
    expected, new = forward(read_config(model), load_weights(model), every), report["result"]["token_ids"]
    assert np.abs(logits - expected).max() < 1e-3
    assert new == expected[len(ids) - 1 :].argmax(axis=1).tolist()
    return report


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_transformers_and_the_text_is_that_of_the_reference(
    name: str, mesh: tuple[int, int], way: dict[str, Any], tmp_path: Path, comm: Any
) -> None:
    report = check(comm, random_moe(name, tmp_path / name), mesh, IDS[name][:PROMPT], tmp_path, **way)
    golden = np.load(GOLDEN / f"{name}.npz")["logits"][:PROMPT]
    assert np.abs(np.load(tmp_path / "logits.npy")[:PROMPT] - golden).max() < 1e-3
    said, config = report["result"]["experts"], read_config(tmp_path / name)
    assert config.moe is not None
    assert {sum(row) for row in said["tokens"]} == {config.moe.top * (PROMPT + NEW - 1)}  # no token is dropped


@pytest.mark.mpi(ranks=[2, 3, 4, 8, 9])
@pytest.mark.sample(1)
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_so_they_are_on_several_ranks(name: str, way: dict[str, Any], tmp_path: Path, comm: Any) -> None:
    folder = Path(comm.bcast(str(tmp_path)))
    if comm.rank == 0:
        random_moe(name, folder / name)
    meet(comm)
    mesh = {2: (4, 2), 3: (3, 3), 4: (8, 8), 8: (4, 2), 9: (3, 3)}[comm.size]
    run_program(
        comm, "llama", mesh, model=str(folder / name), prompt_ids=",".join(map(str, IDS[name][:PROMPT])),
        max_new_tokens=1, dtype="float32", logits=str(folder / "logits.npy"), **way,
    )  # fmt: skip
    golden, error = np.load(GOLDEN / f"{name}.npz")["logits"][:PROMPT], None
    if comm.rank == 0:
        error = float(np.abs(np.load(folder / "logits.npy") - golden).max())
    assert comm.bcast(error) < 1e-3


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize("name, mesh, options", OTHERS, ids=str)
def test_so_they_are_in_other_ways(
    name: str, mesh: tuple[int, int], options: dict[str, Any], tmp_path: Path, comm: Any
) -> None:
    check(comm, random_moe(name, tmp_path / name), mesh, IDS[name][:PROMPT], tmp_path, **options)


@pytest.mark.mpi(ranks=[2, 3, 6])
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "name, options",
    [
        ("qwen2-moe", {"layers": 2}),
        ("olmoe", REGIONS | {"dispatch": "multicast", "expert_grid": "2x2", "layers": 1}),
        ("qwen3-moe", REGIONS | {"dispatch": "crossbar", "expert_grid": "3x2", "capacity": 2, "layers": 2}),
    ],
    ids=str,
)
def test_several_ranks_report_what_one_does(name: str, options: dict[str, Any], tmp_path: Path, comm: Any) -> None:
    model = shared(comm, tmp_path, name)
    same_as_on_one_rank(comm, model, (6, 4), model.parent, prompt_ids="5,6,7,60", max_new_tokens=2, **options)


def shared(comm: Any, folder: Path, name: str) -> Path:
    """The model of that name, on all ranks."""
    model = Path(comm.bcast(str(folder))) / "model"
    if comm.rank == 0:
        random_moe(name, model)
    meet(comm)
    return model


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.sample(1)
@pytest.mark.parametrize("options", [{}, REGIONS | {"expert_grid": "2x2"}], ids=str)
def test_a_generation_goes_on_from_a_state(options: dict[str, Any], tmp_path: Path, comm: Any) -> None:
    model = shared(comm, tmp_path, "qwen2-moe")
    goes_on_from_a_state(comm, model, model.parent, 4, layers=1, **options)


class Replay:
    """Choices that were seen, as what is drawn by shape."""

    def __init__(self, seen: dict[tuple[int, int], np.ndarray]) -> None:
        self.seen = seen

    def draw(self, layer: int, step: int, tokens: int) -> np.ndarray:
        return self.seen[layer, step]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize("options", [*WAYS, {"system": "t10"}], ids=str)
@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe"])
def test_shapes_alone_give_the_same_counts_where_tokens_go_the_same_ways(
    name: str, options: dict[str, Any], tmp_path: Path, comm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[tuple[int, int], np.ndarray] = {}
    choose_for_token = gate.choose_for_token

    def of_token(region: Any, w: Any, number: int, logits: np.ndarray, position: int) -> Any:
        choice = choose_for_token(region, w, number, logits, position)
        seen[region.mixture.numbers[number], position] = np.array([choice.experts])
        return choice

    def of_prompt(region: Any, chunks: Any, w: Any, number: int, normed: np.ndarray, length: int) -> Any:
        choice = gate.choose_for_prompt(region, chunks, w, number, normed, length)
        seen[region.mixture.numbers[number], 0] = choice.experts.reshape(-1, w.top)[:length]
        return choice

    model = str(random_moe(name, tmp_path / name))
    common = {"model": model, "prompt_tokens": 9, "max_new_tokens": 3, "ignore_eos": True, **options}
    with monkeypatch.context() as patch:
        patch.setattr(gate, "choose_for_token", of_token)
        patch.setattr(prompt_side, "choose_for_prompt", of_prompt)
        full = run_program(comm, "llama", (4, 4), "wse2", {"core_memory": 10**7}, **common)
    monkeypatch.setattr(mixture, "make_routing", lambda *_: Replay(seen))
    none = run_program(comm, "llama", (4, 4), "wse2", {"core_memory": 10**7}, payload=False, **common)
    assert full["phases"] == none["phases"] and full["measured"] == none["measured"]
    assert full["result"]["experts"] == none["result"]["experts"]


# ----------------------------------------------------------------------------------------------------- edges


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(1)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_one_expert_may_take_all_tokens(way: dict[str, Any], tmp_path: Path, comm: Any) -> None:
    """A router of zeros finds all equally likely, and the first is taken."""
    case = CASES["mixtral"] | {"num_experts_per_tok": 1}
    model = random_checkpoint(case, tmp_path / "model", 5)
    weights = load_file(model / "model.safetensors")
    for name in weights:
        if name.endswith("block_sparse_moe.gate.weight"):
            weights[name][...] = 0
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    said = check(comm, model, (4, 4), IDS["mixtral"][:PROMPT], tmp_path, **way)["result"]["experts"]
    assert said["tokens"] == [[PROMPT + NEW - 1, 0, 0, 0, 0]] * 3
    assert said["imbalance"] == {"mean": 5, "worst": 5}
    if "capacity" in way:  # 4 or 2 rows of tiles of a region share the places out
        rows = 2 if way.get("experts") else 4
        assert said["passes"] == [-(-PROMPT // (rows * -(-way["capacity"] // rows)))] * 3


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("way", [{}, REGIONS], ids=str)
def test_there_may_be_one_expert(way: dict[str, Any], tmp_path: Path, comm: Any) -> None:
    model = random_checkpoint(CASES["mixtral"] | {"num_local_experts": 1, "num_experts_per_tok": 1}, tmp_path / "m", 6)
    check(comm, model, (4, 4), IDS["mixtral"][:PROMPT], tmp_path, **way)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["olmoe", "qwen3-moe"])
def test_norms_of_heads_in_groups(name: str, tmp_path: Path, comm: Any) -> None:
    """A norm over all heads goes over all groups of them, one over a head stays inside its group."""
    case = CASES[name] | {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 40, "head_dim": 10}
    model = random_checkpoint(case, tmp_path / "m", 7)
    for options in ({"head_groups": 2}, {"head_groups": 2, "system": "ladder"}):
        check(comm, model, (4, 4), IDS[name][:PROMPT], tmp_path, **options)


@pytest.mark.mpi(ranks=[1])
def test_a_model_may_have_norms_and_no_experts(tmp_path: Path, comm: Any) -> None:
    model = random_checkpoint(QWEN3 | {"mlp_only_layers": [0, 1, 2]}, tmp_path / "m", 8)
    report = check(comm, model, (3, 3), IDS["qwen3-moe"][:PROMPT], tmp_path)
    assert "experts" not in report["result"]


@pytest.mark.mpi(ranks=[1])
def test_experts_may_be_in_factors(tmp_path: Path, comm: Any) -> None:
    """Those of one layer with all matrices in factors, of another with some."""
    model = random_moe("qwen2-moe", tmp_path / "whole")
    names = read_config(model).matrices()
    ranks = {
        name: 5 + at % 3
        for at, (name, matrix) in enumerate(names.items())
        if ("layers.0.mlp" in name) or ("layers.2.mlp" in name and "up_proj" in name)
    }
    small = decompose(model, tmp_path / "small", ranks)
    for options in ({}, {"dispatch": "ring"}):
        check(comm, small, (3, 3), IDS["qwen2-moe"][:PROMPT], tmp_path, **options)
    with pytest.raises(UsageError, match="two factors"):
        check(comm, small, (4, 4), IDS["qwen2-moe"][:PROMPT], tmp_path, **REGIONS)


# ----------------------------------------------------------------------------------------------------- on paper


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(1)
@pytest.mark.parametrize("name, sums", [("mixtral", 7), ("qwen3-moe", 8), ("deepseek", 7), ("olmoe", 8)])
def test_a_layer_with_experts_takes_one_allreduce_more(name: str, sums: int, tmp_path: Path, comm: Any) -> None:
    """On N x N cores every allreduce adds N - 1 times on each line: 7 a layer, and one for norms of heads. Published,
    there are 4 more."""
    n, tokens, stages = 4, 3, {}
    model = str(random_moe(name, tmp_path / name))
    for layers in (2, 3):
        for way in ("fused", "published"):
            report = run_program(
                comm, "llama", (n, n), model=model, layers=layers, prompt_tokens=4, max_new_tokens=tokens + 1,
                ignore_eos=True, payload=False, phases=1, kv="roundrobin", allreduces=way,
            )  # fmt: skip
            stages[layers, way] = next(phase for phase in report["phases"] if phase["name"] == "decode")["stages"]
    assert stages[3, "fused"] - stages[2, "fused"] == tokens * sums * n * (n - 1)
    assert stages[3, "published"] - stages[2, "published"] == tokens * (sums + 4) * n * (n - 1)


@pytest.mark.mpi(ranks=[1])
def test_what_experts_multiply_is_the_same_wherever_they_are(tmp_path: Path, comm: Any) -> None:
    """Of sizes that divide, k experts of 3 E F in decode; in prefill as many rows as there are places, padding too."""
    e, f, k, n, tokens, mesh = 32, 16, 2, 4, 3, (4, 4)
    sizes = {"hidden_size": e, "intermediate_size": f, "num_local_experts": n, "num_experts_per_tok": k}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8}
    model = str(random_checkpoint(CASES["mixtral"] | sizes | heads, tmp_path / "m", 9))
    others = {}
    for at, way in enumerate(WAYS):
        report = run_program(
            comm, "llama", mesh, model=model, prompt_tokens=8, max_new_tokens=tokens + 1, ignore_eos=True,
            payload=False, **way,
        )  # fmt: skip
        phases = {phase["name"]: phase["macs"] for phase in report["phases"]}
        said = report["result"]["experts"]
        places = sum(said["tokens"][0]) - tokens * k
        places /= said["filled"]
        # The router's table is whole at every line of 4: each of the 4 lines multiplies a token by all of it.
        gate_macs = {"prefill": 8 * e * n, "decode": tokens * 4 * e * n}
        others[at] = (
            phases["prefill"] - 3 * e * f * places - gate_macs["prefill"],
            phases["decode"] - 3 * e * f * k * tokens - gate_macs["decode"],
        )
        assert said["cores_used"] == (1 if "experts" not in way else pytest.approx(k / n))
    assert len(set(others.values())) == 1, others  # attention, embedding and head


@pytest.mark.mpi(ranks=[1])
def test_places_for_tokens_are_core_memory(tmp_path: Path, comm: Any) -> None:
    model = str(random_moe("mixtral", tmp_path / "m"))
    most = [
        run_program(
            comm, "llama", (4, 4), model=model, prompt_tokens=64, max_new_tokens=1, payload=False, dispatch="ring",
            capacity=capacity,
        )["measured"]["memory_bytes"]["max"]
        for capacity in (32, 4000)
    ]  # fmt: skip
    assert most[1] > most[0]


@pytest.mark.mpi(ranks=[1])
def test_a_sample_of_experts_counts_what_all_would(tmp_path: Path, comm: Any) -> None:
    model = str(random_moe("olmoe", tmp_path / "m"))
    common = {"model": model, "layers": 1, "prompt_tokens": 60, "max_new_tokens": 1, "payload": False}
    for dispatch in ("padded", "dense"):
        whole, part = (
            run_program(
                comm, "llama", (6, 6), "wse2", {"core_memory": 10**9}, dispatch=dispatch, experts_run=run, **common
            )
            for run in (None, 1)
        )
        for key in ("messages", "hops", "stages", "macs", "link_bytes", "max_hops"):
            assert whole["measured"][key] == part["measured"][key], key
        assert part["kinds"]["measured.hops"] == "extrapolated"
        cycles = [report["measured"]["critical_path"]["cycles"] for report in (whole, part)]
        assert abs(cycles[0] - cycles[1]) < 0.02 * cycles[0]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(1)
@pytest.mark.parametrize("way", [{}, {"dispatch": "ring"}, REGIONS, REGIONS | {"expert_grid": "1x4"}], ids=str)
def test_a_sample_of_steps_counts_what_all_would(way: dict[str, Any], tmp_path: Path, comm: Any) -> None:
    """Products in whole meshes and in regions, square or not; tokens on rings; matrices that are turned."""
    model = str(random_moe("qwen2-moe", tmp_path / "m"))
    common = {"model": model, "prompt_tokens": 60, "max_new_tokens": 2, "ignore_eos": True, "payload": False, **way}
    whole, part = (
        run_program(comm, "llama", (12, 12), "wse2", {"core_memory": 10**9}, steps_run=run, **common)
        for run in (None, 2)
    )
    for every, sampled in zip([whole["measured"], *whole["phases"]], [part["measured"], *part["phases"]], strict=True):
        for key in ("messages", "hops", "stages", "macs", "link_bytes", "max_hops", "memory_bytes", "cores_used"):
            assert every[key] == sampled[key], key
        cycles = [each["critical_path"]["cycles"] for each in (every, sampled)]
        assert abs(cycles[0] - cycles[1]) < 0.01 * cycles[0]
    assert whole["result"]["experts"]["tokens"] == part["result"]["experts"]["tokens"]
    assert {part["kinds"][f"phases.{name}.hops"] for name in ("prefill", "re-placement")} == {"extrapolated"}


@pytest.mark.mpi(ranks=[1])
def test_a_mixture_that_has_no_room_is_refused_and_one_layer_of_it_is_not(comm: Any) -> None:
    """Mixtral in 16 bits has 3.7 times the memory of 720 x 720 cores."""
    common = {"model": "mixtral-8x7b", "context": 4, "max_new_tokens": 1, "payload": False}
    with pytest.raises(LimitError, match=r"larger --mesh.*or share the layers out.* --regions"):
        run_program(comm, "llama", (720, 720), "wse2", **common)
    report = run_program(comm, "llama", (60, 60), "ideal", layers=1, **common)
    assert report["result"]["experts"]["placement"] == "split"


@pytest.mark.mpi(ranks=[1])
def test_routing_may_be_that_of_another_run(tmp_path: Path, comm: Any) -> None:
    model = str(random_moe("qwen3-moe", tmp_path / "m"))
    common = {"model": model, "prompt_tokens": 64, "max_new_tokens": 1, "payload": False}
    first = run_program(comm, "llama", (2, 2), routing="zipf:3", **common)
    (tmp_path / "report.json").write_text(json.dumps(first))
    again = run_program(comm, "llama", (2, 2), routing=str(tmp_path / "report.json"), **common)
    tokens = [np.array(report["result"]["experts"]["tokens"][0]) for report in (first, again)]
    most = [set(np.argsort(-counts)[:2].tolist()) for counts in tokens]
    assert most[0] == most[1] and tokens[0].max() > 2 * tokens[0].mean()


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(
    "model, options, words",
    [
        ("llama-tiny", {"experts": "split"}, "--experts is for models with experts"),
        ("llama-tiny", {"routing_seed": 3}, "--routing-seed is for models with experts"),
        ("moe", {"expert_grid": "2x2"}, "--expert-grid is for --experts regions"),
        ("moe", REGIONS | {"expert_grid": "3x2"}, "columns have to divide the mesh's width, 4"),
        ("moe", REGIONS | {"expert_grid": "two"}, "COLUMNSxROWS"),
        ("moe", REGIONS | {"dispatch": "padded"}, "with --experts regions they have to move"),
        ("moe", REGIONS | {"system": "t10"}, "--experts split"),
        ("moe", {"dispatch": "ring", "system": "ladder"}, "padded or dense"),
        ("moe", {"capacity": 3}, "--capacity is for tokens that move"),
        ("moe", {"routing": "uniform"}, "add --payload none"),
        ("moe", {"experts_run": 1}, "--experts-run leaves numbers out: add --payload none"),
        ("moe", REGIONS | {"decode_mesh": "3x3"}, "--decode-mesh moves experts over whole meshes"),
        ("moe", REGIONS | {"decode_regions": 2}, "--decode-regions moves experts over whole meshes"),
    ],
    ids=str,
)
def test_what_cannot_be_is_one_message(
    model: str, options: dict[str, Any], words: str, tmp_path: Path, comm: Any
) -> None:
    name = str(random_moe("mixtral", tmp_path / "m")) if model == "moe" else model
    with pytest.raises(UsageError, match=words):
        run_program(comm, "llama", (4, 4), model=name, prompt_ids="1,2", **options)
