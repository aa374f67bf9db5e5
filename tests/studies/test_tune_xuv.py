"""Eqs. 10 and 11 of NeuronMM against their own closed forms and against runs; `meshrt tune xuv`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import astuple, replace
from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measure import on_one_rank
from tiers import examples

from meshrt.errors import LimitError, UsageError
from meshrt.neuron.device import TRN1, TRN2
from meshrt.neuron.language import bfloat16, float32
from meshrt.programs.neuron.blocks import BlockSizes
from meshrt.programs.neuron.plan import (
    KernelName,
    Product,
    balance,
    intensity,
    least_rows,
    peak_sbuf,
    propose,
    traffic,
)
from meshrt.ranks.console import Console
from meshrt.studies.sweep import RunJob, run_alone
from meshrt.studies.tune.xuv import check_found, print_answer, tune

WHOLE = st.integers(1, 64).map(lambda count: 128 * count)
DTYPES = st.sampled_from([bfloat16, float32])
KERNELS: st.SearchStrategy[KernelName] = st.sampled_from(["fused", "mlp"])


@st.composite
def works(draw: st.DrawFn, kernels: st.SearchStrategy[KernelName] = KERNELS) -> Product:
    dtype = draw(DTYPES)
    return Product(*(draw(WHOLE) for _ in "mkrn"), draw(kernels), dtype, dtype)


# --------------------------------------------------------------------------------------------------- the formulas


@given(works(st.just("fused")), st.integers(1, 8))
def test_intensity_is_the_second_line_of_eq_10_where_blocks_divide(work: Product, strips: int) -> None:
    block_m = 128 * strips
    whole = replace(work, m=block_m * 3)
    s = work.dtype.itemsize
    assert intensity(whole, block_m) == pytest.approx(2 * work.r / ((1 + work.r / block_m) * s))


@given(works(st.just("fused")), st.tuples(*[st.sampled_from([128, 256, 512, 1024])] * 4))
def test_peak_is_the_second_line_of_eq_11_where_blocks_are_no_longer_than_their_matrix(
    work: Product, sizes: tuple[int, int, int, int]
) -> None:
    m, k, r, n = sizes
    large = replace(work, m=max(m, work.m), k=max(k, work.k), r=max(r, work.r), n=max(n, work.n))
    stated = (m * large.r + (m + r) * max(k, n)) * work.dtype.itemsize
    assert peak_sbuf(large, BlockSizes(*sizes)) == stated


def test_table_4s_formulas() -> None:
    """x [4096, 7168], u [7168, 4096], v [4096, 18432], blocks of 1024, 512, 1024 and 512, two bytes a number."""
    work = Product(4096, 7168, 4096, 18432, "fused", bfloat16, bfloat16)
    assert intensity(work, 1024) == pytest.approx(819.2)  # 2 x 4096 / (5 x 2)
    assert peak_sbuf(work, BlockSizes(1024, 512, 1024, 512)) == (1024 * 4096 + 2048 * 512) * 2  # 10 MiB


def test_wider_sums_are_held_beside_the_strip_that_they_become() -> None:
    work = Product(128, 128, 4096, 128, "fused", bfloat16, float32)
    assert peak_sbuf(work, BlockSizes(128, 128, 128, 128)) == 128 * 4096 * (4 + 2)


def test_the_balance_is_the_peak_rate_over_hbms() -> None:
    assert balance(TRN1, bfloat16) == pytest.approx(2 * 128 * 128 * 2.8e9 / 410e9)  # 223.8; the paper has 222
    assert balance(TRN1, float32) == balance(TRN1, bfloat16) / 4
    assert balance(TRN1, bfloat16) == pytest.approx(222, rel=0.01)


@given(works())
def test_the_least_rows_are_the_first_that_reach_the_balance(work: Product) -> None:
    least, wanted = least_rows(work, TRN1), balance(TRN1, work.dtype)

    def reached(rows: int) -> float:
        return intensity(replace(work, m=rows), rows)  # one strip: eq. 10 has no more than that

    if least is None:
        assert reached(10**12) <= wanted
    else:
        assert reached(least) >= wanted * (1 - 1e-12)
        assert least == 1 or reached(least - 1) < wanted


# ---------------------------------------------------------------------------------------------------- proposals


@given(works(), st.sampled_from([TRN1, TRN2]))
@settings(max_examples=examples(40))
def test_proposals_are_whole_tiles_that_fit_and_reach_the_balance_if_any_do(work: Product, device: Any) -> None:
    try:
        plans = propose(work, device)
    except UsageError as error:
        # The least that there is: a tile's strip, and blocks of one tile beside it.
        assert peak_sbuf(work, BlockSizes(128, 128, 128, 128)) > device.sbuf_bytes
        assert "lower --r" in str(error)
        return
    assert len(set(plans)) == len(plans)
    least = least_rows(work, device)
    strong = [plan for plan in plans if least is not None and plan.blocks.m >= min(least, work.m)]
    assert strong in ([], plans)
    for plan in plans:
        assert all(size % 128 == 0 for size in astuple(plan.blocks))
        assert plan.sbuf_bytes == peak_sbuf(work, plan.blocks) <= device.sbuf_bytes
        assert plan.intensity == intensity(work, plan.blocks.m)
    first = plans[: len({plan.blocks.m for plan in plans})]
    assert {plan.blocks.m for plan in first} == {plan.blocks.m for plan in plans}
    assert [plan.intensity for plan in first] == sorted((plan.intensity for plan in first), reverse=True)


def test_a_rank_whose_strip_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match=r"hold a strip of 128 x 100000: lower --r"):
        propose(Product(4096, 128, 100_000, 128, "fused", bfloat16, bfloat16), TRN1)


@pytest.mark.mpi(ranks=[1])
@given(
    st.tuples(st.integers(1, 700), *[st.integers(1, 600)] * 3),
    st.tuples(*[st.sampled_from([128, 256, 384])] * 4),
    KERNELS,
    st.sampled_from(["bfloat16", "float32"]),
)
@settings(max_examples=examples(30))
def test_runs_move_the_bytes_of_eq_10_and_do_its_operations(
    sizes: tuple[int, int, int, int], blocks: tuple[int, int, int, int], kernel: KernelName, dtype: str
) -> None:
    """At sizes that divide nothing: whole strips are counted, elements are not rounded up to tiles."""
    tile = {"bfloat16": bfloat16, "float32": float32}[dtype]
    work = Product(*sizes, kernel, tile, tile)
    measured = _run(work, dtype, BlockSizes(*blocks))
    m, k, r, n = sizes
    pairs = 3 if kernel == "mlp" else 1
    crossings = (m * k + m * n) * (2 if kernel == "mlp" else 1)
    stated = tile.itemsize * (crossings + ceil(m / blocks[0]) * pairs * r * (k + n))
    assert measured["hbm_bytes"]["total"] == stated == traffic(work, blocks[0])
    assert measured["flops"] == 2 * m * r * (k + n) * pairs == work.flops


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("kernel", ["fused", "mlp"])
@pytest.mark.parametrize("sums", ["tile", "float32"])
def test_runs_hold_what_eq_11_says_and_at_most_double_buffers_more(kernel: KernelName, sums: str) -> None:
    """The blocks of 256 x 256 that are loaded, and at most another of each: 128 KiB a block of bfloat16."""
    work = Product(512, 1024, 512, 1024, kernel, bfloat16, bfloat16 if sums == "tile" else float32)
    blocks = BlockSizes(256, 256, 256, 256)
    measured = _run(work, "bfloat16", blocks)["sbuf_bytes"]["max"]
    stated = peak_sbuf(work, blocks)
    assert stated <= measured <= stated + (3 if kernel == "fused" else 6) * 2**17


def _run(work: Product, dtype: str, blocks: BlockSizes) -> Any:
    options = {f"block_{axis}": size for axis, size in zip("mkrn", astuple(blocks), strict=True)}
    sizes = {axis: getattr(work, axis) for axis in "mkrn"}
    sums = "tile" if work.sums == work.dtype else "float32"
    arguments = {"kernel": work.kernel, "dtype": dtype, "sums": sums, **sizes, **options}
    report = run_alone(RunJob("xuv", (1, 1), TRN1, arguments)).report
    assert report is not None
    return report["measured"]


# -------------------------------------------------------------------------------------------------------- tuning

ASKED: dict[str, Any] = {
    "kernel": "fused", "m": 1024, "k": 512, "r": 384, "n": 640, "dtype": "bfloat16", "sums": "float32", "cores": 1,
    "top": 5,
}  # fmt: skip


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize("kernel, cores", [("fused", 1), ("mlp", 2)])
def test_the_choice_is_the_fastest_run_and_the_same_on_any_ranks(comm: Any, kernel: str, cores: int) -> None:
    options = {**ASKED, "kernel": kernel, "cores": cores}
    answer = tune(comm, Console(), TRN1, **options)
    alone = on_one_rank(comm, lambda single: tune(single, Console(), TRN1, **options))
    answer.pop("host"), alone.pop("host")
    assert answer == alone
    candidates = answer["candidates"]
    assert len(candidates) == 5 < answer["proposals"]
    (best,) = (candidate for candidate in candidates if candidate["fastest"])
    assert best["seconds"] == min(candidate["seconds"] for candidate in candidates)
    assert answer["choice"] == best["options"]
    arguments = {**answer["arguments"], **best["options"]}
    report = run_alone(RunJob("xuv", (cores, 1), TRN1, arguments)).report
    assert report is not None and report["measured"]["critical_path"]["seconds"] == best["seconds"]
    for shown in (candidate["intensity"] for candidate in candidates):
        assert shown["measured"] == pytest.approx(shown["equation_10"])  # nothing is spilled


@pytest.mark.mpi(ranks=[1])
def test_what_the_machine_refuses_is_no_choice(comm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    answer = tune(comm, Console(), replace(TRN1, hbm_bytes=10_000), **ASKED)
    assert answer["choice"] is None and all(candidate["seconds"] is None for candidate in answer["candidates"])
    with pytest.raises(LimitError, match="none of 5 proposed blocks can run on trn1; the last: HBM of NeuronCore 0"):
        check_found(answer)
    print_answer(answer)
    assert "refused [1]" in capsys.readouterr().out


@pytest.mark.mpi(ranks=[1])
def test_the_table_marks_the_fastest_and_says_how_to_run_it(comm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    answer = tune(comm, Console(), TRN1, **ASKED)
    print_answer(answer)
    lines = capsys.readouterr().out.splitlines()
    blocks = "/".join(str(size) for size in answer["choice"].values())
    (line,) = (line for line in lines if line.endswith("fastest"))
    assert line.split()[0] == blocks
    assert lines[-1].startswith("meshrt run xuv --kernel fused --m 1024 --k 512 --r 384 --n 640 --dtype bfloat16")


def test_the_command_gives_json_and_models_are_tuned_as_before(run_meshrt: Callable[..., Any]) -> None:
    sizes = ("--m", "256", "--k", "256", "--r", "128", "--n", "512")
    done = run_meshrt("tune", "xuv", *sizes, "--top", "2", "--kernel", "mlp", "--cores", "2", "--json", "-")
    assert done.code == 0, done.stderr
    answer = json.loads(done.stdout)
    assert len(answer["candidates"]) == 2 and answer["cores"] == 2 and answer["arguments"]["kernel"] == "mlp"
    for arguments, message in (
        (("tune", "xuv", "--m", "256"), "Missing option '--k'"),
        (("tune", "xuv", *sizes, "--top", "0"), "'--top'"),
        (("tune", "llama-tiny", "--new-tokens", "3"), "Missing option '--prompt-tokens'"),
    ):
        done = run_meshrt(*arguments)
        assert done.code == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1
