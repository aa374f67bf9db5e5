"""A rank of a script that raises, or ends, outside of a run, while another waits for it: all end, with a message."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from mpi_jobs import Finished

from meshrt.ranks.failing import outside

# What rank 1 does while rank 0 is in its run, or in its sweep; "first" with a run of both before, and "late" without
# MPI until then.
SCRIPT = """
import os, sys
import meshrt
case, *when = sys.argv[1:]
if "late" in when:
    rank = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
else:
    from mpi4py import MPI
    rank = MPI.COMM_WORLD.rank
product = {"m": 16, "k": 16, "n": 16, "mesh": (2, 2)}
if "first" in when:
    meshrt.run("gemm", **product)
if rank == 1:
    if case == "raise":
        raise KeyError("a script's own")
    if case == "refused":
        meshrt.run("gemm", **(product | {"m": 0}))
    if case == "thread":
        import threading
        thread = threading.Thread(target=lambda: 1 // 0)
        thread.start()
        thread.join()
    if case in ("end", "sweep"):
        sys.exit()
meshrt.sweep("gemm", **product) if case == "sweep" else meshrt.run("gemm", **product)
"""
SOON = {"MESHRT_WATCHDOG_SECONDS": "1"}


@pytest.mark.parametrize(
    ("case", "when", "code", "says"),
    [
        ("raise", "", 1, 'KeyError: "a script\'s own"'),
        ("raise", "late", 1, "KeyError"),
        ("refused", "first", 2, "m is 0; it starts at 1"),
    ],
)
def test_what_a_rank_raises_outside_of_a_run_ends_all(
    case: str, when: str, code: int, says: str, run_script: Callable[..., Finished]
) -> None:
    done = run_script(SCRIPT, case, when, ranks=2)
    assert done.code == code, done.stderr
    assert "Traceback" in done.stderr and "script.py" in done.stderr
    assert done.stderr.count("meshrt: error") == 1 and f"meshrt: error on rank 1 of 2: {says}" in done.stderr


@pytest.mark.parametrize(
    ("case", "when", "call"), [("end", "", "run"), ("end", "first", "run"), ("sweep", "", "sweep")]
)
def test_a_rank_that_ends_is_not_waited_for(
    case: str, when: str, call: str, run_script: Callable[..., Finished]
) -> None:
    done = run_script(SCRIPT, case, when, ranks=2, env=SOON)
    assert done.code == 124, done.stderr
    assert f"error on rank 0 of 2: it waits for all ranks in meshrt.{call}, and " in done.stderr
    assert "has come to its end without that: every rank has to make the same calls" in done.stderr


def test_others_go_on_after_what_ends_no_rank(run_script: Callable[..., Finished]) -> None:
    done = run_script(SCRIPT, "thread", ranks=2, env=SOON)
    assert done.code == 0 and "ZeroDivisionError" in done.stderr, done.stderr


def test_one_rank_alone_fails_as_python_does(run_script: Callable[..., Finished]) -> None:
    done = run_script("import sys, meshrt\nassert sys.excepthook is sys.__excepthook__\nmeshrt.run('gemm', m=0)\n")
    assert done.code == 1 and "meshrt: error" not in done.stderr
    assert done.stderr.splitlines()[-1] == "meshrt.errors.UsageError: m is 0; it starts at 1"


def test_the_hook_before_is_called_and_a_fork_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[BaseException] = []
    ended: list[BaseException] = []
    monkeypatch.setattr("meshrt.ranks.failing.failure.end_outside", ended.append)
    error = KeyError("mine")
    outside.hook(lambda kind, error, trace: called.append(error), os.getpid())(KeyError, error, None)
    assert called == ended == [error]
    outside.hook(lambda kind, error, trace: called.append(error), os.getpid() + 1)(KeyError, error, None)
    monkeypatch.setattr("sys.ps1", ">>> ", raising=False)
    outside.hook(lambda kind, error, trace: called.append(error), os.getpid())(KeyError, error, None)
    assert called == [error] * 3 and ended == [error]


def test_a_name_is_one_process_s() -> None:
    name = f"meshrt-test-{os.getpid()}"
    assert outside.take(name) and not outside.take(name)
    assert any(line.endswith(f"@{name}\n") for line in Path("/proc/net/unix").read_text().splitlines(keepends=True))
