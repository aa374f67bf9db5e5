"""How plain `pytest` shares out its tests: processes of pytest-xdist, of which one takes all tests of several ranks.

A file is for one worker, so that what its tests share is made once.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from meshrt.ranks import host

WORKERS = 4  # more have nothing to do: the jobs of several ranks come one after the other


class ByFile(LoadScopeScheduling):
    """What is given out together: the jobs of several ranks, of which only one runs at a time, then each file."""

    def _split_scope(self, nodeid: str) -> str:
        ranks = re.search(r"[\[-]ranks=(\d+)", nodeid)
        return "jobs" if ranks is not None and int(ranks[1]) > 1 else nodeid.split("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile | None:
    return ByFile(config, log) if config.getoption("dist") == "load" else None


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """None for a test that is named. One more than there are cores: now and then a test waits, for a watchdog."""
    named = any("::" in argument for argument in config.args)
    return 0 if named or host.cores() == 1 else min(WORKERS, host.cores() + 1)
