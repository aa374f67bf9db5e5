"""Measurements beside what is emulated of the same work: from sizes alone, by packets that move, on any ranks."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from measure import on_one_rank

from meshrt.errors import RouteError, UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.presets import WSE3
from meshrt.mesh.wires.tables import overwrite
from meshrt.neuron.device import TRN1
from meshrt.ranks.console import Console
from meshrt.studies.grid import Grid
from meshrt.studies.neuronmm.manycores import latency
from meshrt.studies.sweep import run_alone
from meshrt.studies.validate import fit, meshproducts, rows
from meshrt.studies.validate.errors import Compared, errors
from meshrt.studies.validate.kept import open_rows
from meshrt.studies.validate.kind import Emulated, MeasurementKind, Sizes
from meshrt.studies.validate.kinds import KINDS
from meshrt.studies.validate.meshproducts import GEMM, GEMV, emulate_meshgemm, emulate_meshgemv
from meshrt.studies.validate.picture import draw
from meshrt.studies.validate.printed import said
from meshrt.studies.validate.rows import DATA, MeasuredRow, read_rows
from meshrt.studies.validate.validate import document, validate

TILES = [(1, 1, 1), (8, 1, 8), (3, 2, 5), (1, 8, 2), (16, 3, 12)]
GEMM_HEADER = "p,mt,kt,nt,cycles_mean"
TRN1_HEADER = "model,input_tokens,output_tokens,weights,ttft_p50_ms,tpot_p50_ms"


def sizes_of(header: str, *lines: tuple[int, ...]) -> list[dict[str, int]]:
    return [dict(zip(header.split(","), line, strict=True)) for line in lines]


def vector(length: int) -> float:
    """Cycles of an instruction on so many numbers of 16 bits, 8 at once, that begin anywhere: 1.5 a chunk, and 1."""
    return 1 + 1.5 * (length + 7) / 8


# ------------------------------------------------------------------------------------------------- cycles, worked out


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(("p", "tile"), [(4, (1, 1, 1)), (30, (8, 1, 8)), *((16, tile) for tile in TILES)])
def test_meshgemm_takes_its_steps(p: int, tile: tuple[int, int, int], comm: Any) -> None:
    """P / 2 steps of aligning, each with two hops and the tile's words to wait for; P steps that hide theirs.

    A packet to an end of the line has one hop; every stretch of P / 2 places of the ring has one end, so one hop less.
    """
    m, k, n = tile
    words = ceil(2 * m * k / 4)
    align = p // 2 * (WSE3.shift_cycles + 2 * WSE3.alpha + words) - WSE3.alpha
    steps = p * (WSE3.step_cycles + k * (WSE3.loop_cycles + n * vector(m)))
    (cycles,) = emulate_meshgemm(WSE3, sizes_of("p,mt,kt,nt", (p, *tile)))
    assert cycles == Emulated(WSE3.product_cycles + align + steps)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(
    ("p", "groups", "tile"),
    [(16, 2, (1, 1)), (16, 2, (5, 24)), (32, 8, (8, 3)), (48, 4, (5, 24)), (80, 2, (1, 1)), (336, 4, (8, 8))],
)
def test_meshgemv_takes_its_chains(p: int, groups: int, tile: tuple[int, int], comm: Any) -> None:
    """A chain to the middle of the group at the end, one of roots to the middle one, and back to the end; each takes
    all of a tile's words before the next begins. Between rows 0 and the root are edges of dies, there and back.
    """
    k, n = tile
    arm, root = p // groups // 2, groups // 2 * (p // groups) + p // groups // 2
    product = WSE3.loop_cycles + k * vector(n)
    chains = arm * (WSE3.alpha + WSE3.beta) + groups // 2 * WSE3.beta + (2 * root - arm) * WSE3.alpha
    dies = 2 * int(root // (1172 / 7)) * WSE3.die_cycles
    (cycles,) = emulate_meshgemv(WSE3, sizes_of("p,groups,mt,nt", (p, groups, *tile)))
    assert cycles.value == pytest.approx(WSE3.collective_cycles + product + chains + dies + 3 * ceil(n / 2), abs=1e-9)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("p", [80, pytest.param(208, marks=pytest.mark.all)])
def test_a_part_of_the_steps_stands_for_all(p: int, comm: Any) -> None:
    sizes = sizes_of("p,mt,kt,nt", *((p, *tile) for tile in TILES))
    for part, all_of_them in zip(
        emulate_meshgemm(WSE3, sizes, all_steps=p - 1), emulate_meshgemm(WSE3, sizes), strict=True
    ):
        assert part.value == pytest.approx(all_of_them.value, rel=2e-3)
        assert part.note == meshproducts.COUNTED and not all_of_them.note


# ----------------------------------------------------------------------------------------------------- real silicon


def ten_rows(folder: Path) -> list[Path]:
    """Ten shipped rows of 16 x 16 and 80 x 80 cores, of which constants know half."""
    files = []
    for kind, tiles in ((GEMM, ("1,1,1", "8,8,8", "2,3,8")), (GEMV, ("1,1,2", "8,8,8"))):
        lines = (DATA / kind.file).read_text().splitlines()
        chosen = [line for line in lines[1:] if line.startswith(tuple(f"{p},{t}," for p in (16, 80) for t in tiles))]
        files.append(folder / kind.file)
        files[-1].write_text("\n".join([lines[0], *chosen]) + "\n")
    return files


@pytest.mark.mpi(ranks=[1, 2, 4])
def test_ten_rows_are_near_the_machine_and_the_same_on_any_ranks(comm: Any, tmp_path: Path) -> None:
    compared = validate(comm, Console(), ten_rows(tmp_path))
    assert len(compared) == 10
    assert [comparison.row.use for comparison in compared].count("fit") == 5
    assert all(comparison.error is not None and comparison.error < 0.06 for comparison in compared)

    def one_by_one(_: Any) -> list[Any]:
        ways = [emulate_meshgemm if comparison.row.kind is GEMM else emulate_meshgemv for comparison in compared]
        return [way(WSE3, [comparison.row.sizes])[0] for way, comparison in zip(ways, compared, strict=True)]

    assert [comparison.emulated for comparison in compared] == on_one_rank(comm, one_by_one)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(
    ("kind", "routes", "row"), [(GEMM, "interleaved_rings", "16,2,2,2,9"), (GEMV, "ktree", "16,2,2,2,9")]
)
def test_a_row_fails_where_one_routers_rule_is_gone(
    kind: MeasurementKind, routes: str, row: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, comm: Any
) -> None:
    """Its cycles are those of packets that find their way by the tables: so does whatever `meshrt validate` runs."""
    install = getattr(meshproducts, routes)

    @contextmanager
    def tampered(block: Block, *arguments: Any, **options: Any) -> Iterator[Any]:
        with install(block, *arguments, **options) as ready:
            colour = int(block.tables.leaves[:, 5, 3].nonzero()[0][0])
            overwrite(block.tables, (3, 5), colour, 0, 0)
            yield ready

    (tmp_path / "mine.csv").write_text(f"{','.join(kind.header)}\n{row}\n")
    assert validate(comm, Console(), [tmp_path / "mine.csv"])[0].ratio is not None
    monkeypatch.setattr(meshproducts, routes, tampered)
    with pytest.raises(RouteError, match=r"core \(3, 5\)"):
        validate(comm, Console(), [tmp_path / "mine.csv"])


@pytest.mark.all
@pytest.mark.mpi(ranks=[1])
def test_constants_come_from_fit_rows_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, comm: Any) -> None:
    """From another beginning, with other rows made nonsense, a few of the rows give about what the preset has."""
    for kind in (GEMM, GEMV):
        with open(DATA / kind.file, newline="") as stream:
            lines = list(csv.DictReader(stream))
        with open(tmp_path / kind.file, "w", newline="") as stream:
            writer = csv.DictWriter(stream, list(lines[0]))
            writer.writeheader()
            writer.writerows(line if line["use"] == "fit" else line | {kind.measured: "1"} for line in lines)
    monkeypatch.setattr(fit, "DATA", tmp_path)
    begin = replace(WSE3, beta=8.0, collective_cycles=60.0, product_cycles=20.0, step_cycles=70.0, loop_cycles=30.0)
    tiles = {(1, 1, 1), (3, 2, 3), (2, 8, 3), (8, 8, 8)}

    def wanted(row: Sizes) -> bool:
        if "groups" in row:
            return bool(row["mt"] == row["nt"] == 2)
        return row["p"] in (80, 400) and (row["mt"], row["kt"], row["nt"]) in tiles

    fitted = fit.fit(begin, wanted)
    for name, by in {"alpha": 0.05, "beta": 0.05, "die_cycles": 0.1, "step_cycles": 2, "loop_cycles": 2}.items():
        assert getattr(fitted, name) == pytest.approx(getattr(WSE3, name), abs=by), name


# -------------------------------------------------------------------------------------------------- files and report


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p,mt,kt,cycles\n1,2,3,4\n", "no kind of measurement has the columns p,mt,kt,cycles"),
        ("p,mt,mt,nt,cycles_mean\n1,2,3,4,5\n", "a column is there twice"),
        (f"{GEMM_HEADER}\n16,1,0,1,100\n", "line 2, kt: 0 is less than 1"),
        (f"{GEMM_HEADER}\n16,1,1,1,100\n16,1,1.5,1,100\n", "line 3, kt: '1.5' is not a whole number"),
        (f"{GEMM_HEADER}\n16,1,1,1,0\n", "line 2, cycles_mean: 0 is not a time"),
        (f"{GEMM_HEADER}\n16,1,1,1,nan\n", "line 2, cycles_mean: nan is not a time"),
        (f"{GEMM_HEADER}\n16,1,1,1,fast\n", "line 2, cycles_mean: 'fast' is not a number"),
        (f"{GEMM_HEADER}\n16,1,1\n", "line 2: it has not as many cells as the header, 5"),
        (f"{GEMM_HEADER},use\n16,1,1,1,100,fitted\n", "line 2: use is 'fitted'; there are check, fit, outlier, lone"),
        (GEMM_HEADER + "\n", r"there are no rows in .*mine\.csv: a line for each is wanted below the header"),
        ("", "mine.csv: it is empty; its first line has to name the columns"),
        (
            f"{TRN1_HEADER}\nLlama-3-8B,8,8,int4,1,1\n",
            "line 2, weights: 'int4' is not known; there are int8, bf16, fp16",
        ),
        (f"{TRN1_HEADER}\nLlama-3-8B,8,8,int8,,1\n", "line 2, ttft_p50_ms: '' is not a number"),
    ],
)
def test_files_that_are_wrong_are_refused(text: str, message: str, tmp_path: Path, comm: Any) -> None:
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(UsageError, match=message):
        assert read_rows(tmp_path / "mine.csv", KINDS) or validate(comm, Console(), [tmp_path / "mine.csv"])


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^--data nofile\.csv cannot be read: No such file or directory$"):
        read_rows("nofile.csv", KINDS)


def test_rows_without_a_use_are_check_and_columns_stand_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("cycles_mean,nt,p,mt,kt\n3000,2,16,1,3\n")
    (row,) = read_rows(tmp_path / "mine.csv", KINDS)
    assert row == MeasuredRow(GEMM, "mine.csv", 2, {"p": 16, "mt": 1, "kt": 3, "nt": 2}, 3000.0, "check")


@pytest.mark.mpi(ranks=[1])
@pytest.mark.all
def test_a_line_of_aws_has_two_times(tmp_path: Path, comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first token and another: as `reproduce neuronmm tp32` runs them, where the model is known."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "mine.csv").write_text(f"{TRN1_HEADER}\nLlama-3-8B,64,32,bf16,9,6\nnobody-1b,64,32,bf16,9,6\n")
    compared = validate(comm, Console(), [tmp_path / "mine.csv"])
    assert [(comparison.kernel, comparison.row.line, comparison.row.measured) for comparison in compared] == [
        ("trn1 token", 2, 6.0), ("trn1 first token", 2, 9.0), ("trn1 token", 3, 6.0), ("trn1 first token", 3, 9.0)
    ]  # fmt: skip
    token, first, *unknown = [comparison.emulated for comparison in compared]
    for figure, column in ((token, "TPOT"), (first, "TTFT")):
        seconds, note = latency(TRN1, run_alone, "llama3-8b", 64, 32, 16, column)
        assert seconds is not None and figure == Emulated(1e3 * seconds, note) and not note
    assert [figure.value for figure in unknown] == [None, None]
    assert "sizes of nobody-1b are not known" in unknown[0].note


def test_what_emulates_a_row_knows_its_sizes_alone() -> None:
    for kind in (kind for kind in KINDS if kind.file):
        read = read_rows(DATA / kind.file, KINDS)
        assert {row.kind.name for row in read} == {kind.name}
        assert all(set(row.sizes) == set(kind.columns) for row in read)
        assert not {kind.measured, "use"} & set(kind.columns)
        batches = [at for _, batch in kind.batches([row.sizes for row in read]) for at in batch]
        assert sorted(batches) == list(range(len(read)))


@pytest.mark.mpi(ranks=[1])
def test_a_row_that_the_machine_has_no_room_for_is_refused_and_told(tmp_path: Path, comm: Any) -> None:
    (tmp_path / "mine.csv").write_text(f"{GEMM_HEADER}\n800,1,1,1,9\n4,200,200,1,9\n4,1,1,1,{_cycles(4, 1, 1, 1)}\n")
    compared = validate(comm, Console(), [tmp_path / "mine.csv"])
    assert [comparison.ratio for comparison in compared] == [None, None, 1.0]
    assert "width of device wse3 is 762" in compared[0].emulated.note
    assert "asks for 80000 bytes" in compared[1].emulated.note
    of = errors(compared)
    assert (of.rows, of.refused, of.median_error, of.worst_error) == (3, 2, 0.0, 0.0)
    lines = [line for line in said(compared[:1], False) if isinstance(line, str)]
    assert "  check: 1 row, all refused" in lines and lines[-1].startswith("  [1] 1 row: ")
    draw(str(tmp_path / "refused.svg"), compared[:1])  # without a warning, which would be an error here
    assert (tmp_path / "refused.svg").read_text().startswith("<?xml")  # as the name says


def _cycles(*size: int) -> float:
    value = emulate_meshgemm(WSE3, sizes_of("p,mt,kt,nt", size))[0].value
    assert value is not None
    return value


def test_errors_are_those_of_the_rows() -> None:
    def row(measured: float, emulated: float | None) -> Compared:
        return Compared(MeasuredRow(GEMM, "f", 2, {"p": 1}, measured, "check"), Emulated(emulated))

    of = errors([row(100, 101), row(100, 98), row(200, 206), row(100, None)])
    assert of.json() == {
        "rows": 4, "median_error": pytest.approx(0.02), "p95_error": pytest.approx(0.029),
        "worst_error": pytest.approx(0.03), "median_ratio": pytest.approx(1.01), "refused": 1,
    }  # fmt: skip


def test_the_report_has_errors_by_kernel_and_every_row(tmp_path: Path, run_meshrt: Any) -> None:
    files = [value for path in ten_rows(tmp_path) for value in ("--data", str(path))]
    target, picture = tmp_path / "out.json", tmp_path / "out.png"
    done = run_meshrt("validate", *files, "--json", str(target), "--png", str(picture), "--rows")
    assert done.code == 0, done.stderr
    report = json.loads(target.read_text())
    assert list(report["kernels"]) == ["MeshGEMM", "MeshGEMV"] and len(report["rows"]) == 10
    for kernel, of in report["kernels"].items():
        own = [row for row in report["rows"] if row["kernel"] == kernel]
        off = [abs(row["emulated"] / row["measured"] - 1) for row in own if row["use"] == "check"]
        assert of["rows"] == len(off) and of["worst_error"] == pytest.approx(max(off))
        assert of["median_error"] <= of["p95_error"] <= of["worst_error"]
        assert sum(part["rows"] for part in of["uses"].values()) == len(own)
    assert picture.read_bytes().startswith(b"\x89PNG") and "MeshGEMV" in done.stdout


@pytest.mark.mpi(ranks=[1])
def test_progress_is_by_what_rows_cost(tmp_path: Path, comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """80 x 80 cores cost 25 times what 16 x 16 do, and come first: 100 * 6,400 / 6,656 = 96 % after one of two rows."""
    said: list[tuple[int, int]] = []
    monkeypatch.setattr(Console, "progress", lambda self, title, done, total: said.append((done, total)))
    path = tmp_path / "gemm.csv"
    path.write_text("p,mt,kt,nt,cycles_mean\n16,1,1,1,2700\n80,1,1,1,13000\n")
    validate(comm, Console(), [path])
    assert said == [(0, 100), (96, 100)]


@pytest.mark.mpi(ranks=[1])
def test_only_chosen_kernels_and_uses_are_run(tmp_path: Path, comm: Any) -> None:
    files = ten_rows(tmp_path)
    chosen = validate(comm, Console(), files, ["MeshGEMV"], ["fit"])
    assert {(comparison.kernel, comparison.row.use) for comparison in chosen} == {("MeshGEMV", "fit")}
    with pytest.raises(UsageError, match="no row is of the kernel 'SUMMA': there are MeshGEMM, MeshGEMV"):
        validate(comm, Console(), files, ["SUMMA"])
    with pytest.raises(UsageError, match=r"none of 10 rows is left by --use lone --largest 1: leave one of these away"):
        validate(comm, Console(), files, uses=["lone"], largest=1)
    assert document(comm, chosen, 0.0)["kernels"]["MeshGEMV"]["rows"] == 0  # none of these is `check`


def kinds_that(emulate: Callable[[Sequence[Sizes]], Sequence[Emulated]]) -> list[MeasurementKind]:
    """Both kernels of a mesh, whose rows are not run."""
    return [replace(kind, emulate=emulate) for kind in (GEMM, GEMV)]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("count", [8, 20, 64])
def test_a_sample_has_all_sizes_and_uses_as_often_as_all_rows_have(count: int, comm: Any) -> None:
    kinds = kinds_that(lambda sizes: [Emulated(1.0)] * len(sizes))
    whole = validate(comm, Console(), kinds=kinds)
    chosen = validate(comm, Console(), kinds=kinds, sample=count)
    assert chosen == validate(comm, Console(), kinds=kinds, sample=count)
    assert [pair for pair in whole if pair in chosen] == chosen  # in the order of all
    for kernel in ("MeshGEMM", "MeshGEMV"):
        every = [pair.row for pair in whole if pair.kernel == kernel]
        own = [pair.row for pair in chosen if pair.kernel == kernel]
        assert len(own) == count
        for column in ("use", *own[0].sizes):
            values, kept = (
                Counter(row.use if column == "use" else row.sizes[column] for row in part) for part in (every, own)
            )
            for value, number in values.items():
                assert abs(kept[value] - number * count / len(every)) < 1.5, (kernel, column, value)
        for use in ("check", "fit"):  # both have small tiles and large ones
            assert {1, 8} <= {side for row in own if row.use == use for side in (row.sizes["mt"], row.sizes["nt"])}
    assert len(validate(comm, Console(), kinds=kinds, sample=10_000)) == len(whole)


@pytest.mark.mpi(ranks=[1, 2])
def test_a_kernel_is_shown_as_soon_as_its_rows_are_done(comm: Any, tmp_path: Path) -> None:
    events: list[Any] = []

    def emulate(sizes: Sequence[Sizes]) -> list[Emulated]:
        events.append("groups" in sizes[0])
        return [Emulated(float(row["p"])) for row in sizes]

    files = comm.bcast(ten_rows(tmp_path))
    compared = validate(comm, Console(), files, kinds=kinds_that(emulate), show=events.append)
    shown = [event for event in events if not isinstance(event, bool)]
    if comm.rank:
        assert not shown
        return
    first, second = shown
    assert first + second == compared and {pair.kernel for pair in first} == {"MeshGEMM"}
    before = events[: events.index(first)]
    assert before and not any(before) and True in events[: events.index(second)]


@pytest.mark.mpi(ranks=[1, 2])
def test_what_was_stopped_goes_on_where_it_was(comm: Any, tmp_path: Path) -> None:
    """The second batch of each rank fails, once: all but that is kept, and is not emulated again."""
    emulated: list[Sizes] = []

    def emulate(sizes: Sequence[Sizes]) -> list[Emulated]:
        if len(emulated) == stops_after:
            raise KeyboardInterrupt
        emulated.extend(sizes)
        return [Emulated(row["p"] + 1 / 3, "a note") for row in sizes]

    folder = comm.bcast(tmp_path)
    (folder / "gemm.csv").write_text("".join([f"{GEMM_HEADER}\n", *(f"{p},1,1,1,700\n" for p in range(4, 12))]))
    files, cache, kinds = [folder / "gemm.csv"], str(folder / "kept"), kinds_that(emulate)
    comm.Barrier()
    stops_after = 2
    with pytest.raises(KeyboardInterrupt):
        validate(comm, Console(), files, kinds=kinds, kept=open_rows(comm, cache))
    comm.Barrier()
    first, stops_after = [*emulated], -1
    emulated.clear()
    compared = validate(comm, Console(), files, kinds=kinds, kept=open_rows(comm, cache))
    assert [pair.emulated for pair in compared] == [Emulated(p + 1 / 3, "a note") for p in range(4, 12)]
    every = [row["p"] for rows in comm.allgather([*first, *emulated]) for row in rows]
    assert len(first) == 2 and sorted(every) == [*range(4, 12)]
    emulated.clear()
    kept = open_rows(comm, cache)
    assert validate(comm, Console(), files, kinds=kinds, kept=kept) == compared and not emulated
    assert [path.name for path in folder.glob("kept*")] == ["kept"]
    other = replace(kept, code="of another state")
    other.write(comm, kept.emulated)
    assert len(kept.emulated) == 8 and not open_rows(comm, cache).emulated


def test_a_file_that_keeps_something_else_is_refused(tmp_path: Path, run_meshrt: Any) -> None:
    (tmp_path / "mine.csv").write_text(f"{GEMM_HEADER}\n4,1,1,1,700\n")
    line = ("validate", "--data", str(tmp_path / "mine.csv"), "--json", "-", "--cache")
    refused = run_meshrt(*line, str(tmp_path / "mine.csv"))
    assert refused.code == 2 and "mine.csv is no file of this command" in refused.stderr
    first, second = (json.loads(run_meshrt(*line, str(tmp_path / "rows")).stdout) for _ in range(2))
    assert first["rows"] == second["rows"] and len(json.loads((tmp_path / "rows").read_text())["runs"]) == 1


def test_what_is_printed_early_leaves_json_alone(tmp_path: Path, run_meshrt: Any) -> None:
    (tmp_path / "mine.csv").write_text(f"{GEMM_HEADER}\n4,1,1,1,700\n")
    line = ("validate", "--data", str(tmp_path / "mine.csv"))
    assert len(json.loads(run_meshrt(*line, "--json", "-").stdout)["rows"]) == 1
    (row,) = json.loads(run_meshrt(*line, "--format", "json", "--rows").stdout)
    assert row["size"] == "p 4 mt 1 kt 1 nt 1" and row["note"] is None
    assert run_meshrt(*line).stdout.count("MeshGEMM") == 1


def test_rows_that_were_run_in_part_are_marked() -> None:
    """In a table by a number, to which a line below is; for programs by the note itself."""

    def compared(p: int, note: str) -> Compared:
        sizes = {"p": p, "mt": 1, "kt": 1, "nt": 1}
        return Compared(MeasuredRow(GEMM, "f", 2, sizes, 100.0, "check"), Emulated(101.0, note))

    pairs = [compared(16, ""), compared(336, meshproducts.COUNTED), compared(800, "no room")]
    for every_row in (True, False):
        parts = [*said(pairs, every_row)]
        (grid,) = (part for part in parts if isinstance(part, Grid))
        assert grid.header[-1] == "note"
        marks = [row[-1] for row in grid.rows]
        assert [mark.text for mark in marks] == ["", "[1]", "[2]"]
        assert [mark.value for mark in marks] == [None, meshproducts.COUNTED, "no room"]
        assert f"  [1] 1 row: {meshproducts.COUNTED}" in parts and "  [2] 1 row: no room" in parts


@pytest.mark.mpi(ranks=[1])
@pytest.mark.all
@pytest.mark.parametrize(("kernel", "median", "most"), [("MeshGEMM", 0.02, 0.06), ("MeshGEMV", 0.01, 0.04)])
def test_rows_that_no_constant_was_found_on_are_met(kernel: str, median: float, most: float, comm: Any) -> None:
    """All shipped `check` rows; docs/validation.md has the figures."""
    files: Sequence[Path] = [rows.DATA / "wse3_gemm.csv", rows.DATA / "wse3_gemv.csv"]
    of = errors(validate(comm, Console(), files, [kernel], ["check"]))
    assert of.refused == 0 and of.median_error is not None and of.p95_error is not None
    assert of.median_error < median and of.p95_error < most
