"""The compiled machine does what Python does, to the bit: memory, clocks, what cores hold, what is counted."""

import signal
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from meshrt.csl.errors import MemoryLimit
from meshrt.csl.language.program import build
from meshrt.csl.machine import compiled
from meshrt.csl.machine.wafer import Wafer
from meshrt.csl.report import report_of
from tests.csl_programs import write

END = "comptime { @export_symbol(main); }\n"
pytestmark = pytest.mark.skipif(compiled._machine is None, reason="the machine was not built here")

# every type, operator and kind of statement, and numbers that wrap
SCALARS = """
var a: [16]i16 = @constants([16]i16, -7);
var b: [16]u16 = @zeros([16]u16);
var c: [8]i32 = @zeros([8]i32);
var d: [8]u32 = @zeros([8]u32);
var e: [16]f16 = @zeros([16]f16);
var f: [16]f32 = @zeros([16]f32);
var bytes: [3]u8 = @constants([3]u8, 200);
var wide: [2]u64 = @zeros([2]u64);
const math = @import_module("<math>");
fn half(x: f16) f16 { return x / 3.0 - 0.5; }
fn main() void {
  var i: i16 = 0;
  while (i < 14) : (i += 1) {
    if (i % 5 == 3 or i == 1) { continue; }
    if (i == 12) { break; }
    a[i] = (a[i] * 4681 + i) / (i - 4) % 1000;
    b[i] = @as(u16, a[i]) >> @as(u16, i & 3) ^ 0xf0f;
    e[i] = half(@as(f16, a[i])) + (if (i > 6 and a[i] < 3) @as(f16, 1.5) else @as(f16, -0.25));
    f[i] = @as(f32, e[i]) * 1.1 + math.sqrt_f32(@as(f32, i));
  }
  for (@range(i16, 1, 8, 2)) |k| {
    c[k] = @as(i32, a[k]) << 7;
    d[k] = @bitcast(u32, c[k]) * 2654435761 | @as(u32, b[k]);
    c[k - 1] = ~c[k] - @as(i32, @as(i16, f[k]));
  }
  bytes[i & 1] += bytes[2];
  wide[i & 1] = (@as(u64, 1) << 63) + @as(u64, bytes[0] + bytes[0]);
  e[13] = math.exp_f16(@as(f16, 11.5));
  e[15] = @as(f16, f[11] * 1.0e6);
  e[14] = -e[15];
  sys.unblock_cmd_stream();
}
"""
# vectors: strides, two axes, one place, scalars, @map, registers that go on, pointers, those that goes on beside
VECTORS = """
var x: [24]f16 = @zeros([24]f16);
var y: [24]f16 = @zeros([24]f16);
var z: [12]f32 = @zeros([12]f32);
var w: [24]u16 = @zeros([24]u16);
var most: f32 = -1.0e9;
var sum: f32 = 0.0;
var base: [*]f16 = &y;
const d0 = @get_dsr(dsr_dest, 1);
const s0 = @get_dsr(dsr_src0, 1);
const s1 = @get_dsr(dsr_src1, 1);
var dx = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{24} -> x[i] });
const x_whole = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{24} -> x[i] });
const odd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> x[2 * i + 1] });
const grid = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{3, 4} -> x[2 * j + 8 * i] });
const dy = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{12} -> y[i] });
const dz = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{12} -> z[i] });
const dw = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{24} -> w[i] });
const one = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{12} -> z[3] });
const again = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j, k|{2, 3, 4} -> y[k + 4 * i] });
const windows = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{6, 4} -> x[i + 2 * j] });
const done = @get_local_task_id(9);
fn curve(v: f16) f16 { return v * v - @as(f16, column); }
fn step(v: f16) void { @fmach(d0, s0, s1, v); }
task after() void { @fnegs(dz, dz); sys.unblock_cmd_stream(); }
fn main() void {
  for (@range(i16, 24)) |i| { x[i] = @as(f16, i * 37 % 11) * 0.3; w[i] = @as(u16, i * 1771); }
  @fmulh(dy, grid, 1.7);
  @map(curve, dy, dy);
  dx = @increment_dsd_offset(dx, 3, f16);
  dx = @set_dsd_length(dx, 4);
  @load_to_dsr(d0, dx, .{ .save_address = true });
  @load_to_dsr(s0, dx, .{ .save_address = true });
  @load_to_dsr(s1, @set_dsd_stride(dy, 2));
  @map(step, @set_dsd_length(dy, 3));
  @fsubh(odd, odd, 0.125);
  @faddh(again, again, x_whole);
  @fmach(windows, windows, windows, 0.25);
  @fh2s(dz, dy);
  @fmuls(dz, dz, 1.0e-3);
  @fadds(one, one, dz);
  @fmaxs(&most, most, dz);
  @fmacs(dz, dz, dz, most);
  @add16(dw, dw, 40000);
  @xor16(dw, dw, dw);
  @mov16(dw, 5);
  @fmovh(@set_dsd_base_addr(dx, base), x[2]);
  z[0] += sum;
  @fadds(dz, dz, 1.0, .{ .async = true, .activate = done });
}
comptime { @bind_local_task(after, done); }
"""
# more than a queue holds goes to the right and back; its sums; tasks of data; what was sent waits for room
WAVELETS = """
const out_q = @get_output_queue(2); const in_q = @get_input_queue(2); const one_q = @get_input_queue(3);
const tell_q = @get_output_queue(3);
const C: color = @get_color(4); const D: color = @get_color(5);
var x: [40]f32 = @zeros([40]f32);
var y: [40]f32 = @zeros([40]f32);
var z: [6]f32 = @zeros([6]f32);
var got: [4]u16 = @zeros([4]u16);
var times: i16 = 0;
const dx = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{40} -> x[i] });
const dy = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> y[i] });
const dz = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{8, 4} -> z[j] });
const to = @get_dsd(fabout_dsd, .{ .extent = 40, .fabric_color = C, .output_queue = out_q });
const from = @get_dsd(fabin_dsd, .{ .extent = 40, .fabric_color = C, .input_queue = in_q });
const tell = @get_dsd(fabout_dsd, .{ .extent = 1, .fabric_color = D, .output_queue = tell_q });
const told = @get_data_task_id(if (@is_arch("wse3")) one_q else D);
const later = @get_local_task_id(11);
task heard(low: u16, high: u16) void { got[times] = low + high; times += 1; if (times == 2) { @unblock(later); } }
task end() void {
  @fadds(dy, dy, 1.0);
  times = 7;
  sys.unblock_cmd_stream();
}
fn main() void {
  for (@range(i16, 40)) |i| { x[i] = @as(f32, i * 3 + column) / 7.0; }
  if (column == 0) {
    @fmovs(to, dx, .{ .async = true, .activate = later, .unblock = later });
  } else {
    for (@range(i16, column * 40)) |i| { y[0] += 0.5; }
    @fadds(dy, @set_dsd_length(from, 8), @set_dsd_length(dx, 8));
    @fadds(dz, dz, @set_dsd_length(from, 32));
    @mov32(tell, 0x10002 * @as(u32, column));
    @mov32(tell, 0x30005);
    @activate(later);
    @unblock(later);
  }
}
comptime {
  @block(later); @bind_local_task(end, later); @bind_data_task(heard, told); @block(in_q);
  @initialize_queue(out_q, .{ .color = C }); @initialize_queue(in_q, .{ .color = C });
  @initialize_queue(tell_q, .{ .color = D }); @initialize_queue(one_q, .{ .color = D });
}
"""
ROUTES = """
    @set_color_config(x, 0, @get_color(4), .{ .routes = if (x == 0) .{ .rx = .{RAMP}, .tx = .{EAST} }
        else .{ .rx = .{WEST}, .tx = .{RAMP} } });
    @set_color_config(x, 0, @get_color(5), .{ .routes = if (x == 0) .{ .rx = .{EAST}, .tx = .{RAMP} }
        else .{ .rx = .{RAMP}, .tx = .{WEST} } });
"""


def _run(layout: Path, width: int, launches: int = 2, arch: str = "wse3") -> Wafer:
    wafer = Wafer(build(layout, {"width": width}, arch))
    for _ in range(launches):
        wafer.launch("main", ())
        wafer.idle()
    return wafer


def both(layout: Path, width: int, monkeypatch: pytest.MonkeyPatch, arch: str = "wse3") -> tuple[Wafer, Wafer]:
    """After it ran in Python, and in the machine."""
    with monkeypatch.context() as patch:
        patch.setenv("MESHRT_CORE", "numpy")
        python = _run(layout, width, arch=arch)
    machine = _run(layout, width, arch=arch)
    assert machine.machine is not None and python.machine is None  # it did not give up
    return python, machine


@pytest.mark.parametrize(("body", "routes", "width"), [(SCALARS, "", 1), (VECTORS, "", 2), (WAVELETS, ROUTES, 2)])
def test_the_same_bits(body: str, routes: str, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python, machine = both(write(tmp_path, body + END, routes), width, monkeypatch)
    assert report_of(python) == report_of(machine)
    assert python.counters.events == machine.counters.events
    for at, core in python.cores.items():
        other = machine.cores[at]
        assert np.array_equal(core.memory, other.memory)
        assert core.memory.any()
        for name in (
            "t",
            "waited",
            "chain",
            "ready",
            "blocked",
            "o",
            "dsrs",
            "open",
            "operations",
            "taken",
            "conflicts",
        ):
            assert getattr(core, name) == getattr(other, name), name
        assert {color: until for color, until in core.sent.items() if until} == other.sent


def test_a_loop_without_an_end_hears_signals(tmp_path: Path) -> None:
    """It is one event."""

    def told(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    layout = write(tmp_path, "var a: u16 = 0; fn main() void { while (true) { a += 1; } }" + END)
    before = signal.signal(signal.SIGVTALRM, told)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.01)
        with pytest.raises(KeyboardInterrupt):
            _run(layout, 1)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("for (@range(i16, 30000)) |i| { far[@as(u16, i)] = i; }", "out of a core's 49,152 bytes"),
        (
            "for (@range(i16, 4)) |i| { a[0] = a[i - 2]; }",
            "an access leads out of .*: index -2 is below its first",
        ),
        ("for (@range(i16, 4)) |i| { a[i - 2] = 1; }", "index -2 is below"),
        ("for (@range(i16, 4)) |i| { b[i - 2] = 1; }", "index -2 is below"),
    ],
)
def test_what_is_wrong_python_says(code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine gives up, memory is put back, and the message is the one that Python has."""
    body = f"""
    var a: [4]i16 = @zeros([4]i16);
    var b: [4]u32 = @zeros([4]u32);
    var far: [*]i16 = &a;
    fn main() void {{
      {code}
      far[0] = @as(i16, b[0]);
      sys.unblock_cmd_stream();
    }}
    """
    first = "b" if "b[" in code else "a"  # lies at address 0
    layout = write(tmp_path, body + f"comptime {{ @export_symbol({first}); }}\n" + END)
    texts = []
    for core in ("numpy", ""):
        monkeypatch.setenv("MESHRT_CORE", core)
        with pytest.raises(MemoryLimit, match=rf"core\.csl:\d+: core .*{message}") as caught:
            _run(layout, 1)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
