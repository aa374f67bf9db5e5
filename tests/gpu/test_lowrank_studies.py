"""The serving benchmark, its figures, DeInfer's tables and orders, and the command line over all of it."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from decomposed import decompose
from gpu_runs import new_gpus, run_lowrank
from lines import run_lines
from test_lowrank import every_matrix

from meshrt.commands.figures import plan
from meshrt.errors import UsageError
from meshrt.models.catalogue import find_model
from meshrt.program import load_program
from meshrt.programs.gpu.serving.load import figures, parse_lengths, random_requests, spread
from meshrt.programs.gpu.serving.request import Request
from meshrt.ranks.console import Console
from meshrt.reports.report import print_table
from meshrt.studies.bench import plan_time
from meshrt.studies.bench.serve import DEFAULT
from meshrt.studies.bench.serve import default as ways_of
from meshrt.studies.deinfer import published as deinfer_published
from meshrt.studies.deinfer import reproduce as deinfer
from meshrt.studies.deinfer.figures import LoadPoint, claims_of, orders
from meshrt.studies.rows import PaperRow
from meshrt.studies.store import RunStore


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = find_model("llama-tiny")
    return decompose(source, tmp_path_factory.mktemp("tiny") / "model", every_matrix(source, 0.7))


def test_a_low_rank_cache_is_compared_where_there_can_be_one(tiny: Path) -> None:
    """A model that is whole, or has norms of keys, ended the comparison, with an option that it does not have."""
    assert ways_of(str(tiny), None) == ways_of("llama-tiny", 0.4) == DEFAULT
    assert ways_of("llama-tiny", None) == ways_of("qwen3-1.7b", 0.4) == DEFAULT[:-1]


# ---- loads and figures


def test_figures_of_two_requests() -> None:
    """Tokens at 1, 2, 4 s of a request that came at 0; at 3, 4 s of one that came at 1."""
    first = Request(0, (1, 2, 3), 3, 0.0, new=[7, 8, 9], times=[1.0, 2.0, 4.0])
    second = Request(1, (1,), 2, 1.0, new=[7, 8], times=[3.0, 4.0], preemptions=2)
    both = figures([first, second])
    assert (both["completed"], both["seconds"], both["prompt_tokens"], both["output_tokens"]) == (2, 4.0, 4, 5)
    rates_of_both = both["requests_per_second"], both["output_tokens_per_second"], both["tokens_per_second"]
    assert rates_of_both == (0.5, 1.25, 2.25)
    assert both["preemptions"] == 2
    assert both["ttft_ms"]["mean"] == 1500  # 1 s and 2 s
    assert both["itl_ms"] == {"mean": pytest.approx(4000 / 3), "p50": 1000, "p90": 1800, "p99": 1980}
    assert both["tpot_ms"]["mean"] == 1250  # 1.5 s and 1 s
    assert both["e2el_ms"]["mean"] == 3500
    assert spread([]) is None


def test_requests_come_as_asked() -> None:
    requests = random_requests(2000, 50.0, (4, 9), (2, 2), 100, 3)
    lengths, gaps = (
        [len(request.prompt) for request in requests],
        np.diff([0.0, *(request.arrival for request in requests)]),
    )
    assert set(lengths) == {4, 5, 6, 7, 8, 9} and {request.limit for request in requests} == {2}
    assert (gaps >= 0).all()
    # The mean of 2000 exponential gaps of 20 ms is off by 20 ms / sqrt(2000) in the standard deviation: 5 of them.
    assert gaps.mean() == pytest.approx(0.02, abs=5 * 0.02 / np.sqrt(2000))
    assert all(0 <= token < 100 for request in requests for token in request.prompt)
    assert {request.arrival for request in random_requests(5, 0.0, (1, 1), (1, 1), 100, 0)} == {0.0}
    assert [request.prompt for request in random_requests(9, 1.0, (4, 9), (2, 2), 100, 3)] == [
        request.prompt for request in random_requests(9, 1.0, (4, 9), (2, 2), 100, 3)
    ]


@pytest.mark.parametrize("text", ["", "0", "5:3", "-1", "a", "1:2:3", "1.5", "\u0663"])
def test_lengths_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--prompt-tokens is"):
        parse_lengths("--prompt-tokens", text)


# ---- what scales with what, by shape


def serve_by_shape(
    scheme: str, tp: int, ratio: float, link: str, model: str = "llama3-70b", requests: int = 256
) -> dict[str, Any]:
    program = load_program("serve")
    gpus = new_gpus(tp, payload=False, static=scheme != "base", link=link)
    given = {option.name: option.default for option in program.options} | {
        "model": model, "scheme": scheme, "ratio": ratio, "requests": requests, "output_tokens": "6",
        "layers_run": 2, "block_size": 32,
    }  # fmt: skip
    result: dict[str, Any] = program.run(gpus, **given)
    return result


def rates(
    scheme: str, tps: tuple[int, ...], ratios: tuple[float, ...], link: str, fall: tuple[str, ...] = ("ttft", "itl"),
    **load: Any,
) -> list[float]:  # fmt: skip
    """New tokens a second; wherever they rise by a tenth, these times have to `fall`."""
    results = [serve_by_shape(scheme, tp, ratio, link, **load) for tp in tps for ratio in ratios]
    rates_of_all = [result["output_tokens_per_second"] for result in results]
    for (before, result), (after, other) in pairwise(zip(rates_of_all, results, strict=True)):
        if after > 1.1 * before:
            assert all(other[f"{key}_ms"]["mean"] < result[f"{key}_ms"]["mean"] for key in fall)
    return rates_of_all


@pytest.mark.parametrize("link", ["nvlink", "pcie"])
def test_deinfer_gains_from_compression_and_base_hardly(link: str) -> None:
    """Figures 1(a) and 7: from 20 to 60 % DeInfer's collectives shrink with its ranks, by half, and so does what it
    computes; Base's reduce-sums stay as wide, only its products shrink."""
    deinfer_rates, base_rates = (rates(scheme, (8,), (0.2, 0.4, 0.6), link) for scheme in ("deinfer", "base"))
    assert deinfer_rates == sorted(deinfer_rates) and deinfer_rates[2] > 1.6 * deinfer_rates[0]
    assert base_rates == sorted(base_rates) and base_rates[2] < (1.2 if link == "nvlink" else 1.1) * base_rates[0]
    assert deinfer_rates[2] > (2 if link == "nvlink" else 4) * base_rates[2]


def test_deinfer_gains_from_gpus_over_nvlink() -> None:
    """Figures 1(b) and 7. Base's products shrink too, so that it gains at first, as in the paper's own Table 5 (3.28,
    2.42, 2.49 ms a layer on 2, 4, 8 GPUs); then full-width sums and attention on every GPU are what is left."""
    two, four, eight = rates("deinfer", (2, 4, 8), (0.4,), "nvlink")
    assert two * 1.3 < four and four * 1.2 < eight
    two, four, eight = rates("base", (2, 4, 8), (0.4,), "nvlink")
    assert two < four < 1.3 * two and eight < 1.15 * four
    two, four, eight = rates("base", (2, 4, 8), (0.4,), "nvlink", model="llama3-8b")  # nothing but sums is left at once
    assert two > four > eight


def test_without_nvlink_gpus_help_small_batches_only() -> None:
    """A ring sends (n-1)/n of its bytes, 1.75 times as much from each of 8 GPUs as from each of 2. With few sequences
    reading the weights is what takes time, and DeInfer gains, though prompts do not; with many it gains an eighth
    at most. Base gets slower."""
    few = rates("deinfer", (2, 4, 8), (0.4,), "pcie", ("itl",), requests=8)
    assert few == sorted(few)
    many = rates("deinfer", (2, 4, 8), (0.4,), "pcie")
    assert max(many) < 1.15 * min(many) and few[2] / few[0] > max(many) / min(many)
    base_rates = rates("base", (2, 4, 8), (0.4,), "pcie")
    assert base_rates == sorted(base_rates, reverse=True)


def test_static_plans_help_where_launches_are_what_one_waits_for() -> None:
    """llama-tiny's kernels take 2 us, and their launches 20 in vLLM: replayed, a token takes less than a sixth; from
    C++ they are launched in 5. On 8 GPUs a large model's device is busy longer than that: nothing is lost."""
    cases = (
        ("llama-tiny", 1, "vllm", {}, 6.0, 10.0), ("llama-tiny", 1, "cuda", {}, 1.5, 3.0),
        ("llama-65b", 8, "cuda", {"layers_run": 2}, 1.0, 1.1),
    )  # fmt: skip
    for model, tp, framework, options, least, most in cases:
        eager, static = (
            run_lowrank(
                new_gpus(tp, payload=False, static=static, framework=framework), model, ratio=0.4, kv="lowrank",
                prompt_tokens=64,
                max_new_tokens=5, **options,
            )["result"]["itl_seconds"]
            for static in (False, True)
        )  # fmt: skip
        assert least * static < eager < most * static


# ---- the paper


class Alone:
    """A communicator of one rank."""

    size, rank = 1, 0

    def allgather(self, value: Any) -> list[Any]:
        return [value]


@pytest.mark.mpi(ranks=[1, 2])
def test_table_1_is_measured(comm: Any) -> None:
    """LLaMA-3-70B, numbers a token and layer. h = 8192, h_kv = 1024, m = 28672, ranks 4916 and 614 as published: Base
    4h + 4h_kv + 4m + 2h; DeInfer gathers 4916 + 2 x 614 and 2 x 4916, and sums 2 x 4916 at twice the cost."""
    shown = []
    report = deinfer.reproduce(
        comm, Console(), ("1",), RunStore(), lambda part, name: shown.append((name, part["rows"]))
    )
    assert shown == [("1", report["rows"])] * (comm.rank == 0)  # as soon as a table is done, on one rank
    assert not report["claims"] and not [*deinfer.summary(report)]  # no table of none
    rows = {(row["subject"], row["system"], row["column"]): row for row in report["rows"]}
    base = rows["LLaMA-3-70B", "Base", "both, as printed"]
    assert base["emulated"] == base["published"] == 167_936 == 6 * 8192 + 4 * 1024 + 4 * 28672
    low = rows["LLaMA-3-70B", "DeInfer", "both, as printed"]
    assert low["published"] == 37_276
    assert low["emulated"] == 3 * 4916 + 2 * 614 + 2 * 2 * 4916
    rows_sum = rows["LLaMA-3-70B", "DeInfer", "both, the rows' sum"]
    assert rows_sum["published"] == 4916 + 2 * 614 + 3 * 4916 + 4 * 8192
    opt = rows["OPT-30B", "Base", "both, the rows' sum"]
    assert opt["emulated"] == opt["published"] == 8 * 7168 + 2 * (28672 + 7168)


def test_the_published_tables_are_whole() -> None:
    """Table 4's percentages in the text are those of its numbers, such as 76 % less TTFT at TP = 2 without NVLink."""
    times = deinfer_published.TABLE4["TTFT", "pcie"]["llama3-70b"]
    assert round(100 * (1 - times["DeInfer"][0] / times["Base"][0])) == 76
    for models in (*deinfer_published.TABLE4.values(), deinfer_published.TABLE3):
        assert set(models) == set(deinfer_published.MODELS)
        for systems in models.values():
            assert tuple(systems) == deinfer_published.SYSTEMS
    for (column, _), models in deinfer_published.TABLE4.items():
        assert column in ("TTFT", "ITL") and all(
            len(line) == 3 for system in models.values() for line in system.values()
        )


def test_orders_are_counted() -> None:
    def row(system: str, column: str, published: float, emulated: float | None) -> PaperRow:
        return PaperRow("4", "m", system, column, "ms", published, emulated)

    rows = [
        row("Base", "TTFT, TP=2, a", 10.0, 5.0), row("DeInfer", "TTFT, TP=2, a", 4.0, 3.0),
        row("Base", "TTFT, TP=4, a", 12.0, 4.0), row("DeInfer", "TTFT, TP=4, a", 4.01, 6.0),
    ]  # fmt: skip
    systems, sizes = orders("4", rows)
    assert systems.found.startswith("1 of 2 pairs; not m, TTFT, TP=4, a: Base and DeInfer") and systems.holds is False
    assert sizes.found.startswith("0 of 1 pairs")  # DeInfer's are published alike
    right = orders("4", rows[:2])
    assert [(claim.found, claim.holds) for claim in right] == [("1 of 1 pairs", True)]
    missing = orders("4", [rows[0], row("DeInfer", "TTFT, TP=2, a", 4.0, None)])
    assert [(claim.found, claim.holds) for claim in missing] == [("0 of 0 pairs", None)]


def test_claims_of_figure_7() -> None:
    """DeInfer rises everywhere, but for one dip without NVLink; Base stays, and has no point at 60 % with NVLink."""

    def rate(link: str, system: str, tp: int, ratio: float) -> float | None:
        if system == "Base":
            return None if (link, ratio) == ("nvlink", 0.6) else 100.0 + ratio
        return 50 * tp * (1 + ratio) * (0.5 if (link, ratio) == ("pcie", 0.5) else 1.0)

    cells = [(8, 0.2), (8, 0.3), (8, 0.4), (8, 0.5), (8, 0.6), (2, 0.4), (4, 0.4)]
    points = [
        LoadPoint("7", "LLaMA-3-70B", link, system, tp, ratio, rate(link, system, tp, ratio))
        for link in ("pcie", "nvlink")
        for system in ("Base", "DeInfer")
        for tp, ratio in cells
    ]
    holds = {claim.says: claim.holds for claim in claims_of("figure7", points)}
    assert holds == {
        "DeInfer gains from compression ratio 20 to 60 %, w/o NVLink": False,
        "DeInfer gains from 2 to 8 GPUs, w/o NVLink": True,
        "Base gains nothing from compression ratio 20 to 60 %, w/o NVLink": True,
        "Base gains nothing from 2 to 8 GPUs, w/o NVLink": True,
        "at 60 % and 8 GPUs DeInfer is 8.81x as fast as Base, w/o NVLink": True,
        "DeInfer gains from compression ratio 20 to 60 %, w/ NVLink": True,
        "DeInfer gains from 2 to 8 GPUs, w/ NVLink": True,
        "Base gains nothing from compression ratio 20 to 60 %, w/ NVLink": None,
        "Base gains nothing from 2 to 8 GPUs, w/ NVLink": True,
        "at 60 % and 8 GPUs DeInfer is 2.25x as fast as Base, w/ NVLink": None,
    }


def test_no_number_of_a_table_in_a_log_is_cut_off(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = run_lowrank(new_gpus(1), tiny, max_new_tokens=2)
    print_table(report | {"phases": [report["phases"][0] | {"name": f"of phase {at}"} for at in range(9)]})
    text = capsys.readouterr().out
    assert "of phase 8" in text and "\N{HORIZONTAL ELLIPSIS}" not in text
    (times,) = (line for line in text.splitlines() if line.startswith("virtual time"))
    assert times.count(" ms") == 10


# ---- the command line


def test_run_lowrank(run_meshrt: Callable[..., Any], tiny: Path, tmp_path: Path) -> None:
    texts = set()
    for ranks, options in ((1, ["--scheme", "base"]), (2, ["--kv", "lowrank", "--static"])):
        out = tmp_path / f"{ranks}.json"
        done = run_meshrt(
            "run", "lowrank", "--model", str(tiny), "--tp", "2", "--max-new-tokens", "6", "--json", str(out), *options,
            ranks=ranks,
        )  # fmt: skip
        assert done.code == 0, done.stderr
        assert "on 2 GPUs of type a800 over nvlink" in done.stdout
        report = json.loads(out.read_text())
        assert (report["schema"], report["program"], report["mesh"], report["host"]["ranks"]) == (
            1,
            "lowrank",
            [2, 1],
            ranks,
        )
        assert report["static"] == ("--static" in options)
        texts.add(report["result"]["text"])
    assert len(texts) == 1


WRONG: list[tuple[list[str], int, str]] = [
    (["run", "lowrank", "--tp", "3"], 2, "--tp is 3; the 8 heads of the model can be shared by 1, 2, 4, 8 GPUs"),
    (["run", "lowrank", "--tp", "0"], 2, "--tp"),
    (["run", "lowrank", "--kv", "lowrank"], 2, "is not decomposed; use --kv dense"),
    (["run", "lowrank", "--model", "opt-30b"], 2, "with --payload none"),
    (["run", "lowrank", "--device", "a6000", "--link", "nvlink", "--tp", "4"], 2, "NVLink joins 2 GPUs"),
    (["run", "lowrank", "--link-rate", "nan"], 2, "--link-rate is nan; it is 1e-15 to 1e+18"),
    (["run", "lowrank", "--link-rate", "1e-320"], 2, "--link-rate is 1e-320; it is 1e-15 to 1e+18"),
    (["run", "lowrank", "--gpu-memory", "1000"], 3, "GPU 0: 'weights' asks for"),
    (["run", "lowrank", "--kv-blocks", "1"], 3, "needs 3 blocks of 16 tokens, and the cache has 1"),
    (["run", "serve", "--rate", "-1"], 2, "--rate is -1.0; it is 0 to 1000000000"),
    (["run", "serve", "--rate", "nan"], 2, "--rate is nan"),
    (["run", "serve", "--rate", "1e-310"], 2, "--rate is 1e-310"),
    (["run", "serve", "--seed", "-1"], 2, "--seed is -1; it starts at 0"),
    (["run", "serve", "--prompt-tokens", "9" * 5000], 2, "give a number of tokens such as 32"),
    (["run", "serve", "--output-tokens", "1:9:9"], 2, "give a number of tokens such as 32"),
    (["bench", "serve", "--only", "best"], 2, "best"),
    (["reproduce", "deinfer", "2"], 2, "no table or figure '2'; there are 1, 3, 4, 5, 6"),
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """What becomes of all lines of WRONG."""
    return run_lines({str(line): line for line, _, _ in WRONG}, tmp_path_factory.mktemp("lines"))


@pytest.mark.parametrize(("arguments", "code", "message"), WRONG)
def test_errors_are_short_and_have_codes(
    arguments: list[str], code: int, message: str, outcomes: dict[str, tuple[int, str, str]]
) -> None:
    exit_code, _, err = outcomes[str(arguments)]
    assert exit_code == code and message in err and "Traceback" not in err


def test_bench_serve(run_meshrt: Callable[..., Any], tmp_path: Path) -> None:
    """Shared out to two ranks, the ways' figures are the same; Base computes every head on each GPU."""
    line = ["bench", "serve", "--model", "llama3-8b", "--ratio", "0.4", "--layers-run", "2", "--tp", "4"]
    line += ["--requests", "6", "--rate", "40", "--prompt-tokens", "8:20", "--output-tokens", "4"]
    reports = []
    for ranks in (1, 2):
        out = tmp_path / f"{ranks}.json"
        done = run_meshrt(*line, "--json", str(out), ranks=ranks)
        assert done.code == 0, done.stderr
        reports.append(json.loads(out.read_text()))
    assert reports[0] == reports[1]
    assert "TTFT, p99, ms" in done.stdout
    heads = {way["way"]: way["measured"]["attention_heads"] for way in reports[0]["ways"]}
    assert heads["base"] == 4 * heads["deinfer"] == 4 * heads["dense"] == 4 * heads["deinfer, lowrank"]
    assert all(way["result"]["completed"] == 6 for way in reports[0]["ways"])


def test_bench_plan(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer rounds: how fast is no test."""
    monkeypatch.setattr(plan_time, "ROUNDS", 2)
    monkeypatch.setattr(plan_time, "STEPS", 2)
    out = tmp_path / "plan.json"
    done = CliRunner().invoke(plan, ["--model", str(tiny), "--tp", "2", "--batch", "2", "--json", str(out)])
    assert (done.exit_code, done.stderr) == (0, "")
    ways = json.loads(out.read_text())["ways"]
    assert [(way["scheme"], way["kv"]) for way in ways] == [
        ("dense", "dense"), ("base", "dense"), ("deinfer", "dense"), ("deinfer", "lowrank"),
    ]  # fmt: skip
    assert all(way["peak_bytes"] < 8192 and way["grown_bytes"] < 512 for way in ways)
