"""The file of a run's timeline (`run --trace FILE`), read: the critical path's steps, and who was at what for how long.

Times are in cycles on the mesh and in microseconds on other machines, as the file has them.
"""

import json
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

ALONE = 24  # steps of a path that are told one by one, shared out among phases; those between two are added up
WAITS = {  # where the cycles of a wait for a packet went, last to first: from the sender's side to the receiver's
    "tail": "waits: rest of the packet",
    "ramp": "waits: busy ramp",
    "links": "waits: busy links",
    "on_the_way": "waits: packet on its way",
    "data": "waits: packet not yet sent",
}
TOTAL = "total"
NOTHING = "none of them"
WAIT = "waits: for a packet"  # where the trace has no more of it


class Span(NamedTuple):
    """What, and from when to when."""

    what: str
    begin: float
    end: float


class ShownStep(NamedTuple):
    """Of the critical path: what its arguments say (`Timelines` in docs/look.md) beside what, and from when to when."""

    what: str
    begin: float
    end: float
    more: Mapping[str, Any]


class PathRow(NamedTuple):
    """A step of the path, or all those between two that are longer."""

    begin: float
    end: float
    steps: Sequence[ShownStep]


@dataclass(frozen=True, eq=False)
class RunTrace:
    """`tracks` and `phases` by device: a core of the mesh, a NeuronCore, a GPU, a core of an Arm chip."""

    path: list[ShownStep] = field(default_factory=list)
    tracks: dict[Any, list[Span]] = field(default_factory=dict)
    phases: dict[Any, list[Span]] = field(default_factory=dict)

    def phases_of(self, device: Any) -> list[Span]:
        """Those of the run on the mesh, elsewhere the device's own; none where the trace has none."""
        return self.phases.get("phases") or self.phases.get(device, [])


def read_trace(path: str) -> RunTrace | None:
    """What `run --trace` wrote there; None where it cannot be read again, as from a pipe."""
    if not os.path.isfile(path):
        return None
    trace = RunTrace()
    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
        for event in _events(text):
            _enter(trace, event)
    except (OSError, ValueError, LookupError, TypeError):  # such as /dev/stdout, led to a file that has other text too
        return None
    return trace


def _enter(trace: RunTrace, event: Mapping[str, Any]) -> None:
    device, track, name, more = event["pid"], event["tid"], event["name"], event.get("args", {})
    begin, spent = (more["begin"], more["cycles"]) if "cycles" in more else (event["ts"], event["dur"])
    if track == "phases":
        name = f"{TOTAL} 2" if name == TOTAL else name  # as in the maps
        trace.phases.setdefault(device, []).append(Span(name, begin, begin + spent))
    elif track == "critical path":
        trace.path.append(ShownStep(name, begin, begin + spent, more))
    elif track.startswith("core "):
        trace.tracks.setdefault((device, track), []).extend(reasons(ShownStep(name, begin, begin + spent, more)))
    elif not track.startswith("link "):
        kind = name if track in ("work", "kernels") else track
        trace.tracks.setdefault(device, []).append(Span(kind, begin, begin + spent))


def _events(text: str) -> Iterator[dict[str, Any]]:
    """One after the other: all at once would take ten times the room of the text."""
    decoder, at = json.JSONDecoder(), text.index("[") + 1
    while text[at] != "]":
        event, at = decoder.raw_decode(text, at)
        yield event
        while text[at] in ", ":
            at += 1


def reasons(step: ShownStep) -> Iterator[Span]:
    """What a step is made of, last to first: a wait of the parts that the trace tells, the rest of it without a reason.

    A packet may have left before its receiver came to wait for it: what of its way was earlier is left out.
    """
    if not step.what.startswith(("waits for route", "packet, ")):
        yield Span(step.what, step.begin, step.end)
        return
    end = step.end
    for key, kind in WAITS.items():
        begin = max(step.begin, end - step.more.get(key, 0.0))
        if end > begin:
            yield Span(kind, begin, end)
        end = begin
    if end > step.begin:
        yield Span(WAIT, step.begin, end)


def rows_of_path(path: Sequence[ShownStep], phases: Sequence[Span]) -> list[PathRow]:
    """The longest steps of each phase one by one, and between them the others, added up: together the whole path.

    Of more than `ALONE` phases the first have one each.
    """
    groups: dict[int, list[int]] = {}
    ends = [phase.end for phase in phases]
    for at, step in enumerate(path):
        groups.setdefault(bisect_right(ends, step.begin), []).append(at)
    each = max(1, ALONE // (len(groups) or 1))
    longest = [sorted(group, key=lambda at: path[at].begin - path[at].end)[:each] for group in groups.values()]
    alone = range(len(path)) if len(path) <= ALONE else sorted(at for group in longest[:ALONE] for at in group)
    rows, done = [], 0
    for at in [*alone, len(path)]:
        for steps in (path[done:at], path[at : at + 1]):
            if steps:
                rows.append(PathRow(steps[0].begin, steps[-1].end, steps))
        done = at + 1
    return rows


def by_kind(spans: Sequence[Span]) -> dict[str, float]:
    """How long of each, most first."""
    lengths: dict[str, float] = {}
    for kind, begin, end in spans:
        lengths[kind] = lengths.get(kind, 0.0) + end - begin
    return dict(sorted(lengths.items(), key=lambda item: -item[1]))


def by_phase(spans: Sequence[Span], phases: Sequence[Span]) -> dict[str, list[Span]]:
    """The parts of spans that are in each phase, by its name. Phases lie one behind the other, as they follow."""
    parts: dict[str, list[Span]] = {phase.what: [] for phase in phases}
    ends = [phase.end for phase in phases]
    for kind, begin, end in spans:
        at = bisect_right(ends, begin)
        while at < len(phases) and phases[at].begin < end:
            phase = phases[at]
            parts[phase.what].append(Span(kind, max(begin, phase.begin), min(end, phase.end)))
            at += 1
    return parts


def covered(spans: Sequence[Span]) -> float:
    """For how long there is any of them."""
    whole, until = 0.0, float("-inf")
    for _, begin, end in sorted(spans, key=lambda span: span.begin):
        whole += max(0.0, end - max(begin, until))
        until = max(until, end)
    return whole


def shares(trace: RunTrace, whole: float) -> tuple[list[str], dict[str, list[float]]]:
    """Phases, the total last, and of each kind the part of the devices' time in each of them, most of the total first.

    `whole` is how long the run was. The last is the time with none of them. Engines work side by side: theirs may add
    up to more than 1.
    """
    names = [*dict.fromkeys(phase.what for device in trace.tracks for phase in trace.phases_of(device))]
    time, busy = dict.fromkeys([*names, TOTAL], 0.0), dict.fromkeys([*names, TOTAL], 0.0)
    spent: dict[str, dict[str, float]] = {}
    for device, spans in trace.tracks.items():
        phases = trace.phases_of(device)
        time[TOTAL] += whole
        for phase in phases:
            time[phase.what] += phase.end - phase.begin
        for name, inside in {**by_phase(spans, phases), TOTAL: spans}.items():
            busy[name] += covered(inside)
            for kind, length in by_kind(inside).items():
                of_kind = spent.setdefault(kind, dict.fromkeys([*names, TOTAL], 0.0))
                of_kind[name] += length
    ordered = sorted(spent.items(), key=lambda item: -item[1][TOTAL])
    parts = {kind: [lengths[name] / (time[name] or 1.0) for name in time] for kind, lengths in ordered}
    return [*time], {**parts, NOTHING: [max(0.0, 1 - busy[name] / (time[name] or 1.0)) for name in time]}
