"""Many command lines in one process, as main() has them: most of the time of one is the interpreter's start."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mpi_jobs import run_ranks

ALL = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from meshrt import cli

told = {}
for name, arguments in json.load(open(sys.argv[1])).items():
    sys.argv[1:] = arguments
    code = None
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as error:
            code = error.code
    told[name] = code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode()
json.dump(told, sys.stdout)
"""


def run_lines(
    lines: Mapping[str, Sequence[str]], folder: Path, within: Sequence[str] = ()
) -> dict[str, tuple[int, str, str]]:
    """(exit code, standard output, standard error) of each `meshrt ARGUMENTS`; `folder` is for files.

    The command `within` runs the process that has them all: what follows are its arguments.
    """
    (folder / "lines.json").write_text(json.dumps(lines))
    (folder / "all.py").write_text(ALL)
    finished = run_ranks([*within, sys.executable, str(folder / "all.py"), str(folder / "lines.json")], timeout=120)
    assert finished.code == 0, finished.stderr
    outcomes: dict[str, tuple[int, str, str]] = json.loads(finished.stdout)
    return outcomes
