"""A table of texts as a person, a spreadsheet, a wiki or a program reads it."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from meshrt.report import show

FORMS = ("table", "csv", "md", "json")


def print_grid(header: Sequence[str], rows: Sequence[Sequence[Any]], form: str = "table") -> None:
    """Print rows under a header. None is an empty place. In a table numbers are to the right, cut to six digits."""
    if form == "table":
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for name, column in zip(header, zip(*rows, strict=True) if rows else [()] * len(header), strict=True):
            numbers = all(isinstance(one, (int, float)) or one is None for one in column)
            table.add_column(name, justify="right" if numbers else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(shown, row))
        show(table)
    elif form == "csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([header, *(["" if one is None else one for one in row] for row in rows)])
        print(text.getvalue(), end="")
    elif form == "md":
        lines = [header, ["---"] * len(header), *([_cell(one) for one in row] for row in rows)]
        print(*("| " + " | ".join(line) + " |" for line in lines), sep="\n")
    else:
        print(json.dumps([dict(zip(header, row, strict=True)) for row in rows], indent=1))


def shown(value: Any) -> str:
    """A value as a table has it: whole numbers in full, others to six digits."""
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)


def _cell(value: Any) -> str:
    return (shown(value) if isinstance(value, float) else "" if value is None else str(value)).replace("|", "\\|")
