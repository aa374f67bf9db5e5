"""`meshrt reproduce milo`: exact sizes, rooflines, stripes of tiles, and the packaged mixtures on a few stories."""

import json
from collections.abc import Callable
from dataclasses import replace
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import pytest
from measure import on_one_rank
from mpi_jobs import Finished

from meshrt.errors import UsageError
from meshrt.models.catalogue import find_model, packaged
from meshrt.models.quantize.choice import choose
from meshrt.models.quantize.model import read_model, statistics
from meshrt.models.quantize.shapes import shapes_of
from meshrt.models.quantize.sizes import CodeScheme
from meshrt.models.quantize.sizes import sizes as sizes_of
from meshrt.models.texts import story_sequences
from meshrt.models.tokenizer import load_tokenizer
from meshrt.ranks.console import Console
from meshrt.studies.milo import published, quality, rooflines, sizes, stripes, weights
from meshrt.studies.milo.claims import worse
from meshrt.studies.milo.kept import RecipeOutcomes, open_kept
from meshrt.studies.milo.printed import print_claims, print_part
from meshrt.studies.milo.quality import Recipe, RecipeOutcome, measure
from meshrt.studies.milo.recipes import BUDGET, RECIPES, TINY
from meshrt.studies.milo.reproduce import NAMES, reproduce, write_files
from meshrt.studies.rows import PaperRow

MIXTRAL, DEEPSEEK = published.MODELS["mixtral-8x7b"], published.MODELS["deepseek-moe-16b"]


def value(rows: list[PaperRow], subject: str, system: str, column: str) -> float:
    (row,) = [row for row in rows if (row.subject, row.system, row.column) == (subject, system, column)]
    assert row.emulated is not None
    return row.emulated


def test_table_3_has_the_papers_sizes() -> None:
    """3.7 bits for each of 46,439,333,888 weights and 2 bytes for each of 263,458,816 others, and so on."""
    rows = sizes.table3()
    assert value(rows, MIXTRAL, "HQQ", "memory") == ceil(46_439_333_888 * 3.7 / 8 + 2 * 263_458_816) / 2**30
    for subject, system, gib in (
        (MIXTRAL, "RTN", 20.4939), (MIXTRAL, "GPTQ", 18.3379), (MIXTRAL, "MiLo-s1", 20.7793),
        (MIXTRAL, "MiLo-s2", 21.0648), (DEEPSEEK, "RTN", 7.6594), (DEEPSEEK, "GPTQ", 6.9478),
        (DEEPSEEK, "MiLo-s1", 7.9667), (DEEPSEEK, "MiLo-s2", 8.2997),
    ):  # fmt: skip
        assert round(value(rows, subject, system, "memory"), 4) == gib
    assert round(value(rows, MIXTRAL, "HQQ", "memory, no bit wasted"), 4) == 19.4126
    off = [abs(row.ratio - 1) for row in rows if row.ratio is not None]
    assert len(off) == 10 and max(off) < 0.004


def test_tables_4_to_6_have_the_papers_sizes() -> None:
    fourth = sizes.table4()
    mebibytes = {(row.subject, row.system): row.emulated for row in fourth}
    assert [round(size or 0, 2) for size in mebibytes.values()] == [185.35, 192.40, 199.80, 182.50, 201.38, 189.65]
    assert [row.subject for row in fourth if (row.emulated or 0) > published.BUDGET_MIB] == [DEEPSEEK]
    for row in sizes.table6():
        rank, bits = int(row.column.split()[-1]), int(row.system.removeprefix("INT"))
        numbers = 15_007_744 * rank
        exact = numbers * 3.7 / 8 if bits == 3 else numbers + 8 * (8_716_288 + 896 * rank)
        assert row.emulated == pytest.approx(exact / 2**20, abs=1 / 2**20)  # a whole byte
        assert round(row.emulated) == row.published
    fifth = sizes.table5()
    assert [row.note[:2] for row in fifth] == ["", "64", "", ""]


def test_rooflines_are_what_bytes_and_operations_allow() -> None:
    """Mixtral: 1,342,177,280 weights of attention, 45,097,156,608 of experts, 32,000 x 4,096 of the head."""
    attention, experts, head = 1_342_177_280, 45_097_156_608, 32_000 * 4_096
    form = rooflines.END_TO_END["MiLo"]
    single = ((attention + experts / 4) * 3.5 / 8 + 2 * head) / 1555e9
    assert rooflines.step_seconds(form, 1) == pytest.approx(single, rel=1e-12) and single == pytest.approx(
        3.7e-3, abs=5e-5
    )
    hit = 1 - 0.75**16
    sixteen = ((attention + experts * hit) * 3.5 / 8 + 2 * head) / 1555e9
    assert rooflines.step_seconds(form, 16) == pytest.approx(sixteen, rel=1e-12)
    assert sixteen == pytest.approx(13.1e-3, abs=5e-5) and 8 * hit == pytest.approx(7.92, abs=5e-3)
    many = 4096
    operations = 2 * many * (attention + experts / 4 + head)
    assert rooflines.step_seconds(form, many) == pytest.approx(operations / 312e12, rel=1e-12)
    ratios = [row.emulated for row in rooflines.table7() if row.unit == "x"]
    assert all(1.13 < (ratio or 0) < 4 / 3.5 for ratio in ratios)
    for row in rooflines.figure9():
        most = 4.125 / (3.25 if row.system.split()[-1] == "symmetric" else 3.5)
        assert 0.99 * most < (row.emulated or 0) < most
        assert row.published is None or row.published < (row.emulated or 0)
    assert [rooflines.compute_bound_from(form) for form in rooflines.MILO.values()] == [41, 44]
    refused = [row for row in rooflines.table7() if row.system == "PyTorch"]
    assert len(refused) == 3 and all(row.emulated is None and "86.99 GiB" in row.note for row in refused)


@pytest.mark.parametrize("tiles", [(64, 256), (128, 128), (256, 64)])
@pytest.mark.parametrize("shape", [(2048, 11008), (14336, 4096), (2048, 2816), (512, 512), (256, 256)])
def test_meetings_are_counted_tile_by_tile(shape: tuple[int, int], tiles: tuple[int, int]) -> None:
    rows, columns = shape[0] // tiles[0], shape[1] // tiles[1]
    stripe = -(-rows * columns // stripes.MULTIPROCESSORS)
    blocks: dict[int, set[int]] = {}
    for tile in range(rows * columns):
        blocks.setdefault(tile // rows, set()).add(tile // stripe)
    assert stripes.meetings(*shape, *tiles) == sum(len(own) - 1 for own in blocks.values())


def test_tiles_that_do_not_fit_are_told() -> None:
    assert stripes.meetings(2048, 10944, 64, 256) is None and stripes.meetings(2048, 10944, 256, 64) is not None
    assert [row.note for row in stripes.table9() if row.emulated is None] == 6 * ["no whole number of tiles"]


def test_what_needs_the_published_weights_has_no_figure_here() -> None:
    for name in NAMES:
        rows = weights.rows(name)
        assert all(row.emulated is None and row.note.startswith("needs the published weights") for row in rows)
        assert bool(rows) == (name in ("1", "2", "3", "4", "6", "8"))
    perplexities = {row.system: row.published for row in weights.rows("8") if row.subject == MIXTRAL}
    assert perplexities["sparse-32"] == 4.5968 and perplexities["dense-512"] == 4.1683
    assert {row.published for row in weights.rows("4") if row.system == "sparse-32"} == {4.5986, 59.87}


def measured(nats: list[float]) -> RecipeOutcome:
    return RecipeOutcome("", 1, 0, 3.5, (), tuple((loss, 1) for loss in nats), 0.0)


def test_orders_hold_by_two_standard_errors() -> None:
    """Differences of 1, 2, 3: 2 +- 1 / sqrt(3)."""
    base, more = measured([5.0, 6.0, 9.0]), measured([6.0, 8.0, 12.0])
    assert more.more_than(base) == pytest.approx((2, 1 / sqrt(3)))
    outcomes = {"a": more, "b": base, "c": measured([4.0, 7.0, 9.1])}
    assert worse("", "", outcomes, "a", "b").holds is True
    assert worse("", "", outcomes, "b", "a").holds is False
    assert worse("", "", outcomes, "c", "b").holds is None
    assert worse("", "", outcomes, "a", "b").found == "+2000.00 +- 577.35 mnats"


def test_table_4s_policies_get_the_same_bytes_and_the_averages_are_exact() -> None:
    """Ranks as the study's recipes have them, by statistics of a few stories; nothing is quantized."""
    for model, budget in BUDGET.items():
        config, checkpoint = read_model(find_model(model))
        text = story_sequences(config, load_tokenizer(find_model(model)), 0, 4)
        shapes, figures = shapes_of(config), statistics(config, checkpoint, text)
        scheme = CodeScheme("milo", 3, 64, False, 3)
        recipes = {name: recipe for name, recipe in RECIPES["4"](model).items() if recipe.ranks}
        chosen = {
            name: choose(shapes, scheme, recipe.ranks or "", recipe.budget, figures)[0]
            for name, recipe in recipes.items()
        }
        nbytes = {name: sizes_of(shapes, scheme, ranks)["compensator_bytes"] for name, ranks in chosen.items()}
        assert all(0.75 * budget < nbytes[name] <= budget for name in ("uniform", "dense", "sparse"))
        both = [name for name in chosen if "+" in name]
        assert len(both) == 4 and len({nbytes[name] for name in both}) == 1
        experts = [matrix.name for matrix in shapes.matrices if matrix.expert]
        assert all(sum(chosen[name].get(expert, 0) for expert in experts) == 4 * len(experts) for name in both)
        assert len({tuple(chosen[name].items()) for name in both}) == 4


@pytest.mark.sample(1)
@pytest.mark.parametrize("model", TINY)
def test_what_is_measured_is_what_quantize_reports(
    model: str, run_meshrt: Callable[..., Finished], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--held-out-stories", "2", "--ranks", "dense-2+frequency-2", "--rounds", "1", "--quiet",
               "--calibration-stories", "4")  # fmt: skip
    done = run_meshrt("quantize", model, "--out", str(tmp_path / "out"), "--json", str(tmp_path / "told"), *options)
    assert done.code == 0, done.stderr
    report = json.loads((tmp_path / "told").read_text())
    monkeypatch.setattr(quality, "CALIBRATION_STORIES", 4)
    outcome = measure(Recipe(model, "milo", "dense-2+frequency-2", rounds=1), 2)
    base = measure(Recipe(model, "fp16"), 2)
    assert report["bytes"] == outcome.bytes and report["compensator_bytes"] == outcome.compensator_bytes
    assert report["perplexity"]["after"] == outcome.perplexity and report["perplexity"]["before"] == base.perplexity
    nats = (report["perplexity"]["nats_more"], report["perplexity"]["standard_error"])
    assert outcome.more_than(base) == nats and outcome.bytes < base.bytes / 3


@pytest.mark.mpi(ranks=[3])
def test_the_report_is_the_same_on_any_number_of_ranks(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With recipes that take less long than the real ones."""
    monkeypatch.setitem(RECIPES, "2", lambda model: {"HQQ": Recipe(model, "rtn")})
    names = ("2", "5")
    report = reproduce(comm, Console(), names, RecipeOutcomes(1))
    assert report.pop("host")["ranks"] == comm.size
    alone = on_one_rank(comm, lambda single: reproduce(single, Console(), names, RecipeOutcomes(1)))
    alone.pop("host")
    assert report == alone
    assert {line["table"] for line in report["packaged"]} == {"2"}
    assert {line["model"] for line in report["packaged"]} == set(TINY) <= set(packaged())


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("measured", [(), pytest.param(("3",), marks=pytest.mark.all)], ids=str)
def test_tables_for_people(
    measured: tuple[str, ...],
    comm: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With recipes that take less long than the real ones."""
    monkeypatch.setitem(RECIPES, "3", lambda model: {
        "fp16": Recipe(model, "fp16"), "RTN": Recipe(model, "rtn"), "GPTQ": Recipe(model, "hqq"),
        "HQQ": Recipe(model, "hqq"), "MiLo-s1": Recipe(model, "milo", "dense-2", rounds=1),
        "MiLo-s2": Recipe(model, "milo", "dense-32+kurtosis-2", rounds=1),
    })  # fmt: skip
    names = (*measured, "7", "9", "figure9", "figure5")
    report = reproduce(comm, Console(), names, RecipeOutcomes(1), print_part)
    print_claims(report)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    write_files(report, str(tmp_path))
    assert any("in float16 it does not fit into an A100" in line for line in lines)
    assert "- (2048, 11008) is no matrix of DeepSeek-MoE: it has 10944, 2816 and 1408 in that place." in lines
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"tables.csv", "claims.csv", *(f"packaged_{part}.csv" for part in (*measured, "figure5"))}
    if not measured:
        return
    assert "Mixtral-8x7B HQQ memory, GiB 20.5 20.4939 1" in lines
    assert "Mixtral-8x7B HQQ 4.612 77.88 69.74 79.16 75.59 60.93 70.66" in lines
    assert any(line.startswith("mixtral-tiny MiLo-s2: dense-32+kurtosis-2 ") for line in lines)
    assert (tmp_path / "packaged_3.csv").read_text().count("\n") == 13  # six lines of each model


@pytest.mark.mpi(ranks=[1])
def test_what_was_measured_is_kept(comm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table again, from the file: equal, and nothing is measured; other stories are, and other code."""
    monkeypatch.setitem(RECIPES, "2", lambda model: {"HQQ": Recipe(model, "rtn")})
    path = str(tmp_path / "kept.json")

    def lines(stories: int) -> Any:
        return reproduce(comm, Console(), ("2",), open_kept(path, stories))["packaged"]

    first, kept = lines(1), open_kept(path, 1)
    assert len(kept.found) == len(TINY)
    recipe = RECIPES["2"]("mixtral-tiny")["HQQ"]
    assert replace(kept.of(recipe), seconds=0.0) == replace(measure(recipe, 1), seconds=0.0)
    monkeypatch.setattr("meshrt.studies.milo.kept.measure", None)
    assert lines(1) == first
    with pytest.raises(TypeError):
        lines(2)
    Path(path).write_text(Path(path).read_text().replace(kept.code, "other"))
    assert not open_kept(path, 1).found
    Path(path).write_text("[]")
    with pytest.raises(UsageError, match="is no file of this command"):
        open_kept(path, 1)


def test_the_command(run_meshrt: Callable[..., Finished]) -> None:
    finished = run_meshrt("reproduce", "milo", "5", "7", "--json", "-")
    report = json.loads(finished.stdout)
    assert finished.code == 0 and report["paper"] == "milo" and report["packaged"] == []
    assert {row["table"] for row in report["rows"]} == {"5", "7"}
    assert run_meshrt("reproduce", "milo", "5").stdout.count("MiLo-s") == 4
    bad = run_meshrt("reproduce", "milo", "10")
    assert bad.code == 2 and "no table or figure '10'; there are 1, 2," in bad.stderr
