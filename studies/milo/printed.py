"""A reproduction of MiLo as tables for a person."""

from collections.abc import Iterator, Sequence
from typing import Any

from meshrt.studies.grid import Cell, Grid, put
from meshrt.studies.milo.reproduce import title
from meshrt.studies.waferllm.printed import number, short_ratio, table

Row = dict[str, Any]


def print_part(report: dict[str, Any], name: str, form: str = "table") -> None:
    put(part(report, name), form)


def print_claims(report: dict[str, Any]) -> None:
    put(claims(report))


def said(report: dict[str, Any], names: Sequence[str]) -> Iterator[str | Grid]:
    """These tables, one after the other, and what the paper says."""
    for name in names:
        yield from part(report, name)
    yield from claims(report)


def part(report: dict[str, Any], name: str) -> Iterator[str | Grid]:
    """One table: published beside computed, the packaged models' own, what contradicts itself."""
    rows = [row for row in report["rows"] if row["table"] == name]
    yield from _computed(title(name), [row for row in rows if not row["note"].startswith("needs")])
    yield from _missing(title(name), [row for row in rows if row["note"].startswith("needs")])
    lines = [line for line in report["packaged"] if line["table"] == name]
    if lines:
        yield from _packaged(f"{title(name)}, on the packaged mixtures", lines)
    contradictions = report["contradictions"][name]
    if contradictions:
        yield "  As printed, this cannot be right"
    yield from (f"  - {sentence}" for sentence in contradictions)
    if name == "figure8":
        seconds = [
            (entry["model"], entry["system"], _digits(entry["seconds"], 1))
            for entry in report["host"]["quantizing_seconds"]
        ]
        yield from table("Figure 8, CPU seconds of the host that quantized", ("model", "system", "s"), seconds)


def claims(report: dict[str, Any]) -> Iterator[str | Grid]:
    holds = {True: "yes", False: "no", None: "noise"}
    said = [
        (claim["where"], claim["model"], claim["says"], claim["found"], holds[claim["holds"]])
        for claim in report["claims"]
    ]
    if said:
        columns = ("where", "model", "says", "here", "holds")
        yield from table("What the paper says, and what was found", columns, said)


def _computed(heading: str, rows: Sequence[Row]) -> Iterator[str | Grid]:
    if not rows:
        return
    notes = list(dict.fromkeys(row["note"] for row in rows if row["note"]))
    marks = {note: f"[{at}]" for at, note in enumerate(notes, 1)} | {"": ""}
    lines = [
        (
            row["subject"], row["system"], f"{row['column']}, {row['unit']}", number(row["published"]),
            Cell(row["emulated"], "-" if row["emulated"] is None else f"{row['emulated']:.6g}"),
            short_ratio(row["ratio"]),
            marks[row["note"]],
        )
        for row in rows
    ]  # fmt: skip
    yield from table(heading, ("of", "system", "what", "published", "here", "ratio", "note"), lines)
    yield from (f"  {marks[note]} {note}" for note in notes)


def _missing(heading: str, rows: Sequence[Row]) -> Iterator[str | Grid]:
    """What cannot be had here: the published figures, a column for each measure."""
    if not rows:
        return
    columns = list(dict.fromkeys(row["column"] for row in rows))
    published: dict[tuple[str, str], dict[str, Cell]] = {}
    for row in rows:
        published.setdefault((row["subject"], row["system"]), {})[row["column"]] = number(row["published"])
    lines = [(*key, *(cells.get(column, "") for column in columns)) for key, cells in published.items()]
    yield from table(f"{heading}, published; needs the published weights", ("of", "system", *columns), lines)


def _packaged(heading: str, lines: Sequence[Row]) -> Iterator[str | Grid]:
    if "perplexity" not in lines[0]["values"]:
        columns = ("model", "system", *(key.replace("_", " ") for key in lines[0]["values"]))
        cells = [(line["model"], line["system"], *map(_cell, line["values"].values())) for line in lines]
        yield from table(heading, columns, cells)
        return
    shown = []
    for line in lines:
        values, system = line["values"], line["system"]
        policy = values["policy"]
        shown.append(
            (
                line["model"], f"{system}: {policy}" if policy and not policy.startswith(system) else policy or system,
                values["bytes"], values["compensator_bytes"], _digits(values["bits_per_weight"], 3),
                _digits(values["error"], 4), _digits(values["perplexity"], 5), _digits(1e3 * values["nats_more"], 2),
                _digits(1e3 * values["standard_error"], 2),
            )
        )  # fmt: skip
    columns = ("model", "system", "bytes", "of these U, V", "bits", "error", "perplexity", "mnats more", "+-")
    yield from table(heading, columns, shown)


def _cell(value: Any) -> Cell:
    return Cell(value, f"{value:.4g}" if isinstance(value, float) else str(value))


def _digits(value: float, digits: int) -> Cell:
    return Cell(value, f"{value:.{digits}f}")
