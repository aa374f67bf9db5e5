"""Bytecode for as long as the tests run, for those who have Python write none (PYTHONDONTWRITEBYTECODE).

The tests start hundreds of processes, each of which would compile what it imports. What they write is in a folder of
its own, so that nothing is left beside the sources.
"""

from __future__ import annotations

import os
import sys
from tempfile import TemporaryDirectory

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Of the first process: all others, of xdist too, begin with its environment."""
    if sys.dont_write_bytecode:
        folder = TemporaryDirectory(prefix="meshrt-test-")
        config.add_cleanup(folder.cleanup)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = folder.name
        sys.dont_write_bytecode = False
