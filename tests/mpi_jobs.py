"""Starts commands on MPI ranks for the tests, and ends them in time."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from meshrt.errors import MpiError
from meshrt.launch import local


class Finished(NamedTuple):
    """How a command ended. The code is -1 if it took too long and was ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float


def run_ranks(
    argv: list[str], ranks: int = 1, env: Mapping[str, str] | None = None, timeout: float = 60, cwd: Path | None = None
) -> Finished:
    """Run `argv` on `ranks` ranks under the mpirun that matches mpi4py, on one without any; `env` is added."""
    mpirun = find_mpirun() if ranks > 1 else None
    if mpirun is not None:
        argv = [*local.mpirun_argv(ranks, mpirun), *argv]
    started = time.monotonic()
    process = subprocess.Popen(
        argv,
        env=child_environment(mpirun) | dict(env or {}),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
        code = process.returncode
    except subprocess.TimeoutExpired:
        stop(process)
        stdout, stderr = process.communicate()
        code = -1
    finally:
        stop(process)
    return Finished(code, stdout, stderr, time.monotonic() - started)


def child_environment(mpirun: local.Mpirun | None = None) -> dict[str, str]:
    """The environment of a process, or of an mpirun, that imports this checkout's meshrt and is no part of a job."""
    environment = local.without_launcher(os.environ) if mpirun is None else local.local_environment(mpirun)
    checkout = str(Path(__file__).parents[1])
    return environment | {"PYTHONPATH": os.pathsep.join(filter(None, [checkout, environment.get("PYTHONPATH")]))}


def nested_pytest(all_plugins: bool = False) -> dict[str, str]:
    """The environment of a pytest in a test: without plugins that are merely installed it starts in half the time."""
    path = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[1])))
    ours = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_mpi,xdist.plugin"}
    return {"PYTHONPATH": path} | ({} if all_plugins else ours)


@functools.cache
def find_mpirun() -> local.Mpirun:
    """The mpirun for mpi4py's library, which a process of its own is asked for: loaded in this one, the library would
    be in the way of the jobs that it starts. Raises MpiError.
    """
    script = "from meshrt.ranks import host; host.prepare_environment(); print(host.library())"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    if finished.returncode:
        raise MpiError(finished.stderr.strip().splitlines()[-1])
    return local.find_mpirun(finished.stdout.strip())


def stop(process: subprocess.Popen[Any]) -> None:
    """End `process`, the leader of a session of its own, with all that it started."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, signum)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                continue


def until(done: Callable[[], Any], seconds: float) -> bool:
    """Wait for something to be so, for as long as that at most: whether it is."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
