"""`meshrt reproduce milo`: of the paper's tables and figures, what can be had without its weights and its GPU.

Sizes are exact, from the shapes of the published models. Perplexities need the published weights: they are not
imitated, and beside them stand those of the packaged mixtures. Times are an A100's roofline.
"""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

from meshrt import __version__
from meshrt.ranks.console import Console
from meshrt.reports.report import SCHEMA
from meshrt.studies.files import write_csv
from meshrt.studies.milo import claims as milo_claims
from meshrt.studies.milo import published, rooflines, sizes, stripes, weights
from meshrt.studies.milo.kept import RecipeOutcomes
from meshrt.studies.milo.lines import LINES, TableLine
from meshrt.studies.milo.quality import RecipeOutcome
from meshrt.studies.milo.recipes import RECIPES, TINY
from meshrt.studies.rows import Finding, PaperRow

ROWS = {
    "3": sizes.table3, "4": sizes.table4, "5": sizes.table5, "6": sizes.table6,
    "7": rooflines.table7, "9": stripes.table9, "figure9": rooflines.figure9,
}  # fmt: skip
NAMES = (*map(str, range(1, 10)), "figure5", "figure7", "figure8", "figure9", "figure11")


def reproduce(
    comm: Any, console: Console, names: Sequence[str], kept: RecipeOutcomes,
    show: Callable[[dict[str, Any], str], object] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """These tables and figures, the models' runs shared out to the ranks: the report, on all of them.

    `show(report so far, name)` is called on rank 0 as soon as a table or figure is done.
    """
    start = perf_counter()
    rows: list[PaperRow] = []
    lines: list[TableLine] = []
    claims: list[Finding] = []
    seconds: list[dict[str, Any]] = []

    def report() -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "paper": "milo",
            "rows": [row.json() for row in rows],
            "packaged": [line.json() for line in lines],
            "claims": [claim.json() for claim in claims],
            "contradictions": {name: list(published.CONTRADICTIONS.get(name, ())) for name in names},
            "host": {
                "ranks": comm.size,
                "wall_seconds": perf_counter() - start,
                "version": __version__,
                "quantizing_seconds": seconds,
            },
        }

    for name in names:
        recipes = {model: RECIPES[name](model) for model in TINY if name in RECIPES}
        wanted = [recipe for named in recipes.values() for recipe in named.values()]
        if missing := kept.missing(wanted):
            console.text(
                f"{title(name)}: {len(missing)} models to quantize and to run on {kept.stories} stories,"
                f" {perf_counter() - start:.0f} s so far\n"
            )
        kept.run(comm, console, wanted)
        rows += ROWS[name]() if name in ROWS else []
        rows += weights.rows(name)
        for model, named in recipes.items():
            outcomes = {system: kept.of(recipe) for system, recipe in named.items()}
            lines += LINES[name](name, model, outcomes)
            claims += milo_claims.OF_MODELS[name](model, outcomes) if name in milo_claims.OF_MODELS else []
            seconds += _seconds(model, outcomes) if name == "figure8" else []
        claims += milo_claims.by_rooflines(name) if name in ("7", "figure9") else []
        claims += milo_claims.by_stripes() if name == "9" else []
        if show is not None and comm.rank == 0:
            show(report(), name)
    return report()


def _seconds(model: str, outcomes: Mapping[str, RecipeOutcome]) -> list[dict[str, Any]]:
    """Figure 8: CPU seconds of each of its recipes, of the host that ran it."""
    return [
        {"model": model, "system": system, "seconds": outcome.seconds}
        for system, outcome in outcomes.items()
        if system != "fp16"
    ]


def title(name: str) -> str:
    return f"Figure {name.removeprefix('figure')}" if name.startswith("figure") else f"Table {name}"


def write_files(report: dict[str, Any], csv: str | None) -> list[str]:
    """Rows, the packaged models' lines by table, and claims as files in this folder: their paths."""
    files = {"tables": report["rows"], "claims": report["claims"]}
    for line in report["packaged"]:
        flat = {"model": line["model"], "system": line["system"], **line["values"]}
        files.setdefault(f"packaged_{line['table']}", []).append(flat)
    written = []
    for name, rows in files.items():
        if csv and rows:
            written.append(f"{csv}/{name}.csv")
            write_csv(written[-1], rows)
    return written
