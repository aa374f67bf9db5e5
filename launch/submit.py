"""Handing a job in with the batch system's own command."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass

from meshrt.errors import UsageError
from meshrt.launch.local import without_launcher


@dataclass(frozen=True)
class Submitted:
    """A job that was accepted: the system's name for it, and where its output goes or how it is read."""

    job: str
    output: str


def hand_in(argv: list[str], text: str) -> str:
    """What `argv` answers to the file `text` on its standard input. Raises UsageError if it is missing or refuses."""
    if shutil.which(argv[0]) is None:
        raise UsageError(
            f"no {argv[0]} on PATH: hand the job in on a machine that has it; --dry-run prints the file for it"
        )
    # sbatch hands its environment on to the ranks.
    env = without_launcher(os.environ)
    done = subprocess.run(argv, input=text, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split()) or "nothing"
        raise UsageError(f"{shlex.join(argv)} ended with code {done.returncode} and says: {said}")
    return done.stdout.strip()
