"""Tests on MPI ranks, by the markers of pytest-mpi, in two ways.

    @pytest.mark.mpi(ranks=[1, 4])   # on each of these numbers of ranks
    def test_shift(comm): ...

    @pytest.mark.mpi(min_size=2)     # on 2 ranks, or on as many more as there are
    def test_ring(comm, mpi_tmp_path): ...

`mpirun -n 4 python -m pytest --with-mpi FILES` runs those that fit on 4 ranks and skips the others, as pytest-mpi does.
Plain `pytest` skips none: one rank is the process itself (or its xdist worker), and mpi_parent.py starts an mpirun for
the other numbers of ranks. `comm` is all ranks of the test.

A rank that fails waits shortly for the others to leave the test and aborts them if they are stuck in it. A test that
makes no progress is ended, with its process: by itself, or by the parent of its ranks.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mpi4py
import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from mpi_parent import REPORTS, SIZES, Parent, ranks_of, time_limit
from pytest_mpi import MPIPlugin

from meshrt.ranks import host, launcher

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

STUCK_SECONDS = 3.0  # how long a failed rank waits for the others before it aborts the job
FAILED = pytest.StashKey[bool]()  # of a test: whether it failed on this rank, and after the test, whether on any


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "mpi_timeout", "seconds that a test on MPI ranks may take; with --all, five times as many", default="60"
    )


def on_ranks(config: pytest.Config) -> bool:
    """Whether this process is one of the ranks that an mpirun started for tests."""
    return bool(config.getoption("--with-mpi") or config.getoption("--only-mpi"))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "mpi(ranks, min_size): runs on each of these numbers of MPI ranks")
    mpi4py.rc.initialize = False  # a test file may import MPI, in the parent of ranks too
    if on_ranks(config):
        config.pluginmanager.register(Rank(config), "meshrt-mpi-rank")
        return
    if launcher.launched_size() > 1:
        raise pytest.UsageError(
            f"this is one of {launcher.launched_size()} ranks: add --with-mpi, or leave mpirun away"
        )
    for plugin in config.pluginmanager.get_plugins():
        if isinstance(plugin, MPIPlugin):  # would skip the tests that Alone and Parent run
            config.pluginmanager.unregister(plugin)
    config.pluginmanager.register(Alone(config), "meshrt-mpi-alone")
    config.pluginmanager.register(Parent(config), "meshrt-mpi-parent")
    if not hasattr(config, "workerinput"):  # workers of xdist are ended by the process that started them
        # A time limit of `timeout` or of a CI ends the ranks as well, as Ctrl-C does: they might turn round for ever.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        config.add_cleanup(lambda: signal.signal(signal.SIGTERM, before))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Ranks have no workers."""
    return 0 if on_ranks(config) else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("mpi")
    if marker:
        launched = launcher.launched_size() if on_ranks(metafunc.config) and REPORTS not in os.environ else 1
        least = marker.kwargs.get("min_size", 1)
        ranks = marker.kwargs.get("ranks", [max(least, launched)])
        if min(ranks) < least:
            raise pytest.UsageError(f"{metafunc.definition.nodeid}: ranks={ranks} has less than min_size={least}")
        metafunc.fixturenames.append("mpi_ranks")
        metafunc.parametrize("mpi_ranks", ranks, ids="ranks={}".format, indirect=True)


@pytest.fixture
def mpi_ranks(request: pytest.FixtureRequest) -> int:
    """The number of ranks that this test runs on."""
    return int(request.param)


@pytest.fixture
def comm(request: pytest.FixtureRequest) -> Iterator[Intracomm]:
    """All ranks of the test, in a communicator of its own: a stray message cannot reach the next test."""
    if request.node.get_closest_marker("mpi") is None:
        raise pytest.UsageError(f"{request.node.nodeid} uses the fixture comm and needs @pytest.mark.mpi(ranks=[...])")
    rank = request.config.pluginmanager.get_plugin("meshrt-mpi-rank")
    duplicate = (rank.ranks(request.node) if rank else host.connect()).Dup()
    yield duplicate
    if not request.node.stash[FAILED]:  # else messages may be under way, on which freeing blocks
        duplicate.Free()


@pytest.fixture
def mpi_tmp_path(comm: Intracomm, tmp_path: Path) -> Path:
    """A folder that is the same on all ranks. That of pytest-mpi is for all ranks of the job."""
    return Path(comm.bcast(str(tmp_path)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


class Alone:
    """The plugin where one rank is this process: starts MPI when a test needs it, and ends a test that hangs."""

    def __init__(self, config: pytest.Config) -> None:
        self.connected = False
        self.timeout = time_limit(config)
        self.stderr = config.stash[fault_handler_stderr_fd_key]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item.get_closest_marker("mpi"):
            if not self.connected:
                host.connect()
                host.remove_segments()  # which a process that dies would leave
                self.connected = True
            faulthandler.dump_traceback_later(self.timeout, exit=True, file=self.stderr)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        if item.get_closest_marker("mpi"):
            faulthandler.cancel_dump_traceback_later()


class Rank:
    """The plugin in a rank: meets the other ranks after each test, and writes reports for a parent.

    A parent's job may have tests of several numbers of ranks. Those of the most come first, so that each rank runs the
    first of them and sleeps when it is needed no more; it collects no others.
    """

    def __init__(self, config: pytest.Config) -> None:
        host.prepare_environment()
        self.config = config
        self.control = host.connect().Dup()
        self.first: dict[int, Intracomm] = {}  # the first so many ranks, if this is one of them
        self.control.Barrier()
        if self.control.rank == 0:
            host.remove_segments()  # which jobs that hang or die would leave
        self.timeout = time_limit(config)
        self.folder = Path(os.environ[REPORTS]) if REPORTS in os.environ else None
        if self.folder is not None:
            self.reports = (self.folder / f"{self.control.rank}.jsonl").open("a", buffering=1)
            self.stack = (self.folder / f"{self.control.rank}.stack").open("w")
            sizes = [int(size) for size in os.environ[SIZES].split(",")]
            self.sizes = sorted(set(sizes))
            config.args[:] = [test for test, size in zip(config.args, sizes, strict=True) if self.control.rank < size]
        if self.folder is not None or self.control.rank:
            config.option.xmlpath = None  # one file of all ranks
        if self.folder is not None and self.control.rank:
            config.pluginmanager.unregister(name="terminalreporter")

    def ranks(self, item: pytest.Item) -> Intracomm:
        """The ranks that `item` runs on: the first of the job, all of them in an mpirun of the user's."""
        return self.first.get(ranks_of(item) or 0, self.control)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        from mpi4py import MPI

        if self.folder is None:
            return  # what is for another number of ranks is skipped
        for size in self.sizes:
            ranks = self.control.Split(0 if self.control.rank < size else MPI.UNDEFINED, self.control.rank)
            if ranks != MPI.COMM_NULL:
                self.first[size] = ranks
        items.sort(key=lambda item: ranks_of(item) or 0, reverse=True)

    def pytest_sessionfinish(self) -> None:
        if self.folder is not None:
            ended = self.control.Ibarrier()
            while not ended.Test():  # asleep: with fewer ranks tests go on
                time.sleep(0.05)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self.folder is not None:
            self.reports.write(json.dumps({"start": nodeid}) + "\n")
            self.stack.seek(0)
            self.stack.truncate()
            faulthandler.dump_traceback_later(0.8 * self.timeout, file=self.stack)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        ranks = ranks_of(item)
        if ranks is None or self.folder is not None:  # which a parent chose, and looks after
            return
        if ranks != self.control.size:  # as pytest-mpi does: the user chose the number, and -rs names the others
            pytest.skip(f"for {ranks} ranks: mpirun -n {ranks}")
        stderr = self.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(self.timeout, exit=True, file=stderr)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.folder is not None:
            data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
            self.reports.write(json.dumps({"report": data}) + "\n")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Before fixtures are torn down: wait until all ranks are done with the test, and learn if it failed on one."""
        from mpi4py import MPI

        faulthandler.cancel_dump_traceback_later()
        failed = bytearray([item.stash[FAILED]])
        anywhere = bytearray(1)
        ranks = self.ranks(item)
        met = ranks.Iallreduce([failed, MPI.BYTE], [anywhere, MPI.BYTE], MPI.BOR)
        deadline = time.monotonic() + STUCK_SECONDS
        while not met.Test():
            if failed[0] and time.monotonic() > deadline:
                self.control.Abort(1)
            time.sleep(0.0005)
        item.stash[FAILED] = bool(anywhere[0])
