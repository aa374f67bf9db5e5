"""The published data agree with the paper's own sentences; reproductions run what they say, the same on any ranks."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from measure import on_one_rank

from meshrt.errors import UsageError
from meshrt.gpu.presets import A800
from meshrt.machine import find_machine, machines
from meshrt.mesh.presets import WSE2
from meshrt.models.catalogue import find_model
from meshrt.ranks.console import Console
from meshrt.studies.files import check_folder, draw
from meshrt.studies.rows import PaperRow, off, summary
from meshrt.studies.store import PENDING, RunStore, key_of, open_store
from meshrt.studies.sweep import Outcome, RunJob, run_alone, sweep
from meshrt.studies.waferllm import gpus, models, published
from meshrt.studies.waferllm.curves import CURVES, CheckedClaim, ProductPoint, claims
from meshrt.studies.waferllm.energy import wafer_joules
from meshrt.studies.waferllm.kvcache import area_job
from meshrt.studies.waferllm.printed import print_part, print_reproduction
from meshrt.studies.waferllm.published import Claim, PublishedCell
from meshrt.studies.waferllm.reproduce import NAMES, of_systems, reproduce, write_files
from meshrt.studies.waferllm.tables import TABLES
from meshrt.units import duration

# ------------------------------------------------------------------------------------------------ published data


def _value(table: int, model: str, system: str, column: str) -> float:
    (cell,) = (c for c in published.table(table) if (c.model, c.system, c.column) == (model, system, column))
    assert cell.value is not None
    return cell.value


def _speedups(table: int, over: str, columns: tuple[str, ...]) -> list[float]:
    """Of WaferLLM, over all models that the table has."""
    models = dict.fromkeys(cell.model for cell in published.table(table))
    return [_value(table, m, "waferllm", c) / _value(table, m, over, c) for m in models for c in columns]


def test_every_cell_is_there_once() -> None:
    for number, cells in {2: 24, 3: 36, 4: 36, 5: 4, 6: 8, 7: 7, 8: 7}.items():
        wafer = [cell for cell in published.table(number) if cell.system in published.WSE]
        assert len(wafer) == cells
        assert len({(cell.model, cell.system, cell.column) for cell in wafer}) == cells


def test_only_the_last_column_of_table_2_is_missing_and_it_is_missing_everywhere() -> None:
    for number in range(2, 9):
        for cell in published.table(number):
            assert (cell.value is None) == (number == 2 and cell.column.startswith("4096/4096")), cell


def test_speedups_of_table_2_are_those_of_section_7_1() -> None:
    short = published.TABLE2_COLUMNS[:2]
    assert mean(_speedups(2, "t10", short)) == pytest.approx(160, rel=0.02)
    assert max(_speedups(2, "t10", short)) == pytest.approx(180, rel=0.02)
    assert max(_speedups(2, "t10", ("2048/2048",))) == pytest.approx(48, rel=0.01)
    assert max(_speedups(2, "ladder", short)) == pytest.approx(677, rel=0.001)


def test_speedups_and_scaling_of_tables_3_and_4_are_those_of_section_7_1() -> None:
    assert _value(3, "qwen2-72b", "waferllm", "720x720") / _value(3, "qwen2-72b", "waferllm", "480x480") == (
        pytest.approx(1.6, abs=0.05)
    )
    assert _value(3, "llama3-8b", "waferllm", "720x720") / _value(3, "llama3-8b", "waferllm", "480x480") == (
        pytest.approx(1.4, abs=0.05)
    )
    assert mean(_speedups(4, "t10", ("420x420",))) == pytest.approx(5.7, abs=0.05)
    assert max(_speedups(4, "t10", ("420x420",))) == pytest.approx(6.5, abs=0.05)
    assert mean(_speedups(4, "ladder", ("420x420",))) == pytest.approx(217, rel=0.01)
    assert max(_speedups(4, "ladder", ("420x420",))) == pytest.approx(260, rel=0.01)


def test_table_5_is_concat_times_rows() -> None:
    for model, factor in {"llama3-8b": 360, "llama2-13b": 385}.items():
        shift, concat = (_value(5, model, "waferllm", column) for column in ("shift", "concat"))
        assert shift / concat == pytest.approx(factor, rel=0.002)
        assert shift // published.DECODE_MESH[model] == concat


def test_table_6_has_the_606x_of_the_abstract() -> None:
    wafer = _value(6, "32K", "waferllm", "WSE-2")
    assert _value(6, "32K", "a100", "1 GPU") / wafer == pytest.approx(606, abs=1)
    assert _value(6, "16K", "a100", "1 GPU") / _value(6, "16K", "waferllm", "WSE-2") == pytest.approx(280, abs=1)


@pytest.mark.parametrize(("best", "table"), [(7, 3), (8, 4)])
def test_tables_7_and_8_repeat_the_best_of_3_and_4(best: int, table: int) -> None:
    for cell in published.table(best):
        if cell.unit == "ratio":
            continue
        column = cell.column if cell.system == "a100" else None
        values = [c.value for c in published.table(table) if (c.model, c.system) == (cell.model, cell.system)
                  and column in (None, c.column)]  # fmt: skip
        assert cell.value is not None
        assert max(value for value in values if value is not None) == pytest.approx(cell.value, abs=1)


@pytest.mark.parametrize("best", ["7", "8"])
def test_tables_7_and_8_run_nothing_but_what_they_show(best: str) -> None:
    """Two models by our programs and by the published ones, on three meshes each: no baselines, no other model."""
    store = RunStore()
    rows = TABLES[best](WSE2, store.emulate)
    arguments = [job.arguments for job in store.pending.values()]
    assert {job["model"] for job in arguments} == {row.subject for row in rows} == {"llama3-8b", "llama2-13b"}
    assert {job.get("system", "as-published") for job in arguments} == {"waferllm", "as-published"}
    assert len(arguments) == 2 * 2 * 3


def test_a_wafers_other_cores_are_idle() -> None:
    part = {"energy": {"low": 1.0, "mean": 2.0, "high": 3.0}, "cores": 500, "critical_path": {"seconds": 4.0}}
    idle = 4.0 * (750 * 994 - 500)
    assert wafer_joules(WSE2, part, 2) == pytest.approx(
        ((1 + 0.004 * idle) / 2, (2 + 0.009 * idle) / 2, (3 + 0.014 * idle) / 2)
    )
    assert wafer_joules(WSE2, {}) is None


@pytest.mark.parametrize("table", [6, 7, 8])
def test_energy_ratios_follow_from_times_and_one_ratio_of_powers(table: int) -> None:
    ratios = [cell for cell in published.table(table) if cell.unit == "ratio"]
    assert ratios
    for cell in ratios:
        count = cell.column.removeprefix("energy, ").removesuffix(" / WSE-2")
        gpu, wafer = _value(table, cell.model, "a100", count), _value(table, cell.model, "waferllm", "WSE-2")
        ratio = gpus.energy_ratio(published.GPUS[count], gpu, wafer, table == 6)
        assert ratio == pytest.approx(cell.value, rel=0.002, abs=0.006)


# ------------------------------------------------------------------------------------------------ what it comes to


def _row(emulated: float | None, system: str = "waferllm", published: float | None = 10.0, **more: Any) -> PaperRow:
    return PaperRow("3", "model", system, f"{emulated}", "ms", published, emulated, **more)


def test_a_ratio_is_emulated_over_published_where_both_are_known() -> None:
    assert _row(5.0).ratio == 0.5
    assert _row(None).ratio is None
    assert _row(5.0, published=None).ratio is None
    assert off(0.5) == off(2.0) == 2.0


def test_the_worst_ratio_may_be_too_small_and_derived_cells_do_not_count() -> None:
    rows = [_row(10), _row(12), _row(2), _row(20), _row(None), _row(1000, derived=True), _row(30, "t10"),
            _row(1, "a100"), _row(7, published=None)]  # fmt: skip
    own, other = summary(rows)
    assert (own["system"], own["cells"], own["emulated"], own["compared"]) == ("waferllm", 6, 5, 4)
    assert own["median_ratio"] == pytest.approx(1.1)
    assert own["median_off"] == pytest.approx(1.6)
    assert own["worst_ratio"] == 0.2
    assert own["worst_cell"].endswith(", 2")
    assert own["within_goal"] == 2
    assert (other["system"], other["worst_ratio"]) == ("t10", 3.0)


def test_a_claim_holds_within_its_bounds() -> None:
    def holds(value: float | None, low: float | None, high: float | None) -> bool | None:
        return CheckedClaim(Claim("x", "7", "text", low, high), "gemm", "here", value).holds

    assert holds(2.5, 2, 3) and not holds(3.1, 2, 3) and not holds(1.9, 2, 3)
    assert holds(0.71, 0.7, None) and not holds(0.69, 0.7, None)
    assert holds(0.4, None, 0.5) and not holds(0.6, None, 0.5)
    assert holds(5, 4.6, 4.6) and not holds(6, 4.6, 4.6)
    assert holds(None, 2, 3) is None
    assert Claim("x", "7", "", 2, 3).stated() == "2 to 3"
    assert Claim("x", "7", "", None, 0.5).stated() == "below 0.5"


def test_claims_compare_the_largest_mesh() -> None:
    def point(algorithm: str, side: int, cycles: float) -> ProductPoint:
        return ProductPoint("gemm", "8K", algorithm, side, cycles, compute_cycles=80.0)

    claimed = claims(
        CURVES["gemm"],
        [point("meshgemm", 4, 400), point("cannon", 4, 400), point("meshgemm", 8, 100), point("cannon", 8, 250)],
    )
    assert {(row.where, row.claim.name): row.emulated for row in claimed} == {
        ("8K, 8x8, over cannon", "speedup"): 2.5,
        ("8K, 8x8, over cannon", "cycles saved"): 0.6,
        ("8K, 8x8, meshgemm", "efficiency"): 0.8,
        ("8K, 8x8, cannon", "efficiency"): pytest.approx(0.32),
    }


# ------------------------------------------------------------------------------------------------------- runs


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small sizes for large ones: what is emulated is emulated for real."""
    monkeypatch.setattr(published, "TABLE6_SIZES", {"16K": 96, "32K": 200})
    monkeypatch.setattr(gpus, "SIDES", (4, 6, 8))
    for name in CURVES:
        monkeypatch.setitem(CURVES, name, dataclasses.replace(CURVES[name], sizes={"2K": 24, "8K": 60}))
    monkeypatch.setitem(CURVES, "gemm", dataclasses.replace(CURVES["gemm"], algorithms=("meshgemm", "cannon")))


@pytest.mark.mpi(ranks=[1, 2])
def test_small_reproductions_are_the_same_on_any_ranks(comm: Any, small: None) -> None:
    def done(where: Any) -> dict[str, Any]:
        return reproduce(where, Console(), ("6", "gemm", "gemv"), WSE2, RunStore(), (4, 6))

    reproduced, alone = done(comm), on_one_rank(comm, done)
    assert {**reproduced, "host": None} == {**alone, "host": None}
    own = {row["subject"]: row for row in reproduced["rows"] if row["system"] == "waferllm" and row["unit"] == "ms"}
    for name, size in published.TABLE6_SIZES.items():
        row = own[name]
        assert row["ratio"] == row["emulated"] / row["published"]
        assert row["emulated"] == pytest.approx(1e3 * row["cycles"] / WSE2.clock_hz)
        best = min(_cycles(gpus.gemv_job(WSE2, size, side)) for side in (4, 6, 8))
        assert row["cycles"] == best
    assert sum(row["derived"] for row in reproduced["rows"]) == 6 + 2 + 6  # ratios by power; joules, ratios as counted
    counted = {(row["subject"], row["column"]): row for row in reproduced["rows"] if row["system"] == "waferllm"}
    for name, counts in (("16K", (0.336, 0.253, 0.340)), ("32K", (1.231, 0.341, 0.339))):
        joules = counted[name, "energy"]
        assert joules["published"] == pytest.approx(15e3 * 1e-3 * own[name]["published"])
        low, high = 8 * 8 * 0.004, 750 * 994 * 0.014 + 8 * 8 * 0.1  # of the cores, all others of the wafer included
        assert low < joules["emulated"] / (1e-3 * own[name]["emulated"]) < high
        for count, milliseconds in zip(published.GPUS, counts, strict=True):
            ratio = counted[name, f"energy, {count} / WSE-2, counted"]["emulated"]
            assert ratio == pytest.approx(published.GPUS[count] * 400 * 1e-3 * milliseconds / joules["emulated"])


def _cycles(job: RunJob) -> float:
    report = run_alone(job).report
    assert report is not None
    return float(report["measured"]["critical_path"]["cycles"])


@pytest.fixture
def reproduced(comm: Any, small: None) -> dict[str, Any]:
    return reproduce(comm, Console(), ("6", "gemm", "gemv"), WSE2, RunStore(), (4, 6))


@pytest.mark.mpi(ranks=[1])
def test_a_curve_has_every_point_and_the_products_alone_take_no_longer(reproduced: dict[str, Any]) -> None:
    for name, algorithms in (("gemm", 2), ("gemv", 2)):
        line = reproduced["curves"][name]
        assert len(line) == 2 * algorithms * 2
        for point in line:
            assert point["refused"] is None
            assert 0 < point["compute_cycles"] <= point["cycles"]
            assert point["efficiency"] == point["compute_cycles"] / point["cycles"]
    assert {point["max_hops"] for point in reproduced["curves"]["gemm"] if point["algorithm"] == "meshgemm"} == {2}


@pytest.mark.mpi(ranks=[1])
def test_files_have_what_was_found(reproduced: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    check_folder("--csv", str(folder))
    written = write_files(reproduced, str(folder), None)
    assert sorted(Path(path).name for path in written) == ["gemm.csv", "gemv.csv", "tables.csv"]
    with (folder / "gemm.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    assert [float(line["cycles"]) for line in lines] == [point["cycles"] for point in reproduced["curves"]["gemm"]]
    with (folder / "tables.csv").open() as stream:
        assert [line["note"] for line in csv.DictReader(stream)] == [row["note"] for row in reproduced["rows"]]
    with pytest.raises(UsageError, match="cannot be made a folder"):
        check_folder("--csv", str(folder / "gemm.csv"))


@pytest.mark.mpi(ranks=[1])
def test_a_picture_is_drawn(reproduced: dict[str, Any], tmp_path: Path) -> None:
    (path,) = (
        path
        for path in write_files({**reproduced, "curves": {"gemv": reproduced["curves"]["gemv"]}}, None, str(tmp_path))
    )
    assert Path(path).read_bytes().startswith(b"\x89PNG")
    draw(
        path, CURVES["gemv"], [ProductPoint("gemv", "2K", "ktree", 4, refused="no room")], "wse2"
    )  # nothing to draw is drawn


@pytest.mark.mpi(ranks=[1])
def test_the_print_has_published_emulated_and_ratio(
    reproduced: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    print_reproduction(reproduced)
    text = capsys.readouterr().out
    row = next(row for row in reproduced["rows"] if row["unit"] == "ms" and row["system"] == "waferllm")
    line = next(line for line in text.splitlines() if "WSE-2, ms" in line)
    assert line.split()[-4:] == ["0.0012", f"{row['emulated']:.4g}", f"{row['ratio']:.3g}", "[1]"]
    assert "derived from emulated time" in text
    assert "Why they differ" in text
    assert "2 of 2 emulated, 2 compared: median" in text


@pytest.mark.mpi(ranks=[1])
def test_what_the_machine_refuses_is_said(comm: Any, small: None) -> None:
    tight = dataclasses.replace(WSE2, core_memory=64)
    rows = reproduce(comm, Console(), ("6",), tight, RunStore())["rows"]
    own = [row for row in rows if row["system"] == "waferllm"]
    assert all(row["emulated"] is None and row["ratio"] is None for row in own)
    assert all("64" in row["note"] for row in own if not row["derived"])


@pytest.mark.mpi(ranks=[1])
def test_table_5_fills_the_cache_beside_the_weights(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [PublishedCell(5, "llama-tiny", "waferllm", column, value, "tokens") for column, value in
             (("concat", 10.0), ("shift", 80.0))]  # fmt: skip
    monkeypatch.setattr(published, "table", lambda number: cells)
    monkeypatch.setitem(published.DECODE_MESH, "llama-tiny", 8)
    monkeypatch.setattr(published, "NOMINAL_CORES", 3 * 64 + 1)
    small = dataclasses.replace(WSE2, width=8, height=8, core_memory=40_050)
    rows = reproduce(comm, Console(), ("5",), small, RunStore())["rows"]
    for system in published.PROGRAMS:
        by_column = {row["column"]: row for row in rows if row["system"] == system}
        concat, shift = by_column["concat"]["emulated"], by_column["shift"]["emulated"]
        assert concat > 1 and 8 * concat <= shift < 8 * (concat + 1)
        assert by_column["shift / concat"]["emulated"] == shift / concat
        assert by_column["shift / concat"]["ratio"] == shift / concat / 8
        assert by_column["concat"]["memory_bytes"] <= 40_050
    # By area 2 of 4 layers in each of 3 regions. At a core of 8 x 8, of 128 numbers wide, as many queries, KEYS of keys
    # and INNER of the MLP, there are tiles of 16 x 16 (two), 16 x KEYS / 8 (two), 16 x INNER / 8 (three), of 2 bytes.
    config = json.loads((find_model("llama-tiny") / "config.json").read_text())
    keys = config["num_key_value_heads"] * config["hidden_size"] // config["num_attention_heads"]
    tiles = 2 * 16 * 16 + 2 * 16 * ceil(keys / 8) + 3 * 16 * ceil(config["intermediate_size"] / 8)
    assert config["hidden_size"] == 128 and config["num_hidden_layers"] == 4
    assert by_column["concat"]["emulated"] == (40_050 - 2 * 2 * tiles) // (2 * 2 * 2 * ceil(keys / 8))


def test_table_5_by_area_has_the_weights_that_explain_llama3() -> None:
    """Six regions of 360 x 360; tiles of 12 x 12, 12 x 3, 12 x 40 for six layers; 49,152 - 21,600 = 382 x 72 + 48."""
    (job, note), (other, _) = (area_job(WSE2, model, "concat", side) for model, side in published.DECODE_MESH.items())
    assert job.arguments["reserved"] == 6 * 2 * (2 * 12 * 12 + 2 * 12 * 3 + 3 * 12 * 40) == 21_600
    assert note.startswith("6 of 32 layers in each of 6 regions") and other.arguments["layers"] == ceil(40 / 6)


# ------------------------------------------------------------------------------------------------------- the store


def _job(size: int = 16) -> RunJob:
    return RunJob("gemv", (2, 2), WSE2, {"k": size, "n": size})


def test_a_job_is_for_the_machine_of_its_device() -> None:
    """Also of one of a script's own, and of every machine that there is."""

    def own(machine: Any) -> dict[str, Any]:
        return {}

    for name in machines():
        preset = next(iter(find_machine(name).PRESETS.values()))
        assert RunJob(own, None, replace(preset, name="mine")).load().machine == name
    assert RunJob("llama", (2, 1), A800).load().machine == "gpu"


@pytest.mark.mpi(ranks=[1])
def test_a_store_keeps_its_runs_in_its_file(comm: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "runs.json")
    store = open_store(path)
    assert store.emulate(_job()) is PENDING
    store.run(comm, Console(), "test")
    again = open_store(path)
    assert again.emulate(_job()) == store.emulate(_job())
    assert not again.pending
    assert again.emulate(_job(17)) is PENDING and len(again.pending) == 1


@pytest.mark.mpi(ranks=[2])
def test_what_each_rank_has_run_is_kept_as_it_comes(
    comm: Any, mpi_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two ranks is interrupted in its second run; then there are two to do of four, and in the end one file."""
    path, jobs, ran = str(mpi_tmp_path / "runs.json"), [_job(size) for size in (8, 12, 16, 20)], list[RunJob]()

    def interrupted(job: RunJob) -> Outcome:
        if ran:
            raise KeyboardInterrupt
        ran.append(job)
        return run_alone(job)

    def emulate_all(store: RunStore) -> RunStore:
        for job in jobs:
            store.emulate(job)
        return store

    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopped.setattr("meshrt.studies.sweep.run_alone", interrupted)
        emulate_all(open_store(path)).run(comm, Console(), "test")
    comm.Barrier()
    store = emulate_all(open_store(path))
    assert [*store.pending] == [key_of(job) for job in jobs[2:]]
    store.run(comm, Console(), "test")
    assert [file.name for file in mpi_tmp_path.iterdir()] == ["runs.json"]
    again = open_store(path)
    assert again.outcomes == store.outcomes and len(again.outcomes) == 4


@pytest.mark.mpi(ranks=[1])
def test_progress_says_how_long_it_will_take(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, int]] = []
    monkeypatch.setattr(Console, "progress", lambda self, *said: seen.append(said))
    sweep(comm, [_job(), _job(17)], Console(), "runs")
    assert [said[1:] for said in seen] == [(1, 2), (2, 2)]
    assert seen[0][0].startswith("runs, ") and seen[1][0] == "runs, 0 s left"
    assert [duration(seconds) for seconds in (59.4, 75, 3720)] == ["59 s", "1 min 15 s", "1 h 2 min"]


def test_a_store_forgets_what_other_code_has_run(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_text(json.dumps({"code": "another", "runs": {key_of(_job()): dataclasses.asdict(Outcome(None, "x"))}}))
    assert open_store(str(path)).outcomes == {}
    path.write_text("no runs")
    with pytest.raises(UsageError, match="no file of this command"):
        open_store(str(path))


@pytest.mark.mpi(ranks=[1])
def test_runs_are_kept_in_the_users_cache_if_nothing_else_is_said(
    comm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept = tmp_path / "cache" / "meshrt" / "reproduce-paper.json"
    for path, exists in (("none", False), (None, True)):
        store = open_store(path, "paper")
        store.emulate(_job())
        store.run(comm, Console(), "test")
        assert kept.exists() == exists
    assert open_store(None, "paper").emulate(_job()) == store.emulate(_job())
    assert open_store(None, "another").emulate(_job()) is PENDING
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")  # without such a folder nothing is kept
    assert open_store(None, "paper").path is None


def test_runs_differ_by_everything_that_matters() -> None:
    jobs = [
        _job(), _job(17), dataclasses.replace(_job(), mesh=(2, 3)), dataclasses.replace(_job(), payload=True),
        dataclasses.replace(_job(), device=dataclasses.replace(WSE2, call_cycles=9)),
    ]  # fmt: skip
    assert len({key_of(job) for job in jobs}) == len(jobs)
    same = dataclasses.replace(_job(), device=dataclasses.replace(WSE2, sources=("another",)))
    assert key_of(same) == key_of(_job())


def test_a_run_that_no_program_knows_is_refused_before_anything_runs() -> None:
    store = RunStore()
    store.emulate(_job())
    store.check()
    store.emulate(dataclasses.replace(_job(), arguments={"allreduce": "unheard-of"}))
    with pytest.raises(UsageError, match="unheard-of"):
        store.check()


@pytest.mark.mpi(ranks=[1])
def test_tables_of_whole_models(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = {
        2: [PublishedCell(2, "llama-tiny", "waferllm", "8/4", 1000.0, "tokens/s")],
        3: [PublishedCell(3, "llama-tiny", "waferllm", "4x4", 1000.0, "tokens/s"),
            PublishedCell(3, "another", "waferllm", "4x4", 1000.0, "tokens/s")],
        4: [PublishedCell(4, "llama-tiny", "waferllm", f"{side}x{side}", 1000.0, "tokens/s") for side in (4, 6)],
    }  # fmt: skip
    monkeypatch.setattr(published, "table", lambda number: cells[number])
    monkeypatch.setattr(published, "PREFILL_MESH", {"llama-tiny": 4})
    monkeypatch.setattr(published, "DECODE_MESH", {"llama-tiny": 6})
    monkeypatch.setattr(models, "PROMPT", 8)
    monkeypatch.setattr(models, "CONTEXT", 10)
    store = RunStore()
    reproduced = reproduce(comm, Console(), ("2", "3", "4"), WSE2, store, models=("llama-tiny",))
    ours = [row for row in reproduced["rows"] if row["system"] == "waferllm"]
    theirs = [row for row in reproduced["rows"] if row["system"] == "as-published"]
    end, first, other, small, large = ours
    assert (other["emulated"], other["note"]) == (None, "left out")
    prefill = 8 / first["emulated"]
    assert prefill == pytest.approx(first["cycles"] / WSE2.clock_hz)
    token = 1 / large["emulated"]
    assert token == pytest.approx(large["cycles"] / WSE2.clock_hz)
    assert token != 1 / small["emulated"]
    assert end["emulated"] == pytest.approx(4 / (prefill + 4 * token))  # 8 + 4 // 2 = 10 cached, on 6 x 6 as in table 4
    assert len(store.outcomes) == 2 * 3
    assert all(row["ratio"] == row["emulated"] / 1000 for row in (end, first, small, large))
    assert [row["column"] for row in theirs] == [row["column"] for row in ours]
    for own, row in zip(ours, theirs, strict=True):
        assert (row["emulated"] is None) == (own["emulated"] is None)
        assert row["emulated"] is None or row["emulated"] != own["emulated"]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(
    ("systems", "emulated", "left_out"),
    [
        ((), {"waferllm", "as-published", "t10"}, set()),
        (("t10-inferred",), {"t10-inferred"}, {"waferllm", "as-published", "t10"}),
        (("t10-inferred", "t10"), {"t10-inferred", "t10"}, {"waferllm", "as-published"}),
    ],
)
def test_baselines_as_inferred_are_run_where_they_are_named(
    systems: tuple[str, ...], emulated: set[str], left_out: set[str], comm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [
        PublishedCell(4, "llama-tiny", system, "4x4", 1000.0, "tokens/s") for system in ("waferllm", "t10", "a100")
    ]
    monkeypatch.setattr(published, "table", lambda number: cells)
    monkeypatch.setattr(models, "CONTEXT", 10)
    store = RunStore()
    rows = [row for row in reproduce(comm, Console(), ("4",), WSE2, store, systems=systems)["rows"]
            if row["system"] != "a100"]  # fmt: skip
    rates = {row["system"]: row["emulated"] for row in rows if row["emulated"] is not None}
    assert set(rates) == emulated and len(set(rates.values())) == len(emulated)
    assert {row["system"] for row in rows if row["note"] == "left out"} == left_out
    assert all(("inferred from the tables" in row["note"]) == row["system"].endswith("-inferred") for row in rows)
    assert len(rows) == len(emulated | left_out) and len(store.outcomes) == len(emulated)


def test_systems_choose_the_tables_that_have_them() -> None:
    assert of_systems(NAMES, False, ()) == list(NAMES)
    assert of_systems(NAMES, False, ("ladder-inferred",)) == ["2", "3", "4"]
    assert of_systems(NAMES, False, ("as-published",)) == ["2", "3", "4", "7", "8"]
    assert of_systems(("5", "4"), True, ("t10-inferred",)) == ["5", "4"]
    assert of_systems(("gemm",), True, ()) == ["gemm"]
    assert of_systems(NAMES, False, (), ("qwen2-72b",)) == ["2", "3", "4", "7", "8"]
    assert of_systems(NAMES, False, ("t10",), ("qwen2-72b",)) == ["2", "3", "4"]
    with pytest.raises(UsageError, match="--model qwen2-72b chooses cells of whole models, and Table 5 and Figure 9"):
        of_systems(("5", "gemm"), True, (), ("qwen2-72b",))
    for names, system, says in (
        (
            ("7", "8"),
            "t10",
            "Table 7 and Table 8: no cells of t10, only of waferllm, as-published; Tables 2, 3",
        ),
        (("gemm",), "waferllm", "Figure 9, GEMM: no cells of waferllm; Tables 2, 3, 4, 7, 8 have them"),
    ):
        with pytest.raises(UsageError, match=re.escape(says)):
            of_systems(names, True, (system,))


@pytest.mark.mpi(ranks=[1])
def test_the_published_programs_stand_beside_ours(
    comm: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each table is shown as soon as it is there, and both are in a line of it."""
    cells = [PublishedCell(4, "llama-tiny", system, "4x4", 1000.0, "tokens/s") for system in ("waferllm", "a100")]
    monkeypatch.setattr(published, "table", lambda number: cells)
    monkeypatch.setattr(models, "CONTEXT", 10)
    seen = []

    def show(report: dict[str, Any], name: str) -> None:
        seen.append((name, len(report["rows"])))
        print_part(report, name)

    reproduced = reproduce(comm, Console(), ("4", "4"), WSE2, RunStore(), show=show)
    assert seen == [("4", 3), ("4", 6)]
    ours, theirs = (row for row in reproduced["rows"][:2])
    text = capsys.readouterr().out
    line = next(line for line in text.splitlines() if "llama-tiny" in line and "4x4" in line)
    assert line.split()[4:8] == [
        "1,000", f"{theirs['emulated']:,.0f}", f"{theirs['ratio']:.3g}", f"{ours['emulated']:,.0f}",
    ]  # fmt: skip
    assert "as published" in text and "ours" in text


# ------------------------------------------------------------------------------------------------ the command line


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["5", "--png", "{folder}"], "--png draws gemm and gemv, of which 5 has none"),
        (["5", "--cache", ""], "--cache '' names no file"),
        (["5", "--model", "gpt"], "no model 'gpt'"),
    ],
)
def test_options_that_could_do_nothing_are_refused(
    argv: list[str], words: str, run_meshrt: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "pictures"
    code, out, err, _ = run_meshrt("reproduce", "waferllm", *(part.format(folder=folder) for part in argv))
    assert (code, out) == (2, "") and err.startswith(f"meshrt: error: {words}")
    assert not folder.exists()


def test_the_command_says_what_tables_there_are() -> None:
    command = [sys.executable, "-m", "meshrt.cli", "reproduce", "waferllm", "9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "no table or figure '9'" in done.stderr
    assert all(name in done.stderr for name in NAMES)
