"""Runs that are lost and go on by themselves. `ci/kills --hosts --restarts` does it over two hosts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from batch_scripts import directives, spy

from meshrt.errors import UsageError
from meshrt.launch import hosts, kubernetes, local, pbs, restarts, slurm
from meshrt.launch.batch import BatchJob
from meshrt.launch.job import Job
from meshrt.launch.local import Mpirun

CHECKOUT = Path(__file__).parents[2]
LLAMA = ("llama-tiny", "--layers", "1", "--mesh", "6x6", "--device", "ideal", "--max-new-tokens", "24",
         "--ignore-eos", "--quiet")  # fmt: skip
KEPT = ("run", "llama-tiny", "--checkpoint", "state")
HYDRA = Mpirun("/opt/bin/mpirun", "MPICH 5.0.2")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "PAUSE", 0.0)


def ends_with(*codes: int) -> Any:
    """Plans of launchers that end so, one after the other; a negative number is a signal."""

    def plan(attempt: int) -> restarts.Start:
        code = codes[attempt]
        statement = f"os.kill(os.getpid(), {-code})" if code < 0 else f"sys.exit({code})"
        return restarts.Start([sys.executable, "-c", f"import os, sys; {statement}"], os.environ, "on 2 ranks")

    return plan


@pytest.mark.parametrize("code", sorted(restarts.FINAL))
def test_what_would_come_again_is_not_started_again(code: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert restarts.supervise(3, ends_with(code)) == code
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("lost", "shown"), [(9, 9), (124, 124), (137, 137), (-9, 137), (14, 14), (255, 255)])
def test_a_lost_run_is_started_again(lost: int, shown: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert restarts.supervise(3, ends_with(lost, lost, 0)) == 0
    assert capfd.readouterr().err.splitlines() == [
        f"meshrt: the run was lost (exit code {shown}): restart {at} of 3, on 2 ranks" for at in (1, 2)
    ]


def test_not_more_often_than_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    assert restarts.supervise(2, ends_with(124, 9, 137, 0)) == 137
    assert capfd.readouterr().err.count("\n") == 2


def test_a_limit_after_a_restart_is_the_end() -> None:
    assert restarts.supervise(5, ends_with(9, 3)) == 3


SUPERVISOR = '''
import os, signal, sys, threading
from meshrt.launch import restarts
child = """
import signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(1))
print('here', flush=True)
while True:
    time.sleep(0.01)
"""

def pass_by(number):
    sys.stdin.readline()
    signal.pthread_kill(threading.get_ident(), number)

for number in map(int, sys.argv[1:]):
    threading.Thread(target=pass_by, args=(number,), daemon=True).start()
sys.exit(restarts.supervise(3, lambda attempt: restarts.Start([sys.executable, "-c", child], os.environ, "")))
'''


@pytest.fixture
def supervised() -> Iterator[Any]:
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        env = os.environ | {"PYTHONPATH": str(CHECKOUT)}
        processes.append(subprocess.Popen([sys.executable, "-c", SUPERVISOR, *arguments], env=env, text=True, **pipes))
        assert processes[-1].stdout is not None
        assert processes[-1].stdout.readline() == "here\n"
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_is_asked_to_end_is_not_started_again(number: int, code: int, supervised: Any) -> None:
    """Whatever its launcher's exit code then is: that of Open MPI is 1."""
    process = supervised()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (code, "", "")


def test_a_signal_that_does_not_wake_the_wait_is_passed_on(supervised: Any) -> None:
    """One just before the wait begins does not, nor does one that the system gives to another thread: as here."""
    process = supervised(str(int(signal.SIGINT)))
    out, err = process.communicate("\n", timeout=60)
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.skipif(sys.platform != "linux", reason="a parent's death is told by Linux only")
def test_the_launcher_ends_with_a_supervisor_that_is_killed(supervised: Any) -> None:
    process = supervised()
    process.kill()
    assert process.stdout.read() == "", "whoever holds the pipe is gone"


@pytest.mark.parametrize("run", [("run", "llama-tiny"), ("bench", "--checkpoint", "state"), ("list",)])
def test_a_run_that_keeps_no_state_is_refused(run: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"--restarts goes on from a checkpoint.* add --checkpoint DIR, and --every K"):
        restarts.check(Job(2, run))
    with pytest.raises(UsageError, match="--restarts"):
        BatchJob(ranks=2, runs=(run,), restarts=1)


def test_refused_on_the_command_line(run_meshrt: Any) -> None:
    code, out, err, _ = run_meshrt("launch", "-n", "2", "--restarts", "1", "--", "run", "llama-tiny")
    assert (code, out) == (2, "")
    assert err.startswith("meshrt: error: --restarts goes on from a checkpoint") and err.count("\n") == 1


@pytest.mark.parametrize("given", [KEPT, (*KEPT, "--resume")])
def test_it_resumes(given: tuple[str, ...]) -> None:
    assert restarts.resumed(Job(2, given)).arguments == (*KEPT, "--resume")


# -------------------------------------------------------------------------------------------------------- for real


def ranks_of(marker: str) -> list[int]:
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_bytes().split(b"\0")
            marked = f"MESHRT_TEST={marker}\0".encode() in (path / "environ").read_bytes() + b"\0"
        except OSError:
            continue
        if marked and line[1:5] == [b"-P", b"-m", b"meshrt.cli", b"run"]:
            pids.append(int(path.name))
    return pids


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    processes: list[subprocess.Popen[str]] = []

    def start(*options: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "meshrt.cli", "launch", "-n", "2", *options]
        env = local.without_launcher(os.environ) | {"PYTHONPATH": str(CHECKOUT), "MESHRT_TEST": str(tmp_path)}
        processes.append(subprocess.Popen(argv, cwd=tmp_path, env=env, text=True, stderr=subprocess.PIPE))
        return processes[-1]

    yield start
    for process in processes:
        process.terminate()
        process.communicate()


def test_a_killed_rank_and_the_same_bytes(started: Any, tmp_path: Path) -> None:
    """The report goes to a pipe, which nobody reads before the rank is killed: until then no run ends."""
    assert started("--", "run", *LLAMA, "--json", "whole.json").wait(60) == 0
    os.mkfifo(tmp_path / "report.json")
    options = ("--checkpoint", "state", "--every", "5", "--json", "report.json")
    process = started("--restarts", "2", "--", "run", *LLAMA, *options)
    end = time.monotonic() + 60
    while not (tmp_path / "state" / "state.json").exists():
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.005)
    first = ranks_of(str(tmp_path))
    os.kill(first[-1], signal.SIGKILL)
    while {*first} & {*ranks_of(str(tmp_path))}:
        assert time.monotonic() < end
        time.sleep(0.005)
    with open(os.open(tmp_path / "report.json", os.O_RDONLY | os.O_NONBLOCK)) as pipe:
        _, err = process.communicate(timeout=90)
        report = json.loads(pipe.read())
    whole = json.loads((tmp_path / "whole.json").read_text())
    assert process.returncode == 0, err
    assert len(re.findall(r"^meshrt: the run was lost .*: restart 1 of 2, on 2 ranks$", err, re.MULTILINE)) == 1, err
    assert report.pop("host")["resumed_at_token"] >= 1
    whole.pop("host")
    assert report == whole


# ----------------------------------------------------------------------------------------------- hosts and clusters


def test_hosts_that_do_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = tmp_path / "agent"
    agent.write_text('#!/bin/sh\n[ "$1 $2" = "up true" ] && exit 0\n[ "$1" = down ] && exit 255\nexec sleep 60\n')
    agent.chmod(0o755)
    monkeypatch.setattr(hosts, "ANSWER", 3.0)
    slots = {"localhost": 1, "down": 2, "up": 3, "silent": 4}
    assert hosts.answering(slots, [str(agent)]) == {"localhost": 1, "up": 3}


def test_the_ranks_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = []
    monkeypatch.setattr(local, "find_mpirun", lambda: HYDRA)
    monkeypatch.setattr(hosts, "answering", lambda slots, agent: {"a": slots["a"]})
    monkeypatch.setattr(local, "become", lambda job, plan, *_: plans.extend([plan(0), plan(1)]))
    hosts.launch(Job(6, KEPT), {"a": 4, "b": 4}, restarts=1)
    first, second = plans
    assert first.argv[:5] == ["/opt/bin/mpirun", "-n", "6", "-hosts", "a:4,b:4"] and first.argv[-1] == "state"
    assert second.argv[:5] == ["/opt/bin/mpirun", "-n", "4", "-hosts", "a:4"] and second.argv[-1] == "--resume"
    assert second.where == "on 4 ranks, without b"


def test_no_host_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "find_mpirun", lambda: HYDRA)
    monkeypatch.setattr(hosts, "answering", lambda slots, agent: {})
    monkeypatch.setattr(local, "become", lambda job, plan, *_: plan(1))
    with pytest.raises(UsageError, match="no host answers: a, b; start the run again with --resume"):
        hosts.launch(Job(2, KEPT), {"a": 1, "b": 1}, restarts=1)


@pytest.mark.parametrize("mpirun", [HYDRA, Mpirun("/opt/bin/mpirun", "Open MPI 5.0.11")])
def test_an_ssh_to_a_host_that_is_out_of_reach_ends(mpirun: Mpirun) -> None:
    agent, options = hosts.SSH[mpirun.is_open_mpi]
    assert "ServerAliveInterval" in hosts.environment(mpirun, {})[options]
    assert hosts.environment(mpirun, {options: "-4"})[options] == "-4"
    assert options not in hosts.environment(mpirun, {agent: "/my/rsh"}), "it may have no such options"


def batch(**options: Any) -> BatchJob:
    return BatchJob(**{"ranks": 4, "runs": (KEPT,), "restarts": 2} | options)


def test_slurm(tmp_path: Path) -> None:
    script = slurm.script(batch(), "MPICH 5.0.2")
    assert {"--requeue", "--open-mode=append"} <= set(directives(script, "#SBATCH"))
    srun = spy(tmp_path / "bin" / "srun")
    srun.write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/asked"\n[ $(wc -l < "{tmp_path}/asked") = 2 ] || exit 137\n')
    env = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "PYTHONPATH": str(CHECKOUT)}
    script = script.replace("-m meshrt.launch.restarts", f"{tmp_path / 'quick.py'}")
    (tmp_path / "quick.py").write_text(
        "import sys\nfrom meshrt.launch import restarts\nrestarts.PAUSE = 0.0\nsys.exit(restarts.main(*sys.argv[1:]))\n"
    )
    done = subprocess.run(["bash"], input=script, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ("meshrt: the run was lost (exit code 137): restart 1 of 2, from the last checkpoint\n")
    first, second = (tmp_path / "asked").read_text().splitlines()
    assert first == second and first.endswith("meshrt.cli run llama-tiny --checkpoint state --resume")


def test_pbs(tmp_path: Path) -> None:
    script = pbs.script(batch(), HYDRA)
    assert "-r y" in directives(script, "#PBS")
    assert script.endswith('meshrt.cli launch -n 4 --restarts 2 --hosts "$PBS_NODEFILE" -- "$@"\n')
    assert "\nset -- run llama-tiny --checkpoint state --resume\n" in script


def test_kubernetes() -> None:
    with pytest.raises(UsageError, match="give --volume CLAIM:/PATH"):
        kubernetes.manifest(batch(), "image")
    with pytest.raises(UsageError, match="give a claim and a path such as states:/states"):
        kubernetes.manifest(batch(), "image", "states")
    job = json.loads(kubernetes.manifest(batch(nodes=2), "image", "states:/states"))
    replicas = job["spec"]["mpiReplicaSpecs"]
    (launcher,), worker = replicas["Launcher"]["template"]["spec"]["containers"], replicas["Worker"]["template"]["spec"]
    assert launcher["command"] == [
        "meshrt", "launch", "-n", "4", "--restarts", "2", "--hosts", "/etc/mpi/hostfile", "--", *KEPT, "--resume",
    ]  # fmt: skip
    assert {"name": "state", "persistentVolumeClaim": {"claimName": "states"}} in worker["volumes"]
    assert {"name": "state", "mountPath": "/states"} in worker["containers"][0]["volumeMounts"]


def test_without_restarts_nothing_is_added() -> None:
    assert "requeue" not in slurm.script(batch(restarts=0), "MPICH 5.0.2")
    for script in (slurm.script(batch(restarts=0), "MPICH 5.0.2"), pbs.script(batch(restarts=0), HYDRA)):
        assert "--resume" not in script and "restarts" not in script and "-r y" not in script
