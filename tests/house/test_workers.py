"""How tests are shared out to workers, also when one of them ends in the middle of a test; and their bytecode."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bytecode
import pytest
from workers import ByScope, pytest_collection

SIZES = {"a": 3, "b": 1, "c": 2, "d": 1, "e": 4}  # tests of each file
TESTS = [f"tests/{name}.py::test_{at}" for name, size in SIZES.items() for at in range(size)]


class Worker:
    """As pytest-xdist's: it begins a test when it knows the next one, or that it is to end."""

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.shutting_down = False
        self.given: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    def next(self) -> int | None:
        return self.given.pop(0) if len(self.given) > 1 or (self.given and self.shutting_down) else None


def joined(scheduler: ByScope, number: int) -> Worker:
    worker: Any = Worker(number)
    scheduler.add_node(worker)
    scheduler.add_node_collection(worker, TESTS)
    return worker


@pytest.mark.parametrize("fatal", ["", *TESTS])
def test_a_worker_that_ends_in_a_test_takes_no_other_test_with_it(fatal: str) -> None:
    """All tests are begun, each once, and nobody is left waiting, whichever test it is that ends its worker, if one
    does."""
    option = SimpleNamespace(loadscopereorder=False, tx=["popen"] * 2, numprocesses=2, maxprocesses=None)
    config: Any = SimpleNamespace(option=option, getvalue=lambda name: getattr(option, name))
    scheduler, numbers, begun = ByScope(config, None), itertools.count(), []
    workers = [joined(scheduler, next(numbers)) for _ in range(2)]
    scheduler.schedule()
    while any(ready := [(worker, at) for worker in workers if (at := worker.next()) is not None]):
        for ready_worker, at in ready:
            worker: Any = ready_worker
            begun.append(TESTS[at])
            if TESTS[at] == fatal:
                workers.remove(worker)
                assert scheduler.remove_node(worker) == fatal
                workers.append(joined(scheduler, next(numbers)))  # as xdist does
                scheduler.schedule()
            else:
                scheduler.mark_test_complete(worker, at)
    assert sorted(begun) == sorted(TESTS)
    assert not scheduler.has_pending and scheduler.tests_finished


def test_of_two_new_workers_the_first_need_not_wait_for_the_other() -> None:
    """Two workers have ended at once; of those in their place one has collected before the other."""
    option = SimpleNamespace(loadscopereorder=False, tx=["popen"] * 2, numprocesses=2, maxprocesses=None)
    config: Any = SimpleNamespace(option=option, getvalue=lambda name: getattr(option, name))
    scheduler = ByScope(config, None)
    old = [joined(scheduler, number) for number in range(2)]
    scheduler.schedule()
    slow: Any = Worker(2)
    for worker in old:
        scheduler.remove_node(worker)
    scheduler.add_node(slow)
    quick = joined(scheduler, 3)
    scheduler.schedule()
    assert quick.given and not slow.given
    scheduler.add_node_collection(slow, TESTS)
    scheduler.schedule()
    assert slow.given


def test_each_file_is_rewritten_by_one_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before they collect, workers import the files of the folders that they were given, each file one of them."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    names = {f"test_share_{at}" for at in range(5)}
    for name in names:
        (tmp_path / f"{name}.py").write_text("raise ValueError" if name.endswith("4") else "")  # told when collected
    imported: list[set[str]] = []
    for worker in range(2):
        config = SimpleNamespace(workerinput={"workerid": f"gw{worker}", "workercount": 2}, args=[str(tmp_path)])
        session: Any = SimpleNamespace(config=config)
        pytest_collection(session)
        imported.append({name for name in names if sys.modules.pop(name, None)})
    assert imported == [{"test_share_0", "test_share_2"}, {"test_share_1", "test_share_3"}]


def test_bytecode_is_kept_for_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pytest's cache, where there is one; else for this run."""
    linked: list[Path] = []

    def link_all(packages: str, folder: Path) -> None:
        linked.append(folder / "a.pyc")
        linked[-1].touch()

    monkeypatch.setattr(bytecode, "link_all", link_all)
    cleanups: list[Any] = []
    config: Any = SimpleNamespace(
        rootpath=tmp_path, getini={"cache_dir": ".kept"}.__getitem__, add_cleanup=cleanups.append
    )
    folder = bytecode.bytecode_folder(config)
    assert folder.is_relative_to(tmp_path / ".kept") and linked
    linked.clear()
    assert bytecode.bytecode_folder(config) == folder
    assert not linked and not cleanups

    def no_setting(name: str) -> str:
        raise ValueError(name)

    alone: Any = SimpleNamespace(rootpath=tmp_path, getini=no_setting, add_cleanup=cleanups.append)
    folder = bytecode.bytecode_folder(alone)
    (remove,) = cleanups
    remove()
    assert not folder.exists()
