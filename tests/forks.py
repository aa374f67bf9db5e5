"""`meshrt` in a process of its own without the start of one: a process that has imported what runs need forks for each.

A fork has its arguments, environment, folder, streams, session and end as a process has that was started for them: only
the imports are behind it, and the seed of its hashes is that of all. This file is the process that forks, too.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryDirectory

from mpi_jobs import Finished, child_environment

IMPORTED = ("rich.console", "rich.table", "numpy.random", "meshrt.commands.run", "meshrt.studies.grid")
IMPORTED += ("meshrt.emulate", "meshrt.models.tokenizer", "meshrt.programs.gemm", "meshrt.programs.llama")
IMPORTED += tuple(f"meshrt.{name}.machine" for name in ("mesh", "neuron", "gpu"))
IMPORTED += tuple(f"meshrt.programs.{name}.engine" for name in ("mesh", "neuron", "gpu"))


class Forks:
    """The process that forks, seen from the tests."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.requests, self.answers, self.folder = process.stdin, process.stdout, folder

    def run(self, arguments: Sequence[str], env: Mapping[str, str], timeout: float) -> Finished:
        """Run `meshrt ARGUMENTS` in this folder. The code is -1 if it took too long and was ended."""
        streams = [self.folder / name for name in ("stdout", "stderr")]
        request = {"arguments": [*arguments], "env": {**env}, "cwd": os.getcwd(), "streams": [*map(str, streams)]}
        started = time.monotonic()
        self.requests.write(json.dumps(request).encode() + b"\n")
        pid = int(self.answers.readline())
        ended = self.answers_within(timeout)
        if not ended:
            os.killpg(pid, signal.SIGTERM)
            if not self.answers_within(5):
                os.killpg(pid, signal.SIGKILL)
        code = int(self.answers.readline())
        stdout, stderr = (path.read_text() for path in streams)
        return Finished(code if ended else -1, stdout, stderr, time.monotonic() - started)

    def answers_within(self, seconds: float) -> bool:
        return bool(select.select([self.answers], [], [], seconds)[0])


@contextmanager
def forks() -> Iterator[Forks]:
    """Start the process that forks, and end it."""
    argv = [sys.executable, __file__]
    with (
        TemporaryDirectory(prefix="meshrt-test-") as folder,
        subprocess.Popen(argv, env=child_environment(), stdin=PIPE, stdout=PIPE, bufsize=0) as process,
    ):
        yield Forks(process, Path(folder))  # at the end its standard input is closed, which ends it


def main() -> None:
    """Fork for each line of standard input: says the fork's process id, and when it has ended, with which exit code."""
    from meshrt.ranks import host

    host.prepare_environment()
    for name in IMPORTED:
        import_module(name)
    gc.freeze()  # a fork that looks through it for garbage, as each does at its end, would get a copy of all of it
    asked, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    for line in asked:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            asked.close()
            answers.close()
            become(**request)
            return
        print(pid, file=answers)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=answers)


def become(arguments: list[str], env: dict[str, str], cwd: str, streams: list[str]) -> None:
    """Be `python -m meshrt.cli ARGUMENTS`."""
    os.setsid()
    for stream, path in enumerate([os.devnull, *streams]):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC if stream else os.O_RDONLY)
        os.dup2(file, stream)
        os.close(file)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[0] = cwd
    sys.argv[1:] = arguments
    runpy.run_module("meshrt.cli", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
