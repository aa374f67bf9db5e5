"""Measured beside emulated, for a person."""

import sys
from collections.abc import Iterator, Sequence

from meshrt.studies.grid import Cell, Grid, put
from meshrt.studies.validate.errors import Compared, Errors, by_use, errors
from meshrt.studies.waferllm.printed import number, table


def print_comparison(compared: Sequence[Compared], every_row: bool, form: str = "table") -> None:
    put(said(compared, every_row), form)
    sys.stdout.flush()  # now, as what comes after it may take long and be ended


def said(compared: Sequence[Compared], every_row: bool) -> Iterator[str | Grid]:
    """For each kernel a line for each size and use, with the row that is furthest off; or a line for every row. Rows
    that were run in part, or whose machine was not measured, or that were refused, are marked, and told of below."""
    for kernel in dict.fromkeys(pair.kernel for pair in compared):
        rows = [pair for pair in compared if pair.kernel == kernel]
        notes = [*dict.fromkeys(pair.emulated.note for pair in rows if pair.emulated.note)]
        yield from (_rows if every_row else _by_size)(kernel, rows, notes)
        for use, part in by_use(rows).items():
            yield f"  {use}: {_told(errors(part))}"
        for at, note in enumerate(notes, 1):
            yield f"  [{at}] {_count(sum(pair.emulated.note == note for pair in rows))}: {note}"


def _by_size(kernel: str, rows: Sequence[Compared], notes: Sequence[str]) -> Iterator[str | Grid]:
    lines = []
    for size in dict.fromkeys(pair.size for pair in rows):
        for use, part in by_use([pair for pair in rows if pair.size == size]).items():
            of, worst = errors(part), max(part, key=lambda pair: pair.error or 0.0)
            lines.append(
                (
                    size, use, of.rows, _share(of.median_error), _share(of.p95_error), _sizes(worst),
                    number(worst.row.measured), number(worst.emulated.value, "refused"), _ratio(worst),
                    _marks(part, notes),
                )
            )  # fmt: skip
    unit = rows[0].row.kind.unit
    columns = ("size", "use", "rows", "median", "95 %", "worst row", f"measured, {unit}", "emulated", "ratio", "note")
    yield from table(f"{kernel}: errors, |emulated / measured - 1|", columns, lines)


def _rows(kernel: str, rows: Sequence[Compared], notes: Sequence[str]) -> Iterator[str | Grid]:
    lines = [
        (
            _sizes(pair), pair.row.use, number(pair.row.measured), number(pair.emulated.value, "refused"), _ratio(pair),
            _marks([pair], notes),
        )
        for pair in rows
    ]  # fmt: skip
    yield from table(kernel, ("size", "use", f"measured, {rows[0].row.kind.unit}", "emulated", "ratio", "note"), lines)


def _marks(part: Sequence[Compared], notes: Sequence[str]) -> Cell:
    """Which of a kernel's notes these rows have: for a person numbers, for a program the texts."""
    own = {pair.emulated.note for pair in part}
    marks = [f"[{at}]" for at, note in enumerate(notes, 1) if note in own]
    return Cell("; ".join(note for note in notes if note in own) or None, " ".join(marks))


def _told(of: Errors) -> str:
    if of.median_error is None:
        return f"{_count(of.rows)}, all refused"
    text = f"{_count(of.rows)}, median error {share(of.median_error)}, 95 % within {share(of.p95_error)}"
    text += f", worst {share(of.worst_error)}, median ratio {of.median_ratio:.3f}"
    return text + (f", {of.refused} refused" if of.refused else "")


def _count(rows: int) -> str:
    return f"{rows} row" if rows == 1 else f"{rows} rows"


def share(error: float | None) -> str:
    return "" if error is None else f"{error:.1%}"


def _share(error: float | None) -> Cell:
    return Cell(error, share(error))


def _ratio(pair: Compared) -> Cell:
    return Cell(pair.ratio, "" if pair.ratio is None else f"{pair.ratio:.3f}")


def _sizes(pair: Compared) -> str:
    return " ".join(f"{name} {value}" for name, value in pair.row.sizes.items() if value is not None)
