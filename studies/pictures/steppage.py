"""The critical path step by step and the timeline in short, as parts of a page (page.py), from a run's trace."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from meshrt.machine import find_machine
from meshrt.studies.pictures.traces import (
    TOTAL,
    PathRow,
    RunTrace,
    ShownStep,
    Span,
    by_kind,
    by_phase,
    reasons,
    rows_of_path,
    shares,
)

PageRows = tuple[list[str], list[list[str]]]  # a table: its header, and its rows
MOST = 12  # kinds of a timeline that have a row: the others are added up
PACKET = {"links": "busy links", "on_the_way": "on its way", "ramp": "busy ramp", "tail": "the rest of it"}
RULE = (
    " The longest of each phase have a row, as many of each; those between two of them are one row, added up, with what"
    " they were most."
)
NEVER = "The trace has no phases."
HOW = "run it again with --trace FILE and --html FILE"


def steps_of(report: Mapping[str, Any], trace: RunTrace | None) -> str:
    """The steps, or why there are none."""
    why = _why_not(report, trace)
    if trace is None or why:
        return f"<p>{escape(why)}</p>"
    whole = trace.path[-1].end
    phases = trace.phases_of("phases")
    rows = rows_of_path(trace.path, phases)
    several = len({step.more["site"] for step in trace.path}) > 1
    body = "".join(_row(row, phases, whole, several) for row in rows)
    rule = "" if len(rows) == len(trace.path) else RULE
    head = "".join(f"<th>{name}</th>" for name in ("begin", "cycles", "core", "phase"))
    head += '<th class="text">what</th><th class="when">when</th>'
    return (
        f"<p>Step by step, {len(trace.path):,} steps, end to end: together they are the {_number(whole)} cycles of the"
        f' run.{rule}</p><div class="wide"><table class="steps"><thead><tr>{head}</tr></thead><tbody>{body}</tbody>'
        "</table></div>"
    )


def _why_not(report: Mapping[str, Any], trace: RunTrace | None) -> str:
    """Why a page has no steps; empty if it has."""
    if report["machine"] != "mesh":
        return "Step by step it is followed on the mesh alone."
    if trace is None:
        return f"A report has no single steps: {HOW}."
    cycles = report["measured"]["critical_path"]["cycles"]
    if "runs" in report or not trace.path or abs(trace.path[-1].end - cycles) > 1e-6 * cycles:
        return "Its single steps are not there: the trace is that of a part of the run alone, or of no time at all."
    return ""


def _row(row: PathRow, phases: Sequence[Span], whole: float, several: bool) -> str:
    """`several`: are there several meshes, so that a core is told with its own?"""
    first = next((phase.what for phase in phases if phase.begin <= row.begin < phase.end), "")
    last = next((phase.what for phase in phases if phase.begin < row.end <= phase.end), first)
    if len(row.steps) == 1:
        (step,) = row.steps
        core, text = _at(step, several), _what(step.what, step.more)
    else:
        cores = {_at(step, several) for step in row.steps}
        core = cores.pop() if len(cores) == 1 else f"{len(cores)} cores"
        kinds = by_kind([span for step in row.steps for span in reasons(step)])
        text = f"{len(row.steps):,} steps: " + "; ".join(f"{kind} {_number(spent)}" for kind, spent in _few(kinds))
    left, length = row.begin / whole, (row.end - row.begin) / whole
    return (
        f"<tr><th>{_number(row.begin)}</th><td>{_number(row.end - row.begin)}</td><td>{escape(core)}</td>"
        f'<td>{escape(first if first == last else f"{first} to {last}")}</td><td class="text">{escape(text)}</td>'
        f'<td class="when"><div class="bar" style="margin-left:{min(left, 0.99):.2%};width:{length:.2%}"></div></td>'
        "</tr>"
    )


def _few(kinds: Mapping[str, float]) -> list[tuple[str, float]]:
    """The most of them, and the others added up."""
    items = [*kinds.items()]
    return items if len(items) <= 3 else [*items[:2], ("others", sum(spent for _, spent in items[2:]))]


def _at(step: ShownStep, several: bool) -> str:
    return _core(step.more["core"]) + (f" of {step.more['site']}" if several else "")


def _core(core: Sequence[int]) -> str:
    return f"({core[0]}, {core[1]})"


def _what(name: str, more: Mapping[str, Any]) -> str:
    """A step in words; of a packet from where, and where its cycles went."""
    if "from" not in more:
        return name
    parts = [f"{said} {_number(more[key])}" for key, said in PACKET.items() if more.get(key)]
    hops = f"{more['hops']:,.0f} hop{'' if more['hops'] == 1 else 's'}"
    return f"{name}, from {_core(more['from'])}, {hops}{': ' if parts else ''}{', '.join(parts)}"


def _number(cycles: float) -> str:
    """Whole, or to a thousandth."""
    return f"{cycles:,.3f}".rstrip("0").rstrip(".")


def kinds_of_path(report: Mapping[str, Any], trace: RunTrace | None) -> PageRows | None:
    """The path's cycles by kind and phase; None without steps."""
    if trace is None or _why_not(report, trace):
        return None
    spans = [span for step in trace.path for span in reasons(step)]
    parts = {name: by_kind(inside) for name, inside in by_phase(spans, trace.phases_of("phases")).items()}
    parts[TOTAL] = by_kind(spans)
    rows = [[kind, *(_number(part.get(kind, 0.0)) for part in parts.values())] for kind in parts[TOTAL]]
    sums = ["all", *(_number(sum(part.values())) for part in parts.values())]
    return ["cycles", *parts], [*rows, sums]


def timeline_of(report: Mapping[str, Any], trace: RunTrace | None) -> tuple[str, PageRows | None]:
    """What the timeline in short is, in words, and who was at what for which part of the time, if it is there."""
    if trace is None:
        return f"A report has no timeline: {HOW}.", None
    if not trace.tracks:
        return "There is nothing on its timeline.", None
    if "runs" in report:
        return "The trace is that of the last of several runs: there is none of all of them.", None
    machine, path = report["machine"], report["measured"]["critical_path"]
    names, parts = shares(trace, path["cycles"] if machine == "mesh" else 1e6 * path["seconds"])
    *kinds, last = parts.items()
    most, others = kinds[:MOST], kinds[MOST:]
    if others:
        most.append(
            (f"{len(others)} others", [sum(column) for column in zip(*(row for _, row in others), strict=True)])
        )
    rows = [[kind, *(f"{share:.1%}" for share in row)] for kind, row in [*most, last] if max(row) >= 0.0005]
    count = len(trace.tracks)
    text = find_machine(machine).TIMELINE.format(count)
    return f"{text} {NEVER if len(names) == 1 else ''}".strip(), (["", *names], rows)
