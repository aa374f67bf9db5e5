"""A reproduction of MiLo as tables for a person."""

from collections.abc import Sequence
from typing import Any

from meshrt.studies.milo.reproduce import title
from meshrt.studies.waferllm.printed import number, print_lines, short_ratio

Row = dict[str, Any]


def print_part(report: dict[str, Any], name: str) -> None:
    """One table: published beside computed, the packaged models' own, what contradicts itself."""
    rows = [row for row in report["rows"] if row["table"] == name]
    _print_computed(title(name), [row for row in rows if not row["note"].startswith("needs")])
    _print_missing(title(name), [row for row in rows if row["note"].startswith("needs")])
    lines = [line for line in report["packaged"] if line["table"] == name]
    if lines:
        _print_packaged(f"{title(name)}, on the packaged mixtures", lines)
    contradictions = report["contradictions"][name]
    if contradictions:
        print("  As printed, this cannot be right")
    for sentence in contradictions:
        print(f"  - {sentence}")
    if name == "figure8":
        found = [(one["model"], one["system"], f"{one['seconds']:.1f}") for one in report["host"]["quantizing_seconds"]]
        print_lines("Figure 8, CPU seconds of the host that quantized", ("", "", "s"), found)


def print_claims(report: dict[str, Any]) -> None:
    holds = {True: "yes", False: "no", None: "noise"}
    said = [(one["where"], one["model"], one["says"], one["found"], holds[one["holds"]]) for one in report["claims"]]
    if said:
        print_lines("What the paper says, and what was found", ("", "", "", "here", "holds"), said)


def _print_computed(heading: str, rows: Sequence[Row]) -> None:
    if not rows:
        return
    notes = list(dict.fromkeys(row["note"] for row in rows if row["note"]))
    marks = {note: f"[{at}]" for at, note in enumerate(notes, 1)} | {"": ""}
    lines = [
        (
            row["subject"], row["system"], f"{row['column']}, {row['unit']}", number(row["published"]),
            "-" if row["emulated"] is None else f"{row['emulated']:.6g}", short_ratio(row["ratio"]),
            marks[row["note"]],
        )
        for row in rows
    ]  # fmt: skip
    print_lines(heading, ("", "", "", "published", "here", "ratio", "note"), lines)
    for note in notes:
        print(f"  {marks[note]} {note}")


def _print_missing(heading: str, rows: Sequence[Row]) -> None:
    """What cannot be had here: the published figures, a column for each measure."""
    if not rows:
        return
    columns = list(dict.fromkeys(row["column"] for row in rows))
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        found.setdefault((row["subject"], row["system"]), {})[row["column"]] = number(row["published"])
    lines = [(*key, *(cells.get(column, "") for column in columns)) for key, cells in found.items()]
    print_lines(f"{heading}, published; needs the published weights", ("", "", *columns), lines)


def _print_packaged(heading: str, lines: Sequence[Row]) -> None:
    if "perplexity" not in lines[0]["values"]:
        columns = ("", "", *(key.replace("_", " ") for key in lines[0]["values"]))
        cells = [(line["model"], line["system"], *map(_cell, line["values"].values())) for line in lines]
        print_lines(heading, columns, cells)
        return
    shown = []
    for line in lines:
        values, system = line["values"], line["system"]
        policy = values["policy"]
        shown.append(
            (
                line["model"], f"{system}: {policy}" if policy and not policy.startswith(system) else policy or system,
                f"{values['bytes']:,}",
                f"{values['compensator_bytes']:,}", f"{values['bits_per_weight']:.3f}", f"{values['error']:.4f}",
                f"{values['perplexity']:.5f}", f"{1e3 * values['nats_more']:.2f}",
                f"{1e3 * values['standard_error']:.2f}",
            )
        )  # fmt: skip
    print_lines(
        heading, ("", "", "bytes", "of these U, V", "bits", "error", "perplexity", "mnats more", "+-"), shown
    )  # fmt: skip


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
