"""`meshrt reproduce arm`: the paper's tables, what was counted beside what is printed, and what the paper has wrong."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from meshrt.ranks.console import Console
from meshrt.reports.report import SCHEMA
from meshrt.studies.arm.published import ERRORS, HIDDEN
from meshrt.studies.arm.tables import TABLES, CountRow
from meshrt.studies.files import write_csv
from meshrt.studies.grid import Cell, Grid, put
from meshrt.studies.store import RunStore, open_store

NAMES = (*TABLES,)


def reproduce(
    comm: Any, console: Console, names: Sequence[str], store: RunStore,
    show: Callable[[dict[str, Any], str], object] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The rows of these tables, their runs shared out to the ranks, and the paper's errors: the report, on all ranks.

    `show(report so far, name)` is called on rank 0 as soon as a table is done.
    """
    start = perf_counter()
    rows: list[CountRow] = []

    def report() -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "paper": "W4A8 on Arm",
            "hidden": HIDDEN,
            "rows": [asdict(row) for row in rows],
            "errors": list(ERRORS),
        }

    for name in names:
        rows += store.made(comm, console, f"Table {name}", start, partial(TABLES[name], store.emulate))
        if show is not None and comm.rank == 0:
            show(report(), name)
    return report()


def open_runs(path: str | None) -> RunStore:
    """What the file of `reproduce arm` holds: some of its programs are of this folder. UsageError."""
    return open_store(path, "arm", sorted(Path(__file__).parent.glob("*.py")))


def write_files(report: dict[str, Any], csv: str | None) -> list[str]:
    """The rows as a file in this folder: its path."""
    if not csv:
        return []
    write_csv(f"{csv}/tables.csv", report["rows"])
    return [f"{csv}/tables.csv"]


def print_part(report: dict[str, Any], name: str, form: str = "table") -> None:
    """One table."""
    put(["", _grid([row for row in report["rows"] if row["table"] == name])], form)


def said(report: dict[str, Any]) -> Iterator[str | Grid]:
    """All rows in one table, what its columns are, and what the paper has wrong."""
    yield _grid(report["rows"])
    yield from summary(report)


def summary(report: dict[str, Any]) -> Iterator[str]:
    """What the columns are, and what the paper has wrong."""
    yield "counted: in the paper's unit, 2^30, where a whole count is given; 10^9 beside it; formula: what the paper's"
    yield "own gives, where that is not what ran fused: of attention it is counted, too, operator by operator in"
    yield "float32, on one head. What the paper has wrong:"
    yield from (f"  {error}" for error in report["errors"])


def _grid(table_rows: Sequence[dict[str, Any]]) -> Grid:
    rows = []
    for row in table_rows:
        published, decimal = (
            Cell(row[key], f"{row[key]:,.5g}" if row[key] else "") for key in ("published", "decimal")
        )
        cells = [published, Cell(row["counted"], f"{row['counted']:,.4f}"), decimal, row["whole"], row["formula"]]
        rows.append([row["table"], row["what"], *(cell or None for cell in cells), row["note"]])
    return Grid(("table", "number", "printed", "counted", "in 10^9", "whole", "formula", "note"), rows)
