"""Reads batch scripts back: what a batch system sees in their directives, and what bash makes of the rest."""

from __future__ import annotations

import subprocess
from pathlib import Path

HOSTILE = (
    "a b", "it's", 'say "x"', "; touch hurt", "$(touch hurt)", "`touch hurt`", "$HOME", "\\", "*", "", "ü\n#PBS -q x",
)  # fmt: skip


def directives(script: str, mark: str) -> list[str]:
    """The directives as sbatch and qsub find them: in lines that begin so, up to the first command."""
    lines = script.splitlines()
    assert lines[0] == "#!/bin/bash"
    words = []
    for line in lines[1:]:
        if line and not line.startswith("#"):
            break
        if line.startswith(mark):
            words.append(line.removeprefix(mark).strip())
    return words


def spy(path: Path) -> Path:
    """A program that prints the thread settings and then its arguments, each ended by a zero byte."""
    path.parent.mkdir(exist_ok=True)
    path.write_text('#!/bin/sh\nprintf "%s\\0" "$PATH" "$PWD" "$OMP_NUM_THREADS" "$@"\n')
    path.chmod(0o755)
    return path


def executed(script: str, folder: Path, **environ: str) -> tuple[str, str, str, list[str]]:
    """(PATH, working directory, OMP_NUM_THREADS, arguments) of the spy that the script becomes; nothing else happens.

    The folder `folder`/bin is first on the path, and `folder`/work is where the script is started.
    """
    work = folder / "work"
    work.mkdir(exist_ok=True)
    env = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "OMP_NUM_THREADS": "8"} | environ
    done = subprocess.run(["bash"], input=script.encode(), capture_output=True, cwd=work, env=env, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")
    assert not list(work.iterdir()), "an argument was run as a command"
    path, where, threads, *arguments = done.stdout.decode().split("\0")[:-1]
    return path, where, threads, arguments
