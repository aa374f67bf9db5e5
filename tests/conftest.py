"""Fixtures for all tests: ranks in the test itself (mpi_plugin.py), and `meshrt` run as a user runs it."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from forks import DOOR, Forks, forks
from mpi_jobs import Finished, child_environment, run_ranks

from meshrt.ranks.host import prepare_environment

prepare_environment()  # as in a run; of the above nothing imports numpy or mpi4py, which read it

pytest_plugins = ["bytecode", "mpi_plugin", "tiers", "workers"]

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # as mallopt(3) has them
GARBAGE = 20_000  # new objects after which it is looked for; Python's own is 700


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Of hypothesis and of memory. Before tiers.py, which asks for fewer examples, and behind bytecode.py: where Python
    writes no bytecode, importing hypothesis takes pytest three seconds, as it looks for assertions in all of it.
    """
    draw_alike()
    keep_memory()


def draw_alike() -> None:
    """All ranks of a test have to draw the same examples, so nothing may depend on what lines a rank went through; and
    time per example says nothing on a busy machine.
    """
    import hypothesis

    alike = [phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain]
    hypothesis.settings.register_profile("meshrt", derandomize=True, deadline=None, database=None, phases=alike)
    hypothesis.settings.load_profile("meshrt")

    # Nor on which modules a process has imported: hypothesis parses all of them, for seconds of each process that
    # draws, and now and then draws a number that is written in one. It has no setting for that; where its name for it
    # is another, the tests take longer.
    with suppress(ImportError, AttributeError):
        from hypothesis.internal.conjecture import providers

        constants = providers.Constants()
        providers._get_local_constants = lambda: constants


def keep_memory() -> None:
    """Memory that was freed stays with this process: most of its time in the system would be for new pages, which
    arrays of some hundred KiB get and give back, again and again. Of glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, 32 << 20)
        mallopt(TRIM_THRESHOLD, 256 << 20)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays: looking through thousands of tests for garbage, again and again, takes half the time.
    Nor is it looked for as often while they run, which takes a twelfth of theirs."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(GARBAGE)
        gc.enable()


@pytest.fixture(autouse=True)
def blocks_are_closed() -> Iterator[None]:
    """A test need not close its blocks."""
    yield
    from runs import close_blocks

    close_blocks()


def has_forks(config: pytest.Config) -> bool:
    """Not with --all: processes start from nothing there, as a user's do; nor elsewhere than on Linux."""
    return sys.platform == "linux" and not config.getoption("--all")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """All workers have one process that forks. It imports with the first fork."""
    if has_forks(config):
        stack = ExitStack()
        os.environ[DOOR] = stack.enter_context(forks()).door
        config.add_cleanup(stack.close)


@pytest.fixture(scope="session")
def forked(request: pytest.FixtureRequest) -> Iterator[Forks | None]:
    """What runs `meshrt`, if forks do."""
    if not has_forks(request.config):
        yield None
    elif DOOR in os.environ:
        yield Forks(os.environ[DOOR])
    else:
        with forks() as server:
            yield server


@pytest.fixture
def run_meshrt(forked: Forks | None) -> Callable[..., Finished]:
    """`run_meshrt(*args, ranks=1, env=None, timeout=60)` runs `meshrt ARGS`: (code, stdout, stderr, seconds)."""

    def run(*args: str, ranks: int = 1, env: Mapping[str, str] | None = None, timeout: float = 60) -> Finished:
        more = {**(env or {})}
        if forked is not None and all(name.startswith(("MESHRT_", "XDG_")) for name in more):
            if ranks > 1:
                return forked.run_ranks(args, ranks, more, timeout)
            return forked.run(args, child_environment() | more, timeout)  # what is read at imports is as it was
        return run_ranks([sys.executable, "-m", "meshrt.cli", *args], ranks, env, timeout)

    return run


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., Finished]:
    """`run_script(source, *args, ranks=1, env=None, timeout=60)`: the same for a Python script of the test's own."""

    def run(
        source: str, *args: str, ranks: int = 1, env: Mapping[str, str] | None = None, timeout: float = 60
    ) -> Finished:
        script = tmp_path / "script.py"
        script.write_text(source)
        return run_ranks([sys.executable, str(script), *args], ranks, env, timeout)

    return run
