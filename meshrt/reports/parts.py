"""What ran in several parts as one: phases of one name, and several runs of a program, one after the other, each on a
machine that is as new.

What a machine has counted and timed is added up over the parts; what is the most of something is the most of one of
them, where the machine does not say it of all phases of a name; a share of the time is that of all of it. `runs` has
what each run measured, as its own report has it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from meshrt.records import dataclass

ReportPart = Mapping[str, Any]

MOST = {"max_hops", "cores", "cores_used", "out_of_order.longest_wait"}  # beside all that is called max
SHARES = {"mfu", "active"}  # of the time
OF_THE_HOST = ("wall_seconds", "messages", "packets", "bytes")  # that add up; what else is there is the last run's


@dataclass(frozen=True)
class Runs:
    """What a program returns that is to run several times: what is different of its arguments each time."""

    changes: Sequence[Mapping[str, Any]]


def one_report(reports: Sequence[dict[str, Any]], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The reports of all runs as one: `result.requests` has their results."""
    first = reports[0]
    return {
        **first,
        "arguments": arguments,
        "result": {"requests": [report["result"] for report in reports]},
        "measured": together([report["measured"] for report in reports]),
        "phases": by_name([phase for report in reports for phase in report["phases"]]),
        "runs": [{"measured": report["measured"], "phases": report["phases"]} for report in reports],
        "host": hosts([report["host"] for report in reports]),
        "kinds": {path: kind for report in reports for path, kind in report["kinds"].items()},
    }


def by_name(phases: Sequence[ReportPart]) -> list[dict[str, Any]]:
    """Phases with those of one name as one, where the first of them is."""
    parts: dict[str, list[ReportPart]] = {}
    for phase in phases:
        parts.setdefault(phase["name"], []).append(phase)
    return [together(same) if len(same) > 1 else dict(same[0]) for same in parts.values()]


def together(parts: Sequence[ReportPart]) -> dict[str, Any]:
    """What several runs measured, or several phases of one name, as what one did."""
    return _joined("", parts, [part["critical_path"]["seconds"] for part in parts])


def _joined(stem: str, parts: Sequence[ReportPart], seconds: Sequence[float]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        timed = [(part[name], time) for part, time in zip(parts, seconds, strict=True) if name in part]
        values = [value for value, _ in timed]
        if isinstance(values[0], Mapping):
            joined[name] = _joined(f"{stem}{name}.", values, [time for _, time in timed])
        elif isinstance(values[0], str) or values[0] is None or name == "limit":
            joined[name] = values[0]
        elif name == "max" or stem + name in MOST:
            joined[name] = max(values)
        elif name in SHARES:
            joined[name] = sum(value * time for value, time in timed) / (sum(seconds) or 1.0)
        else:
            joined[name] = sum(values)
    return joined


def hosts(parts: Sequence[ReportPart]) -> dict[str, Any]:
    """What is known of the host, of one run or several, with the phases of a name as one."""
    host = dict(parts[-1])
    for name in OF_THE_HOST:
        if name in host:
            host[name] = sum(part[name] for part in parts)
    if "phases" in host:
        sums: dict[str, Counter[str]] = {}
        for phase in (phase for part in parts for phase in part["phases"]):
            seconds = {key: value for key, value in phase.items() if key != "name"}
            sums.setdefault(phase["name"], Counter()).update(seconds)
        host["phases"] = [{"name": name, **seconds} for name, seconds in sums.items()]
    return host
