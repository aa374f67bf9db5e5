"""Blocks of cores on several ranks come to the bytes that one has, in both engines."""

import json
import sys
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from meshrt.csl import compiled
from meshrt.csl.blocks import Block, shape
from meshrt.csl.direct import run
from meshrt.csl.errors import Deadlock
from tests.csl.test_csl_machine import END, ROUTES, WAVELETS
from tests.csl_programs import write
from tests.mpi_jobs import run_ranks

SHIFT = Path(__file__).parents[2] / "examples/csl/shift/layout.csl"
COUNTED = ["--params", "n:40,width:7", "--launch", "main", "--launch", "main", "--show", "total"]


class Together:
    """Ranks that are threads: what each gives, all get."""

    def __init__(self, size: int):
        self.size, self.barrier, self.given = size, Barrier(size, timeout=20), [None] * size

    def rank(self, number: int) -> "Rank":
        return Rank(self, number)


class Rank:
    def __init__(self, of: Together, rank: int):
        self.of, self.rank, self.size = of, rank, of.size

    def allgather(self, one: Any) -> list[Any]:
        self.of.given[self.rank] = one
        self.of.barrier.wait()
        found: list[Any] = list(self.of.given)
        self.of.barrier.wait()
        return found

    def alltoall(self, given: list[Any]) -> list[Any]:
        return [one[self.rank] for one in self.allgather(given)]


def on_ranks(ranks: int, layout: Path, parameters: str, show: str, seed: int | None = None) -> list[Any]:
    """What each rank has in the end."""
    together, found = Together(ranks), [None] * ranks

    def work(number: int) -> None:
        try:
            found[number] = run(layout, parameters, "wse3", ("main", "main"), (show,), seed, together.rank(number))
        except BaseException as error:
            found[number] = error

    threads = [Thread(target=work, args=(number,)) for number in range(ranks)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return found


@pytest.mark.parametrize("core", ["", "numpy"])
@pytest.mark.parametrize("ranks", [2, 3, 9])
def test_a_row_of_cores(ranks: int, core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 numbers to the next core, which are more than wait at one; at 9 ranks two have no core."""
    monkeypatch.setenv("MESHRT_CORE", core)
    alone = run(SHIFT, "n:40,width:7", "wse3", ("main", "main"), ("total",), None)
    assert on_ranks(ranks, SHIFT, "n:40,width:7", "total") == [alone] * ranks
    assert alone[0]["wavelets"] == alone[0]["hops"] == 2 * 6 * 40


@pytest.mark.parametrize("core", ["", "numpy"])
def test_two_that_answer_each_other(core: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent waits for room at a core of the other rank, and data start a task there."""
    monkeypatch.setenv("MESHRT_CORE", core)
    body = WAVELETS + 'var got_ptr: [*]u16 = &got; comptime { @export_symbol(got_ptr, "got"); }'
    layout = write(tmp_path, body + END, ROUTES)
    alone = run(layout, "width:2", "wse3", ("main", "main"), ("got",), None)
    assert on_ranks(2, layout, "width:2", "got") == [alone, alone]


def test_what_is_at_once_so_everywhere_is_one_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed draws from one row of random numbers."""
    alone = run(SHIFT, "n:5,width:4", "wse3", ("main", "main"), ("total",), 3)
    assert on_ranks(2, SHIFT, "n:5,width:4", "total", 3) == [alone, alone]


def test_a_deadlock_is_told_as_on_one_rank(tmp_path: Path) -> None:
    """Core 1 takes the 40 numbers that come, and waits for 40 more."""
    body = WAVELETS.replace("@fadds(dy, from, dx);", "@fadds(dy, from, dx); @fadds(dy, from, dx);")
    layout = write(tmp_path, body + END, ROUTES)
    with pytest.raises(Deadlock) as alone:
        run(layout, "width:2", "wse3", ("main",), (), None)
    told = on_ranks(2, layout, "width:2", "")
    assert [str(one) for one in told] == [str(alone.value)] * 2
    assert "1 of 2 cores" in str(alone.value) and "core (1, 0)" in str(alone.value)


@pytest.mark.skipif(compiled._machine is None, reason="the machine was not built here")
def test_ranks_have_parts_and_speak(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rank has all cores, and wavelets cross the edge in messages: 40 words of each run, in pairs."""
    words = []
    exchange = Block.exchange

    def heard(self: Block, next_time: float, gives_up: int, said: Any) -> Any:
        words.append(sum(len(one) for one in said))
        return exchange(self, next_time, gives_up, said)

    monkeypatch.setattr(Block, "exchange", heard)
    on_ranks(2, SHIFT, "n:40,width:7", "total")
    assert sum(words) >= 2 * 4 * 40


@pytest.mark.parametrize(("size", "ranks", "blocks"), [((8, 8), 4, (2, 2)), ((7, 1), 3, (3, 1)), ((2, 100), 4, (1, 4))])
def test_blocks_have_few_links_between_them(size: tuple[int, int], ranks: int, blocks: tuple[int, int]) -> None:
    assert shape(size, ranks) == blocks


def test_the_command(tmp_path: Path) -> None:
    files = []
    for ranks in (1, 2):
        files.append(tmp_path / f"{ranks}.json")
        argv = ["csl", "run", str(SHIFT), *COUNTED, "--json", str(files[-1]), "--quiet"]
        ended = run_ranks([sys.executable, "-m", "meshrt.cli", *argv], ranks)
        assert ended.code == 0, ended.stderr
    assert files[0].read_bytes() == files[1].read_bytes()
    assert json.loads(files[0].read_text())["mesh"] == [7, 1]
