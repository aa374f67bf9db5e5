"""What expressions and statements come to, against NumPy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.csl_programs import run

END = '\ncomptime { @export_symbol(out_ptr, "out"); @export_symbol(main); }\n'


def out_of(folder: Path, kind: str, count: int, body: str, before: str = "", **how: Any) -> list[float]:
    """What main writes to out."""
    text = f"var out: [{count}]{kind}; var out_ptr: [*]{kind} = &out; {before}"
    text += f" fn main() void {{ {body} sys.unblock_cmd_stream(); }}"
    return run(folder, text + END, **how)[0][0]


@pytest.mark.parametrize(
    ("kind", "expression", "value"),
    [
        ("i16", "a * b", np.int16(300) * np.int32(250) - 65536),  # wraps
        ("i16", "(0 - a) / 7", -42),  # toward zero
        ("i16", "(0 - a) % 7", -6),
        ("i16", "(a << 3) | 5", 2405),
        ("i16", "if (a > b) a else b", 300),
        ("i16", "~a & 0xff", ~300 & 0xFF),
        ("u32", "@as(u32, a) * @as(u32, b)", 75000),
        ("u16", "@bitcast(u16, @as(f16, 1.5))", 0x3E00),
        ("f16", "@as(f16, a) / 7.0", float(np.float16(300) / np.float16(7))),
        ("f32", "@as(f32, a) / 7.0", float(np.float32(300) / np.float32(7))),
        ("f32", "math.sqrt(@as(f32, b))", float(np.sqrt(np.float32(250)))),
        ("i16", "@as(i16, @as(f32, a) / 7.0)", 42),
        ("i16", "@as(i16, (a > b) and !(b > a))", 1),
        ("u64", "wide * wide + 4", (1 << 34) ** 2 % (1 << 64) + 4),  # wraps to 0; lies behind 6 bytes
        ("u64", "@as(u64, 1) << 63", 1 << 63),
        ("u16", "@as(u16, byte + byte) + @as(u16, @bitcast(u8, signed) - 1)", 144 + 127),  # of 8 bits each
        ("u16", "@as(u16, b) / none", 0xFFFF),
        ("i16", "@as(i16, @as(bool, 0.5))", 1),
    ],
)
def test_expressions(tmp_path: Path, kind: str, expression: str, value: float) -> None:
    before = 'const math = @import_module("<math>"); var a: i16 = 300; var b: i16 = 250; var none: u16 = 0;'
    before += " var byte: u8 = 200; var signed: i8 = -128; var wide: u64 = 1 << 34;"
    assert out_of(tmp_path, kind, 1, f"out[0] = {expression};", before) == [value]


def test_a_pointer_into_the_midst_of_an_array(tmp_path: Path) -> None:
    """Is shown up to the array's end."""
    body = "var all: [5]i16; var out: [*]i16 = &all[3]; fn main() void { all[4] = 7; sys.unblock_cmd_stream(); }"
    body += "comptime { @export_symbol(out); @export_symbol(main); }"
    assert run(tmp_path, body)[0] == [[0, 7]]


def test_statements(tmp_path: Path) -> None:
    body = """
      var i: i16 = 0;
      while (true) : (i += 1) {
        if (i == 3) continue;
        if (i > 6) break;
        out[i] = twice(i);
      }
      for (@range(i16, 7, 9, 1)) |j| out[j] = j;
      for (table) |value, at| { if (at < 2) { out[0] += value; } }
      switch (out[8]) { 7 => out[9] = 1, 8 => { out[9] = 2; }, else => out[9] = 3 }
      change(&out[3], &i);
      out[10] = i;
      var few = [3]i16{ 4, 5, 6 };
      few[1] += few[2];
      out[11] = few[1] + sum(&few);
    """
    before = """
      const table = [3]i16{ 10, 20, 40 };
      fn twice(x: i16) i16 { return 2 * x; }
      fn change(a: *i16, b: *i16) void { a.* = -7; b.* += 100; }
      fn sum(values: *[3]i16) i16 { return (values.*)[0] + (values.*)[1] + (values.*)[2]; }
    """
    assert out_of(tmp_path, "i16", 12, body, before) == [30, 2, 4, -7, 8, 10, 12, 7, 8, 2, 107, 11 + 21]


def test_what_is_known_is_not_looked_at(tmp_path: Path) -> None:
    """The branch that is not taken may use what is not there, as programs for two architectures do."""
    body = 'if (@is_arch("wse2")) { @no_such_builtin(1); out[0] = missing; } else { out[0] = total(5); }'
    before = "fn total(n: i16) i16 { var s: i16 = 0; for (@range(i16, n + 1)) |i| { s += i; } return s; }"
    before += " const t = total(4);"
    assert out_of(tmp_path, "i16", 1, body, before) == [15]
    assert out_of(tmp_path, "i16", 1, "out[0] = @as(i16, t);", before) == [10]


@pytest.mark.parametrize("count", [1, 3, 8, 13])
def test_vectors(tmp_path: Path, count: int) -> None:
    """f16 multiply and add, rounded once; strides; a register that goes on by itself; a sum to one number."""
    body = f"""
      for (@range(i16, {2 * count})) |i| {{ a[i] = @as(f16, i) * 0.3; b[i] = 1.0 / (@as(f16, i) + 1.0); }}
      @fmovh(out_dsd, 0.125);
      @fmach(out_dsd, out_dsd, a_dsd, 1.7);
      @load_to_dsr(from, b_dsd, .{{ .save_address = true }});
      @faddh(out_dsd, out_dsd, from);
      @faddh(out_dsd, out_dsd, from);
      @faddh(&total, &total, out_dsd);
      out[{count}] = total;
      @map(half, out_dsd, out_dsd);
    """
    before = f"""
      var a: [{2 * count}]f16; var b: [{2 * count}]f16; var total: f16 = 0.0;
      const from = @get_dsr(dsr_src1, 2);
      const a_dsd = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{count}}} -> a[2 * i + 1] }});
      const b_dsd = @get_dsd(mem1d_dsd, .{{ .base_address = &b, .extent = {count} }});
      const out_dsd = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{count}}} -> out[i] }});
      fn half(x: f16) f16 {{ return x / 2.0; }}
    """
    i = np.arange(2 * count).astype(np.float16)
    a, b = i * np.float16(0.3), np.float16(1) / (i + np.float16(1))
    want = (np.float32(0.125) + a[1::2].astype(np.float32) * np.float32(np.float16(1.7))).astype(np.float16)
    want = want + b[:count] + b[count:]
    total = np.float16(0)
    for number in want:
        total = total + number
    assert out_of(tmp_path, "f16", count + 1, body, before) == [*(want / np.float16(2)).tolist(), float(total)]


def test_two_axes(tmp_path: Path) -> None:
    body = "for (@range(i16, 6)) |i| { grid[i / 3, i % 3] = i; } @mov16(out_dsd, turned); out[6] = grid[1, 2];"
    before = """
      var grid: [2, 3]i16;
      const turned = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{3, 2} -> grid[j, i] });
      const out_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{6} -> out[i] });
    """
    assert out_of(tmp_path, "i16", 7, body, before) == [0, 3, 1, 4, 2, 5, 5]


@pytest.mark.parametrize("place", ["k", "i", "i + k", "2 * i + 3 * k", "j"])
def test_sums_over_axes(tmp_path: Path, place: str) -> None:
    """A vector that comes to its places again adds to what it stored there, element by element, as 25-pt-stencil of
    csl-examples sums its neighbours."""
    body = """
      for (@range(i16, 24)) |i| { grid[i] = 0.1 * @as(f16, i + 1); }
      @faddh(sums, sums, grid_dsd);
      @fmach(sums, grid_dsd, sums, 0.5);
    """
    before = f"""
      var grid: [24]f16;
      const grid_dsd = @get_dsd(mem4d_dsd, .{{ .tensor_access = |i, j, k|{{2, 3, 4}} -> grid[12 * i + 4 * j + k] }});
      const sums = @get_dsd(mem4d_dsd, .{{ .tensor_access = |i, j, k|{{2, 3, 4}} -> out[{place}] }});
    """
    grid = (np.float16(0.1) * np.arange(1, 25).astype(np.float16)).reshape(2, 3, 4)
    want = np.zeros(12, np.float16)
    for i, j, k in np.ndindex(2, 3, 4):
        want[eval(place, {"i": i, "j": j, "k": k})] += grid[i, j, k]
    for i, j, k in np.ndindex(2, 3, 4):
        at = eval(place, {"i": i, "j": j, "k": k})
        want[at] = np.float32(grid[i, j, k]) + np.float32(want[at]) * np.float32(0.5)
    assert out_of(tmp_path, "f16", 12, body, before) == want.tolist()


def test_a_running_result(tmp_path: Path) -> None:
    """One number, by a pointer, and one before the vector: a sum, a largest, a dot product, each step rounded."""
    body = """
    var a: [5]f16; var out: [4]f16; var out_ptr: [*]f16 = &out; var one: f16 = 0.0; var ptr = &one;
    const a_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{5} -> a[i] });
    const src1 = @get_dsr(dsr_src1, 1);
    fn main() void {
      for (@range(i16, 5)) |i| { a[i] = 700.3 * @as(f16, i + 1); }
      one = 0.25; @faddh(&one, one, a_dsd); out[0] = one;
      one = 0.0; @load_to_dsr(src1, a_dsd); @fmaxh(ptr, one, src1); out[1] = one;
      for (@range(i16, 5)) |i| { a[i] = 0.1 * @as(f16, i + 1); }
      one = 1.0; @fmach(&one, one, a_dsd, a_dsd); out[2] = one;
      sys.unblock_cmd_stream();
    }
    """
    shown, _ = run(tmp_path, body + END)
    a = (np.float16(700.3) * np.arange(1, 6, dtype=np.float16)).astype(np.float16)
    total = np.float16(0.25)
    for value in a:
        total = np.float16(total + value)
    b = (np.float16(0.1) * np.arange(1, 6, dtype=np.float16)).astype(np.float16)
    dot = np.float16(1.0)
    for value in b:
        dot = np.float16(np.float32(dot) + np.float32(value) * np.float32(value))
    assert shown[0][:3] == [total, a.max(), dot]


@pytest.mark.parametrize(
    ("said", "places"),
    [
        (".extent = .{5, 5}, .stride = .{1, -2}", [2 * i + j for i in range(5) for j in range(5)]),  # the page's
        (".extent = .{3, 2, 2}, .stride = .{1, 2, -3}, .offset = 1",
         [1 + 3 * i + 4 * j + k for i in range(2) for j in range(2) for k in range(3)]),
        (".extent = .{3, 2}", [*range(6)]),
        (".extent = .{4}, .stride = .{3}", [0, 3, 6, 9]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("inner", [False, True])
def test_strides_of_several_axes(said: str, places: list[int], inner: bool, tmp_path: Path) -> None:
    """The innermost axis first, and each stride from where those within it have come to their end."""
    said = f".base_address = &out, {said}"
    kind = "mem4d_dsd" if len(places) > 4 else "mem1d_dsd"
    before = f"const d = @get_dsd({kind}, .{{ {f'.tensor_access = .{{ {said} }}' if inner else said} }});"
    want = np.bincount(places, minlength=20)
    assert out_of(tmp_path, "u16", 20, "@add16(d, d, 1);", before) == want.tolist()


@pytest.mark.parametrize(("kind", "operation", "at"), [("f32", "@fmovs", 2), ("f16", "@fmovh", 4)])
def test_an_index_counts_words(kind: str, operation: str, at: int, tmp_path: Path) -> None:
    """.index moves a vector by words of 16 bits, as sdklayout-05-gemv of csl-examples has it: 2 * index of f32."""
    before = """
      var far: u16 = 4;
      const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> out[i], .wavelet_index_offset = true });
    """
    want = [0.0] * 8
    want[at : at + 2] = [1.5, 1.5]
    assert out_of(tmp_path, kind, 8, f"{operation}(d, 1.5, .{{ .index = far }});", before) == want


def test_an_offset_of_a_vector(tmp_path: Path) -> None:
    """.offset counts elements from .base_address, known before the run or not."""
    body = """
    var out: [6]f32; var out_ptr: [*]f32 = &out; var far: i16 = 4;
    const one = @get_dsd(mem1d_dsd, .{ .base_address = &out, .offset = 2, .extent = 2 });
    fn main() void {
      @fmovs(one, 3.0);
      const two = @get_dsd(mem1d_dsd, .{ .base_address = &out, .offset = far, .extent = 2 });
      @fmovs(two, 5.0);
      sys.unblock_cmd_stream();
    }
    """
    assert run(tmp_path, body + END)[0] == [[0.0, 0.0, 3.0, 3.0, 5.0, 5.0]]
