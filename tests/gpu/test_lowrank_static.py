"""Plans: recorded once, replayed with other tokens; they allocate nothing, and give and count what eager steps do."""

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_runs import logits_of, new_gpus, run_lowrank, serve_all
from hypothesis import given
from hypothesis import strategies as st
from test_lowrank import GQA, IDS, random_model

from meshrt.models.family import read_family
from meshrt.programs.gpu.batches.prompts import Tokens
from meshrt.programs.gpu.opening import open_model, open_weights
from meshrt.programs.gpu.serving.request import Request
from meshrt.programs.gpu.steps import PLANS, CacheSteps, rounded

WAYS = [
    ("dense", "dense"), ("base", "dense"), ("deinfer", "dense"), ("deinfer", "lowrank"), ("deinfer", "fused"),
    ("overlapped", "dense"), ("overlapped", "lowrank"), ("overlapped", "fused"),
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("model"), GQA | {"hidden_size": 256, "head_dim": 32})


def warm_steps(
    model: Path, tp: int, scheme: str, kv: str, sequences: int, comm: Any = None, **options: Any
) -> tuple[CacheSteps, list[Tokens]]:
    """Static steps with a plan for so many sequences, which was replayed already."""
    family, gpus = read_family(model, quantized=True), new_gpus(tp, comm, static=True)
    requests = [Request(at, (1, 2, 3, 4, 5, at), 20) for at in range(sequences)]
    source = open_weights(gpus, model, family)
    steps = open_model(gpus, family, source, scheme, kv, requests, block_size=4, **options)
    for request in requests:
        steps.cache.pages.reserve(request.number, 20)
    steps.prompts([request.tokens() for request in requests])
    batch = [Tokens(request.number, [*request.prompt, 7]) for request in requests]
    steps.new_tokens(batch)
    return steps, batch


def taken(replay: Callable[[], None]) -> tuple[int, int]:
    """Bytes more in use after ten replays, and the most while they ran: the least of three times, or of two alike.

    Threads of pytest's workers take memory, too, now and then; a replay would take it each time.
    """
    first, second = taken_once(replay), taken_once(replay)
    if first == second:
        return first
    grown, peaks = zip(first, second, taken_once(replay), strict=True)
    return min(grown), min(peaks)


def taken_once(replay: Callable[[], None]) -> tuple[int, int]:
    replay()
    gc.disable()  # what it would free would count as a replay's
    try:
        tracemalloc.start()
        replay()
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for _ in range(10):
            replay()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    return after - before, peak - before


@pytest.mark.sample(3)
@pytest.mark.parametrize(("scheme", "kv"), WAYS)
@pytest.mark.parametrize("tp", [1, 4])
def test_a_replay_allocates_nothing(model: Path, tp: int, scheme: str, kv: str) -> None:
    """Afterwards no more memory is in use, but for counters that have grown to larger integers. Meanwhile NumPy's
    iterators take some for themselves: as much for 96 sequences as for 12, so none of it is an array of theirs."""
    peaks = []
    for sequences in (12, 96):
        steps, batch = warm_steps(model, tp, scheme, kv, sequences)
        (recorded,) = steps.plans.values()
        recorded.batch.load(batch)
        grown, peak = taken(recorded.plan.replay)
        assert grown < 512
        peaks.append(peak)
    assert max(peaks) < min(peaks) + 1024 < 8192


@pytest.mark.mpi(ranks=[2])
def test_a_replay_over_ranks_allocates_nothing(comm: Any, tmp_path: Path) -> None:
    """Nor do messages: their buffers and requests are the plan's."""
    folder = Path(comm.bcast(str(tmp_path)))
    if comm.rank == 0:
        random_model(folder, GQA)
    comm.Barrier()
    peaks = []
    for sequences in (12, 96):
        steps, _ = warm_steps(folder / "model", 4, "deinfer", "lowrank", sequences, comm)
        (recorded,) = steps.plans.values()
        grown, peak = taken(recorded.plan.replay)
        assert grown < 512
        peaks.append(peak)
        steps.close()
    assert max(peaks) < min(peaks) + 1024 < 8192


def test_eager_steps_do_allocate(model: Path) -> None:
    """The measure measures: the same step without a plan takes far more."""
    steps, batch = warm_steps(model, 1, "deinfer", "dense", 48)
    steps.gpus.static = False
    tracemalloc.start()
    steps.new_tokens(batch)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak > 100_000


@pytest.mark.sample(4)
@pytest.mark.parametrize(("scheme", "kv"), WAYS)
def test_plans_give_the_eager_logits(model: Path, scheme: str, kv: str) -> None:
    logits = [logits_of(new_gpus(4, static=static), model, scheme, IDS, 3, kv) for static in (False, True)]
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-5)


def test_one_plan_serves_many_steps(model: Path) -> None:
    """One sequence, blocks of 16: 30 steps in one to two blocks need two plans, each launched as one graph a step."""
    report = run_lowrank(
        new_gpus(2, static=True), model, prompt_ids="1,2,3", max_new_tokens=25, ignore_eos=True
    )  # fmt: skip
    assert report["result"]["plans"] == 2
    decode = report["phases"][1]
    assert decode["graph_launches"] == 24
    eager = run_lowrank(new_gpus(2), model, prompt_ids="1,2,3", max_new_tokens=25, ignore_eos=True)
    assert eager["result"]["token_ids"] == report["result"]["token_ids"]
    assert eager["phases"][1]["launches"] == decode["launches"]
    assert eager["phases"][1]["graph_launches"] == 0
    assert eager["measured"]["collectives"] == report["measured"]["collectives"]
    assert decode["critical_path"]["seconds"] < eager["phases"][1]["critical_path"]["seconds"]


def test_old_plans_are_given_up(model: Path) -> None:
    """More sizes of batches than plans are kept: all buffers of those that are gone are free again."""
    gpus = new_gpus(2, static=True)
    prompts = [(1, at) for at in range(12)]
    _, steps = serve_all(gpus, model, "deinfer", prompts, 60, arrivals=[1e-3 * at for at in range(12)])
    assert steps.recorded > PLANS == len(steps.plans)
    steps.close()
    for gpu in gpus.mine:
        assert gpu.memory.used == sum(gpu.memory.names[name] for name in ("weights", "cache"))


@given(st.integers(1, 10**6))
def test_sizes_are_rounded_up_by_a_quarter_at_most(count: int) -> None:
    assert count <= rounded(count) <= 1.25 * count
    assert rounded(rounded(count)) == rounded(count)
