"""What its launcher tells a process of the job it is a rank of, and the cores that it has there.

Needs no MPI, and imports next to nothing, as processes read it that are to start fast (start/shepherd.py).
"""

from __future__ import annotations

import _socket  # socket itself imports enum, selectors and more: 10 ms
import os
import struct
import sys
import time
from itertools import takewhile

TYPE_CHECKING = False  # of typing, without it
if TYPE_CHECKING:
    from collections.abc import Mapping

# Which variables a launcher tells a rank its place in, the surest first: mpirun of Open MPI, then Hydra or srun's PMI,
# then srun alone. A batch script of Slurm has SLURM_PROCID too, but is no step and has no SLURM_STEP_NUM_TASKS.
_RANK_AND_SIZE = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
STARTER = "MESHRT_STARTER"  # of a rank that was forked from a server: who started the process that it stands for
_ON_NODE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def launched_rank(environ: Mapping[str, str] | None = None) -> int:
    """This process's rank as its launcher tells it, 0 without a launcher. Needs no MPI."""
    return (_rank_and_size(os.environ if environ is None else environ) or (0, 1))[0]


def launched_size(environ: Mapping[str, str] | None = None) -> int:
    """The number of ranks as the launcher tells it, 1 without a launcher. Needs no MPI."""
    return (_rank_and_size(os.environ if environ is None else environ) or (0, 1))[1]


def launched(environ: Mapping[str, str] | None = None) -> bool:
    """Whether a launcher started this process as a rank, if only as one. Needs no MPI."""
    return _rank_and_size(os.environ if environ is None else environ) is not None


def _rank_and_size(env: Mapping[str, str]) -> tuple[int, int] | None:
    """(rank, size) as the launcher tells them."""
    for rank, size in _RANK_AND_SIZE:
        if env.get(rank, "").isdigit() and env.get(size, "").isdigit():
            return int(env[rank]), int(env[size])
    return None


def ranks_on_node(environ: Mapping[str, str] | None = None) -> int:
    """How many ranks the launcher started on this node; all of them where it does not say."""
    env = os.environ if environ is None else environ
    return _said_to_be_on_node(env) or launched_size(env)


def on_one_node(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the launcher says that it started all ranks on this node."""
    env = os.environ if environ is None else environ
    return _said_to_be_on_node(env) == launched_size(env)


def _said_to_be_on_node(env: Mapping[str, str]) -> int:
    """How many ranks are on this node by the launcher's word; 0 without one."""
    for name in _ON_NODE:
        if env.get(name, "").isdigit():
            return int(env[name])
    slurm = "".join(
        takewhile(str.isdigit, env.get("SLURM_STEP_TASKS_PER_NODE", ""))
    )  # 2(x4),1: the first node's will do
    return int(slurm) if slurm else 0


def cores(environ: Mapping[str, str] | None = None) -> int:
    """Processor cores that the ranks of this node share: those of the machine, less what a container's limits take."""
    env = os.environ if environ is None else environ
    count = os.cpu_count() or 1
    # Open MPI pins each rank to a core of its own, which then says nothing about the cores of all of them.
    if hasattr(os, "sched_getaffinity") and "OMPI_COMM_WORLD_SIZE" not in env:
        count = len(os.sched_getaffinity(0))
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
    except (OSError, ValueError):
        return count
    return count if quota == "max" else max(1, min(count, round(int(quota) / int(period))))


def job(environ: Mapping[str, str]) -> str:
    """What the ranks of one job on this node have in common, and no others; nothing where that is not known. Linux."""
    if sys.platform != "linux":
        return ""
    if name := environ.get("PMIX_NAMESPACE"):
        return name[:60]
    if "SLURM_STEP_ID" in environ and "PMI_FD" not in environ:
        return f"slurm-{environ.get('SLURM_JOB_ID')}-{environ['SLURM_STEP_ID']}"
    try:
        line = _socket.socket(fileno=os.dup(int(environ["PMI_FD"])))  # to the launcher, whose process it was made by
    except (KeyError, OSError, ValueError):
        return ""
    process = caller(line)[0]
    line.close()
    return f"process-{process}" if process else ""


def caller(line: _socket.socket) -> tuple[int, int]:
    """(process, user) at the other end of a socket of this machine; (0, -1) where the system does not tell."""
    try:
        process, user, _ = struct.unpack("3i", line.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12))
    except (OSError, struct.error):
        return 0, -1
    return process, user


def starter(environ: Mapping[str, str] | None = None) -> int:
    """The process that started this rank: the launcher's part on this node, or whatever stands between the two."""
    env = os.environ if environ is None else environ
    return int(env.get(STARTER) or os.getppid())


def abort(code: int) -> None:
    """Have the launcher end all ranks where this one has not started MPI. Of MPICH's, which waits for the others when
    a rank has left with an error; others end them by themselves, or cannot be asked.
    """
    if os.environ.get("PMI_FD", "").isdigit() and "SLURM_STEP_ID" not in os.environ:
        try:
            os.write(int(os.environ["PMI_FD"]), f"cmd=abort exitcode={code}\n".encode())
        except OSError:
            return
        time.sleep(2)
