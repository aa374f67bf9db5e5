"""Does the order of ready tasks, which nobody has documented, change what a program comes to?"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshrt.csl.host.exported import variables
from meshrt.errors import MeshrtError

OrderOutcome = tuple[
    list[dict[str, str]], list[float]
]  # of each program that ran: what it exports; its last core's cycles


def digests(wafer: Any) -> dict[str, str]:
    """Of what all cores export, by name: numbers that differ have others."""
    sums: dict[str, Any] = {}
    for core in wafer.cores.values():
        for name, (at, nbytes, _) in sorted(variables(core).items()):
            sums.setdefault(name, hashlib.sha256()).update(core.memory[at : at + nbytes].tobytes())
    return {name: digest.hexdigest() for name, digest in sums.items()}


def outcome(reports: Sequence[Mapping[str, Any]]) -> OrderOutcome:
    """Of the reports of programs that ran one after the other, each with `exported`."""
    return [dict(report["exported"]) for report in reports], [report["cycles"]["max"] for report in reports]


def compare(
    first: OrderOutcome, seeds: int, run: Callable[[int | None], OrderOutcome], repeats: bool = False
) -> dict[str, Any]:
    """What `seeds` other orders change: names whose numbers differ in some core, or how the run ends.

    `repeats`: inputs may be others each time, so what differs with the order as it was is not compared, but `varies`.
    """
    varies = _differ(first, run(None)) if repeats else set()
    changed: list[dict[str, Any]] = []
    cycles = [first[1]]
    for seed in range(1, seeds + 1):
        try:
            outcome = run(seed)
        except MeshrtError as error:
            changed.append({"seed": seed, "names": [], "error": str(error)})
            continue
        cycles.append(outcome[1])
        names = _differ(first, outcome) - varies
        if names or len(first[0]) != len(outcome[0]):
            changed.append({"seed": seed, "names": sorted(names), "error": None})
    totals = [sum(run_cycles) for run_cycles in cycles]
    took = {"min": min(totals), "max": max(totals)}
    return {
        "seeds": seeds, "programs": len(first[0]), "varies": sorted(varies), "changed": changed, "cycles": took,
    }  # fmt: skip


def _differ(first: OrderOutcome, second: OrderOutcome) -> set[str]:
    return {
        name
        for exports, other in zip(first[0], second[0], strict=False)
        for name in {*exports, *other}
        if exports.get(name) != other.get(name)
    }


def says(orders: Mapping[str, Any]) -> str:
    """As a terminal has it."""
    count, changed = orders["seeds"], orders["changed"]
    least, most = (f"{orders['cycles'][key]:,.0f}" for key in ("min", "max"))
    took = f"{least} cycles" if least == most else f"{least} to {most} cycles"
    if not orders["programs"]:  # of a script
        took = "of which only exit codes are known, as the script stops no program"
    if orders["varies"]:
        took += f"; not compared, as each run has others: {', '.join(orders['varies'])}"
    if not changed:
        return f"{count} other order{'s' * (count > 1)} of ready tasks: nothing that is exported differs, {took}"
    lines = [f"{len(changed)} of {count} other orders of ready tasks change the result, {took}:"]
    for change in changed:
        effect = (change["error"] or "").partition("\n")[0] or ", ".join(change["names"]) or "another number of runs"
        lines.append(f"  --seed {change['seed']}: {effect}")
    return "\n".join(lines)
