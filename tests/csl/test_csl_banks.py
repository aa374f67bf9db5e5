"""What vectors that are read together take on a WSE-2 follows from where they lie, by its documented rule."""

import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from meshrt.csl.costs import COSTS
from meshrt.csl.errors import CslError
from meshrt.csl.host.direct import run as run_layout
from meshrt.csl.language.program import build
from meshrt.csl.machine import compiled
from meshrt.csl.machine.banks import conflicts
from meshrt.csl.machine.vectors import Mem
from meshrt.csl.report import report_of
from tests.csl.test_csl_machine import both
from tests.csl.test_csl_ranks import on_ranks
from tests.csl_programs import write

END = "comptime { @export_symbol(main); }\n"
BOTH = pytest.mark.parametrize("core", ["", "numpy"])
# b begins PAD words of 32 bits behind a, which begins at a multiple of 8 bytes and takes 16
BODY = """
var a: [8]f16 align(8) = @constants([8]f16, 2.0);
var pad: [PAD]u32;
var b: [12]f16 = @constants([12]f16, 3.0);
var out: [8]f16;
const da = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> a[i] });
const db = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> b[i + SKIP] });
const dout = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> out[i] });
const five = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{5} -> out[i] });
fn main() void {
  a[0] = 2.0; pad[0] = 1; b[0] = 3.0;
  DO
  sys.unblock_cmd_stream();
}
"""


def cycles(folder: Path, do: str, pad: int = 1, skip: int = 0, arch: str = "wse2") -> tuple[float, Any]:
    """Of one core, and the report's conflicts."""
    body = BODY.replace("PAD", str(pad)).replace("SKIP", str(skip)).replace("DO", do)
    report, _ = run_layout(write(folder, body + END), "width:1", arch, ("main",), (), None)
    return report["cycles"]["max"], report["bank_conflicts"]


@BOTH
@pytest.mark.parametrize("pad", [1, 2, 3, 4])
def test_where_an_array_lies_decides(core: str, pad: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight numbers of 16 bits are two steps of four: 2 cycles where b is 4 bytes beside a multiple of 8, else 4."""
    monkeypatch.setenv("MESHRT_CORE", core)
    nothing, none = cycles(tmp_path, "", pad)
    took, met = cycles(tmp_path, "@faddh(dout, da, db);", pad)
    steps = 8 // 4
    conflicting = 0 if (16 + 4 * pad) % 8 == 4 else steps
    assert took - nothing == pytest.approx(COSTS.start + steps + conflicting)
    assert (none, met) == (0, conflicting)


@BOTH
@pytest.mark.parametrize(
    ("do", "skip", "takes"),
    [
        ("@faddh(dout, da, db);", 1, 4),  # 2 bytes further on: at no multiple of 4
        ("@faddh(dout, da, db);", 2, 4),  # 4 bytes: in a's bank again
        ("@fmach(dout, db, da, 2.0);", 4, 2),  # 8 bytes: as without
        ("@faddh(dout, da, 1.0);", 0, 2),  # one vector, or none, is in nobody's way
        ("@fmovh(dout, 1.0);", 0, 2),
        ("@faddh(dout, da, da);", 0, 4),  # the same place twice
        ("@faddh(five, da, da);", 0, 4),  # five numbers are two steps, too
        ("@add16(dout, da, db);", 0, 2),
        ("@fmaxh(dout, da, db);", 0, 8),  # one number a step
        ("@fmaxh(dout, da, db);", 1, 8),  # 22 bytes: in another bank
        ("@fmaxh(dout, da, db);", 2, 16),  # 24: in the same
    ],
)
def test_what_is_read_and_where_from(
    do: str, skip: int, takes: int, core: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHRT_CORE", core)
    assert cycles(tmp_path, do, 1, skip)[0] - cycles(tmp_path, "")[0] == pytest.approx(COSTS.start + takes)


def test_where_no_rule_is_known_it_is_the_mean(tmp_path: Path) -> None:
    """Of a WSE-3: 8 numbers are a step of 1.5 cycles, wherever they lie, and nothing is counted."""
    times = {cycles(tmp_path, "@faddh(dout, da, db);", pad, arch="wse3") for pad in (1, 2, 3, 4)}
    assert times == {(cycles(tmp_path, "", arch="wse3")[0] + COSTS.start + 1.5, None)}


@pytest.mark.parametrize("seed", range(4))
def test_both_sentences_of_the_rule_say_the_same(seed: int) -> None:
    """Word for word in banks: eight, of words of 16 bits; both at 32 bits, and not in the same one modulo four."""
    draw = random.Random(seed)
    for _ in range(200):
        kind, nbytes = draw.choice([("f2", 2), ("f4", 4), ("u2", 2)])
        begin, count, lanes = draw.randrange(5), draw.randrange(1, 20), draw.choice([1, 2, 4])
        vectors, addresses = [], []
        for _ in range(2):
            base, stride = 2 * draw.randrange(100 // nbytes) * nbytes // 2 + 400, draw.randrange(-3, 4)
            if draw.random() < 0.3:  # of two axes
                vectors.append(Mem(base, nbytes, (5, 5), (stride, 2), kind))
                at = [base + nbytes * (i * stride + 2 * j) for i, j in product(range(5), range(5))]
            else:
                vectors.append(Mem(base, nbytes, (25,), (stride,), kind))
                at = [base + nbytes * i * stride for i in range(25)]
            addresses.append(at[begin : begin + count : lanes])
        alone = lanes * nbytes == 2  # one word each, which has no 32 bits to be at
        free = sum(
            (alone or a % 4 == b % 4 == 0) and a // 2 % 8 % 4 != b // 2 % 8 % 4 for a, b in zip(*addresses, strict=True)
        )
        steps = len(addresses[0])
        assert conflicts((vectors[0], 2.0, vectors[1]), kind, begin, count, lanes) == steps - free


# strides, two axes, single numbers of 32 bits, both ways to the fabric, @map, registers that go on
MIXED = """
const math = @import_module("<math>");
const C: color = @get_color(4);
const out_q = @get_output_queue(2); const in_q = @get_input_queue(2);
var x: [48]f16 = @constants([48]f16, 1.5);
var y: [30]f16 = @constants([30]f16, 0.25);
var z: [24]f32 = @constants([24]f32, 0.5);
var sum: [12]f32 = @zeros([12]f32);
const dx = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{12} -> x[i + 1] });
const odd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{12} -> x[2 * i + 1] });
const grid = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{3, 4} -> x[3 * j + 13 * i] });
const dy = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{12} -> y[i] });
const dz = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{12} -> z[i] });
const every = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{12} -> z[2 * i + 1] });
const back = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{12} -> z[12 - i] });
const dsum = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{12} -> sum[i] });
const to = @get_dsd(fabout_dsd, .{ .extent = 12, .fabric_color = C, .output_queue = out_q });
const from = @get_dsd(fabin_dsd, .{ .extent = 12, .fabric_color = C, .input_queue = in_q });
const d0 = @get_dsr(dsr_dest, 1); const s0 = @get_dsr(dsr_src0, 1); const s1 = @get_dsr(dsr_src1, 1);
fn step(v: f16) void { @fmach(d0, s0, s1, v); }
fn main() void {
  @faddh(dy, grid, dy);
  @faddh(dy, odd, dx);
  @fmulh(grid, grid, odd);
  @fadds(dsum, dz, every);
  @fmacs(dsum, dsum, back, 2.0);
  @fmuls(dsum, back, back);
  @load_to_dsr(d0, dy); @load_to_dsr(s0, dy); @load_to_dsr(s1, dx, .{ .save_address = true });
  @map(step, @set_dsd_length(dy, 3));
  if (column == 0) { @fadds(to, dz, every); } else { @fadds(dsum, from, dsum); }
  sys.unblock_cmd_stream();
}
comptime { @initialize_queue(out_q, .{ .color = C }); @initialize_queue(in_q, .{ .color = C }); }
"""
ROUTES = """@set_color_config(x, 0, @get_color(4), .{ .routes = if (x == 0) .{ .rx = .{RAMP}, .tx = .{EAST} }
    else .{ .rx = .{WEST}, .tx = .{RAMP} } });"""


@pytest.mark.skipif(
    compiled._machine is None,
    reason="nothing to compare: the compiled machine is not built here, for want of a compiler or by MESHRT_CORE=numpy",
)
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_the_same_in_both_engines(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python, machine = both(write(tmp_path, MIXED + END, ROUTES), 2, monkeypatch, arch)
    assert report_of(python) == report_of(machine)
    for at, core in python.cores.items():
        assert (core.t, core.conflicts) == (machine.cores[at].t, machine.cores[at].conflicts)
        assert (core.conflicts > 20) == (arch == "wse2")


@BOTH
def test_the_same_on_ranks_and_by_any_seed(core: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHRT_CORE", core)
    layout = write(tmp_path, MIXED.replace("var sum", "var out_ptr: [*]f32 = &sum; var sum") + END.replace(
        "comptime {", 'comptime { @export_symbol(out_ptr, "out");'), ROUTES)  # fmt: skip
    alone = run_layout(layout, "width:2", "wse2", ("main", "main"), ("out",), None)
    assert alone[0]["bank_conflicts"] > 50
    assert on_ranks(2, layout, "width:2", "out", arch="wse2") == [alone] * 2
    for seed in range(3):
        assert run_layout(layout, "width:2", "wse2", ("main", "main"), ("out",), seed) == alone


@pytest.mark.parametrize("said", ["align(16)", "align(64)", "align(2)", ""])
def test_an_array_lies_where_align_says(said: str, tmp_path: Path) -> None:
    """Behind 36 bytes: at the next multiple, or at one of 4 as everything."""
    body = f"""var before: [9]u32; var a: [8]f16 {said} = @constants([8]f16, 2.0);
    fn main() void {{ before[0] = 1; a[0] = 1.0; sys.unblock_cmd_stream(); }}"""
    image = build(write(tmp_path, body + END), {"width": 1}, "wse2").tiles[0, 0]
    assert [(name, nbytes) for _, nbytes, name in image.symbols] == [("before", 36), ("a", 16)]
    number = int(said.strip("align()") or 4)
    assert image.symbols[1][0] == -(-36 // max(4, number)) * max(4, number)


@pytest.mark.parametrize("said", ["3", "0", "-8"])
def test_an_alignment_is_a_power_of_two(said: str, tmp_path: Path) -> None:
    body = f"var a: [8]f16 align({said});\nfn main() void {{ a[0] = 1.0; sys.unblock_cmd_stream(); }}"
    with pytest.raises(CslError, match=rf"core\.csl:6: align\({said}\) of a: a power of two is asked for"):
        build(write(tmp_path, body + END), {"width": 1}, "wse2")
