"""`meshrt` in a process of its own without the start of one: a process that has imported what runs need forks for each.

A fork has its arguments, environment, folder, streams, session and end as a process has that was started for them: only
the imports are behind it, and the seed of its hashes is that of all. Where it ends by an exit code, its modules are not
taken down, which costs as much as a small run. All workers have one such process. Ranks under mpirun are its forks as
well: a launcher starts stand-ins (standin.py), as where ranks outnumber cores (meshrt/ranks/start/forkserver.py). This
is the file of the process that forks, too. Of Linux.
"""

from __future__ import annotations

import atexit
import gc
import marshal
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryFile

from mpi_jobs import Finished, child_environment, run_ranks

from meshrt.machine import machines
from meshrt.ranks import launcher
from meshrt.ranks.start import forkserver, shepherd

DOOR = "MESHRT_TEST_FORKS"  # the name of the socket of the process that forks for all workers
IMPORTED = ("rich.console", "rich.table", "numpy.random", "meshrt.emulate")
IMPORTED += tuple(f"meshrt.{name}.machine" for name in machines())
PACKAGES = ("meshrt.commands", "meshrt.programs", "meshrt.studies")  # with all in them, but for what few runs need
FEW = ("meshrt.studies.fuzz", "meshrt.studies.nki")
STAND_IN = str(Path(__file__).with_name("standin.py"))


class Forks:
    """The process that forks, seen from the tests: by its door."""

    def __init__(self, door: str) -> None:
        self.door = door

    def run(self, arguments: Sequence[str], env: Mapping[str, str], timeout: float) -> Finished:
        """Run `meshrt ARGUMENTS` in this folder. The code is -1 if it took too long and was ended."""
        started = time.monotonic()
        with TemporaryFile() as stdout, TemporaryFile() as stderr, open(os.devnull) as nothing:
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(f"\0{self.door}")
                cores = sorted(os.sched_getaffinity(0))
                body = marshal.dumps((["", *arguments], {**env}, os.getcwd(), shepherd.mask(), cores, [0, 1, 2]))
                files = [stream.fileno() for stream in (nothing, stdout, stderr)]
                socket.send_fds(line, [shepherd.LENGTH.pack(len(body))], files)
                line.sendall(body)
                _, child = shepherd.CHILD.unpack(shepherd.whole(line, shepherd.CHILD.size))
                code = end_within(line, timeout)
                ended = code is not None
                for number in (signal.SIGTERM, signal.SIGKILL):
                    if code is None:
                        os.killpg(child, number)
                        code = end_within(line, 5)
            texts = []
            for stream in (stdout, stderr):
                stream.seek(0)
                texts.append(stream.read().decode())
        return Finished(code if ended and code is not None else -1, *texts, time.monotonic() - started)

    def run_ranks(self, arguments: Sequence[str], ranks: int, env: Mapping[str, str], timeout: float) -> Finished:
        """The same on ranks under mpirun. Where they outnumber the cores, each is forked anyway, from a process of the
        job's own.
        """
        argv = [sys.executable, "-m", "meshrt.cli"]
        if ranks <= launcher.cores():
            argv = [sys.executable, "-I", "-S", STAND_IN, self.door]
        return run_ranks([*argv, *arguments], ranks, env, timeout)


def end_within(line: socket.socket, seconds: float) -> int | None:
    """With which exit code the fork has ended; None where it goes on."""
    line.settimeout(seconds)
    with suppress(TimeoutError):
        return os.waitstatus_to_exitcode(shepherd.STATUS.unpack(shepherd.whole(line, shepherd.STATUS.size))[0])
    return None


@contextmanager
def forks() -> Iterator[Forks]:
    """Start the process that forks, and end it."""
    with socket.socket(socket.AF_UNIX) as door:
        name = f"meshrt-test-{os.getpid()}-{door.fileno()}-{time.monotonic_ns()}"
        door.bind(f"\0{name}")
        door.listen(64)
        argv, files = [sys.executable, __file__, str(door.fileno())], [door.fileno()]
        process = subprocess.Popen(
            argv, env=child_environment(), stdin=PIPE, stdout=subprocess.DEVNULL, pass_fds=files, start_new_session=True
        )
    with process:
        yield Forks(name)  # at the end its standard input is closed, which ends it


def main() -> None:
    """Fork for each request at the door whose number is the argument, until standard input is closed."""
    door, poll = socket.socket(fileno=int(sys.argv[1])), select.poll()
    lines: dict[int, tuple[int, socket.socket]] = {}  # of each fork that lives: its process, and who is told of its end
    poll.register(door, select.POLLIN)
    poll.register(0, select.POLLIN)
    while True:
        for handle, _ in poll.poll():
            if handle == 0:
                return  # the forks' lines are closed, which ends them
            if handle in lines:
                poll.unregister(handle)
                os.close(handle)
                child, line = lines.pop(handle)
                with line, suppress(OSError):  # who asked has gone
                    line.sendall(shepherd.STATUS.pack(os.waitpid(child, 0)[1]))
                continue
            line, _ = door.accept()
            import_all()
            request = forkserver.read(line)
            if request is None:
                line.close()
                continue
            child = os.fork()
            if child == 0:
                door.close()
                for other, (_, held) in lines.items():
                    os.close(other)
                    held.close()
                request.become(line)
                be_meshrt()
                return
            request.close()
            line.sendall(shepherd.CHILD.pack(os.getpid(), child))
            handle = os.pidfd_open(child)
            lines[handle] = child, line
            poll.register(handle, select.POLLIN)


def import_all() -> None:
    """What runs need; with the first of them."""
    if IMPORTED[0] in sys.modules:
        return
    from meshrt.ranks import host

    host.prepare_environment()
    gc.disable()
    for name in (*IMPORTED, *(name for package in PACKAGES for name in modules_of(package))):
        import_module(name)
    gc.freeze()  # a fork that looks for garbage would have all pages of it to itself
    gc.enable()


def modules_of(package: str) -> Iterator[str]:
    """The names of the modules in a package and in those in it, but for FEW."""
    for module in pkgutil.iter_modules(import_module(package).__path__, f"{package}."):
        if not module.name.startswith(FEW):
            yield module.name
            if module.ispkg:
                yield from modules_of(module.name)


def be_meshrt() -> None:
    """Be `python -m meshrt.cli` with the arguments of sys.argv."""
    sys.path[0] = os.getcwd()
    for number, name in enumerate(("stdin", "stdout", "stderr")):  # those of before know whether they were files
        mode, buffering = "w" if number else "r", 1 if number == 2 else -1
        stream = open(number, mode, buffering, closefd=False)  # noqa: SIM115 - until the process ends
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    try:
        runpy.run_module("meshrt.cli", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if launcher.launched() and not ended.code:
            forkserver.end()
        others = any(not thread.daemon for thread in threading.enumerate()[1:])
        if isinstance(ended.code, int | None) and not others and "mpi4py.MPI" not in sys.modules:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(ended.code or 0)
        raise


if __name__ == "__main__":
    main()
