"""Continuous batching over the paged cache: the same text as alone, preemption, refusal, arrival; block tables."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decomposed import decompose
from gpu_runs import new_gpus, run_lowrank, serve_all
from hypothesis import given
from hypothesis import strategies as st
from measure import on_one_rank
from test_lowrank import GQA, every_matrix, random_model

from meshrt.errors import LimitError
from meshrt.models.catalogue import find_model
from meshrt.programs.gpu.cache.pages import Pages, runs
from meshrt.programs.gpu.serving.request import BatchLimits

PROMPTS = [(5, 77, 31), (4, 90, 12, 8, 66, 41, 23, 3, 9), (1,), (60, 61, 62, 63, 64, 65), (7, 7, 7, 8)]
NEW = 11
WAYS = [
    ("dense", "dense"), ("base", "dense"), ("deinfer", "dense"), ("deinfer", "lowrank"), ("deinfer", "fused"),
    ("overlapped", "dense"), ("overlapped", "lowrank"), ("overlapped", "fused"),
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("model"), GQA)


@pytest.fixture(scope="module")
def alone(model: Path) -> list[list[int]]:
    """What each prompt gets by itself, from the undecomposed scheme on one GPU."""
    return [serve_all(new_gpus(1), model, "dense", [prompt], NEW)[0][0].new for prompt in PROMPTS]


@pytest.mark.sample(4)
@pytest.mark.parametrize("static", [False, True], ids=["eager", "static"])
@pytest.mark.parametrize(("scheme", "kv"), WAYS)
def test_requests_together_get_what_each_gets_alone(
    model: Path, alone: list[list[int]], scheme: str, kv: str, static: bool
) -> None:
    for tp in (1, 8):
        requests, _ = serve_all(new_gpus(tp, static=static), model, scheme, PROMPTS, NEW, kv)
        assert [request.new for request in requests] == alone


@pytest.mark.sample(3)
@pytest.mark.parametrize("static", [False, True], ids=["eager", "static"])
@pytest.mark.parametrize("kv", ["dense", "lowrank", "fused"])
def test_who_runs_out_of_blocks_waits_and_finishes_with_the_same_text(
    model: Path, alone: list[list[int]], kv: str, static: bool
) -> None:
    """20 tokens at most need 5 blocks of 4; with 6 blocks the five requests cannot run together."""
    requests, steps = serve_all(
        new_gpus(2, static=static), model, "deinfer", PROMPTS, NEW, kv, kv_blocks=6
    )  # fmt: skip
    assert sum(request.preemptions for request in requests) > 0
    assert [request.new for request in requests] == alone
    assert len(steps.cache.pages.free) == 6 and not steps.cache.pages.tables


def test_a_request_that_can_never_fit_is_refused(model: Path) -> None:
    with pytest.raises(
        LimitError, match="request 1 needs 5 blocks of 4 tokens, and the cache has 4: raise --kv-blocks"
    ):
        serve_all(new_gpus(2), model, "deinfer", PROMPTS, NEW, kv_blocks=4)


def test_a_batch_has_so_many_requests_and_no_more(model: Path, alone: list[list[int]]) -> None:
    requests, _ = serve_all(new_gpus(2), model, "deinfer", PROMPTS, NEW, limits=BatchLimits(batch=2))
    assert [request.new for request in requests] == alone
    first = [request.times[0] for request in requests]
    assert len(set(first[:2])) == 1 and first[2] > min(requests[0].times[-1], requests[1].times[-1])


def test_requests_are_served_when_they_arrive(model: Path, alone: list[list[int]]) -> None:
    """The second arrives long after the first is done; the third while the second runs and joins it."""
    requests, _ = serve_all(
        new_gpus(2), model, "deinfer", PROMPTS[:3], NEW, arrivals=[0.0, 1.0, 1.0 + 1e-3]
    )  # fmt: skip
    assert [request.new for request in requests] == alone[:3]
    assert requests[0].times[-1] < 1.0 < requests[1].times[0] < 1.1
    assert requests[2].times[0] < requests[1].times[-1]


def test_prompts_from_a_file_are_served_together(tmp_path: Path) -> None:
    source = find_model("llama-tiny")
    folder = decompose(source, tmp_path / "model", every_matrix(source, 0.9))
    lines = ["Once upon a time", "One day, a dog", "The little girl went to the"]
    (tmp_path / "prompts").write_text("\n".join(lines) + "\n\n")
    result = run_lowrank(new_gpus(2), folder, prompts=str(tmp_path / "prompts"), max_new_tokens=10)["result"]
    singly = [run_lowrank(new_gpus(2), folder, prompt=line, max_new_tokens=10)["result"] for line in lines]
    assert [request["text"] for request in result["requests"]] == [result["text"] for result in singly]


@pytest.mark.mpi(ranks=[2, 4])
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("scheme", "kv", "static"), [("base", "dense", False), ("deinfer", "lowrank", True), ("overlapped", "fused", True)]
)
def test_ranks_take_the_same_decisions(comm: Any, scheme: str, kv: str, static: bool, tmp_path: Path) -> None:
    """Who runs out of blocks, is preempted and computed anew: on every rank the same, at the same times as in one
    process, and with the text that each request has with room for all."""
    folder = Path(comm.bcast(str(tmp_path)))
    if comm.rank == 0:
        random_model(folder, GQA)
    comm.Barrier()

    def served(where: Any, blocks: int | None) -> list[tuple[Any, Any, int]]:
        requests, _ = serve_all(
            new_gpus(4, where, static=static), folder / "model", scheme, PROMPTS, NEW, kv, kv_blocks=blocks,
            arrivals=[0.0, 1e-4, 2e-4, 1e-3, 2e-3],
        )  # fmt: skip
        return [(request.new, request.times, request.preemptions) for request in requests]

    together = served(comm, 5)
    roomy, alone = on_one_rank(comm, lambda ranks: [served(ranks, blocks) for blocks in (None, 5)])
    assert alone == together
    assert [new for new, _, _ in roomy] == [new for new, _, _ in together]
    assert sum(count for _, _, count in together) > 0 == sum(count for _, _, count in roomy)


def test_what_does_not_fit_in_memory_is_refused(model: Path) -> None:
    with pytest.raises(LimitError, match="GPU 0: 'weights' asks for"):
        serve_all(new_gpus(1, memory_bytes=10_000), model, "deinfer", PROMPTS, NEW)
    gpus = new_gpus(1)
    serve_all(gpus, model, "deinfer", PROMPTS, NEW)
    weights = gpus.mine[0].memory.names["weights"]
    with pytest.raises(LimitError, match="of weights leave no room for a cache"):
        serve_all(new_gpus(1, memory_bytes=weights + 1000), model, "deinfer", PROMPTS, NEW)


def test_memory_decides_how_many_requests_run(model: Path, alone: list[list[int]]) -> None:
    """With memory for some blocks only, there are fewer of them than are needed, and all requests are served."""
    prompts, new, limits = PROMPTS[2:], 5, BatchLimits(prefill_tokens=8)
    gpus = new_gpus(1)
    _, steps = serve_all(gpus, model, "deinfer", prompts, new)
    needed, names = steps.cache.pages.blocks, gpus.mine[0].memory.names
    block = names["cache"] // (needed + 1)
    small = new_gpus(1, memory_bytes=int((names["weights"] + 5 * block) / 0.9) + 1)
    requests, steps = serve_all(small, model, "deinfer", prompts, new, limits=limits)
    assert steps.cache.pages.blocks == 4 < needed
    assert [request.new for request in requests] == [ids[:new] for ids in alone[2:]]
    assert small.mine[0].memory.peak <= small.device.memory_bytes


def test_the_same_blocks_of_other_sequences(model: Path, alone: list[list[int]]) -> None:
    """A plan that saw blocks 1, 2, 3 as a sequence of two blocks and one of one may next see them the other way."""
    for blocks in (5, 6, 7):
        requests, _ = serve_all(
            new_gpus(1, static=True), model, "deinfer", PROMPTS, NEW, "lowrank", kv_blocks=blocks,
            arrivals=[0.0, 1e-4, 2e-4, 1e-3, 2e-3],
        )  # fmt: skip
        assert [request.new for request in requests] == alone


@pytest.mark.parametrize("size", [1, 3, 16])
def test_the_size_of_a_block_changes_no_text(model: Path, alone: list[list[int]], size: int) -> None:
    for kv in ("dense", "lowrank", "fused"):
        requests, _ = serve_all(new_gpus(2), model, "deinfer", PROMPTS, NEW, kv, block_size=size)
        assert [request.new for request in requests] == alone


def test_blocks_that_lie_together_are_copied_together(model: Path) -> None:
    """One sequence of 20 tokens in fresh blocks of 4: each layer copies K and V in one run each, of up to 5 blocks."""
    gpus = new_gpus(1)
    serve_all(gpus, model, "deinfer", [PROMPTS[1]], NEW, "lowrank")
    blocks = sum(-(-(9 + at) // 4) for at in range(1, NEW))
    tally, layers = gpus.mine[0].counters.tally, 2
    assert tally["cache_blocks"] == 2 * layers * blocks
    assert tally["cache_runs"] == 2 * layers * (NEW - 1)


# ---- block tables


@given(st.lists(st.integers(0, 60), max_size=30))
def test_runs_are_the_blocks_again(blocks: list[int]) -> None:
    stretches = runs(blocks)
    assert [block + at for _, block, count in stretches for at in range(count)] == blocks
    assert [place for place, _, _ in stretches] == [*np.cumsum([0, *(count for _, _, count in stretches)])][
        : len(stretches)
    ]
    for (_, block, count), (_, after, _) in pairwise(stretches):
        assert after != block + count


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), max_size=40))
def test_pages_are_never_shared_and_never_lost(size: int, lengths_wanted: list[tuple[int, int]]) -> None:
    """Sequences grow (tokens > 0) or leave (0), as long as there is room."""
    pages = Pages(12, size)
    lengths: dict[int, int] = {}
    for sequence, tokens in lengths_wanted:
        if tokens == 0 and sequence in lengths:
            pages.release(sequence)
            lengths.pop(sequence)
        elif tokens:
            length = max(lengths.get(sequence, 0), tokens)
            missing = pages.needed(length) - len(pages.tables.get(sequence, []))
            free = len(pages.free)
            assert pages.reserve(sequence, length) == (missing <= free)
            if missing <= free:
                lengths[sequence] = length
        held = [block for table in pages.tables.values() for block in table]
        assert sorted([*held, *pages.free]) == [*range(1, 13)]
        slots = [pages.slot(holder, at) for holder, length in lengths.items() for at in range(length)]
        assert len(set(slots)) == len(slots) and all(slot >= size for slot in slots)
