"""PLMR of a program in CSL: the same metrics and verdicts, measured on what its layout makes of N.

    R  route entries     of the fullest router
    L  longest wavelet   hops from a core's ramp to the farthest that it goes to
       path of a step    hops, messages and cycles of what the last core has waited for, divided by the steps
    M  memory per core   what is placed in the fullest, while a tile stays the same
    P  cores used        the share of cores that computed or took a wavelet
       busy              the share of their cycles in which cores did not wait; shown, and no verdict hangs on it

There is no machine without limits here: what has more colours, or takes more memory, is refused, and breaks R or M.
A stage is a message, sent by a core that has waited for the one before: software at a core, as in our own programs.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshrt.csl.errors import ColorLimit
from meshrt.csl.host.direct import run
from meshrt.csl.language.image import CORE_BYTES
from meshrt.csl.machine.router import COLORS
from meshrt.errors import LimitError, MeshrtError, UsageError
from meshrt.ranks.console import Console
from meshrt.ranks.handout import gathered, handed_out
from meshrt.studies.plmr import check
from meshrt.studies.plmr.check import Limits, Metric, PlmrFinding, Verdict
from meshrt.studies.plmr.subject import Layout, SendReach, evaluate, fill
from meshrt.studies.sweep import Outcome

METRICS = {
    "entries": Metric("R route entries", False, check.METRICS["entries"].read),
    "hops": Metric("L longest wavelet", False, check.METRICS["hops"].read),
    **{name: check.METRICS[name] for name in ("path_hops", "stages", "cycles")},
    "memory": Metric("M bytes per core", False, check.METRICS["memory"].read),
    "cores": Metric("P cores used", False, lambda run, *_: run["cores_used"] / run["cores"], "{:.3g}".format),
    "busy": Metric("  busy", False, lambda run, *_: run["busy"], "{:.3g}".format),
}


def layout(path: str, parameters: str, launches: Sequence[str], arch: str, steps: str, reach: SendReach) -> Layout:
    """A layout's file, and what of it follows N. UsageError."""
    file = Path(path)
    if not file.exists():
        raise UsageError(f"{path} is not there: a layout (.csl) is asked for")
    if file.suffix != ".csl" or not file.is_file():
        raise UsageError(f"{path} is no layout (.csl): a folder's own script says sizes itself")
    if not any("{" in text for text in (parameters, *launches)):
        raise UsageError(f"--params {parameters!r} has no {{N}}, so nothing grows: --params width:{{N}}")
    braces = [inner for text in (parameters, *launches) for inner in re.findall(r"\{([^{}]*)\}", text)]
    for expression in (steps, *braces):
        if re.search(r"\btile\b", expression):
            raise UsageError(f"{expression!r}: tile is of our own programs, a layout's parameters say what a core has")
    subject = Layout(f"{path}:{parameters}", file, parameters, tuple(launches), arch, steps, reach)
    for text in (parameters, *launches):
        fill(text, 8, 0)  # tell what is wrong before anything runs
    evaluate(steps, 8, 0)
    return subject


def check_layout(comm: Any, subject: Layout, sizes: Sequence[int], console: Console) -> PlmrFinding:
    """Run it at all sizes, which the ranks share, and judge it; the same on every rank. CslError, NoRoute, Deadlock."""
    for n in sizes:
        if evaluate(subject.steps, n, 0) <= 0:
            raise UsageError(f"--steps {subject.steps} at N = {n} is no positive number")
    mine: dict[int, tuple[Outcome, str]] = {}
    for at in handed_out(comm, len(sizes)):
        mine[sizes[at]] = _run(subject, sizes[at])
        console.progress("runs", at + 1, len(sizes))
    console.clear()
    all_runs: dict[int, tuple[Outcome, str]] = {}
    for part in gathered(comm, mine):
        all_runs |= part
    runs = {n: all_runs[n][0] for n in sizes}
    finding = check.judge(subject, runs, runs, limits(subject.arch), 0, METRICS)
    verdicts = dict(finding.verdicts)
    for n, (_, letter) in sorted(all_runs.items(), reverse=True):
        if letter:
            verdicts[letter] = Verdict(False, f"refused at N = {n}")
    return replace(finding, verdicts=verdicts)


def limits(arch: str) -> Limits:
    return Limits(arch, CORE_BYTES, COLORS)


def _run(subject: Layout, n: int) -> tuple[Outcome, str]:
    """What becomes of it, and the verdict that breaks where it is refused."""
    launches = tuple(fill(text, n, 0) for text in subject.launches)
    try:
        report, _ = run(subject.path, fill(subject.parameters, n, 0), subject.arch, launches, (), None)
    except LimitError as error:
        return Outcome(None, str(error)), "R" if isinstance(error, ColorLimit) else "M"
    except MeshrtError as error:
        raise type(error)(f"at N = {n}: {error}") from error
    return Outcome({"measured": measured(report)}), ""


def measured(report: Mapping[str, Any]) -> dict[str, Any]:
    """As the reports of our own programs have it, the cores, and the share of cycles in which they did not wait."""
    cycles, (width, height) = report["cycles"], report["mesh"]
    return {
        **report,
        "cores": width * height,
        "busy": 1 - cycles["waiting"] / cycles["mean"] if cycles["mean"] else 1.0,
    }
