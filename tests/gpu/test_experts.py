"""Mixtures of experts on GPUs: the logits of transformers, every layout, any number of ranks, counts in closed form."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decomposed import decompose
from gpu_runs import logits_of, new_gpus, run_gpus, run_lowrank
from measure import on_one_rank
from moe_models import CASES, DEEPSEEK, IDS, MIXTRAL, OLMOE, QWEN2, QWEN3, random_moe
from random_models import random_checkpoint
from test_quantized import quantized

from meshrt.errors import LimitError, UsageError
from meshrt.gpu.presets import find_gpu
from meshrt.models.catalogue import find_model
from meshrt.models.config import read_config
from meshrt.models.experts import route
from meshrt.models.family import family_of
from meshrt.models.matrix import Experts
from meshrt.models.quantize.sizes import CodeScheme
from meshrt.models.reference import (
    attention,
    embed,
    forward,
    generate,
    layer,
    load_weights,
    normed,
    rotary_tables,
)
from meshrt.programs.gpu.experts import mixing
from meshrt.programs.gpu.experts import products as experts
from meshrt.ranks.console import Console
from meshrt.studies.bench import serve as serving

GOLDEN = Path(__file__).parents[1] / "golden"
LAYOUTS = ("tensor", "replicated", "alltoall")
TOKENS = [int(number) for number in np.random.default_rng(3).integers(0, 61, 11)]
# The same families with heads that 8 GPUs can share.
EIGHT: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 6}
OF_EIGHT = {
    "mixtral": MIXTRAL | EIGHT,
    "deepseek": DEEPSEEK | EIGHT,
    "qwen2-moe": QWEN2 | EIGHT,
    "olmoe": OLMOE | EIGHT | {"hidden_size": 48},
    "qwen3-moe": QWEN3 | EIGHT | {"num_local_experts": 3},  # some of 8 GPUs have no expert
    "one": MIXTRAL | EIGHT | {"num_local_experts": 1, "num_experts_per_tok": 1},
    "all": MIXTRAL | EIGHT | {"num_local_experts": 4, "num_experts_per_tok": 4},
}


def close(logits: np.ndarray, want: np.ndarray) -> None:
    assert logits.shape == want.shape
    assert np.abs(logits - want).max() < 1e-3


def reference(folder: Path, ids: list[int]) -> np.ndarray:
    return forward(read_config(folder, quantized=True), load_weights(folder), ids)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """These models have three heads."""
    folder, want = random_moe(name, tmp_path), np.load(GOLDEN / f"{name}.npz")["logits"]
    for tp in (1, 3):
        for layout in LAYOUTS:
            close(logits_of(new_gpus(tp), folder, "dense", IDS[name], 12, experts=layout), want)


@pytest.mark.mpi(ranks=[1, 2, 4, 8])
@pytest.mark.sample(2)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["mixtral-tiny", "deepseek-tiny"])
def test_the_trained_ones_say_what_transformers_does(name: str, layout: str, comm: Any) -> None:
    """They have eight heads: on 2, 4 and 8 GPUs, of so many ranks, prompt and what follows."""
    golden = {**np.load(GOLDEN / f"{name}.npz")}
    ids, prompt = golden["ids"][:22].tolist(), int(golden["prompt"][0])
    for tp, scheme in ((2, "dense"), (4, "base"), (8, "deinfer")):
        if tp >= comm.size:
            logits = logits_of(new_gpus(tp, comm), find_model(name), scheme, ids, prompt, experts=layout)
            close(logits, golden["logits"][:22])


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", OF_EIGHT)
def test_any_layout_on_any_gpus_gives_the_references_logits(name: str, tmp_path: Path) -> None:
    folder = random_checkpoint(OF_EIGHT[name], tmp_path, 5)
    want = reference(folder, TOKENS)
    for tp, scheme in ((1, "dense"), (2, "base"), (4, "deinfer"), (8, "dense")):
        for layout in LAYOUTS:
            close(logits_of(new_gpus(tp), folder, scheme, TOKENS, 10, experts=layout), want)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["mixtral", "deepseek", "qwen2-moe"])
def test_any_layout_says_the_references_text(name: str, tmp_path: Path) -> None:
    folder = random_checkpoint(OF_EIGHT[name], tmp_path, 5)
    want = generate(read_config(folder), load_weights(folder), TOKENS[:5], 5)
    for layout, tp, link in (("tensor", 4, "nvlink"), ("replicated", 2, "nvlink"), ("alltoall", 8, "pcie")):
        report = run_gpus(
            new_gpus(tp, link=link), folder, "llama", prompt_ids=",".join(map(str, TOKENS[:5])), max_new_tokens=5,
            ignore_eos=True, experts=layout,
        )  # fmt: skip
        assert report["result"]["token_ids"] == want


@pytest.mark.mpi(ranks=[2, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_on_any_number_of_ranks(layout: str, comm: Any, tmp_path: Path) -> None:
    folder = Path(comm.bcast(str(tmp_path)))
    if comm.rank == 0:
        random_checkpoint(OF_EIGHT["deepseek"], folder, 5)
    comm.Barrier()

    def outcome(where: Any) -> tuple[bytes, str]:
        logits = logits_of(new_gpus(4, where), folder, "dense", TOKENS, 9, experts=layout)
        reports = [
            run_gpus(
                new_gpus(4, where, payload, link=link), folder, "serve", experts=layout, requests=3,
                prompt_tokens="2:9", output_tokens="3", capacity=1.0,
            )
            for payload, link in ((True, "pcie"), (False, "nvlink"))
        ]  # fmt: skip
        assert all(report.pop("host")["ranks"] == where.size for report in reports)
        return logits.tobytes(), json.dumps(reports)

    assert outcome(comm) == on_one_rank(comm, outcome)


# ---- what is counted


def routing(folder: Path, ids: list[int]) -> dict[int, np.ndarray]:
    """The experts of each token [tokens, k], by layer, as the reference in float64 chooses them."""
    config, weights, choices = read_config(folder), load_weights(folder), {}
    family = family_of(config)
    x, rotary = embed(family, weights, np.array(ids)), rotary_tables(family, len(ids), np.float64)
    for at, block in enumerate(family.layers):
        if isinstance(block.mlp, Experts):
            y = x + attention(family, weights, block, normed(family, weights, block.attention_norm, x), rotary)
            logits = normed(family, weights, block.mlp_norm, y) @ weights[block.mlp.router.name + ".weight"].T
            choices[at] = route(logits, block.mlp.top, block.mlp.renormalise)[0]
        x = layer(family, weights, block, x, rotary)
    return choices


@pytest.mark.parametrize("link", ["nvlink", "pcie"])
@pytest.mark.parametrize("name", ["mixtral", "deepseek", "qwen3-moe"])
def test_bytes_of_all_to_all_are_those_of_the_routing(name: str, link: str, tmp_path: Path) -> None:
    """A prefill of 11 tokens on 4 GPUs, which own 2, 3, 3, 3 of them. A token goes once to each other GPU that has an
    expert of it, with 36 numbers of 4 bytes and 8 bytes for each of 3 experts, and comes back as 36 numbers. Between
    neighbours what goes s GPUs far goes over s links. Counts of 4 bytes are gathered before."""
    folder, tp = random_checkpoint(OF_EIGHT[name], tmp_path, 5), 4
    report = run_lowrank(
        new_gpus(tp, link=link), folder, prompt_ids=",".join(map(str, TOKENS)), max_new_tokens=1, experts="alltoall"
    )
    choices = routing(folder, TOKENS)
    moe = read_config(folder).moe
    assert moe is not None
    experts = moe.experts
    home = np.repeat(np.arange(tp), [experts * (at + 1) // tp - experts * at // tp for at in range(tp)])
    owner = np.repeat(np.arange(tp), [11 * (at + 1) // tp - 11 * at // tp for at in range(tp)])
    out = back = far = 0
    for chosen in choices.values():
        for token, own in zip(chosen, owner, strict=True):
            others = {int(gpu) for gpu in home[token]} - {int(own)}
            out += len(others) * (36 * 4 + 8 * 3)
            back += len(others) * 36 * 4
            for gpu in others:
                steps = 1 if link == "nvlink" else (gpu - own) % tp
                far += steps * (36 * 4 + 8 * 3) + (1 if link == "nvlink" else (own - gpu) % tp) * 36 * 4
    measured = report["measured"]
    assert measured["dispatched_bytes"] == out and measured["combined_bytes"] == back
    assert measured["collectives"]["all_to_all"]["bytes"]["total"] == far
    assert measured["collectives"]["all_to_all"]["calls"] == 2 * len(choices)
    gathered = len(choices) * (tp - 1) * (4 * tp * tp + 11 * 36 * 4) + 8 * (tp - 1) * tp
    assert measured["collectives"]["all_gather"]["bytes"]["total"] == gathered
    tokens = [np.bincount(chosen.reshape(-1), minlength=experts).tolist() for chosen in choices.values()]
    assert report["result"]["experts"]["tokens"] == tokens
    by_gpu = [np.bincount(home[chosen.reshape(-1)], minlength=tp).tolist() for chosen in choices.values()]
    assert report["result"]["experts"]["tokens_by_gpu"] == by_gpu
    shares = [max(line) / np.mean(line) for line in tokens]
    assert report["result"]["experts"]["imbalance"]["experts"] == {"mean": np.mean(shares), "worst": max(shares)}
    assert report["result"]["imbalance_of_experts"] == np.mean(shares)
    assert report["result"]["experts"]["hit_per_step"] == np.mean([np.count_nonzero(line) for line in tokens])


def test_layouts_have_the_same_tokens_and_reduce_sums_of_tokens_alone(tmp_path: Path) -> None:
    folder, tokens = random_checkpoint(OF_EIGHT["mixtral"], tmp_path, 5), []
    for layout in LAYOUTS:
        report = run_lowrank(new_gpus(2), folder, prompt_ids="1,2,3,4,5,6", max_new_tokens=4, experts=layout)
        tokens.append(report["result"]["experts"]["tokens"])
        sums = 1 if layout == "alltoall" else 2  # in a layer: of attention, and of experts
        per_token = 3 * sums * 36 * 4 * 2  # of two GPUs, each of which sends as much as it has
        assert report["measured"]["collectives"]["reduce_sum"]["bytes"]["total"] == per_token * (6 + 3)
    assert tokens[0] == tokens[1] == tokens[2]
    assert np.sum(tokens[0]) == 3 * 3 * (6 + 3)  # layers, k, tokens


@pytest.mark.mpi(ranks=[1, 2])
def test_layouts_are_set_side_by_side(comm: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`bench serve` of a mixture: each layout is what `serve` reports of it, and the ranks share them out."""
    folder = Path(comm.bcast(str(tmp_path)))
    if comm.rank == 0:
        random_checkpoint(OF_EIGHT["deepseek"], folder, 5)
    comm.Barrier()
    arguments = {"model": str(folder), "requests": 3, "prompt_tokens": "2:9", "output_tokens": "3"}
    comparison = serving.compare(comm, Console(), find_gpu("a800"), 4, True, (), arguments)
    assert [way["way"] for way in comparison["ways"]] == [*LAYOUTS]
    for way in comparison["ways"]:
        alone = run_gpus(new_gpus(4, device="a800"), folder, "serve", experts=way["way"], **{
            name: value for name, value in arguments.items() if name != "model"
        })  # fmt: skip
        assert way["result"] == alone["result"] and way["measured"] == alone["measured"]
    capsys.readouterr()
    serving.print_comparison(comparison | {"arguments": arguments})
    assert "tokens of GPUs, most over mean" in capsys.readouterr().out
    assert serving.default("llama-tiny", 0.4) == serving.DEFAULT


def test_weights_of_experts_that_are_hit_are_read_and_no_others(tmp_path: Path) -> None:
    """A token and a layer: 3 of 5 experts of 36 x 22, four matrices of attention, router and head; little else."""
    folder = random_checkpoint(OF_EIGHT["mixtral"], tmp_path, 5)
    gpus = new_gpus(1)
    run_lowrank(gpus, folder, prompt_ids="7", max_new_tokens=1, layers=1)
    traffic = gpus.mine[0].counters.memory_traffic
    wide = 3 * 36 * 22 * 4
    attention = 36 * 4 * (8 * 6 * 2 + 2 * 6 * 2)
    rest = traffic - 3 * wide - attention - 36 * 61 * 4 - 36 * 5 * 4
    assert 0 < rest < wide  # activations and norms


@dataclass
class Recorded:
    """The choices of a run with numbers, in place of drawn ones."""

    frequency: np.ndarray
    choices: list[np.ndarray]
    layers: int

    def draw(self, layer: int, step: int, tokens: int) -> np.ndarray:
        chosen = self.choices[step * self.layers + layer]
        assert len(chosen) == tokens
        return chosen


@pytest.mark.sample(3)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "capacity"), [("deepseek", None), ("mixtral", 0.5), ("qwen3-moe", 1.0)])
def test_with_the_same_choices_everything_is_counted_alike_by_shape(
    name: str, capacity: float | None, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = random_checkpoint(OF_EIGHT[name], tmp_path, 5)
    arguments = {"requests": 3, "prompt_tokens": "3:7", "output_tokens": "2:4", "capacity": capacity}
    choices: list[np.ndarray] = []

    def decide(chosen: np.ndarray, shares: np.ndarray, *more: Any) -> None:
        own(chosen, shares, *more)
        choices.append(chosen.copy())

    own = experts._decide
    monkeypatch.setattr(experts, "_decide", decide)
    run_gpus(new_gpus(1), folder, "serve", **arguments)
    monkeypatch.setattr(experts, "_decide", own)
    config = read_config(folder)
    layers = sum(isinstance(config.layer(at).mlp, Experts) for at in range(config.layers))
    assert config.moe is not None
    recorded = Recorded(np.ones((layers, config.moe.experts)), choices, layers)
    monkeypatch.setattr(mixing, "make_routing", lambda *_: recorded)
    for tp in (1, 4):
        full, none = (
            run_gpus(new_gpus(tp, payload=payload), folder, "serve", experts=layout, **arguments)
            for payload in (True, False)
        )
        assert full["measured"] == none["measured"]
        assert full["phases"] == none["phases"]
        assert full["result"] == none["result"]


# ---- in plans


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["mixtral", "deepseek", "qwen2-moe", "one", "all"])
def test_plans_give_the_references_logits_and_text(name: str, tmp_path: Path) -> None:
    """Every new token by a plan that was recorded once, with as many GPUs as experts and more."""
    folder = random_checkpoint(OF_EIGHT[name], tmp_path, 5)
    want, text = reference(folder, TOKENS), generate(read_config(folder), load_weights(folder), TOKENS[:5], 6)
    for layout, tp, scheme in (("tensor", 4, "dense"), ("replicated", 2, "base"), ("replicated", 8, "deinfer")):
        close(logits_of(new_gpus(tp, static=True), folder, scheme, TOKENS, 7, experts=layout), want)
        result = run_gpus(
            new_gpus(tp, static=True), folder, "llama", prompt_ids=",".join(map(str, TOKENS[:5])), max_new_tokens=6,
            ignore_eos=True, experts=layout,
        )["result"]  # fmt: skip
        assert result["token_ids"] == text and result["plans"] == 1


@pytest.mark.sample(3)
@pytest.mark.parametrize("layout", ["tensor", "replicated"])
@pytest.mark.parametrize(("name", "capacity"), [("deepseek", None), ("mixtral", 0.5), ("qwen3-moe", 0.7)])
def test_plans_take_and_drop_what_steps_do(name: str, capacity: float | None, layout: str, tmp_path: Path) -> None:
    """Nine sequences are ten rows of a plan: the last stands for none, has no expert and takes no place of others."""
    folder = random_checkpoint(OF_EIGHT[name], tmp_path, 5)
    arguments = {"requests": 9, "prompt_tokens": "3:7", "output_tokens": "2:5", "capacity": capacity, "experts": layout}
    eager, planned = (run_gpus(new_gpus(2, static=static), folder, "serve", **arguments) for static in (False, True))
    for key in ("tokens", "tokens_by_gpu", "imbalance", "hit_per_step"):
        assert planned["result"]["experts"][key] == eager["result"]["experts"][key]
    assert planned["measured"].get("dropped_tokens") == eager["measured"].get("dropped_tokens")
    assert (capacity is None) == ("dropped_tokens" not in planned["measured"])
    if capacity is None:  # else there is room for as many outside of a plan
        assert planned["measured"]["expert_rows"] > eager["measured"]["expert_rows"]
    used = [report["measured"]["expert_rows"] - report["measured"]["expert_padding"] for report in (eager, planned)]
    assert used[0] == used[1]


def test_a_plan_computes_all_rows_of_every_expert(tmp_path: Path) -> None:
    """Without --capacity an expert has room for all rows, one here, and weights of all 5 are read in place of 3."""
    folder, steps = random_checkpoint(OF_EIGHT["mixtral"], tmp_path, 5), 4
    arguments = {"prompt_ids": "7", "max_new_tokens": steps + 1, "ignore_eos": True, "experts": "replicated"}
    eager, planned = (
        next(
            phase for phase in run_lowrank(new_gpus(2, static=static), folder, **arguments)["phases"]
            if phase["name"] == "decode"
        )
        for static in (False, True)
    )  # fmt: skip
    assert eager["expert_rows"] == steps * 3 * 3 and planned["expert_rows"] == steps * 3 * 5
    assert planned["expert_padding"] == steps * 3 * 2
    weights = steps * 3 * 2 * (3 * 36 * 22 * 4)
    more = planned["memory_traffic"]["total"] - eager["memory_traffic"]["total"]
    assert weights < more < 1.2 * weights  # and some activations
    assert planned["flops"] > eager["flops"]


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("layout", ["tensor", "replicated"])
def test_plans_are_the_same_on_any_number_of_ranks_and_by_shape(layout: str, comm: Any, tmp_path: Path) -> None:
    folder = Path(comm.bcast(str(tmp_path)))
    if comm.rank == 0:
        random_checkpoint(OF_EIGHT["all"], folder, 5)  # every token takes all experts, drawn or chosen
    comm.Barrier()

    def outcome(where: Any) -> str:
        reports = [
            run_gpus(
                new_gpus(4, where, payload, static=True), folder, "serve", experts=layout, requests=3,
                prompt_tokens="2:9", output_tokens="3", capacity=0.75,
            )
            for payload in (True, False)
        ]  # fmt: skip
        assert all(report.pop("host")["ranks"] == where.size for report in reports)
        assert reports[0]["measured"] == reports[1]["measured"] and reports[0]["result"] == reports[1]["result"]
        return json.dumps(reports)

    assert outcome(comm) == on_one_rank(comm, outcome)


# ---- corners


def biased(folder: Path, name: str, favourite: int) -> Path:
    """A model all of whose tokens take one expert first: k is 1, and its router's row is far along every input."""
    config = OF_EIGHT[name] | {"num_experts_per_tok": 1}
    random_checkpoint(config, folder, 5)
    from safetensors.numpy import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    for key in weights:
        if key.endswith("post_attention_layernorm.weight"):
            weights[key][0] = 50
        if key.endswith(".gate.weight"):
            weights[key][:] = 0
            weights[key][favourite, 1] = 0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_tokens_to_one_expert(layout: str, tmp_path: Path) -> None:
    """A router of zeros finds all equally likely: the first expert gets every token, the others and their GPUs none."""
    folder = biased(tmp_path, "mixtral", 0)
    want = reference(folder, TOKENS)
    close(logits_of(new_gpus(4), folder, "dense", TOKENS, 8, experts=layout), want)
    result = run_lowrank(new_gpus(4), folder, prompt_ids="1,2,3,4,5,6", max_new_tokens=3, experts=layout)["result"]
    assert result["experts"]["tokens"] == [[8, 0, 0, 0, 0]] * 3
    assert result["experts"]["imbalance"]["experts"] == {"mean": 5.0, "worst": 5.0}
    assert result["experts"]["imbalance"]["gpus"]["worst"] == (1.0 if layout == "tensor" else 4.0)
    assert result["experts"]["hit_per_step"] == 1.0


def test_capacity_drops_the_same_tokens_in_every_layout_and_counts_them(tmp_path: Path) -> None:
    """All 8 tokens of a prompt want the first of 5 experts, k = 1: room is ceil(C 8 / 5)."""
    folder, texts = biased(tmp_path, "mixtral", 0), set()
    for layout in LAYOUTS:
        for capacity, room in ((0.5, 1), (1.0, 2), (2.0, 4), (5.0, 8)):
            report = run_lowrank(
                new_gpus(4), folder, prompt_ids="1,2,3,4,5,6,7,8", max_new_tokens=1, experts=layout, capacity=capacity
            )
            measured, shares = report["measured"], 4 if layout == "tensor" else 1  # of GPUs that have an expert
            assert measured.get("dropped_tokens", 0) == 3 * (8 - room)
            assert measured["expert_rows"] == 3 * shares * 5 * room
            assert measured["expert_padding"] == 3 * shares * (5 * room - room)
            assert report["result"]["experts"]["padding_share"] == 0.8
            texts.add((capacity, tuple(report["result"]["token_ids"])))
    assert len(texts) == 4  # one for each capacity


def test_room_for_all_changes_no_number(tmp_path: Path) -> None:
    folder = random_checkpoint(OF_EIGHT["deepseek"], tmp_path, 5)
    for layout in LAYOUTS:
        logits = logits_of(new_gpus(4), folder, "dense", TOKENS, 8, experts=layout, capacity=3.0)
        close(logits, reference(folder, TOKENS))


@pytest.mark.sample(1)
@pytest.mark.parametrize("scheme", [CodeScheme("milo", 3, 64, False, 3), CodeScheme("rtn", 3, 32, False, 16)])
def test_a_quantized_mixture(scheme: CodeScheme, tmp_path: Path) -> None:
    source = random_checkpoint(OF_EIGHT["qwen2-moe"], tmp_path / "plain", 5)
    folder = quantized(source, tmp_path / "model", scheme, 0.3 if scheme.method == "milo" else 0)
    want = reference(folder, TOKENS)
    for tp, layout, more in (
        (1, "tensor", {}), (4, "tensor", {}), (2, "replicated", {"unfused": True}), (8, "alltoall", {}),
    ):  # fmt: skip
        close(logits_of(new_gpus(tp), folder, "deinfer", TOKENS, 8, experts=layout, **more), want)


def test_experts_are_placed_by_frequency(tmp_path: Path) -> None:
    """Greedy: 10 and 1, 9 and 2, 8 and 3 (the lower numbers first), and no GPU gets more than its share of experts."""
    assert mixing.placed("frequency", 3, [1, 10, 9, 2, 8, 3]).tolist() == [0, 0, 1, 1, 2, 2]
    assert mixing.placed("frequency", 2, [100, 1, 1, 1]).tolist() == [0, 1, 1, 0]
    assert mixing.placed("frequency", 2, [5, 5, 5, 5]).tolist() == [0, 1, 0, 1]
    assert mixing.placed("contiguous", 3, [1] * 5).tolist() == [0, 1, 1, 2, 2]
    assert sorted(mixing.placed("frequency", 8, [3, 1, 2]).tolist()) == [0, 1, 2]
    folder = random_checkpoint(OF_EIGHT["deepseek"], tmp_path, 5)
    arguments = {"prompt_ids": ",".join(map(str, TOKENS)), "max_new_tokens": 4, "ignore_eos": True}
    first = run_lowrank(new_gpus(4), folder, experts="alltoall", **arguments)
    (tmp_path / "report.json").write_text(json.dumps(first))
    for layout in ("alltoall", "replicated"):
        spread = run_lowrank(
            new_gpus(4), folder, experts=layout, place="frequency", routing=str(tmp_path / "report.json"), **arguments
        )
        assert spread["result"]["token_ids"] == first["result"]["token_ids"]
        before, after = (report["result"]["experts"] for report in (first, spread))
        assert after["tokens"] == before["tokens"]
        assert after["imbalance"]["gpus"]["mean"] < before["imbalance"]["gpus"]["mean"]


@pytest.mark.parametrize(("name", "message", "tp", "options"), [
    ("mixtral", "has other sizes at each step; take tensor or replicated", 2, {"@static": True, "experts": "alltoall"}),
    ("mixtral", "--capacity is 0.0; it is above 0", 2, {"capacity": 0.0}),
    ("mixtral", "--capacity is 9;", 2, {"capacity": 9.0}),
    ("mixtral", "every GPU has a part of every expert", 2, {"place": "frequency"}),
    ("mixtral", "with numbers the router decides", 2, {"routing": "zipf:1"}),
    ("mixtral", "say how often experts are chosen", 2, {"place": "frequency", "experts": "alltoall"}),
    ("mixtral", "--routing-seed: nothing is drawn here", 2, {"routing_seed": 3}),
    ("mixtral", "--routing nosuch", 2, {"routing": "nosuch", "@payload": False}),
    ("deepseek", "the shared expert has 28 columns", 40, {"experts": "replicated", "@heads": 40}),
    ("mixtral", "an expert has 22 columns", 40, {"@heads": 40}),
    ("qwen3-moe", "--kv lowrank: keys are normed", 2, {"kv": "lowrank"}),
])  # fmt: skip
def test_what_cannot_be_is_refused(name: str, message: str, tp: int, options: dict[str, Any], tmp_path: Path) -> None:
    given = dict(options)
    heads = {"num_attention_heads": given.pop("@heads", 8)}
    folder = random_checkpoint(
        OF_EIGHT[name] | heads | {"intermediate_size": 22 if name == "mixtral" else 50}, tmp_path, 5
    )
    gpus = new_gpus(tp, payload=given.pop("@payload", True), static=given.pop("@static", False), link="pcie")
    with pytest.raises(UsageError, match=message) as caught:
        run_lowrank(gpus, folder, prompt_ids="1", **given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [
    {"experts": "alltoall"}, {"place": "frequency"}, {"capacity": 1.0}, {"routing": "uniform"}, {"routing_seed": 1},
])  # fmt: skip
def test_of_no_use_without_experts(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="is about the experts of a model, and this one has none"):
        run_lowrank(new_gpus(2, payload=False), "llama-tiny", prompt_ids="1", **options)


def test_experts_in_two_factors(tmp_path: Path) -> None:
    plain = random_checkpoint(OF_EIGHT["mixtral"], tmp_path / "plain", 5)
    ranks = {name: 9 for name in read_config(plain).matrices() if "experts" in name}
    folder = decompose(plain, tmp_path / "model", ranks)
    for layout in LAYOUTS:
        close(logits_of(new_gpus(2), folder, "dense", TOKENS, 8, experts=layout), reference(folder, TOKENS))
    with pytest.raises(UsageError, match="give --scheme dense"):
        run_lowrank(new_gpus(2), folder, prompt_ids="1")


# ---- by shape


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "model", ["mixtral-8x7b", "deepseek-moe-16b", "qwen1.5-moe-a2.7b", "olmoe-1b-7b", "qwen3-30b-a3b"]
)
def test_the_published_models_run_by_shape(model: str) -> None:
    arguments = {"prompt_tokens": 100, "max_new_tokens": 2, "ignore_eos": True, "layers": 4, "layers_run": 2}
    for layout in LAYOUTS if model == "deepseek-moe-16b" else LAYOUTS[2:]:
        gpus = new_gpus(4, payload=False, device="a100-40g")
        report = run_lowrank(gpus, model, experts=layout, routing="zipf:1", bits=3, **arguments)
        layers = report["result"]["experts"]["tokens"]
        config = read_config(find_model(model))
        moe = config.moe
        assert moe is not None and len(layers) == sum(moe.has_experts(at) for at in range(2))
        assert all(sum(line) == 101 * moe.top and len(line) == moe.experts for line in layers)
        assert report["kinds"]["measured.dequantized_bytes"] == "extrapolated"


def test_mixtral_in_float16_is_too_large_for_40_gb_and_in_three_bits_is_not() -> None:
    arguments = {"prompt_tokens": 16, "max_new_tokens": 2, "ignore_eos": True}
    with pytest.raises(
        LimitError,
        match=r"the limit is 42949672960 .*a100-40g.*fewer bits a weight \(meshrt quantize; by shape --bits 3\)",
    ):
        run_lowrank(new_gpus(1, payload=False, device="a100-40g"), "mixtral-8x7b", **arguments)
    gpus = new_gpus(1, payload=False, device="a100-40g")
    report = run_lowrank(gpus, "mixtral-8x7b", bits=3, **arguments)
    held = report["measured"]["memory_bytes"]["of_the_fullest"]
    assert held["codes"] == 46_439_333_888 * 7 // 16  # 3 bits, and 32 for 64 weights
    rotary = 18 * 64 * 2 * 4
    assert held["weights"] == 263_458_816 * 2 + rotary


def test_zipf_is_less_even_than_uniform() -> None:
    arguments = {"prompt_tokens": 400, "max_new_tokens": 1, "ignore_eos": True, "layers": 4, "experts": "alltoall"}
    worst = {}
    for text in ("uniform", "zipf:0.5", "zipf:1.5", "lognormal"):
        report = run_lowrank(new_gpus(8, payload=False), "deepseek-moe-16b", routing=text, **arguments)
        worst[text] = report["result"]["experts"]["imbalance"]["gpus"]["mean"]
    assert worst["uniform"] < worst["zipf:0.5"] < worst["zipf:1.5"] and worst["uniform"] < worst["lognormal"]
