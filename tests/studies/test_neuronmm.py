"""NeuronMM's published data agree with its own sentences; the reproduction counts and takes what its runs do."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from measure import on_one_rank

from meshrt.errors import UsageError
from meshrt.models.config import read_config
from meshrt.neuron.device import GIB, TRN1
from meshrt.ranks.console import Console
from meshrt.studies.neuronmm import manycores, published, speedups
from meshrt.studies.neuronmm import model as neuronmm_model
from meshrt.studies.neuronmm import tables as neuronmm_tables
from meshrt.studies.neuronmm.printed import print_part, print_reproduction
from meshrt.studies.neuronmm.published import TABLE1, TABLE3, TABLE4, TABLE7, PublishedKernel
from meshrt.studies.neuronmm.reproduce import NAMES, reproduce, write_files
from meshrt.studies.neuronmm.shares import shares
from meshrt.studies.neuronmm.tables import average, job, kernel_of, parts, table3_job, table4
from meshrt.studies.rows import PaperRow
from meshrt.studies.store import RunStore, sources
from meshrt.studies.sweep import RunJob, run_alone

MIB = 2**20
MEAN = fmean(published.LENGTHS)

# ------------------------------------------------------------------------------------------------ published data


def test_table_1_is_what_section_3_2_says_of_it() -> None:
    sequential, naive = TABLE1["sequential"], TABLE1["naive"]
    assert naive.seconds / sequential.seconds == pytest.approx(11.5, abs=0.01)  # "more than 11x slower"
    assert naive.flops and sequential.flops and naive.flops / sequential.flops == pytest.approx(4, rel=1e-3)
    assert (
        naive.hbm_bytes
        and sequential.hbm_bytes
        and naive.hbm_bytes / sequential.hbm_bytes == pytest.approx(10.5, abs=0.05)
    )


def test_table_3_is_what_section_5_2_says_of_it() -> None:
    fused = TABLE3["fused"]
    for kernel, speedup in published.SPEEDUPS.items():
        assert TABLE3[kernel].seconds / fused.seconds == pytest.approx(speedup, abs=0.01)
    assert published.LONGEST["dense"] / published.LONGEST["fused"] == pytest.approx(2.22, abs=0.005)
    assert _bytes(TABLE3["sequential"]) / _bytes(fused) == pytest.approx(published.TRAFFIC["sequential"], abs=0.005)


def test_table_3_counts_transposes_of_x_by_the_tensor_engine_and_gibibytes() -> None:
    """A product with the identity, 128 x 128, takes 2 x 128 operations an element. Traffic is eq. 10's, B_M = 1024."""
    k, r, n = (published.SIZES[axis] for axis in "krn")
    assert TABLE3["fused"].transpose_flops == pytest.approx(2 * 128 * k * MEAN, rel=1e-3)
    assert TABLE3["sequential"].transpose_flops == pytest.approx(2 * 128 * (k + r + n) * MEAN, rel=1e-3)
    stated = _bytes(TABLE3["fused"])
    assert stated == pytest.approx(2 * (MEAN * (k + n) + MEAN / 1024 * r * (k + n)), rel=0.01)
    assert stated / GIB == pytest.approx(2.47)


@pytest.mark.parametrize("block_m", TABLE4)
def test_intensities_of_table_4_are_eq_10_with_spills_in_mebibytes(block_m: int) -> None:
    m, k, r, n = (published.TABLE4_SIZES[axis] for axis in "mkrn")
    row = TABLE4[block_m]
    assert row.saved is not None and row.reloaded is not None
    traffic = 2 * (m * (k + n) + m / block_m * r * (k + n)) + row.saved + row.reloaded
    assert row.intensity == pytest.approx(2 * m * r * (k + n) / traffic, rel=1e-4)


def test_throughput_of_table_7_counts_the_prompt_too() -> None:
    for row in TABLE7.values():
        assert row.throughput == pytest.approx(2 * published.TOKENS / row.latency, rel=1e-3)
    assert TABLE7[0.0].latency / TABLE7[0.2].latency == pytest.approx(1.86, abs=0.005)  # section 5.4.4


def _bytes(kernel: PublishedKernel) -> float:
    assert kernel.hbm_bytes is not None
    return kernel.hbm_bytes


# ----------------------------------------------------------------------------------------------- at the paper's sizes


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("rows", [512, pytest.param(2048, marks=pytest.mark.all)])
@pytest.mark.parametrize("kernel", TABLE1)
def test_operations_of_table_1_exactly(kernel: str, rows: int) -> None:
    """Naive fusion computes x u once for each of ceil(8192 / 512) = 16 blocks of columns (section 3.2): for any number
    of rows, of which the paper has 2,048."""
    m, k, r, n = (published.TABLE1_SIZES[axis] for axis in "mkrn")
    times = {"sequential": 1, "naive": 16}[kernel]
    flops = 2 * m * k * r * times + 2 * m * r * n
    assert _measured(job(TRN1, kernel, **published.TABLE1_SIZES | {"m": rows})).flops == flops * rows // m
    assert flops / 1e9 == pytest.approx((TABLE1[kernel].flops or 0) / 1e9, abs=0.005)  # as printed, two digits


@pytest.mark.mpi(ranks=[1])
@pytest.mark.all
def test_traffic_and_transposes_of_table_3s_fused_kernel() -> None:
    """Of every length eq. 10 to the byte; on average within 1 % of what is published."""
    k, r, n = (published.SIZES[axis] for axis in "krn")
    kernels = []
    for m in published.LENGTHS:
        kernel = _measured(table3_job(TRN1, "fused", m))
        assert kernel.hbm_bytes == 2 * (m * (k + n) + m // 1024 * r * (k + n))
        assert (kernel.flops, kernel.transpose_flops) == (2 * m * r * (k + n), 2 * 128 * m * k)
        assert kernel.saved == kernel.reloaded == 0
        kernels.append(kernel)
    mean = average(kernels)
    assert mean is not None
    assert _bytes(mean) == pytest.approx(_bytes(TABLE3["fused"]), rel=0.01)
    assert mean.transpose_flops == pytest.approx(TABLE3["fused"].transpose_flops, rel=0.01)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("kernel", ["dense", "sequential"])
def test_transposes_of_table_3s_other_kernels(kernel: str) -> None:
    """X, X U where there is one, and the result: each once, by products with the identity."""
    k, r, n = (published.SIZES[axis] for axis in "krn")
    columns = k + n + (r if kernel == "sequential" else 0)
    assert _measured(table3_job(TRN1, kernel, 1024)).transpose_flops == 2 * 128 * 1024 * columns
    assert TABLE3[kernel].transpose_flops == pytest.approx(2 * 128 * MEAN * columns, rel=0.01)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(("least", "n"), [(512, 2048), pytest.param(128, 18432, marks=pytest.mark.all)])
def test_table_4_falls_to_its_minimum_at_1024_and_rises_with_spills(
    least: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B_M of that and more, and so many columns, 18,432 in the paper."""
    monkeypatch.setitem(published.TABLE4_SIZES, "n", n)
    monkeypatch.setattr(published, "TABLE4", {size: TABLE4[size] for size in TABLE4 if size >= least})
    rows = table4(TRN1, run_alone)

    def column(name: str) -> list[float]:
        return [row.emulated for row in rows if row.column == name and row.emulated is not None]

    sizes, times = list(published.TABLE4), column("latency")
    best = sizes.index(1024)
    assert times[: best + 1] == sorted(times[: best + 1], reverse=True)
    assert times[best:] == sorted(times[best:])
    spilled = [a + b for a, b in zip(column("spill save"), column("spill reload"), strict=True)]
    assert spilled[: best + 1] == [0] * (best + 1) and spilled[-1] > 0
    m, k, r, n = (published.TABLE4_SIZES[axis] for axis in "mkrn")
    for block_m, intensity, extra in zip(sizes, column("intensity"), spilled, strict=True):
        traffic = 2 * (m * (k + n) + m // block_m * r * (k + n)) + extra * MIB
        assert intensity == pytest.approx(2 * m * r * (k + n) / traffic)
    used = column("SBUF")
    assert used == sorted(used) and used[-1] == 100


def _measured(job: RunJob) -> PublishedKernel:
    kernel = kernel_of(run_alone(job))
    assert kernel is not None
    return kernel


def test_table_6_is_equation_5() -> None:
    rows = neuronmm_model.table6(TRN1, run_alone)
    assert [(row.system, row.subject) for row in rows] == [
        ("up_proj", "2048 x 8192"), ("up_u_proj", "2048 x 1280"), ("up_v_proj", "1280 x 8192"),
        ("gate_proj", "2048 x 8192"), ("gate_u_proj", "2048 x 1280"), ("gate_v_proj", "1280 x 8192"),
        ("down_proj", "8192 x 2048"), ("down_u_proj", "8192 x 1280"), ("down_v_proj", "1280 x 2048"),
    ]  # fmt: skip
    assert all(row.ratio == 1 for row in rows)


# ------------------------------------------------------------------------------------------------ what is derived


def test_an_average_is_of_every_number_and_of_all_runs() -> None:
    first = PublishedKernel(*range(1, len(asdict(PublishedKernel(0))) + 1))
    second = PublishedKernel(*(3 * value for value in asdict(first).values()))
    assert average([first, second]) == PublishedKernel(*(2 * value for value in asdict(first).values()))
    assert average([first, None]) is None


@pytest.mark.mpi(ranks=[1])
def test_parts_of_a_time_are_its_operations_the_engines_other_work_and_its_idle_time() -> None:
    kernel = _measured(job(TRN1, "sequential", m=512, k=512, r=256, n=512))
    assert kernel.flops and kernel.active
    least, beyond, idle = parts(TRN1, kernel.flops, kernel)
    assert least == kernel.flops / (2 * 128 * 128 * 2.8e9)
    assert least + beyond == pytest.approx(kernel.active * kernel.seconds)
    assert idle == pytest.approx((1 - kernel.active) * kernel.seconds)


def test_nothing_published_has_no_ratio() -> None:
    assert PaperRow("4", "B_M = 128", "NeuronMM", "spill save", "MiB", 0.0, 0.0).ratio is None
    assert PaperRow("4", "B_M = 128", "NeuronMM", "spill save", "MiB", 2.0, 0.0).ratio == 0


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's tables for sizes that run in no time."""
    monkeypatch.setattr(published, "TABLE1_SIZES", {"m": 256, "k": 256, "r": 128, "n": 512, "block_n": 256})
    monkeypatch.setattr(published, "SIZES", {"k": 256, "r": 128, "n": 512})
    monkeypatch.setattr(published, "LENGTHS", (128, 256))
    monkeypatch.setattr(published, "TABLE4_SIZES", {"m": 512, "k": 256, "r": 256, "n": 512})
    monkeypatch.setattr(published, "TABLE4", {size: TABLE4[size] for size in (128, 256)})


@pytest.mark.mpi(ranks=[1])
def test_shares_of_a_time_add_up_and_are_what_a_free_part_of_the_machine_saves(small: None) -> None:
    for table in ("1", "3", "4"):
        split = shares(TRN1, run_alone, table)
        assert split
        for share in split:
            assert share.products + share.transposes + share.copies + share.dma == pytest.approx(share.seconds)
            assert min(share.products, share.copies, share.dma) > 0 and share.transposes > -1e-12
    whole = _measured(neuronmm_tables.table4_job(TRN1, 128)).seconds
    assert next(share.seconds for share in split if share.subject == "B_M = 128") == whole


@pytest.mark.mpi(ranks=[1, 2])
def test_ranks_share_the_runs_and_change_nothing(comm: Any, small: None) -> None:
    names = ("1", "3", "4", "6", "figure6")
    report = reproduce(comm, Console(), names, TRN1, RunStore())
    alone = on_one_rank(comm, lambda single: reproduce(single, Console(), names, TRN1, RunStore()))
    report.pop("host"), alone.pop("host")
    assert json.dumps(report) == json.dumps(alone)
    assert [row["table"] for row in report["summary"]] == [*names]
    assert all(report["why"][name] for name in names)
    assert all(row["emulated"] is not None for row in report["rows"])


@pytest.mark.mpi(ranks=[1])
def test_what_the_machine_refuses_is_said(comm: Any, small: None) -> None:
    tight = replace(TRN1, hbm_bytes=1000)
    report = reproduce(comm, Console(), ("1", "3", "4", "figure6"), tight, RunStore())
    cells = [row for row in report["rows"] if not row["derived"]]
    assert cells and all(row["emulated"] is None and row["ratio"] is None for row in report["rows"])
    assert all("HBM of NeuronCore 0 is full" in row["note"] for row in cells)
    assert report["shares"] == [] and all(point["seconds"] is None for point in report["curves"]["figure6"])


@pytest.mark.mpi(ranks=[1])
def test_files_and_print_have_what_was_found(
    comm: Any, small: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []

    def show(report: dict[str, Any], name: str) -> None:
        """As soon as a table is there: those after it are not."""
        shown.append((name, {row["table"] for row in report["rows"]}, [*report["why"]]))
        print_part(report, name)

    report = reproduce(comm, Console(), ("1", "figure6"), TRN1, RunStore(), show=show)
    assert shown == [("1", {"1"}, ["1"]), ("figure6", {"1", "figure6"}, ["1", "figure6"])]
    in_parts = capsys.readouterr().out
    written = write_files(report, str(tmp_path), str(tmp_path))
    assert [Path(path).name for path in written] == ["tables.csv", "shares.csv", "figure6.csv", "figure6.png"]
    with (tmp_path / "figure6.csv").open() as stream:
        points = list(csv.DictReader(stream))
    assert [float(point["seconds"]) for point in points] == [point["seconds"] for point in report["curves"]["figure6"]]
    assert [int(point["m"]) for point in points] == 3 * [128, 256]
    assert (tmp_path / "figure6.png").read_bytes().startswith(b"\x89PNG")
    print_reproduction(report)
    text = capsys.readouterr().out
    row = report["rows"][0]
    line = next(line for line in text.splitlines() if "latency, ms" in line)
    assert line.split()[-3:] == [f"{row['published']:.4g}", f"{row['emulated']:.4g}", f"{row['ratio']:.3g}"]
    assert "Why they differ" in text and "Figure 6, emulated, over M" in text
    assert in_parts.strip() and text.startswith(in_parts) and text[len(in_parts) :].startswith("\nEmulated over")


# -------------------------------------------------------------------------------------------------------- Table 7


@pytest.mark.mpi(ranks=[1])
def test_table_7_is_a_prefill_and_all_its_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole run of a small model, and decode from three of its tokens: time grows nearly linearly between them.

    Tokens that are decoded one after the other overlap a little: the next one's first loads need not wait.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, value in (("MODEL", "llama-tiny"), ("TOKENS", 8), ("CONTEXTS", (8, 11, 14))):
        monkeypatch.setattr(neuronmm_model, name, value)
    monkeypatch.setattr(published, "TABLE6_BLOCK", 16)
    monkeypatch.setattr(published, "TABLE7", {ratio: TABLE7[ratio] for ratio in (0.0, 0.2)})
    rows = neuronmm_model.table7(TRN1, run_alone)
    # 128 x 384 x 0.8 / ((128 + 384) x 16) = 4.8 blocks: 5 of 16
    assert list(dict.fromkeys(row.subject for row in rows)) == ["ratio 0", "ratio 0.2, rank 80"]
    (folder,) = (tmp_path / "meshrt" / "models").iterdir()
    config = read_config(folder)
    assert set(config.factored.values()) == {80} and len(config.factored) == 3 * config.layers
    both = [("ratio 0", "llama-tiny"), ("ratio 0.2, rank 80", str(folder))]
    ways = [("llama-tiny", False), ("llama-tiny, weight.t()", True)]
    for (subject, model), (system, stored) in product(both, ways):
        by_column = {row.column: row for row in rows if (row.subject, row.system) == (subject, system)}
        arguments = {
            "model": model, "dtype": "bfloat16", "prompt_tokens": 8, "max_new_tokens": 8, "stored": stored,
        }  # fmt: skip
        assert by_column["TTFT"].derived == stored
        report = run_alone(RunJob("llama", (1, 1), TRN1, arguments)).report
        assert report is not None
        whole = report["measured"]["critical_path"]["seconds"]
        assert by_column["TTFT"].emulated == pytest.approx(1e3 * report["result"]["ttft_seconds"])
        assert whole <= (by_column["end to end"].emulated or 0) < 1.02 * whole
        assert by_column["throughput"].emulated == pytest.approx(16 / (by_column["end to end"].emulated or 0))
        tpot = 1e3 * report["result"]["tpot_seconds"]
        assert tpot <= (by_column["TPOT"].emulated or 0) < 1.02 * tpot


@pytest.mark.mpi(ranks=[1])
def test_table_5_is_the_time_without_compression_over_that_with_it(
    comm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a small model whose layers are all run, from end to end: within 2 %, as layers overlap a little."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    lengths = [{"prompt_tokens": 16, "max_new_tokens": 1}, {"context": 23, "max_new_tokens": 2}]
    requests = (("ttft_seconds", 1, lengths[0]), ("tpot_seconds", 15, lengths[1]))
    monkeypatch.setattr(speedups, "REQUESTS", requests)
    monkeypatch.setattr(published, "TABLE6_BLOCK", 16)
    monkeypatch.setattr(published, "TABLE5", {"llama-tiny": {0.5: 2.0}})
    reproduced = reproduce(comm, Console(), ("5",), TRN1, RunStore())
    (row,) = reproduced["rows"]
    assert (row["table"], row["subject"], row["system"], row["published"]) == ("5", "ratio 0.5", "llama-tiny", 2.0)
    times = []
    for ratio in (0, 0.5):
        model = str(tmp_path / "meshrt" / "models" / f"llama-tiny-ratio-{ratio:g}")
        reports = [
            run_alone(RunJob("llama", (1, 1), TRN1, {"model": model, "dtype": "bfloat16", **length})).report
            for length in lengths
        ]
        times.append(sum(
            count * report["result"][name]
            for (name, count, _), report in zip(requests, reports, strict=True) if report is not None
        ))  # fmt: skip
    assert row["emulated"] == pytest.approx(times[0] / times[1], rel=0.02)
    assert row["emulated"] != 1 and reproduced["why"]["5"]


def test_a_model_that_is_not_packaged_has_its_own_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path, layers = speedups._folder("llama3.2-3b", 0.2)
    config = read_config(path)
    assert (layers, config.hidden_size, config.heads * config.head_dim, config.kv_heads) == (28, 3072, 3072, 8)
    # 3072 x 8192 x 0.8 / ((3072 + 8192) x 128) = 13.96 blocks: 14 of 128
    assert set(config.factored.values()) == {14 * 128}


# -------------------------------------------------------------------------------------------- AWS's own, 32 cores


def test_the_published_latencies_are_those_of_the_neuron_sdk() -> None:
    assert len(manycores.PUBLISHED) == 10 and {
        entry.bits for entry in manycores.PUBLISHED if "3-8b" in entry.model
    } == {8}
    assert manycores.PUBLISHED[2] == ("llama3-70b", 2048, 2048, 16, 547.0, 26.2)


@pytest.mark.mpi(ranks=[1])
def test_layers_that_are_alike_take_as_long(comm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four layers of llama-tiny from one and two: within 1 % of a run of all."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(manycores, "CORES", 4)
    monkeypatch.setattr(manycores, "PUBLISHED", (manycores.Latency("llama-tiny", 9, 20, 16, 2.0, 1.0),))
    reproduced = reproduce(comm, Console(), ("tp32",), TRN1, RunStore())
    tpot, ttft = reproduced["rows"]
    assert (tpot["column"], ttft["column"], tpot["derived"], ttft["derived"]) == ("TPOT", "TTFT", False, True)
    arguments = {"model": "llama-tiny", "dtype": "bfloat16"}
    for row, name, lengths in (
        (tpot, "tpot_seconds", {"context": 19, "max_new_tokens": 2}),
        (ttft, "ttft_seconds", {"prompt_tokens": 9, "max_new_tokens": 1}),
    ):
        report = run_alone(RunJob("llama", (4, 1), TRN1, arguments | lengths)).report
        assert report is not None
        assert row["emulated"] == pytest.approx(1e3 * report["result"][name], rel=0.01)
        assert row["ratio"] == row["emulated"] / row["published"]
    assert reproduced["summary"][0]["compared"] == 1 and reproduced["why"]["tp32"]


# ---------------------------------------------------------------------------------------------------- command line


def test_a_stored_run_is_forgotten_when_a_kernel_changes() -> None:
    root = Path(neuronmm_tables.__file__).resolve().parents[2]
    names = {path.resolve().relative_to(root).as_posix() for path in sources(root / "meshrt")}
    assert {"meshrt/neuron/core.py", "programs/mesh/cache.py", "programs/neuron/fused.py", "programs/xuv.py"} <= names


@pytest.mark.parametrize("tables", [("6",), pytest.param(("6", "1"), marks=pytest.mark.all)])
def test_the_command_gives_published_and_emulated_as_json(
    tables: tuple[str, ...], run_meshrt: Callable[..., Any], tmp_path: Path
) -> None:
    done = run_meshrt(
        "reproduce", "neuronmm", *tables, "--cache", "none", "--json", "-", "--csv", str(tmp_path / "new")
    )  # fmt: skip
    assert done.code == 0, done.stderr
    report = json.loads(done.stdout)
    assert {row["table"] for row in report["rows"]} == {*tables}
    assert all(row["ratio"] == 1 for row in report["rows"] if row["table"] == "6")
    assert (tmp_path / "new" / "tables.csv").is_file()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("neuronmm", "2"), f"no table or figure '2'; there are {', '.join(NAMES)}"),
        (("tpu",), "no command 'tpu': there are arm, "),
        (("neuronmm", "--device", "wse2"), "'wse2' is not one of 'trn1', 'trn2'"),
        (("neuronmm", "6", "--csv", "/dev/null/x"), "--csv /dev/null/x cannot be made a folder"),
    ],
)
def test_what_there_is_not_is_said(run_meshrt: Callable[..., Any], arguments: tuple[str, ...], message: str) -> None:
    done = run_meshrt("reproduce", *arguments)
    assert (done.code, done.stdout) == (UsageError.exit_code, "")
    assert message in done.stderr and len(done.stderr.splitlines()) == 1
