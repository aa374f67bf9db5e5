"""One report of a run, whatever the machine: the JSON, the table that a person reads, and numbers by their names."""

import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from meshrt.errors import UsageError
from meshrt.machine import Measured, find_machine, machines
from meshrt.ranks.files import write_file
from meshrt.records import dataclass
from meshrt.reports import kinds
from meshrt.reports.parts import by_name, hosts
from meshrt.units import of

SCHEMA = 1
KEYS = {  # and what each is, in a whole report
    "program": str, "arguments": dict, "device": dict, "mesh": list, "result": dict, "measured": dict, "phases": list,
    "host": dict, "kinds": dict,
}  # fmt: skip


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
        "phases": by_name(measured.phases),
        "host": hosts([{**host, **measured.host}]),
    })  # fmt: skip


@dataclass(frozen=True, eq=False)
class Report:
    """What a run came to. `data` is the JSON; `report["hops"]` a number of the whole run by its path in `measured`.
    What it gives of that is a copy, which may be changed.

    `refused` says why, where a limit of the machine was broken; there are no numbers then.
    """

    data: Mapping[str, Any]
    refused: str | None = None
    __iter__ = None  # by its numbers' paths alone: Python would ask for number 0, 1 and so on

    def __getitem__(self, path: str) -> Any:
        return deepcopy(_at(self._part("measured"), path))

    def __contains__(self, path: object) -> bool:
        """Is there a number, or several, of that path?"""
        try:
            _at(self.data.get("measured", {}), path)
        except KeyError:
            return False
        return True

    def _part(self, name: str) -> Any:
        """A part of the JSON. KeyError that says why there is none of a run that was refused."""
        if self.refused is not None and name not in self.data:
            raise KeyError(f"no {name}: the run was refused: {self.refused}")
        return self.data[name]

    @property
    def machine(self) -> str:
        return str(self.data["machine"])

    @property
    def arguments(self) -> dict[str, Any]:
        """The program's options."""
        return deepcopy(dict(self.data["arguments"]))

    @property
    def result(self) -> dict[str, Any]:
        """What the program returned."""
        return deepcopy(dict(self._part("result")))

    @property
    def measured(self) -> dict[str, Any]:
        """Of the whole run, by name."""
        return deepcopy(dict(self._part("measured")))

    @property
    def phases(self) -> list[str]:
        """The names of the phases, in order."""
        return [phase["name"] for phase in self._part("phases")]

    def phase(self, name: str, path: str | None = None) -> Any:
        """What was measured in a phase: all of it, or the number of that path. KeyError."""
        for phase in self._part("phases"):
            if phase["name"] == name:
                return deepcopy(dict(phase) if path is None else _at(phase, path))
        raise KeyError(f"no phase {name!r}; there are {', '.join(self.phases) or 'none'}")

    def kind(self, path: str) -> str:
        """How the number of that path came about: counted, declared, timed, modelled or extrapolated. KeyError."""
        part = self[path]
        if isinstance(part, Mapping):
            raise KeyError(f"{path!r} is several numbers: {', '.join(f'{path}.{name}' for name in part)}")
        return str(self.data["kinds"]["measured." + path])

    def table(self, verbose: bool = False) -> str:
        """What `meshrt run` prints, or with `verbose` `run -v`."""
        if self.refused is not None:
            return f"refused: {self.refused}"
        from meshrt.columns import Screen, laid_out

        title, header, rows = table_of(self.data, verbose)
        lines = laid_out(header, rows, [at > 0 for at in range(len(header))], Screen())
        return "\n".join([title, *lines, kinds.legend(self.data)])

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        """What ran where, and how long it took there: one line."""
        title = f"{self.data['program']} on {self.machine}"
        if self.refused is not None:
            return f"<Report: {title}, refused>"
        time = self.data["measured"]["critical_path"]
        unit = "cycles" if "cycles" in time else "seconds"
        count = "1 phase" if len(self.phases) == 1 else f"{len(self.phases)} phases"
        size = "x".join(map(str, self.data["mesh"]))
        return f"<Report: {title} {size}, {count}, {time[unit]:.6g} {unit}>"

    def to_json(self) -> str:
        """As `--json` writes it."""
        return json.dumps(self.data, indent=1) + "\n"

    def write(self, path: str | Path) -> None:
        """Write the JSON to a file. UsageError where that cannot be."""
        if not isinstance(path, (str, os.PathLike)) or not str(path):
            raise UsageError(f"the report is to be written to {path!r}: give the name of a file")
        write_json(self.data, str(path), "the report")

    def _repr_html_(self) -> str:
        from html import escape  # a notebook's alone

        if self.refused is not None:
            return f"<p>refused: {escape(self.refused)}</p>"
        title, header, rows = table_of(self.data, False)
        titles = "".join(f"<th>{escape(name)}</th>" for name in header)
        body = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th>"
            + "".join(f"<td style='text-align:right'>{escape(cell)}</td>" for cell in cells)
            + "</tr>"
            for name, *cells in rows
        )
        legend = escape(kinds.legend(self.data))
        return (
            f"<p>{escape(title)}</p><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table><p>{legend}</p>"
        )


def read_report(path: str) -> Report:
    """A report from a file that `meshrt run --json` has written; - is standard input. UsageError."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        data = json.loads(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be read as a report: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as a report: {error}") from error
    if isinstance(data, dict) and isinstance(data.get("refused"), str):
        raise UsageError(f"{path} has no numbers: the run was refused: {data['refused']}")
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or data.get("machine") not in machines():
        raise UsageError(
            f"{path} is no report of schema {SCHEMA} of {', '.join(machines())}: give what `meshrt run --json` wrote"
        )
    for key, kind in KEYS.items():
        if not isinstance(data.get(key), kind):
            raise UsageError(f"{path} is no whole report: its {key!r} is missing, or something else")
    return Report(data)


def _at(part: Any, path: Any) -> Any:
    names = path.split(".") if isinstance(path, str) else [path]
    for at, name in enumerate(names):
        if not isinstance(part, Mapping) or name not in part:
            stem = ".".join(names[:at])
            contents = ", ".join(part) if isinstance(part, Mapping) else "a number"
            meant = _meant(part, path) if isinstance(path, str) and at == 0 else []
            hint = f"did you mean {' or '.join(meant)}? " if meant else ""
            raise KeyError(f"no {path!r}; {hint}{stem or 'a report'} has {contents}")
        part = part[name]
    return part


def _meant(part: Mapping[str, Any], path: str) -> list[str]:
    """Numbers whose path ends so, as `--expect` has them, or that have it behind a word, as `diff` has them."""
    return [leaf for leaf in kinds.leaves(part) if leaf.endswith(f".{path}") or path.endswith(f".{leaf}")][:3]


def write_json(report: Mapping[str, Any], path: str, said: str = "--json") -> None:
    """The report as a file, which a message calls as it was `said`. UsageError."""
    write_file(said, path, lambda stream: stream.write((json.dumps(report, indent=1) + "\n").encode()))


def print_json(report: dict[str, Any]) -> None:
    print(json.dumps(report, indent=1))


def deliver_json(report: dict[str, Any], path: str | None) -> None:
    """The report where it was asked for: a file, - for standard output, or nowhere."""
    if path == "-":
        print_json(report)
    elif path:
        write_json(report, path)


def print_result(report: Mapping[str, Any], inner: Collection[str] = ()) -> None:
    """The program's own result, a line each, but those that are `inner`; what is long or was printed already is left to
    the JSON.
    """
    for key, value in _shown(report["result"]):
        if key not in inner:
            print(f"{key}: {value:.4g}" if isinstance(value, float) else f"{key}: {value}")


def hidden(report: Mapping[str, Any], inner: Collection[str]) -> int:
    """How many lines of the result, and rows of the table, are inner and not printed."""
    rows: Iterable[kinds.TableRow] = find_machine(report["machine"]).rows(report)
    return sum(key in inner for key, _ in _shown(report["result"])) + sum(row.inner for row in rows)


def _shown(result: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in result.items():
        if key == "text" and "token_ids" in result:  # of a generation: it came token by token
            continue
        if isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) < 60):
            yield key, value


def print_table(report: Mapping[str, Any], verbose: bool = False) -> None:
    """One column for each phase and one for the whole run; a row for each thing that was measured, and is not inner or
    was asked for.
    """
    from meshrt.columns import print_columns, print_words

    title, header, rows = table_of(report, verbose)
    print_words(title)
    print_columns(header, rows, [at > 0 for at in range(len(header))])
    print_words(kinds.legend(report))


def table_of(report: Mapping[str, Any], verbose: bool) -> tuple[str, list[str], list[list[str]]]:
    """The table's title, its header and its rows, the inner ones if `verbose`: a column for each phase, under its name,
    and for the whole run.
    """
    machine = find_machine(report["machine"])
    header = ["", *(phase["name"] for phase in report["phases"]), "total"]
    rows = [row for row in machine.rows(report) if verbose or not row.inner]
    return machine.title(report), header, [[row.name + of(row.limit), *row.cells] for row in rows]


def fields_of(report: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """The same for a program: a row for each number by its path, with its unit and its kind, and all its digits."""
    parts = [*report["phases"], report["measured"]]
    header = ["field", "unit", "kind", *(phase["name"] for phase in report["phases"]), "total"]
    rows = []
    for path in dict.fromkeys(path for part in reversed(parts) for path in kinds.leaves(part)):
        field = kinds.find(report["machine"], path)
        kind = report["kinds"].get(f"measured.{path}", "" if field is None else field.kind)
        cells = [_at(part, path) if path in set(kinds.leaves(part)) else None for part in parts]
        rows.append([path, "" if field is None else field.unit, kind, *cells])
    return header, rows
