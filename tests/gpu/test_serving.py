"""Schedulers: parts of prompts, kept prefixes, priorities, preemption; the same text as alone, every token once.

The figures of `vllm bench serve`, traces, closed loops, loads above capacity."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gpu_runs import how_of, new_gpus, run_gpus, serve_all
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import random_checkpoint
from test_experts import OF_EIGHT
from test_lowrank import GQA, random_model
from test_quantized import FORMS, ODD, quantized
from tiers import examples

from meshrt.errors import UsageError
from meshrt.models.catalogue import find_model
from meshrt.models.config import read_config
from meshrt.models.errors import ModelError
from meshrt.models.family import read_family
from meshrt.models.reference import generate, load_weights
from meshrt.programs.gpu.batches.prompts import Tokens
from meshrt.programs.gpu.cache.pages import Pages
from meshrt.programs.gpu.experts.mixing import mixing_of
from meshrt.programs.gpu.quantizing import hold_of
from meshrt.programs.gpu.serving.batching import serve
from meshrt.programs.gpu.serving.load import Arrivals, random_requests, ranged
from meshrt.programs.gpu.serving.metrics import lock_step, parse_goodput, parse_percentiles, vllm_figures, wait_growth
from meshrt.programs.gpu.serving.request import BatchLimits, Request
from meshrt.programs.gpu.serving.traces import read_trace

SAME = (11, 45, 3, 28, 60, 9, 17)  # a beginning that some prompts share: one block of 4, and more
PROMPTS = [(*SAME, 5, 77, 31), (*SAME, 4, 90, 12, 8, 66), (1,), SAME, (*SAME, 5, 77, 2, 2), (7, 7, 7, 8)]
NEW = 9
SOON = [0.0, 1e-4, 2e-4, 1e-3, 2e-3, 2e-3]
WAYS = [
    ("dense", "dense"), ("base", "dense"), ("deinfer", "dense"), ("deinfer", "lowrank"), ("overlapped", "fused"),
]  # fmt: skip
SCHEDULES: dict[str, tuple[BatchLimits, dict[str, Any]]] = {
    "parts": (BatchLimits(prefill_tokens=5, chunked=True), {}),
    "prefixes": (BatchLimits(), {"keeps": True}),
    "swap": (BatchLimits(swap=True), {"kv_blocks": 6}),
    "all": (BatchLimits(prefill_tokens=4, chunked=True, swap=True), {"kv_blocks": 6, "keeps": True}),
    "recompute": (BatchLimits(prefill_tokens=3, chunked=True), {"kv_blocks": 6, "keeps": True}),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("model"), GQA)


@pytest.fixture(scope="module")
def alone(model: Path) -> list[list[int]]:
    return [serve_all(new_gpus(1), model, "dense", [prompt], NEW)[0][0].new for prompt in PROMPTS]


def conserved(requests: list[Request], computed: int) -> None:
    """All tokens but the last of each request were computed or found in the cache once, the discarded again."""
    needed = sum(len(request) - 1 + request.discarded for request in requests)
    assert computed + sum(request.hit for request in requests) == needed


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize("payload", [True, False])
def test_who_finds_no_room_in_the_hosts_memory_is_computed_anew(comm: Any, payload: bool) -> None:
    """A token of llama-tiny has a key and a value of the GPU's heads in every layer; blocks go out whole."""
    arguments: dict[str, Any] = {
        "requests": 6, "prompt_tokens": "9:20", "output_tokens": "12:24", "block_size": 4, "kv_blocks": 24,
        "preemption": "swap", "scheme": "dense",
    }  # fmt: skip
    family = read_family(find_model("llama-tiny"))
    item = {"float32": 4, "float16": 2, "bfloat16": 2}[family.dtype]
    block = 4 * 2 * len(family.layers) * family.kv_heads // 2 * family.head_dim * item

    def run(**more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        report = run_gpus(new_gpus(2, comm, payload), "llama-tiny", "serve", **arguments | more)
        return report["result"], report["result"]["host_memory"] | {
            "swapped": report["measured"].get("swapped_bytes", 0)
        }

    free, room = run()
    assert room["limit"] == 4 * 2**30 and room["full"] == 0 and room["max"] % block == 0
    assert free["preemptions"] > 0 and free["tokens_discarded"] == 0
    partly, held = run(swap_space=room["max"] - block)
    assert held["full"] > 0 and room["max"] - block >= held["max"] > 0 and partly["tokens_discarded"] > 0
    none, nothing = run(swap_space=0)
    assert nothing == {"max": 0, "limit": 0, "full": none["preemptions"], "swapped": 0}
    anew = run_gpus(new_gpus(2, comm, payload), "llama-tiny", "serve", **arguments | {"preemption": "recompute"})[
        "result"
    ]
    for name in ("tokens_discarded", "tokens_computed", "ttft_ms", "e2el_ms", "preemptions"):
        assert none[name] == anew[name]


@pytest.mark.parametrize(("tp", "layers"), [(1, 1), (2, 2)])
def test_layers_that_do_not_run_are_swapped_launch_by_launch(tp: int, layers: int) -> None:
    """The last that ran had all of their bytes in its own two launches."""

    def run(layers_run: int) -> tuple[dict[str, Any], dict[str, Any]]:
        report = run_gpus(
            new_gpus(tp, payload=False), "llama-tiny", "serve", requests=6, kv_blocks=12, preemption="swap",
            block_size=8, layers_run=layers_run,
        )  # fmt: skip
        swap = next(phase for phase in report["phases"] if phase["name"] == "swap")
        return swap, report["result"]["host_memory"]

    (every, room), (sampled, same) = run(4), run(layers)
    assert room == same and room["max"] > 0
    for name in ("launches", "memory_traffic", "swapped_bytes"):
        assert sampled[name] == every[name] and every[name]
    for name in ("compute_seconds", "critical_path"):
        assert sampled[name] == pytest.approx(every[name], rel=1e-9)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("scheme", "kv"), [*WAYS, ("overlapped", "dense")])
def test_a_step_by_shape_that_was_counted_by_an_equal_one_counts_the_same(
    model: Path, scheme: str, kv: str, name: str
) -> None:
    limits, options = SCHEDULES[name]
    runs = []
    for payload in (True, False):
        gpus = new_gpus(2, payload=payload)
        requests, steps = serve_all(gpus, model, scheme, PROMPTS, NEW, kv, limits, SOON, **options)
        gpu_states = [(gpu.counters, gpu.now, gpu.host_clock, gpu.memory) for gpu in gpus.mine]
        phases = {name: (phase.seconds, phase.numbers) for name, phase in gpus.phases.items()}
        runs.append(([request.times for request in requests], str(gpu_states), str(gpus.group.traffic), phases))
        if not payload and kv == "dense":
            ends = {time for request in requests for time in request.times}
            assert 0 < len(steps.noted) < len(ends)  # of the steps that ended in a token, some were alike
    assert runs[0] == runs[1]


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("scheme", "kv"), WAYS)
def test_every_schedule_gives_the_text_of_each_alone(
    model: Path, alone: list[list[int]], scheme: str, kv: str, name: str
) -> None:
    limits, options = SCHEDULES[name]
    for static in (False, True):
        requests, steps = serve_all(
            new_gpus(2, static=static), model, scheme, PROMPTS, NEW, kv, limits, SOON, **options
        )
        assert [request.new for request in requests] == alone
        conserved(requests, steps.computed)
        assert (sum(request.preemptions for request in requests) > 0) == ("kv_blocks" in options)
        assert "keeps" not in options or name != "prefixes" or sum(request.hit for request in requests) > 0
        if limits.swap:
            assert steps.gpus.mine[0].counters.tally["swapped_bytes"] > 0
            assert not steps.swapped and not any(request.discarded for request in requests)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["experts", "codes"])
def test_experts_and_codes_say_the_references_text(kind: str, tmp_path: Path) -> None:
    if kind == "experts":
        folder = random_checkpoint(OF_EIGHT["deepseek"], tmp_path, 5)
    else:
        folder = quantized(random_checkpoint(ODD, tmp_path / "plain", 5), tmp_path / "codes", *FORMS["milo3"])
    prompts = [tuple(token % 61 for token in prompt) for prompt in PROMPTS]
    config, weights = read_config(folder, quantized=True), load_weights(folder)
    want = [generate(config, weights, [*prompt], 5) for prompt in prompts]
    for limits, options in SCHEDULES.values():
        gpus, family, how = new_gpus(2), read_family(folder, quantized=True), how_of(scheme="dense")
        hold, mixing = hold_of(family, how), mixing_of(gpus, family, how)
        requests, _ = serve_all(
            gpus, folder, "dense", prompts, 5, "dense", limits, SOON, hold=hold, mixing=mixing, **options
        )
        assert [request.new for request in requests] == want


@pytest.mark.mpi(ranks=[2, 4])
def test_the_same_on_any_number_of_ranks(comm: Any, tmp_path: Path) -> None:
    from mpi4py import MPI

    folder = Path(comm.bcast(str(tmp_path)))
    if comm.rank == 0:
        random_model(folder, GQA)
    comm.Barrier()
    arguments = {
        "scheme": "deinfer", "kv": "lowrank", "requests": 6, "prompt_tokens": "9", "output_tokens": "7", "rate": 5000.0,
        "random_prefix_len": 5, "block_size": 4, "kv_blocks": 9, "max_prefill_tokens": 6, "chunked_prefill": True,
        "prefix_caching": True, "preemption": "swap", "priorities": 2, "num_warmups": 1, "max_concurrency": 4,
    }  # fmt: skip
    reports = [run_gpus(new_gpus(4, where), folder / "model", "serve", **arguments) for where in (MPI.COMM_SELF, comm)]
    assert {**reports[0], "host": 0} == {**reports[1], "host": 0}
    assert reports[0]["result"]["preemptions"] > 0 < reports[0]["result"]["tokens_hit"]


# ---- any schedule


@dataclass
class Shadow:
    """Stands for steps over a cache: each slot has the tokens that were computed into it, and all before them."""

    pages: Pages
    host: int = 1000  # tokens that its memory has room for
    swapped: dict[int, list[Any]] = field(default_factory=dict)
    slots: dict[int, tuple[int, ...]] = field(default_factory=dict)
    computed: list[tuple[int, int]] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.cache = SimpleNamespace(pages=self.pages)
        device, console = SimpleNamespace(step_seconds=0.0), SimpleNamespace(progress=lambda *_: None)
        self.gpus = SimpleNamespace(
            device=device, console=console, meet=lambda: self.now,
            wait_until=lambda time: setattr(self, "now", max(self.now, time)),
        )  # fmt: skip

    def run(self, sequences: list[Tokens]) -> list[int]:
        assert sequences
        for sequence in sequences:
            slots = self.pages.slots_of(sequence.number, 0, len(sequence.tokens)).tolist()
            for at, slot in enumerate(slots):
                prefix = tuple(sequence.tokens[: at + 1])
                if at >= sequence.begin:
                    self.slots[slot] = prefix
                    self.computed.append((sequence.number, at))
                assert self.slots[slot] == prefix, "what is read is another's"
        self.now += 1 + sum(len(sequence.tokens) - sequence.begin for sequence in sequences) / 64
        return [len(sequence.tokens) * 7 % 5 for sequence in sequences]

    def swap_out(self, number: int, tokens: int) -> bool:
        if sum(map(len, self.swapped.values())) + tokens > self.host:
            return False
        self.swapped[number] = [self.slots[slot] for slot in self.pages.slots_of(number, 0, tokens).tolist()]
        return True

    def swap_in(self, number: int) -> None:
        kept = self.swapped.pop(number)
        for slot, prefix in zip(self.pages.slots_of(number, 0, len(kept)).tolist(), kept, strict=True):
            self.slots[slot] = prefix


calls = st.tuples(st.integers(0, 20), st.integers(1, 12), st.integers(1, 8), st.integers(0, 2), st.integers(0, 2))


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(calls, min_size=1, max_size=9), st.integers(1, 4), st.integers(0, 9), st.integers(1, 6),
    st.integers(1, 9), st.booleans(), st.booleans(), st.sampled_from([0, 7, 1000]), st.none() | st.integers(1, 4),
)  # fmt: skip
def test_every_token_is_computed_or_hit_once(
    drawn: list[tuple[int, int, int, int, int]], size: int, more: int, batch: int, tokens: int, chunked: bool,
    keeps: bool, swap: int, concurrency: int | None,
) -> None:  # fmt: skip
    """Of requests that begin alike, in any blocks, batches and orders; `swap` tokens have room in the host's memory."""
    requests = [
        Request(at, tuple([which] * (length // 2) + [1, 2, 3, 1, 2, 3][: length - length // 2]), limit, arrival / 2,
                priority=priority)
        for at, (arrival, length, limit, priority, which) in enumerate(drawn)
    ]  # fmt: skip
    least = max(-(-(len(request.prompt) + request.limit) // size) for request in requests)
    steps = Shadow(Pages(least + more, size, keeps), swap)
    limits = BatchLimits(batch, tokens, chunked, concurrency, swap > 0)
    serve(steps, requests, limits)
    assert all(len(request.new) == request.limit for request in requests)
    conserved(requests, len(steps.computed))
    for request in requests:
        positions = [at for number, at in steps.computed if number == request.number]
        if not request.preemptions:
            assert positions == [*range(request.hit, len(request) - 1)]
        assert {*positions} <= {*range(len(request) - 1)}
    assert keeps or not any(request.hit for request in requests)
    assert sorted([*steps.pages.free, *steps.pages.idle]) == [*range(1, least + more + 1)]
    assert not steps.pages.tables and not steps.pages.owners and not steps.swapped
    if concurrency is not None:
        for request in requests:
            assert request.sent is not None and request.sent >= request.arrival
            others = [each for each in requests if each.begin <= request.begin < each.times[-1]]
            assert len(others) <= concurrency


def test_who_comes_first_is_served_first_of_its_priority() -> None:
    """One at a time; while the first runs, three come."""
    requests = [Request(at, (at, at), 3, float(at), priority=priority) for at, priority in enumerate((1, 1, 0, 1))]
    steps = Shadow(Pages(9, 4))
    serve(steps, requests, BatchLimits(batch=1))
    ends = [request.times[-1] for request in requests]
    assert ends[2] < ends[0] < ends[1] < ends[3]  # it is even preempted for one of a better priority
    assert [request.preemptions for request in requests] == [1, 0, 0, 0]


# ---- figures


def test_figures_have_the_names_and_definitions_of_vllm() -> None:
    """Sent at 1 and 2 s of a benchmark that began at 1; tokens at 2, 3, 5 s and at 4 s."""
    first = Request(0, (1, 2, 3), 3, 1.0, new=[7, 8, 9], times=[2.0, 3.0, 5.0])
    second = Request(1, (1,), 1, 1.5, new=[7], times=[4.0], sent=2.0)
    figures = vllm_figures(
        [first, second], 1.0, parse_goodput("ttft:1500 tpot:1600"), ["ttft", "tpot", "itl", "e2el"], [25]
    )
    assert figures | {"duration": 4.0, "failed": 0, "total_input_tokens": 4, "total_output_tokens": 4} == figures
    assert (figures["request_throughput"], figures["output_throughput"], figures["total_token_throughput"]) == (
        0.5,
        1.0,
        2.0,
    )
    assert figures["request_goodput"] == 0.25  # the second has its first token after 2 s
    assert (figures["mean_ttft_ms"], figures["median_ttft_ms"], figures["std_ttft_ms"], figures["p25_ttft_ms"]) == (
        1500, 1500, 500, 1250,
    )  # fmt: skip
    assert (figures["mean_tpot_ms"], figures["mean_itl_ms"], figures["mean_e2el_ms"]) == (1500, 1500, 3000)
    assert figures["max_output_tokens_per_s"] == 1 and figures["max_concurrent_requests"] == 2
    after = Request(2, (1,), 1, 4.0, new=[7], times=[4.5])  # in the same second as the second's end, but after it
    assert vllm_figures([first, second, after], 1.0, {}, [], [])["max_concurrent_requests"] == 2
    assert vllm_figures([second], 1.0, parse_goodput("tpot:0"), [], [])["request_goodput"] == 1 / 3
    assert vllm_figures([second], 1.0, {}, [], [])["request_goodput"] is None
    late = Request(3, (1,), 1, 1.0, new=[7], times=[5e11])  # seconds are not counted one by one
    assert vllm_figures([first, late], 1.0, {}, [], [])["max_output_tokens_per_s"] == 1


def test_arrivals_are_those_that_were_asked_for() -> None:
    def gaps(**options: Any) -> np.ndarray:
        return np.diff(
            [request.arrival for request in random_requests(3000, Arrivals(**options), (1, 1), (1, 1), 9, 3)]
        )

    for burstiness in (0.25, 1.0, 4.0):
        intervals = gaps(rate=50.0, burstiness=burstiness)
        # of a gamma distribution: deviation / mean = burstiness^-1/2
        assert intervals.std() / intervals.mean() == pytest.approx(burstiness**-0.5, rel=0.1)
        assert random_requests(3000, Arrivals(50.0, burstiness), (1, 1), (1, 1), 9, 3)[-1].arrival == pytest.approx(60)
    assert gaps(rate=50.0, burstiness=float("inf")) == pytest.approx(0.02)
    for ramp, middle in (("linear", 55.0), ("exponential", 1000**0.5)):
        intervals = gaps(ramp=ramp, first=10.0, last=100.0)
        assert [1 / part.mean() for part in (intervals[:100], intervals[1450:1550], intervals[-100:])] == pytest.approx(
            [10, middle, 100], rel=0.3
        )
    assert ranged("--prompt-tokens", "10", 0.1) == (9, 11) and ranged("--prompt-tokens", "100", 0.1) == (90, 110)
    assert ranged("--prompt-tokens", "10", 0.25) == (7, 13) and ranged("--prompt-tokens", "1", 0.9) == (1, 2)
    begun = random_requests(3, 0.0, (2, 2), (1, 1), 99, 1, prefix=6)
    assert (
        len({tuple(request.prompt[:6]) for request in begun}) == 1
        and len({tuple(request.prompt) for request in begun}) == 3
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [({"burstiness": 2.0}, "--burstiness: without a --rate"), ({"rate": 1.0, "burstiness": 0.0}, "is above 0"),
     ({"ramp_up_start_rps": 3.0}, "go with --ramp-up-strategy"), ({"goodput": "ttft"}, "--goodput is"),
     ({"ramp_up_strategy": "linear"}, "is above 0"), ({"percentile_metrics": "x"}, "no 'x'"),
     ({"rate": 2.0, "ramp_up_strategy": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": 2}, "leave --rate away"),
     ({"random_range_ratio": 1.0}, "below 1"), ({"random_range_ratio": 0.5, "prompt_tokens": "2:3"}, "a range already"),
     ({"metric_percentiles": "101"}, "from 0 to 100"), ({"skip_long": True}, "give --trace-file"),
     ({"goodput": "ttft:5,tpot:1,ttft:9"}, "which has ttft twice"),
     ({"rate": 9.0, "burstiness": 1e-4, "requests": 3}, "--burstiness is 0.0001: the gaps between 3 requests"),
     ({"rate": 1e-9, "requests": 3}, "the last request comes at 3e[+]09 s, and the clock tells kernels apart up to"),
     ({"ramp_up_strategy": "exponential", "ramp_up_start_rps": 1e-300, "ramp_up_end_rps": 1}, "the last request comes"),
     ({"ramp_up_strategy": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": float("inf")}, "rps is inf"),
     ({"prompt_tokens": "9:100000000000000"}, "are more than the 512 positions"),
     ({"random_prefix_len": 10**14}, "request 0: 100000000000032 prompt tokens")],
)  # fmt: skip
def test_what_a_load_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run_gpus(new_gpus(1, payload=False), "llama-tiny", "serve", **options)


def test_percentiles_have_their_names() -> None:
    figures = vllm_figures(
        [Request(0, (1,), 1, 0.0, new=[1], times=[1.0])], 0.0, {}, ["itl"], parse_percentiles("5,99.9,100,99.99999")
    )
    assert {name for name in figures if "itl" in name} == {
        "mean_itl_ms", "median_itl_ms", "std_itl_ms", "p5_itl_ms", "p99.9_itl_ms", "p100_itl_ms", "p99.99999_itl_ms",
    }  # fmt: skip


LOAD = {"requests": 40, "prompt_tokens": "20", "output_tokens": "20", "max_batch": 4}
REPLAYED = {"requests": None, "prompt_tokens": "32", "output_tokens": "32"}  # a trace has its own


def told_of(**options: Any) -> dict[str, Any]:
    result: dict[str, Any] = run_gpus(new_gpus(1, payload=False), "llama-tiny", "serve", **LOAD | options)["result"]
    return result


def test_figures_have_nothing_of_the_warm_up() -> None:
    alone = {"requests": 3, "rate": 1.0, "kv_blocks": 6, "preemption": "swap", "block_size": 8}
    cold, warm = told_of(**alone), told_of(**alone, num_warmups=8)
    assert warm["largest_batch"] == cold["largest_batch"] == 1
    assert warm["host_memory"] == cold["host_memory"] and warm["host_memory"]["max"] == 0


def test_a_closed_loop_in_lock_step_is_said() -> None:
    same, mixed = told_of(max_concurrency=4), told_of(max_concurrency=4, random_range_ratio=0.9)
    assert same["lock_step"] == 1.0 and mixed["lock_step"] < 0.5
    assert "lock step" in same["warnings"][0] and not mixed["warnings"]
    assert told_of()["lock_step"] is None and lock_step([], 3) is None


def test_a_load_above_capacity_is_said() -> None:
    """The batch of four serves so many in a second: twice and half of that."""
    capacity = told_of(requests=100)["request_throughput"]
    above, below = (told_of(requests=100, rate=share * capacity, burstiness=1e3) for share in (2.0, 0.5))
    served = above["request_throughput"]
    assert 1 + above["wait_growth"] == pytest.approx(2 * capacity / served, rel=0.1)  # so many come for each served
    assert "above capacity" in above["warnings"][0]
    assert below["wait_growth"] < 0.05 and not below["warnings"]
    assert told_of()["wait_growth"] is None and wait_growth([Request(0, (1,), 1, times=[1.0])]) is None


# ---- traces

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,48,10
2023-11-16 18:17:04.0319600,31,2
2023-11-16 18:17:13.9799599,7,0
2023-11-16 18:18:03.9799600,9,3
"""
NEWER = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,5,6
2024-05-10 00:00:02.259930+00:00,7,8
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,41,27,68,API log
"""
THIRD = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,1722ac82-0a46-4bf0-aa08-89794e7a2b3f,43,GPT-4,906,446,1352,Conversation log
19440161.5,d5983bf9-4b48-497b-892b-a58995247443,2,ChatGPT,36,29,65,Conversation log
19440192.0,,1,ChatGPT,12,0,12,API log
"""
OWN = "time,prompt_tokens,output_tokens,priority\n0.5,3,2,1\n0.25,4,1,0\n"


@pytest.mark.parametrize(
    ("text", "kind", "expected", "empty"),
    [(AZURE, "azure", [(0, 48, 10), (0.052, 31, 2), (60, 9, 3)], 1), (NEWER, "azure", [(0, 5, 6), (2.25, 7, 8)], 0),
     (BURST, "burstgpt", [(0, 472, 18), (113, 41, 27)], 1), (THIRD, "burstgpt", [(0, 906, 446), (51.5, 36, 29)], 1),
     (OWN, "plain", [(0, 4, 1), (0.25, 3, 2)], 0)],
)  # fmt: skip
def test_traces_as_they_are_published(
    text: str, kind: str, expected: list[tuple[float, int, int]], empty: int, tmp_path: Path
) -> None:
    (tmp_path / "trace").write_text(text)
    trace = read_trace(new_gpus(1).control, str(tmp_path / "trace"), None)
    assert (trace.format, trace.empty) == (kind, empty)
    assert [(pytest.approx(call.time, abs=1e-6), call.prompt, call.output) for call in trace.calls] == expected
    assert len(read_trace(new_gpus(1).control, str(tmp_path / "trace"), 1).calls) == 1


def test_of_a_long_trace_only_as_much_is_read_as_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    (tmp_path / "trace").write_text(AZURE)
    (tmp_path / "dialogues").write_text(json.dumps([{"conversations": [{"value": "a"}, {"value": "b"}]}] * 9))
    monkeypatch.setattr("meshrt.programs.generation.given.MAX_TEXT_BYTES", len(AZURE) - 10)  # in its last line
    assert [call.output for call in read_trace(new_gpus(1).control, str(tmp_path / "trace"), 2).calls] == [10, 2]
    for name, most in (("trace", None), ("trace", 3), ("dialogues", 1)):
        with pytest.raises(UsageError, match=r"--trace-file .* has more than"):
            read_trace(new_gpus(1).control, str(tmp_path / name), most)


def test_a_trace_is_replayed(tmp_path: Path) -> None:
    (tmp_path / "azure.csv").write_text(AZURE)
    result = told_of(trace_file=str(tmp_path / "azure.csv"), **REPLAYED)
    assert (result["completed"], result["total_input_tokens"], result["total_output_tokens"]) == (3, 88, 15)
    assert result["trace"] == {"format": "azure", "empty": 1, "too_long": 0}
    assert 60 < result["duration"] < 60.1
    faster = told_of(trace_file=str(tmp_path / "azure.csv"), **REPLAYED, rate=30.0)
    assert 0.1 < faster["duration"] < 0.2
    (tmp_path / "own.csv").write_text(OWN)
    assert {*told_of(trace_file=str(tmp_path / "own.csv"), **REPLAYED)["priorities"]} == {"0", "1"}


def test_requests_that_are_too_long_are_said_and_left_out_on_demand(tmp_path: Path) -> None:
    """llama-tiny has 512 positions."""
    for tokens in (500, 10**14):  # of the latter no host has room for the ids
        (tmp_path / "burst.csv").write_text(BURST.replace("472,18", f"{tokens},18"))
        arguments = {"trace_file": str(tmp_path / "burst.csv"), **REPLAYED}
        says = rf"1 of 2 requests .* the model's 512 positions, the first has {tokens} \+ 18"
        with pytest.raises(UsageError, match=says):
            told_of(**arguments)
        result = told_of(**arguments, skip_long=True)
        assert (result["completed"], result["trace"]["too_long"]) == (1, 1)


def test_dialogues_are_prompts_and_lengths(tmp_path: Path) -> None:
    said = [("Once upon a time", "there was a dog"), ("One day", "it rained and rained")]
    entries: list[Any] = [
        {"id": "a", "conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": reply}]}
        for question, reply in said
    ]
    (tmp_path / "dialogues.json").write_text(json.dumps([*entries, {"conversations": [{"value": "alone"}]}]))
    result = told_of(trace_file=str(tmp_path / "dialogues.json"), **REPLAYED)
    assert result["completed"] == 2 and result["trace"] == {"format": "sharegpt", "empty": 1, "too_long": 0}
    assert result["total_input_tokens"] >= 2 and result["total_output_tokens"] >= 2


@pytest.mark.parametrize(
    ("options", "words"),
    [({"prompt_tokens": "7"}, "--prompt-tokens is 7, and a trace has lengths"),
     ({"output_tokens": "2:4"}, "--output-tokens is 2:4, and a trace has"),
     ({"priorities": 2}, "--priorities 2: the trace has priorities of its own")],
)  # fmt: skip
def test_what_a_trace_says_itself_is_not_to_be_said_again(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(OWN)
    gpus, trace = new_gpus(1, payload=False), str(tmp_path / "own.csv")
    with pytest.raises(UsageError, match=words):
        run_gpus(gpus, "llama-tiny", "serve", trace_file=trace, **options)


def test_dialogues_without_a_tokenizer_have_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "dialogues.json").write_text('[{"conversations": [{"value": "a"}, {"value": "b"}]}]')
    with pytest.raises(
        ModelError, match=r"no tokenizer.json there; dialogues are read by it: .* a CSV file of lengths"
    ):
        run_gpus(new_gpus(1, payload=False), "llama3-8b", "serve", trace_file=str(tmp_path / "dialogues.json"))


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "TIMESTAMP,ContextTokens,GeneratedTokens\n", AZURE + "soon,1,2\n",
                                  "[1, 2]", "{}", BURST + "1e400,m,1,1,2,x\n", OWN + "1,-2,3,0\n",
                                  OWN + "1,2.5,3,0\n"])  # fmt: skip
def test_what_is_no_trace_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "trace").write_text(text)
    with pytest.raises(UsageError, match="--trace-file"):
        read_trace(new_gpus(1).control, str(tmp_path / "trace"), None)


def test_what_is_wrong_in_a_line_is_said_with_what_it_should_be(tmp_path: Path) -> None:
    for text, wanted in (
        (OWN + "1,2,3,high\n", "two numbers of tokens and a priority, all three whole"),
        (AZURE + "1,2.5,3\n", "two whole numbers of tokens"),
        (OWN + "1700000000000,3,2,0\n", r"no time \(seconds below 1e[+]12, or a date\)"),
        (OWN + f'1,"{"3" * 150_000}",2,0\n', "is no CSV: field larger than field limit"),
        ('[{"conversations": [{"value": null}, {"value": "b"}]}]', "a value is None, and no text"),
    ):
        (tmp_path / "trace").write_text(text)
        with pytest.raises(UsageError, match=wanted):
            read_trace(new_gpus(1).control, str(tmp_path / "trace"), None)


def test_a_trace_that_is_not_there_is_said_to_be() -> None:
    with pytest.raises(UsageError) as refused:
        read_trace(new_gpus(1).control, "no.csv", 3)
    assert str(refused.value) == "--trace-file no.csv cannot be read: no.csv: No such file or directory"
