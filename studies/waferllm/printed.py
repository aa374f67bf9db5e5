"""A reproduction as tables for a person."""

from collections.abc import Sequence
from typing import Any

from meshrt.studies.rows import GOAL
from meshrt.studies.waferllm.reproduce import title


def print_reproduction(told: dict[str, Any]) -> None:
    """One table for each of the paper's, the curves, the claims, and what it all comes to."""
    for name in dict.fromkeys(row["table"] for row in told["rows"]):
        print_rows(title(name), [row for row in told["rows"] if row["table"] == name])
        print_why(told["why"][name])
    for name, line in told["curves"].items():
        _print_curves(name, line)
        _print_claims([one for one in told["claims"] if one["product"] == name])
        print_why(told["why"][name])
    _print_summary(told["summary"])


def print_rows(heading: str, rows: Sequence[dict[str, Any]]) -> None:
    """A table of published, emulated and ratio, and its notes."""
    notes = list(dict.fromkeys(row["note"] for row in rows if row["note"]))
    marks = {note: f"[{at}]" for at, note in enumerate(notes, 1)} | {"": ""}
    lines = [
        (
            row["subject"], row["system"], f"{row['column']}, {row['unit']}", number(row["published"], "missing"),
            number(row["emulated"]), short_ratio(row["ratio"]), marks[row["note"]],
        )
        for row in rows
    ]  # fmt: skip
    print_lines(heading, ("", "system", "", "published", "emulated", "ratio", "note"), lines)
    for note in notes:
        print(f"  {marks[note]} {note}")


def _print_curves(name: str, line: Sequence[dict[str, Any]]) -> None:
    sides = sorted({point["side"] for point in line})
    lines = []
    for size, algorithm in dict.fromkeys((point["size"], point["algorithm"]) for point in line):
        own = {p["side"]: p for p in line if (p["size"], p["algorithm"]) == (size, algorithm)}
        shown = [
            "refused" if own[side]["cycles"] is None else f"{own[side]['cycles']:,.0f} ({own[side]['efficiency']:.0%})"
            for side in sides
        ]
        lines.append((size, algorithm, *shown))
    columns = ("", "cycles (share of products)", *(f"{side}x{side}" for side in sides))
    print_lines(title(name), columns, lines)


def _print_claims(found: Sequence[dict[str, Any]]) -> None:
    holds = {True: "yes", False: "no", None: ""}
    lines = [
        (one["section"], one["claim"], one["where"], one["published"], number(one["emulated"]), holds[one["holds"]])
        for one in found
    ]
    print_lines("What the text says", ("section", "claim", "", "published", "emulated", "holds"), lines)


def _print_summary(told: Sequence[dict[str, Any]]) -> None:
    if told:
        print("\nEmulated over published, of WSE-2's cells")
    for one in told:
        line = f"  {one['system']:9} {one['emulated']} of {one['cells']} emulated, {one['compared']} compared"
        if one["compared"]:
            line += f": median {one['median_ratio']:.3g}, worst {one['worst_ratio']:.3g} ({one['worst_cell']})"
        print(line)
        if one["system"] == "waferllm" and one["compared"]:
            print(f"  {'':9} {one['within_goal']} of {one['compared']} within {GOAL:g}x, which is the goal for these")


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
