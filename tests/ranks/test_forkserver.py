"""Ranks that are forked from a server: each is, to its program and its launcher, the process that was started."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from meshrt import cli

# Linux alone tells a server which processes are of one job, and kills a rank with the process that stands for it.
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each rank imports for itself")

# What a process of a job does: it serves, or goes on, as a child of the server's or by itself, writes what it is, and
# then does what it is told.
RANK = """
import json, os, sys, time
from meshrt.ranks import launcher
from meshrt.ranks.start import forkserver, shepherd
started = os.getpid()
door = shepherd.enter()
if door is not None:
    forkserver.Server(*door).serve()
facts = {
    "process": os.getpid(), "started": started, "parent": os.getppid(), "starter": launcher.starter(),
    "arguments": sys.argv[1:], "folder": os.getcwd(), "session": os.getsid(0), "own": os.environ["PMI_OWN"],
    "cores": len(os.sched_getaffinity(0)), "input": sys.stdin.read(),
}
print(json.dumps(facts), flush=True)
exec(sys.argv[1])
"""


def started(deed: str, environ: Mapping[str, str], before: str) -> subprocess.Popen[str]:
    core = min(os.sched_getaffinity(0))
    return subprocess.Popen(
        [sys.executable, "-c", before + RANK, deed], text=True, env=environ, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )  # fmt: skip


@contextmanager
def job(
    *deeds: str, environ: Mapping[str, str] | None = None, apart: bool = False, before: str = ""
) -> Iterator[list[subprocess.Popen[str]]]:
    """A process for each deed, as a launcher starts them, on one core; `apart`: each in another environment."""
    name = f"test-{os.getpid()}-{time.monotonic_ns()}"
    processes = []
    for number, deed in enumerate(deeds):
        own = {"PMIX_NAMESPACE": name, "PMI_RANK": f"{number}", "PMI_SIZE": f"{len(deeds)}", "PMI_OWN": f"own-{number}"}
        if apart:
            own["PATH_OF_ITS_OWN"] = f"{number}"
        processes.append(started(deed, {**os.environ, **own, **(environ or {})}, before))
        stdin = processes[-1].stdin
        assert stdin is not None
        stdin.write(f"for {number}")
        stdin.close()
    try:
        yield processes
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()


def facts(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout is not None
    record: dict[str, object] = json.loads(process.stdout.readline())
    return record


def gone(process: int) -> bool:
    """Whether it ends within some seconds."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with suppress(OSError):
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
            time.sleep(0.02)
            continue
        return True
    return False


def test_a_rank_is_what_was_started() -> None:
    with job("pass", "pass", "pass") as processes:
        all_facts = [facts(process) for process in processes]
        assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert len({rank_facts["parent"] for rank_facts in all_facts}) == 1, "one server"
    for number, (rank_facts, process) in enumerate(zip(all_facts, processes, strict=True)):
        assert rank_facts["process"] != process.pid and rank_facts["parent"] not in [other.pid for other in processes]
        assert rank_facts["starter"] == os.getpid() and rank_facts["session"] == rank_facts["process"]
        assert rank_facts["own"] == f"own-{number}" and rank_facts["input"] == f"for {number}"
        assert rank_facts["folder"] == os.getcwd() and rank_facts["arguments"] == ["pass"] and rank_facts["cores"] == 1
    assert gone(int(str(all_facts[0]["parent"])))


def test_only_the_command_is_forked(tmp_path: Path) -> None:
    """A program that imports the command, as a test runner does, goes on as it is, whatever its file is called."""
    (tmp_path / "__main__.py").write_text("from meshrt import cli\nassert not cli.IS_COMMAND and cli.SERVER is None")
    environ = {"PMIX_NAMESPACE": tmp_path.name, "PMI_RANK": "0", "PMI_SIZE": "999"}
    subprocess.run([sys.executable, str(tmp_path)], env={**os.environ, **environ}, check=True, timeout=60)
    folder = Path(cli.__file__).parent
    for file in ("/usr/bin/meshrt", str(folder / "cli.py"), str(folder / "__main__.py")):
        assert cli.is_command(file)
    for file in ("/usr/bin/pytest", "cli.py", str(Path(pytest.__file__).with_name("__main__.py"))):
        assert not cli.is_command(file)


def test_ranks_end_as_they_end() -> None:
    with job("sys.exit(3)", "os.kill(os.getpid(), 9)", "os.kill(os.getpid(), 15)") as processes:
        assert [process.wait(60) for process in processes] == [3, -signal.SIGKILL, -signal.SIGTERM]


def test_a_rank_dies_with_the_process_it_stands_for_and_no_other_does() -> None:
    with job("time.sleep(60)", "time.sleep(60)") as processes:
        first, second = (facts(process) for process in processes)
        processes[0].kill()
        assert gone(int(str(first["process"])))
        assert not processes[1].poll() and Path(f"/proc/{second['process']}").exists()


def test_ranks_end_with_their_server() -> None:
    """Nobody could tell the launcher how they end."""
    with job("time.sleep(60)", "time.sleep(60)") as processes:
        all_facts = [facts(process) for process in processes]
        os.kill(int(str(all_facts[0]["parent"])), signal.SIGKILL)
        assert [process.wait(60) for process in processes] == [-signal.SIGKILL] * 2
        assert all(gone(int(str(rank_facts["process"]))) for rank_facts in all_facts)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signals_are_passed_on(number: signal.Signals) -> None:
    deed = f"import signal; signal.signal({int(number)}, lambda *_: os._exit(7)); print(flush=True); time.sleep(60)"
    with job(deed, "pass") as processes:
        facts(processes[0])
        assert processes[0].stdout is not None
        processes[0].stdout.readline()
        processes[0].send_signal(number)
        assert processes[0].wait(60) == 7


def test_output_ends_with_the_rank() -> None:
    """Neither the server nor the process that the rank stands for keeps it open."""
    with job("pass", "time.sleep(60)") as processes:
        assert processes[0].stdout is not None
        assert len(processes[0].stdout.read().splitlines()) == 1


@pytest.mark.parametrize(
    ("apart", "environ"), [(True, {}), (False, {"MESHRT_FORKSERVER": "none"}), (False, {"PMIX_NAMESPACE": ""})]
)
def test_where_ranks_cannot_be_forked_each_is_its_own(apart: bool, environ: dict[str, str]) -> None:
    with job("pass", "sys.exit(5)", apart=apart, environ=environ) as processes:
        own = [facts(process)["process"] == process.pid for process in processes]
        assert [process.wait(60) for process in processes] == [0, 5]
    assert own.count(True) >= (1 if apart else 2), "the server forks for those that are as it was"


def test_where_there_can_be_no_more_processes_each_is_its_own() -> None:
    """The server asks for one once more than it may."""
    deny = """
import os, itertools
count = itertools.count()
def fork(real=os.fork):
    if next(count) == 1:
        raise OSError("no more")
    return real()
os.fork = fork
"""
    with job("pass", "pass", before=deny) as processes:
        own = [facts(process)["process"] == process.pid for process in processes]
        assert [process.wait(60) for process in processes] == [0, 0]
    assert own.count(True) == 1


def test_time_is_told_to_who_started_the_ranks() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    work = "end = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    with job(work, work) as processes:
        assert [process.wait(60) for process in processes] == [0, 0]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime >= 0.9


def test_what_stands_in_for_a_rank_imports_next_to_nothing() -> None:
    """There is one for each rank. The library's modules for sockets and signals import enum, which is slow."""
    code = "import sys; from meshrt.ranks.start import shepherd; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-S", "-c", code], text=True, stdout=subprocess.PIPE, check=True, timeout=60,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    ).stdout.split()  # fmt: skip
    assert "meshrt.ranks.launcher" in modules
    assert not {"collections", "contextlib", "enum", "functools", "socket", "signal", "typing"} & {*modules}
