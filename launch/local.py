"""Starts ranks on this machine: finds the mpirun that belongs to mpi4py's library and gives it the right settings."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from meshrt.errors import MpiError
from meshrt.launch.job import Job, meshrt
from meshrt.launch.restarts import Start, check, resumed, supervise
from meshrt.ranks import host, launcher


@dataclass(frozen=True)
class Mpirun:
    """A launcher: its file, and the library it belongs to as host.short_version() words it."""

    path: str
    library: str

    @property
    def is_open_mpi(self) -> bool:
        return self.library.startswith("Open MPI")


def find_mpirun(library: str | None = None) -> Mpirun:
    """The mpirun beside this Python, else the first on PATH. `library` is the one mpi4py loads; None asks it.

    Raises MpiError if there is no mpirun, or it belongs to another library.
    """
    wanted = host.library() if library is None else library
    beside = Path(sys.executable).parent / "mpirun"
    path = str(beside) if beside.exists() else shutil.which("mpirun")
    if path is None:
        raise MpiError(f"no mpirun beside {sys.executable} and none on PATH: {host.INSTALL_HINT}")
    mpirun = Mpirun(path, _version(path))
    if wanted.split()[0] != mpirun.library.split()[0]:
        raise MpiError(
            f"{path} is of {mpirun.library}, but mpi4py loads {wanted}: install one MPI only, or name the library of "
            f"that mpirun in MPI4PY_LIBMPI"
        )
    return mpirun


def _version(path: str) -> str:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MpiError(f"{path} --version does not run: {error}") from error
    if hydra := re.search(r"HYDRA build details:\s*Version:\s*(\S+)", done.stdout):
        return f"MPICH {hydra[1]}"
    return host.short_version(done.stdout)


def local_argv(job: Job, mpirun: Mpirun, cores: int | None = None) -> list[str]:
    """The command that starts `job` on this machine of `cores` cores (default: counted)."""
    return [*mpirun_argv(job.ranks, mpirun, cores), *meshrt(), *job.arguments]


def mpirun_argv(ranks: int, mpirun: Mpirun, cores: int | None = None) -> list[str]:
    """`mpirun -n ranks` with what oversubscription needs; the program and its arguments follow."""
    argv = [mpirun.path, "-n", str(ranks)]
    if mpirun.is_open_mpi and ranks > (launcher.cores() if cores is None else cores):
        argv += ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    return argv


def local_environment(
    mpirun: Mpirun, environ: Mapping[str, str] | None = None, root: bool | None = None
) -> dict[str, str]:
    """The environment to start `mpirun` in: without the traces of a launcher around this process.

    Only processes of the user root (default: asked of the system) need Open MPI's consent to run.
    """
    env = without_launcher(os.environ if environ is None else environ)
    if mpirun.is_open_mpi and (os.geteuid() == 0 if root is None else root):
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return env


def without_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` less the variables by which a launcher, or Open MPI in this process, tells ranks who they are.

    A job started with them would take itself for a part of the one around it. Settings of the user stay; Open MPI's
    transport for a rank alone is none: host.prepare_environment() has set it for this process, and ranks that inherit
    it do not reach each other.
    """
    settings = ("OMPI_MCA_", "OMPI_ALLOW_", "PRTE_MCA_", "PMIX_MCA_")
    traces = ("OMPI_", "PRTE_", "PMIX_", "PMI_", "HYDI_", "MPI_LOCAL")
    return {
        name: value
        for name, value in environ.items()
        if (name.startswith(settings) or not name.startswith(traces)) and (name, value) != ("OMPI_MCA_btl", "self")
    }


def launch(job: Job, restarts: int = 0, dry_run: bool = False) -> None:
    """Become the mpirun of `job`, so that signals and the exit code are its own; or only print its command.

    With `restarts` this process stays, and ends with the exit code of the last start. Raises UsageError, MpiError.
    """
    mpirun = find_mpirun()
    environ = local_environment(mpirun)

    def plan(attempt: int) -> Start:
        now = resumed(job) if attempt else job
        return Start(local_argv(now, mpirun), environ, f"on {job.ranks} rank{'s' * (job.ranks > 1)}")

    become(job, plan, restarts, dry_run)


def become(job: Job, plan: Callable[[int], Start], restarts: int, dry_run: bool) -> None:
    """Replace this process by the launcher of `plan(0)`; with `restarts`, supervise it; or only print its command."""
    if restarts:
        check(job)
    if dry_run:
        print(shlex.join(plan(0).argv))
        return
    sys.stdout.flush()
    if restarts:
        sys.exit(supervise(restarts, plan))
    start = plan(0)
    os.execve(start.argv[0], list(start.argv), start.environ)
