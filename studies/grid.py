"""Tables as a person, a spreadsheet, a wiki or a program reads them: `--format` of every command that prints one.

A command yields what it has to say: lines of text, and grids. As a table and as Markdown all of it is printed, as CSV
and as JSON the grids alone.
"""

import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from meshrt.columns import print_columns
from meshrt.records import dataclass

FORMS = ("table", "csv", "md", "json")


@dataclass(frozen=True)
class Cell:
    """A value, and the text that a person reads in its place: 318259, '310.8 KiB'."""

    value: Any
    text: str


@dataclass(frozen=True)
class Grid:
    """Rows under a header. A cell is a value, None where there is none, a text, or a Cell.

    `title` tells a table from others of the same command: CSV and JSON have it in each row. `right`: all columns but
    the first are to the right; else those with a number are.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    right: bool = False


def put(parts: Iterable[str | Grid], form: str = "table") -> None:
    """Print texts and tables in the order in which they come; JSON, which is one list of all rows, at the end.

    A file or a pipe has them when this returns: what comes next may take hours.
    """
    records: list[dict[str, Any]] = []
    before: str | Grid | None = None
    for part in parts:
        if isinstance(part, str) and form in ("csv", "json"):
            continue
        between = before is not None and (form == "csv" or (form == "md" and Grid in (type(part), type(before))))
        print(end="\n" * between)  # in Markdown, what stands close above a table is a part of it
        before = part
        if isinstance(part, str):
            print(part)
        elif form == "table":
            _print_table(part)
        elif form == "md":
            _print_markdown(part)
        elif form == "csv":
            text = io.StringIO()
            header, rows = _plain(part)
            csv.writer(text, lineterminator="\n").writerows([header, *rows])
            print(text.getvalue(), end="")
        else:
            header, rows = _plain(part)
            records += [dict(zip(header, row, strict=True)) for row in rows]
    if form == "json":
        print(json.dumps(records, indent=1))
    sys.stdout.flush()


def print_grid(header: Sequence[str], rows: Sequence[Sequence[Any]], form: str = "table") -> None:
    """Print rows under a header. None is an empty place. In a table numbers are to the right, cut to six digits."""
    put([Grid(header, rows)], form)


def grid_of(lines: Sequence[Mapping[str, Any]]) -> Grid:
    """A grid of rows that have the same keys."""
    return Grid([*lines[0]] if lines else [], [[*line.values()] for line in lines])


def value_of(cell: Any) -> Any:
    """What a program reads."""
    return cell.value if isinstance(cell, Cell) else cell


def shown(value: Any) -> str:
    """A value as a table has it: whole numbers in full, others to six digits."""
    if isinstance(value, Cell):
        return value.text
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:,.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)


def _is_number(cell: Any) -> bool:
    value = value_of(cell)
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _print_table(grid: Grid) -> None:
    columns = [[row[at] for row in grid.rows] for at in range(len(grid.header))]
    right = [at > 0 if grid.right else any(map(_is_number, column)) for at, column in enumerate(columns)]
    print_columns(grid.header, [[*map(shown, row)] for row in grid.rows], right)


def _print_markdown(grid: Grid) -> None:
    lines = [
        [*map(_in_markdown, grid.header)],
        ["---"] * len(grid.header),
        *([_in_markdown(cell) for cell in row] for row in grid.rows),
    ]
    print(*("| " + " | ".join(line) + " |" for line in lines), sep="\n")


def _in_markdown(cell: Any) -> str:
    text = shown(cell) if isinstance(cell, (float, Cell)) else "" if cell is None else str(cell)
    return text.strip().replace("|", "\\|").replace("\n", " ")


def _plain(grid: Grid) -> tuple[list[str], list[list[Any]]]:
    """Its header, in which no name is there twice, and its values."""
    header = [name.replace("\n", " ") for name in grid.header]
    header = [name if header.index(name) == at else f"{name} {at + 1}" for at, name in enumerate(header)]
    rows = [[value.strip() if isinstance(value, str) else value for value in map(value_of, row)] for row in grid.rows]
    if not grid.title:
        return header, rows
    return ["table", *header], [[grid.title, *row] for row in rows]
