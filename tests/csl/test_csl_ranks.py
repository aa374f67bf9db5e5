"""Blocks of cores on several ranks come to the bytes that one has, in both engines."""

import ast
import json
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Lock, Thread
from typing import Any

import pytest

from meshrt.csl.errors import Deadlock
from meshrt.csl.host.direct import run
from meshrt.csl.machine import compiled
from meshrt.csl.machine.blocks import NEVER, WaferBlock, shape
from meshrt.csl.machine.state import WaferState
from tests.csl.test_csl_machine import END, ROUTES, WAVELETS
from tests.csl.test_csl_router import CHANGED, MIDDLE, PASS_ON
from tests.csl_programs import write
from tests.mpi_jobs import Finished, run_ranks

SHIFT = Path(__file__).parents[2] / "examples/csl/shift/layout.csl"
COUNTED = ["--params", "n:40,width:7", "--launch", "main", "--launch", "main", "--show", "total"]


class Together:
    """Ranks that are threads: what each gives, all get."""

    def __init__(self, size: int):
        self.size, self.barrier, self.given = size, Barrier(size, timeout=60), [None] * size

    def rank(self, number: int) -> "Rank":
        return Rank(self, number)


class Rank:
    def __init__(self, of: Together, rank: int):
        self.of, self.rank, self.size = of, rank, of.size

    def allgather(self, value: Any) -> list[Any]:
        self.of.given[self.rank] = value
        self.of.barrier.wait()
        values: list[Any] = list(self.of.given)
        self.of.barrier.wait()
        return values

    def alltoall(self, given: list[Any]) -> list[Any]:
        return [row[self.rank] for row in self.allgather(given)]


def on_ranks(
    ranks: int, layout: Path, parameters: str, show: str, seed: int | None = None, arch: str = "wse3",
    launches: tuple[str, ...] = ("main", "main"),
) -> list[Any]:  # fmt: skip
    """What each rank has in the end.

    Ranks are threads here, and Python 3.11 counts the depth of what is parsed for all threads together (SystemError,
    "AST constructor recursion depth mismatch"): one parses at a time.
    """
    parse, parsing = ast.parse, Lock()

    def parse_alone(*given: Any, **options: Any) -> Any:
        with parsing:
            return parse(*given, **options)

    together, results = Together(ranks), [None] * ranks

    def work(number: int) -> None:
        try:
            results[number] = run(layout, parameters, arch, launches, (show,), seed, together.rank(number))
        except BaseException as error:
            results[number] = error

    threads = [Thread(target=work, args=(number,)) for number in range(ranks)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ast, "parse", parse_alone)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results


@pytest.mark.parametrize("core", ["", "numpy"])
@pytest.mark.parametrize("ranks", [2, 3, 9])
def test_a_row_of_cores(ranks: int, core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 numbers to the next core, which are more than wait at one; at 9 ranks two have no core."""
    monkeypatch.setenv("MESHRT_CORE", core)
    alone = run(SHIFT, "n:40,width:7", "wse3", ("main", "main"), ("total",), None)
    assert on_ranks(ranks, SHIFT, "n:40,width:7", "total") == [alone] * ranks
    assert alone[0]["wavelets"] == alone[0]["hops"] == 2 * 6 * 40


def test_a_router_that_its_tile_changes(tmp_path: Path) -> None:
    """Without switches or teardown: a sender of another rank would not know of it, so one rank has all cores."""
    body = CHANGED.replace("CHANGE", PASS_ON)
    layout = write(tmp_path, body, MIDDLE.replace("FILTER", ""))
    alone = run(layout, "width:3", "wse3", ("main",), ("out",), None)
    assert alone[1]["out"]["1,0"] == alone[1]["out"]["2,0"] == [*range(1, 10)]
    assert on_ranks(3, layout, "width:3", "out", launches=("main",)) == [alone] * 3


@pytest.mark.parametrize("core", ["", "numpy"])
def test_two_that_answer_each_other(core: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent waits for room at a core of the other rank, and data start a task there."""
    monkeypatch.setenv("MESHRT_CORE", core)
    body = WAVELETS + 'var got_ptr: [*]u16 = &got; comptime { @export_symbol(got_ptr, "got"); }'
    layout = write(tmp_path, body + END, ROUTES)
    alone = run(layout, "width:2", "wse3", ("main", "main"), ("got",), None)
    assert on_ranks(2, layout, "width:2", "got") == [alone, alone]


def test_what_is_at_once_so_everywhere_is_one_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed draws from one row of random numbers: rank 0 has all cores, and meets nobody on the way."""
    monkeypatch.setattr(WaferBlock, "exchange", None)
    alone = run(SHIFT, "n:5,width:4", "wse3", ("main", "main"), ("total",), 3)
    assert on_ranks(2, SHIFT, "n:5,width:4", "total", 3) == [alone, alone]


def test_a_deadlock_is_told_as_on_one_rank(tmp_path: Path) -> None:
    """Core 1 takes the 40 numbers that come, and waits for 8 more."""
    last = "@fadds(dz, dz, @set_dsd_length(from, 32));"
    body = WAVELETS.replace(last, f"{last} @fadds(dy, from, dx);")
    assert body != WAVELETS
    layout = write(tmp_path, body + END, ROUTES)
    with pytest.raises(Deadlock) as alone:
        run(layout, "width:2", "wse3", ("main",), (), None)
    errors = on_ranks(2, layout, "width:2", "")
    assert [str(error) for error in errors] == [str(alone.value)] * 2
    assert "1 of 2 cores" in str(alone.value) and "core (1, 0)" in str(alone.value)


@pytest.mark.skipif(compiled._machine is None, reason="the machine was not built here")
def test_ranks_have_parts_and_speak(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rank has all cores, and wavelets cross the edge in messages: 40 words of each run, in pairs."""
    words = []
    exchange = WaferBlock.exchange

    def heard(self: WaferBlock, next_time: float, gives_up: int, said: Any) -> Any:
        words.append(sum(len(wavelets) for wavelets in said))
        return exchange(self, next_time, gives_up, said)

    monkeypatch.setattr(WaferBlock, "exchange", heard)
    on_ranks(2, SHIFT, "n:40,width:7", "total")
    assert sum(words) >= 2 * 4 * 40


class First:
    """Rank 0 of two, the other of which has nothing to say."""

    rank, size = 0, 2

    def allgather(self, value: Any) -> list[Any]:
        return [value, value]

    def alltoall(self, given: list[Any]) -> list[Any]:
        return [given[0], (NEVER, 0, b"")]


@pytest.mark.skipif(compiled._machine is None, reason="the machine was not built here")
def test_an_exception_on_the_way_ends_a_rank_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal's, or a library's: no rank is met with an exception under way, which Python forbids."""
    met = []
    exchange = WaferBlock.exchange

    def fails(self: WaferState, *_: int) -> bool:
        raise InterruptedError(str(len(met)))

    def meets(self: WaferBlock, *said: Any) -> Any:
        met.append(said)
        return exchange(self, *said)

    monkeypatch.setattr(WaferState, "native", fails)
    monkeypatch.setattr(WaferBlock, "exchange", meets)
    body = 'const math = @import_module("<math>"); var a: f32 = 2.0;\n'
    body += "fn main() void { a = math.sqrt_f32(a); sys.unblock_cmd_stream(); }"
    with pytest.raises(InterruptedError) as caught:
        run(write(tmp_path, body + END), "width:1", "wse3", ("main",), (), None, First())
    assert str(caught.value) == str(len(met))


@pytest.mark.parametrize(("size", "ranks", "blocks"), [((8, 8), 4, (2, 2)), ((7, 1), 3, (3, 1)), ((2, 100), 4, (1, 4))])
def test_blocks_have_few_links_between_them(size: tuple[int, int], ranks: int, blocks: tuple[int, int]) -> None:
    assert shape(size, ranks) == blocks


def test_the_command(tmp_path: Path, run_meshrt: Callable[..., Finished]) -> None:
    files = []
    for ranks in (1, 2):
        files.append(tmp_path / f"{ranks}.json")
        argv = ["csl", "run", str(SHIFT), *COUNTED, "--json", str(files[-1]), "--quiet"]
        ended = run_meshrt(*argv, ranks=ranks)
        assert ended.code == 0, ended.stderr
    assert files[0].read_bytes() == files[1].read_bytes()
    assert json.loads(files[0].read_text())["mesh"] == [7, 1]


@pytest.mark.parametrize("core", ["", pytest.param("numpy", marks=pytest.mark.all)])
def test_a_rank_that_fails_ends_all(core: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Core 1 writes out of its memory, while core 0 waits for it: one message, of the rank and the core."""
    monkeypatch.setenv("MESHRT_CORE", core)
    body = WAVELETS.replace("for (@range(i16, column * 40)) |i| { y[0] += 0.5; }", "far[@as(u16, 30000)] = 1;")
    body = body.replace("var times: i16 = 0;", "var times: i16 = 0; var far: [*]u16 = &got;")
    layout = write(tmp_path, body + END, ROUTES)
    argv = ["csl", "run", str(layout), "--params", "width:2", "--launch", "main"]
    ended = run_ranks([sys.executable, "-m", "meshrt.cli", *argv], 2)
    assert ended.code == 3, ended.stderr
    assert "error on rank 1 of 2" in ended.stderr and "core (1, 0): an access leads out" in ended.stderr
    assert "Traceback" not in ended.stderr
