"""Fuzzing: bad input gets no more than a message, and what would be found is found."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pytest

from meshrt.commands import run as fuzzed_run
from meshrt.errors import UsageError
from meshrt.launch.local import without_launcher
from meshrt.models.catalogue import find_model
from meshrt.ranks.console import Console
from meshrt.studies.fuzz import fuzz, worker
from meshrt.studies.fuzz.lines import run_a_command
from meshrt.studies.fuzz.models import FuzzCase, use_a_prompt
from meshrt.studies.fuzz.mutate import mutated_bytes, mutated_json

Run = Callable[..., Any]


@dataclass(eq=False)
class Enough(Console):
    """Has had enough after so many inputs, however long that takes."""

    inputs: int = 0

    def progress(self, text: str, done: int, total: int) -> None:
        if done >= self.inputs:
            raise KeyboardInterrupt


def environment() -> dict[str, str]:
    return without_launcher(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[2])}


def rows(printed: str) -> dict[str, list[str]]:
    """Inputs, inputs a second and findings, by kind."""
    return {line.split()[0]: line.replace(",", "").split()[1:] for line in printed.splitlines()[1:]}


def test_a_short_run_tries_all_kinds_and_finds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, inputs = tmp_path / "found", 40 * len(fuzz.KINDS)
    tally = fuzz.fuzz(300, 1, fuzz.KINDS, out, Enough(inputs=inputs), environment())
    assert not out.exists(), [path.read_text() for path in out.glob("*/trace.txt")]
    fuzz.print_tally(tally)
    counts = rows(capsys.readouterr().out)
    assert set(counts) == {*fuzz.KINDS, "all"} and int(counts["all"][0]) >= inputs
    assert all(int(row[0]) >= 40 and row[2] == "0" for row in counts.values())


def test_the_command_ends_in_time_with_a_row_for_each_kind(run_meshrt: Run, tmp_path: Path) -> None:
    """How many inputs it comes to depends on the machine."""
    finished = run_meshrt("fuzz", "--seconds", "1", "--only", "config,cli", "--out", str(tmp_path / "found"))
    assert finished.code == 0 and set(rows(finished.stdout)) == {"config", "cli", "all"}, finished
    assert all(row[2] == "0" for row in rows(finished.stdout).values())


@pytest.mark.parametrize("on", [("lowrank",), ("llama", "--on", "arm")], ids=" ".join)
def test_a_table_on_standard_error_is_no_fault_where_the_text_alone_is_asked_for(on: tuple[str, ...], tmp_path: Path):
    arguments = ("run", *on, "--model", "llama-tiny", "--prompt", "The", "--max-new-tokens", "2")
    run_a_command(tmp_path, (*arguments, "--text"))
    run_a_command(tmp_path, arguments)
    with (
        pytest.raises(AssertionError, match="a run that went well says"),
        mock.patch.object(fuzzed_run, "execute", lambda *_, **__: print("meshrt: warning", file=sys.stderr) or 0),
    ):
        run_a_command(tmp_path, arguments)


# Every way in which an input can be more than a message; the last kind is a good one.
BAD = """
import os, time
from meshrt.studies.fuzz import worker
from meshrt.studies.fuzz.models import FuzzCase

worker.PATIENCE = 1.0

def make(rng):
    return FuzzCase({"file": b"x"}, arguments=("a",))

def raises(folder, arguments): raise KeyError((folder / "file").read_text())
def hangs(folder, arguments): time.sleep(1000)
def grows(folder, arguments): bytearray(worker.BOUND)
def dies(folder, arguments): os.kill(os.getpid(), 11)
def fine(folder, arguments): pass

worker.main({name: (make, what) for name, what in zip(%r, (raises, hangs, grows, dies, *[fine] * 6))})
"""


def test_what_would_be_found_is_found_once_with_its_input(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(BAD % (fuzz.KINDS,))
    inputs = len(fuzz.KINDS) + 4  # each of the first four kinds has been tried twice
    console = Enough(inputs=inputs)
    tally = fuzz.fuzz(60, 7, fuzz.KINDS, tmp_path / "found", console, environment(), (sys.executable, str(script)))
    raises, hangs, grows, dies, *fine = fuzz.KINDS
    assert not any(tally.found[kind] for kind in fine) and all(
        tally.found[kind] >= 2 for kind in (raises, hangs, grows, dies)
    ), tally
    folders = {path.name.partition("-")[0]: path for path in tally.kept.values()}
    assert len(tally.kept) == 4 and set(folders) == {raises, hangs, grows, dies}, "each once"
    for kind, word in ((raises, "KeyError: 'x'"), (hangs, "Timeout"), (grows, "MemoryError"), (dies, "Segmentation")):
        assert word in (folders[kind] / "trace.txt").read_text()
        case = json.loads((folders[kind] / "case.json").read_text())
        assert (case["kind"], case["seed"], case["arguments"]) == (kind, 7, ["a"])
        assert (folders[kind] / "input" / "file").read_bytes() == b"x"


def test_an_input_is_watched_and_not_what_is_imported_to_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[bool] = [False]
    monkeypatch.setattr(worker, "BATCH", 3)
    monkeypatch.setattr(worker, "limit_memory", lambda: None)
    watch = mock.Mock()
    watch.dump_traceback_later.side_effect = lambda *_, **__: watched.append(True)
    watch.cancel_dump_traceback_later.side_effect = lambda: watched.append(False)
    monkeypatch.setattr(worker, "faulthandler", watch)
    seen: list[tuple[str, bool]] = []

    def make(rng: Random) -> FuzzCase:
        seen.append(("made", watched[-1]))
        return FuzzCase({})

    worker.work(tmp_path, 1, 0, ["it"], {"it": (make, lambda *_: seen.append(("tried", watched[-1])))})
    assert seen == [("made", False), ("tried", True)] * 3 and not watched[-1]


def test_the_same_seed_gives_the_same_inputs() -> None:
    data = {"a": [1, {"b": 2.5}], "c": "text", "d": None}
    first, again = ([mutated_json(Random(seed), data) for seed in range(300)] for _ in range(2))
    assert first == again and len(set(first)) > 150
    assert data == {"a": [1, {"b": 2.5}], "c": "text", "d": None}, "what is changed is a copy"


def test_some_mutated_json_is_still_json_and_some_is_none() -> None:
    data = {"a": [1, {"b": 2.5}], "c": "text"}
    sound = 0
    for seed in range(300):
        try:
            json.loads(mutated_json(Random(seed), data))
            sound += 1
        except (ValueError, RecursionError):
            pass
    assert 100 < sound < 299


def test_mutated_bytes_of_nothing_and_of_something() -> None:
    assert all(isinstance(mutated_bytes(Random(seed), b""), bytes) for seed in range(100))
    assert sum(mutated_bytes(Random(seed), b"0123456789") != b"0123456789" for seed in range(100)) > 80


def test_kinds_are_named() -> None:
    assert fuzz.parse_kinds(None) == fuzz.KINDS and fuzz.parse_kinds("cli,config") == ("cli", "config")
    with pytest.raises(UsageError, match="loaders"):
        fuzz.parse_kinds("cli,nothing")


@pytest.mark.parametrize("tokens", ["-1", "0", "1000000000000"])
def test_a_prompt_of_a_length_that_cannot_be_is_refused_where_it_is_made(tokens: str) -> None:
    """Not by the command line alone: others call it, too."""
    use_a_prompt(find_model("llama-tiny"), (None, None, tokens))
