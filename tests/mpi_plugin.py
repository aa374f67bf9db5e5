"""Plain `pytest` runs tests on MPI ranks: one mpirun per number of ranks, whose reports become one report a test.

    @pytest.mark.mpi(ranks=[1, 4])
    def test_shift(comm): ...

The process that the user started ("parent") collects the tests as usual and starts `mpirun -n ranks pytest ...` for all
tests of one number of ranks when it comes to the first of them. Those processes ("ranks") write their reports to files,
one per rank. A rank that fails waits shortly for the others to leave the test and aborts them if they are stuck in it.
The parent ends a job that makes no progress. Either way the test that broke the job fails and the rest is run again.
"""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mpi4py
import pytest
from mpi_jobs import find_mpirun, stop

from meshrt.errors import MpiError
from meshrt.launch import local
from meshrt.ranks import host

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

STUCK_SECONDS = 3.0  # how long a failed rank waits for the others before it aborts the job
STARTING = 3.0  # how many time limits a job may take until its first test begins
REPORTS = "MESHRT_TEST_REPORTS"  # the directory that the ranks write to; set in a rank only


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "mpi_timeout", "seconds that an MPI job may go on without any rank beginning or ending a test", default="60"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "mpi(ranks): runs on each of these numbers of MPI ranks")
    if REPORTS in os.environ:
        config.pluginmanager.register(Rank(config), "meshrt-mpi-rank")
    else:
        config.pluginmanager.register(Parent(config), "meshrt-mpi-parent")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("mpi")
    if marker:
        metafunc.fixturenames.append("mpi_ranks")
        metafunc.parametrize("mpi_ranks", marker.kwargs["ranks"], ids="ranks={}".format, indirect=True)


@pytest.fixture
def mpi_ranks(request: pytest.FixtureRequest) -> int:
    """The number of ranks that this test runs on."""
    return int(request.param)


@pytest.fixture
def comm(request: pytest.FixtureRequest) -> Iterator[Intracomm]:
    """All ranks, in a communicator of the test's own: a stray message cannot reach the next test."""
    if request.node.get_closest_marker("mpi") is None:
        raise pytest.UsageError(f"{request.node.nodeid} uses the fixture comm and needs @pytest.mark.mpi(ranks=[...])")
    duplicate = host.connect().Dup()
    yield duplicate
    if not request.node.stash[FAILED]:  # else messages may be under way, on which freeing blocks
        duplicate.Free()


FAILED = pytest.StashKey[bool]()  # of a test: whether it failed on this rank, and after the test, whether on any


class Rank:
    """The plugin in a rank: writes reports to a file and meets the other ranks after each test."""

    def __init__(self, config: pytest.Config) -> None:
        host.prepare_environment()
        self.config = config
        self.control = host.connect().Dup()
        self.control.Barrier()
        if self.control.rank == 0:
            host.remove_segments()  # which jobs that hang or die would leave
        directory = Path(os.environ[REPORTS])
        self.reports = (directory / f"{self.control.rank}.jsonl").open("a", buffering=1)
        self.stack = (directory / f"{self.control.rank}.stack").open("w")
        self.timeout = float(config.getini("mpi_timeout"))
        config.option.xmlpath = None
        if self.control.rank:
            config.pluginmanager.unregister(name="terminalreporter")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.reports.write(json.dumps({"start": nodeid}) + "\n")
        self.stack.seek(0)
        self.stack.truncate()
        faulthandler.dump_traceback_later(0.8 * self.timeout, file=self.stack)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        report = yield
        item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.reports.write(json.dumps({"report": data}) + "\n")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Before fixtures are torn down: wait until all ranks are done with the test, and learn if it failed on one."""
        from mpi4py import MPI

        faulthandler.cancel_dump_traceback_later()
        failed = bytearray([item.stash[FAILED]])
        anywhere = bytearray(1)
        met = self.control.Iallreduce([failed, MPI.BYTE], [anywhere, MPI.BYTE], MPI.BOR)
        deadline = time.monotonic() + STUCK_SECONDS
        while not met.Test():
            if failed[0] and time.monotonic() > deadline:
                self.control.Abort(1)
            time.sleep(0.0005)
        item.stash[FAILED] = bool(anywhere[0])


@dataclass
class Job:
    """What the report files of one mpirun say."""

    reports: dict[str, dict[int, list[pytest.TestReport]]] = field(default_factory=dict)  # by test, then by rank
    inside: dict[int, str] = field(default_factory=dict)  # the test that a rank began and did not end
    stacks: dict[int, str] = field(default_factory=dict)  # where a rank was shortly before the time limit
    end: str = ""  # how it ended, if not well
    output: str = ""


class Parent:
    """The plugin in the process that the user started: runs the jobs and passes their reports on."""

    def __init__(self, config: pytest.Config) -> None:
        mpi4py.rc.initialize = False  # a test file may import MPI; started here, it would be in the way of the jobs
        self.config = config
        self.results: dict[str, list[pytest.TestReport]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        ranks = ranks_of(item)
        if ranks is None:
            return None
        while item.nodeid not in self.results:
            self.run([i for i in item.session.items if ranks_of(i) == ranks and i.nodeid not in self.results], ranks)
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self.results[item.nodeid]:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        # Fixtures of the tests without MPI around this one, which pytest keeps for as long as a test may need them.
        item.session._setupstate.teardown_exact(nextitem)
        return True

    def run(self, items: list[pytest.Item], ranks: int) -> None:
        """Run `items` in one job and store the results of those that it decided: at least one of them."""
        try:
            mpirun = find_mpirun()
        except MpiError as error:
            for item in items:
                self.results[item.nodeid] = [_report(item, "skipped", (str(item.path), 0, f"Skipped: {error}"))]
            return
        with tempfile.TemporaryDirectory(prefix="meshrt-test-") as directory:
            job = self.launch(mpirun, items, ranks, Path(directory))
        done = [item for item in items if _complete(job.reports.get(item.nodeid, {}), ranks)]
        for item in done:
            self.results[item.nodeid] = _merge(job.reports[item.nodeid], ranks)
        if len(done) == len(items):
            return
        guilty = [item for item in items if item.nodeid in job.inside.values() and item not in done]
        if not guilty and not job.inside and not done:
            guilty = items  # the ranks did not even begin: it would be no different the next time
        for item in guilty or [item for item in items if item not in done][:1]:
            self.results[item.nodeid] = [_broken(item, ranks, job)]

    def launch(self, mpirun: local.Mpirun, items: list[pytest.Item], ranks: int, directory: Path) -> Job:
        tests = Path(__file__).parent
        path = os.pathsep.join(filter(None, [str(tests), str(tests.parent), os.environ.get("PYTHONPATH")]))
        env = local.local_environment(mpirun) | {REPORTS: str(directory), "PYTHONPATH": path}
        argv = [*local.mpirun_argv(ranks, mpirun), sys.executable, "-m", "pytest", "-q", "-p", "mpi_plugin"]
        argv += ["-p", "no:cacheprovider", "--no-header", "--rootdir", str(self.config.rootpath)]
        argv += ["-o", f"mpi_timeout={self.config.getini('mpi_timeout')}"]
        argv += ["-c", str(self.config.inipath)] if self.config.inipath else []
        argv += [item.nodeid for item in items]
        output = directory / "output"
        with output.open("w") as file:
            process = subprocess.Popen(
                argv,
                env=env,
                cwd=self.config.rootpath,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                end = self.wait(process, directory)
            finally:
                stop(process)
        return self.read(directory, ranks, end, output.read_text(errors="replace"))

    def wait(self, process: subprocess.Popen[bytes], directory: Path) -> str:
        """Wait for the end of the job, or of its progress; returns how it ended, empty if well."""
        timeout = float(self.config.getini("mpi_timeout"))
        size, changed = -1, time.monotonic()
        while process.poll() is None:
            now = sum(path.stat().st_size for path in directory.glob("*.jsonl"))
            if now != size:
                size, changed = now, time.monotonic()
            # Many ranks take their time to start on few cores.
            elif time.monotonic() - changed > (timeout if size else STARTING * timeout):
                return f"was ended after {time.monotonic() - changed:.0f} s without progress"
            time.sleep(0.05)
        return f"ended with exit code {process.returncode}" if process.returncode else ""

    def read(self, directory: Path, ranks: int, end: str, output: str) -> Job:
        job = Job(end=end, output=output)
        for rank in range(ranks):
            stack = directory / f"{rank}.stack"
            job.stacks[rank] = stack.read_text() if stack.exists() else ""
            reports = directory / f"{rank}.jsonl"
            for line in reports.read_text().splitlines() if reports.exists() else []:
                try:
                    entry = json.loads(line)
                except ValueError:  # a rank was killed while it wrote
                    continue
                if "start" in entry:
                    job.inside[rank] = entry["start"]
                    continue
                report = self.config.hook.pytest_report_from_serializable(config=self.config, data=entry["report"])
                if isinstance(report.longrepr, list):
                    report.longrepr = tuple(report.longrepr)  # that of a skip, of which JSON makes a list
                job.reports.setdefault(report.nodeid, {}).setdefault(rank, []).append(report)
                if report.when == "teardown":
                    job.inside.pop(rank, None)
        return job


def ranks_of(item: pytest.Item) -> int | None:
    """The number of MPI ranks that `item` runs on, None for a test without MPI."""
    if item.get_closest_marker("mpi") is None or not isinstance(item, pytest.Function):
        return None
    ranks = item.callspec.params["mpi_ranks"]
    assert isinstance(ranks, int)
    return ranks


def _complete(reports: dict[int, list[pytest.TestReport]], ranks: int) -> bool:
    return len(reports) == ranks and all(phases[-1].when == "teardown" for phases in reports.values())


def _merge(reports: dict[int, list[pytest.TestReport]], ranks: int) -> list[pytest.TestReport]:
    """One report for each phase: the first failing rank's, else the first rank's."""
    merged = []
    for when in ("setup", "call", "teardown"):
        phase = {rank: report for rank, done in sorted(reports.items()) for report in done if report.when == when}
        if not phase:
            continue
        failed = [rank for rank, report in phase.items() if report.failed]
        report = phase[failed[0] if failed else min(phase)]
        report.duration = max(other.duration for other in phase.values())
        if failed:
            names = ", ".join(map(str, failed))
            report.sections.insert(0, (f"failed on rank {names} of {ranks}; rank {failed[0]} shown", ""))
        merged.append(report)
    return merged


def _broken(item: pytest.Item, ranks: int, job: Job) -> pytest.TestReport:
    """The report of a test that took its job down: its failure if a rank had one, else what is known of the job."""
    inside = [rank for rank, nodeid in job.inside.items() if nodeid == item.nodeid]
    failed = {
        rank: report
        for rank, done in sorted(job.reports.get(item.nodeid, {}).items())
        for report in done
        if report.failed
    }
    stuck = [rank for rank in inside if rank not in failed]
    if failed:
        rank, report = next(iter(failed.items()))
        where = f"failed on rank {', '.join(map(str, failed))} of {ranks}; rank {rank} shown"
        report.sections.insert(0, (f"{where}; ranks {stuck} were stuck in the test and were ended", ""))
        return report
    stacks = "".join(f"\nrank {rank}:\n{job.stacks[rank]}" for rank in stuck[:4] if job.stacks.get(rank))
    text = f"the MPI job of {ranks} ranks {job.end or 'ended early'}; in this test were ranks {stuck}\n{stacks}"
    return _report(item, "failed", f"{text}\n{job.output[-3000:]}")


def _report(item: pytest.Item, outcome: Any, longrepr: Any) -> pytest.TestReport:
    return pytest.TestReport(item.nodeid, item.location, {}, outcome, longrepr, "call")
