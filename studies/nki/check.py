"""All kernels of a checkout, each in a process of its own, and the table of what came of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshrt.errors import UsageError
from meshrt.studies.nki.case import CASES
from meshrt.studies.nki.find import FoundKernel, find_kernels

SECONDS = 600  # that one kernel may take


@dataclass(frozen=True)
class KernelOutcome:
    """A kernel and what came of it; a part's is that of the kernel that it is part of."""

    path: str
    name: str
    part_of: str
    parses: bool
    runs: bool
    right: bool
    reason: str
    details: dict[str, Any]


def check(folder: Path, only: str | None = None) -> Iterator[KernelOutcome]:
    """Try each kernel whose FILE:NAME has `only` in it. UsageError."""
    import meshrt.studies.nki.cases  # noqa: F401 - registers them

    every = find_kernels(folder)
    kernels = [kernel for kernel in every if only is None or only in f"{kernel.path}:{kernel.name}"]
    if not kernels:
        shown = f"{every[0].path}:{every[0].name}"
        raise UsageError(f"--only {only}: none of the {len(every)} kernels has that in its FILE:NAME, such as {shown}")
    outcomes: dict[tuple[str, str], KernelOutcome] = {}
    waiting = []
    for kernel in kernels:
        if _whole(kernel) is None:
            outcome = _outcome(kernel, "", _tried(folder, kernel))
            outcomes[kernel.path, kernel.name] = outcome
            yield outcome
        else:
            waiting.append(kernel)
    for kernel in waiting:
        path, name = _whole(kernel) or ("", "")
        earlier = outcomes.get((path, name))
        result = vars(earlier) if earlier is not None else _tried(folder, FoundKernel(path, name, False))
        yield _outcome(kernel, name, {key: result[key] for key in ("parses", "runs", "right", "reason")})


def _whole(kernel: FoundKernel) -> tuple[str, str] | None:
    """The kernel that another one is part of."""
    folder = kernel.path.rsplit("/", 1)[0]
    for case in CASES:
        for part in case.parts:
            file, _, name = part.rpartition(":")
            own = kernel.path.endswith(case.path) if not file else kernel.path.endswith(file)
            path = kernel.path if not file else f"{folder}/{case.path.rsplit('/', 1)[-1]}"
            if own and name == kernel.name:
                return path, case.name
    return None


def _tried(folder: Path, kernel: FoundKernel) -> dict[str, Any]:
    if kernel.problem:
        return {"parses": False, "runs": False, "right": False, "reason": kernel.problem}
    command = [sys.executable, "-m", "meshrt.studies.nki.child", str(folder), kernel.path, kernel.name]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"parses": True, "runs": False, "right": False, "reason": f"takes more than {SECONDS} s"}
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode or not lines:
        last = (ended.stderr.strip().splitlines() or ["nothing was printed"])[-1]
        return {"parses": True, "runs": False, "right": False, "reason": f"ended with {ended.returncode}: {last}"}
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def _outcome(kernel: FoundKernel, part_of: str, result: dict[str, Any]) -> KernelOutcome:
    states = {key: result[key] for key in ("parses", "runs", "right", "reason")}
    details = {key: value for key, value in result.items() if key not in states}
    return KernelOutcome(kernel.path, kernel.name, part_of, **states, details=details)


def lines(outcomes: Iterable[KernelOutcome]) -> Iterator[str]:
    """The table, a line as each kernel is done, and the sum."""
    yield f"{'kernel':<64} parses runs right reason"
    total = right = 0
    for outcome in outcomes:
        total, right = total + 1, right + outcome.right
        marks = " ".join(
            f"{'yes' if state else 'no':<{width}}"
            for state, width in ((outcome.parses, 6), (outcome.runs, 4), (outcome.right, 5))
        )
        shown = f"{outcome.path.rsplit('/', 1)[-1]}:{outcome.name}"
        reason = outcome.reason or (f"as part of {outcome.part_of}" if outcome.part_of else "")
        yield f"{shown:<64} {marks} {reason}".rstrip()
    yield f"{right} of {total} kernels are right, {100 * right / max(total, 1):.0f} %"
