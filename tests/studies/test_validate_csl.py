"""`meshrt validate --csl`: rows emulated by CSL that a folder has, here a text of our own under the published names."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from meshrt.csl.costs import COSTS
from meshrt.csl.errors import CslError
from meshrt.errors import UsageError
from meshrt.ranks.console import Console
from meshrt.studies.validate import published
from meshrt.studies.validate.validate import validate

ALONE = SimpleNamespace(rank=0, size=1, allgather=lambda value: [value])
LAYOUT = """
PARAMS
const memcpy = @import_module("<memcpy/get_params>", .{ .width = P, .height = P });
layout {
  @set_rectangle(P, P);
  for (@range(i16, P)) |x| { for (@range(i16, P)) |y| {
    @set_tile_code(x, y, "core.csl", .{ .memcpy_params = memcpy.get_params(x), .n = Mt });
  } }
}
"""
CORE = """
param memcpy_params: comptime_struct;
param n: i16;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const time = @import_module("<time>");
var a: [n]f32; const a_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> a[i] });
var stamps: [6]u16; var stamps_ptr: [*]u16 = &stamps; var begin: [3]u16; var end: [3]u16;
fn init_task() void { time.enable_tsc(); sys.unblock_cmd_stream(); }
fn HOST(before: i16, repeats: i16) void {
  for (@range(i16, before)) |i| { @fadds(a_dsd, a_dsd, 1.0); }
  time.get_timestamp(&begin);
  for (@range(i16, repeats)) |i| { @fadds(a_dsd, a_dsd, 1.0); }
  time.get_timestamp(&end);
  for (@range(i16, 3)) |i| { stamps[i] = begin[i]; stamps[i + 3] = end[i]; }
  sys.unblock_cmd_stream();
}
comptime { @export_symbol(stamps_ptr, "time_memcpy"); @export_symbol(init_task); @export_symbol(HOST); }
"""
KERNELS = {
    "MeshGEMM": ("P Mt Kt Nt", "meshgemm_host"),
    "MeshGEMV": ("P Mt Nt pe_num_group root_1st_phase root_2nd_phase", "meshgemv_host"),
}


def written(folder: Path) -> Path:
    for kernel, (params, host) in KERNELS.items():
        source = folder / kernel / "WSE-3/src"
        source.mkdir(parents=True)
        declared = "".join(f"param {name}: i16; " for name in params.split())
        (source / "layout.csl").write_text(LAYOUT.replace("PARAMS", declared))
        (source / "core.csl").write_text(CORE.replace("HOST", host))
    (folder / "gemm.csv").write_text(
        "p,mt,kt,nt,cycles_mean,use\n" + "".join(f"{p},{m},1,1,100,check\n" for p in (2, 3, 5) for m in (1, 4, 9))
    )
    (folder / "gemv.csv").write_text("p,mt,nt,groups,cycles_mean\n3,7,1,2,100\n40,7,1,2,100\n")
    return folder


def emulated(folder: Path, name: str, **chosen: int) -> list[tuple[int, int, float | None, str]]:
    rows = validate(ALONE, Console(), [folder / name], kinds=published.kinds(folder), **chosen)
    return [
        (comparison.row.sizes["p"], comparison.row.sizes["mt"], comparison.emulated.value, comparison.emulated.note)
        for comparison in rows
    ]


def test_rows_are_run(tmp_path: Path) -> None:
    """A number more is a step more; what is before the first stamp does not count; P does not matter to this text."""
    rows = emulated(written(tmp_path), "gemm.csv")
    cycles = {(p, m): value for p, m, value, _ in rows}
    for p in (2, 3, 5):
        for m in (4, 9):
            first, more = cycles[p, 1], cycles[p, m]
            assert first is not None and more is not None
            assert abs(more - first - (m - 1) * COSTS.bank) <= 0.5  # stamps are whole
    assert {note for *_, note in rows} == {"1 to begin with, 2 timed"}
    many = emulated(tmp_path, "gemv.csv")
    assert many[0][2] == many[1][2] and "2 columns" in many[1][3] and "columns" not in many[0][3]


def test_rows_are_chosen(tmp_path: Path) -> None:
    written(tmp_path)
    for chosen, sides in (({"largest": 3, "sample": 2}, [2, 3]), ({"sample": 3}, [2, 3, 5])):
        rows = emulated(tmp_path, "gemm.csv", **chosen)
        assert [p for p, *_ in rows] == sides and len({m for _, m, *_ in rows}) == len(rows)  # each side, other tiles
    with pytest.raises(UsageError, match=r"none of 9 rows is left by --largest 1: leave"):
        emulated(tmp_path, "gemm.csv", largest=1)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no MeshGEMM/WSE-3/src/layout\.csl; a checkout of MeshInfra"):
        published.kinds(tmp_path)
    written(tmp_path)
    core = tmp_path / "MeshGEMM/WSE-3/src/core.csl"
    core.write_text(core.read_text().replace('"time_memcpy"', '"times"'))
    with pytest.raises(CslError, match="no core exports stamps by the name 'time_memcpy'"):
        emulated(tmp_path, "gemm.csv")
