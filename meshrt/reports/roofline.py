"""How near a run came to what its machine can do: bounds of its time, from a report and the device in it alone.

A bound is a time that a phase took at least: its operations at the peak rate, its bytes over what they crossed, its
latencies. The longest is what the phase is bound by, and as much of the time as it is the phase came to the roof. No
bound can be longer than the time: such a report, or the emulation that made it, is wrong.
"""

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from meshrt.errors import MeshrtError, UsageError
from meshrt.machine import find_machine
from meshrt.records import dataclass
from meshrt.reports.ceilings import Ceilings
from meshrt.reports.kinds import TableRow, mark
from meshrt.reports.report import Report
from meshrt.units import rate, short, size

ROUNDING = 1e-9  # share by which sums of floats may be off
WHOLE = "total"  # the name of the whole run in tables and the JSON


class BoundError(MeshrtError):
    """A run took less than it takes at least: a counter, the clock or a bound is wrong."""


@dataclass(frozen=True)
class RooflinePart:
    """A phase, or the whole run: what it took, and what it took at least."""

    name: str
    seconds: float
    ceilings: Ceilings

    @property
    def attained(self) -> float:
        """Operations a second."""
        return self.ceilings.operations / self.seconds if self.seconds else 0.0

    @property
    def bound(self) -> tuple[str, float]:
        """The longest of the bounds: what it is due to, and its seconds."""
        return max(self.ceilings.bounds.items(), key=lambda item: item[1])

    @property
    def share(self) -> float:
        """Of the time, that bound: 1 is on the roof."""
        return self.bound[1] / self.seconds if self.seconds else 0.0

    def check(self, run: str) -> None:
        """BoundError where a bound is longer than the time."""
        name, seconds = self.bound
        if seconds > self.seconds * (1 + ROUNDING):
            raise BoundError(
                f"{run}, {self.name}: {name} alone takes {seconds:.6g} s and all of it took {self.seconds:.6g} s; where"
                " the report is as meshrt wrote it, that is an error of meshrt's: please report it"
            )

    def json(self) -> dict[str, Any]:
        """As `--json` has it: rates that have no limit are null."""
        ceilings, (bound, seconds) = self.ceilings, self.bound
        return {
            "name": self.name,
            "seconds": self.seconds,
            "operations": ceilings.operations,
            "peak": _limit(ceilings.peak),
            "attained": self.attained,
            "levels": [
                {
                    "name": level.name,
                    "bytes": level.nbytes,
                    "bytes_per_second": _limit(level.rate),
                    "operations_per_byte": ceilings.operations / level.nbytes if level.nbytes else None,
                }
                for level in ceilings.levels
            ],
            "bounds": dict(ceilings.bounds),
            "bound_by": bound,
            "bound_seconds": seconds,
            "share": self.share,
        }


def parts_of(report: Report, run: str) -> list[RooflinePart]:
    """The phases of a run, and last the whole of it. UsageError for what is no whole report; `run` is its name."""
    ceilings, data = find_machine(report.machine).ceilings, report.data
    try:
        named = [*((phase["name"], phase) for phase in data["phases"]), (WHOLE, data["measured"])]
        return [
            RooflinePart(name, float(part["critical_path"]["seconds"]), ceilings(data, part)) for name, part in named
        ]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            f"{run} is no whole report of this version of meshrt ({type(error).__name__}: {error}); run it again"
        ) from error


def rows(report: Report, of_run: list[RooflinePart]) -> Iterator[TableRow]:
    """The rows of a run's table: a cell for each part."""
    first = of_run[-1].ceilings

    def marked(name: str, path: str) -> str:
        return f"{name} {mark(report.data, 'measured.' + path)}".rstrip()

    def share(part: RooflinePart, seconds: float) -> str:
        return f"{100 * seconds / part.seconds:.1f} %" if part.seconds else ""

    yield TableRow(marked("time", "critical_path.seconds"), [_time(part.seconds) for part in of_run])
    yield TableRow(marked("operations", first.path), [short(part.ceilings.operations) for part in of_run])
    yield TableRow("  a second", [rate(part.attained) for part in of_run])
    yield TableRow("  peak", [rate(part.ceilings.peak) for part in of_run])
    for at, level in enumerate(first.levels):
        levels = [part.ceilings.levels[at] for part in of_run]
        if not any(each.nbytes for each in levels):
            continue
        yield TableRow(marked(level.name, level.path), [size(each.nbytes) for each in levels])
        yield TableRow(
            "  operations/byte", [_intensity(part, each.nbytes) for part, each in zip(of_run, levels, strict=True)]
        )
    yield TableRow("at least", ["" for _ in of_run])
    for name in first.bounds:
        if any(part.ceilings.bounds[name] for part in of_run):
            yield TableRow(f"  {name}", [share(part, part.ceilings.bounds[name]) for part in of_run])
    yield TableRow("bound by", [part.bound[0] if part.bound[1] else "" for part in of_run])


def document(runs: Mapping[str, tuple[Report, list[RooflinePart]]]) -> dict[str, Any]:
    """All runs by their names, as `--json` has them."""
    return {
        "schema": 1,
        "runs": [
            {
                "report": name,
                "machine": report.machine,
                "program": report.data["program"],
                "device": report.data["device"]["name"],
                "parts": [part.json() for part in of_run],
            }
            for name, (report, of_run) in runs.items()
        ],
    }


def lines(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each part of each run, for a spreadsheet: what `--json` has, with a column for each level and bound.

    What a machine does not have, or has no limit, is empty.
    """
    rows: list[dict[str, Any]] = []
    for run in document["runs"]:
        for part in run["parts"]:
            line = {key: value for key, value in run.items() if key != "parts"}
            line |= {key: value for key, value in part.items() if key not in ("name", "levels", "bounds")}
            line["part"] = part["name"]
            for level in part["levels"]:
                line |= {f"{level['name']}: {key}": value for key, value in level.items() if key != "name"}
            rows.append(line | {f"at least {name}": seconds for name, seconds in part["bounds"].items()})
    columns = dict.fromkeys(column for line in rows for column in line)
    return [{column: "" if line.get(column) is None else line[column] for column in columns} for line in rows]


def _limit(number: float) -> float | None:
    return number if isfinite(number) else None


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:,.3f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:,.3f} us"


def _intensity(part: RooflinePart, nbytes: int) -> str:
    return f"{part.ceilings.operations / nbytes:.3g}" if nbytes else ""
