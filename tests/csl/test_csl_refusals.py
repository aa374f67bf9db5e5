"""What is wrong with a program is one message with file, line, and what is there instead."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from meshrt.commands.csl import command
from meshrt.csl.errors import ColorLimit, CslError, Deadlock, MemoryLimit, NoRoute
from tests.csl_programs import run, write

END = "comptime { @export_symbol(main); }\n"
ACCESS = "var a: [9]i16; var d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{%s} -> a[%s] });"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("fn main() void { sys.unblock_cmd_stream() }", r"core\.csl:6: ';' is missing in a statement, there is '}'"),
        ("fn main() void { @fmovz(1, 2); }", r"core\.csl:6: no builtin '@fmovz': did you mean @fmovs or @fmovh"),
        ("fn main() void { sys.unblock(); }", r"core\.csl:6: no <memcpy/memcpy> member 'unblock'"),
        ("var count: i16 = 0; fn main() void { cuont = 1; }", r"core\.csl:6: no name 'cuont': did you mean count"),
        ("var a: i16 = 70000; fn main() void { a = 1; }", r"70000 does not fit i16, which holds -32768 to 32767"),
        ("var a: i16 = 1; var b: u16 = 2; fn main() void { a = a + b; }", r"core\.csl:6: \+ of i16 and u16: @as says"),
        ('const m = @import_module("<maths>"); fn main() void { }', r"core\.csl:6: no library <maths>: did"),
        ("fn main() void { if (column) { } }", r"core\.csl:6: a bool is missing: this is a i16"),
        ("var a: [4]i16; fn main() void { a[4] = 1; }", r"core\.csl:6: index 4 of an axis of 4"),
        ("fn main() void { var x = @get_dsd(mem1d_dsd, .{ .extend = 3 }); }", r"no field 'extend': did you mean"),
        ("const d = @get_dsr(dsr_src1, 3); fn main() void { @fmovh(d, d); }", r"core\.csl:6: core .*register 3"),
        ("const a = 1 << -1; fn main() void { _ = a; }", r"core\.csl:6: << by -1: a shift is by 0 to 128 bits"),
        ("const a = 1.5 / 0.0; fn main() void { _ = a; }", r"core\.csl:6: 1\.5 / 0"),
        ("const a = ~1.5; fn main() void { _ = a; }", r"core\.csl:6: ~ of a comptime_float, which is no whole number"),
        ("fn f(n: i16) i16 { return f(n + 1); } fn main() void { _ = f(0); }", r"core\.csl:6: .* 1000 deep, .*: use"),
        ("fn f(n: i16) i16 { if (n > 1) { return n; } } var k: i16 = 1; fn main() void { _ = f(k); }",
         r"core\.csl:6: core .*: f has ended without a value, and its type is i16: return one on every way"),
        ("fn f(n: i16) i16 { if (n > 1) { return n; } } const k = f(1); fn main() void { _ = k; }",
         r"core\.csl:6: f has ended without a value, and its type is i16"),
        ("fn f() i16 { return; } fn main() void { _ = f(); }", r"core\.csl:6: return without a value: .* type is i16"),
        ("var a: i16 = 1; var a: i16 = 2; fn main() void { }", r"core\.csl:6: a is declared already, in line 6"),
        ("fn main() void { const a = 1; var a: i16 = 2; }", r"core\.csl:6: a is declared already, in line 6"),
        ("fn f(x: i16, x: i16) i16 { return x; } fn main() void { }", r"core\.csl:6: two parameters of f are named x"),
        ("var a: [1.5]i16; fn main() void { a[0] = 1; }", r"core\.csl:6: an array of 1\.5: its sizes are whole"),
        ("const m = @import_module(3); fn main() void { _ = m; }", r"core\.csl:6: @import_module of a comptime_int"),
        ('const m = @import_module("core.csl", .{ .memcpy_params = memcpy_params }); fn main() void { _ = m; }',
         r"core\.csl:6: core\.csl imports itself"),
        (f"{ACCESS % ('4', 'i')} fn main() void {{ @mov16(@set_dsd_length(d, -1), 1); }}",
         r"core\.csl:6: core .*: @set_dsd_length to -1: 0 or more are"),
        (f"{ACCESS % ('4', 'i')} fn main() void {{ @mov16(@set_dsd_stride(d, 1.5), 1); }}",
         r"core\.csl:6: @set_dsd_stride by a comptime_float, which"),
        ("var s: i16 = 0; fn main() void { for (@range(i16, 0, 9, s)) |i| { _ = i; } }", "9 in steps of 0 has no en"),
        (f"{ACCESS % ('4', 'i * i')} fn main() void {{ @mov16(d, 1); }}", "steps along i: .* 0 at 0, 1 at 1, 4 at 2"),
        (f"{ACCESS % ('9', 'i / 4')} fn main() void {{ @mov16(d, 1); }}", "equal steps along i: .* 0 at 1, 2 at 8"),
        (f"{ACCESS % ('-1', 'i')} fn main() void {{ @mov16(d, 1); }}", r"core\.csl:6: a vector of -1 elements"),
        (f"{ACCESS % ('4', 'i')} var k: i16 = -2; fn main() void {{ d = @set_dsd_length(d, k); @mov16(d, 1); }}",
         r"core\.csl:6: .* @set_dsd_length to -2: 0 or more are"),
        ("fn main() void { var t = .{ .a = @as(i16, 4) }; _ = t.a; }", r"core\.csl:6: \.a of a struct that is a var"),
        ("var a: f16 = 1.5; fn main() void { a = ~a; }", r"core\.csl:6: ~ of a f16, which is no whole number"),
    ],
)  # fmt: skip
def test_programs_that_are_wrong(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(CslError, match=message):
        run(tmp_path, "\n".join((body, END)).lstrip(), show="main")


def test_memory_is_bounded(tmp_path: Path) -> None:
    body = "var a: [20000]u16; var b: [5000]u16; fn main() void { a[0] = b[0]; }"
    with pytest.raises(
        MemoryLimit, match=r"core\.csl:6: b takes 10,000 bytes, 40,000 are in use and a core has 49,152"
    ):
        run(tmp_path, body + END)


VECTOR = "const d = @get_dsd(mem1d_dsd, .{{ .base_address = {}, .extent = {} }}); @fmovs(d, 1.0);"
HALVES = "var a: [4]u16; var p: [*]f32 = @ptrcast([*]f32, &a[1]); var i: i16 = 1;"


@pytest.mark.parametrize(
    ("before", "code", "error", "message"),
    [
        ("var a: [4]f32; var p: [*]f32 = &a; var i: i16 = 20000;", "p[i] = 1.0;", MemoryLimit,
         "an access leads out of a core's 49,152 bytes"),
        ("var a: [4]f32;", VECTOR.format("&a", 20000), MemoryLimit,
         "a vector of 20000 elements .* leads to 79996, out of a core's 49,152 bytes"),
        (HALVES, "p[i] = 1.0;", CslError, "address 6 holds no number of 4 bytes: these lie at multiples of 4"),
        (HALVES, VECTOR.format("@ptrcast([*]f32, &a[1])", 1), CslError,
         "a vector of 1 numbers of 4 bytes begins at address 2: these lie at multiples of 4"),
    ],
)  # fmt: skip
def test_an_access_out_of_memory(before: str, code: str, error: type[CslError], message: str, tmp_path: Path) -> None:
    """And between two numbers, where the one before would be taken."""
    with pytest.raises(error, match=rf"core\.csl:6: core \(0, 0\): {message}"):
        run(tmp_path, f"{before} fn main() void {{ {code} }}" + END)


SEND = """
const out_q = @get_output_queue(2); const in_q = @get_input_queue(3);
var a: [4]f32; const a_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i] });
const to = @get_dsd(fabout_dsd, .{ .fabric_color = @get_color(5), .extent = 4, .output_queue = out_q });
const from = @get_dsd(fabin_dsd, .{ .fabric_color = @get_color(5), .extent = 4, .input_queue = in_q });
fn main() void {
  if (column == 0) { @fmovs(to, a_dsd); } else { @fmovs(a_dsd, from); }
  sys.unblock_cmd_stream();
}
"""


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        ("", r"router \(0, 0\) has no rule for colour 5, .* comes in by RAMP \(sent by core \(0, 0\), .*core\.csl:12"),
        ("@set_color_config(x, 0, @get_color(5), .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} } });",
         r"layout\.csl:8: router \(0, 0\) takes colour 5 from WEST, a wavelet comes in by RAMP"),
        ("if (x == 0) @set_color_config(x, 0, @get_color(5), .{ .routes = .{ .rx = .{RAMP}, .tx = .{NORTH} } });",
         r"layout\.csl:8: colour 5 leaves the rectangle at \(0, 0\) to the NORTH"),
    ],
)  # fmt: skip
def test_routes_that_are_missing(tmp_path: Path, routes: str, message: str) -> None:
    with pytest.raises(NoRoute, match=message):
        run(tmp_path, SEND + END, width=2, routes=routes)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (".routes = .{ .rx = .{RAMP} }, .filtr = .{}", "configuration has no .filtr .*did you mean filter"),
        (".routes = .{ .rx = .{RAMP}, .pop_mode = .{ .no_pop = true } }", ".routes has no .pop_mode"),
        (".routes = .{ .rx = .{RAMP} }, .switches = .{ .pos4 = .{ .rx = EAST } }", ".switches has no .pos4"),
        (".routes = .{ .rx = .{RAMP} }, .switches = .{ .pop_mode = .{ .pop_always = true } }",
         ".pop_mode has no .pop_always"),
        (".routes = .{ .rx = .{RAMP} }, .switches = .{ .pos1 = .{ .rx = EAST }, .current_switch_pos = 2 }",
         ".current_switch_pos is 2, .* is 1"),
    ],
)  # fmt: skip
def test_routes_that_say_what_is_not_there(said: str, message: str, tmp_path: Path) -> None:
    routes = f"@set_color_config(x, 0, @get_color(5), .{{ {said} }});"
    with pytest.raises(CslError, match=rf"layout\.csl:\d+: .*{message}"):
        run(tmp_path, SEND + END, routes=routes)


@pytest.mark.parametrize("color", [24, 31])
def test_routers_have_24_colours(color: int, tmp_path: Path) -> None:
    """By the layout, and by the tile itself; a number above is a task's."""
    routes = f"@set_color_config(x, 0, @get_color({color}), .{{ .routes = .{{ .rx = .{{RAMP}}, .tx = .{{EAST}} }} }});"
    tile = f"comptime {{ @set_local_color_config(@get_color({color}), .{{ .routes = .{{ .rx = .{{RAMP}} }} }}); }}\n"
    main = "fn main() void { sys.unblock_cmd_stream(); }"
    for body, said in ((main + END, routes), (main + tile + END, "")):
        with pytest.raises(ColorLimit, match=rf"csl:\d+: colour {color} is given routes, a router has 24") as caught:
            run(tmp_path, body, routes=said)
        assert caught.value.exit_code == 3
    last = routes.replace(str(color), "23").replace("EAST", "RAMP")
    run(
        tmp_path,
        "var out: i16 = 0; " + main + "comptime { @export_symbol(main); @export_symbol(out); }",
        routes=last,
    )


@pytest.mark.parametrize(("color", "arch", "refused"), [(14, "wse3", True), (13, "wse3", False), (14, "wse2", False)])
def test_a_wse3_has_switches_for_some_colours(color: int, arch: str, refused: bool, tmp_path: Path) -> None:
    routes = f"""@set_color_config(x, 0, @get_color({color}), .{{ .routes = .{{ .rx = .{{RAMP}}, .tx = .{{EAST}} }},
      .switches = .{{ .pos1 = .{{ .tx = WEST }} }} }});"""
    body = "var out: i16 = 0; fn main() void { sys.unblock_cmd_stream(); }"
    body += "comptime { @export_symbol(main); @export_symbol(out); }"
    if not refused:
        run(tmp_path, body, routes=routes, arch=arch)
        return
    with pytest.raises(
        ColorLimit, match=r"layout\.csl:8: colour 14 is given switch positions, which a WSE-3 has"
    ) as said:
        run(tmp_path, body, routes=routes, arch=arch)
    assert said.value.exit_code == 3


def test_a_deadlock_is_named(tmp_path: Path) -> None:
    body = SEND.replace("column == 0", "column == 7")  # nobody sends
    with pytest.raises(
        Deadlock, match=r"(?s)2 of 2 cores never .*\(0, 0\): @fmovs at .*core\.csl:12 waits for colour 5 \(0 of 4"
    ):
        run(tmp_path, body + END, width=2)


def test_exit_codes(tmp_path: Path) -> None:
    """Of the command: 2 for a program that is wrong; a message, no traceback."""
    layout = write(tmp_path, "fn main() void { @nothing(); }" + END)
    ran = CliRunner().invoke(command, ["run", str(layout), "--params", "width:1", "--launch", "main"])
    assert isinstance(ran.exception, CslError) and ran.exception.exit_code == 2
    ran = CliRunner().invoke(command, ["run", str(layout), "--params", "wdith:1"])
    assert "--params wdith: did you mean width?" in str(ran.exception)
