"""forks.py itself: a fork ends and speaks as a process that was started from nothing."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forks import Forks, forks
from mpi_jobs import child_environment, run_ranks

PROGRAMS = {
    "fails": "def run(block):\n    raise ZeroDivisionError('seven')\n",
    "dies": "import os, signal\ndef run(block):\n    os.kill(os.getpid(), signal.SIGKILL)\n",
    "sleeps": "import time\ndef run(block):\n    time.sleep(1000)\n",
}


@pytest.fixture(scope="module")
def forked() -> Iterator[Forks]:
    """One for all tests of this file, with --all too."""
    with forks() as server:
        yield server


@pytest.fixture
def program(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A file with one of PROGRAMS, or the name of a packaged program."""
    path = tmp_path / "mine.py"
    path.write_text(PROGRAMS.get(request.param, ""))
    return str(path) if request.param in PROGRAMS else request.param


@pytest.mark.parametrize(
    ("program", "options", "code"),
    [
        ("gemm", "--json -", 0),
        ("fails", "", 1),
        ("gemm", "--m 0", 2),
        ("gemm", "--core-memory 100", 3),
        ("dies", "", -9),
    ],
    indirect=["program"],
)
def test_a_fork_ends_and_speaks_as_a_process(program: str, options: str, code: int, forked: Forks) -> None:
    arguments = ["run", program, *options.split()]
    in_fork = forked.run(arguments, child_environment(), 60)
    started = run_ranks([sys.executable, "-m", "meshrt.cli", *arguments])
    assert in_fork.code == started.code == code
    assert said(in_fork.stdout) == said(started.stdout)
    assert in_fork.stderr == started.stderr
    assert in_fork.stdout or in_fork.stderr or code < 0


@pytest.mark.parametrize(
    ("program", "options", "code"),
    [("gemm", "--json -", 0), ("gemm", "--core-memory 100", 3)],
    indirect=["program"],
)
def test_ranks_that_are_forks_end_and_speak_as_processes(program: str, options: str, code: int, forked: Forks) -> None:
    arguments = ["run", program, *options.split()]
    in_forks = forked.run_ranks(arguments, 2, {}, 60)
    started = run_ranks([sys.executable, "-m", "meshrt.cli", *arguments], 2)
    assert in_forks.code == started.code == code
    assert said(in_forks.stdout) == said(started.stdout)
    assert without_process(in_forks.stderr) == without_process(started.stderr)
    assert in_forks.stdout or in_forks.stderr


def without_process(stderr: str) -> str:
    return re.sub(r"process \d+", "process", stderr)


def said(stdout: str) -> Any:
    """A report without what the host's clock says, or the text."""
    return {key: value for key, value in json.loads(stdout).items() if key != "host"} if stdout[:1] == "{" else stdout


@pytest.mark.parametrize("program", ["sleeps"], indirect=True)
def test_a_fork_that_takes_too_long_is_ended_and_the_next_one_runs(program: str, forked: Forks) -> None:
    assert forked.run(["run", program], child_environment(), 2).code == -1
    assert forked.run(["list"], child_environment(), 60).code == 0


def test_each_fork_has_its_own_environment_and_folder(
    forked: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("import os\ndef run(block):\n    return {'told': os.environ.get('TOLD', 'no')}\n")
    monkeypatch.chdir(tmp_path)
    for env, expected in (({"TOLD": "yes"}, "yes"), ({}, "no")):
        done = forked.run(["run", "mine.py", "--json", "-"], child_environment() | env, 60)
        assert f'"told": "{expected}"' in done.stdout, done.stderr
