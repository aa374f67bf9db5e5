"""A reproduction as tables for a person."""

from collections.abc import Sequence
from typing import Any

from meshrt.studies.rows import GOAL
from meshrt.studies.waferllm.reproduce import title


def print_reproduction(report: dict[str, Any]) -> None:
    """One table for each of the paper's, the curves, the claims, and what it all comes to."""
    for name in (*dict.fromkeys(row["table"] for row in report["rows"]), *report["curves"]):
        print_part(report, name)
    print_summary(report)


def print_part(report: dict[str, Any], name: str) -> None:
    """One table or figure, and why published and emulated differ."""
    if name in report["curves"]:
        _print_curves(name, report["curves"][name])
        _print_claims([claim for claim in report["claims"] if claim["product"] == name])
    else:
        print_rows(title(name), [row for row in report["rows"] if row["table"] == name])
    print_why(report["why"][name])


def print_rows(heading: str, rows: Sequence[dict[str, Any]]) -> None:
    """A table of published, emulated and ratio, and its notes. Rows of the published programs are columns of those
    that they are beside.
    """
    beside = {(row["subject"], row["column"]): row for row in rows if row["system"] == "as-published"}
    rows = [row for row in rows if row["system"] != "as-published"]
    notes = list(dict.fromkeys(row["note"] for row in rows if row["note"]))
    marks = {note: f"[{at}]" for at, note in enumerate(notes, 1)} | {"": ""}

    def cells(row: dict[str, Any]) -> tuple[str, ...]:
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
    print_lines(heading, ("", "system", "", "published", *more, "ratio", "note"), lines)
    for note in notes:
        print(f"  {marks[note]} {note}")


def _print_curves(name: str, line: Sequence[dict[str, Any]]) -> None:
    sides = sorted({point["side"] for point in line})
    lines = []
    for size, algorithm in dict.fromkeys((point["size"], point["algorithm"]) for point in line):
        by_side = {p["side"]: p for p in line if (p["size"], p["algorithm"]) == (size, algorithm)}
        shown = [
            "refused"
            if by_side[side]["cycles"] is None
            else f"{by_side[side]['cycles']:,.0f} ({by_side[side]['efficiency']:.0%})"
            for side in sides
        ]
        lines.append((size, algorithm, *shown))
    columns = ("", "cycles (share of products)", *(f"{side}x{side}" for side in sides))
    print_lines(title(name), columns, lines)


def _print_claims(claims: Sequence[dict[str, Any]]) -> None:
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
    print_lines("What the text says", ("section", "claim", "", "published", "emulated", "holds"), lines)


def print_summary(report: dict[str, Any]) -> None:
    """What the cells of each system come to."""
    summaries = report["summary"]
    if summaries:
        print("\nEmulated over published, of WSE-2's cells")
    for summary in summaries:
        line = f"  {summary['system']:12} {summary['emulated']} of {summary['cells']} emulated,"
        line += f" {summary['compared']} compared"
        if summary["compared"]:
            line += (
                f": median {summary['median_ratio']:.3g}, worst {summary['worst_ratio']:.3g} ({summary['worst_cell']})"
            )
        print(line)
        if summary["system"] in ("waferllm", "as-published") and summary["compared"]:
            print(
                f"  {'':12} {summary['within_goal']} of {summary['compared']} within {GOAL:g}x,"
                " which is the goal for these"
            )


def print_why(reasons: Sequence[str]) -> None:
    """Why published and emulated differ, a line each."""
    print("  Why they differ")
    for reason in reasons:
        print(f"  - {reason}")


def print_lines(heading: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Cells below their columns; those of figures to the right."""
    from rich.console import Console as Screen
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, column in enumerate(columns):
        figures = at > 1 and all(line[at][:1].isdigit() or line[at] in ("", "-", "missing") for line in lines)
        table.add_column(column, justify="right" if figures else "left")
    for line in lines:
        table.add_row(*(cell.replace("[", r"\[") for cell in line))
    print(f"\n{heading}")
    Screen(width=None if Screen().is_terminal else 120).print(table, highlight=False)


def number(value: float | None, missing: str = "-") -> str:
    """Four digits, or all before the point."""
    if value is None:
        return missing
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def short_ratio(value: float | None) -> str:
    """Three digits."""
    return "-" if value is None else f"{value:.3g}"
