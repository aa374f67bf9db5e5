"""Collectives beside kernels, and a low-rank cache that one kernel rebuilds: the same numbers and bytes, less time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_runs import logits_of, new_gpus, run_lowrank
from test_lowrank import GQA, close, random_model, reference

from meshrt.errors import UsageError
from meshrt.gpu.beside import begin, finish
from meshrt.gpu.gpu import Cost
from meshrt.programs.gpu.schemes.overlapped import HALVES

LONG = [1 + at * 7 % 89 for at in range(HALVES + 3)]
SHAPE: dict[str, Any] = {"ratio": 0.4, "layers": 4, "prompt_tokens": 4096, "max_new_tokens": 6}


@pytest.mark.sample(2)
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_a_prompt_in_two_halves_gets_the_references_logits(tp: int, tmp_path: Path) -> None:
    folder = random_model(tmp_path, GQA | {"max_position_embeddings": 512})
    for prompt in (HALVES - 1, HALVES, HALVES + 1):
        close(logits_of(new_gpus(tp), folder, "overlapped", LONG, prompt, "fused"), reference(folder, LONG))


def launched(gpus: Any, seconds: float) -> None:
    for gpu in gpus.mine:
        gpu.launch(lambda out: None, np.zeros(1), cost=Cost(gpu.device, 0, 0, seconds=seconds))


@pytest.mark.parametrize("seconds", [0.0, 1e-6, 1.0])
@pytest.mark.parametrize("static", [False, True], ids=["eager", "static"])
def test_kernels_go_on_until_the_results_are_wanted(seconds: float, static: bool) -> None:
    """What a collective of t seconds hides is what kernels took meanwhile, t at most; without it times add up."""
    gpus = new_gpus(2, static=static, launch_seconds=1e-15, graph_launch_seconds=1e-15, kernel_seconds=1e-15)
    parts, outs = ([np.full((4, 4), float(at + 1), np.float32) for at in range(2)] for _ in range(2))

    def run() -> None:
        pending = begin(gpus, "reduce_sum", parts, outs)
        launched(gpus, seconds)
        finish(gpus, pending)

    if static:
        with gpus.recording("plan") as plan:
            run()
        plan.replay()
        plan.close()
    else:
        run()
    assert all((out == 3).all() for out in outs)
    for gpu in gpus.mine:
        took, hidden = gpu.counters.collective_seconds, gpu.counters.hidden_seconds
        assert gpu.now == pytest.approx(max(took, seconds))
        assert hidden == pytest.approx(min(took, seconds))
        assert took + gpu.counters.compute_seconds - hidden == pytest.approx(gpu.now)
    assert hidden < took or seconds == 1


def test_where_kernels_wait_for_the_host_nothing_is_hidden() -> None:
    """A sum that takes less than the launch of what is to go on beside it is over by then."""
    gpus = new_gpus(2, launch_seconds=1.0)
    parts, outs = ([np.zeros((64, 64), np.float32) for _ in range(2)] for _ in range(2))
    pending = begin(gpus, "reduce_sum", parts, outs)
    launched(gpus, 2e-6)
    launched(gpus, 2e-6)
    finish(gpus, pending)
    for gpu in gpus.mine:
        assert gpu.counters.hidden_seconds == 0 < gpu.counters.collective_seconds < 1
        assert gpu.counters.compute_seconds == 4e-6 and not gpu.under_way


def test_collectives_on_the_second_stream_come_one_after_the_other() -> None:
    gpus = new_gpus(2)
    zeros = [[np.zeros((4, 4), np.float32) for _ in range(2)] for _ in range(4)]
    first, second = begin(gpus, "reduce_sum", *zeros[:2]), begin(gpus, "reduce_sum", *zeros[2:])
    assert all(begun >= ended for begun, ended in zip(second.begins, first.ends, strict=True))
    assert all(gpu.now == 0 for gpu in gpus.mine)
    finish(gpus, second)
    assert [gpu.now for gpu in gpus.mine] == second.ends


@pytest.mark.sample(6)
@pytest.mark.parametrize("static", [False, True], ids=["eager", "static"])
@pytest.mark.parametrize("link", ["nvlink", "pcie"])
@pytest.mark.parametrize("kv", ["dense", "lowrank", "fused"])
def test_the_same_bytes_take_less_time(kv: str, link: str, static: bool) -> None:
    """With a long prompt: on 8 GPUs over PCIe the halves of 1,024 tokens take longer, being more messages."""
    apart, beside = (
        run_lowrank(
            new_gpus(8, payload=False, static=static, link=link), "llama3-8b", scheme=scheme, kv=kv, **SHAPE
        )["phases"]
        for scheme in ("deinfer", "overlapped")
    )  # fmt: skip
    for phase, other in zip(apart, beside, strict=True):
        assert phase["link_bytes"] == other["link_bytes"]
        assert phase["hidden_seconds"] == 0
        assert 0 <= other["hidden_seconds"] <= other["collective_seconds"]
    assert beside[0]["critical_path"]["seconds"] < apart[0]["critical_path"]["seconds"]
    hides = kv != "dense"  # of a new token's kernels only what is rebuilt needs nothing of the others
    assert (beside[1]["hidden_seconds"] > 0) == hides
    if not hides:
        assert beside[1]["critical_path"] == pytest.approx(apart[1]["critical_path"], rel=1e-9)


def test_one_kernel_in_place_of_three_moves_latents_once() -> None:
    """Of S places, in numbers: S r read and S r written for the copy, S w read and S w written to turn keys."""
    decodes = [
        run_lowrank(new_gpus(1, payload=False), "llama3-8b", kv=kv, **SHAPE)["phases"][1] for kv in ("lowrank", "fused")
    ]
    layers, ranks, width = SHAPE["layers"], 614 + 614, 1024
    steps = SHAPE["max_new_tokens"] - 1
    places = steps * -(-(SHAPE["prompt_tokens"] + 1) // 16) * 16  # whole blocks; 4,097 to 4,101 tokens
    moved = layers * places * 2 * (2 * ranks + 2 * width)
    assert decodes[0]["memory_traffic"]["total"] - decodes[1]["memory_traffic"]["total"] == moved
    assert decodes[0]["launches"] - decodes[1]["launches"] == 2 * layers * steps
    for key in ("flops", "cache_runs", "cache_blocks", "attention_heads", "link_bytes"):
        assert decodes[0][key] == decodes[1][key]
    assert decodes[1]["critical_path"]["seconds"] < decodes[0]["critical_path"]["seconds"]


@pytest.mark.parametrize("scheme", ["dense", "base"])
def test_schemes_without_whole_latents_refuse_to_rebuild_them(scheme: str) -> None:
    with pytest.raises(UsageError, match=r"--kv fused needs --scheme deinfer or overlapped"):
        run_lowrank(new_gpus(2, payload=False), "llama3-8b", scheme=scheme, kv="fused", **SHAPE)
