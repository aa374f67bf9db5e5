"""`meshrt` in a process of its own without the start of one: a process that has imported what runs need forks for each.

A fork has its arguments, environment, folder, streams, session and end as a process has that was started for them: only
the imports are behind it, and the seed of its hashes is that of all. Where it ends by an exit code, its modules are not
taken down, which costs as much as a small run. This file is the process that forks, too.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pkgutil
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryDirectory

from mpi_jobs import Finished, child_environment

IMPORTED = ("rich.console", "rich.table", "numpy.random", "meshrt.emulate")
IMPORTED += tuple(f"meshrt.{name}.machine" for name in ("arm", "mesh", "neuron", "gpu"))
PACKAGES = ("meshrt.commands", "meshrt.programs", "meshrt.studies")  # with all in them, but for what few runs need
FEW = ("meshrt.studies.fuzz", "meshrt.studies.nki")


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
    gc.disable()
    for name in (*IMPORTED, *(name for package in PACKAGES for name in modules_of(package))):
        import_module(name)
    gc.freeze()  # a fork that looks for garbage would have all pages of it to itself
    gc.enable()
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    for line in requests:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            requests.close()
            answers.close()
            become(**request)
            return
        print(pid, file=answers)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=answers)


def modules_of(package: str) -> Iterator[str]:
    """The names of the modules in a package and in those in it, but for FEW."""
    for module in pkgutil.iter_modules(import_module(package).__path__, f"{package}."):
        if not module.name.startswith(FEW):
            yield module.name
            if module.ispkg:
                yield from modules_of(module.name)


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
    try:
        runpy.run_module("meshrt.cli", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        others = any(not thread.daemon for thread in threading.enumerate()[1:])
        if isinstance(ended.code, int | None) and not others and "mpi4py.MPI" not in sys.modules:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(ended.code or 0)
        raise


if __name__ == "__main__":
    main()
