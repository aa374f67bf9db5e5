"""A job with a failing rank ends within seconds, with one message and the right exit code."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from meshrt.errors import LimitError, StallError, UsageError
from meshrt.ranks import hostmemory
from meshrt.ranks.failing import causes, failure

# What happens on rank 1, or on all ranks; the others are in a receive that nobody answers.
SCRIPT = """
import os, signal, sys, time
from meshrt.ranks import host
host.prepare_environment()
from meshrt.errors import LimitError, UsageError
from meshrt.ranks.failing import failure
from meshrt.ranks.failing.failure import run_guarded

def work(comm, board):
    case, last = sys.argv[1], comm.size - 1

    def receive(peer, what):
        board.waiting(peer, what)
        if case in ("deadlock", "early end", "slow"):  # asleep: a second of turning round in MPI would show no more
            message = comm.Irecv(bytearray(8), peer)
            while not message.Test():
                time.sleep(0.01)
        else:
            comm.Recv(bytearray(8), peer)
        board.moving()

    if case == "fine":
        print(f"rank {comm.rank}", flush=True)
        return 0
    if case == "usage on all":
        raise UsageError("--mesh 5x5: too few ranks")
    if case == "limit on all":
        raise LimitError(f"core ({comm.rank}, 0): asked 5 B, limit 4 B")
    if case == "advice":
        failure.ADVICE = 0.5
        error = LimitError("core (0, 0): asked 5 B, limit 4 B")
        error.advice = lambda: time.sleep(60)
        raise error
    if case == "code on all":
        return 3
    if case == "deadlock":
        receive((comm.rank + 1) % comm.size, b"transfer 12: shift east, tick 1")
    if case == "early end":
        if comm.rank == last:
            receive(0, b"transfer 3: reduce south")
        return 0
    if case == "slow":
        if comm.rank == 0:
            while time.process_time() < 1.1:
                pass
            comm.Send(bytearray(8), last)
        if comm.rank == last:
            receive(0, b"transfer 3")
        return 0
    if comm.rank == 1:
        if case == "limit":
            raise LimitError("core (1, 0): asked 5 B, limit 4 B")
        if case == "bug":
            raise ValueError("that was unexpected")
        if case == "memory":
            raise MemoryError("Unable to allocate 9 TiB")
        if case == "exit":
            sys.exit(7)
        if case == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    receive(1, b"transfer 1")

sys.exit(run_guarded(work))
"""
Run = Callable[..., tuple[int, str, str, float]]


@pytest.fixture
def run_case(run_script: Run) -> Run:
    """`run_case(case, ranks=3)`: exit code, standard output, what meshrt and Python say on standard error, seconds.

    Were the others not ended by the rank that fails, the watchdog would end them, with an exit code of its own.
    """

    def run(case: str, ranks: int = 3, watchdog: float = 10) -> tuple[int, str, str, float]:
        env = {"MESHRT_WATCHDOG_SECONDS": str(watchdog)}
        code, out, err, seconds = run_script(SCRIPT, case, ranks=ranks, env=env, timeout=120)
        # Open MPI's mpirun has a few lines of its own on every exit code but 0. They are framed.
        return code, out, re.sub(r"^-{70,}\n.*?^-{70,}\n", "", err, flags=re.DOTALL | re.MULTILINE), seconds

    return run


@pytest.mark.parametrize("ranks", [1, 3])
def test_success_is_silent(run_case: Run, ranks: int) -> None:
    code, out, err, _ = run_case("fine", ranks)
    assert (code, err) == (0, "")
    assert out.count("rank") == ranks


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("case", "exit_code", "message"),
    [
        ("usage on all", 2, "meshrt: error: --mesh 5x5: too few ranks\n"),
        ("code on all", 3, ""),
    ],
)
def test_same_error_on_all_ranks_is_told_once(
    run_case: Run, case: str, exit_code: int, message: str, ranks: int
) -> None:
    code, _, err, _ = run_case(case, ranks)
    assert (code, err) == (exit_code, message)


def test_of_different_errors_on_all_ranks_rank_0_tells_its_own(run_case: Run) -> None:
    code, _, err, _ = run_case("limit on all")
    assert code == 3
    assert err == (
        "meshrt: error on rank 0 of 3: core (0, 0): asked 5 B, limit 4 B\nmeshrt: 2 more ranks failed as well\n"
    )


@pytest.mark.parametrize(
    ("case", "exit_code", "message"),
    [
        ("limit", 3, "meshrt: error on rank 1 of 3: core (1, 0): asked 5 B, limit 4 B\n"),
        ("exit", 7, "meshrt: error on rank 1 of 3: it ended early with exit code 7\n"),
        (
            "memory",
            2,
            "meshrt: error on rank 1 of 3 (process N; it has not waited for anything yet): this machine has too little"
            f" memory, {hostmemory.gib(hostmemory.total())} (Unable to allocate 9 TiB): use fewer ranks or a smaller"
            " problem\n",
        ),
    ],
)
def test_error_on_one_rank_ends_the_others(run_case: Run, case: str, exit_code: int, message: str) -> None:
    code, _, err, _ = run_case(case)
    assert (code, re.sub(r"process \d+", "process N", err)) == (exit_code, message)


def test_advice_that_takes_too_long_is_left_out_and_the_exit_code_stays(run_case: Run) -> None:
    """The sentinel kills what is left of a job some seconds after the message."""
    code, _, err, _ = run_case("advice", 2)
    assert (code, err) == (3, "meshrt: error: core (0, 0): asked 5 B, limit 4 B\n")


def test_unknown_exception_comes_with_its_traceback(run_case: Run) -> None:
    code, _, err, _ = run_case("bug")
    assert code == 1
    assert err.startswith("Traceback")
    assert err.count("Traceback") == 1
    assert re.search(r"rank 1 of 3 \(process .*\): ValueError: that was unexpected\nmeshrt: this is a bug", err)


def test_killed_rank_ends_the_others(run_case: Run) -> None:
    code, _, _, _ = run_case("kill")
    assert code in (9, 137)  # Hydra gives the signal, Open MPI's mpirun what a shell would


def test_bad_time_limit_is_told_once(run_case: Run) -> None:
    code, _, err, _ = run_case("fine", watchdog=-1)
    assert (code, err.count("meshrt: error: MESHRT_WATCHDOG_SECONDS is '-1'")) == (2, 1)
    assert err.count("\n") == 1


def test_deadlock_is_ended_and_names_the_cycle(run_case: Run) -> None:
    code, _, err, _ = run_case("deadlock", watchdog=1)
    assert code == 124
    assert err.startswith("meshrt: deadlock: no rank has moved for ")
    assert re.search(r"rank 1 has waited \d+\.\d s for rank 2: transfer 12: shift east, tick 1\n", err)
    assert "cycle: 0 -> 1 -> 2 -> 0\n" in err


def test_wait_for_a_rank_that_finished_is_ended(run_case: Run) -> None:
    code, _, err, _ = run_case("early end", watchdog=1)
    assert code == 124
    assert "rank 0 finished without sending what rank 2 waits for" in err


def test_long_work_of_one_rank_is_no_deadlock(run_case: Run) -> None:
    code, _, err, seconds = run_case("slow", watchdog=0.5)
    assert (code, err) == (0, "")
    assert seconds > 1.1


class Click(Exception):
    """As click's: a message of its own wording."""

    exit_code = 2

    def format_message(self) -> str:
        return "no such option"


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (UsageError("bad"), 2, "bad"),
        (LimitError("full"), 3, "full"),
        (StallError("stuck"), 124, "stuck"),
        (Click(), 2, "no such option"),
        (SystemExit(), 0, ""),
        (SystemExit(5), 5, ""),
        (SystemExit("sorry"), 1, "sorry"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (BrokenPipeError(), 141, ""),
        (ValueError("x"), 1, "ValueError: x"),
    ],
)
def test_what_an_exception_means(error: BaseException, code: int, text: str) -> None:
    described = causes.describe(error)
    assert (described.code, described.text) == (code, text)
    assert bool(described.trace) == isinstance(error, ValueError)


def test_before_mpi_only_rank_0_speaks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PMI_SIZE", "2")
    for rank, message in (("0", "meshrt: error: bad\n"), ("1", "")):
        monkeypatch.setenv("PMI_RANK", rank)
        assert failure.report_alone(UsageError("bad")) == 2
        assert capsys.readouterr().err == message
