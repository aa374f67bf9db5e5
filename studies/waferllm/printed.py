"""A reproduction as tables for a person."""

from collections.abc import Iterator, Sequence
from typing import Any

from meshrt.studies.grid import Cell, Grid, put
from meshrt.studies.rows import GOAL, MEDIAN_GOAL
from meshrt.studies.waferllm.reproduce import title


def print_reproduction(report: dict[str, Any], form: str = "table") -> None:
    put(said(report), form)


def print_part(report: dict[str, Any], name: str, form: str = "table") -> None:
    put(part(report, name), form)


def said(report: dict[str, Any]) -> Iterator[str | Grid]:
    """One table for each of the paper's, the curves, the claims, and what it all comes to."""
    for name in (*dict.fromkeys(row["table"] for row in report["rows"]), *report["curves"]):
        yield from part(report, name)
    yield from summary(report)


def part(report: dict[str, Any], name: str) -> Iterator[str | Grid]:
    """One table or figure, and why published and emulated differ."""
    if name in report["curves"]:
        yield from _curves(name, report["curves"][name])
        yield from _claims([claim for claim in report["claims"] if claim["product"] == name])
    else:
        yield from compared(title(name), [row for row in report["rows"] if row["table"] == name])
    yield from why(report["why"][name])


def compared(heading: str, rows: Sequence[dict[str, Any]]) -> Iterator[str | Grid]:
    """A table of published, emulated and ratio, and its notes. Rows of the published programs are columns of those
    that they are beside.
    """
    beside = {(row["subject"], row["column"]): row for row in rows if row["system"] == "as-published"}
    rows = [row for row in rows if row["system"] != "as-published"]
    notes = list(dict.fromkeys(row["note"] for row in rows if row["note"]))
    marks = {note: f"[{at}]" for at, note in enumerate(notes, 1)} | {"": ""}

    def cells(row: dict[str, Any]) -> tuple[Cell, ...]:
        return number(row["emulated"]), short_ratio(row["ratio"])

    lines = []
    for row in rows:
        own = beside.get((row["subject"], row["column"])) if row["system"] == "waferllm" else None
        as_published = () if not beside else ("", "") if own is None else cells(own)
        lines.append(
            (
                row["subject"], row["system"], f"{row['column']}, {row['unit']}", number(row["published"], "missing"),
                *as_published, *cells(row), marks[row["note"]],
            )
        )  # fmt: skip
    more = ("as published", "ratio", "ours") if beside else ("emulated",)
    yield from table(heading, ("of", "system", "what", "published", *more, "ratio", "note"), lines)
    yield from (f"  {marks[note]} {note}" for note in notes)


def _curves(name: str, line: Sequence[dict[str, Any]]) -> Iterator[str | Grid]:
    sides = sorted({point["side"] for point in line})
    lines = []
    for size, algorithm in dict.fromkeys((point["size"], point["algorithm"]) for point in line):
        by_side = {p["side"]: p for p in line if (p["size"], p["algorithm"]) == (size, algorithm)}
        shown = [
            "refused"
            if by_side[side]["cycles"] is None
            else f"{'~' if by_side[side]['steps_run'] else ''}{by_side[side]['cycles']:,.0f}"
            f" ({by_side[side]['efficiency']:.0%})"
            for side in sides
        ]
        lines.append((size, algorithm, *shown))
    columns = ("size", "cycles (share of products)", *(f"{side}x{side}" for side in sides))
    yield from table(title(name), columns, lines)


def _claims(claims: Sequence[dict[str, Any]]) -> Iterator[str | Grid]:
    holds = {True: "yes", False: "no", None: ""}
    lines = [
        (
            claim["section"],
            claim["claim"],
            claim["where"],
            claim["published"],
            number(claim["emulated"]),
            holds[claim["holds"]],
        )
        for claim in claims
    ]
    yield from table("What the text says", ("section", "claim", "where", "published", "emulated", "holds"), lines)


def summary(report: dict[str, Any]) -> Iterator[str]:
    """What the cells of each system come to."""
    summaries = report["summary"]
    if summaries:
        yield "\nEmulated over published, of WSE-2's cells"
    for row in summaries:
        line = f"  {row['system']:15} {row['emulated']} of {row['cells']} emulated,"
        line += f" {row['compared']} compared"
        if row["compared"]:
            line += f": median {row['median_ratio']:.3g}, worst {row['worst_ratio']:.3g} ({row['worst_cell']})"
        yield line
        if row["system"] in ("waferllm", "as-published") and row["compared"]:
            within = f"{row['within_goal']} of {row['compared']} within {GOAL:g}x, the goal for each of these"
            yield f"  {'':15} {within}; for their median it is {MEDIAN_GOAL:g}"


def why(reasons: Sequence[str]) -> Iterator[str]:
    """Why published and emulated differ, a line each."""
    yield "  Why they differ"
    yield from (f"  - {reason}" for reason in reasons)


def table(heading: str, columns: Sequence[str], lines: Sequence[Sequence[Any]]) -> Iterator[str | Grid]:
    """Cells below their columns, which are below a heading."""
    yield f"\n{heading}"
    yield Grid(columns, lines, heading)


def number(value: float | None, missing: str = "-") -> Cell:
    """Four digits, or all before the point."""
    if value is None:
        return Cell(None if missing == "-" else missing, missing)
    return Cell(value, f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}")


def short_ratio(value: float | None) -> Cell:
    """Three digits."""
    return Cell(value, "-" if value is None else f"{value:.3g}")
