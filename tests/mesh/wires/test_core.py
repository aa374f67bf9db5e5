"""The compiled core against NumPy, which is the definition: the same bits, whatever is asked of either."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import tracemalloc
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from compiled import compiled
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi_jobs import Finished
from runs import new_block

from meshrt import sources
from meshrt.errors import UsageError
from meshrt.mesh import products
from meshrt.mesh.wires import core, delivery, fabric, order, receiving, routes, software, tables
from meshrt.mesh.wires import lines as lines_of
from meshrt.mesh.wires.inplace import ROOM, in_order
from meshrt.mesh.wires.schedule import PayloadMove
from meshrt.ranks.alone import Alone

CORES = ("numpy", "compiled")
BOTH_WAYS = 4  # transfers of many bytes, of which the first two go by the caches, the others past them
COMPILERS = ("cc", "gcc", "clang")
LLAMA = "llama-tiny --prompt-ids 1,2,3,4 --max-new-tokens 2 --mesh"
RUNS = [
    "gemm --mesh 12x12 --m 40 --k 30 --n 50",
    "gemm --mesh 6x4 --m 25 --k 37 --n 11 --algorithm cannon",
    "gemm --mesh 8x8 --m 16 --k 16 --n 16 --algorithm summa --segment 1",
    "gemm --mesh 8x8 --m 30 --k 17 --n 23 --algorithm allgather --dtype bfloat16",
    "gemm --mesh 8x8 --m 16 --k 16 --n 16 --transpose-b --reduce ktree",
    "gemm --mesh 40x40 --m 80 --k 80 --n 80 --payload none",
    "gemv --mesh 4x12 --k 60 --n 33 --phases 3",
    "kvcache --mesh 4x8 --tokens 13",
    "shift --mesh 12x4 --axis both --tile 2 --multiply",
    "allreduce --mesh 16x4 --size 9 --algorithm pipeline",
    f"{LLAMA} 8x8",
    f"{LLAMA} 8x8 --system t10",
    f"{LLAMA} 4x8 --kv concat --device ideal",
]


def report_of(run_meshrt: Callable[..., Finished], run: str, ranks: int, name: str, path: Path) -> dict[str, Any]:
    ended = run_meshrt("run", *run.split(), "--quiet", "--json", str(path), ranks=ranks, env={"MESHRT_CORE": name})
    assert ended.code == 0, ended.stderr
    report: dict[str, Any] = json.loads(path.read_text())
    del report["host"]
    return report


def test_the_core_is_there_where_a_compiler_is() -> None:
    """Else tests of it would be left out for another reason than they give."""
    assert core.built is not None or not any(map(shutil.which, COMPILERS))


@pytest.mark.sample(6)
@compiled
@pytest.mark.parametrize("run", RUNS)
def test_reports_are_equal(run_meshrt: Callable[..., Finished], tmp_path: Path, run: str) -> None:
    by_numpy, by_core = (report_of(run_meshrt, run, 1, name, tmp_path / name) for name in CORES)
    assert json.dumps(by_numpy) == json.dumps(by_core)


@compiled
@pytest.mark.all
@pytest.mark.parametrize("run", RUNS)
def test_reports_are_equal_on_four_ranks(run_meshrt: Callable[..., Finished], tmp_path: Path, run: str) -> None:
    by_numpy, by_core = (report_of(run_meshrt, run, 4, name, tmp_path / name) for name in CORES)
    assert json.dumps(by_numpy) == json.dumps(by_core)


cycles = st.integers(0, 40).map(lambda quarters: quarters / 4)
links = st.lists(st.tuples(cycles, cycles, cycles, cycles), min_size=1, max_size=24)


def links_as(rows: list[tuple[float, ...]], layout: str) -> list[np.ndarray]:
    """(times, free, asked_at, idle) of links as they can be: idle until they were asked for, free later than that."""
    ask, asked_at, idle_for, busy_for = np.array(rows).T
    arrays = []
    for numbers in (ask, asked_at + busy_for, asked_at, asked_at - idle_for):
        if layout == "line":
            arrays.append(numbers.copy())
        else:  # every other column, and lines that lie side by side
            wide = np.zeros((len(numbers), 6)) if layout == "columns" else np.zeros((6, len(numbers))).T
            wide[:, ::2] = numbers[:, None] + np.arange(3)
            arrays.append(wide[:, ::2])
    return arrays


@compiled
@given(links, cycles, st.sampled_from(["line", "columns", "rows"]))
def test_links_are_given_out_alike(rows: list[tuple[float, ...]], busy: float, layout: str) -> None:
    states = []
    for name in CORES:
        counters = SimpleNamespace(out_of_order=0, longest_wait=0.0)
        block: Any = SimpleNamespace(core=core.chosen({"MESHRT_CORE": name}), counters=counters)
        times, free, asked_at, idle = links_as(rows, layout)
        order.give(block, times, busy, free, asked_at, idle)
        states.append([array.tobytes() for array in (times, free, asked_at, idle)] + [vars(counters)])
    assert states[0] == states[1]


@compiled
@given(st.tuples(*[st.integers(1, 6)] * 3), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 2**32 - 1))
def test_products_are_those_of_blas(
    sizes: tuple[int, int, int], a_turned: bool, b_turned: bool, adds: bool, seed: int
) -> None:
    (m, k, n), random = sizes, np.random.default_rng(seed)

    def tiles(rows: int, columns: int, turned: bool) -> np.ndarray:
        shape = (2, 3, 2, columns, rows) if turned else (2, 3, 2, rows, columns)
        numbers = random.standard_normal(shape).astype(np.float32) * random.choice([0, 1, 1e-3, 1e3], shape)
        numbers = numbers.astype(np.float32)
        return numbers.swapaxes(-1, -2) if turned else numbers

    a, b, total = tiles(m, k, a_turned), tiles(k, n, b_turned), tiles(m, n, False)
    products_of_cores = [
        products.product(core.chosen({"MESHRT_CORE": name}), a, b, total.copy() if adds else None).tobytes()
        for name in CORES
    ]
    assert products_of_cores[0] == products_of_cores[1]


@compiled
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("side", range(1, 7))
def test_square_tiles_of_any_layout_multiply_as_blas_does(side: int, gaps: bool) -> None:
    """Sums of square tiles have loops of their own; tiles of a row, or all of a block, may lie side by side or not."""
    random = np.random.default_rng(side)
    a, b, total = random.standard_normal((3, 4, 6, 1, 3, side, side), np.float32)
    expected = total + np.matmul(a, b)
    if gaps:
        a, b, total, expected = a[:, ::2, :, 1:], b[:, ::2, :, 1:], total[:, ::2, :, 1:], expected[:, ::2, :, 1:]
    assert products.product(core.built, a, b, total).tobytes() == expected.tobytes()


RING = [(slice(2, 6, 2), slice(0, 4, 2)), (slice(1, 4, 2), slice(3, 6, 2)), (slice(0, 1), slice(1, 2)),
        (slice(5, 6), slice(4, 5))]  # fmt: skip
layouts = st.permutations(range(5))


@compiled
@given(
    st.sampled_from("xy"), layouts, layouts, st.integers(1, 5), st.integers(1, 2),
    st.sampled_from([np.int8, ml_dtypes.bfloat16, np.float32, np.complex128]), st.integers(1, 40), st.integers(0, 900),
)  # fmt: skip
def test_tiles_are_put_where_numpy_puts_them(
    axis: str, out_lies: list[int], tiles_lie: list[int], lines: int, step: int, kind: type, columns: int, room: int
) -> None:
    """On a ring of six cores, in place and not, some lines at a time, whatever lies next to what in memory."""
    view = lines_of.View(axis, slice(0, 5, step), -(-5 // step), 6)
    parts = [PayloadMove(to, -1, source) for to, source in RING]
    moves = np.array(in_order({1: 3, 3: 5, 5: 4, 4: 2, 2: 0, 0: 1})).tobytes()
    schedule: Any = SimpleNamespace(parts=parts, strided=True, moves=moves)
    shape = (5, 6, lines, 1, columns) if axis == "x" else (6, 5, lines, 1, columns)

    def array(lies: list[int]) -> np.ndarray:
        random = np.random.default_rng(sum(lies[:2])).integers(-99, 99, [shape[d] for d in lies])
        return random.astype(kind).transpose(np.argsort(lies))

    def packets(tiles: np.ndarray) -> list[np.ndarray]:
        return delivery.packets_of(schedule, view.of(tiles), [])

    results, memory = [], np.empty(10**5, np.uint8)
    clock = SimpleNamespace(buffer=lambda use, nbytes: memory[:nbytes])
    for name in CORES:
        block: Any = SimpleNamespace(core=core.chosen({"MESHRT_CORE": name}), clock=clock)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(delivery, "MANY", room)
            out, tiles = array(out_lies), array(tiles_lie)
            delivery.deliver(block, schedule, view, view.of(tiles), packets(tiles), out, None)
            delivery.deliver(block, schedule, view, view.of(tiles), packets(tiles), tiles, None)
            other = np.zeros(shape, np.float32 if kind is np.int8 else np.int32)  # NumPy makes them these
            if kind is not np.complex128:
                delivery.deliver(block, schedule, view, view.of(tiles), packets(tiles), other, None)
        results.append((out.tobytes(), tiles.tobytes(), other.tobytes()))
    assert results[0] == results[1]


@given(st.lists(st.none() | st.integers(0, 9), min_size=1, max_size=10))
def test_no_tile_goes_to_where_one_has_still_to_leave(chosen: list[int | None]) -> None:
    """Rings, chains, tiles that go to several places or stay; what a place that nothing comes to has, it keeps."""
    sources = {to: source for to, source in enumerate(chosen) if source is not None}
    line, room = [*range(10)], None
    for to, source in in_order(sources):
        tile = room if source == ROOM else line[source]
        if to == ROOM:
            room = tile
        else:
            assert tile is not None
            line[to] = tile
    assert line == [sources.get(to, to) for to in range(10)]


@compiled
@pytest.mark.parametrize("moves", [[(0, 3)], [(-2, 0)], [(1, -2)], [(3, 0)]])
def test_moves_beside_a_line_are_refused(moves: list[tuple[int, int]]) -> None:
    tiles, waiting = np.zeros((2, 3, 4), np.float32), np.zeros(16)
    with pytest.raises(ValueError, match="between its places"):
        core.built.rotate(core.built.address(waiting), 1, np.array(moves).tobytes(), tiles)


def core_that_moved_nothing(folder: Path) -> Any:
    """The compiled core as a process has it at first: a library at another place is another library."""
    place = Path(shutil.copy(core.built.__file__, folder))
    spec = importlib.util.spec_from_file_location(core.built.__name__, place)
    assert spec is not None and spec.loader is not None
    return importlib.util.module_from_spec(spec)


@compiled
@pytest.mark.parametrize(("axis", "numbers"), [("x", 1024), ("x", 1031), ("y", 2047)])
def test_tiles_that_no_cache_keeps_are_put_where_numpy_puts_them(axis: str, numbers: int, tmp_path: Path) -> None:
    """13 MiB and more go by the caches and past them in turn, at first, at any place in memory, and nothing beside them
    is written to."""
    built = core_that_moved_nothing(tmp_path)
    lines, length = -(-(13 << 20) // (64 * 4 * numbers)), 64
    shape = (lines, length, numbers) if axis == "x" else (length, lines, numbers)
    tiles = np.random.default_rng(0).integers(0, 99, shape, np.int32)
    moves = [(slice(2, 64, 2), slice(0, 62, 2)), (slice(1, 62, 2), slice(3, 64, 2)), (slice(0, 1), slice(1, 2))]
    ring = np.array(in_order({to: (to + 6) % length for to in range(length)})).tobytes()
    waiting = np.empty(numbers, np.int32)

    def of_lines(array: np.ndarray) -> np.ndarray:
        return array if axis == "x" else array.swapaxes(0, 1)

    expected = np.zeros_like(tiles)
    for to, source in moves:
        of_lines(expected)[:, to] = of_lines(tiles)[:, source]
    room = np.zeros(tiles.size + 40, np.int32)
    out = room[7 : 7 + tiles.size].reshape(shape)
    for _ in range(BOTH_WAYS):
        out[...] = 0
        built.deliver(*(of_lines(array)[:, move[n]] for move in moves for n, array in enumerate((out, tiles))))
        assert (out == expected).all()
        built.rotate(built.address(waiting), 1, ring, of_lines(out))
        assert (of_lines(out) == np.roll(of_lines(expected), -6, axis=1)).all()
    assert not room[:7].any() and not room[7 + tiles.size :].any()


doings = st.lists(
    st.tuples(st.sampled_from(["transfer", "send", "receive", "work"]), st.integers(0, 2), st.integers(0, 63)),
    min_size=1, max_size=12,
)  # fmt: skip


@compiled
@settings(max_examples=40)
@given(st.sampled_from(["wse2", "ideal"]), doings)
def test_transfers_among_others_under_way(device: str, done: list[tuple[str, int, int]]) -> None:
    """One that is received at once may meet, at ramps and in cores' paths, those that are under way meanwhile."""
    states = []
    for name in CORES:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("MESHRT_CORE", name)
            block = new_block(Alone(), (6, 2), device)
        tiles, flights = block.tiles("tile", (8,), np.float32), list[receiving.Flight]()
        tiles[...] = 1
        patterns = routes.chain(6), routes.chain(6, -2), routes.multicast(6, 2)
        with ExitStack() as stack:
            channels = [stack.enter_context(tables.installed(block, "x", pattern)) for pattern in patterns]
            for doing, number, cores in done:
                chosen = cores >> np.arange(6) & 1 > 0
                if doing == "transfer":
                    fabric.transfer(block, channels[number], tiles, tiles.copy(), positions=chosen)
                elif doing == "send":
                    flights.append(fabric.send(block, channels[number], tiles, tiles.copy(), positions=chosen))
                elif doing == "receive":
                    receiving.receive_all(block, tuple(flights))
                    flights.clear()
                else:
                    software.stage(block, channels[number], 5 * cores, chosen)
            receiving.receive_all(block, tuple(flights))
        clock, counters = block.clock, block.counters
        states.append([array.tobytes() for array in (clock.cells[:, :-1], clock.asked_at, clock.idle)])
        states[-1] += [counters.out_of_order, counters.longest_wait, counters.hops, counters.stages]
    assert states[0] == states[1]


@compiled
def test_some_products_are_the_cores_own() -> None:
    """Else the test above would compare BLAS with itself: a sum of one product has no order."""
    orders = products.ONE_ROUNDING, products.TWO_ROUNDINGS
    assert products._found(core.built, 3, 1, 3, False, False, orders) is not None


def test_a_choice_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match="MESHRT_CORE is 'fast': choose numpy or compiled"):
        core.chosen({"MESHRT_CORE": "fast"})


@pytest.mark.mpi(ranks=[1])
def test_numpy_does_without(monkeypatch: pytest.MonkeyPatch, comm: Any) -> None:
    monkeypatch.setenv("MESHRT_CORE", "numpy")
    assert new_block(comm, (2, 2), "wse2").core is None


def test_a_core_that_was_not_built_is_missed_only_by_who_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "built", None)
    assert core.chosen({}) is None
    with pytest.raises(UsageError, match="was not built here"):
        core.chosen({"MESHRT_CORE": "compiled"})


def test_all_c_sources_are_looked_at() -> None:
    folders = {str(file.parent.relative_to(core.PACKAGE)) for file in core.PACKAGE.rglob("*.[ch]")}
    assert folders == {*sources.FOLDERS}


def test_a_core_of_other_sources_is_refused_and_does_no_harm_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where there are no sources, as where a wheel was installed, any core is as good as another."""
    monkeypatch.setattr(core, "PACKAGE", tmp_path)
    monkeypatch.setattr(core, "built", SimpleNamespace(SOURCES=5))
    assert core.chosen({}) is core.built
    checkout, renamed = (tmp_path / name for name in ("checkout", "renamed"))
    for folder, name in ((checkout, "bells.c"), (renamed, "rings.c")):
        (folder / "ranks").mkdir(parents=True)
        (folder / "ranks" / name).write_text("int bell;\n")
    number = sources.checksum(checkout)
    monkeypatch.setattr(core, "PACKAGE", checkout)
    for other in (SimpleNamespace(SOURCES=5), SimpleNamespace()):
        monkeypatch.setattr(core, "built", other)
        with pytest.raises(UsageError, match=r"the compiled core is not of this checkout.*: run launch/setup-venv"):
            core.chosen({})
        assert core.chosen({"MESHRT_CORE": "numpy"}) is None
    monkeypatch.setattr(core, "built", SimpleNamespace(SOURCES=number))
    assert core.chosen({}) is core.built
    assert number != sources.checksum(renamed) is not None


# Nothing can be compiled without one; test_the_core_is_there_where_a_compiler_is is what says that there is none.
@pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason=f"none of {', '.join(COMPILERS)} is on PATH")
def test_it_is_built_where_python_has_no_headers() -> None:
    """stable.h then declares all that is called: without, a compiler guesses, or there is no core."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)))
    files = sorted(file for folder in sources.FOLDERS for file in (core.PACKAGE / folder).glob("*.c"))
    options = ["-std=c99", "-DWITHOUT_PYTHON_H", "-Werror=implicit-function-declaration", "-fsyntax-only"]
    ended = subprocess.run([compiler, *options, *map(str, files)], capture_output=True, text=True)
    assert len(files) > 10 and ended.returncode == 0, ended.stderr


@compiled
def test_the_core_was_built_of_the_sources_that_lie_beside_it() -> None:
    assert sources.checksum(core.PACKAGE) == core.built.SOURCES


@compiled
@pytest.mark.parametrize("ranks", [1, 2])
def test_so_does_the_command(ranks: int, tmp_path: Path, run_meshrt: Callable[..., Finished]) -> None:
    """Once, and with the code of wrong usage."""
    (tmp_path / "sitecustomize.py").write_text("from meshrt.mesh.wires import _core\n_core.SOURCES += 1\n")
    finished = run_meshrt("run", "shift", ranks=ranks, env={"PYTHONPATH": str(tmp_path), "MESHRT_CORE": ""})
    assert finished.code == 2
    assert finished.stderr.count("not of this checkout") == 1 and "Traceback" not in finished.stderr


@compiled
@pytest.mark.mpi(ranks=[1])
def test_tables_keep_no_room_for_a_landing(monkeypatch: pytest.MonkeyPatch, comm: Any) -> None:
    """It is memory that nobody writes to, and so none but for the limit of what a process may ask for."""
    from meshrt.programs import shift

    monkeypatch.setenv("MESHRT_CORE", "compiled")
    block = new_block(comm, (60, 60), "wse2", payload=False)
    tracemalloc.start()
    shift.run(block, tile=2, axis="both")
    kept = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/wires/strides.py")])
    tracemalloc.stop()
    assert 0 < sum(trace.size for trace in kept.traces) < 60 * 60 * 24
