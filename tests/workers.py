"""How plain `pytest` shares out its tests: processes of pytest-xdist, of which one takes all tests of several ranks.

A file is for one worker, so that what its tests share is made once. What takes long or waits for long begins first, so
that no worker ends with it alone.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from mpi_plugin import on_ranks
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from meshrt.ranks import launcher

WORKERS = 4  # more have nothing to do: the jobs of several ranks come one after the other
# Files that wait, for watchdogs, launchers and faults, among those that compute for longest, so that no core is without
# work; then folders whose tests start processes.
FIRST = (
    "jobs", "ranks/test_faults", "cli/test_cli_errors", "cli/test_settings", "house/test_mpi_plugin",
    "studies/test_tune", "launch/test_launch_restarts", "models/test_compress", "ranks/test_failure",
    "programs/test_regions", "ranks/test_orphans", "models/test_quantize", "studies/test_fuzz",
    "programs/test_own_program", "ranks/test_beats", "programs/test_decomposed", "programs/test_quantized_mesh",
    "programs/test_mesh_experts", "studies/test_milo", "gpu/test_lowrank", "mesh/wires/test_tampering",
    "programs/test_checkpoint_machines", "gpu/test_experts", "house/test_examples", "launch/", "ranks/",
    "csl/test_csl_ranks", "cli/", "house/", "mesh/collectives/test_allreduce",
)  # fmt: skip


def given_out_with(nodeid: str) -> str:
    """What is given out together: the jobs of several ranks, of which only one runs at a time, then each file."""
    ranks = re.search(r"[\[-]ranks=(\d+)", nodeid)
    return "jobs" if ranks is not None and int(ranks[1]) > 1 else nodeid.split("::")[0]


def turn(item: pytest.Item) -> int:
    """Where in FIRST a test is, or behind all."""
    scope = given_out_with(item.nodeid).removeprefix("tests/")
    return next((at for at, name in enumerate(FIRST) if scope.startswith(name)), len(FIRST))


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Each worker begins with a share of the files, so that pytest rewrites the assertions of each once, not in all
    workers at the same time. What is wrong with a file is told when it is collected."""
    given = getattr(session.config, "workerinput", None)
    if given is None:
        return
    number, count = int(given["workerid"].removeprefix("gw")), given["workercount"]
    folders = [path for path in map(Path, session.config.args) if path.is_dir()]
    for path in sorted(path for folder in folders for path in folder.rglob("test_*.py"))[number::count]:
        sys.path.insert(0, str(path.parent.absolute()))  # as pytest does
        with suppress(Exception, pytest.skip.Exception):
            import_module(path.stem)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=turn)


class ByScope(LoadScopeScheduling):
    """In the order of the tests; and what a worker that ended in the middle of a test leaves is for the others."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return given_out_with(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """The test in which it ended, if it did. xdist's own would begin that again, in worker after worker."""
        units = self.assigned_work.pop(node)
        left = [(unit, nodeid) for unit in units.values() for nodeid, done in unit.items() if not done]
        if not left:
            return None
        (unit, nodeid), *_ = left
        unit[nodeid] = True
        again = {scope: unit for scope, unit in units.items() if not all(unit.values())}
        self.workqueue = OrderedDict(again | self.workqueue)
        for other in [worker for worker in self.nodes if worker in self.registered_collections]:
            self._reschedule(other)
        return nodeid

    def _reschedule(self, node: WorkerController) -> None:
        """A worker begins no test before it knows the next, or that there is none. One that still collects has no part
        yet: xdist asks for all when the first of several new ones has collected."""
        if node not in self.registered_collections:
            return
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByScope | None:
    return ByScope(config, log) if config.getoption("dist") == "load" else None


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """None for a rank or a named test. Two more than there are cores: for half of the time as many files wait."""
    if on_ranks(config):
        return 0
    named = any("::" in argument for argument in config.args)
    return 0 if named or launcher.cores() == 1 else min(WORKERS, launcher.cores() + 2)
