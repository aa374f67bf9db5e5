"""Every row of the table in docs/failures.md: the fault, what the user sees, how soon all is over, what is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mpi_jobs import find_mpirun, stop, until

from meshrt.errors import UsageError
from meshrt.launch import local
from meshrt.ranks.board import Board, Owner, Record, State
from meshrt.ranks.failing import sentinel
from meshrt.ranks.failing.faults import board_class

CHECKOUT = Path(__file__).parents[2]
SECONDS = 10.0  # until no process of the job is left, once its launcher has ended
LONGEST = 180.0  # that a run may take to come to its fault or signal, on a machine with other work
LIMIT = "2"  # of the watchdog
LLAMA = ("llama-tiny", "--layers", "1", "--mesh", "6x6", "--device", "ideal", "--max-new-tokens", "400", "--ignore-eos")
PLACE = r"rank {} of {}, cores \(0, {}\) to \(5, {}\) \(process \d+; it last waited for .+\): "
RANK_1 = PLACE.format(1, 2, 3, 5)

PROGRAM = """
import resource
import time
import numpy as np
from meshrt.mesh.wires import fabric, routes, scouts
from meshrt.mesh.mesh import EAST, WEST
from meshrt.mesh.wires.tables import installed, overwrite

MESH = (6, 1)

def run(block, *, how: str = ""):
    "Rank 1 diverges from the others, rank 0 runs into the end of its disk, or two routers send packets to each other."
    if how == "disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    tiles = np.zeros((*block.shape, 3), np.float32)
    if how == "orbit":
        walk_on, scouts._refuse_loops = scouts._step, lambda *walk: None
        scouts._step = lambda *way: time.sleep(0.005) or walk_on(*way)  # a core turning round would show no more
    with installed(block, "x", routes.ring(6)) as ring:
        if how in ("loop", "orbit"):
            colour = int(ring.colours[2])
            overwrite(block.tables, (3, 0), colour, 1 << WEST, 1 << WEST)
            overwrite(block.tables, (2, 0), colour, 1 << EAST | 1 << 4, 1 << EAST)
        for step in range(8):
            if step == 4 and block.mesh.rank == 1:
                if how == "skips":
                    continue
                if how == "sizes":
                    tiles = np.zeros((*block.shape, 5), np.float32)
            tiles = fabric.transfer(block, ring, tiles)
    return {}
"""


@dataclass(frozen=True)
class Case:
    """A row of the table: what is run, what becomes of it. `code` is the job's, or one for each launcher."""

    row: str
    code: int | tuple[int, ...]
    message: str = ""  # a regular expression for what is on standard error, the launcher's own lines apart
    fault: str = ""  # MESHRT_FAULT
    how: str = ""  # of PROGRAM, where that is run and not a model
    options: tuple[str, ...] = ()  # of the model's run, beside LLAMA
    signal: int = 0  # to the launcher, while the run goes
    left: tuple[str, ...] = ()  # files beside the last state
    ranks: int = 2


CASES = [
    Case("a rank raises", 1, RANK_1 + "RuntimeError: a fault on purpose\nmeshrt: this is a bug", "raise:1:300"),
    Case("a rank is killed", (9, 137), RANK_1 + "it was killed, has crashed or left", "kill:1:300"),
    Case("a rank leaves", (3, 9), PLACE.format(2, 3, 4, 5) + "it was killed, has crashed", "exit:2:450", ranks=3),
    Case("a rank is stopped", 124, RANK_1 + r"it has been stopped by a signal for \d+ s", "stop:1:300"),
    Case("rank 0 is stopped", 124, PLACE.format(0, 2, 0, 2) + "it has been stopped by a signal", "stop:0:300"),
    Case("a rank hangs", 124, RANK_1 + r"it has neither computed nor waited for a message for \d+ s", "sleep:1:300"),
    Case("a rank has no memory", 2, RANK_1 + "this machine has too little memory", "memory:1:300"),
    Case(
        "a rank leaves a transfer out",
        124,
        r"deadlock: no rank has moved for \d+ s\n(  rank \d has waited .*; it has cores \(\d, 0\) to \(\d, 0\)\n){3}",
        how="skips",
        ranks=3,
    ),
    Case("a loop in the tables", 3, r"gets a packet of colour \d from the \w+ for the second time", how="loop"),
    Case("packets that go on and reach nobody", 124, r"deadlock: no rank (?s:.*)first use of a route set", how="orbit"),
    Case("a rank sends other sizes", 124, r"rank \d of 2, cores .*: a message is not as long as what", how="sizes"),
    Case("Ctrl-C", (130, 1), "error: interrupted", signal=signal.SIGINT),
    Case("SIGTERM", (143, 1), "error: (interrupted, or )?ended by SIGTERM", signal=signal.SIGTERM),
    Case("the disk is full", 2, r"--json report.json cannot be written: File too large", how="disk"),
    Case("a rank is late", 0, fault="delay:1:200:1", options=("--max-new-tokens", "20"), left=("report.json",)),
]
Start = Callable[[Case], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a case on its ranks; what it starts can be told by a marker in the environment."""
    (tmp_path / "mine.py").write_text(PROGRAM)
    folder = tmp_path / "here"
    folder.mkdir()
    mpirun = find_mpirun()
    started: list[subprocess.Popen[str]] = []

    def begin(case: Case) -> subprocess.Popen[str]:
        words = (
            [str(tmp_path / "mine.py"), "--how", case.how]
            if case.how
            else [*LLAMA, *case.options, "--checkpoint", "state"]
        )
        argv = [sys.executable, "-m", "meshrt.cli", "run", *words, "--json", "report.json", "--quiet"]
        env = local.local_environment(mpirun) | {"MESHRT_WATCHDOG_SECONDS": LIMIT, "PYTHONPATH": str(CHECKOUT)}
        if case.fault:
            env["MESHRT_FAULT"] = case.fault
        process = subprocess.Popen(
            [*local.mpirun_argv(case.ranks, mpirun), *argv], cwd=folder, env=env | {"MESHRT_TEST": str(tmp_path)},
            text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        stop(process)


def living(marker: str) -> list[int]:
    """The processes that have the marker in their environment."""
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"MESHRT_TEST={marker}\0".encode() in (path / "environ").read_bytes() + b"\0":
                pids.append(int(path.name))
        except OSError:
            continue  # it has ended, or is not ours
    return pids


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.row)
def test_what_a_fault_comes_to(case: Case, start: Start, tmp_path: Path) -> None:
    process = start(case)
    if case.signal:
        assert until((tmp_path / "here" / "state" / "state.json").exists, LONGEST)  # it generates
        process.send_signal(case.signal)
    out, err = process.communicate(timeout=LONGEST)
    # The launcher's own lines: Open MPI's are framed.
    err = re.sub(r"^-{70,}\n.*?^-{70,}\n", "", err, flags=re.DOTALL | re.MULTILINE)
    codes = case.code if isinstance(case.code, tuple) else (case.code,)
    assert process.returncode in codes, err
    assert "meshrt" not in out  # what is there is the launcher's
    if case.message:
        assert len(re.findall("meshrt: (?!this is a bug)", err)) == 1, err
        assert re.search(case.message, err), err
        assert ("Traceback" in err) == ("this is a bug" in case.message)
    else:
        assert err == ""
    assert until(lambda: not living(str(tmp_path)), SECONDS)
    folder = tmp_path / "here"
    assert sorted(path.name for path in folder.iterdir()) == sorted([*case.left, *["state"] * (not case.how)])
    if not case.how:
        check_state(folder / "state", case.ranks)


def check_state(folder: Path, ranks: int) -> None:
    """One state, whole; beside it no more than what ranks had written of the next one, or had yet to remove.

    That may be an index, too, which rank 0 writes to a name of its own first and renames once it is whole.
    """
    index, files = (folder / "state.json").read_text(), {path.name for path in folder.iterdir()} - {"state.json"}
    named = {name for name in files if f'"{name}"' in index}
    (number,) = {name.split("-")[1] for name in named}
    assert named == {f"state-{number}-{rank}.npz" for rank in range(ranks)}
    next_index = {name for name in files if name.startswith(".state.json.")}
    others = files - named - next_index
    assert len({name.lstrip(".").split("-")[1] for name in others}) <= 1, files
    assert len(others) <= ranks and len(next_index) <= 1, files


def test_states_that_a_fault_may_leave(tmp_path: Path) -> None:
    for name in ("state-1-0.npz", "state-1-1.npz", "state-2-0.npz", ".state-2-1.npz.7", ".state.json.7"):
        (tmp_path / name).touch()
    (tmp_path / "state.json").write_text('["state-1-0.npz", "state-1-1.npz"]')
    check_state(tmp_path, 2)
    for name in ("state-3-0.npz", "state-2-2.npz", ".state.json.8"):
        (tmp_path / name).touch()
        with pytest.raises(AssertionError):
            check_state(tmp_path, 2)
        (tmp_path / name).unlink()
    (tmp_path / "state.json").write_text('["state-1-0.npz"]')
    with pytest.raises(AssertionError):
        check_state(tmp_path, 2)


def test_the_table_has_these_rows() -> None:
    text = (CHECKOUT / "docs" / "failures.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| [^|]+ \| ([^|]+) \| [^|]* \| [^|]+ \|$", text, re.MULTILINE)[2:]
    codes = {row: tuple(int(number) for number in re.findall(r"\b\d+\b", cell)) for row, cell in rows}
    assert codes == {case.row: case.code if isinstance(case.code, tuple) else (case.code,) for case in CASES}


def test_a_reader_that_has_gone_ends_the_run(tmp_path: Path) -> None:
    """Alone: under a launcher it is the launcher that writes to the pipe."""
    argv = [sys.executable, "-m", "meshrt.cli", "run", "llama-tiny", "--max-new-tokens", "400", "--ignore-eos"]
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(CHECKOUT)}
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(4)
    process.stdout.close()
    assert process.wait(LONGEST) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "SIGTERM")]
)
def test_a_rank_alone_cleans_up_when_it_is_told_to_end(number: int, code: int, word: str, tmp_path: Path) -> None:
    argv = [
        sys.executable,
        "-m",
        "meshrt.cli",
        "run",
        *LLAMA,
        "--checkpoint",
        "state",
        "--json",
        "report.json",
        "--quiet",
    ]
    with subprocess.Popen(
        argv, cwd=tmp_path, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(CHECKOUT)}
    ) as process:
        assert until((tmp_path / "state" / "state.json").exists, LONGEST)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=LONGEST)
    assert process.returncode == code, stderr
    message = stderr.decode()
    assert message.count("\n") == 1 and word in message
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


FREED = """
import signal
import threading
import time

MESH = (1, 1)

class Freed:
    def __del__(self):
        signal.raise_signal(signal.{})
        time.sleep(0)  # here Python calls what handles the signal, and drops what that raises

def run(block):
    "The signal comes while an object is being freed, and at once again, where Python drops what is raised as well."
    def at_once(timer):
        threading.Timer.start = threading.Thread.start
        timer.function(*timer.args)

    if {}:
        threading.Timer.start = at_once
    Freed()
    time.sleep(1000)
"""


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(("name", "code", "word"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "SIGTERM")])
def test_a_signal_is_not_lost_where_python_drops_what_is_raised(
    name: str, code: int, word: str, again: bool, tmp_path: Path, run_meshrt: Callable[..., Any]
) -> None:
    (tmp_path / "mine.py").write_text(FREED.format(name, again))
    ended = run_meshrt("run", str(tmp_path / "mine.py"))
    assert ended.code == code and word in ended.stderr and ended.stderr.count("\n") == 1


LONG = """
import sys
import numpy as np

MESH = (2, 1)

def run(block):
    "One product of whole numbers, without a library for it: one call of hours, of few numbers that are there."
    a = np.broadcast_to(np.int64(1), (100, 10**9))
    sys.stderr.write("it begins\\n")  # at once: print writes the end of the line apart, and ranks share the stream
    np.matmul(a, a.T)
    block.control.allreduce(1)
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_ctrl_c_is_heard_inside_one_long_call(ranks: int, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(LONG)
    mpirun = find_mpirun()
    argv = [sys.executable, "-m", "meshrt.cli", "run", str(tmp_path / "mine.py")]
    process = subprocess.Popen(
        argv if ranks == 1 else [*local.mpirun_argv(ranks, mpirun), *argv],
        env=local.local_environment(mpirun) | {"PYTHONPATH": str(CHECKOUT)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        for _ in range(ranks):
            assert process.stderr.readline() == "it begins\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)  # the call itself takes far longer
    finally:
        stop(process)
    assert process.returncode == (1 if ranks > 1 and mpirun.is_open_mpi else 130)
    assert err.startswith("meshrt: error: interrupted") and err.count("\n") == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("command", [["compress", "llama-tiny", "--ratio", "0.2", "--out"], ["bench", "clock"]])
def test_commands_of_one_process_say_that_they_were_interrupted(command: list[str], tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "meshrt.cli", *command, *[str(tmp_path / "new")] * (command[0] == "compress")]
    env = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert until(lambda: listens(process.pid), LONGEST)
            time.sleep(1.0)  # the command itself, which takes far longer
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (130, "meshrt: error: interrupted\n")


def listens(process: int) -> bool:
    """Does it handle SIGTERM? Python itself does not: only then the command line is there to hear of signals."""
    status = Path(f"/proc/{process}/status").read_text()
    (caught,) = re.findall(r"^SigCgt:\t(\w+)$", status, re.MULTILINE)
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize(
    "text", ["", "kill", "kill:1", "kill:1:0", "kill:-1:5", "burn:1:5", "delay:1:5:x", "kill:1:2:3:4"]
)
def test_a_fault_that_cannot_be_is_told(text: str) -> None:
    with pytest.raises(UsageError, match=r"MESHRT_FAULT is .*: give KIND:RANK:WAIT"):
        board_class({"MESHRT_FAULT": text})


def test_without_a_fault_there_is_nothing_in_the_way() -> None:
    assert board_class({}) is Board


# ----------------------------------------------------------------------------------------------------- the sentinel


def stall_of(
    monkeypatch: pytest.MonkeyPatch, states: dict[int, str], waits: dict[int, State]
) -> Callable[[float], str | None]:
    """Looks at ranks in these states, as Linux tells them and as they say, at any time since the first look."""
    clock = [0.0]
    monkeypatch.setattr(sentinel.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(sentinel, "activity", lambda process: (states[process], 5))

    class Told:
        size, ranks = len(states), tuple(states)

        def records(self) -> list[Record]:
            return [Record(rank, waits[rank], 0, 1, 0.0, "route set 1") for rank in states]

        def owners(self) -> list[Owner]:
            return [Owner(100 + rank, f"cores of {rank}") for rank in states]

    stall = sentinel.Stall(4.0)
    board: Any = Told()

    def look(now: float) -> str | None:
        clock[0] = now
        return stall.look(board, {rank: rank for rank in states}, longest=2.0)

    return look


WAITING, MOVING = State.WAITING, State.MOVING


def test_a_machine_that_slept_has_not_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour between two looks counts as no more than a look takes."""
    look = stall_of(monkeypatch, {0: "S", 1: "S"}, {0: WAITING, 1: MOVING})
    assert [look(now) for now in (0.0, 3600.0, 3601.0)] == [None] * 3
    assert "rank 1 of 2, cores of 1 (process 101; it last waited for route set 1): it has neither" in str(look(3602.5))


def test_a_job_that_somebody_stopped_has_not_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    look = stall_of(monkeypatch, {0: "T", 1: "T"}, {0: WAITING, 1: MOVING})
    assert not any(look(float(now)) for now in range(100))


@pytest.mark.parametrize("state", ["R", "D"])
def test_a_rank_that_computes_or_reads_has_not_stalled(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    look = stall_of(monkeypatch, {0: "S", 1: state}, {0: WAITING, 1: MOVING})
    assert not any(look(float(now)) for now in range(100))


def test_a_rank_that_nobody_waits_for_has_not_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    look = stall_of(monkeypatch, {0: "R", 1: "S"}, {0: MOVING, 1: MOVING})
    assert not any(look(float(now)) for now in range(100))


def test_a_kill_by_the_kernel_is_told_as_such() -> None:
    record = Record(1, WAITING, 0, 1, 0.0, "route set 1")
    message = sentinel.gone(record, Owner(17, ""), 4, kills=1)
    assert message == (
        "meshrt: error on rank 1 of 4 (process 17; it waits for route set 1): the kernel has killed it for want of"
        " memory; use fewer ranks or a smaller problem"
    )
