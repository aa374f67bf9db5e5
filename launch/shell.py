"""What the batch scripts of all systems have in common: the ranks' environment, and which run a script is of."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from meshrt.errors import UsageError
from meshrt.launch.batch import BatchJob
from meshrt.ranks import host


def script(batch: BatchJob, directives: list[str], before: list[str], index: str, launcher: str) -> str:
    """A batch script: `launcher` starts meshrt's ranks, and the variable `index` tells an array job's runs apart.

    The directives come first, since a batch system reads none after the first command. Raises UsageError.
    """
    lines = ["#!/bin/bash", *directives, "", *before, *_environment(), *_run(batch.resumable, index)]
    lines.append(f'exec {launcher} "$@"')
    return "\n".join(lines) + "\n"


def check_output(batch: BatchJob, mark: str) -> None:
    """UsageError where several runs would write one file, because its name has no `mark`, the run's number."""
    if len(batch.runs) > 1 and batch.output is not None and mark not in batch.output:
        raise UsageError(f"{len(batch.runs)} runs would all write {batch.output}: put {mark} into the name of --output")


def _environment() -> list[str]:
    """This Python's programs first on the path, and one thread a rank, whatever the cluster sets."""
    path = f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"'
    return [path, *(f"export {name}={value}" for name, value in host.ONE_THREAD.items())]


def _run(runs: tuple[tuple[str, ...], ...], index: str) -> list[str]:
    """Commands that make a run's arguments those of the script."""
    if any("\0" in argument for run in runs for argument in run):
        raise UsageError("an argument has a zero byte, which no command line can have")
    chosen = [f"set -- {shlex.join(run)}" for run in runs]
    if len(runs) == 1:
        return chosen
    return [f'case "${index}" in', *(f"{at}) {line} ;;" for at, line in enumerate(chosen)), "esac"]
