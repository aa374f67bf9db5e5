"""Routers that change in the run: teardowns, routes written anew, the commands of control wavelets."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from meshrt.csl.errors import CslError
from meshrt.csl.machine import commands
from tests.csl_programs import run

# A sum goes east along a row; then every router is torn down, turned round, and twice the sum goes west.
THERE_AND_BACK = """
const switches = @import_module("<memcpy/memcpy_switches>");
const tile = @import_module("<tile_config>");
const c = @get_color(5);
const out_q = @get_output_queue(2); const in_q = @get_input_queue(3); const next = @get_local_task_id(10);
var out: [3]f32; var out_ptr: [*]f32 = &out; var phase: u16 = 0;
var down = [1]u32{ switches.ctrl(switches.teardown_cmd_1()) };
const out_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> out[i] });
const down_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> down[i] });
const to = @get_dsd(fabout_dsd, .{ .fabric_color = c, .extent = 3, .output_queue = out_q });
const end = @get_dsd(fabout_dsd, .{ .fabric_color = c, .extent = 1, .output_queue = out_q, .control = true });
const from = @get_dsd(fabin_dsd, .{ .fabric_color = c, .extent = 3, .input_queue = in_q });
const dest = @get_dsr(dsr_dest, 1); const source = @get_dsr(dsr_src1, 1);
fn twice(a: f32) f32 { return a + a; }
fn routes(first: bool, last: bool, comptime ahead: direction, comptime back: direction) void {
  const address = tile.color_config.get_color_config_addr(c);
  if (first) { tile.color_config.reset_routes(address, .{ .tx = ahead, .rx = RAMP }); }
  else if (last) { tile.color_config.reset_routes(address, .{ .tx = RAMP, .rx = back }); }
  else { tile.color_config.reset_routes(address, .{ .tx = [2]direction{ ahead, RAMP }, .rx = back }); }
  tile.switch_config.clear_current_position(c);
  tile.switch_config.set_invalid_for_all_switch_positions(c);
  tile.teardown.exit(c);
}
fn give() void {
  @fmovs(to, out_dsd);
  @load_to_dsr(dest, end, .{ .async = true });
  @load_to_dsr(source, down_dsd);
  @mov32(dest, source, .{ .async = true });
}
task go() void {
  if (phase == 2) { sys.unblock_cmd_stream(); return; }
  if (phase == 0) { routes(column == 0, column == width - 1, EAST, WEST); }
  else { routes(column == width - 1, column == 0, WEST, EAST); }
  if (phase == 0 and column == 0) { give(); }
  else if (phase == 1 and column == width - 1) { @map(twice, out_dsd, out_dsd); give(); }
  else { @fmovs(out_dsd, from); }
}
fn torn() void { phase += 1; @activate(next); }
fn main() void {
  if (column == 0) { for (@range(i16, 3)) |i| { out[i] = @as(f32, i) + 1.0; } }
  @activate(next);
}
comptime {
  @bind_local_task(go, next);
  @set_teardown_handler(torn, c);
  @set_local_color_config(c, .{ .routes = .{ .rx = .{WEST}, .tx = .{EAST} }, .teardown = true });
  @initialize_queue(in_q, .{ .color = c });
  @initialize_queue(out_q, .{ .color = c });
  @export_symbol(out_ptr, "out"); @export_symbol(main);
}
"""


@pytest.mark.parametrize("width", [2, 3, 7])
def test_teardown(tmp_path: Path, width: int) -> None:
    shown, _ = run(tmp_path, THERE_AND_BACK, width=width)
    assert shown == [[2.0, 4.0, 6.0]] * width


def test_a_teardown_that_nobody_handles(tmp_path: Path) -> None:
    body = THERE_AND_BACK.replace("@set_teardown_handler(torn, c);", "")
    with pytest.raises(CslError, match=r"teardown comes to router \(\d, 0\), whose tile has no handler for colour 5"):
        run(tmp_path, body, width=3)


def test_names_and_order_mean_nothing_to_routers(tmp_path: Path) -> None:
    """The same program with every name changed and its declarations shuffled: equal numbers, cycles, counts."""
    names = re.findall(r"\b(?:const|var|fn|task) (\w+)", THERE_AND_BACK)
    kept = {"main", "out"}
    text = THERE_AND_BACK
    for at, name in enumerate(sorted(set(names) - kept, key=len, reverse=True)):
        text = re.sub(rf"(?<![\w.@]){name}\b(?!\")", f"q{at}z", text)
    parts = re.split(r"\n(?=const|var|fn|task|comptime)", text.strip())
    random.Random(5).shuffle(parts)
    assert "switches" not in text.replace("memcpy_switches", "") and parts[0] != text.strip().split("\n")[0]
    for folder in ("plain", "renamed", "edited"):
        (tmp_path / folder).mkdir()
    plain, first = run(tmp_path / "plain", THERE_AND_BACK, width=4)
    renamed, second = run(tmp_path / "renamed", "\n".join(parts), width=4)
    assert plain == renamed
    counted = [(wafer.counters.wavelets, wafer.counters.hops, wafer.counters.events) for wafer in (first, second)]
    assert counted[0] == counted[1] and counted[0][0] == 8  # three numbers and a teardown, there and back
    assert [core.t for core in first.cores.values()] == [core.t for core in second.cores.values()]
    edited, third = run(tmp_path / "edited", THERE_AND_BACK.replace("return a + a;", "return a + a * a;"), width=4)
    assert edited != plain
    assert [core.t for core in first.cores.values()] != [core.t for core in third.cores.values()]


BRICKS = """
const c = @get_color(5);
const out_q = @get_output_queue(2); const in_q = @get_input_queue(3);
var all: [36]u32; var out: [6]u32; var out_ptr: [*]u32 = &out;
const all_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{6 * (width - 1)} -> all[i] });
const out_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{6} -> out[i] });
const to = @get_dsd(fabout_dsd, .{ .fabric_color = c, .extent = 6 * (width - 1), .output_queue = out_q });
const from = @get_dsd(fabin_dsd, .{ .fabric_color = c, .extent = 6, .input_queue = in_q });
fn main() void {
  for (@range(i16, 36)) |i| { all[i] = @as(u32, i); }
  if (column == 0) { @mov32(to, all_dsd); } else { @mov32(out_dsd, from); }
  sys.unblock_cmd_stream();
}
comptime {
  @initialize_queue(in_q, .{ .color = c }); @initialize_queue(out_q, .{ .color = c });
  @export_symbol(out_ptr, "out"); @export_symbol(main);
}
"""


@pytest.mark.parametrize("width", [2, 4, 7])
def test_counter_filters(tmp_path: Path, width: int) -> None:
    """One core sends all their bricks of three to a row, twice; each takes its own, as in fft-1d-2d of csl-examples."""
    routes = """
      const tx = if (x == width - 1) .{ RAMP } else .{ RAMP, EAST };
      if (x == 0) { @set_color_config(x, 0, @get_color(5), .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } }); }
      else { @set_color_config(x, 0, @get_color(5), .{
        .routes = .{ .rx = .{WEST}, .tx = tx },
        .filter = .{ .kind = .{ .counter = true }, .count_data = true, .limit1 = 3 * (width - 1) - 1,
          .max_counter = 2, .init_counter = (width - x) % (width - 1) * 3 },
      }); }
    """
    shown, wafer = run(tmp_path, BRICKS, width=width, routes=routes)
    whole = 3 * (width - 1)
    assert shown[1:] == [[at + 3 * x + i for at in (0, whole) for i in range(3)] for x in range(width - 1)]
    assert wafer.machine is None and wafer.counters.wavelets == 2 * whole


# The core in the middle changes its own router, then tells the first, which sends nine numbers to the east.
CHANGED = """
const tile = @import_module("<tile_config>");
const c = @get_color(5); const d = @get_color(6);
const out_q = @get_output_queue(2); const in_q = @get_input_queue(3); const go_q = @get_input_queue(4);
const go_out = @get_output_queue(5); const end = @get_local_task_id(10); const start = @get_local_task_id(11);
var out: [9]u32; var out_ptr: [*]u32 = &out; var flag: [1]u32;
const out_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{9} -> out[i] });
const flag_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> flag[i] });
const to = @get_dsd(fabout_dsd, .{ .fabric_color = c, .extent = 9, .output_queue = out_q });
const from = @get_dsd(fabin_dsd, .{ .fabric_color = c, .extent = 9, .input_queue = in_q });
const tell = @get_dsd(fabout_dsd, .{ .fabric_color = d, .extent = 1, .output_queue = go_out });
const told = @get_dsd(fabin_dsd, .{ .fabric_color = d, .extent = 1, .input_queue = go_q });
task send() void { @mov32(to, out_dsd); sys.unblock_cmd_stream(); }
task done() void { sys.unblock_cmd_stream(); }
fn main() void {
  if (column == 0) {
    for (@range(i16, 9)) |i| { out[i] = @as(u32, i + 1); }
    @mov32(flag_dsd, told, .{ .async = true, .activate = start });
  } else {
    @mov32(out_dsd, from, .{ .async = true });
    if (column == 1) { CHANGE @mov32(tell, flag_dsd, .{ .async = true }); }
    @activate(end);
  }
}
comptime {
  @bind_local_task(send, start); @bind_local_task(done, end);
  @initialize_queue(in_q, .{ .color = c }); @initialize_queue(out_q, .{ .color = c });
  @initialize_queue(go_q, .{ .color = d }); @initialize_queue(go_out, .{ .color = d });
  @export_symbol(out_ptr, "out"); @export_symbol(main);
}
"""
MIDDLE = """
  if (x == 0) { @set_color_config(x, 0, @get_color(6), .{ .routes = .{ .rx = .{EAST}, .tx = .{RAMP} } }); }
  if (x == 1) { @set_color_config(x, 0, @get_color(6), .{ .routes = .{ .rx = .{RAMP}, .tx = .{WEST} } }); }
  if (x == 0) { @set_color_config(x, 0, @get_color(5), .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } }); }
  if (x == 2) { @set_color_config(x, 0, @get_color(5), .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} } }); }
  if (x == 1) { @set_color_config(x, 0, @get_color(5), .{ .routes = .{ .rx = .{WEST}, .tx = .{EAST} } FILTER }); }
"""
ALL, NONE = [*range(1, 10)], [0] * 9
PASS_ON = "tile.color_config.set_io_direction(c, .TX_RAMP);"


@pytest.mark.parametrize(
    ("change", "middle", "last"),
    [
        ("", NONE, ALL),
        (PASS_ON, ALL, ALL),
        ("tile.color_config.toggle_io_direction(c, tile.color_config.fabric_io.TX_RAMP);"
         "tile.color_config.toggle_io_direction(c, .TX_EAST);", ALL, NONE),
        (PASS_ON + "tile.color_config.clear_io_direction(tile.color_config.get_color_config_addr(c), .TX_EAST);",
         ALL, NONE),
        ("tile.switch_config.set_tx_switch_pos1(c, RAMP); tile.switch_config.set_current_switch_position(c, 1);",
         ALL, NONE),
        ("tile.switch_config.set_rx_switch_pos1(c, EAST); tile.switch_config.set_tx_switch_pos2(c, RAMP);"
         "tile.switch_config.set_rx_switch_pos2(c, WEST); tile.switch_config.set_current_switch_position(c, 2);"
         "tile.switch_config.set_pop_mode(c, .ALWAYS_POP);", ALL, NONE),
    ],
)  # fmt: skip
def test_a_tile_changes_its_router(change: str, middle: list[int], last: list[int], tmp_path: Path) -> None:
    """Of one way out, and of a position of its switch; the others stay as the layout has them."""
    shown, wafer = run(tmp_path, CHANGED.replace("CHANGE", change), width=3, routes=MIDDLE.replace("FILTER", ""))
    assert shown == [ALL, middle, last]
    if "pop_mode" in change:
        assert wafer.routes[1, 0, 5].pop == "always_pop"


def test_a_tile_sets_its_counter_filter(tmp_path: Path) -> None:
    """Nine come: 4 and 5 of the counter pass, 6 to 8 do not, 0 to 3 do."""
    name = "tile.filters"
    change = f"{PASS_ON} {name}.set_counter(@get_filter_id(c), 4); {name}.set_max_counter(@get_filter_id(c), 5);"
    change += f"{name}.set_active_limit(@get_filter_id(c), 8);"
    said = ", .filter = .{ .kind = .{ .counter = true }, .count_data = true, .limit1 = 1 }"
    shown, _ = run(tmp_path, CHANGED.replace("CHANGE", change), width=3, routes=MIDDLE.replace("FILTER", said))
    assert shown == [ALL, [1, 2, 6, 7, 8, 9, 0, 0, 0], ALL]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("tile.filters.set_counter(@get_filter_id(c), 4);", r"core \(1, 0\): colour 5 has no counter filter here"),
        ("tile.switch_config.set_current_switch_position(c, 1);", "colour 5: position 1 is taken up: there are 0 to 0"),
        ("tile.switch_config.set_rx_switch_pos2(c, EAST);", "colour 5: position 2 is set and there is no position 1"),
        ("tile.color_config.set_io_direction(c, .TX_UP);", "no member 'TX_UP'"),
        ("tile.switch_config.set_pop_mode(c, 1);", "set_pop_mode takes one of switch_config.pop_mode"),
        ("tile.filters.set_counter(4);", "set_counter takes 2 arguments, here are 1"),
        ("tile.task_priority.set_task_priority(end);", "task_priority"),
    ],
)
def test_a_change_of_a_router_that_is_none(change: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CslError, match=rf"core\.csl:\d+: .*{message}"):
        run(tmp_path, CHANGED.replace("CHANGE", change), width=3, routes=MIDDLE.replace("FILTER", ""))


def test_commands() -> None:
    """Wavelets as comments in published programs have them, and the command that each of eight routers finds."""
    silent = commands.SILENT
    down = commands.encode([commands.NAMES.index("TEARDOWN") | silent])
    assert down == 0x9DF9249 and commands.first(down) == ("TEARDOWN", True)
    assert commands.pop(down) == 0x91F9249
    for place in range(commands.COUNT):
        raw = commands.encode([silent] * place + [1])
        for _ in range(place):
            assert commands.first(raw) == ("NOP", True)
            raw = commands.pop(raw)
        assert commands.first(raw) == ("SWITCH_ADV", False)
