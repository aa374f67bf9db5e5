"""What the numbers of a report are, found by their paths: `kinds` in the JSON, and the marks of printed tables."""

import importlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from meshrt.records import dataclass
from meshrt.reports.fields import COUNTED, DECLARED, EXTRAPOLATED, HOST, MODELLED, TIMED, Field

MARKS = {  # in printed tables
    DECLARED: ("'", "declared by the program"),
    TIMED: ("*", "timed by the device's model"),
    MODELLED: ("^", "by the device's joules"),
    EXTRAPOLATED: ("~", "scaled up from a part of the run"),
}


def fields_of(machine: str) -> Mapping[str, Field]:
    """All numbers of a machine's reports, by their paths."""
    fields: Mapping[str, Field] = importlib.import_module(f"meshrt.{machine}.fields").FIELDS
    return fields


def tally_of(machine: str) -> Field | None:
    """What a number without a path of its own is, one that a program's kernel asks for; None where no kernel does."""
    return getattr(importlib.import_module(f"meshrt.{machine}.fields"), "OWN_TALLY", None)


def leaves(part: Mapping[str, Any], stem: str = "") -> Iterator[str]:
    """The paths of all numbers in `measured` or a phase."""
    for name, value in part.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{stem}{name}.")
        elif stem + name != "name":
            yield stem + name


def find(machine: str, path: str) -> Field | None:
    """The row of a path; None where there is none."""
    rows, names = fields_of(machine), path.split(".")
    if path in rows:
        return rows[path]
    for pattern, row in rows.items():
        parts = pattern.split(".")
        if len(parts) == len(names) and all(part in ("*", name) for part, name in zip(parts, names, strict=True)):
            return row
    return tally_of(machine) if len(names) == 1 else None


def with_kinds(machine: str, sampled: Collection[str], report: dict[str, Any]) -> dict[str, Any]:
    """A report with what each of its numbers is under `kinds`, by its path: `measured.hops`, `phases.NAME.hops`.

    `sampled`: the phases in which a part stood for others; "" is the whole run.
    """
    kinds = {}
    for name, part in [("", report["measured"]), *((phase["name"], phase) for phase in report["phases"])]:
        stem = f"phases.{name}." if name else "measured."
        for path in leaves(part):
            row = find(machine, path)
            assert row is not None, f"{path} of {machine} is in no row of meshrt/{machine}/fields.py"
            kinds[stem + path] = EXTRAPOLATED if row.scaled and name in sampled else row.kind
    return report | {"kinds": kinds | {"result": DECLARED, "host": HOST}}


@dataclass(frozen=True)
class TableRow:
    """A row of a printed table: its name, a cell for each phase and one for the whole run, and the limit if any. An
    `inner` one is printed with --verbose alone.
    """

    name: str
    cells: Sequence[str]
    limit: Any = None
    inner: bool = False


def mark(report: Mapping[str, Any], path: str) -> str:
    """The mark behind a number of that path, measured.hops or phases.NAME.hops, in printed tables; '' if counted."""
    kind = report["kinds"].get(path, COUNTED)
    return MARKS[kind][0] if kind in MARKS else ""


def row_of(machine: str, report: Mapping[str, Any], path: str, cells: Sequence[str], limit: Any = None) -> TableRow:
    """The row of a number, by its path; behind its name a mark, if it was not counted."""
    field = find(machine, path)
    assert field is not None
    kind = report["kinds"].get("measured." + path, field.kind)  # only phases have tokens
    name = field.row.replace("*", path.split(".")[1]) if "*" in field.row else field.row
    return TableRow(f"{name} {MARKS[kind][0]}" if kind in MARKS else name, cells, limit, field.inner)


def legend(report: Mapping[str, Any]) -> str:
    """The line under a printed table that explains its marks."""
    present = set(report["kinds"].values())
    marks = "; ".join(f"{sign} {text}" for kind, (sign, text) in MARKS.items() if kind in present) + "; others counted"
    if "runs" not in report:
        return marks
    return (
        f"{marks}\n{len(report['runs'])} runs, each on a machine as new, added up; what is the most is of one of them"
    )
