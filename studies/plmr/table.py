"""The compliance check as a person reads it (Figures 6 and 8 of waferllm, from measurements), and as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from meshrt.mesh.device import Device
from meshrt.studies.grid import Cell, Grid, put
from meshrt.studies.plmr.check import SCHEMA, Limits, PlmrFinding
from meshrt.studies.plmr.growth import Growth
from meshrt.studies.plmr.subject import WORKLOADS, Layout, Subject, fill

FIGURES = {"gemm": "gemm (Figure 6 of WaferLLM)", "gemv": "gemv (Figure 8 of WaferLLM)"}
SAYS = {True: "ok", False: "violates", None: "unknown"}
NAMES = {"constant": "1", "sqrt N": "√N", "N^(1/3)": "N^1/3"}
LETTERS = {
    "P": "P parallelism",
    "L": "L latency",
    "M": "M memory",
    "R": "R routing",
}


def as_json(
    findings: Sequence[PlmrFinding], device: Device | Limits, tile: int | None, lines: Sequence[str]
) -> dict[str, Any]:
    """All of it. Nothing depends on the number of ranks."""
    numbers = {key: value for key, value in asdict(device).items() if key != "sources"}
    return {
        "schema": SCHEMA,
        "study": "plmr",
        "device": numbers,
        "sizes": list(findings[0].sizes),
        "tile": tile,
        "programs": [_program(finding) for finding in findings],
        "broken": list(lines),
    }


def _program(finding: PlmrFinding) -> dict[str, Any]:
    return {
        "name": finding.subject.name,
        "program": finding.subject.kind,
        "options": dict(finding.subject.options),
        "steps": finding.subject.steps,
        "reach": finding.subject.reach,
        "metrics": {
            name: {
                "values": [{"n": n, "value": value} for n, value in values.items()],
                "exponent": finding.grows[name].exponent,
                "late_exponent": finding.grows[name].late,
                "growth": finding.grows[name].name,
            }
            for name, values in finding.values.items()
        },
        "verdicts": {letter: {"ok": verdict.ok, "why": verdict.why} for letter, verdict in finding.verdicts.items()},
        "refused": [{"n": n, "why": why} for n, why in finding.refused.items()],
    }


def print_tables(
    findings: Sequence[PlmrFinding], device: Device | Limits, tile: int | None, form: str = "table"
) -> None:
    put(said(findings, device, tile), form)


def said(findings: Sequence[PlmrFinding], device: Device | Limits, tile: int | None) -> Iterator[str | Grid]:
    """One table for each kind of program, a column for each way of doing it; then what breaks a verdict."""
    cores = "cores" if tile is None else "N x N cores"
    yield (f"PLMR on {cores} of {device.name}, N = {', '.join(map(str, findings[0].sizes))}")
    for title in dict.fromkeys(_title(finding.subject, tile) for finding in findings):
        yield f"\n{title}"
        yield _table(title, [finding for finding in findings if _title(finding.subject, tile) == title])
        yield ""
    for finding in findings:
        for letter, verdict in finding.verdicts.items():
            if verdict.ok is False:
                yield (f"{finding.subject.name} violates {letter}: {verdict.why}")
        for n, text in finding.refused.items():
            yield (f"{finding.subject.name} is refused at N = {n}: {text}")


def _title(subject: Subject | Layout, tile: int | None) -> str:
    name, tiles = subject.kind, ""
    work = WORKLOADS.get(name)
    if tile is not None and work is not None and work.options.items() <= subject.options.items():  # not others by --set
        tiles = fill(work.tile, 0, tile)
    step = "the whole run" if subject.steps == "1" else f"the run divided by {subject.steps}"
    return "; ".join(filter(None, (FIGURES.get(name, name), tiles, f"a step is {step}")))


def _table(title: str, findings: Sequence[PlmrFinding]) -> Grid:
    """The numbers at the smallest and the largest N and how they grow, and the verdicts; all N are in the JSON."""
    rows: list[list[Any]] = []
    for name, metric in findings[0].metrics.items():
        rows.append([metric.title, *(_ends(finding.values[name], metric.show) for finding in findings)])
        grows = [finding.grows[name] for finding in findings]
        rows.append(
            [Cell(f"{metric.title}, exponent", ""), *(Cell(growth.exponent, _growth(growth)) for growth in grows)]
        )
    for letter, name in LETTERS.items():
        rows.append([name, *(SAYS[finding.verdicts[letter].ok] for finding in findings)])
    return Grid(["", *(_short(finding.subject.name) for finding in findings)], rows, title, right=True)


def _short(name: str) -> str:
    """A column's heading: a line for the program and one for each of its options."""
    path, _, options = name.partition(":")
    return "\n".join([path.rpartition("/")[2], *filter(None, options.split(","))])


def _ends(values: Mapping[int, float | None], show: Any) -> str:
    """The values at the smallest and at the largest N."""
    first, last = ("-" if values[n] is None else show(values[n]) for n in (min(values), max(values)))
    return f"{first} → {last}"


def _growth(grows: Growth) -> str:
    """'O(1) 0.02': what the growth is taken for, and the exponent that was fitted."""
    if grows.exponent is None:
        return grows.name
    name, number = NAMES.get(grows.name, grows.name), f"{grows.exponent:.2f}"
    if grows.levels:
        return f"levels {number}"
    return f"O({name})" if name == f"N^{number}" else f"O({name}) {number}"
