"""Measured beside emulated, for a person."""

from collections.abc import Sequence

from meshrt.studies.validate.errors import Compared, Errors, by_use, errors
from meshrt.studies.waferllm.printed import number, print_lines


def print_comparison(compared: Sequence[Compared], every_row: bool) -> None:
    """For each kernel a line for each size and use, with the row that is furthest off; or a line for every row."""
    for kernel in dict.fromkeys(one.kernel for one in compared):
        rows = [one for one in compared if one.kernel == kernel]
        (_print_rows if every_row else _print_sizes)(kernel, rows)
        for use, part in by_use(rows).items():
            print(f"  {use}: {_told(errors(part))}")
        for note in dict.fromkeys(one.emulated.note for one in rows if one.emulated.note):
            print(f"  {sum(one.emulated.note == note for one in rows)} rows: {note}")


def _print_sizes(kernel: str, rows: Sequence[Compared]) -> None:
    lines = []
    for size in dict.fromkeys(one.size for one in rows):
        for use, part in by_use([one for one in rows if one.size == size]).items():
            of, worst = errors(part), max(part, key=lambda one: one.error or 0.0)
            lines.append(
                (
                    size, use, str(of.rows), share(of.median_error), share(of.p95_error), _sizes(worst),
                    number(worst.row.measured), number(worst.emulated.value, "refused"), _ratio(worst),
                )
            )  # fmt: skip
    unit = rows[0].row.kind.unit
    columns = ("", "use", "rows", "median", "95 %", "worst row", f"measured, {unit}", "emulated", "ratio")
    print_lines(f"{kernel}: errors, |emulated / measured - 1|", columns, lines)


def _print_rows(kernel: str, rows: Sequence[Compared]) -> None:
    lines = [
        (
            _sizes(one), one.row.use, number(one.row.measured), number(one.emulated.value, "refused"), _ratio(one)
        )
        for one in rows
    ]  # fmt: skip
    print_lines(kernel, ("", "use", f"measured, {rows[0].row.kind.unit}", "emulated", "ratio"), lines)


def _told(of: Errors) -> str:
    if of.median_error is None:
        return f"{of.rows} rows, all refused"
    text = f"{of.rows} rows, median error {share(of.median_error)}, 95 % within {share(of.p95_error)}"
    text += f", worst {share(of.worst_error)}, median ratio {of.median_ratio:.3f}"
    return text + (f", {of.refused} refused" if of.refused else "")


def share(error: float | None) -> str:
    return "" if error is None else f"{error:.1%}"


def _ratio(one: Compared) -> str:
    return "" if one.ratio is None else f"{one.ratio:.3f}"


def _sizes(one: Compared) -> str:
    return " ".join(f"{name} {value}" for name, value in one.row.sizes.items() if value is not None)
