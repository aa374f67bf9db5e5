"""Starts ranks on a list of hosts, which mpirun reaches over ssh."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from meshrt.errors import UsageError
from meshrt.launch import local
from meshrt.launch.job import Job, meshrt
from meshrt.launch.local import Mpirun
from meshrt.launch.restarts import Start, resumed

# By is_open_mpi: the variables that name another ssh, and options for it.
SSH = {
    False: ("HYDRA_LAUNCHER_EXEC", "HYDRA_LAUNCHER_EXTRA_ARGS"),
    True: ("PRTE_MCA_plm_ssh_agent", "PRTE_MCA_plm_ssh_args"),
}
KEEP_ALIVE = "-o ServerAliveInterval=5 -o ServerAliveCountMax=3"
ANSWER = 10.0  # seconds that a host has to answer


def parse_hosts(text: str) -> dict[str, int]:
    """Ranks that each host takes, of "a,b:4" or of a file with a host a line: "b:4", "b slots=4", or b four times.

    Raises UsageError.
    """
    if Path(text).is_file():
        lines = [line.split("#")[0].strip() for line in Path(text).read_text().splitlines()]
        entries = [line for line in lines if line]
    else:
        entries = text.split(",")
    hosts: Counter[str] = Counter()
    for entry in entries:
        # A name that begins with a dash would be an option of ssh.
        match = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:(?::|\s+slots=)([1-9]\d{0,4}))?", entry)
        if not match:
            raise UsageError(f"host {entry!r}: give a name, or a name and its ranks such as node1:4, or a file of them")
        hosts[match[1]] += int(match[2] or 1)
    if not hosts:
        raise UsageError(f"{text}: no host in it")
    return dict(hosts)


def hosts_argv(job: Job, hosts: dict[str, int], mpirun: Mpirun, environ: Mapping[str, str] | None = None) -> list[str]:
    """The command that starts `job`, filling one host after the other. Raises UsageError if they are too few.

    Open MPI takes a variable of `environ` (default: this process's) to other hosts if it is named, MPICH takes all.
    """
    slots = sum(hosts.values())
    if slots < job.ranks:
        raise UsageError(
            f"{', '.join(f'{name}:{count}' for name, count in hosts.items())} take {slots} ranks, not {job.ranks}: "
            f"say how many each takes, such as {next(iter(hosts))}:{-(-job.ranks // len(hosts))}"
        )
    listed = ",".join(f"{name}:{count}" for name, count in hosts.items())
    # Whoever gives a host more ranks than it has cores means it.
    options = ["--host", listed, "--map-by", "slot", "--bind-to", "none"] if mpirun.is_open_mpi else ["-hosts", listed]
    if mpirun.is_open_mpi:
        settings = sorted(name for name in (os.environ if environ is None else environ) if name.startswith("MESHRT_"))
        options += [word for name in settings for word in ("-x", name)]
    return [mpirun.path, "-n", str(job.ranks), *options, *meshrt(), *job.arguments]


def environment(mpirun: Mpirun, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment to start `mpirun` in: its ssh ends by itself when a host is out of reach, not hours later."""
    env = local.local_environment(mpirun, environ)
    agent, options = SSH[mpirun.is_open_mpi]
    if agent not in env:  # one of the user's own may have no such options
        env.setdefault(options, KEEP_ALIVE)
    return env


def answering(hosts: Mapping[str, int], agent: Sequence[str]) -> dict[str, int]:
    """Those of the hosts that run a command when `agent` asks them to, or are this one."""
    processes = {name: _asked([*agent, name, "true"]) for name in hosts if not _is_this(name)}
    end = time.monotonic() + ANSWER
    while any(process.poll() is None for process in processes.values()) and time.monotonic() < end:
        time.sleep(0.1)
    for process in processes.values():
        process.kill()
        process.wait()
    return {name: ranks for name, ranks in hosts.items() if name not in processes or processes[name].returncode == 0}


def _asked(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    quiet = subprocess.DEVNULL
    return subprocess.Popen(argv, stdin=quiet, stdout=quiet, stderr=quiet)


def _is_this(name: str) -> bool:
    """Whether the host is this one: only then is its address one to listen at."""
    with socket.socket() as own, suppress(OSError):
        own.bind((name, 0))
        return True
    return False


def launch(job: Job, hosts: dict[str, int], restarts: int = 0, dry_run: bool = False) -> None:
    """Become the mpirun of `job` on `hosts`; or only print its command. Raises UsageError, MpiError.

    A restart leaves out the hosts that do not answer, and has as many ranks of the job as the others take.
    """
    mpirun = local.find_mpirun()
    environ = environment(mpirun)
    agent = environ.get(SSH[mpirun.is_open_mpi][0])
    ask = [agent] if agent else ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={ANSWER:.0f}"]

    def plan(attempt: int) -> Start:
        if not attempt:
            return Start(hosts_argv(job, hosts, mpirun), environ, "")
        left = answering(hosts, ask)
        if not left:
            raise UsageError(f"no host answers: {', '.join(hosts)}; start the run again with --resume when they do")
        now = replace(resumed(job), ranks=min(job.ranks, sum(left.values())))
        without = f", without {', '.join(name for name in hosts if name not in left)}" * (len(left) < len(hosts))
        where = f"on {now.ranks} rank{'s' * (now.ranks > 1)}{without}"
        return Start(hosts_argv(now, left, mpirun), environ, where)

    local.become(job, plan, restarts, dry_run)
