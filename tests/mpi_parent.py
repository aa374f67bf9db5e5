"""Where a test needs several MPI ranks: one mpirun for many tests, whose reports become one report a test.

The process that collected the tests ("parent") starts `mpirun -n ranks pytest --with-mpi ...` when it comes to the
first of them: with --all one for each number of ranks, else one for all, where a test is on the first of the ranks, as
starting them is most of the work. Those processes ("ranks") write their reports to files, one each. The parent ends a
job that makes no progress. The test that broke the job fails and the rest is run again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mpi_jobs import find_mpirun, stop

from meshrt.errors import MpiError
from meshrt.launch import local
from meshrt.ranks import host

STARTING = 3.0  # how many time limits a job may take until its first test begins
WHOLE = 5.0  # how many a test may take with --all, where some take a minute of a processor
REPORTS = "MESHRT_TEST_REPORTS"  # the directory that the ranks write to; set in a rank of a parent only
SIZES = "MESHRT_TEST_SIZES"  # how many of the ranks each of a job's tests is for, in their order


@dataclass
class Job:
    """What the report files of one mpirun say."""

    reports: dict[str, dict[int, list[pytest.TestReport]]] = field(default_factory=dict)  # by test, then by rank
    inside: dict[int, str] = field(default_factory=dict)  # the test that a rank began and did not end
    stacks: dict[int, str] = field(default_factory=dict)  # where a rank was shortly before the time limit
    end: str = ""  # how it ended, if not well
    output: str = ""


class Parent:
    """The plugin in the process that collected the tests: runs the jobs and passes their reports on."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.results: dict[str, list[pytest.TestReport]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        ranks = ranks_of(item)
        if ranks is None or ranks == 1:
            return None
        while item.nodeid not in self.results:
            numbers = {ranks} if self.config.getoption("--all", True) else {ranks_of(i) for i in item.session.items}
            numbers -= {None, 1}
            self.run([i for i in item.session.items if ranks_of(i) in numbers and i.nodeid not in self.results])
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self.results[item.nodeid]:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        # Fixtures of the tests without MPI around this one, which pytest keeps for as long as a test may need them.
        item.session._setupstate.teardown_exact(nextitem)
        return True

    def run(self, items: list[pytest.Item]) -> None:
        """Run `items` in one job and store the results of those that it decided: at least one of them."""
        try:
            mpirun = find_mpirun()
        except MpiError as error:
            for item in items:
                self.results[item.nodeid] = [_report(item, "skipped", (str(item.path), 0, f"Skipped: {error}"))]
            return
        with tempfile.TemporaryDirectory(prefix="meshrt-test-") as directory:
            job = self.launch(mpirun, items, max(ranks_of(item) or 1 for item in items), Path(directory))
        done = [item for item in items if _complete(job.reports.get(item.nodeid, {}), ranks_of(item) or 1)]
        for item in done:
            self.results[item.nodeid] = _merge(job.reports[item.nodeid], ranks_of(item) or 1)
        if len(done) == len(items):
            return
        guilty = [item for item in items if item.nodeid in job.inside.values() and item not in done]
        if not guilty and not job.inside and not done:
            guilty = items  # the ranks did not even begin: it would be no different the next time
        for item in guilty or [item for item in items if item not in done][:1]:
            self.results[item.nodeid] = [_broken(item, ranks_of(item) or 1, job)]

    def launch(self, mpirun: local.Mpirun, items: list[pytest.Item], ranks: int, directory: Path) -> Job:
        tests = Path(__file__).parent
        path = os.pathsep.join(filter(None, [str(tests), str(tests.parent), os.environ.get("PYTHONPATH")]))
        sizes = ",".join(str(ranks_of(item) or 1) for item in items)
        env = local.local_environment(mpirun) | {REPORTS: str(directory), SIZES: sizes, "PYTHONPATH": path}
        argv = [*local.mpirun_argv(ranks, mpirun), sys.executable, "-m", "pytest", "-q", "-p", "mpi_plugin"]
        argv += ["--with-mpi", "-n", "0"]
        argv += ["-p", "no:cacheprovider", "--no-header", "--rootdir", str(self.config.rootpath)]
        argv += ["-o", f"mpi_timeout={self.config.getini('mpi_timeout')}"]
        argv += ["-c", str(self.config.inipath)] if self.config.inipath else []
        argv += ["-p", "tiers", "--all"] if self.config.getoption("--all", False) else []
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
                # A worker of xdist has ten seconds to end, and may be killed before it has ended the job.
                preexec_fn=lambda: host.end_with_parent(signal.SIGTERM),
            )
            try:
                end = self.wait(process, directory)
            finally:
                stop(process)
        return self.read(directory, ranks, end, output.read_text(errors="replace"))

    def wait(self, process: subprocess.Popen[bytes], directory: Path) -> str:
        """Wait for the end of the job, or of its progress; returns how it ended, empty if well."""
        timeout = time_limit(self.config)
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


def time_limit(config: pytest.Config) -> float:
    """Seconds that a test may go on without beginning or ending."""
    return float(config.getini("mpi_timeout")) * (WHOLE if config.getoption("--all", False) else 1.0)


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
