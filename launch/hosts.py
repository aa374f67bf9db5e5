"""Starts ranks on a list of hosts, which mpirun reaches over ssh."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from meshrt.errors import UsageError
from meshrt.launch import local
from meshrt.launch.job import Job, meshrt
from meshrt.launch.local import Mpirun


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
        found = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:(?::|\s+slots=)([1-9]\d{0,4}))?", entry)
        if not found:
            raise UsageError(f"host {entry!r}: give a name, or a name and its ranks such as node1:4, or a file of them")
        hosts[found[1]] += int(found[2] or 1)
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


def launch(job: Job, hosts: dict[str, int], dry_run: bool = False) -> None:
    """Become the mpirun of `job` on `hosts`; or only print its command. Raises UsageError, MpiError."""
    mpirun = local.find_mpirun()
    local.become(hosts_argv(job, hosts, mpirun), mpirun, dry_run)
