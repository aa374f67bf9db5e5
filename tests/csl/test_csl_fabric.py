"""Wavelets between cores: routes, tasks, switches, filters, FIFOs, back-pressure, collectives."""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrt.csl.costs import COSTS
from meshrt.csl.host.child import run as run_child
from meshrt.csl.host.direct import run as run_layout
from meshrt.csl.syntax.lexer import tokens
from tests import csl_programs
from tests.csl_programs import run

EXAMPLES = Path(__file__).parents[2] / "examples/csl"
END = 'comptime { @export_symbol(out_ptr, "out"); @export_symbol(main); }\n'


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("n", [1, 40])
def test_shift(width: int, n: int) -> None:
    report, shown = run_layout(
        EXAMPLES / "shift/layout.csl", f"n:{n},width:{width}", "wse3", ("main",), ("total",), None
    )
    mine = np.arange(width)[:, None] * 10 + np.arange(n)
    assert [*shown["total"].values()] == (mine + np.vstack([np.zeros((1, n)), mine[:-1]])).tolist()
    assert report["wavelets"] == report["hops"] == n * (width - 1)


def test_a_host_script(tmp_path: Path) -> None:
    """The script sees stand-ins for the host's package; this process does not."""
    for path in (EXAMPLES / "gemv").iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    ran = run_child(["bash", "run.sh", "7", "3", "5"], tmp_path, capture=True, report=tmp_path / "report")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "SUCCESS!\n", "")
    assert '"mesh": [1, 5]' in (tmp_path / "report").read_text()
    with pytest.raises(ImportError):
        __import__("cerebras")


def _renamed(text: str, names: dict[str, str], order: random.Random) -> str:
    """A file with other names, its declarations in another order."""
    parts: list[list[str]] = [[]]
    depth = 0
    for token in tokens(text, "x")[:-1]:
        bare = token.text.strip('"')
        word = names.get(token.text, token.text) if token.kind == "name" else token.text
        parts[-1].append(f'"{names[bare]}"' if token.kind == "string" and bare in names else word)
        depth += {"{": 1, ".{": 1, "}": -1}.get(token.text, 0)
        if (
            depth == 0
            and token.text in (";", "}")
            and (token.text == ";" or parts[-1][0] in ("fn", "task", "comptime", "layout"))
        ):
            parts.append([])
    lines = [" ".join(part) for part in parts if part]
    order.shuffle(lines)
    return "\n".join(lines)


def _cycles(folder: Path, launch: str, show: str, arch: str) -> tuple[dict[str, Any], object]:
    layout = next(path for path in folder.glob("*.csl") if "@set_rectangle" in path.read_text())
    report, shown = run_layout(layout, "", arch, (launch,), (show,), None)
    return report, shown[show]


SHIFT = {
    "param n: i16;": "param n: i16 = 9;",
    "param width: i16;": "param width: i16 = 4;",
    "@fadds(total_dsd, mine_dsd, in_dsd);": (
        "@fadds(total_dsd, mine_dsd, in_dsd); @fmuls(total_dsd, total_dsd, mine_dsd);"
    ),
}
GEMV = {
    "param m: i16; // rows of A": "param m: i16 = 7;",
    "param k: i16; // columns of A a core": "param k: i16 = 5;",
    "param height: i16;": "param height: i16 = 3;",
    "var A: [k * m]f16;": "var A: [k * m]f16 = @constants([k * m]f16, 1.5);",
    "var x: [k]f16;": "var x: [k]f16 = @constants([k]f16, 0.5);",
    "if (!first) @faddh(y_dsd, in_dsd, y_dsd);": (
        "if (!first) @faddh(y_dsd, in_dsd, y_dsd); @faddh(y_dsd, y_dsd, A_dsd);"
    ),
}


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize(
    ("example", "changes", "main", "show"), [("shift", SHIFT, "main", "total"), ("gemv", GEMV, "compute", "y")]
)
def test_names_and_order_mean_nothing(
    example: str, changes: dict[str, str], main: str, show: str, arch: str, tmp_path: Path
) -> None:
    """Equal numbers and cycles with every name changed and all declarations shuffled; others where an operation is.

    On a WSE-2 cycles follow from addresses, and these from what is used first, not from what is declared first.
    """
    source = {path.name: path.read_text() for path in (EXAMPLES / example).glob("*.csl")}
    *sizes, (operation, other) = changes.items()
    for old, new in sizes:
        assert sum(text.count(old) for text in source.values()) >= 1
        source = {
            name: text.replace(old, new) if name == "layout.csl" or old.startswith("var") else text
            for name, text in source.items()
        }
    declared = {main, show}
    for text in source.values():
        words = tokens(text, "x")
        kinds = ("param", "const", "var", "fn", "task")
        declared |= {name.text for kind, name in pairwise(words) if kind.text in kinds}
    declared.discard("memcpy_params")
    names = {name: f"z{at}q" for at, name in enumerate(sorted(declared))}
    folders = [tmp_path / name for name in ("plain", "renamed", "edited")]
    for folder in folders:
        folder.mkdir()
    for name, text in source.items():
        (folders[0] / name).write_text(text)
        (folders[1] / name).write_text(_renamed(text, names, random.Random(3)))
        (folders[2] / name).write_text(text.replace(operation, other))
    plain = _cycles(folders[0], main, show, arch)
    edited = _cycles(folders[2], main, show, arch)
    assert plain == _cycles(folders[1], names[main], names[show], arch)
    assert plain[1] != edited[1]
    assert plain[0]["cycles"] != edited[0]["cycles"]
    assert (example, arch) != ("gemv", "wse2") or plain[0]["bank_conflicts"] > 0


EAST = ".{ .rx = .{RAMP}, .tx = .{EAST} }"
WEST = ".{ .rx = .{WEST}, .tx = .{RAMP} }"


def test_more_than_fits_waits(tmp_path: Path) -> None:
    """What a core does not take holds its sender back, and is not lost."""
    body = """
    var out: [60]u32; var out_ptr: [*]u32 = &out; var sent: u32 = 0;
    const out_q = @get_output_queue(2); const in_q = @get_input_queue(3); const later = @get_local_task_id(10);
    const out_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{60} -> out[i] });
    const to = @get_dsd(fabout_dsd, .{ .fabric_color = @get_color(5), .extent = 60, .output_queue = out_q });
    const from = @get_dsd(fabin_dsd, .{ .fabric_color = @get_color(5), .extent = 60, .input_queue = in_q });
    task go() void { @mov32(out_dsd, from); sys.unblock_cmd_stream(); }
    fn main() void {
      if (column == 0) {
        for (@range(i16, 60)) |i| { out[i] = @as(u32, i) * 3; }
        @mov32(to, out_dsd);
        sys.unblock_cmd_stream();
      } else {
        var i: i16 = 0;
        while (i < 500) : (i += 1) { out[0] += 1; }
        @activate(later);
      }
    }
    comptime { @bind_local_task(go, later); @initialize_queue(in_q, .{ .color = @get_color(5) }); }
    """
    routes = f"@set_color_config(x, 0, @get_color(5), .{{ .routes = if (x == 0) {EAST} else {WEST} }});"
    shown, wafer = run(tmp_path, body + END, width=2, routes=routes)
    assert shown[1] == [3 * i for i in range(60)]
    first, second = wafer.cores[0, 0], wafer.cores[1, 0]
    assert first.t > 500 and second.t > 500  # the sender waited


def test_every_hop_takes_its_time(tmp_path: Path) -> None:
    """From the first core to the last: those between pass on what comes, and do nothing."""
    body = """
    var out: [4]u32; var out_ptr: [*]u32 = &out; const c = @get_color(5);
    const out_q = @get_output_queue(2); const in_q = @get_input_queue(3);
    const out_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> out[i] });
    const to = @get_dsd(fabout_dsd, .{ .fabric_color = c, .extent = 4, .output_queue = out_q });
    const from = @get_dsd(fabin_dsd, .{ .fabric_color = c, .extent = 4, .input_queue = in_q });
    fn main() void {
      if (column == 0) { @mov32(to, out_dsd); }
      if (column == width - 1) { @mov32(out_dsd, from); }
      sys.unblock_cmd_stream();
    }
    comptime { @initialize_queue(in_q, .{ .color = c }); @initialize_queue(out_q, .{ .color = c }); }
    """
    between = ".{ .rx = .{WEST}, .tx = .{EAST} }"
    entry = f"if (x == 0) {EAST} else if (x == width - 1) {WEST} else {between}"
    routes = f"@set_color_config(x, 0, @get_color(5), .{{ .routes = {entry} }});"
    ends = {}
    for width in (2, 3, 7):
        (tmp_path / str(width)).mkdir()
        _, wafer = run(tmp_path / str(width), body + END, width=width, routes=routes)
        ends[width] = wafer.cores[width - 1, 0].t
        assert (wafer.counters.wavelets, wafer.counters.hops) == (4, 4 * (width - 1))
        assert wafer.counters.most_hops == width - 1
    assert ends[3] - ends[2] == pytest.approx(COSTS.hop) and ends[7] - ends[2] == pytest.approx(5 * COSTS.hop)


def test_what_is_sent_at_the_same_time_goes_one_behind_the_other(tmp_path: Path) -> None:
    """Two operations beside the core's own work share its ramp: so many more wavelets take so many cycles more."""
    ends = {}
    for count in (9, 12):  # the second begins some 7 cycles after the first
        body = f"""
        var out: [{2 * count}]u32; var out_ptr: [*]u32 = &out; const c = @get_color(5);
        const one_q = @get_output_queue(2); const two_q = @get_output_queue(4); const in_q = @get_input_queue(3);
        const half = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{count}}} -> out[i] }});
        const whole = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{2 * count}}} -> out[i] }});
        const one = @get_dsd(fabout_dsd, .{{ .fabric_color = c, .extent = {count}, .output_queue = one_q }});
        const two = @get_dsd(fabout_dsd, .{{ .fabric_color = c, .extent = {count}, .output_queue = two_q }});
        const from = @get_dsd(fabin_dsd, .{{ .fabric_color = c, .extent = {2 * count}, .input_queue = in_q }});
        fn main() void {{
          if (column == 0) {{ @mov32(one, half, .{{ .async = true }}); @mov32(two, half, .{{ .async = true }}); }}
          else {{ @mov32(whole, from); }}
          sys.unblock_cmd_stream();
        }}
        comptime {{ @initialize_queue(in_q, .{{ .color = c }}); }}
        """
        routes = f"@set_color_config(x, 0, @get_color(5), .{{ .routes = if (x == 0) {EAST} else {WEST} }});"
        (tmp_path / str(count)).mkdir()
        _, wafer = run(tmp_path / str(count), body + END, width=2, routes=routes)
        ends[count] = wafer.cores[1, 0].t
    assert ends[12] - ends[9] == pytest.approx(2 * 3)


@pytest.mark.parametrize(("count", "woken"), [(3, [0, 1]), (4, [0, 1]), (6, [1, 1])])
def test_a_fifo_tells_who_waited(count: int, woken: list[int], tmp_path: Path) -> None:
    """Six are wanted of a FIFO of four: a pop activates its task where a push had found no room, a push where a pop had
    found too few; not each of them."""
    body = f"""
    var a: [6]u32; var out: [8]u32; var out_ptr: [*]u32 = &out; var buffer: [4]u32;
    const fifo = @allocate_fifo(buffer, .{{ .activate_pop = popped, .activate_push = pushed }});
    const popped = @get_local_task_id(8); const pushed = @get_local_task_id(9);
    const drain = @get_local_task_id(10); const more = @get_local_task_id(11); const end = @get_local_task_id(12);
    const first = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{count}}} -> a[i] }});
    const rest = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{max(1, 6 - count)}}} -> a[i + {min(count, 5)}] }});
    const out_dsd = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{6}} -> out[i] }});
    task on_pop() void {{ out[6] += 1; }}
    task on_push() void {{ out[7] += 1; }}
    task take() void {{ @mov32(out_dsd, fifo, .{{ .async = true, .activate = end }}); @activate(more); }}
    task give() void {{ if ({count} < 6) {{ @mov32(fifo, rest, .{{ .async = true }}); }} }}
    task done() void {{ sys.unblock_cmd_stream(); }}
    fn main() void {{
      for (@range(i16, 6)) |i| {{ a[i] = @as(u32, i) + 5; }}
      @mov32(fifo, first, .{{ .async = true, .activate = drain }});
      if ({count} > 4) {{ @activate(drain); }}
    }}
    comptime {{
      @bind_local_task(on_pop, popped); @bind_local_task(on_push, pushed); @bind_local_task(take, drain);
      @bind_local_task(give, more); @bind_local_task(done, end);
      @export_symbol(out_ptr, "out"); @export_symbol(main);
    }}
    """
    shown, _ = run(tmp_path, body.replace(", .activate = drain", "" if count > 4 else ", .activate = drain"))
    assert shown == [[5, 6, 7, 8, 9, 10, *woken]]


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("seed", [None, 1])
def test_data_and_control_tasks(tmp_path: Path, arch: str, seed: int | None) -> None:
    """A task for each wavelet, and one for a control wavelet behind them."""
    body = """
    var out: [3]u32; var out_ptr: [*]u32 = &out; var i: u32 = 0;
    const ctrl = @import_module("<control>");
    const out_q = @get_output_queue(2); const in_q = @get_input_queue(3); const c = @get_color(5);
    const each = if (@is_arch("wse2")) @get_data_task_id(c) else @get_data_task_id(in_q);
    const end = @get_control_task_id(42);
    const one = @get_dsd(fabout_dsd, .{ .fabric_color = c, .extent = 1, .output_queue = out_q });
    const last = @get_dsd(fabout_dsd, .{ .fabric_color = c, .extent = 1, .output_queue = out_q, .control = true });
    task take(value: u32) void { out[0] += value; out[1] += 1; }
    task finish() void { out[2] = out[1]; sys.unblock_cmd_stream(); }
    fn main() void {
      if (column == 0) {
        while (i < 20) : (i += 1) { @mov32(one, i * i); }
        @mov32(last, ctrl.encode_control_task_payload(end));
        sys.unblock_cmd_stream();
      }
    }
    comptime {
      @bind_data_task(take, each); @bind_control_task(finish, end);
      if (@is_arch("wse3")) { @initialize_queue(in_q, .{ .color = c }); @initialize_queue(out_q, .{ .color = c }); }
    }
    """
    routes = f"@set_color_config(x, 0, @get_color(5), .{{ .routes = if (x == 0) {EAST} else {WEST} }});"
    shown, _ = run(tmp_path, body + END, width=2, routes=routes, arch=arch, seed=seed)
    assert shown[1] == [sum(i * i for i in range(20)), 20, 20]


@pytest.mark.parametrize(("width", "root"), [(1, 0), (2, 0), (2, 1), (5, 0), (5, 1), (5, 4)])
def test_collectives(tmp_path: Path, width: int, root: int) -> None:
    """Broadcast, scatter, sum and gather along a row, one after the other, of any core."""
    body = f"""
    var out: [{3 * width}]f32; var out_ptr: [*]f32 = &out;
    var data: [{3 * width}]f32; var part: [3]f32; var all: [3]f32; var stage: u16 = 0;
    const next = @get_local_task_id(20);
    const line = @import_module("<collectives_2d/pe>", .{{ .dim_params = c2d.x }});
    param c2d: comptime_struct;
    task go() void {{
      stage += 1;
      switch (stage) {{
        1 => line.broadcast({root}, @ptrcast([*]u32, &data), {3 * width}, next),
        2 => {{
          data[0] += @as(f32, line.pe_id);
          line.scatter({root}, @ptrcast([*]u32, &data), @ptrcast([*]u32, &part), 3, next);
        }},
        3 => {{ part[1] += 1.0; line.reduce_fadds({root}, &part, &all, 3, next); }},
        4 => {{
          if (line.pe_id == {root}) {{ part[2] = all[1]; }}
          line.gather({root}, @ptrcast([*]u32, &part), @ptrcast([*]u32, &out), 3, next);
        }},
        else => sys.unblock_cmd_stream(),
      }}
    }}
    fn main() void {{
      line.init();
      if (column == {root}) {{ for (@range(i16, {3 * width})) |i| {{ data[i] = @as(f32, i) + 0.5; }} }}
      @activate(next);
    }}
    comptime {{ @bind_local_task(go, next); }}
    """
    ids = ", ".join(
        f".{axis}_colors = .{{ @get_color({at}), @get_color({at + 1}) }}" for axis, at in (("x", 3), ("y", 5))
    )
    given = f".column = x, .c2d = c2.get_params(x, 0, .{{ {ids} }})"
    layout = csl_programs.LAYOUT.replace("ROUTES", "").replace(".column = x", given)
    (tmp_path / "core.csl").write_text(csl_programs.CORE + body + END)
    (tmp_path / "layout.csl").write_text('const c2 = @import_module("<collectives_2d/params>");' + layout)
    _, shown = run_layout(tmp_path / "layout.csl", f"width:{width}", "wse3", ("main",), ("out",), None)
    data = np.arange(3 * width) + 0.5
    data[0] += root
    parts = data.reshape(width, 3).copy()
    parts[:, 1] += 1
    parts[root, 2] = parts[:, 1].sum()
    assert shown["out"][f"{root},0"] == parts.ravel().tolist()
