"""The paper's integers from emulated runs by shape, and what the commands print."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi_jobs import Finished
from test_arm_vectors import team_of

from meshrt.arm.kernel import OTHERS
from meshrt.errors import LimitError
from meshrt.programs.arm.simd.vectors import F32, laid, sweep, taken
from meshrt.ranks.alone import Alone
from meshrt.ranks.console import Console
from meshrt.reports.report import Report
from meshrt.studies.arm import counts, runs, unfused
from meshrt.studies.arm.peak import corrected
from meshrt.studies.arm.published import BANDWIDTH, PRODUCTS, SMMLA
from meshrt.studies.arm.reproduce import open_runs, reproduce
from meshrt.studies.arm.runs import number
from meshrt.studies.arm.split import measure
from meshrt.studies.arm.tables import TABLES, CountRow
from meshrt.studies.rows import Emulate
from meshrt.studies.store import key_of
from meshrt.studies.sweep import Outcome, RunJob, run_alone

_KEPT: dict[str, Outcome] = {}


def at_once(job: RunJob) -> Outcome:
    """The outcome of a job, which is run once for all tests."""
    key = key_of(job)
    if key not in _KEPT:
        _KEPT[key] = run_alone(job)
    return _KEPT[key]


def ran(job: RunJob) -> Report:
    report = at_once(job).report
    assert report is not None
    return Report(report)


def test_decode_is_counted_to_the_last_digit() -> None:
    rows = counts.linear(at_once, 1, 1, runs.ROW)
    assert (rows.operations, rows.nbytes) == (3_050_831_872, 766_017_024)
    blocks = counts.linear(at_once, 1, 1, runs.BLOCK)
    assert (blocks.operations, blocks.nbytes) == (3_050_831_872, 860_031_744)
    assert counts.attention_operations(at_once, "decode") == 24 * 4 * 585 * 2048
    assert counts.attention_operations(at_once, "decode") + counts.softmax_operations(at_once, "decode") == 115_324_560
    assert counts.attention_bytes(at_once, "decode") == 230_761_536 and counts.other_bytes("decode") == 19_660_800


def test_the_papers_terms_of_attention_come_from_runs_operator_by_operator() -> None:
    """22 operations of softmax and 24 bytes a score; q, k, v and what comes out in float32."""
    assert counts.score_operations(at_once) == 22
    for tokens, seen, heads, kv_bytes in ((1, 585, 1, 4), (1, 585, 16, 2), (7, 9, 1, 4), (13, 21, 4, 4)):
        truth = 8 * tokens * 2048 + 2 * kv_bytes * seen * 2048 + 24 * tokens * seen * heads
        assert unfused.dram_bytes(at_once, tokens, seen, heads, kv_bytes) == truth
        for product in (0, 3):
            phase = ran(unfused.operator(product, tokens, seen, heads)).phase("operator")
            assert phase["useful_operations"]["fmla"] == 2 * tokens * seen * 2048


def test_the_mask_leaves_what_is_seen() -> None:
    x, positions = np.arange(8, dtype=np.float32), np.arange(8, dtype=np.int32)
    limit = np.concatenate((np.full(4, 5, np.int32).view(np.uint8), np.full(4, -np.inf, np.float32).view(np.uint8)))
    inputs = {"x": laid(x[None], 4), "positions": laid(positions[None], 4), "limit": limit[None, None]}
    stored = sweep(team_of(1), unfused.MASK, (1,), 2, inputs, {"y": 16})
    assert stored is not None and taken(stored["y"], F32, 8)[0].tolist() == [0, 1, 2, 3, 4, *[-np.inf] * 3]


@pytest.mark.sample(1)
@pytest.mark.parametrize("unit, bits", [("smmla", 4), ("sdot", 4), ("sdot", 8)])
def test_the_planners_tile_is_the_best_of_all_that_run(unit: str, bits: int) -> None:
    planned, best = counts.best_tile(at_once, unit, bits)
    assert planned == best


def test_what_fused_attention_runs_and_moves() -> None:
    length, hidden, heads, blocks = 585, 2048, 16, 24
    assert blocks * ran(runs.fused("decode")).phase("attention", "useful_operations.fmla_8h") == (
        counts.attention_operations(at_once, "decode")
    )
    # DRAM: what comes in, and keys and values of float16 once, but for the new ones, which were just written. Of 32
    # tiles of 150 KB, 24 are in the SLC in the end; what is new of the eight others had to leave.
    incoming, past, written = 4 * 3 * hidden, 2 * heads * (length - 1) * 2 * 128, 8 * 2 * 128
    assert counts.attention_moved(at_once, "decode", "dram_bytes.total") == blocks * (incoming + past + written)
    # For each score of every head, in eights: a maximum, a clip, a difference, 2 products, rounding, a sum, and fmla
    # and fmls; in the end maxima, sums and a division of a row. Heads turn in two products, fmla and fmls, after a bias
    # of each half; queries are scaled; values have a bias.
    scores = heads * 8 * -(-length // 8)
    rest = heads * 4 * (1 + 2 + 1) + 2 * 128 * heads * (1 + 1 + 2) + 128 * heads * 1 + 128 * heads * 1
    assert counts.between_operations(at_once, "decode") == blocks * (
        scores * (1 + 1 + 1 + 1 + 1 + 1 + 1 + 2 * (6 + 2)) + rest
    )


def test_products_attention_and_the_rest_are_all_that_a_block_runs() -> None:
    """Instructions of the whole model's second block, and registers that they load and store: nothing is left out."""
    models = [ran(runs.model("decode", layers=layers)) for layers in (2, 3)]
    linear = [ran(runs.product(1, *shape, **runs.ROW)) for shape in PRODUCTS.values()]
    stretches, fused = [ran(job) for job in runs.stretches("decode")], ran(runs.fused("decode"))
    for path in ("instructions.total", "l1_bytes"):
        whole = [report.phase("decode", path) for report in models]
        products = [report.phase("linear", path) for report in linear]
        between = [report.phase("stretch", path) for report in stretches]
        assert whole[1] - whole[0] == sum(products) + fused.phase("attention", path) + sum(between)
    blocks = [simd(report, "decode") for report in models]
    products = [simd(report, "linear") for report in linear]
    multiplied = fused.phase("attention", "instructions.fmla_8h")
    assert counts.issued(at_once, "decode") == 24 * (blocks[1] - blocks[0] - sum(products) - multiplied)


def simd(report: Report, phase: str) -> int:
    """Instructions that a SIMD pipe took."""
    instructions = report.phase(phase, "instructions")
    return sum(count for op, count in instructions.items() if op not in (*OTHERS, "total"))


@pytest.mark.all
def test_prefill_is_counted_to_the_last_digit_and_the_peaks_follow() -> None:
    rows = counts.linear(at_once, 560, 560, runs.ROW)
    assert (rows.operations, rows.nbytes) == (1_708_465_848_320, 1_875_788_544)
    assert counts.linear(at_once, 560, 1, runs.ROW).operations == 1_360_583_458_816
    assert (
        counts.attention_operations(at_once, "prefill") + counts.softmax_operations(at_once, "prefill")
        == 61_821_849_600
    )
    assert counts.attention_bytes(at_once, "prefill") == 621_035_520 and counts.other_bytes("prefill") == 11_010_048_000
    assert rows.operations / SMMLA > rows.nbytes / BANDWIDTH
    speeds = [[round(models[phase].tokens_per_second, 2) for phase in ("prefill", "decode")]
              for _, models in corrected(at_once)]  # fmt: skip
    assert speeds == [
        [667.95, 104.87], [622.08, 97.67], [722.35, 97.67], [814.62, 97.67], [810.46, 97.19], [810.46, 109.52],
        [810.46, 99.23], [881.18, 100.21], [892.61, 101.7],
    ]  # fmt: skip
    first = corrected(at_once)[0][1]
    times = [[round(1e3 * seconds, digits) for seconds, digits in zip(first[phase].seconds, (2, 2, 2), strict=True)]
             for phase in ("prefill", "decode")]  # fmt: skip
    assert times == [[571.53, 163.57, 103.29], [7.19, 2.16, 0.18]]


def _small(emulate: Emulate) -> list[CountRow]:
    return [CountRow("small", "bytes", None, number(emulate, runs.product(8, 64, 64), "l1_bytes", "linear"))]


def test_an_interrupted_reproduction_goes_on_with_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are kept as they come; tables are shown as they come, and are those of runs that nobody interrupted."""
    monkeypatch.setitem(TABLES, "small", _small)
    path, started, shown = str(tmp_path / "runs.json"), list[str](), list[tuple[str, int]]()

    def show(report: dict[str, Any], name: str) -> None:
        shown.append((name, len(report["rows"])))

    def counted(job: RunJob) -> Outcome:
        if len(started) == 3:
            raise KeyboardInterrupt
        started.append(key_of(job))
        return at_once(job)

    monkeypatch.setattr("meshrt.studies.sweep.run_alone", counted)
    with pytest.raises(KeyboardInterrupt):
        reproduce(Alone(), Console(), ("small", "other"), open_runs(path), show)
    assert shown == [("small", 1)] and set(open_runs(path).outcomes) == set(started)
    before = started.copy()
    started[:] = []
    monkeypatch.setattr("meshrt.studies.sweep.run_alone", lambda job: (started.append(key_of(job)), at_once(job))[1])
    report = reproduce(Alone(), Console(), ("small", "other"), open_runs(path), show)
    assert len(started) == 9 - 3 and not set(started) & set(before)
    assert shown[1:] == [("small", 1), ("other", 7)]
    rows = [*_small(at_once), *TABLES["other"](at_once)]
    assert report["rows"] == [asdict(row) for row in rows] and report["errors"]


def test_what_a_machine_refuses_is_no_table() -> None:
    with pytest.raises(LimitError, match="37 registers"):
        number(run_alone, runs.product(20, 64, 64, tile="12x8"), "l1_bytes", "linear")


def test_splits_side_by_side() -> None:
    lines = {(line.work, line.split): line for line in measure("phone", 8, 256, 512)}
    assert round(lines["computing", "equal"].ratio, 3) == 1.607 and round(lines["computing", "speed"].ratio, 3) == 1.009
    assert lines["computing", "speed"].units == (153, 108, 108, 108, 54, 54, 54, 49)
    reading = [round(lines["reading 4 GB", way].milliseconds, 2) for way in ("equal", "speed", "rate")]
    assert reading == [62.50, 63.79, 58.82]
    products = {split: line for (work, split), line in lines.items() if work == "8 x 256 x 512 on phone"}
    assert products["rate"].milliseconds < products["equal"].milliseconds


def test_the_commands(run_meshrt: Callable[..., Finished], tmp_path: Path) -> None:
    kept = str(tmp_path / "runs.json")
    code, out, err, _ = run_meshrt("reproduce", "arm", "other", "--cache", kept, "--json", "-", ranks=2)
    assert code == 0, err
    document = json.loads(out)
    code, out, err, _ = run_meshrt("reproduce", "arm", "other", "--cache", kept, "--csv", str(tmp_path))
    assert code == 0 and "Table other: 0 runs to do, 8 done" in out, err
    with (tmp_path / "tables.csv").open() as stream:
        assert [float(row["counted"]) for row in csv.DictReader(stream)] == [row["counted"] for row in document["rows"]]
    assert out.index("Table other:") < out.index("bytes of DRAM, prefill") < out.index("What the paper has wrong")
    assert [row["formula"] for row in document["rows"] if row["formula"]] == [11_010_048_000, 19_660_800] and len(
        document["errors"]
    ) == 18
    code, out, err, _ = run_meshrt("reproduce", "arm", "nothing")
    assert code == 2 and "no table 'nothing'" in err
    code, out, err, _ = run_meshrt("bench", "split", "--m", "2", "--k", "64", "--n", "64")
    assert code == 0 and "245.71        1.607" in out and "62.50        1.062" in out
    code, out, err, _ = run_meshrt("devices")
    assert code == 0 and "3 x Cortex-A715" in out and "source: assumed" in out
    code, out, err, _ = run_meshrt("run", "linear", "--tile", "12x8")
    assert code == 3 and "kernel smmla 12x8 w4 asks for 37 registers, the limit is 32" in err
