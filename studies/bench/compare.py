"""Alternatives side by side on the same work: algorithms of a product, allreduces, cache policies, whole systems, ways
of tokens to their experts.

What the alternatives are is read off the program: the choices of one of its options.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from meshrt.errors import UsageError
from meshrt.mesh.device import Device
from meshrt.program import Program, load_program
from meshrt.ranks.console import Console
from meshrt.studies.grid import Cell, Grid, put
from meshrt.studies.sweep import Outcome, RunJob, sweep
from meshrt.units import of, size

FULL = 4096  # cores up to which payloads are moved unless asked otherwise


@dataclass(frozen=True)
class Comparison:
    """What is compared: the choices of a program's `option`, some of them in several `kinds` (label -> options).

    `agree` names a part of the result that has to be the same for all; `without` are options that make no sense here,
    and `defaults` those that are others than the program's. So is `mesh`, where that one would hold no alternative.
    """

    program: str
    option: str
    kinds: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    agree: str | None = None
    without: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    mesh: tuple[int, int] | None = None

    def fixed(self) -> set[str]:
        """Options of the program that the comparison sets itself."""
        names = {name for kinds in self.kinds.values() for options in kinds.values() for name in options}
        return {self.option, *names, *self.without}


TREES = {f"ktree K={k}": {"phases": k} for k in (1, 2, 3)}
WAYS = {
    placement: {f"{placement} {way}": {"dispatch": way} for way in ways}
    for placement, ways in (
        ("split", ("padded", "dense", "ring", "multicast", "crossbar")), ("regions", ("ring", "multicast", "crossbar"))
    )
}  # fmt: skip
COMPARISONS = {
    "gemm": Comparison("gemm", "algorithm", without=("transpose_b", "reduce", "segment")),
    "gemv": Comparison("gemv", "allreduce", {"ktree": TREES}, without=("groups",)),
    "kv": Comparison("kvcache", "policy"),
    "llama": Comparison("llama", "system", agree="token_ids", without=("logits",)),
    "experts": Comparison(
        "llama",
        "experts",
        WAYS,
        "token_ids",
        ("logits", "system", "capacity", "drop", "expert_grid", "experts_run"),
        {"model": "mixtral-tiny"},
        (12, 12),
    ),
}


def alternatives(comparison: Comparison, program: Program, only: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Label -> the options that make the alternative, in the order of the program's choices.

    `only` picks some, by label or by choice. A program without that option has one alternative: itself. UsageError.
    """
    choices = next((option.choices for option in program.options if option.name == comparison.option), None)
    if choices is None:
        labelled: dict[str, dict[str, Any]] = {program.name: {}}
    else:
        labelled = {
            label: {comparison.option: choice, **options}
            for choice in choices
            for label, options in comparison.kinds.get(choice, {choice: {}}).items()
        }
    for name in only:
        if not any(name in (label, options.get(comparison.option)) for label, options in labelled.items()):
            raise UsageError(f"--only {name}: there is no such alternative; there are {', '.join(labelled)}")
    chosen = {
        label: options
        for label, options in labelled.items()
        if not only or label in only or options.get(comparison.option) in only
    }
    return chosen


def compare(
    comm: Any, console: Console, name: str, arguments: Mapping[str, Any], *, mesh: tuple[int, int] | None,
    device: Device, payload: bool | None = None, only: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Run every alternative on the same work, shared out to the ranks: the report, on all of them.

    `payload` None moves numbers on up to 4096 cores. What a limit of the machine refuses is reported as refused.
    UsageError, and what else the program raises.
    """
    comparison = COMPARISONS[name]
    program = load_program(comparison.program)
    width, height = mesh or comparison.mesh or program.mesh
    full = width * height <= FULL if payload is None else payload
    chosen = alternatives(comparison, program, only)
    jobs = [
        RunJob(comparison.program, (width, height), device, {**arguments, **options}, payload=full)
        for options in chosen.values()
    ]
    outcomes = sweep(comm, jobs, console, "alternatives")
    numbers = asdict(device)
    del numbers["sources"]
    return {
        "schema": 1,
        "comparison": name,
        "program": program.name,
        "option": comparison.option,
        "device": numbers,
        "mesh": [width, height],
        "payload": "full" if full else "none",
        "arguments": dict(arguments),
        "alternatives": _rows(comparison, chosen, outcomes),
        "host": {
            "ranks": comm.size,
            "wall_seconds": {label: outcome.seconds for label, outcome in zip(chosen, outcomes, strict=True)},
        },
    }


def _rows(
    comparison: Comparison, chosen: Mapping[str, dict[str, Any]], outcomes: Sequence[Outcome]
) -> list[dict[str, Any]]:
    first = next((outcome.report for outcome in outcomes if outcome.report is not None), None)
    rows = []
    for (label, options), outcome in zip(chosen.items(), outcomes, strict=True):
        report = outcome.report
        row: dict[str, Any] = {"name": label, "arguments": options, "refused": outcome.refused}
        if report is not None and first is not None:
            row |= {key: report[key] for key in ("result", "measured", "phases")}
            base = first["measured"]["critical_path"]["cycles"]
            row["relative_cycles"] = report["measured"]["critical_path"]["cycles"] / base if base else None
            if comparison.agree is not None and comparison.agree in report["result"]:
                row["agrees"] = report["result"][comparison.agree] == first["result"][comparison.agree]
        rows.append(row)
    return rows


# ----------------------------------------------------------------------------------------------------- the table


def print_comparison(report: Mapping[str, Any], form: str = "table") -> None:
    put(said(report), form)


def said(report: Mapping[str, Any]) -> Iterator[str | Grid]:
    """One column for each alternative, a row for each thing that was measured; below, why what was refused was."""
    width, height = report["mesh"]
    device, rows = report["device"], report["alternatives"]
    numbers = "real numbers" if report["payload"] == "full" else "shapes only"
    yield (f"{report['program']} on {width} x {height} cores of {device['name']}, {numbers}")
    table = [
        [name, *("refused" if row["refused"] and name == "path cycles" else show(row) for row in rows)]
        for name, show in lines(report)
    ]
    table.append(
        [
            Cell("host time, s", "host time"),
            *(Cell(each, f"{each:.2f} s") for each in report["host"]["wall_seconds"].values()),
        ]
    )
    yield Grid(["", *(row["name"] for row in rows)], table, right=True)
    yield from (f"{row['name']} is refused: {row['refused']}" for row in rows if row["refused"])


def lines(report: Mapping[str, Any]) -> list[tuple[str | Cell, Callable[[Mapping[str, Any]], Any]]]:
    """The table's lines: what each is called, and how it shows an alternative ('-' where that has nothing to show)."""
    device, rows = report["device"], report["alternatives"]
    limit = device["core_memory"]

    def measured(show: Callable[[Any], Any]) -> Callable[[Mapping[str, Any]], Any]:
        return lambda row: "-" if row["refused"] else show(row["measured"])

    def nbytes(count: int) -> Cell:
        return Cell(count, size(count))

    table_lines: list[tuple[str | Cell, Callable[[Mapping[str, Any]], Any]]] = [
        ("messages", measured(lambda part: _count(part["messages"]))),
        ("hops", measured(lambda part: _count(part["hops"]))),
        ("longest packet", measured(lambda part: _count(part["max_hops"]))),
        ("path hops", measured(lambda part: _count(part["critical_path"]["hops"]))),
        ("path stages", measured(lambda part: _count(part["critical_path"]["stages"]))),
        ("path cycles", measured(lambda part: _count(part["critical_path"]["cycles"]))),
        ("relative to the first", lambda row: _ratio(row.get("relative_cycles"))),
    ]
    names = list(dict.fromkeys(phase["name"] for row in rows if not row["refused"] for phase in row["phases"]))
    if len(names) > 1:
        table_lines += [(f"  of it {name}", partial(_phase_cycles, name)) for name in names]
    table_lines += [
        (Cell("busiest link, bytes", "busiest link"), measured(lambda part: nbytes(part["link_bytes"]["max"]))),
        ("entries" + of(device["route_entries"]), measured(lambda part: _count(part["route_entries"]["max"]))),
        (
            Cell("memory, bytes", "memory" + of(limit and size(limit))),
            measured(lambda part: nbytes(part["memory_bytes"]["max"])),
        ),
    ]
    if any("agrees" in row for row in rows):
        agree = COMPARISONS[report["comparison"]].agree
        table_lines.append((f"same {agree}", lambda row: {True: "yes", False: "NO", None: "-"}[row.get("agrees")]))
    keys = dict.fromkeys(
        key
        for row in rows
        if not row["refused"]
        for key, value in row["result"].items()
        if isinstance(value, (bool, int, float))
    )
    table_lines += [(key.replace("_", " "), partial(_result, key)) for key in keys]
    return table_lines


def _phase_cycles(name: str, row: Mapping[str, Any]) -> Cell | str:
    """Cycles of all phases of that name."""
    cycles = [phase["critical_path"]["cycles"] for phase in row.get("phases", ()) if phase["name"] == name]
    return _count(sum(cycles)) if cycles else "-"


def _count(number: float) -> Cell:
    return Cell(number, f"{number:,.0f}")


def _ratio(value: float | None) -> Cell | str:
    return "-" if value is None else Cell(value, f"{value:.2f}")


def _result(key: str, row: Mapping[str, Any]) -> Cell | str:
    return _number((row.get("result") or {}).get(key))


def _number(value: Any) -> Cell | str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return Cell(value, "yes" if value else "no")
    return Cell(value, f"{value:.3g}" if isinstance(value, float) else f"{value:,}")
