"""One report of a run, whatever the machine: the JSON, the table that a person reads, and numbers by their names."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshrt import kinds
from meshrt.errors import UsageError
from meshrt.machine import Measured, find_machine, machines
from meshrt.ranks.files import write_file
from meshrt.records import dataclass
from meshrt.units import of

if TYPE_CHECKING:
    from rich.table import Table

SCHEMA = 1
KEYS = {  # and what each is, in a whole report
    "program": str, "arguments": dict, "device": dict, "mesh": list, "result": dict, "measured": dict, "phases": list,
    "host": dict, "kinds": dict,
}  # fmt: skip
LOG_WIDTH = 200  # columns of a table that goes to no terminal


def gather_report(
    name: str, machine: Any, program: str, arguments: Mapping[str, Any], result: Any, host: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The whole report as the JSON has it at rank 0, None at the others. All ranks call it, once, at the end of a run.

    `name` is that of the machine, `host` what is known of the computers besides.
    """
    measured: Measured | None = find_machine(name).gather(machine)
    if measured is None:
        return None
    return kinds.with_kinds(name, set(measured.sampled), {
        "schema": SCHEMA,
        "machine": name,
        "program": program,
        "arguments": arguments,
        "device": {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in measured.device.items() if key != "sources"
        },
        "mesh": list(measured.size),
        **measured.more,
        "result": result,
        "measured": measured.whole,
        "phases": list(measured.phases),
        "host": {**host, **measured.host},
    })  # fmt: skip


@dataclass(frozen=True, eq=False)
class Report:
    """What a run came to. `data` is the JSON; `report["hops"]` a number of the whole run by its path in `measured`.

    `refused` says why, where a limit of the machine was broken; there are no numbers then.
    """

    data: Mapping[str, Any]
    refused: str | None = None

    def __getitem__(self, path: str) -> Any:
        return _at(self.data["measured"], path)

    @property
    def machine(self) -> str:
        return str(self.data["machine"])

    @property
    def arguments(self) -> dict[str, Any]:
        """The program's options."""
        return dict(self.data["arguments"])

    @property
    def result(self) -> dict[str, Any]:
        """What the program returned."""
        return dict(self.data["result"])

    @property
    def measured(self) -> dict[str, Any]:
        """Of the whole run, by name."""
        return dict(self.data["measured"])

    @property
    def phases(self) -> list[str]:
        """The names of the phases, in order."""
        return [phase["name"] for phase in self.data["phases"]]

    def phase(self, name: str, path: str | None = None) -> Any:
        """What was measured in a phase: all of it, or the number of that path. KeyError."""
        for phase in self.data["phases"]:
            if phase["name"] == name:
                return dict(phase) if path is None else _at(phase, path)
        raise KeyError(f"no phase {name!r}; there are {', '.join(self.phases) or 'none'}")

    def kind(self, path: str) -> str:
        """How the number of that path came about: counted, declared, timed, extrapolated."""
        return str(self.data["kinds"]["measured." + path])

    def table(self) -> str:
        """What `meshrt run` prints."""
        if self.refused is not None:
            return f"refused: {self.refused}"
        from rich.console import Console

        screen = Console(width=LOG_WIDTH)
        with screen.capture() as captured:
            screen.print(_table(self.data), highlight=False)
        lines = [line.rstrip() for line in captured.get().splitlines()]
        return "\n".join([find_machine(self.machine).title(self.data), *lines, kinds.legend(self.data)])

    def __str__(self) -> str:
        return self.table()

    def to_json(self) -> str:
        """As `--json` writes it."""
        return json.dumps(self.data, indent=1) + "\n"

    def write(self, path: str) -> None:
        """Write the JSON to a file. UsageError where that cannot be."""
        write_json(self.data, path)

    def _repr_html_(self) -> str:
        from html import escape  # a notebook's alone

        if self.refused is not None:
            return f"<p>refused: {escape(self.refused)}</p>"
        titles = "".join(f"<th>{escape(name)}</th>" for name in ("", *self.phases, "total"))
        body = "".join(
            f"<tr><th style='text-align:left'>{escape(row.name + of(row.limit))}</th>"
            + "".join(f"<td style='text-align:right'>{escape(cell)}</td>" for cell in row.cells)
            + "</tr>"
            for row in find_machine(self.machine).rows(self.data)
        )
        title = escape(find_machine(self.machine).title(self.data))
        legend = escape(kinds.legend(self.data))
        return f"<p>{title}</p><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table><p>{legend}</p>"


def read_report(path: str) -> Report:
    """A report from a file that `meshrt run --json` has written; - is standard input. UsageError."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        data = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as a report: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or data.get("machine") not in machines():
        raise UsageError(
            f"{path} is no report of schema {SCHEMA} of {', '.join(machines())}: give what `meshrt run --json` wrote"
        )
    for key, kind in KEYS.items():
        if not isinstance(data.get(key), kind):
            raise UsageError(f"{path} is no whole report: its {key!r} is missing, or something else")
    return Report(data)


def _at(part: Any, path: str) -> Any:
    for at, name in enumerate(path.split(".")):
        if not isinstance(part, Mapping) or name not in part:
            stem = ".".join(path.split(".")[:at])
            contents = ", ".join(part) if isinstance(part, Mapping) else "a number"
            raise KeyError(f"no {path!r}; {stem or 'a report'} has {contents}")
        part = part[name]
    return part


def write_json(report: Mapping[str, Any], path: str) -> None:
    """The report as a file."""
    write_file("--json", path, lambda stream: stream.write((json.dumps(report, indent=1) + "\n").encode()))


def print_json(report: dict[str, Any]) -> None:
    print(json.dumps(report, indent=1))


def deliver_json(report: dict[str, Any], path: str | None) -> None:
    """The report where it was asked for: a file, - for standard output, or nowhere."""
    if path == "-":
        print_json(report)
    elif path:
        write_json(report, path)


def print_result(report: dict[str, Any]) -> None:
    """The program's own result, a line each; what is long or was printed already is left to the JSON."""
    for key, value in report["result"].items():
        if isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) < 60):
            print(f"{key}: {value:.4g}" if isinstance(value, float) else f"{key}: {value}")


def print_table(report: Mapping[str, Any]) -> None:
    """One column for each phase and one for the whole run; a row for each thing that was measured."""
    print(find_machine(report["machine"]).title(report))
    show(_table(report))
    print(kinds.legend(report))


def _table(report: Mapping[str, Any]) -> "Table":
    parts = [*(phase["name"] for phase in report["phases"]), "total"]
    return table_of(parts, find_machine(report["machine"]).rows(report))


def table_of(parts: Sequence[str], rows: Iterable[kinds.Row]) -> "Table":
    """A column for each part of a run, under its name."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", *parts):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for row in rows:
        table.add_row(row.name + of(row.limit), *row.cells)
    return table


def show(table: "Table") -> None:
    """Print a table: as wide as the terminal, or, in a log or a pipe, as wide as its numbers are."""
    from rich.console import Console

    screen = Console()
    (screen if screen.is_terminal else Console(width=LOG_WIDTH)).print(table, highlight=False)
