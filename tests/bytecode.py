"""Bytecode in pytest's cache, for those who have Python write none (PYTHONDONTWRITEBYTECODE).

The tests start hundreds of processes, each of which would compile what it imports. What they write is in a folder of
its own, so that nothing is left beside the sources. Python then looks nowhere else: the folder begins with links to the
bytecode that came with what is installed.
"""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path
from sysconfig import get_path
from tempfile import TemporaryDirectory

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Of the first process: all others, of xdist too, begin with its environment."""
    if sys.dont_write_bytecode:
        folder = bytecode_folder(config)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(folder)
        sys.dont_write_bytecode = False


def bytecode_folder(config: pytest.Config) -> Path:
    """That of the last run, or a new one; for this run alone where pytest keeps no cache. `config.cache` is not there
    yet."""
    try:
        folder = config.rootpath / config.getini("cache_dir") / "d" / "bytecode"
        folder.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError):  # without the plugin that keeps a cache there is no such setting
        temporary = TemporaryDirectory(prefix="meshrt-test-")
        config.add_cleanup(temporary.cleanup)
        folder = Path(temporary.name)
    if not any(folder.iterdir()):
        for packages in (get_path("stdlib"), *site.getsitepackages()):
            link_all(packages, folder)
    return folder


def link_all(packages: str, folder: Path) -> None:
    """Links in `folder`, as a prefix of bytecode, to that in the __pycache__ of all folders below `packages`."""
    for path, folders, names in os.walk(packages):
        folders[:] = [name for name in folders if name not in ("site-packages", "test", "tests")]
        if path.endswith("__pycache__"):
            target = Path(f"{folder}{os.path.dirname(path)}")
            target.mkdir(parents=True, exist_ok=True)
            for name in names:
                if name.endswith(f"{sys.implementation.cache_tag}.pyc") and not (target / name).is_symlink():
                    (target / name).symlink_to(Path(path, name))
