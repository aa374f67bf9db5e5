"""The paper's integers from emulated runs by shape, and what the commands print."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from mpi_jobs import Finished
from test_arm_vectors import team_of

from meshrt.programs.arm.vectors import F32, laid, sweep, taken
from meshrt.studies.arm import counts, unfused
from meshrt.studies.arm.peak import corrected
from meshrt.studies.arm.published import BANDWIDTH, PRODUCTS, SMMLA
from meshrt.studies.arm.split import measure


def quiet(_: str) -> None:
    """Nobody is told."""


def test_decode_is_counted_to_the_last_digit() -> None:
    found = counts.linear(1, 1, counts.ROW, quiet)
    assert (found.operations, found.nbytes) == (3_050_831_872, 766_017_024)
    blocks = counts.linear(1, 1, counts.BLOCK, quiet)
    assert (blocks.operations, blocks.nbytes) == (3_050_831_872, 860_031_744)
    assert counts.attention_operations("decode") == 24 * 4 * 585 * 2048
    assert counts.attention_operations("decode") + counts.softmax_operations("decode") == 115_324_560
    assert counts.attention_bytes("decode") == 230_761_536 and counts.other_bytes("decode") == 19_660_800


def test_the_papers_terms_of_attention_come_from_runs_operator_by_operator() -> None:
    """22 operations of softmax and 24 bytes a score; q, k, v and what comes out in float32."""
    assert counts.score_operations() == 22
    for tokens, seen, heads, kv_bytes in ((1, 585, 1, 4), (1, 585, 16, 2), (7, 9, 1, 4), (13, 21, 4, 4)):
        truth = 8 * tokens * 2048 + 2 * kv_bytes * seen * 2048 + 24 * tokens * seen * heads
        assert unfused.dram_bytes(tokens, seen, heads, kv_bytes) == truth
        for number in (0, 3):
            phase = unfused.operator(number, tokens, seen, heads).phase("operator")
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
    planned, best = counts.best_tile(unit, bits)
    assert planned == best


def test_what_fused_attention_runs_and_moves() -> None:
    length, hidden, heads, blocks = 585, 2048, 16, 24
    assert blocks * counts.fused("decode").phase("attention", "useful_operations.fmla_8h") == (
        counts.attention_operations("decode")
    )
    # DRAM: what comes in, and keys and values of float16 once, but for the pieces of 8 KiB in which the new ones were
    # just written; these go out when others need their room.
    incoming, pieces = 4 * 3 * hidden, 2 * heads * ((length - 1) * 2 * 128 // 8192 * 8192)
    written = 2 * 2 * hidden
    assert counts.attention_moved("decode", "dram_bytes.total") == blocks * (incoming + pieces + written)
    # For each score of every head, in eights: a maximum, a clip, a difference, 2 products, rounding, a sum, and fmla
    # and fmls; in the end maxima, sums and a division of a row. Heads turn in two products, fmla and fmls, after a bias
    # of each half; queries are scaled; values have a bias.
    scores = heads * 8 * -(-length // 8)
    rest = heads * 4 * (1 + 2 + 1) + 2 * 128 * heads * (1 + 1 + 2) + 128 * heads * 1 + 128 * heads * 1
    assert counts.between_operations("decode") == blocks * (scores * (1 + 1 + 1 + 1 + 1 + 1 + 1 + 2 * (6 + 2)) + rest)


def test_products_attention_and_the_rest_are_all_that_a_block_runs() -> None:
    """Instructions of the whole model's second block, and registers that they load and store: nothing is left out."""
    for path in ("instructions.total", "l1_bytes"):
        whole = [counts.model("decode", layers=layers).phase("decode", path) for layers in (2, 3)]
        products = [counts.product(1, *shape, **counts.ROW).phase("linear", path) for shape in PRODUCTS.values()]
        between = [report.phase("stretch", path) for report in counts.stretches("decode")]
        assert whole[1] - whole[0] == sum(products) + counts.fused("decode").phase("attention", path) + sum(between)


@pytest.mark.all
def test_prefill_is_counted_to_the_last_digit_and_the_peaks_follow() -> None:
    found = counts.linear(560, 560, counts.ROW, quiet)
    assert (found.operations, found.nbytes) == (1_708_465_848_320, 1_875_788_544)
    assert counts.linear(560, 1, counts.ROW, quiet).operations == 1_360_583_458_816
    assert counts.attention_operations("prefill") + counts.softmax_operations("prefill") == 61_821_849_600
    assert counts.attention_bytes("prefill") == 621_035_520 and counts.other_bytes("prefill") == 11_010_048_000
    assert found.operations / SMMLA > found.nbytes / BANDWIDTH
    speeds = [[round(models[phase].tokens_per_second, 2) for phase in ("prefill", "decode")]
              for _, models in corrected(quiet)]  # fmt: skip
    assert speeds == [
        [667.95, 104.87], [622.08, 97.67], [722.35, 97.67], [814.62, 97.67], [810.46, 97.19], [810.46, 109.52],
        [810.46, 99.23], [881.18, 100.21], [892.61, 101.7],
    ]  # fmt: skip
    first = corrected(quiet)[0][1]
    times = [[round(1e3 * seconds, digits) for seconds, digits in zip(first[phase].seconds, (2, 2, 2), strict=True)]
             for phase in ("prefill", "decode")]  # fmt: skip
    assert times == [[571.53, 163.57, 103.29], [7.19, 2.16, 0.18]]


def test_splits_side_by_side() -> None:
    lines = {(line.work, line.split): line for line in measure("phone", 8, 256, 512)}
    assert round(lines["computing", "equal"].ratio, 3) == 1.607 and round(lines["computing", "speed"].ratio, 3) == 1.009
    assert lines["computing", "speed"].units == (153, 108, 108, 108, 54, 54, 54, 49)
    reading = [round(lines["reading 4 GB", way].milliseconds, 2) for way in ("equal", "speed", "rate")]
    assert reading == [62.50, 63.79, 58.82]
    products = {split: line for (work, split), line in lines.items() if work == "8 x 256 x 512 on phone"}
    assert products["rate"].milliseconds < products["equal"].milliseconds


def test_the_commands(run_meshrt: Callable[..., Finished]) -> None:
    code, out, err, _ = run_meshrt("reproduce", "arm", "other", "--json", "-")
    assert code == 0, err
    document = json.loads(out)
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
