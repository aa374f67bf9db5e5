"""Does a program keep to the PLMR model? Its metrics of waferllm, sections 5.1 and 6.1, measured on growing meshes.

Every program runs on N x N cores for several N, with the same tile at every core, twice at each N: on the device, and
on the same device without limits on route entries and memory. The latter says what the algorithm wants, the former
what it pays where routes had to be split. Then each metric is fitted by a power of N:

    P  cores used         the share of cores that computed or waited for a packet
    L  longest packet     hops of the longest single route that the algorithm wants
       path of a step     hops, stages and cycles of the run's critical path on the device, divided by its steps
    M  memory per core    at its fullest, buffers in flight included, while the tile stays the same
    R  route entries      of the fullest router, as the algorithm wants them

A step is one of the N multiplications of a GEMM, one allreduce of a GEMV, the whole run of a user's program unless
told otherwise. No sum over a line can take less than its N - 1 hops, so there the stages alone decide on L: they have
to grow more slowly than N. Elsewhere nothing of it may grow.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshrt.errors import UsageError
from meshrt.mesh.device import COLOURS, Device
from meshrt.ranks.console import Console
from meshrt.studies.plmr import growth
from meshrt.studies.plmr.expect import Expectation, broken
from meshrt.studies.plmr.growth import Growth, fit
from meshrt.studies.plmr.subject import Layout, Subject, evaluate
from meshrt.studies.sweep import Outcome, RunJob, sweep
from meshrt.whole import whole_numbers

SCHEMA = 1
FIGURES = ("allgather", "summa", "cannon", "meshgemm", "pipeline", "ring", "ktree")  # of Figure 6, and of Figure 8
CLEARLY_LESS_THAN_N = 0.75 - growth.TOLERANCE  # between a K-tree's N^(1/2) and a chain's N


def number(value: float) -> str:
    """Three digits, or all of a whole part."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@dataclass(frozen=True)
class Limits:
    """What a run is judged by, of a machine: bytes of a core, entries of a router. A `Device` has them, too."""

    name: str
    core_memory: int | None
    route_entries: int | None


@dataclass(frozen=True)
class Metric:
    """One number of a run: how it is read from `measured`, with the steps of the run and the number of cores."""

    title: str
    unlimited: bool  # of the run without limits; else of the device's
    read: Callable[[Mapping[str, Any], float, int], float | None]
    show: Callable[[float], str] = number


def _path(part: str) -> Callable[[Mapping[str, Any], float, int], float]:
    return lambda run, steps, cores: run["critical_path"][part] / steps


METRICS = {
    "entries": Metric("R entries wanted", True, lambda run, *_: run["route_entries"]["max"]),
    "entries_used": Metric("  on the device", False, lambda run, *_: run["route_entries"]["max"]),
    "hops": Metric("L longest packet", True, lambda run, *_: run["max_hops"]),
    "path_hops": Metric("  path hops/step", False, _path("hops")),
    "stages": Metric("  path stages/step", False, _path("stages")),
    "cycles": Metric("  path cycles/step", False, _path("cycles")),
    "memory": Metric("M bytes per core", True, lambda run, *_: run["memory_bytes"]["max"]),
    "cores": Metric("P cores used", False, lambda run, _, cores: _share(run, cores), "{:.3g}".format),
}


def _share(run: Mapping[str, Any], cores: int) -> float | None:
    return run["cores_used"] / cores if "cores_used" in run else None


@dataclass(frozen=True)
class Verdict:
    """One letter of PLMR for one program; `why` says what breaks it. None: not measured, or refused by the device."""

    ok: bool | None
    why: str = ""


@dataclass(frozen=True)
class PlmrFinding:
    """All about one program: metric -> value at every N (None where the device refused), growth, verdicts."""

    subject: Subject | Layout
    metrics: Mapping[str, Metric]
    sizes: Sequence[int]
    values: Mapping[str, Mapping[int, float | None]]
    grows: Mapping[str, Growth]
    verdicts: Mapping[str, Verdict]
    refused: Mapping[int, str]  # by the device


def parse_sizes(text: str) -> list[int]:
    """'8,16,32' -> those numbers in order, each once; how they grow takes three to tell. UsageError."""
    try:
        sizes = sorted(set(whole_numbers(text)))
    except ValueError:
        sizes = []
    if len(sizes) < 3 or sizes[0] < 2:
        raise UsageError(f"--sizes {text}: three different numbers of 2 or more, with commas between, such as 8,16,32")
    return sizes


def check(
    comm: Any, subjects: Sequence[Subject], sizes: Sequence[int], device: Device, tile: int, console: Console
) -> list[PlmrFinding]:
    """Run every program on all meshes and judge it; the same on every rank. UsageError."""
    if tile < 1:
        raise UsageError(f"--tile is {tile}; it starts at 1")
    for subject, n in ((subject, n) for subject in subjects for n in sizes):
        if evaluate(subject.steps, n, tile) <= 0:
            raise UsageError(f"--steps {subject.steps} at N = {n} is no positive number")
    boundless = replace(device, route_entries=None, core_memory=None)
    jobs = [
        RunJob(subject.source, (n, n), machine, subject.arguments(n, tile), advised=True)
        for machine in (boundless, device)
        for subject in subjects
        for n in sizes
    ]
    outcomes = sweep(comm, jobs, console, "runs")
    half = len(jobs) // 2
    findings = []
    for at, subject in enumerate(subjects):
        own_runs = slice(at * len(sizes), (at + 1) * len(sizes))
        unlimited, limited = (
            dict(zip(sizes, part[own_runs], strict=True)) for part in (outcomes[:half], outcomes[half:])
        )
        findings.append(judge(subject, unlimited, limited, device, tile))
    return findings


def judge(
    subject: Subject | Layout, unlimited: Mapping[int, Outcome], limited: Mapping[int, Outcome],
    device: Device | Limits, tile: int, metrics: Mapping[str, Metric] = METRICS,
) -> PlmrFinding:  # fmt: skip
    """Metrics, growth and verdicts of a program from its runs without limits and on the device, by N."""
    values: dict[str, dict[int, float | None]] = {}
    grows = {}
    for name, metric in metrics.items():
        values[name] = {}
        for n, outcome in (unlimited if metric.unlimited else limited).items():
            measured = None if outcome.report is None else outcome.report["measured"]
            steps = evaluate(subject.steps, n, tile)
            values[name][n] = None if measured is None else metric.read(measured, steps, n * n)
        limit = COLOURS if name == "entries" else None  # more the emulator cannot tell apart
        numbers = {n: value for n, value in values[name].items() if value is not None}
        grows[name] = fit([*numbers], [*numbers.values()], limit)
    refused = {n: outcome.refused for n, outcome in limited.items() if outcome.refused is not None}
    judged = verdicts(subject, values, grows, device, metrics)
    return PlmrFinding(subject, metrics, [*unlimited], values, grows, judged, refused)


def verdicts(
    subject: Subject | Layout, values: Mapping[str, Mapping[int, float | None]], grows: Mapping[str, Growth],
    device: Device | Limits, metrics: Mapping[str, Metric],
) -> dict[str, Verdict]:  # fmt: skip
    """P, L, M and R, from what was measured alone."""

    def against(*bounds: tuple[str, float, float | None]) -> Verdict:
        why, unknown = [], False
        for name, exponent, limit in bounds:
            title, show = metrics[name].title[2:], metrics[name].show
            numbers = {n: value for n, value in values[name].items() if value is not None}
            over = [n for n, value in numbers.items() if limit is not None and value > limit]
            unknown |= not numbers
            if grows[name].faster_than(exponent):
                low, high = min(numbers), max(numbers)
                ends = f"{show(numbers[low])} at N = {low}, {show(numbers[high])} at N = {high}"
                why.append(f"{title}: {ends}, grows as {grows[name].name}")
            elif over:
                why.append(f"{title}: {show(numbers[over[0]])} at N = {over[0]}, the device has {show(limit or 0)}")
        return Verdict(False if why else None if unknown else True, "; ".join(why))

    share = grows["cores"].exponent
    used = None if share is None else share >= -growth.TOLERANCE
    latency = [("stages", CLEARLY_LESS_THAN_N)] if subject.reach == "line" else [
        ("hops", 0.0), ("path_hops", 0.0), ("stages", 0.0)
    ]  # fmt: skip
    return {
        "P": Verdict(used, f"cores used: their share falls as N^{share:.2f}" if used is False else ""),
        "L": against(*((name, exponent, None) for name, exponent in latency)),
        "M": against(("memory", 0.0, device.core_memory)),
        "R": against(("entries", 0.0, device.route_entries)),
    }


def expected(findings: Sequence[PlmrFinding], expectations: Sequence[Expectation]) -> list[str]:
    """The bounds that do not hold, a line each. A run that the device refused holds none."""
    lines = []
    for finding in findings:
        name = finding.subject.name
        if expectations:
            lines += [f"{name}: refused at N = {n}: {text}" for n, text in finding.refused.items()]
        for expectation in expectations:
            lines += [
                f"{name}: {line}"
                for line in broken(expectation, finding.values[expectation.metric], finding.grows[expectation.metric])
            ]
    return lines
